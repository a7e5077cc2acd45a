"""Attention of few rows over the valid rows of a cache, as in a decoder with states (ADR 90, ADR 98).

    python benchmarks/state_attention.py [--budget 0] [--rows 64,440,512] [--dtypes float32,float16,bfloat16]
                                         [--layouts rows,heads] [--heads 4] [--queries 1] [--json FILE]

Needs torch. Keys and values have room for the most rows: ``(rows, heads, 64)`` or ``(heads, rows, 64)``; four
heads of queries read one of them. One kernel is for all numbers of rows: tuned for ``--budget`` seconds, or a
first pick. torch's ``scaled_dot_product_attention`` has the same rows in float32. Calls from Python run in
turns, on one thread: CPU time, the least of ``--rounds``. Hot: one cache is called again and again. Cold:
many caches in turn, more than the processor's caches hold, as a step of a model meets them. "read" is a sum
of as many bytes by torch, also cold. "scores" and "attended" are the two kernels that a model may have.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from suite import commit  # noqa: E402

import autotune as at  # noqa: E402
from schedules import te  # noqa: E402
from schedules.dtypes import DTYPES  # noqa: E402
from schedules.model import Workload  # noqa: E402
from schedules.te.open_sizes import with_room  # noqa: E402

GROUP, DIM, MOST = 4, 64, 512  # GROUP: queries that read one head of keys and values
COLD_BYTES = 200 << 20


@dataclass(frozen=True)
class Form:
    """``part``: "attention", or its two halves. ``layout``: what is outermost in a cache, "rows" or "heads".
    ``queries``: rows of queries."""

    part: str
    layout: str
    dtype: str
    heads: int
    queries: int

    def workload(self, n: Any) -> Workload:
        """The expression over ``n`` rows. A mask hides what is behind a query's own row."""
        one = self.queries == 1
        lead = (self.heads, GROUP) if one else (self.heads, self.queries, GROUP)
        q, at_ = te.placeholder((*lead, DIM), name="q"), te.placeholder((), "int64", "at")
        shape = (n, self.heads, DIM) if self.layout == "rows" else (self.heads, n, DIM)
        k, v = (te.placeholder(shape, self.dtype, x) for x in "kv")
        c, *t = te.reduce_axis(DIM, "c"), *(te.reduce_axis(n, f"t{i}") for i in range(3))
        every = (*lead, n)

        def of(x: Any, h: Any, i: Any, j: Any) -> Any:
            return te.cast(x[i, h, j] if self.layout == "rows" else x[h, i, j], "float32")

        def seen(*x: Any) -> Any:
            last = at_[()] if one else at_[()] + te.cast(x[1], "int64")
            return te.select(te.cast(x[-1], "int64") <= last, s[x] * DIM**-0.5, -te.inf)

        if self.part == "attended":
            w = te.placeholder(every, name="w")
        else:
            s = te.compute(every, lambda h, *x: te.sum(q[(h, *x[:-1], c)] * of(k, h, x[-1], c), axis=c), "s")
            w = te.compute(every, seen, "w")
            if self.part == "scores":
                return Workload(self.room([q, at_, k, w], "kw"))
        top = te.compute(lead, lambda *x: te.max(w[(*x, t[0])], axis=t[0]), "top")
        e = te.compute(every, lambda *x: te.exp(w[x] - top[x[:-1]]), "e")
        z = te.compute(lead, lambda *x: te.sum(e[(*x, t[1])], axis=t[1]), "z")
        o = te.compute(
            (*lead, DIM), lambda h, *x: te.sum(e[(h, *x[:-1], t[2])] * of(v, h, t[2], x[-1]), axis=t[2]), "o"
        )
        y = te.compute((*lead, DIM), lambda *x: o[x] / z[x[:-1]], "y")
        args = [w, v, y] if self.part == "attended" else [q, at_, k, v, y]
        return Workload(self.room(args, "wv" if self.part == "attended" else "kv"))

    def room(self, args: Sequence[te.Tensor], names: str) -> Any:
        """Arguments whose strides would depend on the rows have room for the most."""
        return with_room(te.dag(args), {x for x in names if x == "w" or self.layout == "heads"})


def kernel_of(form: Form, budget_s: float, db: str) -> Any:
    made = form.workload(at.dim(1, MOST, open=True))
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


