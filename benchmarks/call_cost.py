"""What a call costs: a kernel on numpy arrays and on torch tensors, beside torch's own calls.

    python benchmarks/call_cost.py [--n 8] [--calls 100] [--rounds 600] [--json FILE]

Needs torch. The kernel is a matrix product of n by n by n on one thread, untuned: n is small, so that the
call is what takes time. Ways of calling it are interleaved in rounds of some calls each. The least round says
what a call costs, and the median how much this machine disturbs it.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from suite import commit  # noqa: E402

import autotune as at  # noqa: E402


def ways(n: int) -> dict[str, Callable[[], Any]]:
    """Calls by what they are."""
    kernel = _kernel(m=n, n=n, k=n)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    c = np.empty((n, n), np.float32)
    ta, tb, tc = (torch.from_numpy(x.copy()) for x in (a, b, c))
    weight, needs = torch.nn.Parameter(tb), ta.clone().requires_grad_()
    varying = _kernel(m=at.dim(1, n), n=n, k=n)
    plain = at.torch.op(kernel)
    da, db = (at.torch.op(_kernel(m=n, n=n, k=n, **{t: 1})) for t in ("transpose_b", "transpose_a"))
    graded = at.torch.op(kernel, backward=lambda g, x, y: (da(g, y), db(x, g)))
    empty, custom = _empty_operators(tc)
    found = {
        "numpy in, new numpy out": lambda: kernel(a, b),
        "numpy in, out=": lambda: kernel(a, b, out=c),
        "numpy in, a size that varies": lambda: varying(a, b),
        "numpy in, out=, a size that varies": lambda: varying(a, b, out=c),
        "torch in, a size that varies": lambda: varying(ta, tb),
        "torch in, new torch out": lambda: kernel(ta, tb),
        "torch in, out=": lambda: kernel(ta, tb, out=tc),
        "torch in, nn.Parameter, in no_grad": _without_gradient(lambda: kernel(ta, weight)),
        "entering and leaving no_grad": _without_gradient(lambda: None),
        "torch in through DLPack in Python": lambda: kernel(_ByDLPack(ta), _ByDLPack(tb)),
        "at.torch.op": lambda: plain(ta, tb),
        "at.torch.op with backward": lambda: graded(ta, tb),
        "at.torch.op with backward, recorded": lambda: graded(needs, tb),
        "torch.empty of the size": lambda: torch.empty((n, n)),
        "torch.mm": lambda: torch.mm(ta, tb),
        "torch.mm, out=": lambda: torch.mm(ta, tb, out=tc),
        "torch.mm, recorded": lambda: torch.mm(needs, tb),
        "empty operator by torch.library.Library": lambda: empty(ta, tb),
        "empty operator by torch.library.custom_op": lambda: custom(ta, tb),
    }
    nothing = _of_tvm_ffi()
    if nothing is not None:
        found["apache-tvm-ffi, a function that does nothing, 3 tensors"] = lambda: nothing(ta, tb, tc)
    return found


def measure(calls: dict[str, Callable[[], Any]], number: int, rounds: int) -> dict[str, list[float]]:
    """Nanoseconds a call, of each round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.disable()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            for _ in range(number):
                call()
            times[name].append((time.perf_counter_ns() - start) / number)
    gc.enable()
    return times


class _ByDLPack:
    """A tensor of a library that offers DLPack in Python alone."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def _kernel(**shape: Any) -> at.Kernel:
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as empty:
        warnings.simplefilter("ignore")  # it is not tuned, and need not be
        return at.load("matmul", **shape, threads=1, fallback=True, db=f"{empty}/none.db")


def _without_gradient(call: Callable[[], Any]) -> Callable[[], Any]:
    def inside() -> Any:
        with torch.no_grad():
            return call()

    return inside


def _empty_operators(result: torch.Tensor) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Operators that do nothing, by both ways that torch.library has."""
    library = torch.library.Library("call_cost", "FRAGMENT")
    library.define("empty(Tensor a, Tensor b) -> Tensor")
    library.impl("empty", lambda a, b: result, "CompositeExplicitAutograd")
    _empty_operators.keep = library  # type: ignore[attr-defined]

    @torch.library.custom_op("call_cost::custom", mutates_args=())
    def custom(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(result)

    return torch.ops.call_cost.empty.default, custom


def _of_tvm_ffi() -> Callable[..., Any] | None:
    try:
        import tvm_ffi
    except ImportError:
        return None
    return tvm_ffi.get_global_func("testing.nop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--calls", type=int, default=100, help="in a round")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    times = measure(ways(args.n), args.calls, args.rounds)
    numpy = min(times["numpy in, new numpy out"])
    print(f"matmul {args.n} x {args.n} x {args.n}, µs a call: least, median, and least over numpy's call")
    for name, found in times.items():
        least, median = min(found), statistics.median(found)
        print(f"  {name:56} {least / 1e3:7.2f} {median / 1e3:7.2f} {(least - numpy) / 1e3:+7.2f}")
    if args.json is not None:
        ns = {name: {"least": min(x), "median": statistics.median(x)} for name, x in times.items()}
        shape = {"n": args.n, "calls": args.calls, "rounds": args.rounds}
        document = {**shape, "torch": torch.__version__, "commit": commit(), "ns": ns}
        args.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
