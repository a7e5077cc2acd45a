"""Gives each thread its own part of the local buffers of a block: ``C[t * 4 + i]`` becomes ``C[i]``.

Schedules state a block as loops over its threads in sequence. The threads share a buffer of scope "local" as
long as each uses its own elements. This pass drops the part of every index that names the thread, and packs
the rest densely, so that the buffer fits a thread's registers. An index without such a part is the same for
all threads: each has a copy, and all compute it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from schedules import affine
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Var
from schedules.ir import Alloc, AllReduce, Buffer, Loop, Stmt, bound_to, kids, walk, with_body
from schedules.ir.exprs import accesses
from schedules.passes.accesses import moved
from schedules.passes.simplify import Ranges, inside

Indices = tuple[Expr, ...]


@dataclass(frozen=True)
class _Access:
    indices: Indices
    threads: Mapping[str, str]  # {thread variable around it: its axis}
    ranges: Ranges


def privatize(s: Stmt, ranges: Ranges) -> Stmt:
    """``s`` with every local buffer outside of loops over threads made one thread's own, and every fragment
    outside of loops over warps one warp's. ``ranges``: of the variables around ``s``.
    Raises ScheduleError if a thread needs another's element."""
    inner = inside(s, ranges) if isinstance(s, Loop) else ranges
    s = with_body(s, lambda x: privatize(x, inner))
    if isinstance(s, Alloc) and s.buffer.scope in ("local", "fragment") and _holds_threads(s.body):
        return _private(s, inner)
    return s


def _holds_threads(s: Stmt) -> bool:
    return any(isinstance(x, AllReduce) or bound_to(x, "threadIdx") for x in walk(s))


def _private(s: Alloc, ranges: Ranges) -> Alloc:
    b = s.buffer
    found = _accesses(s.body, b.name, {}, ranges)
    if not found:
        return s
    dims = [_dimension(b, d, found) for d in range(len(b.shape))]
    body = moved(s.body, b.name, b.name, lambda ix: tuple(m(i) for m, i in zip(dims, ix, strict=True)))
    # registers, which lie nowhere: whatever its strides were
    return Alloc(Buffer(b.name, tuple(Const(m.extent) for m in dims), b.dtype, b.scope), body)


def _accesses(s: Stmt, name: str, threads: dict[str, str], ranges: Ranges) -> list[_Access]:
    out: list[_Access] = []
    if isinstance(s, AllReduce):
        threads = threads | {s.var: "threadIdx.x"}
        ranges = ranges | {s.var: (0, s.extent - 1)}
    out += [_Access(x.indices, threads, ranges) for x in accesses(s) if x.buffer == name]
    if isinstance(s, Loop):
        ranges = inside(s, ranges)
        if bound_to(s, "threadIdx"):
            threads = threads | {s.var: s.kind}
    for k in kids(s):
        out += _accesses(k, name, threads, ranges)
    return out


@dataclass(frozen=True)
class _Dimension:
    """How an index of one dimension becomes an index of the thread's own buffer. ``digits``: {coefficient of
    its variables: new coefficient}; None: they stay."""

    threads: frozenset[str]
    digits: Mapping[int, int] | None
    extent: int

    def __call__(self, index: Expr) -> Expr:
        terms, rest = affine.linear(index)
        own = [(a, _int(c)) for a, c in terms.items() if not _names(a, self.threads)]
        out: Expr = Const(0)
        for atom, c in own:
            out = out + atom * (c if self.digits is None else self.digits[c])
        if self.digits is None:
            return out + rest
        return out + sum(n * self.digits[c] for c, n in _split(_int(rest), self.digits).items())


