"""The parts of elementary functions: floating-point formats, and LLVM IR instructions on values of them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from autotune.codegen.llvm.types import literal


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format, with its constants and polynomial fits.

    `exp_low`, `exp_high`: beyond these exp rounds to 0 or infinity, and the clamped argument gives just that.
    `exp_normal`: exp(±x) is normal up to it. `ln2_high`: has so many trailing zeros that its product with any
    exponent is exact. `expm1`: Q in exp(r) - 1 = r + r² Q(r) for |r| ≤ ln(2)/2. `tanh_one`: beyond it tanh
    rounds to 1.
    """

    name: str
    llvm: str
    bits: int
    mantissa: int
    suffix: str
    ln2_high: float
    ln2_low: float
    exp_low: float
    exp_high: float
    exp_normal: float
    tanh_one: float
    expm1: tuple[float, ...]

    @property
    def bias(self) -> int:
        """Bias of the exponent."""
        return (1 << (self.bits - self.mantissa - 2)) - 1

    @property
    def one_bits(self) -> int:
        """The bits of 1.0."""
        return self.bias << self.mantissa

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number."""
        return math.ldexp(1.0, 1 - self.bias)

    def bits_of(self, value: float) -> int:
        """The bits of `value` rounded to the format."""
        pack, unpack = ("<f", "<i") if self.bits == 32 else ("<d", "<q")
        bits: int = struct.unpack(unpack, struct.pack(pack, value))[0]
        return bits

    @property
    def magic(self) -> float:
        """1.5 · 2^mantissa: adding it rounds to an integer, kept in two's complement in the low bits."""
        return math.ldexp(1.5, self.mantissa)


_FLOAT32 = Format(
    name="float32",
    llvm="float",
    bits=32,
    mantissa=23,
    suffix="f32",
    ln2_high=0.693359375,
    ln2_low=-2.12194440054690581e-4,
    exp_low=-104.0,
    exp_high=89.0,
    exp_normal=87.0,
    tanh_one=10.0,
    # Relative error 4.5e-9.
    expm1=(
        0.4999999701976776,
        0.16666525602340698,
        0.04166773334145546,
        0.008368252776563168,
        0.0013851510593667626,
    ),
)
_FLOAT64 = Format(
    name="float64",
    llvm="double",
    bits=64,
    mantissa=52,
    suffix="f64",
    ln2_high=6.93147180369123816490e-01,
    ln2_low=1.90821492927058770002e-10,
    exp_low=-746.0,
    exp_high=710.0,
    exp_normal=708.0,
    tanh_one=22.0,
    # Relative error 5.6e-18.
    expm1=(
        0.5000000000000009,
        0.1666666666666651,
        0.04166666666654547,
        0.00833333333343841,
        0.0013888888939975095,
        0.00019841269618648506,
        2.480149656669154e-05,
        2.7557492519207614e-06,
        2.762910773604804e-07,
        2.502823904772549e-08,
    ),
)
# {dtype: its format}.
FORMATS = {"float32": _FLOAT32, "float64": _FLOAT64}


@dataclass(slots=True)
class Code:
    """What is written so far. ``label``: the block that it ends in, None for the one that it began in."""

    lines: list[str] = field(default_factory=list)
    declares: dict[str, None] = field(default_factory=dict)
    label: str | None = None


