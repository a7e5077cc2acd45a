"""What tests of schedules share: inputs, the interpreter, compiled runs on guarded memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from autotune.backends.building.from_trace import build_object
from autotune.codegen.llvm.compile import host_arch, load_object
from autotune.codegen.runtime.laid import laid, settled_values
from autotune.measure.arena import Arena, KernelParam
from autotune.measure.check import Checker
from autotune.measure.inputs import judged
from schedules import expr as E
from schedules.expr import Const, Var
from schedules.ir import Loop, LoweredFunc, Nest, Stmt, with_body
from schedules.ir.interp import run
from schedules.ir.nest import bind_loops, initial
from schedules.model import Target, Trace
from schedules.passes.lower import stages
from schedules.schedule import Schedule
from schedules.strides import MemoryLayout
from schedules.te.compute_dag import ComputeDAG, Tensor

Arrays = dict[str, np.ndarray]


def checker(dag: ComputeDAG, inputs: Sequence[np.ndarray]) -> Checker:
    """What a measurement holds outputs for these inputs against."""
    draw = judged(dag, inputs)
    return Checker(dag.outputs, draw.reference, draw.bounds)


def host(threads: int = 1) -> Target:
    """This machine as a target."""
    arch, features, triple = host_arch()
    return Target("cpu", arch, triple, features, threads)


def in_tiles(
    s: Schedule, name: str, rows: int, lanes: int, tails: tuple[str, str] = ("shift", "shift")
) -> tuple[str, str]:
    """Both axes of a block in tiles, the inner one in lanes: the loop over tiles, and that over rows."""
    i, j = s.loops(name)
    i0, i1 = s.split(i, (None, rows), tails[0])
    j0, j1 = s.split(j, (None, lanes), tails[1])
    s.reorder(i0, j0, i1, j1)
    s.vectorize(j1)
    return j0, i1


def tiled(dag: ComputeDAG, order: str, factors: tuple[int, int, int]) -> Schedule:
    """A matmul's loops split, and in this order: capitals are the inner ones."""
    s = Schedule(dag)
    loops = {}
    for name, loop, factor in zip("ijk", s.loops("c"), factors, strict=True):
        loops[name], loops[name.upper()] = s.split(loop, (None, factor))
    s.reorder(*(loops[x] for x in order))
    return s


