"""The operators of the library, and the checks of their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from schedules import te
from schedules.dtypes import DTYPES, NUMBERS, computed, is_float
from schedules.errors import WorkloadError, instead, suggest
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import Dim
from schedules.te.gathers import most_read
from schedules.te.scalars import check_dtype

Array = NDArray[Any]
Params = Mapping[str, Any]
Number = TypeVar("Number", int, float)
# Elements of a reference that are computed at a time.
NOTHING: Params = MappingProxyType({})
PIECE = 1 << 16
# Most elements of a tensor: 64 GiB in float32.
MAX_ELEMENTS = 2**34


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter. Numbers lie in ``minimum``..``maximum``.

    ``kind``: "int", "flag" (0 or 1), "float", "list" (of integers) or "word" (one of ``options``). ``axes``:
    where it may be several integers too, their number, one an axis. ``default``: None if it must be given. An
    ``optional`` one is named in a workload only where it differs from its default, which may be None; so
    operators get new ones and old workloads stay as they are. ``instead``: the optional parameter that may be
    given in its place.
    ``example``: of its values, where it must be given."""

    name: str
    doc: str
    default: int | float | str | None = None
    kind: str = "int"
    minimum: float = 1
    maximum: float = 2**34
    axes: int = 0
    optional: bool = False
    instead: str = ""
    example: int | tuple[int, ...] = 512
    options: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        """Whether it must be given, or what stands in its place."""
        return self.default is None and not self.optional

    @property
    def form(self) -> str:
        """What its values look like: ``int``, ``int or AxB``, ``AxBx…``, ``flag``, ``float``, ``a or b``."""
        if self.kind == "list":
            return "AxBx…"
        if self.kind == "word":
            return " or ".join(self.options)
        return self.kind if self.axes < 2 else f"{self.kind} or {'x'.join('ABC'[: self.axes])}"


def flag(name: str, doc: str, default: int = 0, optional: bool = False) -> Param:
    """A parameter that is 0 or 1."""
    return Param(name, doc, default, "flag", 0, 1, optional=optional)


def text(x: Any) -> str:
    """A parameter as ``--shape`` takes it: ``512`` or ``2x3x4``."""
    return "x".join(map(str, x)) if isinstance(x, (tuple, list)) else str(x)


def _no_check(p: Params) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Types:
    """Dtypes of an operator: of its inputs, of what it adds up in, and of its outputs."""

    input: str
    accumulator: str
    output: str


TYPED = ("accumulator", "out_dtype")  # parameters of operators that let the user choose these


