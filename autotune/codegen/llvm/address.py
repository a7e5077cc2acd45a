"""Emits index arithmetic as LLVM IR: the addresses of a buffer's elements."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autotune.codegen.llvm.scope import Scope, Scopes
from autotune.codegen.llvm.types import LLVM_TYPE, Value
from schedules import affine
from schedules import expr as E
from schedules.expr import Call, Const, Expr, Var

# (pointer, depth of the scope that knows it, (variable, coefficient) of terms with known numbers, constant).
_Base = tuple[str, int, list[tuple[str, int]], int]
# Most stepped pointers in a loop, so that they fit the registers.
MOST_POINTERS = 8


@dataclass(frozen=True, slots=True)
class BufferAddress:
    """Where a buffer is: its base pointer, the scope depth that knows it, strides in elements. ``size``: the
    elements of memory that it takes where the kernel owns it, 0 for an argument. ``elements``: how many it
    has one after the other, 0 for strides of its own."""

    pointer: str
    depth: int
    dtype: str
    strides: tuple[int, ...]
    size: int = 0
    elements: int = 0


@dataclass(frozen=True, slots=True)
class Flat:
    """A flat index, ``sum(coefficient * atom) + const``. ``within``: variables inside atoms."""

    terms: tuple[tuple[Expr, int], ...]
    const: int
    within: frozenset[str]


class Addresses(ABC):
    """Emits addresses into `Scopes`. ``env``: {loop variable: integer (unrolled), or (SSA name, depth of its
    scope)}. ``lanes``: the open vectorized loop."""

    def __init__(self, scopes: Scopes) -> None:
        self.s = scopes
        self.env: dict[str, int | tuple[str, int]] = {}
        self.places: dict[str, BufferAddress] = {}
        self.lane_var: str | None = None
        self.lane_base = 0  # the lane variable's value in the first lane
        self.lanes = 1
        self.mask: Value | None = None
        self.chosen: Value | None = None  # the mask of lanes that take this side of a select
        self.in_lanes: dict[Expr, str] = {}  # atoms of an index that were computed for all lanes together
        self.unrolled: dict[str, tuple[int, Scope]] = {}  # (iterations, scope that holds all of them)
        self.runs: dict[str, affine.Range] = {}  # the first and last number of open loops, where it is known
        self._flat: dict[tuple[str, tuple[Expr, ...], affine.Range | None], Flat] = {}
        # Cached by identity, because every access of an unrolled tile asks. The indices are kept alive too.
        self._flat_of: dict[tuple[str, int], tuple[tuple[Expr, ...], Flat]] = {}

    @abstractmethod
    def scalar(self, e: Expr) -> Value:
        """Emit an expression that all lanes share."""

    @abstractmethod
    def vector_of(self, e: Expr) -> Value:
        """Emit an expression for each lane."""

    def flat(self, buffer: str, indices: tuple[Expr, ...]) -> Flat:
        """The flat index of an access, as a linear form."""
        found = self._flat_of.get((buffer, id(indices)))
        if found is None:
            found = self._flat_of[buffer, id(indices)] = indices, self._flattened(buffer, indices)
        if self.lane_var in found[1].within:
            return self._flattened(buffer, indices, (self.lane_base, self.lane_base + self.lanes - 1))
        return found[1]

    def forget(self, buffer: str) -> None:
        """Forget a buffer, because another one gets its name."""
        self._flat = {k: v for k, v in self._flat.items() if k[0] != buffer}
        self._flat_of = {k: v for k, v in self._flat_of.items() if k[0] != buffer}

    def _flattened(self, buffer: str, indices: tuple[Expr, ...], lanes: affine.Range | None = None) -> Flat:
        """The flat index. ``lanes``: first and last lane of a register, if all of them have one quotient."""
        key = (buffer, indices, lanes)
        if key not in self._flat:
            e: Expr = Const(0)
            for i, n in zip(indices, self.places[buffer].strides, strict=True):
                e = e + i * n
            if lanes is not None and self.lane_var is not None:
                e = affine.simplify(e, {self.lane_var: lanes})
            terms, const = affine.rejoined(e)
            self._flat[key] = Flat(
                tuple((a, int(c.value)) for a, c in terms.items() if isinstance(c, Const)),
                int(const.value) if isinstance(const, Const) else 0,
                frozenset().union(*(E.variables(a) for a in terms if not isinstance(a, Var))),
            )
        return self._flat[key]

    def lane_dependent(self, e: Expr) -> bool:
        """Whether an expression differs between lanes."""
        return self.lane_var is not None and self.lane_var in E.variables(e)

    def atom(self, e: Expr) -> int | tuple[str, int]:
        """The value of an index atom: an integer, or (i64 name, depth of the scope that knows it)."""
        if isinstance(e, Var):
            return self.counter(e.name)
        if e in self.in_lanes:
            return self.in_lanes[e], self.s.depth
        known = {v: self.env[v] for v in E.variables(e)}
        if not E.loads(e) and all(isinstance(x, int) for x in known.values()):
            return int(E.evaluate(e, known))
        if E.loads(e):
            return self._read(e, [x[1] for x in known.values() if isinstance(x, tuple)])
        depth = max(x[1] for x in known.values() if isinstance(x, tuple))
        key = ("atom", e, tuple(sorted((v, x) for v, x in known.items() if isinstance(x, int))))
        ref = self.s.recall(key)
        if ref is None:
            ref = self.at_depth(depth, lambda: self.scalar(e).ref)
            self.s.stack[depth].memo[key] = ref
        return ref, depth

    def _read(self, e: Expr, depths: list[int]) -> tuple[str, int]:
        """The value of an index atom that is read from memory, as far out as the variables (of these
        ``depths``) and the stores allow. Within the lanes of a mask it is read as their other loads are."""
        if self.mask is not None:
            return self.scalar(e).ref, self.s.depth
        depth = max([0, *depths, *(self.places[x.buffer].depth for x in E.loads(e))])
        depth = max(self.s.load_level(x.buffer, depth) for x in E.loads(e))
        memo = self.s.stack[depth].memo
        ints = tuple(sorted((v, x) for v in E.variables(e) if isinstance(x := self.env[v], int)))
        key = ("atom", e, ints, *(self.places[x.buffer].pointer for x in E.loads(e)))
        kept = not any(x.buffer in self.s.stack[depth].stores for x in E.loads(e))
        ref = memo.get(key) if kept else None
        if ref is None:
            ref = self.at_depth(depth, lambda: self.scalar(e).ref)
            if kept:
                memo[key] = ref
        return ref, depth

    def at_depth(self, depth: int, f: Callable[[], str]) -> str:
        """Run ``f`` with its code emitted into an outer scope."""
        held = self.s.stack[depth + 1 :]
        del self.s.stack[depth + 1 :]
        try:
            with self.without_lanes():
                return f()
        finally:
            self.s.stack.extend(held)

    @contextmanager
    def without_lanes(self) -> Iterator[None]:
        """Emit what all lanes share, or what is done for one of them."""
        held = self.lane_var, self.lanes, self.mask
        self.lane_var, self.lanes, self.mask = None, 1, None
        try:
            yield
        finally:
            self.lane_var, self.lanes, self.mask = held

    def address(self, buffer: str, flat: Flat, extra: int = 0) -> tuple[str, int]:
        """(pointer to an element, of lane 0; depth of the scope that knows it)."""
        elem = LLVM_TYPE[self.places[buffer].dtype]
        ptr, depth, numbers, const = self._base(buffer, flat, elem)
        const += flat.const + extra
        for name, c in numbers:
            v = self.lane_base if name == self.lane_var else self.env[name]
            assert isinstance(v, int)
            const += c * v
        if const:
            memo = self.s.stack[depth].memo
            key = ("gep", ptr, const, 1)
            new = memo.get(key)
            if new is None:
                code = f"getelementptr inbounds {elem}, ptr {ptr}, i64 {const}"
                new = memo[key] = self.s.emit(code, at=depth, hint="p")
            ptr = new
        return ptr, depth

    def _base(self, buffer: str, flat: Flat, elem: str) -> _Base:
        """The address without the parts of unrolled and vectorized loops and of constants. It is the same all
        over a scope and cached there, unless a variable of such a loop is inside an atom."""
        place, memo = self.places[buffer], self.s.top.memo
        known = memo.get(("base", place.pointer, id(flat)))
        if known is not None:
            return known[0]
        ptr, depth, const, same = place.pointer, place.depth, 0, True
        numbers: list[tuple[str, int]] = []
        parts: list[tuple[int, bool, str, int]] = []
        for a, c in flat.terms:
            if isinstance(a, Var):
                v = self.lane_base if a.name == self.lane_var else self.env[a.name]
                if isinstance(v, int):
                    numbers.append((a.name, c))
                else:
                    parts.append((v[1], False, v[0], c))
                continue
            within = E.variables(a)
            same &= not E.loads(a) and self.lane_var not in within
            same &= not any(isinstance(self.env.get(x), int) for x in within)
            v = self.atom(a)
            if isinstance(v, int):
                const += c * v
            else:
                parts.append((v[1], True, v[0], c))
        if len(parts) > 1:
            parts.sort(key=lambda p: p[:2])
        for d, general, ref, c in parts:
            scope = self.s.stack[max(depth, d)]
            key: tuple[str, str, str | int, int] = ("gep", ptr, ref, c)
            new = scope.memo.get(key)
            if new is None:
                new = self._step(scope, ptr, elem, c) if depth < d and not general else None
                if new is None:
                    if not general:
                        self.s.stack[d].counted = True
                    off = ref if c == 1 else self._times(ref, c, max(depth, d))
                    code = f"getelementptr inbounds {elem}, ptr {ptr}, i64 {off}"
                    new = self.s.emit(code, at=max(depth, d), hint="p")
                scope.memo[key] = new
            ptr, depth = new, max(depth, d)
        if same:
            memo["base", place.pointer, id(flat)] = (ptr, depth, numbers, const), flat
        return ptr, depth, numbers, const

    def _step(self, loop: Scope, start: str, elem: str, by: int) -> str | None:
        """A pointer that begins at ``start`` and moves with every iteration of an innermost loop. None if
        there is no such loop, or no register is left."""
        if not loop.innermost or len(loop.pointers) >= MOST_POINTERS:
            return None
        pointer = self.s.fresh("p")
        loop.pointers.append((pointer, start, elem, by))
        return pointer

    def _times(self, ref: str, c: int, depth: int) -> str:
        key = ("mul", ref, c)
        out = self.s.recall(key)
        if out is None:
            out = self.s.emit(f"mul nsw i64 {ref}, {c}", at=depth, hint="o")
            self.s.stack[depth].memo[key] = out
        return str(out)

    def counter(self, name: str) -> int | tuple[str, int]:
        """The value of a loop variable: an integer, or (SSA name, depth of its scope)."""
        v = self.env[name]
        if not isinstance(v, int):
            self.s.stack[v[1]].counted = True
        return v

    def stays_inside(self, buffer: str, flat: Flat) -> bool:
        """Whether an access is inside of a buffer in every iteration of the open loops."""
        e: Expr = Const(flat.const)
        for a, c in flat.terms:
            e = e + a * c
        known = {v: (n, n) for v in E.variables(e) if isinstance(n := self.env.get(v), int)}
        reach = None if E.loads(e) else affine.bounds(e, {**self.runs, **known})
        place = self.places[buffer]
        return reach is not None and 0 <= reach[0] and reach[1] < max(place.size, place.elements)

    def multiple(self, flat: Flat) -> int:
        """A number that divides the index of lane 0 for all values of the loops; 0 if the index is 0."""
        out = flat.const
        for a, c in flat.terms:
            known = self.lane_base if a == Var(self.lane_var or "") else self.env.get(getattr(a, "name", ""))
            out = math.gcd(out, c * (known if isinstance(known, int) else affine.multiple(a)))
        return out

    def stride(self, flat: Flat) -> int | None:
        """Elements from lane to lane, None if that is not constant."""
        if self.lane_var is None:
            return 0
        step = 0
        for a, c in flat.terms:
            if isinstance(a, Var):
                step += c if a.name == self.lane_var else 0
            elif self.lane_dependent(a):
                return None
        return step

    def unrolled_by(self, flat: Flat) -> int:
        """The part of a flat index that comes from unrolled loops with known numbers."""
        known = ((self.env.get(a.name), c) for a, c in flat.terms if isinstance(a, Var))
        return sum(n * c for n, c in known if isinstance(n, int))

    def _lane_addresses(self, buffer: str, flat: Flat, step: int | None) -> list[str]:
        if step is not None:
            return [self.address(buffer, flat, lane * step)[0] for lane in range(self.lanes)]
        together = self._vectors(flat)
        found = []
        for lane in range(self.lanes):
            self.in_lanes = {a: self.s.emit(f"extractelement {v}, i64 {lane}") for a, v in together.items()}
            found.append(self.in_lane(lane, lambda: self.address(buffer, flat)[0]))
        self.in_lanes = {}
        return found

    def _vectors(self, flat: Flat) -> dict[Expr, Value]:
        """Atoms of an index that functions of floating point make, for all lanes together."""
        if self.mask is not None:
            return {}
        calls = (a for a, _ in flat.terms if self.lane_dependent(a) and any(map(_is_call, E.walk(a))))
        return {a: self.vector_of(a) for a in calls}

    def in_lane(self, lane: int, f: Callable[[], str]) -> str:
        """Run ``f`` with the lane variable fixed."""
        var = self.lane_var
        assert var is not None
        self.env[var] = self.lane_base + lane
        try:
            with self.without_lanes():
                return f()
        finally:
            del self.env[var]


def _is_call(e: Expr) -> bool:
    return isinstance(e, Call)