def measured(form: Form, kernel: Any, n: int, rounds: int) -> dict[str, Any]:
    one, rng = form.queries == 1, np.random.default_rng(0)
    lead = (form.heads, GROUP) if one else (form.heads, form.queries, GROUP)
    shape = (MOST, form.heads, DIM) if form.layout == "rows" else (form.heads, MOST, DIM)
    stored = DTYPES[form.dtype].numpy
    parts = 2 if form.part == "attention" else 1
    first = rng.standard_normal((parts, *shape)).astype(stored)
    whole = [first.copy() for _ in range(COLD_BYTES // first.nbytes)]
    caches = [tuple(a[:n] if form.layout == "rows" else a[:, :n] for a in x) for x in whole]
    q, at_ = rng.standard_normal((*lead, DIM), dtype=np.float32), np.array(n - form.queries)
    w = rng.standard_normal((*lead, MOST), dtype=np.float32)[..., :n]

    def ours(x: Any) -> Any:
        if form.part == "scores":
            return kernel(q, at_, x[0], out=w)
        return kernel(w, x[0]) if form.part == "attended" else kernel(q, at_, x[0], x[1])

    read = n * form.heads * DIM * stored.itemsize * parts
    flat = {id(x): torch.from_numpy(a.view(np.uint8).ravel().view(np.float32)[: read // 4])
            for x, a in zip(caches, whole, strict=True)}  # fmt: skip

    def reads(x: Any) -> None:
        flat[id(x)].sum()

    calls = [ours, reads]
    if form.part == "attention":
        as_heads = (1, 0, 2) if form.layout == "rows" else (0, 1, 2)
        given = [tuple(torch.from_numpy(a.astype(np.float32).transpose(as_heads)) for a in x) for x in caches]
        asked = torch.from_numpy(q) if one else torch.from_numpy(q.reshape(form.heads, -1, DIM))
        hides = torch.ones(form.queries, n, dtype=torch.bool).tril(n - form.queries)
        hides = hides.repeat_interleave(GROUP, 0)
        at_id = {id(x): t for x, t in zip(caches, given, strict=True)}

        def theirs(x: Any) -> Any:
            k, v = at_id[id(x)]
            mask = None if one else hides
            return torch.nn.functional.scaled_dot_product_attention(asked[None], k[None], v[None], mask)[0]

        calls.append(theirs)
        want = theirs(caches[0]).numpy().reshape(ours(caches[0]).shape)
        np.testing.assert_allclose(ours(caches[0]), want, rtol=1e-3, atol=1e-4)
    hot = least(calls, caches[:1] * 20, rounds)
    cold = least(calls, caches, max(rounds // 4, 3))
    return {
        **asdict(form), "n": n, "hot_s": hot[0], "cold_s": cold[0], "read_s": cold[1],
        "torch_hot_s": hot[2] if len(hot) > 2 else None, "torch_cold_s": cold[2] if len(cold) > 2 else None,
        "gb_s": read / cold[0] * 1e-9, "commit": commit(),
    }  # fmt: skip


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--budget", type=float, default=0.0, help="seconds of tuning of a kernel")
    parser.add_argument("--rows", default="64,440,512")
    parser.add_argument("--parts", default="attention")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--layouts", default="rows")
    parser.add_argument("--heads", type=int, default=4, help="of keys and values")
    parser.add_argument("--queries", type=int, default=1, help="rows of queries")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    print("| | outermost | dtype | rows | hot, µs | torch | cold, µs | torch | read | GB/s, cold |")
    print("|---" * 10 + "|")
    forms = product(*(getattr(options, x).split(",") for x in ("parts", "layouts", "dtypes")))
    with tempfile.TemporaryDirectory() as tmp, torch.no_grad():
        for i, (part, layout, dtype) in enumerate(forms):
            form = Form(part, layout, dtype, options.heads, options.queries)
            kernel = kernel_of(form, options.budget, f"{tmp}/{i}.db")
            for n in map(int, options.rows.split(",")):
                found.append(r := measured(form, kernel, n, options.rounds))
                keys = ("hot_s", "torch_hot_s", "cold_s", "torch_cold_s", "read_s")
                times = ("" if r[x] is None else f"{r[x] * 1e6:.1f}" for x in keys)
                cells = (part, layout, dtype, str(n), *times, f"{r['gb_s']:.1f}")
                print("|", " | ".join(cells), "|", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