def _dimension(b: Buffer, d: int, found: list[_Access]) -> _Dimension:
    owners: set[Expr] = set()
    coefficients: set[int] = set()
    names = frozenset().union(*(a.threads for a in found))
    for a in found:
        terms, rest = affine.linear(a.indices[d])
        who: Expr = Const(0)
        for atom, c in terms.items():
            if _names(atom, names):
                if not E.variables(atom) <= names:
                    raise _shared(b, a.indices[d])
                who = who + E.substitute(atom, {v: Var(a.threads[v]) for v in E.variables(atom)}) * c
            elif affine.bounds(atom, a.ranges) is None or _int(c) <= 0:
                raise _shared(b, a.indices[d])
            else:
                coefficients.add(_int(c))
        if _int(rest) < 0:
            raise _shared(b, a.indices[d])
        owners.add(affine.simplify(who, {}))
    if len(owners) > 1:
        raise _shared(b, found[0].indices[d])
    if owners != {Const(0)} and not _apart([(a.indices[d], a.ranges) for a in found], names):
        raise _shared(b, max((a.indices[d] for a in found), key=lambda i: _int(affine.linear(i)[1])))
    counts = dict.fromkeys(sorted(coefficients, reverse=True), 1)
    reach, dense = 0, True
    for a in found:
        terms, rest = affine.linear(a.indices[d])
        given = _split(_int(rest), counts)
        dense = dense and sum(c * n for c, n in given.items()) == _int(rest)
        spans = dict.fromkeys(counts, 0)
        for atom, c in terms.items():
            span = affine.bounds(atom, a.ranges)
            if span is not None and not _names(atom, names):
                dense = dense and span[0] >= 0
                spans[_int(c)] += span[1]
        counts = {c: max(n, 1 + spans[c] + given[c]) for c, n in counts.items()}
        reach = max(reach, _int(rest) + sum(c * n for c, n in spans.items()))
    digits: dict[int, int] = {}
    size = end = 1
    for k, n in reversed(counts.items()):
        dense = dense and k >= end  # overlapping digits cannot be packed
        digits[k], size, end = size, size * n, k * n
    if not dense:
        return _Dimension(names, None, reach + 1)
    return _Dimension(names, dict(reversed(digits.items())), size)


def _apart(places: list[tuple[Expr, Ranges]], threads: frozenset[str]) -> bool:
    """Whether no element belongs to two threads. The index must determine the thread, as a number determines
    its digits: smaller terms add up to less than each larger coefficient."""
    forms = [(*affine.linear(i), ranges) for i, ranges in places]
    first = min(_int(rest) for _, rest, _ in forms)
    own = {_int(c) for terms, _, _ in forms for atom, c in terms.items() if not _names(atom, threads)}
    digits = sorted(own | {1}, reverse=True)
    every: list[dict[tuple[int, bool], int]] = []  # by (coefficient, whether it is that of a thread)
    for terms, rest, ranges in forms:
        steps = {(c, False): n for c, n in _split(_int(rest) - first, digits).items()}
        for atom, c in terms.items():
            span = affine.bounds(atom, ranges)
            if span is None or not isinstance(c, Const):
                return False
            key = abs(int(c.value)), _names(atom, threads)
            steps[key] = steps.get(key, 0) + span[1] - span[0]
        every.append(steps)
    below = [0] * len(every)
    for _, group in groupby(sorted({k for x in every for k, n in x.items() if n}), key=lambda k: k[1]):
        keys = list(group)
        if max(below) >= math.gcd(*(c for c, _ in keys)):
            return False
        below = [b + sum(k[0] * x.get(k, 0) for k in keys) for b, x in zip(below, every, strict=True)]
    return True


def _names(atom: Expr, threads: frozenset[str]) -> bool:
    return not E.variables(atom).isdisjoint(threads)


def _split(k: int, coefficients: Iterable[int]) -> dict[int, int]:
    """``k`` as digits: {coefficient: digit}, largest first."""
    out = {}
    for c in coefficients:
        out[c], k = divmod(k, c)
    return out


def _int(e: Expr) -> int:
    return e.value if isinstance(e, Const) and isinstance(e.value, int) else -1


def _shared(b: Buffer, index: Expr) -> ScheduleError:
    if b.scope == "fragment":
        return ScheduleError(
            f"fragment {b.name}: at {E.show(index)} a warp uses another warp's element; cut loops over warps "
            "alike wherever it is used, or use scope shared"
        )
    return ScheduleError(
        f"buffer {b.name}: at {E.show(index)} a thread uses another thread's element, but the scope is "
        "local; use scope shared"
    )
