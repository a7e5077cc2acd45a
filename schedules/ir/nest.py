"""Building, asking and editing a `Nest`: what the primitives are written in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Compare, Const, Expr, Hole, Load, Var
from schedules.ir import (
    Access,
    Block,
    Buffer,
    Iter,
    Loop,
    Nest,
    Seq,
    Stmt,
    blocks,
    in_order,
    seq,
    walk,
    with_body,
)
from schedules.ir.nest_index import index_of
from schedules.loads import Indices, relocated
from schedules.te.compute_dag import ComputeDAG, Stage, Tensor
from schedules.te.open_sizes import extents_of, open_strides
from schedules.te.scans import groups, scan_positions
from schedules.te.scattered import guarded_terms, term_axes


def initial(dag: ComputeDAG) -> Nest:
    """The unscheduled program: a serial nest for each stage, in order. The loop of axis ``i`` of
    stage ``C`` is ``C_i``, numbered where an earlier stage has a loop of that name. Stages of a scan are in
    common loops over its points, those of the first of them; backwards, they count from the end. A stage
    whose terms go to places of their own begins with a block ``C_init`` over its output, in loops
    ``C_i_init``. Its terms have no loop of a scattered dimension, and those of reduction axes are around the
    others."""
    shapes, extents = open_extents(dag)
    made = [stage_block(s, own) for s, own in zip(dag.stages, extents, strict=True)]
    axes = [[a.var for a in (*s.axes, *s.reduce_axes)] for s in dag.stages]
    names = initial_loops([(s.name, own) for s, own in zip(dag.stages, axes, strict=True)])
    together = {n: range(a, b + 1) for a, b in groups(dag) for n in range(a, b + 1)}
    stmts = [
        _steps(dag, together[n], made, names)
        if n in together
        else _alone(dag.stages[n], made[n], extents[n], names[n])
        for n in range(len(made))
        if n == together.get(n, (n,))[0]
    ]
    buffers = tuple(_open_buffer(dag, t, shapes[t.name]) for t in dag.tensors.values())
    sizes = dag.open.sizes if dag.open is not None else ()
    return Nest(tuple(t.name for t in dag.params), dag.outputs, buffers, seq(*stmts), sizes)


def _alone(s: Stage, b: Block, extents: Sequence[Expr], loops: Sequence[str]) -> Stmt:
    """A stage in loops of its own."""
    if not s.places:
        return wrap_loops(b, list(loops))
    named = dict(zip((a.var for a in (*s.axes, *s.reduce_axes)), loops, strict=True))
    at = tuple(Var(a.var) for a in s.axes)
    whole = tuple(Iter(a.var, n, "spatial") for a, n in zip(s.axes, extents, strict=False))
    outputs = tuple(Access(o.name, at) for o in s.outputs)
    assert s.reducer is not None
    start = Block(init_name(s.name), whole, at, outputs, s.reducer.identity)
    return seq(
        wrap_loops(start, [f"{named[a.var]}_init" for a in s.axes]),
        wrap_loops(b, [named[i.var] for i in b.iters]),
    )


def init_name(block: str) -> str:
    """The name of the block that sets the output of another to what it starts from."""
    return f"{block}_init"


def _steps(dag: ComputeDAG, group: Sequence[int], made: Sequence[Block], names: Sequence[list[str]]) -> Stmt:
    """The stages of a scan, each in loops of its own, in loops over the points of the scan. These are called
    after the first stage."""
    first = dag.stages[group[0]]
    shared = [names[group[0]][p] for p in scan_positions(first)]
    extents = [made[group[0]].iters[p].extent for p in scan_positions(first)]
    body = []
    for n in group:
        s, own = dag.stages[n], dict(enumerate(names[n]))
        env: dict[str, Expr] = {}
        for p, loop, extent, (_, step) in zip(scan_positions(s), shared, extents, s.scan, strict=True):
            env[own.pop(p)] = Var(loop) if step == 1 else extent - 1 - Var(loop)
        block = replace(made[n], binds=tuple(map(Var, names[n])))
        inner: Stmt = bind_loops(block, env)
        for p, loop in reversed(own.items()):
            inner = Loop(loop, block.iters[p].extent, inner)
        body.append(inner)
    out = seq(*body)
    for loop, extent in zip(reversed(shared), reversed(extents), strict=True):
        out = Loop(loop, extent, out)
    return out


def open_extents(dag: ComputeDAG) -> tuple[dict[str, tuple[Expr, ...]], list[tuple[Expr, ...]]]:
    """`extents_of` a DAG, as a nest has them."""

    def as_hole(e: Expr) -> Expr | None:
        return Hole(e.name) if isinstance(e, Var) else None

    def as_holes(extents: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(E.rewrite(e, as_hole) if E.variables(e) else e for e in extents)

    shapes, stages = extents_of(dag)
    return {name: as_holes(x) for name, x in shapes.items()}, list(map(as_holes, stages))


def open_buffers(dag: ComputeDAG) -> tuple[Buffer, ...]:
    """The parameters of a DAG as a lowered program has them: with the variables of its sizes."""
    shapes, _ = extents_of(dag)
    return tuple(_open_buffer(dag, t, shapes[t.name]) for t in dag.params)


def _open_buffer(dag: ComputeDAG, t: Tensor, shape: tuple[Expr, ...]) -> Buffer:
    steps = open_strides(dag, t)
    strides = None if steps is None else tuple(map(Const, steps))
    return replace(tensor_buffer(t), shape=shape, strides=strides)


def tensor_buffer(t: Tensor) -> Buffer:
    """The buffer that holds a tensor of the DAG."""
    strides = None if t.strides is None else tuple(map(Const, t.strides))
    return Buffer(t.name, tuple(map(Const, t.shape)), t.dtype, strides=strides)


def initial_loops(stages: Sequence[tuple[str, Sequence[str]]]) -> list[list[str]]:
    """The names of the loops of `initial`, a list a stage, of the stages' names and axes."""
    plain = [[f"{stage}_{axis}" for axis in axes] for stage, axes in stages]
    taken, seen = {n for names in plain for n in names}, set[str]()
    out = []
    for names in plain:
        own = [numbered(n, taken) if n in seen else n for n in names]
        taken, seen = taken.union(own), seen.union(own)
        out.append(own)
    return out


