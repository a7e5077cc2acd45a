"""Extents that know their size: numbers that carry an open size through arithmetic on shapes.

Whoever imports a model, or rewrites one, computes extents as Python's integers. An open size is an `Extent`
there: an integer, that of the largest size, with the expression of the size that it stands for. The sum,
difference and product of extents and integers are extents, and so is ``math.prod(shape)``. `te` takes extents
in the place of sizes. `te.dag` says in `ComputeDAG.open` what depends on a size.

What an importer must know:

- A new size is ``Extent(te.dim(1, 512, "seq", open=True))``.
- A quotient is an extent. A remainder is a number where it is the same at all sizes, else `WorkloadError`.
- Comparisons are those of the largest size: ask `is_open` before an answer that decides on a meaning. Two
  extents of two sizes may be equal as numbers; then the proofs of the DAG refuse what mixes them.
- In an index or a value of `te` an extent is the expression of its size, no constant. So is
  ``te.cast(extent, "float32")``.
- Bits, powers and floating point have no open form: `WorkloadError`. Python does not ask an extent in
  ``1.0 / extent`` and ``2.0 * extent``, nor does numpy: these are of the largest size, silently. Write
  ``1 / extent``, which raises. `int` is the number without its size.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, SupportsIndex, TypeGuard

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Binary, Const, Expr, Var
from schedules.te.dims import Dim, at_sizes, dims_of

# Sizes that are looked at one by one, where no rule says that a result is the same at all of them.
MOST_TRIED = 1024
# A sum of products of atoms: {atoms of a product, in one order: how many times it stands}.
_Terms = Mapping[tuple[Expr, ...], int]


class Extent(int):
    """A number of elements that depends on open sizes: the number of the largest ones, and ``expr``, an
    expression of dimensions (`schedules.te.dims.Dim`). It equals that number, and hashes as it does.

    ``expr``: arithmetic of integers and open dimensions. Raises `WorkloadError` for one without an open
    dimension.

    >>> n = Extent(te.dim(1, 512, "n", open=True))
    >>> int(n * 64 + 1), (n * 64 + 1).expr, n * 64 // 64 == n, n * 64 % 64
    (32769, n=1..512 * 64 + 1, True, 0)
    """

    expr: Expr

    def __new__(cls, expr: Expr) -> Extent:
        dims = dims_of([expr])
        if not dims or any(d.open is False for d in dims):
            raise WorkloadError(f"the extent {E.show(expr)} has no open size; take its number")
        value = at_sizes(expr, {d: d.hi for d in dims})
        assert isinstance(value, Const)
        made = super().__new__(cls, int(value.value))
        made.expr = expr
        return made

    @property
    def least(self) -> int:
        """The number of elements at the least sizes."""
        return self.at({d: d.lo for d in dims_of([self.expr])})

    def at(self, sizes: Mapping[Dim, int]) -> int:
        """The number of elements where each dimension has a size."""
        value = at_sizes(self.expr, sizes)
        assert isinstance(value, Const)
        return int(value.value)

    def __reduce__(self) -> tuple[type[Extent], tuple[Expr]]:
        return Extent, (self.expr,)

    def __repr__(self) -> str:
        return E.show(E.rewrite(self.expr, lambda x: Var(x.name) if isinstance(x, Dim) and x.name else None))

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self) if not spec else format(int(self), spec)

    def __add__(self, o: Any) -> Any:
        return self._combined("+", self, o)

    def __radd__(self, o: Any) -> Any:
        return self._combined("+", o, self)

    def __sub__(self, o: Any) -> Any:
        return self._combined("-", self, o)

    def __rsub__(self, o: Any) -> Any:
        return self._combined("-", o, self)

    def __mul__(self, o: Any) -> Any:
        return self._combined("*", self, o)

    def __rmul__(self, o: Any) -> Any:
        return self._combined("*", o, self)

    def __neg__(self) -> Any:
        return 0 - self

    def __pos__(self) -> Any:
        return self

    def __round__(self, digits: Any = None) -> Any:
        return self

    __abs__ = __trunc__ = __floor__ = __ceil__ = __pos__

    def __floordiv__(self, o: Any) -> Any:
        return self._divided("//", self, o)

    def __rfloordiv__(self, o: Any) -> Any:
        return self._divided("//", o, self)

    def __mod__(self, o: Any) -> Any:
        return self._divided("%", self, o)

    def __rmod__(self, o: Any) -> Any:
        return self._divided("%", o, self)

    def __divmod__(self, o: Any) -> Any:
        return self // o, self % o

    def __rdivmod__(self, o: Any) -> Any:
        return o // self, o % self

    def _combined(self, op: str, a: Any, b: Any) -> Any:
        i, j = _integer(a), _integer(b)
        if i is None or j is None:
            return self._without(a if i is None else b)
        x, y = _terms(_written(i)), _terms(_written(j))
        return _number(_product(x, y) if op == "*" else _sum(x, y, 1 if op == "+" else -1))

    def _divided(self, op: str, a: Any, b: Any) -> Any:
        i, j = _integer(a), _integer(b)
        if i is None or j is None:
            return self._without(a if i is None else b)
        return _quotient(i, j) if op == "//" else _remainder(i, j)

    def _without(self, o: Any) -> Any:
        """What an operation with an operand that is no integer gives: an expression knows what to do."""
        if isinstance(o, float) or not (isinstance(o, Expr) or hasattr(type(o), "__radd__")):
            self._refused()
        return NotImplemented

    def _refused(self, *_: Any) -> NoReturn:
        raise WorkloadError(
            f"the extent {self!r} depends on an open size, and only sums, products and quotients of integers "
            'do so too; in a value, write te.cast(extent, "float32"), or fix the size'
        )

    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __float__ = __invert__ = _refused
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refused
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refused


def is_open(extent: Any) -> TypeGuard[Extent]:
    """Whether an extent depends on an open size, so that its number is that of the largest one only.

    >>> n = Extent(te.dim(1, 512, open=True))
    >>> is_open(2 * n), is_open(n - n), is_open(512)
    (True, False, False)
    """
    return isinstance(extent, Extent)


def is_same(a: int, b: int) -> bool:
    """Whether two extents are equal at every size.

    >>> n = Extent(te.dim(1, 512, open=True))
    >>> is_same(n, 512), is_same(n + n, 2 * n), is_same(4, 4)
    (False, True, True)
    """
    return a == b and not is_open(a - b)


def is_multiple(extent: int, by: int) -> bool:
    """Whether an integer divides an extent at every size.

    >>> n = Extent(te.dim(1, 512, open=True))
    >>> is_multiple(n, 8), is_multiple(n * 64, 8), is_multiple(512, 8)
    (False, True, True)
    """
    try:
        return extent % by == 0
    except WorkloadError:
        return False


def written(extent: Any) -> Any:
    """An extent as an expression where it is open, else itself."""
    return extent.expr if isinstance(extent, Extent) else extent


def _integer(x: Any) -> int | None:
    """An operand as Python's integer, an extent as itself; None for anything else."""
    if isinstance(x, int):
        return x
    return operator.index(x) if isinstance(x, SupportsIndex) and not isinstance(x, Expr) else None


