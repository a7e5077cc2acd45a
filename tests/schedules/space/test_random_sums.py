"""Random sums of products of every pairing of dtypes, on targets with other instructions, of arguments that
lie anyhow: candidates of every sketch against the reference, compiled between inaccessible pages, or
interpreted.

All numbers are whole or halves, and small where they are floats: every order of a sum gives the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers import execute, interpret, lies, same
from space_cases import target
from strided import with_views

from autotune.codegen.llvm.compile import host_arch
from autotune.codegen.runtime.laid import settled_values
from autotune.targets import from_name
from schedules import ops, te
from schedules.dtypes import DTYPES, is_float
from schedules.expr import Expr
from schedules.graph.integers import with_integer_products
from schedules.ir import Intrinsic, walk
from schedules.model import Target, Trace
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.rules.cpu import instructed, packed_operands, tiling, widened
from schedules.te.compute_dag import ComputeDAG, Tensor
from schedules.te.rounding import evaluate_with_bounds

STORED = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int16", "int32")
# Pairs that instructions are for, drawn more often.
LIKED = (
    ("bfloat16", "bfloat16"), ("uint8", "int8"), ("int8", "uint8"), ("int8", "int8"), ("uint8", "uint8"),
    ("int16", "int8"),
)  # fmt: skip
# What a target lacks: the beginnings of names of features, and the bytes of its vectors.
LACKING: dict[str, tuple[tuple[str, ...], int]] = {
    "all": ((), 64),
    "no tiles": (("amx",), 64),
    "no dots": (("amx", "avx512vnni", "avx512bf16", "avxvnni"), 64),
    "AVX-VNNI": (("amx", "avx512"), 32),
    "AVX2": (("amx", "avx512", "avxvnni"), 32),
}
# Targets whose code this CPU need not run.
NAMED = {
    "arm": from_name("neoverse-v1"),
    "tiles": ("amx-bf16", "amx-int8", "amx-tile", "avx2", "avx512bf16", "avx512bw", "avx512vnni"),
    "signed": ("avx2", "avxvnni", "avxvnniint8"),
}
ROWS = (1, 2, 3, 5, 7, 9, 16, 17, 21, 33)
COLUMNS = (1, 3, 8, 15, 16, 17, 31, 33, 48)
TERMS = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 31, 32, 33, 62, 64, 65, 127)
TABLE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the numbers of float4 e2m1
MOST_INTERPRETED = 1500  # products of a case that is interpreted


@dataclass(frozen=True)
class Case:
    """A workload, and what is known before it runs."""

    label: str
    dag: ComputeDAG
    known: tuple[str, ...]
    meaning: ComputeDAG  # before it was rewritten


# -- expressions --------------------------------------------------------------------------------------------


class Draw:
    """Random choices, and the inputs that they need."""

    def __init__(self, rng: Random, small: bool) -> None:
        self.rng, self.small = rng, small
        self.inputs: list[Tensor] = []
        self.words: list[str] = []

    def flag(self, share: float = 0.5) -> bool:
        return self.rng.random() < share

    def extent(self, of: tuple[int, ...]) -> int:
        return self.rng.choice([x for x in of if not self.small or x <= 17])

    def input(self, shape: tuple[int, ...], dtype: str, name: str) -> Tensor:
        t = te.placeholder(shape, dtype, name)
        self.inputs.append(t)
        return t

    def say(self, *words: Any) -> None:
        self.words.extend(map(str, words))

    def dtypes(self) -> tuple[str, str]:
        pair = (
            self.rng.choice(LIKED) if self.flag(0.7) else (self.rng.choice(STORED), self.rng.choice(STORED))
        )
        self.say(*pair)
        return pair


def factor(d: Draw, dtype: str, name: str, channels: int = 0) -> Any:
    """What makes an element a factor: less a zero point, known or not, of all or (``channels``) of each."""
    if is_float(dtype) or d.flag(0.75):
        return lambda x, _: x
    way = d.rng.choice(("known", "one", *(["each"] if channels else [])))
    d.say(f"{name}:zero={way}")
    if way == "known":
        zero = d.rng.choice((1, 3, -7) if dtype == "int8" else (128, 1, 255))
        return lambda x, _: te.cast(x, "int32") - zero
    z = d.input((channels,) if way == "each" else (), dtype, f"{name}_zero")
    return lambda x, j: te.cast(x, "int32") - te.cast(z[j] if z.shape else z[()], "int32")


def times(x: Any, y: Any, dtypes: tuple[str, str]) -> Expr:
    """The product. Floats with integers: as floats."""
    if is_float(dtypes[0]) == is_float(dtypes[1]):
        return x * y
    return te.cast(x, "float32") * te.cast(y, "float32")


def product(d: Draw) -> Tensor:
    """c = a b: of one matrix or more, of either one or both, turned or not."""
    a, b = dtypes = d.dtypes()
    m, n, k = d.extent(ROWS), d.extent(COLUMNS), d.extent(TERMS)
    if d.small:
        k = min(k, max(2, MOST_INTERPRETED // (m * n)))
    batch = (d.rng.randint(2, 3),) if d.flag(0.25) else ()
    each_b = batch if d.flag(0.7) else ()
    ta, tb = d.flag(0.3), d.flag(0.3)
    d.say(m, n, k, "batch" if batch else "", "ta" * ta, "tb" * tb)
    x = d.input(batch + ((k, m) if ta else (m, k)), a, "a")
    y = d.input(each_b + ((n, k) if tb else (k, n)), b, "b")
    fa, fb = factor(d, a, "a"), factor(d, b, "b", n)
    r = te.reduce_axis(k, "k")

    def of(*at: Any) -> Any:
        *o, i, j = at
        left = x[(*o, r, i) if ta else (*o, i, r)]
        at_b = o if each_b else []
        right = y[(*at_b, j, r) if tb else (*at_b, r, j)]
        return te.sum(times(fa(left, i), fb(right, j), dtypes), axis=r)

    if batch:
        return te.compute((*batch, m, n), lambda o, i, j: of(o, i, j), "c")
    return te.compute((m, n), lambda i, j: of(i, j), "c")


def convolution(d: Draw) -> Tensor:
    """One of two dimensions, padded by zeros or by a zero point, channels last or first."""
    a, b = dtypes = d.dtypes()
    h, w = d.rng.choice((1, 2, 3)), d.rng.choice((1, 4, 5, 9) if d.small else (1, 5, 8, 17))
    ci, co = d.rng.choice((1, 2, 3, 4, 8) if d.small else (1, 3, 4, 6, 16, 33)), d.extent(COLUMNS)
    k, pad, step, last = d.rng.choice((1, 2, 3)), d.rng.choice((0, 1, 1)), d.rng.choice((1, 1, 2)), d.flag()
    pad = max(pad, 0 if h >= k and w >= k else (k - min(h, w) + 1) // 2)
    fa, fb = factor(d, a, "a"), factor(d, b, "b", co)
    filler = d.input((), a, "filler") if d.flag(0.4) else None
    d.say(f"conv h{h} w{w} ci{ci} co{co} k{k} p{pad} s{step}", "last" * last, "filler" * bool(filler))
    x = d.input((h, w, ci) if last else (ci, h, w), a, "x")
    y = d.input((k, k, ci, co) if d.flag() else (co, ci, k, k), b, "w")
    out_h, out_w = ((n + 2 * pad - k) // step + 1 for n in (h, w))

    def padded(i: Any, j: Any, c: Any) -> Any:
        i, j = i - pad, j - pad
        inside = te.all(i >= 0, i < h, j >= 0, j < w)
        at = x[i, j, c] if last else x[c, i, j]
        return te.select(inside, at, filler[()] if filler else te.const(0, DTYPES[a].computed))

    wide = (h + 2 * pad, w + 2 * pad, ci)
    p = te.compute(wide if last else (ci, *wide[:2]), (lambda i, j, c: te.cast(padded(i, j, c), a))
                   if last else (lambda c, i, j: te.cast(padded(i, j, c), a)), "padded")  # fmt: skip
    u, v, c = te.reduce_axis(k, "u"), te.reduce_axis(k, "v"), te.reduce_axis(ci, "ci")

    def of(i: Any, j: Any, o: Any) -> Any:
        at = (i * step + u, j * step + v)
        left = p[(*at, c)] if last else p[(c, *at)]
        right = y[u, v, c, o] if y.shape == (k, k, ci, co) else y[o, c, u, v]
        return te.sum(times(fa(left, i), fb(right, o), dtypes), axis=[u, v, c])

    if last:
        return te.compute((out_h, out_w, co), lambda i, j, o: of(i, j, o), "c")
    return te.compute((co, out_h, out_w), lambda o, i, j: of(i, j, o), "c")


def four_bits(d: Draw, y: Tensor, group: int) -> Any:
    """(row, element) -> its number, one of two in a byte: neighbours, or from the halves of a group."""
    near, way = d.flag(), d.rng.choice(("unsigned", "zero", "xor", "table"))
    d.say(f"4 bits {way}", "neighbours" if near else "halves")

    def code(j: Any, at: Any) -> Expr:
        half = group // 2
        byte, upper = (at // 2, at % 2) if near else (at // group * half + at % half, at % group // half)
        bits = (y[j, byte] >> (4 * te.cast(upper, "int32"))) & 15
        if way == "table":
            return te.lookup(TABLE, bits, "int32")
        return {"unsigned": bits, "zero": bits - 8, "xor": (bits ^ 8) - 8}[way]

    return code


def quantized(d: Draw) -> ComputeDAG:
    """An operator of quantized numbers, by name."""
    m, n, k = d.rng.choice((1, 2, 3, 5)), d.rng.choice((1, 3, 8, 17)), d.rng.choice((1, 3, 4, 7, 8, 13))
    flags = {x: d.rng.randint(0, 1) for x in ("per_channel", "weight_zeros")}
    dtype = d.rng.choice(("uint8", "int8"))
    if d.flag():
        sizes = {"m": m, "n": n, "k": k if d.small else 4 * k, "transpose_b": d.rng.randint(0, 1)}
        w = ops.workload("quantized_matmul", {**sizes, **flags}, dtype)
    else:
        groups = d.rng.choice((1, 1, 2))
        sizes = {"b": 1, "h": m, "w": 4, "ci": groups * min(k, 3 if d.small else 13), "co": groups * n}
        kernel = {"kh": min(m, 2), "kw": d.rng.randint(1, 3), "padding": d.rng.randint(0, 1)}
        layout = d.rng.choice(("NHWC", "NCHW"))
        w = ops.workload("quantized_conv2d", {**sizes, **kernel, "groups": groups, **flags}, dtype, layout)
    d.say(w.op, *(f"{x}={v}" for x, v in w.params))
    return w.dag


def dequantised(d: Draw) -> Tensor:
    """A product of floats that are integers of 8 bits less a zero point, times a scale: what is rewritten."""
    a, b = (d.rng.choice(("uint8", "int8")) for _ in "ab")
    m, n, k = d.extent(ROWS), d.extent(COLUMNS), min(d.extent(TERMS), 64)
    if d.small:
        k = min(k, max(2, MOST_INTERPRETED // (m * n)))
    x, y = d.input((m, k), a, "a"), d.input((k, n), b, "b")
    zx = d.input((), a, "a_zero") if d.flag() else None
    zy = d.input((n,), b, "b_zero") if d.flag() else None
    s, r = d.input((n,), "float32", "scale"), te.reduce_axis(k, "k")
    d.say("dequantised", a, b, m, n, k, "za" * bool(zx), "zb" * bool(zy))

    def less(v: Any, zero: Any) -> Expr:
        return te.cast(v, "float32") - te.cast(zero, "float32")

    def of(i: Any, j: Any) -> Any:
        left = less(x[i, r], zx[()] if zx else te.const(3, "int32")) * 0.5
        right = less(y[r, j], zy[j] if zy else te.const(0, "int32")) * s[j]
        return te.sum(left * right, axis=r)

    return te.compute((m, n), of, "c")


def in_groups(d: Draw) -> Tensor:
    """Sums over groups, each of which has a scale, added."""
    a, b = dtypes = d.dtypes()
    group, groups = d.rng.choice((2, 4, 7, 8, 16, 32)), d.rng.choice((1, 2, 3, 5))
    m, n = (d.rng.choice((1, 2, 3)) if d.small else d.extent(ROWS)), d.extent(COLUMNS)
    if d.small:
        groups = 2
        group = min(group, 8)
    four = group % 2 == 0 and not is_float(a) and d.flag(0.4)
    b = "uint8" if four else b
    x = d.input((m, group * groups), a, "a")
    y = d.input((n, group * groups // (2 if four else 1)), b, "b")
    fa, fb = factor(d, a, "a"), (lambda x, _: x) if four else factor(d, b, "b", n)
    code = four_bits(d, y, group) if four else lambda j, at: y[j, at]
    dtypes = (a, b)
    s = d.input((n, groups), "float32", "s")
    d.say(f"groups m{m} n{n} {group}*{groups}")
    t, g = te.reduce_axis(group, "t"), te.reduce_axis(groups, "g")

    def term(i: Any, j: Any, o: Any) -> Any:
        at = o * group + t
        return times(fa(x[i, at], i), fb(code(j, at), j), dtypes)

    p = te.compute((m, n, groups), lambda i, j, o: te.sum(term(i, j, o), axis=t), "p")
    return te.compute((m, n), lambda i, j: te.sum(te.cast(p[i, j, g], "float32") * s[j, g], axis=g), "c")


def epilogue(d: Draw, c: Tensor) -> Tensor:
    """Elementwise operations on the sums: bias, scale, relu, rounding, another array, a cast."""
    for n in range(d.rng.choice((0, 0, 1, 1, 2, 3))):
        c = step(d, c, d.rng.choice(("bias", "scale", "relu", "round", "cast", "beside")), n)
    return c


def step(d: Draw, c: Tensor, what: str, n: int) -> Tensor:
    """One of them."""
    rank, floats = len(c.shape), is_float(c.dtype)
    d.say(what)
    computed = DTYPES[c.dtype].computed
    if what == "bias":
        b = d.input((c.shape[-1],), computed, f"bias{n}")
        return _over(c, lambda at: te.cast(c[at], computed) + b[at[-1]], f"e{n}")
    if what == "scale":
        s = d.input((c.shape[-1],), "float32", f"scale{n}")
        return _over(c, lambda at: te.cast(c[at], "float32") * s[at[-1]], f"e{n}")
    if what == "relu":
        return _over(c, lambda at: te.maximum(c[at], 0.0 if floats else 0), f"e{n}")
    if what == "beside":
        e = d.input(c.shape, d.rng.choice(STORED), f"beside{n}")
        return _over(c, lambda at: te.cast(c[at], "float32") + te.cast(e[at], "float32"), f"e{n}")
    if what == "cast":
        to = d.rng.choice(("bfloat16", "float16", "float32", "int32"))
        return _over(c, lambda at: te.cast(c[at], to), f"e{n}") if rank else c
    to = d.rng.choice(("int8", "uint8"))
    low, high = float(DTYPES[to].range[0]), float(DTYPES[to].range[-1])
    scale, zero = d.rng.choice((0.5, 0.125, 0.0078125)), float(d.rng.choice((0, 1, 5)))

    def rounded(at: tuple[Any, ...]) -> Expr:
        x = te.clip(te.round(te.cast(c[at], "float32") * scale) + zero, low, high)
        return te.cast(te.cast(x, "int32"), to)

    return _over(c, rounded, f"e{n}")


def _over(c: Tensor, of: Any, name: str) -> Tensor:
    if len(c.shape) == 2:
        return te.compute(c.shape, lambda i, j: of((i, j)), name)
    return te.compute(c.shape, lambda i, j, k: of((i, j, k)), name)


def random_case(seed: int, small: bool) -> tuple[Case, Random]:
    """Case ``seed``; ``small``: one that the interpreter runs."""
    rng = Random(f"{seed} {small}")
    d = Draw(rng, small)
    make = rng.choice((product, product, convolution, in_groups, dequantised, quantized))
    made = make(d)
    last = made if isinstance(made, ComputeDAG) else epilogue(d, made)
    dag = last if isinstance(last, ComputeDAG) else te.dag([*d.inputs, last])
    meaning, known = dag, tuple[str, ...]()
    if make is not quantized and d.flag(0.7):  # as `tune` makes it of what a user states
        dag = with_integer_products(dag)
        d.say("rewritten" * (dag is not meaning))
    if d.flag(0.5):
        dag = with_views(dag, rng, 0.6)
        d.say("strides=" + str({t.name: t.strides for t in dag.params if t.strides}))
    elif d.flag(0.4):
        known = tuple(t.name for t in dag.inputs if t.name in ("b", "w", "s"))
        d.say("known", *known)
    label = f"seed {seed}{' small' * small}: " + " ".join(w for w in d.words if w)
    return Case(label, dag, known, meaning), rng


def data(dag: ComputeDAG, seed: int) -> list[np.ndarray]:
    """Integers of the whole range of their dtype; whole floats; scales that are powers of 2."""
    rng = np.random.default_rng(seed)

    def one(t: Tensor) -> np.ndarray:
        if t.name == "s":
            x = rng.integers(-1, 3, t.shape)
        elif t.name.startswith("scale"):
            x = 2.0 ** rng.integers(-2, 3, t.shape)
        elif is_float(t.dtype):  # as large as all whole numbers are exact; sums need more bits than that
            most = min(2 ** (DTYPES[t.dtype].mantissa + 1), 32)
            x = rng.integers(-most, most + 1, t.shape)
        else:
            ends = DTYPES[t.dtype].range if DTYPES[t.dtype].is_storage else range(-9, 10)
            x = rng.integers(ends[0], ends[-1] + 1, t.shape)
            at = rng.random(t.shape)
            x = np.where(at < 0.2, ends[0], np.where(at > 0.8, ends[-1], x))
        return settled_values(np.asarray(x).astype(DTYPES[t.dtype].numpy), lies(t))

    return [one(t) for t in dag.inputs]


# -- running them -------------------------------------------------------------------------------------------


@contextmanager
def small_as_large() -> Iterator[None]:
    """Packed and blocked, though extents are small, and by instructions, though most of them is wasted."""
    with pytest.MonkeyPatch.context() as m:
        for name, value in (("BLOCK_REDUCTION", 2), ("BLOCK_PACKED", 2)):
            m.setattr(tiling, name, value)
        m.setattr(packed_operands, "TOO_SMALL_TO_PACK", 0)
        m.setattr(tiling, "REDUCTION_BLOCKS", (8, 16, 32))  # every number of `STEPS` divides them
        m.setattr(instructed, "MOST_WASTE", 12.0)
        m.setattr(instructed, "FEWEST_USES", 1)
        m.setattr(instructed, "PARTS_OF_CACHE", 0)
        m.setattr(widened, "WIDENED_USES", 1)
        yield


def here(name: str, threads: int) -> Target:
    """This CPU without the features of `LACKING`."""
    without, wide = LACKING[name]
    features = tuple(f for f in host_arch()[1] if not f.startswith(without or ("-",)))
    return replace(target(threads, wide), features=features)


def named(name: str) -> Target:
    """One of `NAMED`."""
    t = NAMED[name]
    return t if isinstance(t, Target) else replace(target(1, 64 if name == "tiles" else 32), features=t)


Used = dict[str, int]  # {instruction, "" for any or none: candidates with it}


def candidates(case: Case, t: Target, seed: int, instructed: int) -> Iterator[tuple[str, str, Trace]]:
    """One candidate of each sketch, or so many of those that have an instruction: what to say of it if it is
    wrong, the sketch's name, its trace."""
    space = derive(replace(case.dag, constants=case.known), t)
    draw = np.random.default_rng(seed)
    for n, name in enumerate(space.sketches):
        rows = space.sample(n, 16, draw)
        for row in rows[space.valid(n, rows)][: instructed if ".with=" in name else 1]:
            yield (
                f"{case.label}, {t.threads} threads, sketch {name!r} {row.tolist()}",
                name,
                space.trace(n, row),
            )


