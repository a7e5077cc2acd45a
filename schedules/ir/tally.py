"""What `interp.run` counts when it runs a lowered nest, without running it: at full size, in milliseconds.

Iterations of a loop count alike unless its variable decides something inside: an extent, a guard, a select.
So most loops count once, times their extent.
"""

from __future__ import annotations

from collections.abc import Mapping

from schedules import expr as E
from schedules.expr import Binary, Call, Expr, Fma, Load, Logic, Select
from schedules.ir.interp import OPERATIONS
from schedules.ir.nodes import Alloc, Guard, Intrinsic, Loop, LoweredFunc, Prefetch, Seq, Stmt, Store

MOST = 1_000_000  # statements and expressions that are looked at: about two seconds

Counts = dict[str, int]


class Undecided(Exception):
    """The counts depend on data, or are too many to be told apart."""


def tally(func: LoweredFunc, most: int = MOST) -> Counts | None:
    """The counts of `interp.run` with ``operations``: ``load <buffer>``, ``store <buffer>``, `OPERATIONS`.
    None where they depend on data, or where more than ``most`` statements and expressions would have to be
    looked at.

    >>> tally(lower(Schedule(ops.workload("matmul", {"m": 4, "n": 4, "k": 4}).dag).nest))["load a"]
    64
    """
    try:
        return _Tally(most).stmt(func.body, {})
    except Undecided:
        return None


class _Tally:
    def __init__(self, most: int) -> None:
        self.left = most
        self.deciding: dict[int, frozenset[str]] = {}
        self.known: dict[tuple[int, tuple[int, ...]], Counts] = {}

    def stmt(self, s: Stmt, env: dict[str, int]) -> Counts:
        key = (id(s), tuple(env[v] for v in sorted(self.decides(s)) if v in env))
        if key not in self.known:
            self.spend()
            self.known[key] = self._stmt(s, env)
        return self.known[key]

    def _stmt(self, s: Stmt, env: dict[str, int]) -> Counts:
        out: Counts = {}
        match s:
            case Seq(stmts=xs):
                for x in xs:
                    _add(out, self.stmt(x, env))
            case Loop(var=var, extent=n, body=body):
                times = int(E.evaluate(n, env))
                if var not in self.decides(body):
                    if times > 0:
                        _add(out, self.stmt(body, env), times)
                else:
                    for i in range(times):
                        _add(out, self.stmt(body, {**env, var: i}))
            case Guard(cond=c, body=body):
                self.expr(c, env, out)
                if E.loads(c):
                    raise Undecided
                if E.evaluate(c, env):
                    _add(out, self.stmt(body, env))
            case Alloc(body=body):
                _add(out, self.stmt(body, env))
            case Store(buffer=name, indices=ix, value=v):
                for e in (*ix, v):
                    self.expr(e, env, out)
                _add(out, {f"store {name}": 1})
            case Intrinsic(body=body):
                _add(out, self.stmt(body, env))
            case Prefetch():
                pass
            case _:
                raise Undecided
        return out

    def expr(self, e: Expr, env: Mapping[str, int], out: Counts) -> None:
        self.spend()
        if isinstance(e, Select):
            self.expr(e.cond, env, out)
            if E.loads(e.cond):
                both: list[Counts] = [{}, {}]
                for x, counts in zip((e.a, e.b), both, strict=True):
                    self.expr(x, env, counts)
                if both[0] != both[1]:
                    raise Undecided
                _add(out, both[0])
            else:
                self.expr(e.a if E.evaluate(e.cond, env) else e.b, env, out)
            return
        if isinstance(e, Logic) and e.op != "not" and any(E.loads(x) for x in e.args[1:]):
            raise Undecided  # what comes first may decide
        if isinstance(e, Load):
            _add(out, {f"load {e.buffer}": 1})
        elif isinstance(e, Fma):
            _add(out, {OPERATIONS: 2})
        elif isinstance(e, Call) or (isinstance(e, Binary) and E.dtype_of(e.a) != E.INDEX):
            _add(out, {OPERATIONS: 1})
        for x in E.children(e):
            self.expr(x, env, out)

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Undecided

    def decides(self, s: Stmt) -> frozenset[str]:
        """Variables outside of a statement that its counts depend on."""
        if id(s) not in self.deciding:
            self.deciding[id(s)] = self._decides(s)
        return self.deciding[id(s)]

    def _decides(self, s: Stmt) -> frozenset[str]:
        match s:
            case Seq(stmts=xs):
                return frozenset().union(*map(self.decides, xs))
            case Loop(var=var, extent=n, body=body):
                return E.variables(n) | (self.decides(body) - {var})
            case Guard(cond=c, body=body):
                return E.variables(c) | self.decides(body)
            case Alloc(body=body) | Intrinsic(body=body):
                return self.decides(body)
            case Store(indices=ix, value=v):
                selects = [x for e in (*ix, v) for x in E.walk(e) if isinstance(x, Select)]
                return frozenset().union(*(E.variables(x.cond) for x in selects))
        return frozenset()


def _add(out: Counts, more: Mapping[str, int], times: int = 1) -> None:
    for k, n in more.items():
        out[k] = out.get(k, 0) + times * n