def inputs(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Small integers in the dtype of each input, alike where its elements share a place."""
    rng = np.random.default_rng(seed)
    return [settled_values(rng.integers(-4, 5, t.shape).astype(t.dtype), lies(t)) for t in dag.inputs]


def lies(t: Tensor) -> MemoryLayout:
    """How a tensor lies."""
    return MemoryLayout(t.shape, t.strides)


def poisoned(like: np.ndarray) -> np.ndarray:
    """An output to write to, of the shape and dtype of ``like``: NaN, or integers that no input holds."""
    return np.full(like.shape, np.nan if E.is_float(like.dtype.name) else 77, like.dtype)


def interpret(program: Nest | LoweredFunc, dag: ComputeDAG, data: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a nest or lowered function by the interpreter, poisoned before."""
    arrays: Arrays = {t.name: laid(x, lies(t)) for t, x in zip(dag.inputs, data, strict=True)}
    for name in dag.outputs:
        t = dag.tensors[name]
        arrays[name] = laid(poisoned(np.empty(t.shape, t.dtype)), lies(t))
    run(program, arrays, skews=dict.fromkeys(arrays, 5))  # wherever lines begin
    for t, x in zip(dag.inputs, data, strict=True):
        assert arrays[t.name].tobytes() == x.tobytes(), f"the program wrote its input {t.name}"
    return [arrays[n] for n in dag.outputs]


def expected(dag: ComputeDAG, data: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of the unscheduled program."""
    return interpret(initial(dag), dag, data)


def same(got: Sequence[np.ndarray], want: Sequence[np.ndarray], what: str) -> None:
    """Raise AssertionError unless the arrays are equal bit for bit (any NaN equals any NaN)."""
    for n, (g, w) in enumerate(zip(got, want, strict=True)):
        with np.errstate(invalid="ignore"):  # ml_dtypes warns of NaN that signals
            equal = g == w
            if E.is_float(g.dtype.name):
                equal |= np.isnan(g) & np.isnan(w)
        if g.shape != w.shape or not equal.all():
            bad = np.argwhere(~equal)
            at = tuple(int(i) for i in bad[0])
            raise AssertionError(
                f"{what}: output {n}: {len(bad)} of {w.size} elements differ, "
                f"first {list(at)}: {g[at]} != {w[at]}"
            )


def backwards(nest: Nest) -> Nest:
    """The nest with the iterations of its parallel loops run from last to first: a race shows."""

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Loop) and s.kind == "parallel":
            body = bind_loops(s.body, {s.var: s.extent - Const(1) - Var(s.var)})
            return replace(s, body=go(body))
        return with_body(s, go)

    return replace(nest, body=go(nest.body))


def check_interpreted(
    nest: Nest, dag: ComputeDAG, data: Sequence[np.ndarray], want: Sequence[np.ndarray]
) -> None:
    """The nest and every stage of its lowering mean what the unscheduled program does."""
    same(interpret(nest, dag, data), want, "scheduled nest")
    turned = backwards(nest)
    if turned != nest:
        same(interpret(turned, dag, data), want, "parallel loops run backwards")
    for n, (title, func) in enumerate(stages(nest)):
        same(interpret(func, dag, data), want, f"after pass {n} ({title})")


def execute(
    dag: ComputeDAG, trace: Trace, target: Target, data: Sequence[np.ndarray]
) -> dict[str, list[np.ndarray]]:
    """The outputs of the compiled kernel by placement, as of `run_object`."""
    return run_object(build_object(dag, trace, target), dag, target, data)


def run_object(
    obj: bytes, dag: ComputeDAG, target: Target, data: Sequence[np.ndarray]
) -> dict[str, list[np.ndarray]]:
    """The outputs of a kernel by placement: its arrays, and its scratch memory, end (then begin) at
    inaccessible pages, and its outputs and scratch start as NaN."""
    loaded = load_object(obj)
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(loaded.address)
    arena = Arena([KernelParam(t.name, t.shape, t.dtype, t.strides) for t in dag.params], data)
    arena.fill_outputs()
    out: dict[str, list[np.ndarray]] = {}
    try:
        for n, place in enumerate(arena.placements):
            arena.poison(place, n)
            where = "end" if place.name != "begin" else "begin"
            scratch = arena.scratch.open(loaded.scratch_bytes, where) if loaded.scratch_bytes else 0
            kernel(ctypes.addressof(place.pointers), scratch, target.threads)
            if arena.scratch.overrun(loaded.scratch_bytes, where):
                raise AssertionError(f"{place.name}: the kernel wrote past its scratch memory")
            if text := arena.spilled(place):
                raise AssertionError(f"{place.name}: the kernel {text}")
            out[place.name] = [x.copy() for x in place.outputs]
    finally:
        arena.close()
    return out


def check_compiled(
    dag: ComputeDAG, trace: Trace, target: Target, data: Sequence[np.ndarray], want: Sequence[np.ndarray]
) -> None:
    """The compiled kernel gives what the unscheduled program does, wherever its arrays lie."""
    for name, got in execute(dag, trace, target, data).items():
        same(got, want, f"compiled for {target.threads} threads, arrays at {name}")


def decided(nest: Nest, decisions: Mapping[str, int]) -> Nest:
    """A nest with its holes filled."""

    def fill(e: E.Expr) -> E.Expr:
        return E.fill(e, decisions)

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Loop):
            return replace(s, extent=fill(s.extent), body=go(s.body))
        if hasattr(s, "binds"):
            return replace(
                s,
                iters=tuple(replace(i, extent=fill(i.extent)) for i in s.iters),
                binds=tuple(map(fill, s.binds)),
                values=tuple(map(fill, s.values)),
                where=tuple(map(fill, s.where)),
                writes=tuple(replace(w, indices=tuple(map(fill, w.indices))) for w in s.writes),
            )
        return with_body(s, go)

    buffers = tuple(replace(b, shape=tuple(map(fill, b.shape))) for b in nest.buffers)
    return replace(nest, buffers=buffers, body=go(nest.body))


def in_lanes(dag: ComputeDAG, lanes: int) -> Schedule:
    """A schedule of y, of one axis, in vectors."""
    s = Schedule(dag)
    if lanes > 1:
        (i,) = s.loops("y")
        s.vectorize(s.split(i, (None, lanes))[1])
    return s
