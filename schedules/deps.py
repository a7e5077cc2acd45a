"""Dependences between the iterations of a loop."""

from __future__ import annotations

from schedules import affine
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Var
from schedules.ir import Block, Loop, Nest, blocks
from schedules.nest import accesses, bound, vars_bound
from schedules.regions import span


def check_races(nest: Nest, loop: Loop, what: str) -> None:
    """Raise unless no two iterations of ``loop`` touch the same element of a buffer that outlives
    the iteration, one of them writing."""
    inside = blocks(loop.body)
    names = {b.name for b in inside}
    for b in inside:
        for w in b.writes:
            private = w.buffer not in nest.params and all(
                x.name in names
                for x in blocks(nest.body)
                if any(True for _ in accesses(x, w.buffer))
            )
            if private:
                continue  # allocated inside the iteration: every thread has its own
            if loop.var in vars_bound(b, "reduce"):
                raise ScheduleError(
                    f"{what} {loop.var}: block {b.name} reduces over it, so iterations would race on {w.buffer}; "
                    f"rfactor the loop first and {what} the spatial axis it makes"
                )
            if not _disjoint(b, w.indices, loop):
                raise ScheduleError(
                    f"{what} {loop.var}: its iterations write overlapping parts of {w.buffer} (block {b.name}); "
                    "choose a loop that each element of the output depends on"
                )


def _disjoint(b: Block, indices: tuple[Expr, ...], loop: Loop) -> bool:
    """Whether different iterations of ``loop`` write different elements, all loops around it
    standing still. Some dimension must move by at least what the loops inside sweep."""
    inner = {i.var: i.extent for i in _loops_inside(loop)}
    if loop.extent == Const(1):
        return True
    parts = [_unshift(bound(b, ix)) for ix in indices]
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
    # a fused loop: i = v // c, j = v % c recover v, if both move with it alone
    return _recovers(parts, loop)


def _unshift(e: Expr) -> Expr:
    """``min(i * 4, n - 4)``, the base of a shifted tile, as ``i * 4``: where shifted tiles overlap, their iterations
    write the same values, and a block that reduces is never shifted."""

    def f(x: Expr) -> Expr | None:
        if isinstance(x, E.Binary) and x.op == "min" and affine.is_scalar(x.b):
            return E.rewrite(x.a, f)
        return None

    return E.rewrite(e, f)


def _recovers(parts: list[Expr], loop: Loop) -> bool:
    """Whether the digits ``v // c`` and ``v % c`` of the loop variable ``v`` all appear, so that it
    can be told from the indices. Digits are found inside linear forms as atoms."""
    v = Var(loop.var)
    atoms = [a for e in parts for a in affine.linear(e)[0] if loop.var in E.variables(a)]

    def covered(x: Expr) -> bool:
        if x in atoms:
            return True
        for a in atoms:
            if isinstance(a, E.Binary) and a.op in ("//", "%") and a.a == x:
                c = a.b
                if (E.binary("//", x, c) in atoms or covered(E.binary("//", x, c))) and (
                    E.binary("%", x, c) in atoms or covered(E.binary("%", x, c))
                ):
                    return True
        # x // c where only its own digits appear
        for a in atoms:
            if isinstance(a, E.Binary) and isinstance(a.a, E.Binary) and a.a.a == x and a.a.op == "//":
                q = a.a
                if covered(q) and E.binary("%", x, q.b) in atoms:
                    return True
        return False

    return covered(v)


def _loops_inside(loop: Loop) -> list[Loop]:
    from schedules.ir import walk

    return [s for s in walk(loop.body) if isinstance(s, Loop)]