DOMAIN = "domain"  # the hint of blocks that `has_domain` is about


def stage_block(s: Stage, extents: Sequence[Expr] | None = None) -> Block:
    """The block of a stage, whose axes, with the reduction axes after them, have these extents; those of the
    largest sizes unless given. Where terms go to places of their own, the block has the axes of the terms,
    those of the reduction first, and another sets its output to what it starts from."""
    kinds = ["spatial"] * len(s.axes) + ["reduce"] * len(s.reduce_axes)
    axes = (*s.axes, *s.reduce_axes)
    extents = [Const(a.extent) for a in axes] if extents is None else extents
    iters = tuple(Iter(a.var, n, kind) for a, n, kind in zip(axes, extents, kinds, strict=True))
    values, where, at = s.values, s.where, tuple[Expr, ...](Var(a.var) for a in s.axes)
    if s.places:
        values, where, at = guarded_terms(s)
        kept = {a.var for a in term_axes(s)}
        iters = tuple(sorted((i for i in iters if i.var in kept), key=lambda i: i.kind != "reduce"))
    return Block(
        name=s.name,
        iters=iters,
        binds=tuple(Var(f"{s.name}_{i.var}") for i in iters),
        writes=tuple(Access(o.name, at) for o in s.outputs),
        values=values,
        reducer=s.reducer,
        init=s.reducer is not None and not s.places,
        where=where,
        annotations=((DOMAIN, 1),) if s.where else (),
    )


def has_domain(b: Block) -> bool:
    """Whether the block is that of a stage whose domain is no box (`schedules.te.domains`)."""
    return (DOMAIN, 1) in b.annotations


def wrap_loops(body: Block, names: list[str]) -> Stmt:
    """``body`` inside one serial loop for each of its iterations, and bound to them in order."""
    out: Stmt = replace(body, binds=tuple(Var(n) for n in names))
    for name, it in zip(reversed(names), reversed(body.iters), strict=True):
        out = Loop(name, it.extent, out)
    return out


# -- asking ------------------------------------------------------------------------------------


def block_names(nest: Nest) -> list[str]:
    return [b.name for b in index_of(nest.body).blocks]


