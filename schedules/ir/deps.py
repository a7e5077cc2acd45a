"""Dependences between the iterations of a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schedules import affine
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Var
from schedules.ir import Block, Loop, Nest, blocks, const, walk
from schedules.ir.nest import accesses, bound, is_scatter, vars_bound
from schedules.ir.regions import span


def check_races(nest: Nest, loop: Loop, what: str, *, atomic: bool = False) -> None:
    """Raise unless no two iterations of ``loop`` touch the same element of a buffer that outlives
    the iteration, one of them writing. ``atomic``: whether terms that go to places of their own are joined in
    one step each."""
    inside = blocks(loop.body)
    names = {b.name for b in inside}
    for b in inside:
        if atomic and is_scatter(b):
            continue
        for w in b.writes:
            private = w.buffer not in nest.params and all(
                x.name in names for x in blocks(nest.body) if any(True for _ in accesses(x, w.buffer))
            )
            if private:
                continue  # allocated inside the iteration: every thread has its own
            if loop.var in vars_bound(b, "reduce"):
                raise ScheduleError(
                    f"{what} {loop.var}: block {b.name} reduces over it, so iterations would race on "
                    f"{w.buffer}; rfactor the loop first and {what} the spatial axis it makes"
                )
            if not disjoint(b, w.indices, loop):
                raise ScheduleError(
                    f"{what} {loop.var}: its iterations write overlapping parts of {w.buffer} (block "
                    f"{b.name}); choose a loop that each element of the output depends on"
                )


def disjoint(b: Block, indices: tuple[Expr, ...], loop: Loop) -> bool:
    """Whether different iterations of ``loop`` write different elements, all loops around it
    standing still. Some dimension must move by at least what the loops inside sweep."""
    inner = {i.var: i.extent for i in _loops_inside(loop)}
    if loop.extent == Const(1):
        return True
    parts = [unshifted(bound(b, ix)) for ix in indices]
    used = frozenset().union(*(E.variables(e) for e in parts)) if parts else frozenset()
    if loop.var not in used:
        return False
    for e in parts:
        terms, _ = affine.linear(e)
        step = terms.get(Var(loop.var))
        if step is None:
            continue
        rest = affine.from_linear({a: c for a, c in terms.items() if a != Var(loop.var)}, Const(0))
        if loop.var in E.variables(rest):
            continue
        s = span(rest, inner)
        if s is None:
            continue
        if s[1] == step or s[1] == Const(1):
            return True
        if isinstance(s[1], Const) and isinstance(step, Const):
            if int(s[1].value) <= abs(int(step.value)):
                return True
        elif E.holes(s[1]) or E.holes(step):
            return True  # numeric: decided when the holes are filled and the trace is replayed
    return loop.var in recovered(parts, inner | {loop.var: loop.extent})


def unshifted(e: Expr) -> Expr:
    """``min(i * 4, n - 4)``, the base of a shifted tile, as ``i * 4``: where shifted tiles overlap, their
    iterations write the same values, and a block that reduces is never shifted."""

    def f(x: Expr) -> Expr | None:
        if isinstance(x, E.Binary) and x.op == "min" and affine.is_scalar(x.b):
            return E.rewrite(x.a, f)
        return None

    return E.rewrite(e, f)


def recovered(parts: list[Expr], inner: Mapping[str, Expr]) -> frozenset[str]:
    """The variables of ``inner`` whose values the indices tell: for no others can two points have the same
    indices. Each dimension is read as a number in mixed radix, whose digits are variables ``v`` or, of a
    fused loop, ``v // c`` and ``v % c``. What depends on holes counts as told: it is checked once they are
    filled."""

    def told(e: Expr) -> set[Expr]:
        digits = [(a, c) for a, c in affine.linear(e)[0].items() if E.variables(a) & inner.keys()]
        return {a for a, _ in digits} if _radix([(c, _count(a, inner)) for a, c in digits]) else set()

    atoms = {a for e in parts for a in told(e)}
    # a fused loop that was split again: digits of a sum, whose own digits are the variables
    sums = {a.a for y in atoms for a in E.walk(y) if isinstance(a, E.Binary) and a.op in ("//", "%")}
    for x in sums:
        if not isinstance(x, Var) and _covered(x, atoms):
            atoms |= told(x)
    return frozenset(v for v in inner if _covered(Var(v), atoms))


def repeated(b: Block, loops: Sequence[Loop]) -> list[str]:
    """Those of the loops that run the same instances of ``b`` again while all others around it stand still:
    neither its element nor its step of a reduction tells their iterations apart. As far as integers tell."""
    told = recovered(list(b.binds), {x.var: x.extent for x in loops})
    return [x.var for x in loops if x.var not in told and const(x.extent) not in (None, 1)]


def _radix(digits: list[tuple[Expr, Expr | None]]) -> bool:
    """Whether no two values of the digits give the same sum of ``coefficient * digit``."""
    if any(n is None for _, n in digits):
        return False
    if not all(isinstance(x, Const) for pair in digits for x in pair):
        return True
    reach = 0
    for c, n in sorted(
        (abs(int(c.value)), int(n.value)) for c, n in digits if isinstance(c, Const) and isinstance(n, Const)
    ):
        if n > 1 and c <= reach:
            return False
        reach += (n - 1) * c
    return True


def _count(atom: Expr, inner: Mapping[str, Expr]) -> Expr | None:
    """How many consecutive values a variable, a digit or a sum of such takes at most, all outside standing
    still; None where nothing is known."""
    match atom:
        case Var(name=v) if v in inner:
            return inner[v]
        case E.Binary(op="//" | "%" as op, a=a, b=b) if affine.is_scalar(b):
            n = _count(a, inner)
            if n is None:
                return None
            plain = not isinstance(a, E.Binary) or a.op in ("//", "%")  # starts at 0
            if op == "//":
                return E.ceildiv(n, b) if plain else E.ceildiv(n - 1, b) + 1
            return E.minimum(n, b) if plain else b
        case E.Binary(op="+" | "-" | "*"):
            total: Expr = Const(1)
            for a, c in affine.linear(atom)[0].items():
                if not E.variables(a) & inner.keys():
                    continue
                n = None if a == atom else _count(a, inner)
                if n is None:
                    return None
                total = total + (n - 1) * (abs(int(c.value)) if isinstance(c, Const) else c)
            return total
    return None


def _covered(x: Expr, atoms: set[Expr]) -> bool:
    """Whether ``x``, or all of its digits, are among the atoms."""
    if x in atoms:
        return True
    bases = {
        a.b for y in atoms for a in E.walk(y) if isinstance(a, E.Binary) and a.op in ("//", "%") and a.a == x
    }
    return any(_covered(E.binary("//", x, c), atoms) and _covered(E.binary("%", x, c), atoms) for c in bases)


def _loops_inside(loop: Loop) -> list[Loop]:
    return [s for s in walk(loop.body) if isinstance(s, Loop)]
