"""Instructions in a schedule by hand, beside the peak of the instruction itself.

``python benchmarks/instructions.py`` prints the share of its measured peak that a matrix product reaches on
one thread, for each instruction that is offered on this CPU. The second operand is packed in the call, or
ahead of it. The peak is that of independent instructions on registers. Rounds are interleaved. The median
share counts. ``--torch`` times torch's product of the same dtypes too (oneDNN; of bfloat16 its result is
bfloat16). All arrays begin with lines of memory, as torch's do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np

import autotune
from autotune.backends import parse
from autotune.backends.peaks.instruction_peaks import InstructionLoop
from autotune.codegen.llvm.compile import LoadedObject
from autotune.codegen.llvm.intrinsic import has
from autotune.measure.inputs import random_inputs
from schedules import te
from schedules.dtypes import DTYPES
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.model import LINE, Target
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.units import of_peak

# Products: of vectors, and of tiles.
TIMED = tuple(
    name
    for name, x in INSTRUCTIONS.items()
    if x.meaning.stages[0].reducer is not None and x.result.shape in ((8,), (16,), (16, 16))
)
RUNS = 100  # of the peak's loop in a sample
SAMPLE_S = 3e-3  # length of a sample of a kernel


def product(ins: Instruction, m: int, n: int, k: int, ahead: bool = False) -> ComputeDAG:
    """c = a b of the dtypes of an instruction; ``ahead``: b is a constant weight."""
    dtypes = {t.name: t.dtype for t in ins.operands}
    a, b = te.placeholder((m, k), dtypes["a"], "a"), te.placeholder((k, n), dtypes["b"], "b")
    r = te.reduce_axis(k, "k")
    dag = te.dag([a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")])
    return replace(dag, constants=("b",)) if ahead else dag


def schedule(dag: ComputeDAG, ins: Instruction, target: Target) -> Schedule:
    """The product in tiles of sums, each in a register of the instruction."""
    return in_vectors(dag, ins, target) if ins.registers is None else in_tiles(dag, ins, target)


def packed(s: Schedule, terms: int, columns: int, at_a_time: int) -> None:
    """Pack b: ``columns`` of it side by side, the terms of a column next to each other."""
    s.cache_read("c", "b", "global")
    s.pack("b_global", (terms, columns), (1, 0, 3, 2))
    inner = s.split(s.loops("b_global")[2], (None, at_a_time))[1]
    lanes = "" if at_a_time == 16 else f"_x{at_a_time}"
    dtype = s.dag.inputs[1].dtype
    s.tensorize(inner, f"interleave{4 // DTYPES[dtype].itemsize}_{dtype}{lanes}")


def in_vectors(
    dag: ComputeDAG, ins: Instruction, target: Target, rows: int = 4, vectors: int = 4, steps: int = 4
) -> Schedule:
    """Tiles of ``rows`` times ``vectors`` results in registers, ``steps`` instructions deep; b packed so that
    what an instruction reads lies side by side."""
    lanes, terms = ins.result.shape[0], ins.iterations["t"]
    s = Schedule(dag, target)
    s.cache_write("c", "local")
    packed(s, terms, vectors * lanes, lanes)
    io, ii = s.split("c_write_x0", (None, rows))
    jo, ji = s.split("c_write_x1", (None, vectors * lanes))
    s.reorder(jo, io, ii, ji)
    s.unroll(ii)
    s.vectorize(ji)
    s.compute_at("c", io)
    i, j, k = (x for x in s.loops("c") if x not in (jo, io))
    j0, j1 = s.split(j, (None, lanes))
    ko, ku, ki = s.split(k, (None, steps, terms))
    s.reorder(ko, ku, i, j0, j1, ki)
    for loop in (i, j0, ku):
        s.unroll(loop)
    init = s.decompose_reduction("c", ko)
    s.vectorize([x for x in s.loops(init) if x not in (jo, io)][-1])
    s.tensorize(j1, ins)
    return s


def in_tiles(
    dag: ComputeDAG, ins: Instruction, target: Target, rows: int = 2, columns: int = 2, blocks: int = 8
) -> Schedule:
    """``rows`` times ``columns`` tiles of sums in registers, written to c by the instruction; b packed so
    that a group of terms lies side by side. ``blocks``: at most so many times ``rows`` tiles of a stay in the
    second cache while all of b is read."""
    (height, width), deep, terms = ins.result.shape, ins.iterations["q"], ins.iterations["t"]
    blocks = min(blocks, dag.inputs[0].shape[0] // (rows * height))
    s = Schedule(dag, target)
    packed(s, terms, columns * width, width)
    i, j, k = s.loops("c")
    ib, io, i0, i1 = s.split(i, (None, blocks, rows, height))
    jo, j0, j1 = s.split(j, (None, columns, width))
    ko, kq, kt = s.split(k, (None, deep, terms))
    s.reorder(ib, jo, io, ko, i0, j0, i1, j1, kq, kt)
    s.unroll(i0)
    s.unroll(j0)
    init = s.decompose_reduction("c", ko)
    assert ins.start is not None
    s.tensorize(s.loops(init)[-2], ins.start)
    s.tensorize(i1, ins)
    return s


def cpu_seconds(code: LoadedObject, arrays: Sequence[np.ndarray]) -> float:
    """CPU seconds of a run, as the peak is timed, over about `SAMPLE_S`."""
    pointers = [x.ctypes.data for x in arrays]
    once = code.bench(pointers, 1, cpu_clock=True) * 1e-9
    runs = max(1, round(SAMPLE_S / once))
    return code.bench(pointers, runs, cpu_clock=True) / runs * 1e-9


def aligned(x: np.ndarray) -> np.ndarray:
    """A copy that begins with a line of memory."""
    room = np.empty(x.nbytes + LINE, np.uint8)
    first = -room.ctypes.data % LINE
    out = room[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


def torchs(ins: Instruction, size: int) -> Callable[[], float] | None:
    """CPU seconds of torch's product of the same dtypes on one thread; None where it has none."""
    import torch

    torch.set_num_threads(1)
    dtypes = {t.dtype for t in ins.meaning.inputs}
    if dtypes == {"bfloat16"}:
        a, b = (torch.randn(size, size).to(torch.bfloat16) for _ in range(2))
        multiply = torch.mm
    elif dtypes == {"int8"}:
        a, b = (torch.randint(-128, 128, (size, size), dtype=torch.int8) for _ in range(2))
        multiply = torch._int_mm
    else:
        return None

    def seconds(runs: int = 3) -> float:
        multiply(a, b)
        begin = time.process_time()
        for _ in range(runs):
            multiply(a, b)
        return (time.process_time() - begin) / runs

    return seconds