@dataclass(frozen=True)
class Operator:
    """A library operator: its tensor expression, its numpy reference and its parameters.

    ``dtypes`` are those that its inputs may have. ``retyped``: whether ``accumulator`` and ``out_dtype`` may
    be given with the parameters; else, and by default, outputs have the dtype of the inputs, and sums are
    made in what that is computed with (`types`). ``build(params, types, layout)`` lists te tensors, inputs
    then outputs; ``reference(params, types, layout, inputs)`` gives the outputs by numpy alone, accumulated
    as `wide` has them. Operators of a dtype of storage round once, where they store their outputs.
    ``flops(params)`` is 2 per multiply-add of a contraction, padded taps included; operators
    without one count each arithmetic operation of their definition. ``check(params)`` says how
    parameters contradict each other, if they do. ``shorthands`` maps a parameter to those that it sets.
    ``weights`` are inputs that may be known ahead of the calls.
    """

    name: str
    doc: str
    params: tuple[Param, ...]
    build: Callable[[Params, Types, str | None], list[te.Tensor]]
    reference: Callable[[Params, Types, str | None, Sequence[Array]], list[Array]]
    flops: Callable[[Params], int]
    layouts: tuple[str, ...] = ()  # the first is the default; none where layout has no meaning
    dtypes: tuple[str, ...] = NUMBERS
    retyped: bool = False
    check: Callable[[Params], str | None] = _no_check
    shorthands: tuple[tuple[str, tuple[str, ...]], ...] = ()
    weights: tuple[str, ...] = ()

    def resolve(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters, defaults and shorthands filled in. Raises `WorkloadError`."""
        optional = {p.name for p in self.params if p.optional}
        values = {k: v for k, v in given.items() if v is not None or k not in optional}
        for short, names in self.shorthands:
            if short in values:
                both = [n for n in names if n in values]
                if both:
                    raise self._refused(
                        f"{short}= sets {' and '.join(names)}, but {both[0]}= is given too; drop one"
                    )
                values |= zip(names, self._parts(short, names, values.pop(short)), strict=True)
        known = {p.name for p in self.params}
        for name in values:
            if name not in known:
                known_too = self.keywords()
                raise WorkloadError(
                    f"{self.name} has no parameter {name!r}{instead(name, known_too, 'its parameters are')}"
                )
        missing = [p.name for p in self.params if p.required and not {p.name, p.instead} & values.keys()]
        if missing:
            what = "parameter" if len(missing) == 1 else "parameters"
            raise WorkloadError(
                f"{self.name} needs the {what} {', '.join(missing)}: {self.usage()}; such as {self.example()}"
            )
        out = {}
        for p in self.params:
            if p.name in values and p.instead in values:
                raise self._refused(f"{p.instead}= replaces {p.name}=; drop one of the two")
            if p.instead not in values:
                out[p.name] = self._value(p, values.get(p.name, p.default))
        wrong = self.check(out)
        if wrong is not None:
            raise self._refused(wrong)
        return out

    def _refused(self, why: str) -> WorkloadError:
        return WorkloadError(f"{self.name}: {why}")

    def keywords(self) -> list[str]:
        """Every parameter that may be given: shorthands and dtypes too."""
        shorts = [short for short, _ in self.shorthands]
        return [*(p.name for p in self.params), *shorts, *(TYPED if self.retyped else ())]

    def named(self, p: Params) -> dict[str, Any]:
        """Of all parameters those that a workload names: not the optional ones at their default."""
        quiet = {x.name: x.default for x in self.params if x.optional}
        return {k: v for k, v in p.items() if k not in quiet or v != quiet[k]}

    def types(self, dtype: str, given: Mapping[str, Any] = NOTHING) -> Types:
        """What it computes with for inputs of ``dtype``. ``given``: parameters, of which `TYPED` count.
        Raises `WorkloadError`."""
        chosen = {k: check_dtype(given[k], f"{self.name}: {k}") for k in TYPED if k in given}
        if chosen and not self.retyped:
            raise WorkloadError(f"{self.name} has no parameter {next(iter(chosen))!r}; leave it out")
        sums = chosen.get("accumulator", computed(dtype))
        if computed(sums) != sums or is_float(sums) != is_float(dtype):
            fit = [d for d in DTYPES if computed(d) == d and is_float(d) == is_float(dtype)]
            raise self._refused(f"accumulator {sums} does not fit {dtype}; use {' or '.join(fit)}")
        return Types(dtype, sums, chosen.get("out_dtype", dtype))

    def usage(self) -> str:
        """The parameters in one line, as ``--shape`` takes them; in brackets what may be left out without a
        value in its place."""
        replaced: dict[str, list[Param]] = {}
        for p in self.params:
            if p.instead:
                replaced.setdefault(p.instead, []).append(p)

        def shown(p: Param) -> str:
            return f"{p.name}={p.form if p.kind == 'list' else '…' if p.default is None else p.default}"

        words = []
        for p in self.params:
            if p.name in replaced:
                words.append(f"({','.join(map(shown, replaced[p.name]))} or {shown(p)})")
            elif not p.instead:
                words.append(f"[{shown(p)}]" if p.optional and p.default is None else shown(p))
        return ",".join(words)

    def example(self) -> str:
        """Parameters that make a workload, as ``--shape`` takes them: those that must be given."""
        values = {p.name: p.example for p in self.params if p.required}
        for short, names in self.shorthands:
            if len({values.get(n) for n in names}) == 1 and names[0] in values and len(names) > 1:
                values = {n: v for n, v in values.items() if n not in names[1:]}
                values = {short if n == names[0] else n: v for n, v in values.items()}
        return ",".join(f"{n}={text(v)}" for n, v in values.items())

    def bytes(self, params: Params, dtype: str = "float32", layout: str | None = None) -> int:
        """Bytes of the inputs and outputs, each counted once."""
        layout = layout or next(iter(self.layouts), None)
        p = self.resolve({k: v for k, v in params.items() if k not in TYPED})
        return compulsory_bytes(te.dag(self.build(p, self.types(dtype, params), layout)))

    def _parts(self, short: str, names: tuple[str, ...], x: Any) -> tuple[Any, ...]:
        """The values of the parameters that a shorthand sets: one for all, or one each."""
        if not isinstance(x, (tuple, list)) or len(names) == 1:
            return (x,) * len(names)
        if len(x) != len(names):
            raise self._refused(
                f"{short}={text(x)} has {len(x)} numbers; give one for all of {', '.join(names)}, or one for "
                "each"
            )
        return tuple(x)

    def _value(self, p: Param, x: Any) -> Any:
        if x is None and p.optional:
            return None
        if p.kind == "list":
            x = (x,) if hasattr(x, "__index__") else x
            if not isinstance(x, (tuple, list)) or not x:
                raise self._refused(f"{p.name}={x!r} is not a list of integers, such as 2x3x4")
            return tuple(self._integer(p, v) for v in x)
        if p.axes and isinstance(x, (tuple, list)):
            if len(x) != p.axes:
                raise self._refused(
                    f"{p.name}={text(x)} has {len(x)} numbers, but there are {p.axes} axes; give one number "
                    f"for all, or one an axis, as in {p.name}={text((p.minimum,) * p.axes)}"
                )
            numbers = tuple(self._integer(p, v) for v in x)
            return numbers if len(set(numbers)) > 1 else numbers[0]
        if p.kind == "word":
            return self._word(p, x)
        if p.kind == "flag" and isinstance(x, (bool, np.bool_)):
            return int(x)
        if p.kind == "float":
            return self._inside(p, self._float(p, x))
        return self._integer(p, x)

    def _word(self, p: Param, x: Any) -> str:
        if not isinstance(x, str) or x not in p.options:
            close = suggest(x, p.options) if isinstance(x, str) else ""
            raise self._refused(f"{p.name}={x!r} is not one of {', '.join(p.options)}{close}")
        return x

    def _integer(self, p: Param, x: Any) -> int:
        if isinstance(x, Dim):
            raise self._refused(
                f"{p.name}={x.lo}..{x.hi} is a size that varies, which only tune and load take"
            )
        if isinstance(x, (bool, np.bool_)) or not hasattr(x, "__index__"):
            what = f" or {p.axes} of them, such as {text((2,) * p.axes)}" if p.axes > 1 else ""
            raise self._refused(f"{p.name}={x!r} is not an integer{what}")
        return self._inside(p, int(x))

    def _float(self, p: Param, x: Any) -> float:
        number = isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)
        if not number or not math.isfinite(x):
            raise self._refused(f"{p.name}={x!r} is not a finite number; {p.name} is {p.doc}")
        return float(x)

    def _inside(self, p: Param, x: Number) -> Number:
        if not p.minimum <= x <= p.maximum:
            raise self._refused(f"{p.name}={x} is outside {p.minimum}..{p.maximum}; {p.name} is {p.doc}")
        return x


def compulsory_bytes(dag: ComputeDAG) -> int:
    """Bytes of a DAG's inputs and outputs, each counted once. Of what is gathered from, those that may be
    read."""
    return sum(most_read(dag).values()) + sum(dag.tensors[n].own_bytes for n in dag.outputs)


def stored(t: te.Tensor, dtype: str) -> te.Tensor:
    """``t`` itself, or a stage that casts it to ``dtype`` where that is another."""
    if t.dtype == dtype:
        return t
    return te.compute(t.shape, lambda *at: te.cast(t[at], dtype), f"{t.name}_{dtype}")


def piecewise(f: Callable[..., Array], dtype: str, *arrays: Array) -> Array:
    """``f`` on as many first indices of the arrays at a time as have float64 copies that fit a cache."""
    out = np.empty(arrays[0].shape, dtype)
    step = max(1, PIECE * len(out) // max(1, out.size))
    for lo in range(0, len(out), step):
        out[lo : lo + step] = f(*(wide(x[lo : lo + step]) for x in arrays))
    return out


def wide(x: Array) -> Array:
    """For accumulation: floats as float64, integers of storage as what they are computed with."""
    name = x.dtype.name
    return x.astype(np.float64 if is_float(name) else computed(name))