def find_block(nest: Nest, name: str) -> Block:
    found = index_of(nest.body).named.get((Block, name))
    if isinstance(found, Block):
        return found
    raise ScheduleError(f"there is no block {name!r}; the blocks are {', '.join(block_names(nest))}")


def of_kind(b: Block, kind: str) -> list[tuple[Iter, Expr]]:
    """The iterations of a block that are of a kind, with what they are bound to."""
    return [(i, e) for i, e in zip(b.iters, b.binds, strict=True) if i.kind == kind]


def block_path(nest: Nest, name: str) -> tuple[Stmt, ...]:
    """Statements from the root down to the block."""
    return index_of(nest.body).path(find_block(nest, name))


def loops_of(nest: Nest, block: str) -> list[Loop]:
    """Loops around a block, outermost first."""
    return [x for x in block_path(nest, block) if isinstance(x, Loop)]


def loop_path(nest: Nest, name: str) -> tuple[Stmt, ...]:
    """Statements from the root down to the loop."""
    return index_of(nest.body).path(find_loop(nest, name))


def find_loop(nest: Nest, name: str) -> Loop:
    found = index_of(nest.body).named.get((Loop, name))
    if isinstance(found, Loop):
        return found
    have = ", ".join(s.var for s in walk(nest.body) if isinstance(s, Loop))
    raise ScheduleError(f"there is no loop {name!r}; the loops are {have or 'none'}")


def loop_vars(path: Iterable[Stmt]) -> list[str]:
    return [s.var for s in path if isinstance(s, Loop)]


def writers(nest: Nest, buffer: str) -> list[Block]:
    return index_of(nest.body).writers(buffer)


def readers(nest: Nest, buffer: str) -> list[Block]:
    return index_of(nest.body).readers(buffer)


def reads(b: Block) -> tuple[Load, ...]:
    """All loads of a block: of its values, its conditions, and the places that it writes."""
    return tuple(x for v in (*b.values, *b.where, *places_of(b)) for x in E.loads(v))


def places_of(b: Block) -> tuple[Expr, ...]:
    """The indices of what a block writes."""
    return tuple(i for w in b.writes for i in w.indices)


def is_scatter(b: Block) -> bool:
    """Whether the terms of a reduction go to places of their own: an index is neither an axis of its points
    nor stands still, so that several terms may meet in an element that no loop tells."""
    spatial = {i.var for i in b.iters if i.kind == "spatial"}
    return b.reducer is not None and any(E.loads(i) or E.variables(i) - spatial for i in places_of(b))


def bound(b: Block, e: Expr) -> Expr:
    """An expression of a block's iterations in terms of the loops around it."""
    return E.substitute(e, dict(zip((i.var for i in b.iters), b.binds, strict=True)))


def behind(b: Block, axis: str) -> frozenset[str]:
    """Loops that an axis of the block depends on."""
    return E.variables(bound(b, Var(axis)))


def apart(b: Block) -> bool:
    """Whether the outputs of a block can be written one after another: it has one, reduces nothing, or each
    of them on its own."""
    return len(b.writes) == 1 or b.reducer is None or b.reducer.apart


def domain(it: Iter, e: Expr) -> list[Expr]:
    """The conditions under which a binding lies in the domain of its iteration variable."""
    return [Compare("<=", Const(0), e), Compare("<", e, it.extent)]


def accesses(b: Block, buffer: str) -> list[tuple[Expr, ...]]:
    """Index tuples, in loop variables, of every read and write of ``buffer`` by the block."""
    places = [x.indices for x in reads(b) if x.buffer == buffer]
    return [*(tuple(bound(b, i) for i in ix) for ix in places), *written(b, buffer)]


def written(b: Block, buffer: str) -> list[tuple[Expr, ...]]:
    """Index tuples, in loop variables, of every write of ``buffer`` by the block."""
    return [tuple(bound(b, i) for i in w.indices) for w in b.writes if w.buffer == buffer]


def vars_bound(b: Block, kind: str) -> frozenset[str]:
    """Loops that the block's spatial (or reduce) iterations depend on."""
    return frozenset().union(*(E.variables(e) for _, e in of_kind(b, kind)))


def fresh(nest: Nest, name: str) -> str:
    """``name``, numbered if a buffer, block or loop has it already."""
    return fresh_each(nest, [name])[0]


