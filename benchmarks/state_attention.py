"""Attention of one token over the valid rows of a cache, as in a decoder with states, beside torch (ADR 90).

    python benchmarks/state_attention.py [--budget 0] [--rows 64,440,512] [--json FILE]

Needs torch. Keys and values are ``(heads, rows, 64)``, with room for the most rows. One kernel is for all
numbers of rows: tuned for ``--budget`` seconds, or a first pick. torch's ``scaled_dot_product_attention`` has
the same rows. Calls from Python run in turns, on one thread: CPU time, the least of ``--rounds``. Hot: one
cache is called again and again. Cold: many caches in turn, more than the processor's caches hold, as a step
of a model meets them. "scores" is the product with keys alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from suite import commit  # noqa: E402

import autotune as at  # noqa: E402
from schedules import te  # noqa: E402
from schedules.model import Workload  # noqa: E402
from schedules.te.open_sizes import with_room  # noqa: E402

HEADS, GROUP, DIM, MOST = 4, 4, 64, 512  # GROUP: queries that read one head of keys and values
COLD_BYTES = 200 << 20


def workload(n: Any, part: str) -> Workload:
    """The expression over ``n`` rows. ``part``: "attention" or "scores"."""
    q = te.placeholder((HEADS, GROUP, DIM), name="q")
    k, v = (te.placeholder((HEADS, n, DIM), name=x) for x in "kv")
    c, t = te.reduce_axis(DIM, "c"), [te.reduce_axis(n, f"t{i}") for i in range(3)]
    every = (HEADS, GROUP, n)
    s = te.compute(every, lambda h, g, i: te.sum(q[h, g, c] * k[h, i, c], axis=c), "s")
    if part == "scores":
        y = te.compute(every, lambda h, g, i: s[h, g, i] * DIM**-0.5, "y")
        return Workload(with_room(te.dag([q, k, y]), {"k", "y"}))
    top = te.compute(every[:2], lambda h, g: te.max(s[h, g, t[0]], axis=t[0]), "top")
    e = te.compute(every, lambda h, g, i: te.exp((s[h, g, i] - top[h, g]) * DIM**-0.5), "e")
    z = te.compute(every[:2], lambda h, g: te.sum(e[h, g, t[1]], axis=t[1]), "z")
    shape = (HEADS, GROUP, DIM)
    o = te.compute(shape, lambda h, g, d: te.sum(e[h, g, t[2]] * v[h, t[2], d], axis=t[2]), "o")
    y = te.compute(shape, lambda h, g, d: o[h, g, d] / z[h, g], "y")
    return Workload(with_room(te.dag([q, k, v, y]), {"k", "v"}))


def kernel_of(part: str, budget_s: float, db: str) -> Any:
    made = workload(at.dim(1, MOST, open=True), part)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if budget_s:
            at.tune(made, threads=1, budget_s=budget_s, db=db, progress=None)
        return at.load(made, threads=1, db=db, fallback=True)


def least(calls: Sequence[Callable[[Any], Any]], caches: Sequence[Any], rounds: int) -> list[float]:
    """The least CPU seconds of a call of each function on each of the caches, in turns."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for f, own in zip(calls, found, strict=True):
            begun = time.process_time_ns()
            for x in caches:
                f(x)
            own.append((time.process_time_ns() - begun) / len(caches) * 1e-9)
    return [min(x) for x in found]


def measured(part: str, kernel: Any, n: int, rounds: int) -> dict[str, Any]:
    q = torch.randn(HEADS, GROUP, DIM)
    room = 2 * HEADS * MOST * DIM * 4
    whole = [torch.randn(2, HEADS, MOST, DIM) for _ in range(COLD_BYTES // room)]
    caches = [(x[0][:, :n], x[1][:, :n]) for x in whole]
    if part == "scores":
        out = torch.empty(HEADS, GROUP, MOST)[:, :, :n]

        def ours(x: Any) -> Any:
            return kernel(q, x[0], out=out)

        def theirs(x: Any) -> Any:
            return q @ x[0].transpose(1, 2) * DIM**-0.5
    else:

        def ours(x: Any) -> Any:
            return kernel(q, x[0], x[1])

        def theirs(x: Any) -> Any:
            k, v = x
            return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]

    torch.testing.assert_close(ours(caches[0]), theirs(caches[0]), rtol=1e-4, atol=1e-4)
    hot = least([ours, theirs], caches[:1] * 20, rounds)
    cold = least([ours, theirs], caches, max(rounds // 4, 3))
    read = n * HEADS * DIM * 4 * (1 if part == "scores" else 2)
    return {
        "part": part, "n": n, "hot_s": hot[0], "torch_hot_s": hot[1], "cold_s": cold[0],
        "torch_cold_s": cold[1], "gb_s": read / cold[0] * 1e-9, "torch_gb_s": read / cold[1] * 1e-9,
        "commit": commit(),
    }  # fmt: skip


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--budget", type=float, default=0.0, help="seconds of tuning of a kernel")
    parser.add_argument("--rows", default="64,440,512")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    print("| | rows | hot, µs | torch | cold, µs | torch | GB/s, cold | torch |")
    print("|---" * 8 + "|")
    with tempfile.TemporaryDirectory() as tmp, torch.no_grad():
        for part in ("scores", "attention"):
            kernel = kernel_of(part, options.budget, f"{tmp}/{part}.db")
            for n in map(int, options.rows.split(",")):
                found.append(r := measured(part, kernel, n, options.rounds))
                times = (f"{r[x] * 1e6:.1f}" for x in ("hot_s", "torch_hot_s", "cold_s", "torch_cold_s"))
                rates = (f"{r[x]:.1f}" for x in ("gb_s", "torch_gb_s"))
                print("|", " | ".join((part, str(n), *times, *rates)), "|", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