def _written(x: int) -> Expr:
    return x.expr if isinstance(x, Extent) else Const(int(x))


def _number(terms: _Terms) -> int:
    """An extent, or the integer that it is at all sizes."""
    made = _expression({k: c for k, c in terms.items() if c})
    return int(made.value) if isinstance(made, Const) else Extent(made)


# -- sums of products ------------------------------------------------------------------------------


def _terms(e: Expr) -> _Terms:
    """A sum of products. Its atoms are dimensions and quotients."""
    match e:
        case Const(value=v):
            return {(): int(v)}
        case Binary(op="+" | "-" as op, a=a, b=b):
            return _sum(_terms(a), _terms(b), 1 if op == "+" else -1)
        case Binary(op="*", a=a, b=b):
            return _product(_terms(a), _terms(b))
    return {(e,): 1}


def _sum(x: _Terms, y: _Terms, sign: int) -> _Terms:
    out = dict(x)
    for k, c in y.items():
        out[k] = out.get(k, 0) + sign * c
    return {k: c for k, c in out.items() if c}


def _product(x: _Terms, y: _Terms) -> _Terms:
    out: dict[tuple[Expr, ...], int] = {}
    for j, b in x.items():
        for k, c in y.items():
            both = tuple(sorted((*j, *k), key=lambda e: (E.show(e), id(e) if isinstance(e, Dim) else 0)))
            out[both] = out.get(both, 0) + b * c
    return {k: c for k, c in out.items() if c}


