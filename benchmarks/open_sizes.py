"""One kernel for all sizes of a range beside kernels that were tuned for each size alone (ADR 79).

    python benchmarks/open_sizes.py --budget 20 --alone 10 --out open-sizes.json
    python benchmarks/open_sizes.py --cases product,attention --budget 0 --alone 0

Each case is tuned once with its size open, and in another log for each of eight sizes. A budget of 0 seconds
is a first pick. Both kernels of a size run in turns, on one thread: CPU time, the best of ``--rounds``. What
the first call of a size takes for its kernel is told too, and how far results of both are apart. Cases that
the file has are kept; ``--markdown`` prints its table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from suite import commit  # noqa: E402
from untuned import inputs_of  # noqa: E402

import autotune as at  # noqa: E402
from autotune.run.kernel import Kernel  # noqa: E402
from schedules import ops, te  # noqa: E402
from schedules.model import Workload  # noqa: E402

SIZES = (512, 256, 100, 37, 17, 8, 3, 1)
ROUND_S = 1e-3  # of CPU time that a kernel runs in a round


@dataclass(frozen=True)
class Case:
    """``make``: the workload of a size, a number or an open one. ``most``: the largest size."""

    make: Callable[[Any], Workload]
    most: int = 512

    @property
    def sizes(self) -> list[int]:
        return [n for n in SIZES if n <= self.most] + ([self.most] if self.most < min(SIZES) else [])


def attention(n: Any, heads: int = 16, dim: int = 64) -> Workload:
    """One token over ``n`` rows of keys and values, which have the rows outermost, as a cache has."""
    q = te.placeholder((heads, dim), name="q")
    k, v = (te.placeholder((n, heads, dim), name=x) for x in "kv")
    c, *t = te.reduce_axis(dim, "c"), *(te.reduce_axis(n, f"t{i}") for i in range(3))
    s = te.compute((heads, n), lambda h, i: te.sum(q[h, c] * k[i, h, c], axis=c), "s")
    top = te.compute((heads,), lambda h: te.max(s[h, t[0]], axis=t[0]), "top")
    e = te.compute((heads, n), lambda h, i: te.exp((s[h, i] - top[h]) * dim**-0.5), "e")
    z = te.compute((heads,), lambda h: te.sum(e[h, t[1]], axis=t[1]), "z")
    o = te.compute((heads, dim), lambda h, d: te.sum(e[h, t[2]] * v[t[2], h, d], axis=t[2]), "o")
    return Workload(te.dag([q, k, v, te.compute((heads, dim), lambda h, d: o[h, d] / z[h], "y")]))


def operator(name: str, size: str, dtype: str | None = None, **fixed: Any) -> Callable[[Any], Workload]:
    return lambda n: ops.workload(name, {size: n, **fixed}, dtype)


CASES = {
    "product": Case(operator("matmul", "m", n=1024, k=1024)),
    "softmax": Case(operator("softmax", "m", n=1024)),
    "RMS norm": Case(operator("rms_norm", "m", n=1024)),
    "attention": Case(attention),
    "convolution": Case(operator("conv2d", "b", h=14, w=14, ci=64, co=64, k=3, padding=1)),
    "product of bfloat16": Case(operator("matmul", "m", "bfloat16", n=1024, k=1024)),
    "product of int8": Case(operator("matmul", "m", "int8", n=1024, k=1024)),
}
CONSTANT = {"product", "product of bfloat16", "product of int8"}  # whose weights are packed ahead


def loaded(workload: Workload, name: str, budget_s: float, db: str) -> Any:
    """The kernel of a workload that was tuned for some seconds in a log, or a first pick."""
    known = {"constant_weights": True} if name in CONSTANT else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if budget_s:
            at.tune(workload, threads=1, budget_s=budget_s, db=db, progress=None, **known)
        return at.load(workload, threads=1, db=db, fallback=True, **known)


class Timed:
    """A kernel of one size with its arrays."""

    def __init__(self, kernel: Kernel, inputs: list[Any]) -> None:
        self.code = kernel.code
        self.out = kernel._made()
        self.pointers, self.held = kernel._pointers(kernel.packed_inputs(inputs), self.out)
        self.runs = 1
        for _ in range(2):
            self.runs = max(round(ROUND_S / self.seconds()), 1)

    def seconds(self) -> float:
        """CPU time of one run."""
        return max(self.code.bench(self.pointers, self.runs, cpu_clock=True), 1) / self.runs * 1e-9


def best(first: Timed, second: Timed, rounds: int) -> tuple[float, float]:
    """The least CPU times of two kernels, in turns."""
    pairs = [(first.seconds(), second.seconds()) for _ in range(rounds)]
    return min(a for a, _ in pairs), min(b for _, b in pairs)


def first_call_s(kernel: Any, sizes: dict[str, int]) -> float:
    """CPU time that the first call of a size takes for its kernel."""
    begun = time.process_time()
    kernel.prepare(**sizes)
    return time.process_time() - begun


def rows(name: str, budget_s: float, alone_s: float, rounds: int) -> Iterator[dict[str, Any]]:
    case = CASES[name]
    with tempfile.TemporaryDirectory() as tmp:
        kernel = loaded(case.make(at.dim(1, case.most, open=True)), name, budget_s, f"{tmp}/open.db")
        size = kernel.dynamic.dims[0].name
        first = {n: first_call_s(kernel, {size: n}) for n in case.sizes if n < case.most}
        for n in case.sizes:
            inputs = inputs_of(case.make(n))
            alone = loaded(case.make(n), name, alone_s, f"{tmp}/{n}.db")
            a, b = Timed(kernel.at(**{size: n}), inputs), Timed(alone, inputs)
            open_s, own_s = best(a, b, rounds)
            got, want = (np.asarray(x.out[0], np.float64) for x in (a, b))
            yield {
                "case": name, "n": n, "open_s": open_s, "alone_s": own_s, "ratio": open_s / own_s,
                "first_call_s": first.get(n), "chosen_by": [kernel.chosen_by, alone.chosen_by],
                "apart": float(np.max(np.abs(got - want)) / max(np.max(np.abs(want)), 1e-30)),
                "budget_s": budget_s, "alone_budget_s": alone_s, "arch": kernel.target.arch,
                "commit": commit(),
            }  # fmt: skip


def markdown(found: list[dict[str, Any]]) -> str:
    every = sorted({r["n"] for r in found}, reverse=True)
    out = [f"| open ÷ alone | {' | '.join(map(str, every))} | geometric mean | first call |"]
    out.append("|---" * (len(every) + 3) + "|")
    for name in dict.fromkeys(r["case"] for r in found):
        own = {r["n"]: r for r in found if r["case"] == name}
        cells = [f"{own[n]['ratio']:.2f}" if n in own else "" for n in every]
        mean = statistics.geometric_mean(r["ratio"] for r in own.values())
        first = statistics.median(r["first_call_s"] for r in own.values() if r["first_call_s"] is not None)
        out.append(f"| {name} | {' | '.join(cells)} | {mean:.2f} | {first * 1e3:.2f} ms |")
    return "\n".join(out)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--cases", default=",".join(CASES), help="names, with commas between")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tuning of the range")
    parser.add_argument("--alone", type=float, default=10.0, help="seconds of tuning of each size")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/open-sizes.json")
    parser.add_argument("--markdown", action="store_true", help="print the table of the file and stop")
    options = parser.parse_args()
    found: list[dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else []
    if not options.markdown:
        have = {r["case"] for r in found}
        for name in (x for x in options.cases.split(",") if x not in have):
            for one in rows(name, options.budget, options.alone, options.rounds):
                found.append(one)
                options.out.write_text(json.dumps(found, indent=1) + "\n")
                print(f"{name}, {one['n']}: {one['ratio']:.2f}", file=sys.stderr, flush=True)
    print(markdown(found))


if __name__ == "__main__":
    main()