class Body:
    """Appends instructions on values with `lanes` elements of one format. Every method returns an operand."""

    def __init__(
        self, fmt: Format, lanes: int, prefix: str, features: Collection[str] = (), code: Code | None = None
    ) -> None:
        self.fmt = fmt
        self.prefix = prefix
        self.features = features
        self.code = Code() if code is None else code
        self.lines, self.declares = self.code.lines, self.code.declares
        self.lanes = lanes
        self.type = self._vector(fmt.llvm)
        self.int_type = self._vector(f"i{fmt.bits}")
        self._mangled = fmt.suffix if lanes == 1 else f"v{lanes}{fmt.suffix}"

    def narrowed(self, lanes: int) -> Body:
        """A body for values of other `lanes` that appends to the same instructions."""
        return Body(self.fmt, lanes, self.prefix, self.features, self.code)

    def widened(self) -> Body:
        """A body for float64 that appends to the same instructions."""
        return Body(FORMATS["float64"], self.lanes, self.prefix, self.features, self.code)

    def widen(self, a: str) -> str:
        """A float32 as float64."""
        return self.emit(f"fpext {self.type} {a} to {self._vector('double')}")

    def narrow(self, a: str) -> str:
        """A float64 rounded to this body's format, float32."""
        return self.emit(f"fptrunc {self._vector('double')} {a} to {self.type}")

    def _vector(self, element: str) -> str:
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    def _splat(self, element: str, literal: str) -> str:
        return literal if self.lanes == 1 else f"splat ({element} {literal})"

    def emit(self, instruction: str) -> str:
        name = f"%{self.prefix}{len(self.lines)}"
        self.lines.append(f"{name} = {instruction}")
        return name

    def literal(self, value: float) -> str:
        """`value` rounded to the format."""
        return literal(value, self.fmt.name)

    def const(self, value: float) -> str:
        return self._splat(self.fmt.llvm, self.literal(value))

    def int_const(self, value: int) -> str:
        return self._splat(f"i{self.fmt.bits}", str(value))

    def intrinsic(self, name: str, *operands: str) -> str:
        symbol = f"@llvm.{name}.{self._mangled}"
        self.declares[f"declare {self.type} {symbol}({', '.join([self.type] * len(operands))})"] = None
        return self.emit(f"call {self.type} {symbol}({', '.join(f'{self.type} {o}' for o in operands)})")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.intrinsic("fmuladd", a, b, c)

    def add(self, a: str, b: str) -> str:
        return self.emit(f"fadd {self.type} {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        return self.emit(f"fsub {self.type} {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        return self.emit(f"fmul {self.type} {a}, {b}")

    def negative(self, a: str) -> str:
        return self.emit(f"fneg {self.type} {a}")

    def div(self, a: str, b: str) -> str:
        return self.emit(f"fdiv {self.type} {a}, {b}")

    def integer(self, operation: str, a: str, b: int | str) -> str:
        return self.emit(f"{operation} {self.int_type} {a}, {self.int_const(b) if isinstance(b, int) else b}")

    def to_bits(self, a: str) -> str:
        return self.emit(f"bitcast {self.type} {a} to {self.int_type}")

    def from_bits(self, a: str) -> str:
        return self.emit(f"bitcast {self.int_type} {a} to {self.type}")

    def test(self, a: str, predicate: str, b: str) -> str:
        """Whether `a predicate b`, an fcmp predicate, in each lane."""
        return self.emit(f"fcmp {predicate} {self.type} {a}, {b}")

    def some_bits(self, a: str, bits: int) -> str:
        """Whether an integer has any of ``bits``, in each lane."""
        return self.emit(f"icmp ne {self.int_type} {self.integer('and', a, bits)}, {self.int_const(0)}")

    def both(self, a: str, b: str) -> str:
        """Whether two tests hold."""
        return self.emit(f"and {self._vector('i1')} {a}, {b}")

    def any(self, test: str) -> str:
        """Whether a test holds in some lane."""
        if self.lanes == 1:
            return test
        name = f"@llvm.vector.reduce.or.v{self.lanes}i1"
        self.declares[f"declare i1 {name}({self._vector('i1')})"] = None
        return self.emit(f"call i1 {name}({self._vector('i1')} {test})")

    def choose(self, mask: str, then: str, otherwise: str) -> str:
        """`then` where a test holds, else `otherwise`."""
        return self.emit(f"select {self._vector('i1')} {mask}, {self.type} {then}, {self.type} {otherwise}")

    def where(self, a: str, predicate: str, b: str, then: str, otherwise: str) -> str:
        """`then` where `a predicate b` (an fcmp predicate), else `otherwise`."""
        return self.choose(self.test(a, predicate, b), then, otherwise)

    def rarely(
        self, a: str, predicate: str, b: str,
        then: Callable[[], tuple[str, ...]], otherwise: Callable[[], tuple[str, ...]],
    ) -> tuple[str, ...]:  # fmt: skip
        """The values of `then()` for all lanes if `a predicate b` holds in any lane, else those of
        `otherwise()`, the common case."""
        mask = self.any(self.test(a, predicate, b))
        rare, common, done = (f"{self.prefix}{side}{len(self.lines)}" for side in ("rare", "common", "done"))
        weights = '!prof !{!"branch_weights", i32 1, i32 1000}'
        self.lines.append(f"br i1 {mask}, label %{rare}, label %{common}, {weights}")
        sides = []
        for label, side in ((rare, then), (common, otherwise)):
            self.lines.append(f"{label}:")
            sides.append([f"[ {value}, %{label} ]" for value in side()])
            self.lines.append(f"br label %{done}")
        self.lines.append(f"{done}:")
        self.code.label = done
        return tuple(self.emit(f"phi {self.type} {', '.join(pair)}") for pair in zip(*sides, strict=True))

    def reduced(self, x: str, magic: float) -> tuple[str, str, str]:
        """(r, n, n + magic) with x = n ln 2 + r. Adding ``magic`` rounds n to the fraction that it leaves."""
        added = self.const(magic)
        shifted = self.fma(x, self.const(1.0 / math.log(2.0)), added)
        n = self.sub(shifted, added)
        r = self.fma(n, self.const(-self.fmt.ln2_high), x)
        return self.fma(n, self.const(-self.fmt.ln2_low), r), n, shifted

    def at_most(self, a: str, bound: float) -> str:
        """min(a, bound) that keeps NaN, in the operand order for which x86 has one instruction."""
        limit = self.const(bound)
        return self.where(limit, "olt", a, limit, a)

    def at_least(self, a: str, bound: float) -> str:
        limit = self.const(bound)
        return self.where(limit, "ogt", a, limit, a)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's rule, lowest power first. Other elements fill the pipeline, so fewest operations are
        best."""
        value = self.const(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = self.fma(value, x, self.const(coefficient))
        return value
