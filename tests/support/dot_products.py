"""Matrix products in tiles of dot-product instructions, scheduled by hand."""

from __future__ import annotations

from schedules import te
from schedules.dtypes import DTYPES
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

# Dot products of x86, one a lane.
DOTS = tuple(
    name
    for name, x in INSTRUCTIONS.items()
    if x.meaning.stages[0].reducer is not None and x.result.shape in ((8,), (16,))
)


def interleaving(dtype: str, lanes: int = 16) -> str:
    """What packs operand b: groups of 32 bits."""
    return f"interleave{4 // DTYPES[dtype].itemsize}_{dtype}" + ("" if lanes == 16 else f"_x{lanes}")


def product(ins: Instruction, m: int, n: int, k: int) -> ComputeDAG:
    """c = a b of the dtypes of an instruction."""
    dtypes = {t.name: t.dtype for t in ins.operands}
    a, b = te.placeholder((m, k), dtypes["a"], "a"), te.placeholder((k, n), dtypes["b"], "b")
    r = te.reduce_axis(k, "k")
    return te.dag([a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")])


def tensorized(
    dag: ComputeDAG,
    ins: Instruction,
    rows: int,
    vectors: int,
    steps: int,
    target: Target | None = None,
    *,
    pack: bool = True,
    partition: bool = False,
) -> Schedule:
    """Tiles of ``rows`` by ``vectors`` registers of sums, ``steps`` instructions deep."""
    b, lanes = dag.inputs[1].dtype, 8 if ins.result.shape == (8,) else 16
    terms = 4 // DTYPES[b].itemsize
    s = Schedule(dag, target)
    s.cache_write("c", "local")
    if pack:
        s.cache_read("c", "b", "global")
        s.pack("b_global", (terms, vectors * lanes), (1, 0, 3, 2))
        columns = s.loops("b_global")[2]
        s.tensorize(s.split(columns, (None, lanes))[1], interleaving(b, lanes))
    io, ii = s.split("c_write_x0", (None, rows))
    jo, ji = s.split("c_write_x1", (None, vectors * lanes))
    s.reorder(jo, io, ii, ji)
    s.unroll(ii)
    s.vectorize(ji)
    if partition:
        s.partition(io)
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


def tiled(
    dag: ComputeDAG,
    ins: Instruction,
    rows: int,
    columns: int,
    target: Target | None = None,
    *,
    blocks: int = 1,
    start: bool = True,
    local: bool = False,
    pack: bool = True,
    partition: bool = False,
) -> Schedule:
    """``rows`` by ``columns`` tiles of sums. ``blocks``: into how many parts the sum is cut outside of all
    tiles. ``start``: an instruction starts the sums. ``local``: they lie in a local buffer."""
    terms = ins.iterations["t"]
    s = Schedule(dag, target)
    if local:
        s.cache_write("c", "local")
    if pack:
        s.cache_read("c", "b", "global")
        s.pack("b_global", (terms, columns * 16), (1, 0, 3, 2))
        inner = s.split(s.loops("b_global")[2], (None, 16))[1]
        s.tensorize(inner, interleaving(dag.inputs[1].dtype))
    if local:
        io, ii = s.split("c_write_x0", (None, rows * 16))
        jo, ji = s.split("c_write_x1", (None, columns * 16))
        s.reorder(jo, io, ii, ji)
        s.vectorize(ji)
        s.compute_at("c", io)
        i, j, k = (x for x in s.loops("c") if x not in (jo, io))
        outer: tuple[str, ...] = ()
    else:
        i, j, k = s.loops("c")
        io, i = s.split(i, (None, rows * 16))
        jo, j = s.split(j, (None, columns * 16))
        outer = (jo, io)
    i0, i1 = s.split(i, (None, 16))
    j0, j1 = s.split(j, (None, 16))
    kb, ko, kq, kt = s.split(k, (blocks, None, 16, terms))
    s.reorder(kb, *outer, ko, i0, j0, i1, j1, kq, kt) if blocks > 1 else s.reorder(
        *outer, kb, ko, i0, j0, i1, j1, kq, kt
    )
    s.unroll(i0)
    s.unroll(j0)
    if partition:
        s.partition(io)
    init = s.decompose_reduction("c", kb)
    if start:
        assert ins.start is not None
        s.tensorize(s.loops(init)[-2], ins.start)
    else:
        s.vectorize(s.loops(init)[-1])
    s.tensorize(i1, ins)
    return s