def compare(
    ins: Instruction, size: int, target: Target, rounds: int = 15, beside: bool = False
) -> dict[str, tuple[float, float]]:
    """Gop/s and the share of the peak, by name, of a product of ``size`` cubed. ``beside``: torch's too."""
    peak = InstructionLoop(ins, target)
    peak.rate(RUNS, cpu_clock=True)
    timed: dict[str, Callable[[], float]] = {}
    for name, ahead in (("packed in the call", False), ("packed ahead", True)):
        dag = product(ins, size, size, size, ahead)
        kernel = autotune.build(schedule(dag, ins, target), target)
        inputs = [aligned(x) for x in random_inputs(dag)]
        right = te.evaluate(replace(dag, constants=()), inputs)[0]
        given = [inputs[0], aligned(kernel.pack_weights(inputs[1]))] if ahead else inputs
        got = aligned(kernel(*given))
        if DTYPES[ins.result.dtype].kind == "int":
            assert np.array_equal(got, right), name
        else:
            assert np.abs(got - right).max() < 1e-4 * np.abs(right).max(), name
        timed[name] = partial(cpu_seconds, kernel.code, [*given, got])
    if beside and (other := torchs(ins, size)) is not None:
        timed["torch"] = other
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in timed}
    for _ in range(rounds):
        for name, seconds in timed.items():
            rate = 2 * size**3 / seconds()
            found[name].append((rate, rate / peak.rate(RUNS, cpu_clock=True)))
    return {name: (median(x for x, _ in xs) / 1e9, median(y for _, y in xs)) for name, xs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--instructions", nargs="+", choices=TIMED, metavar="NAME", help="offered or not")
    parser.add_argument("--torch", action="store_true")
    args = parser.parse_args()
    target = parse("cpu", 1)
    for ins in map(INSTRUCTIONS.__getitem__, args.instructions or TIMED):
        if not has(ins, target.features):
            print(f"{ins.name}: this CPU has no {', '.join(ins.features)}")
            continue
        if not args.instructions and not ins.offered(target.features):
            print(f"{ins.name}: this CPU has a better one for the same")
            continue
        for size in args.sizes:
            for name, (rate, share) in compare(ins, size, target, beside=args.torch).items():
                print(f"{ins.name} {size}^3 {name}: {rate:.0f} Gop/s, {of_peak(share, 'its peak')}")


if __name__ == "__main__":
    main()