def right(
    case: Case, inputs: list[np.ndarray], got: list[np.ndarray], want: list[np.ndarray], what: str
) -> None:
    """Sums of float32 that reach 2**24 depend on their order: then bounds of error say what is right."""
    if not any(w.dtype == np.float32 and np.abs(w).max(initial=0) >= 2**24 for w in want):
        return same(got, want, what)
    of = evaluate_with_bounds(case.meaning, inputs, steady=True)
    for n, (g, w, bound) in enumerate(zip(got, of.values, of.bounds, strict=True)):
        if not (np.abs(g.astype(np.float64) - w) <= bound).all():
            raise AssertionError(f"{what}: output {n} is outside of the bounds of its error")
    return None


def compiled(seed: int) -> Used:
    """Run candidates of case ``seed`` on this CPU, or on what it would be with less."""
    case, rng = random_case(seed, False)
    way = rng.choice(list(LACKING))
    t = here(way, rng.choice((1, 1, 2)))
    used, inputs = Counter[str](), data(case.dag, seed)
    want = te.evaluate(case.meaning, inputs)
    with small_as_large():
        for what, name, trace in candidates(case, t, seed, 3):
            try:
                for place, got in execute(case.dag, trace, t, inputs).items():
                    right(case, inputs, got, want, f"arrays at {place}")
            except Exception as err:
                raise AssertionError(f"{way}: {what}: {err!r}") from err
            used.update({w.partition("=")[2] for w in name.split() if ".with=" in w} | {""})
    return used


