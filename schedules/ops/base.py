"""The operators of the library, and the checks of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import te
from schedules.dtypes import DTYPES, NUMBERS, computed, is_float
from schedules.errors import WorkloadError, suggest
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import Dim
from schedules.te.scalars import check_dtype

Array = NDArray[Any]
Params = Mapping[str, Any]
# Elements of a reference that are computed at a time.
NOTHING: Params = MappingProxyType({})
PIECE = 1 << 16
# Most elements of a tensor: 64 GiB in float32.
MAX_ELEMENTS = 2**34


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter. ``kind``: "int", "flag" (0 or 1) or "list" (of integers). ``default``: None if it must be
    given. Integers lie in ``minimum``..``maximum``."""

    name: str
    doc: str
    default: int | None = None
    kind: str = "int"
    minimum: int = 1
    maximum: int = 2**34


def flag(name: str, doc: str) -> Param:
    """A parameter that is 0 or 1, by default 0."""
    return Param(name, doc, 0, "flag", 0, 1)


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
        values = dict(given)
        for short, names in self.shorthands:
            if short in values:
                both = [n for n in names if n in values]
                if both:
                    raise WorkloadError(
                        f"{self.name}: {short}= sets {' and '.join(names)}, "
                        f"but {both[0]}= is given too; drop one"
                    )
                x = values.pop(short)
                values |= dict.fromkeys(names, x)
        known = {p.name for p in self.params}
        for name in values:
            if name not in known:
                known_too = self.keywords()
                raise WorkloadError(
                    f"{self.name} has no parameter {name!r}{suggest(name, known_too)}; "
                    f"its parameters are {', '.join(known_too)}"
                )
        missing = [p.name for p in self.params if p.default is None and p.name not in values]
        if missing:
            what = "parameter" if len(missing) == 1 else "parameters"
            raise WorkloadError(f"{self.name} needs the {what} {', '.join(missing)}: {self.usage()}")
        out = {p.name: self._value(p, values.get(p.name, p.default)) for p in self.params}
        wrong = self.check(out)
        if wrong is not None:
            raise WorkloadError(f"{self.name}: {wrong}")
        return out

    def keywords(self) -> list[str]:
        """Every parameter that may be given: shorthands and dtypes too."""
        shorts = [short for short, _ in self.shorthands]
        return [*(p.name for p in self.params), *shorts, *(TYPED if self.retyped else ())]

    def types(self, dtype: str, given: Mapping[str, Any] = NOTHING) -> Types:
        """What it computes with for inputs of ``dtype``. ``given``: parameters, of which `TYPED` count.
        Raises `WorkloadError`."""
        chosen = {k: check_dtype(given[k], f"{self.name}: {k}") for k in TYPED if k in given}
        if chosen and not self.retyped:
            raise WorkloadError(f"{self.name} has no parameter {next(iter(chosen))!r}; leave it out")
        sums = chosen.get("accumulator", computed(dtype))
        if computed(sums) != sums or is_float(sums) != is_float(dtype):
            fit = [d for d in DTYPES if computed(d) == d and is_float(d) == is_float(dtype)]
            raise WorkloadError(
                f"{self.name}: accumulator {sums} does not fit {dtype}; use {' or '.join(fit)}"
            )
        return Types(dtype, sums, chosen.get("out_dtype", dtype))

    def usage(self) -> str:
        """The parameters in one line, as ``--shape`` takes them."""
        shown = (
            "AxBx…" if p.kind == "list" else "…" if p.default is None else p.default for p in self.params
        )
        return ",".join(f"{p.name}={x}" for p, x in zip(self.params, shown, strict=True))

    def bytes(self, params: Params, dtype: str = "float32", layout: str | None = None) -> int:
        """Bytes of the inputs and outputs, each counted once."""
        layout = layout or next(iter(self.layouts), None)
        return compulsory_bytes(te.dag(self.build(params, self.types(dtype, params), layout)))

    def _value(self, p: Param, x: Any) -> Any:
        if p.kind == "list":
            x = (x,) if hasattr(x, "__index__") else x
            if not isinstance(x, (tuple, list)) or not x:
                raise WorkloadError(f"{self.name}: {p.name}={x!r} is not a list of integers, such as 2x3x4")
            return tuple(self._integer(p, v) for v in x)
        if p.kind == "flag" and isinstance(x, (bool, np.bool_)):
            return int(x)
        return self._integer(p, x)

    def _integer(self, p: Param, x: Any) -> int:
        if isinstance(x, Dim):
            raise WorkloadError(
                f"{self.name}: {p.name}={x.lo}..{x.hi} is a size that varies, which only tune and load take"
            )
        if isinstance(x, (bool, np.bool_)) or not hasattr(x, "__index__"):
            raise WorkloadError(f"{self.name}: {p.name}={x!r} is not an integer")
        if not p.minimum <= int(x) <= p.maximum:
            raise WorkloadError(
                f"{self.name}: {p.name}={int(x)} is outside {p.minimum}..{p.maximum}; {p.name} is {p.doc}"
            )
        return int(x)


def compulsory_bytes(dag: ComputeDAG) -> int:
    """Bytes of a DAG's inputs and outputs, each counted once."""
    return sum(t.nbytes for t in dag.params)


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