def fresh_each(nest: Nest, names: Iterable[str]) -> list[str]:
    """The names, each numbered if a buffer, block, loop or one before it has it already."""
    taken = {b.name for b in nest.buffers} | set(block_names(nest))
    taken |= {s.var for s in walk(nest.body) if isinstance(s, Loop)}
    return numbered_each(names, taken)


def numbered(name: str, taken: Collection[str]) -> str:
    """``name``, with a number if it is taken."""
    out, n = name, 1
    while out in taken:
        out, n = f"{name}{n}", n + 1
    return out


def numbered_each(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """The names, each with a number if it is taken, or by one before it."""
    known, out = set(taken), list[str]()
    for name in names:
        out.append(numbered(name, known))
        known.add(out[-1])
    return out


# -- editing -----------------------------------------------------------------------------------


def replace_stmt(nest: Nest, old: Stmt, new: Stmt | None) -> Nest:
    """Put ``new`` where ``old`` stands (by identity); None removes it and what it leaves empty."""
    index = index_of(nest.body)
    if index.once(old):  # what does not stand around it stays as it is
        made, child = new if new is not None else Seq(()), old
        for around in reversed(index.path(old)[:-1]):
            made = _prune(with_body(around, lambda k: made if k is child else k))  # noqa: B023 - called here
            child = around
        return replace(nest, body=_prune(made))

    def go(s: Stmt) -> Stmt:
        if s is old:
            return new if new is not None else Seq(())
        return _prune(with_body(s, go))

    return replace(nest, body=_prune(go(nest.body)))


def _prune(s: Stmt) -> Stmt:
    if isinstance(s, Loop) and isinstance(s.body, Seq) and not s.body.stmts:
        return Seq(())
    if isinstance(s, Seq):
        rest = tuple(x for x in s.stmts if not (isinstance(x, Seq) and not x.stmts))
        if len(rest) != len(s.stmts):
            return rest[0] if len(rest) == 1 else Seq(rest)
    return s


def map_blocks(nest: Nest, f: Callable[[Block], Block]) -> Nest:
    def go(s: Stmt) -> Stmt:
        return f(s) if isinstance(s, Block) else with_body(s, go)

    return replace(nest, body=go(nest.body))


def bind_loops(s: Stmt, env: dict[str, Expr]) -> Stmt:
    """Substitute loop variables in the bindings of every block of ``s``."""
    if isinstance(s, Block):
        return replace(s, binds=tuple(E.substitute(e, env) for e in s.binds))
    return with_body(s, lambda x: bind_loops(x, env))


def set_kind(nest: Nest, loop: str, kind: str) -> Nest:
    old = find_loop(nest, loop)
    return replace_stmt(nest, old, replace(old, kind=kind))


def mark(nest: Nest, where: Loop | Block, key: str, value: Any) -> Nest:
    """The nest with an annotation of a loop or block, in place of one of that name."""
    marks = (*(a for a in where.annotations if a[0] != key), (key, value))
    return replace_stmt(nest, where, replace(where, annotations=marks))


def add_buffer(nest: Nest, b: Buffer) -> Nest:
    return replace(nest, buffers=(*nest.buffers, b))


def set_buffer(nest: Nest, b: Buffer) -> Nest:
    return replace(nest, buffers=tuple(b if x.name == b.name else x for x in nest.buffers))


def drop_unused_buffers(nest: Nest) -> Nest:
    used = set(nest.params)
    for b in blocks(nest.body):
        used |= {w.buffer for w in b.writes} | {x.buffer for x in reads(b)}
    return replace(nest, buffers=tuple(b for b in nest.buffers if b.name in used))


def with_values(b: Block, f: Callable[[Expr], Expr]) -> Block:
    """The block with ``f`` of its values and conditions."""
    return replace(b, values=tuple(map(f, b.values)), where=tuple(map(f, b.where)))


def redirect(b: Block, old: str, new: str, at: Callable[[Indices], Indices] = tuple) -> Block:
    """The block with every access ``old[i]`` as ``new[at(i)]``."""
    b = redirect_reads(b, old, new, at)
    writes = tuple(Access(new, at(w.indices)) if w.buffer == old else w for w in b.writes)
    return replace(b, writes=writes)


def redirect_reads(b: Block, old: str, new: str, at: Callable[[Indices], Indices] = tuple) -> Block:
    """The block with every read ``old[i]`` as ``new[at(i)]``."""
    return over_axes(b, lambda e: relocated(e, old, new, at))


def copy_block(
    name: str, shape: Sequence[Expr], to: Sequence[str], of: Callable[[Indices], tuple[Expr, ...]]
) -> Block:
    """A block over ``shape`` that writes the buffers ``to`` at its axes ``x0``, ``x1``, ...; ``of`` these are
    its values."""
    iters = tuple(Iter(f"x{d}", n, "spatial") for d, n in enumerate(shape))
    at = tuple(Var(i.var) for i in iters)
    return Block(name, iters, tuple(Const(0) for _ in iters), tuple(Access(n, at) for n in to), of(at))


def started(b: Block, name: str, places: tuple[Access, ...]) -> Block:
    """A block that sets places to what a reduction starts from."""
    assert b.reducer is not None
    axes = of_kind(b, "spatial")
    return Block(name, tuple(i for i, _ in axes), tuple(e for _, e in axes), places, b.reducer.identity)


def in_loops_like(nest: Nest, loops: Sequence[Loop], b: Block, suffix: str) -> Stmt:
    """A block in loops like ``loops``, whose names end in ``suffix``."""
    names = fresh_each(nest, (f"{x.var}_{suffix}" for x in loops))
    s = bind_loops(b, {x.var: Var(n) for x, n in zip(loops, names, strict=True)})
    for x, n in zip(reversed(loops), reversed(names), strict=True):
        s = Loop(n, x.extent, s, x.kind)
    return s


def over_axes(b: Block, f: Callable[[Expr], Expr]) -> Block:
    """The block with ``f`` of everything that speaks of its axes."""
    writes = tuple(Access(w.buffer, tuple(map(f, w.indices))) for w in b.writes)
    return replace(with_values(b, f), writes=writes)


def axis_ranges(iters: Sequence[Iter]) -> dict[str, tuple[int, int]]:
    """{axis: (0, its last)} of the axes whose extents are known."""
    return {i.var: (0, int(i.extent.value) - 1) for i in iters if isinstance(i.extent, Const)}


def whole_axis(b: Block, loop: Loop) -> int | None:
    """The position of the axis of a block that a loop is, from beginning to end; None if it is none."""
    uses = [n for n, e in enumerate(b.binds) if loop.var in E.variables(e)]
    if len(uses) != 1 or b.binds[uses[0]] != Var(loop.var) or b.iters[uses[0]].extent != loop.extent:
        return None
    return uses[0]


def only_block(s: Stmt, name: str, what: str) -> None:
    """Raise unless ``s`` is loops around block ``name`` and nothing else."""
    others = [b.name for b in blocks(s) if b.name != name]
    if others:
        raise ScheduleError(f"{what} {name}: its loops also hold {', '.join(others)}; move those out first")


def subtree_of(nest: Nest, name: str) -> Stmt:
    """The outermost statement that holds block ``name`` and no other."""
    path = block_path(nest, name)
    for s in path:
        if len(blocks(s)) == 1:
            return s
    raise AssertionError(name)


def root_child(nest: Nest, name: str) -> Stmt:
    """The statement at the root that holds block ``name``."""
    path = block_path(nest, name)
    return path[1] if isinstance(path[0], Seq) else path[0]


def insert(nest: Nest, loop: str | None, new: Stmt, *, before: Stmt | None = None) -> Nest:
    """Put ``new`` into the body of ``loop`` (None: at the root), just before the child that holds
    ``before``, or last."""
    parent = find_loop(nest, loop) if loop is not None else None
    body = parent.body if parent is not None else nest.body
    stmts = in_order(body)
    at = len(stmts)
    if before is not None:
        at = next(n for n, s in enumerate(stmts) if any(x is before for x in walk(s)))
    new_body = seq(*stmts[:at], new, *stmts[at:])
    if parent is None:
        return replace(nest, body=new_body)
    return replace_stmt(nest, parent, replace(parent, body=new_body))


def insert_before(nest: Nest, loop: str, new: Stmt) -> Nest:
    """Put ``new`` just before a loop, into the loop around that or at the root."""
    around = [s.var for s in loop_path(nest, loop)[:-1] if isinstance(s, Loop)]
    return insert(nest, around[-1] if around else None, new, before=find_loop(nest, loop))