def interpreted(seed: int) -> Used:
    """Interpret candidates of small case ``seed`` for this CPU or another."""
    case, rng = random_case(seed, True)
    way = rng.choice([*LACKING, *NAMED, "tiles", "tiles"])
    t = named(way) if way in NAMED else here(way, rng.choice((1, 2)))
    used, inputs = Counter[str](), data(case.dag, seed)
    want = te.evaluate(case.meaning, inputs)
    with small_as_large():
        for what, _, trace in candidates(case, t, seed, 1):
            try:
                f = lower(Schedule.replay(case.dag, trace, t).nest)
                right(case, inputs, interpret(f, case.dag, inputs), want, "interpreted")
            except Exception as err:
                raise AssertionError(f"{way}: {what}: {err!r}") from err
            used.update({x.instruction.name for x in walk(f.body) if isinstance(x, Intrinsic)} | {""})
    return used


@pytest.mark.fast("2")
@pytest.mark.parametrize("seed", (*range(3), 236))
def test_a_few_random_sums(seed: int) -> None:
    assert interpreted(seed)[""]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_some_compiled_random_sums(seed: int) -> None:
    assert compiled(seed)[""]


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 500))
def test_random_sums_are_right(seed: int) -> None:
    """About six candidates each."""
    compiled(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 500))
def test_random_sums_are_right_interpreted(seed: int) -> None:
    interpreted(seed)
