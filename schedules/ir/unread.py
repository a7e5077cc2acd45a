"""Which elements of intermediate buffers something reads: conditions on their indices.

A factorisation computes whole rows of which a triangle is read. The conditions under which readers read are
guessed to hold for all that is read. A guess stays if it follows for each read, from the conditions around
it and from the guesses about what the reader itself makes: an element that nothing reads needs no operands.
The guesses that stay prove each other, as steps of an induction do: the first read of an element outside of
them would be one for which they did not follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from schedules import affine
from schedules import expr as E
from schedules.expr import Compare, Const, Expr, Load, Var
from schedules.ir import Block, Nest, blocks, const
from schedules.ir.nest import axis_ranges, places_of, readers
from schedules.te.infeasible import impossible, negation
from schedules.te.inside import guarded_loads, told_by_axes
from schedules.te.sizes_in_values import without_holes

# Most guesses about a buffer.
_MOST = 8
Conditions = tuple[Expr, ...]


def index_of(dim: int) -> Var:
    """The index of a dimension, in the conditions of `read_where`."""
    return Var(f"{dim}'")


def read_where(nest: Nest) -> dict[str, Conditions]:
    """{intermediate buffer: conditions, in `index_of` its dimensions, that hold for each element that is
    read}, of those for which there are some."""
    every = list(blocks(nest.body))
    used = {x.buffer: list(readers(nest, x.buffer)) for b in every for x in b.writes}
    own = [n for n in used if n not in nest.params and used[n] and not _is_index(n, every)]
    guesses: dict[str, Conditions] = dict.fromkeys(own, ())
    for _ in own:  # a guess about a buffer goes on to what that is made of, at most through all of them
        new = {n: _guessed(n, used[n], guesses) for n in own}
        if new == guesses:
            break
        guesses = new
    changed = True
    while changed:
        new = {
            n: tuple(c for c in cs if all(_follows(n, c, u, guesses) for u in used[n]))
            for n, cs in guesses.items()
        }
        changed, guesses = new != guesses, new
    sizes = {n: nest.buffer(n).shape for n in own}
    return {n: found for n, cs in guesses.items() if (found := _strongest(cs, sizes[n]))}


def made_where(b: Block, known: Mapping[str, Conditions]) -> Conditions:
    """The conditions, in axes of the block, under which something reads what it makes."""
    each = [[_at(c, w.indices) for c in known.get(w.buffer, ())] for w in b.writes]
    return tuple(c for c in dict.fromkeys(each[0]) if all(c in other for other in each)) if each else ()


def _is_index(buffer: str, every: Sequence[Block]) -> bool:
    """Whether a value of the buffer tells a place, where no value would be a place outside."""
    return any(
        isinstance(x, Load) and any(y.buffer == buffer for i in x.indices for y in E.loads(i))
        for b in every
        for v in (*b.values, *b.where)
        for x in E.walk(v)
    ) or any(x.buffer == buffer for b in every for i in (*b.where, *places_of(b)) for x in E.loads(i))


def _at(c: Expr, indices: Sequence[Expr]) -> Expr:
    return affine.simplify(E.substitute(c, {index_of(d).name: i for d, i in enumerate(indices)}), {})


def _reads(buffer: str, b: Block, known: Mapping[str, Conditions]) -> Iterator[tuple[Load, tuple[Expr, ...]]]:
    """Reads of a buffer in a block, with the conditions under which they happen and matter."""
    told = (*b.where, *made_where(b, known))
    for v in b.values:
        for x, guards in guarded_loads(v, told):
            if x.buffer == buffer:
                yield x, tuple(c for g in guards for c in E.conjuncts(without_holes(g)) if told_by_axes(c))


def _guessed(buffer: str, used: Sequence[Block], known: Mapping[str, Conditions]) -> Conditions:
    """Conditions under which some read of a buffer happens, of those that speak of the indices alone."""
    found = dict[Expr, None]()
    for b in used:
        others = known if all(w.buffer != buffer for w in b.writes) else {}
        for x, guards in _reads(buffer, b, others):
            axes = dict[str, Expr]()
            for d, i in enumerate(x.indices):
                terms, rest = affine.linear(i)
                match list(terms.items()):
                    case [(Var(name=v), Const(value=1))] if isinstance(rest, Const):
                        axes.setdefault(v, index_of(d) - rest)
            for c in guards:
                if isinstance(c, Compare) and c.op in ("<", "<=") and E.variables(c) <= axes.keys():
                    gap = affine.simplify(E.substitute(c.a - c.b, axes), {})
                    terms, rest = affine.linear(gap)
                    whole = all(isinstance(t, Var) and isinstance(k, Const) for t, k in terms.items())
                    if len(terms) > 1 and whole:
                        found |= {E.compare(op, gap, 0): None for op in (c.op, "<=")}
    return tuple(found)[:_MOST]


def _follows(buffer: str, c: Expr, b: Block, known: Mapping[str, Conditions]) -> bool:
    ranges = axis_ranges(b.iters)
    return all(
        impossible((*guards, negation(_at(c, x.indices))), ranges) for x, guards in _reads(buffer, b, known)
    )


def _strongest(conds: Conditions, shape: Sequence[Expr]) -> Conditions:
    """Conditions without those that others imply."""
    left = list(conds)
    ranges = {index_of(d).name: (0, n - 1) for d, x in enumerate(shape) if (n := const(x)) is not None}
    for c in conds:
        others = [x for x in left if x is not c]
        if others and impossible((*others, negation(c)), ranges):
            left = others
    return tuple(left)
