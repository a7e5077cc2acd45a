"""Lowers a scheduled nest for GPUs to kernels, each a grid of blocks of threads (ADR 9).

A statement at the root of the nest is one kernel. Its outermost loops are bound to ``blockIdx``. Their body
is the work of a block, in phases: each is a loop bound to ``threadIdx``. Statements outside such loops are
done by every thread, or by one thread if they write shared memory. In lowered code a loop over threads only
says which thread runs its body.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Load
from schedules.ir import (
    Access,
    Alloc,
    AllReduce,
    Block,
    Buffer,
    Intrinsic,
    Loop,
    Nest,
    Stmt,
    blocks,
    bound_to,
    const,
    in_order,
    walk,
    with_body,
)
from schedules.ir.exprs import loads, written
from schedules.ir.grid import CACHES, GridKernel, GridProgram
from schedules.ir.nest import reads
from schedules.ir.strides import resized, widest_swizzle
from schedules.ir.verify import verify, verify_names
from schedules.passes.background import in_background
from schedules.passes.barriers import barriers
from schedules.passes.cross_thread import cross_thread
from schedules.passes.expand_blocks import expand_blocks
from schedules.passes.fragments import check_lanes, fragments, is_fragment
from schedules.passes.nested_divisions import nested_divisions
from schedules.passes.partial_sums import partial_sums
from schedules.passes.pipeline import for_grids
from schedules.passes.privatize import privatize
from schedules.passes.simplify import simplify
from schedules.passes.stages import stages
from schedules.passes.sums_of_zeros import sums_of_zeros
from schedules.passes.tensorize import tensorize

# Axes of a grid and of a block.
AXES = ("x", "y", "z")


def lower_simt(nest: Nest, features: Collection[str] | None = None) -> GridProgram:
    """Lower a nest whose holes are all filled. ``features``: those of the target; None: all that its
    instructions need. Where one is missing, loops stay loops, and each lane of a warp has all of a fragment.
    Raises ScheduleError for a schedule that no grid can run."""
    verify_names(nest)
    marked = [x.instruction for x in walk(nest.body) if isinstance(x, Loop) and x.instruction is not None]
    if features is not None and not all(i.runs_on(features) for i in marked):
        nest = replace(nest, buffers=tuple(map(_as_local, nest.buffers)))
    params = tuple(nest.buffer(n) for n in nest.params)
    nest = partial_sums(sums_of_zeros(nest))
    s = expand_blocks(nest, atomic=True)
    for _, run in for_grids(nest):
        s = run(s)
    verify(s, params, "lowering")
    s = _placed(s, _hinted(nest, "pad"), _hinted(nest, "swizzle"))
    scratch: list[Buffer] = []
    while isinstance(s, Alloc):
        if s.buffer.scope != "global":
            raise ScheduleError(
                f"buffer {s.buffer.name}: several kernels use it, but its scope is {s.buffer.scope}; compute "
                "its producer in a loop over blocks of its reader, or leave its scope global"
            )
        scratch.append(s.buffer)
        s = s.body
    held = (*params, *scratch)
    behind = in_background(nest)
    kernels = [_kernel(f"kernel{n}", x, held, behind) for n, x in enumerate(in_order(s))]
    kernels = [_cached(k, _hinted(nest, "load_cache", reads), _hinted(nest, "store_cache")) for k in kernels]
    return GridProgram(params, nest.outputs, tuple(scratch), tuple(kernels))


def _as_local(b: Buffer) -> Buffer:
    return replace(b, scope="local") if is_fragment(b) else b


def _written(b: Block) -> Iterable[Access]:
    return b.writes


def _hinted(
    nest: Nest, hint: str, of: Callable[[Block], Iterable[Access | Load]] = _written
) -> dict[str, int]:
    """{buffer: value of a hint of the block that writes it}, for values above 0. ``of``: the places of a
    block that the hint is about."""
    found = ((x.buffer, dict(b.annotations).get(hint, 0)) for b in blocks(nest.body) for x in of(b))
    return {name: n for name, n in found if isinstance(n, int) and n}


def _cached(k: GridKernel, reads: Mapping[str, int], writes: Mapping[str, int]) -> GridKernel:
    """A kernel with the caches that hold what it reads and writes, where these are told."""
    names = [b.name for b in k.params]
    return replace(
        k,
        reads={b: CACHES[reads[b]] for b in names if b in reads},
        writes={b: CACHES[writes[b]] for b in names if b in writes and b in k.written},
    )


def _placed(s: Stmt, pads: dict[str, int], swizzles: dict[str, int]) -> Stmt:
    """Rows of shared buffers as far apart as is asked, or their chunks in other places from row to row: then
    columns do not all lie in one bank."""
    if isinstance(s, Alloc) and s.buffer.scope == "shared":
        name = s.buffer.name
        if name in pads and name in swizzles:
            raise ScheduleError(
                f"buffer {name}: its block has the hints pad={pads[name]} and swizzle={swizzles[name]}, but "
                "rows that are swizzled lie side by side; leave one of them out"
            )
        b = resized(s.buffer, s.buffer.shape, pads.get(name, 0))
        b = replace(b, swizzle=widest_swizzle(b, swizzles.get(name, 0)))
        return Alloc(b, _placed(s.body, pads, swizzles))
    return with_body(s, lambda x: _placed(x, pads, swizzles))


def _kernel(name: str, s: Stmt, held: tuple[Buffer, ...], background: Collection[str]) -> GridKernel:
    outer: list[Loop] = []
    grid = dict.fromkeys(AXES, 1)
    while bound_to(s, "blockIdx"):
        outer.append(s)
        grid[s.kind[-1]] = _extent(s)
        s = s.body
    late = next((x for x in walk(s) if bound_to(x, "blockIdx")), None)
    if late is not None:
        raise ScheduleError(
            f"loop {late.var} is {late.kind}, but not outermost: blocks are the outermost loops of a kernel, "
            "with nothing between them"
        )
    ranges = {x.var: (0, _extent(x) - 1) for x in outer}
    s = cross_thread(stages(_flat(s), background, held, ranges))
    check_lanes(s)
    s = simplify(privatize(s, ranges), ranges)
    if any(isinstance(x, Alloc) and is_fragment(x.buffer) for x in walk(s)):
        s = simplify(fragments(tensorize(s, held, grid=True), ranges), ranges)
    block = dict.fromkeys(AXES, 1)
    for x in walk(s):
        if isinstance(x, AllReduce):
            block["x"] = max(block["x"], x.extent)
        elif bound_to(x, "threadIdx"):
            block[x.kind[-1]] = max(block[x.kind[-1]], _extent(x))
    _check_warps(s, block["x"])
    used = {x.buffer for y in walk(s) for x in loads(y)}
    stored = frozenset(n for x in walk(s) for n in written(x))
    params = tuple(b for b in held if b.name in used | stored)
    names = frozenset(b.name for b in params)
    shape = (block["x"], block["y"], block["z"])
    if max(shape) > 1:  # a single thread needs no barrier
        s = barriers(s, names & stored)
    s = nested_divisions(s)
    return GridKernel(name, params, stored & names, (grid["x"], grid["y"], grid["z"]), shape, tuple(outer), s)


def _check_warps(s: Stmt, width: int) -> None:
    """Raise ScheduleError where rows of threads are no warps, and something needs them to be."""
    ins = next((x.instruction for x in walk(s) if isinstance(x, Intrinsic)), None)
    if ins is not None and width != ins.threads:
        raise ScheduleError(
            f"{ins.name} is done by the {ins.threads} lanes of a warp, which are a row of threadIdx.x, and "
            f"that has {width}; split other loops over threadIdx.x by {ins.threads} and bind the rest to "
            "threadIdx.y"
        )


def _extent(x: Loop) -> int:
    n = const(x.extent)
    if n is None:
        raise ScheduleError(f"loop {x.var} is {x.kind} but runs {E.show(x.extent)} times, no fixed number")
    return n


def _flat(s: Stmt) -> Stmt:
    """Place intermediate arrays on the chip: an array used in one phase is each thread's own, others are
    shared by the threads of a block. Virtual threads become unrolled loops."""
    match s:
        case Alloc(buffer=b):
            return Alloc(replace(b, scope="shared") if b.scope == "global" else b, _flat(s.body))
        case Loop() if bound_to(s, "threadIdx"):
            return replace(s, body=_of_thread(s.body))
        case Loop(kind="vthread"):
            return replace(s, kind="unroll", body=_flat(s.body))
    return with_body(s, _flat)


def _of_thread(s: Stmt) -> Stmt:
    match s:
        case Alloc(buffer=b):
            if b.scope == "shared" and any(bound_to(x, "threadIdx") for x in walk(s.body)):
                raise ScheduleError(
                    f"buffer {b.name}: it is shared by threads of a loop within a loop over threads; compute "
                    "its producer outside of both"
                )
            scope = b.scope if is_fragment(b) else "local"
            return Alloc(replace(b, scope=scope), _of_thread(s.body))
        case Loop(kind="vthread"):
            return replace(s, kind="unroll", body=_of_thread(s.body))
    return with_body(s, _of_thread)