def _expression(terms: _Terms) -> Expr:
    """Inverse of `_terms`: products of more atoms before those of fewer."""
    out: Expr | None = None
    for atoms, c in sorted(terms.items(), key=lambda t: -len(t[0])):
        term: Expr = Const(1)
        for a in atoms:
            term = term * a
        less = out is not None and c < 0
        term = term * (-c if less else c)
        out = term if out is None else Binary("-" if less else "+", out, term)
    return Const(0) if out is None else out


def _quotient(a: int, b: int) -> int:
    """``a // b``. Raises `WorkloadError` where it is no extent, ZeroDivisionError."""
    x = _terms(_written(a))
    if isinstance(b, Extent):
        exact = _exact(x, _terms(b.expr))
        return _same(a, b, "//") if exact is None else _number(exact)
    if b < 0:
        return _quotient(-a, -b)
    if b == 0:
        raise ZeroDivisionError(f"{a} // 0")
    whole = {k: c // b for k, c in x.items() if c % b == 0 or not k}
    rest = {k: c % b if not k else c for k, c in x.items() if c % b}
    if not any(rest):  # a number below b
        return _number(whole)
    # a quotient of what is below 0 is -ceildiv of its opposite
    below = all(c < 0 for k, c in rest.items() if k)
    part = _expression(_sum({}, rest, -1) if below else rest)
    quotient = Binary("ceildiv" if below else "//", part, Const(b))
    return _number(_sum(whole, {(quotient,): 1}, -1 if below else 1))


def _exact(x: _Terms, y: _Terms) -> _Terms | None:
    """``x / y`` where that leaves no rest; None where no rule finds it."""
    if len(y) == 1:
        ((atoms, c),) = y.items()
        out = {}
        for k, n in x.items():
            left = list(k)
            for a in atoms:
                if a not in left:
                    return None
                left.remove(a)
            if n % c:
                return None
            out[tuple(left)] = n // c
        return out
    k, c = next(iter(y.items()))
    times, left_over = divmod(x.get(k, 0), c)
    return {(): times} if not left_over and _sum(x, _product(y, {(): times}), -1) == {} else None


def _remainder(a: int, b: int) -> int:
    """``a % b``. Raises `WorkloadError` unless it is the same at all sizes, ZeroDivisionError."""
    x = _terms(_written(a))
    if isinstance(b, Extent):
        return 0 if _exact(x, _terms(b.expr)) is not None else _same(a, b, "%")
    if b == 0:
        raise ZeroDivisionError(f"{a} % 0")
    return _same(a, b, "%") if any(c % b for k, c in x.items() if k) else x.get((), 0) % b


def _same(a: int, b: int, op: str) -> int:
    """The result where it is the same at all sizes. Raises `WorkloadError`."""
    dims = dims_of([written(a), written(b)])
    if len(dims) == 1 and dims[0].hi - dims[0].lo < MOST_TRIED:
        found = set(_each(a, b, op, dims[0]))
        if len(found) == 1:
            return found.pop()
    raise WorkloadError(
        f"{a} {op} {b} is no extent at every size of {', '.join(map(repr, dims))}; fix that size, or choose "
        "another divisor"
    )


def _each(a: int, b: int, op: str, dim: Dim) -> Iterator[int]:
    for n in range(dim.lo, dim.hi + 1):
        x, y = (v.at({dim: n}) if isinstance(v, Extent) else v for v in (a, b))
        yield x // y if op == "//" else x % y
