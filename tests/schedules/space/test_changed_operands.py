"""Operands that are changed while they are copied: where that is offered, and that every sketch is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import check_compiled, interpret, same
from test_instructed import Case, offered, product, q8, sketches, with_features

from autotune.codegen.llvm.compile import host_arch
from schedules import te
from schedules.dtypes import DTYPES
from schedules.expr import Cast
from schedules.expr import walk as walk_expr
from schedules.instructions import INSTRUCTIONS
from schedules.instructions.match import fits
from schedules.instructions.work import instructions_for
from schedules.ir import Intrinsic, blocks, walk
from schedules.ir.nest import find_block
from schedules.model import Target
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.rules.cpu import packed_operands, widened
from schedules.te.compute_dag import ComputeDAG

VNNI = with_features("avx2", "avx512bw", "avx512vnni")
YMM = with_features("avx2", "avxvnni")


def biased(m: int, n: int, k: int) -> ComputeDAG:
    """int8 by int8, with a bias and relu: what is taken off the sums is a part of the epilogue."""
    x, y = te.placeholder((m, k), "int8", "x"), te.placeholder((k, n), "int8", "w")
    bias, r = te.placeholder((n,), "int32", "bias"), te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(x[i, r] * y[r, j], axis=r), "c")
    return te.dag([x, y, bias, te.compute((m, n), lambda i, j: te.maximum(c[i, j] + bias[j], 0), "q")])


class Own(Case):
    """A workload of an expression."""

    @property
    def dag(self) -> ComputeDAG:
        made = biased if self.op == "biased" else product
        return replace(made(**self.params), constants=self.constants)


def s8(
    m: int, n: int, k: int, turned: str = "", constants: tuple[str, ...] = (), dtype: str = "int8"
) -> Case:
    return Own("product", {**q8(m, n, k, dtype, dtype, turned=turned).params}, (), constants=constants)


class Sums(Case):
    """A convolution of int8 whose result are the sums, not their last bytes."""

    @property
    def dag(self) -> ComputeDAG:
        dag = super().dag
        return replace(dag, stages=dag.stages[:-1], outputs=tuple(t.name for t in dag.stages[-2].outputs))


def conv(layout: str, h: int, w: int, ci: int, co: int) -> Case:
    sizes = {"h": h, "w": w, "ci": ci, "co": co, "k": 3, "padding": 1}
    return Sums("conv2d", sizes, (), dtype="int8", layout=layout)


CASES = {
    "product": s8(9, 33, 8),
    "tails": s8(5, 17, 7),
    "unsigned": s8(9, 33, 8, dtype="uint8"),
    "turned a": s8(5, 33, 12, "a"),
    "turned b": s8(5, 33, 9, "b"),
    "both turned": s8(5, 33, 12, "ab"),
    "known b": s8(3, 33, 9, constants=("b",)),
    "known a": s8(17, 5, 12, constants=("a",)),
    "epilogue": Own("biased", {"m": 5, "n": 33, "k": 9}, ()),
    "batch": Case("batch_matmul", {"b": 2, "m": 5, "n": 17, "k": 9}, (), dtype="int8"),
    "channels last": conv("NHWC", 3, 4, 4, 17),
    "channels first": conv("NCHW", 2, 17, 3, 4),
    "known filters": replace(conv("NHWC", 3, 4, 3, 16), constants=("w",)),
}


def extremes(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Integers of the whole range, a third of them its ends."""
    rng, out = np.random.default_rng(seed), []
    for t in dag.inputs:
        ends = np.iinfo(t.dtype if t.dtype != "int32" else "int16")
        x = rng.integers(ends.min, ends.max, t.shape, endpoint=True)
        at = rng.random(t.shape)
        out.append(np.where(at < 0.2, ends.min, np.where(at > 0.8, ends.max, x)).astype(t.dtype))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", [VNNI, YMM], ids=["zmm", "ymm"])
def test_every_sketch_of_an_offset_operand_is_right(name: str, target: Target) -> None:
    """By the interpreter, with the instruction of the other sign in it, for numbers of the whole range."""
    dag, rng = CASES[name].dag, np.random.default_rng(1)
    space, found = derive(dag, target), sketches(CASES[name], target)
    mixed = {x for x in found if x.startswith("vpdpbusd")}
    assert len(mixed) == 1
    inputs = extremes(dag)
    plain = replace(dag, constants=())
    want = te.evaluate(plain, inputs)
    for n in found[mixed.pop()]:
        s = Schedule.replay(dag, space.trace(n, space.sample(n, 1, rng)[0]), target)
        assert any(step.primitive == "cache_read_offset" for step in s.trace.steps)
        f = lower(s.nest)
        runs = {x.instruction.name for x in walk(f.body) if isinstance(x, Intrinsic)}
        assert any(x.startswith("vpdpbusd") for x in runs)
        same(interpret(f, plain, inputs), want, space.sketches[n])


@pytest.mark.parametrize("name", CASES)
def test_an_offset_operand_is_right_compiled(name: str) -> None:
    """What this CPU lacks is compiled as loops."""
    features = tuple(f for f in host_arch()[1] if not f.startswith("amx"))
    here = replace(VNNI, features=tuple(sorted({*features, "avx512vnni"})))
    if not {"avx512vnni", "avx512bw"} <= set(features):
        here = replace(VNNI, features=features)
    dag, rng = CASES[name].dag, np.random.default_rng(2)
    space, found = derive(dag, here), sketches(CASES[name], here)
    inputs = extremes(dag, 1)
    plain = replace(dag, constants=())
    want = te.evaluate(plain, inputs)
    for way in found:
        n = found[way][0]
        check_compiled(plain, space.trace(n, space.sample(n, 1, rng)[0]), here, inputs, want)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_borders_of_an_offset_window(layout: str) -> None:
    """Padding becomes the offset, which is taken off at the borders as everywhere."""
    case = conv(layout, 2, 8, 2, 16)
    dag, space = case.dag, derive(case.dag, VNNI)
    (n, *_) = next(v for k, v in sketches(case, VNNI).items() if k.startswith("vpdpbusd"))
    s = Schedule.replay(dag, space.trace(n, space.sample(n, 1, np.random.default_rng(0))[0]), VNNI)
    for value in (-128, 127):
        inputs = [np.full(t.shape, v, np.int8) for t, v in zip(dag.inputs, (value, -128), strict=True)]
        same(interpret(lower(s.nest), dag, inputs), te.evaluate(dag, inputs), "all the same")


def zeroed(a: str, b: str, which: str) -> ComputeDAG:
    """A product of bytes less zero points: one of all a, and one of each column of b."""
    x, y = te.placeholder((16, 7), a, "a"), te.placeholder((7, 17), b, "b")
    za, zb, r = te.placeholder((), a, "za"), te.placeholder((17,), b, "zb"), te.reduce_axis(7, "k")

    def less(v: Any, zero: Any, wanted: bool) -> Any:
        return te.cast(v, "int32") - te.cast(zero, "int32") if wanted else te.cast(v, "int32")

    def of(i: Any, j: Any) -> Any:
        left, right = less(x[i, r], za[()], "a" in which), less(y[r, j], zb[j], "b" in which)
        return te.sum(left * right, axis=r)

    zeros = [z for z in (za, zb) if z.name[1] in which]
    return te.dag([x, y, *zeros, te.compute((16, 17), of, "c")])


@pytest.mark.parametrize("which", ["a", "b", "ab"])
@pytest.mark.parametrize("dtypes", ["int8 int8", "uint8 int8", "uint8 uint8"])
@pytest.mark.parametrize("name", ["vpdpbusd", "vpmaddwd"])
def test_zero_points_are_taken_out_of_a_sum(which: str, dtypes: str, name: str) -> None:
    """Of the numbers that the instruction multiplies, and of those that are offset or widened."""
    dag, target = zeroed(*dtypes.split(), which), VNNI if name == "vpdpbusd" else AVX2
    space, inputs = derive(dag, target), extremes(dag)
    found = [n for n, words in enumerate(space.sketches) if f"c.with={name}" in words]
    assert found
    s = Schedule.replay(
        dag, space.trace(found[0], space.sample(found[0], 1, np.random.default_rng(7))[0]), target
    )
    f = lower(s.nest)
    assert any(x.instruction.name.startswith(name) for x in walk(f.body) if isinstance(x, Intrinsic))
    same(interpret(f, dag, inputs), te.evaluate(dag, inputs), space.sketches[found[0]])


# -- where it is offered ------------------------------------------------------------------------------------


def test_offered_where_nothing_faster_takes_operands_as_they_are() -> None:
    case = s8(64, 64, 64)
    assert offered(case, VNNI) == {"vpdpbusd", "vpmaddwd_s8s8_zmm"}
    assert offered(case, with_features("avx512vnni", "avx512bw", "amx-tile", "amx-int8")) == {
        "tdpbssd", "vpmaddwd_s8s8_zmm",
    }  # fmt: skip
    assert offered(case, with_features("avx2", "avxvnni", "avxvnniint8")) == {"vpdpbssd"}
    assert offered(case, with_features("dotprod")) == {"sdot"}
    mixed = q8(64, 64, 64, "uint8", "int8")
    assert offered(mixed, with_features("dotprod")) <= {"sdot", "udot"} != set()
    assert offered(mixed, VNNI) == {"vpdpbusd"}


def test_not_offered_where_the_change_costs_more_than_it_gains() -> None:
    """What is copied or added up in every call is used a few times."""
    assert offered(s8(2, 64, 64), VNNI) == set(), "b is added up to be used twice"
    assert offered(s8(1, 64, 64, constants=("b",)), VNNI) >= {"vpdpbusd"}
    square = te.placeholder((32, 32), "int8", "x")
    r = te.reduce_axis(32, "r")
    dag = te.dag(
        [square, te.compute((32, 32), lambda i, j: te.sum(square[i, r] * square[j, r], axis=r), "c")]
    )
    assert not any("vpdpbusd" in x for x in derive(dag, VNNI).sketches), "both are one buffer"


def test_the_cheaper_operand_is_changed() -> None:
    """That whose copy, with the sum of the other, is the least: of what is known ahead nothing is."""

    def changed(case: Case) -> str:
        space = derive(case.dag, VNNI)
        (n, *_) = next(v for k, v in sketches(case, VNNI).items() if k.startswith("vpdpbusd"))
        steps = space.trace(n, space.sample(n, 1, np.random.default_rng(0))[0]).steps
        return next(str(dict(x.args)["buffer"]) for x in steps if x.primitive == "cache_read_offset")

    assert changed(s8(64, 64, 64, constants=("b",))) == "a"
    assert changed(s8(64, 64, 64, constants=("a",))) == "b"
    assert changed(s8(128, 16, 64)) == "a"
    assert changed(s8(16, 128, 64)) == "b"


def test_a_fit_names_the_operands_to_change() -> None:
    p = find_block(Schedule(s8(8, 8, 8).dag).nest, "c")
    ins = INSTRUCTIONS["vpdpbusd"]
    assert not fits(p, ins)
    found = fits(p, ins, changed=True)
    assert [(x.changes, x.reads["a"].buffer) for x in found] == [({"a": "uint8"}, "a"), ({"a": "uint8"}, "b")]
    halves = find_block(Schedule(product(8, 8, 8, "bfloat16", "bfloat16")).nest, "c")
    assert not fits(halves, ins, changed=True)
    wide = find_block(Schedule(product(8, 8, 8, "int32", "int8")).nest, "c")
    assert not fits(wide, ins, changed=True)


def test_limits_are_those_of_the_instruction_that_takes_changed_operands() -> None:
    names = {i.name for i in instructions_for(s8(8, 8, 8).dag, VNNI.features)}
    assert "vpdpbusd" in names


# -- widened copies -----------------------------------------------------------------------------------------


AVX2 = replace(
    with_features("avx2", "fma"),
    limits=tuple((k, 32 if k == "vector_bytes" else v) for k, v in with_features().limits),
)
# This CPU without what is newer than AVX2.
HERE = replace(
    AVX2, features=tuple(f for f in host_arch()[1] if not f.startswith(("amx", "avx512", "avxvnni")))
)
BYTES = {
    "product": s8(17, 17, 6),
    "tails": s8(17, 17, 7),
    "mixed": Own("product", {"m": 16, "n": 17, "k": 5, "a": "uint8", "b": "int8"}, ()),
    "one is wide": Own("product", {"m": 17, "n": 16, "k": 6, "a": "int16", "b": "int8"}, ()),
    "turned a": s8(16, 17, 6, "a"),
    "turned b": s8(16, 17, 5, "b"),
    "known b": s8(3, 16, 5, constants=("b",)),
    "epilogue": Own("biased", {"m": 16, "n": 17, "k": 5}, ()),
    "channels last": conv("NHWC", 1, 16, 2, 16),
    "channels first": conv("NCHW", 1, 16, 2, 16),
}
HALVES = {
    "product": Own("product", {"m": 5, "n": 17, "k": 7, "a": "bfloat16", "b": "bfloat16"}, ()),
    "turned b": Own(
        "product", {"m": 5, "n": 17, "k": 7, "a": "float16", "b": "float16", "turned": "b"}, ()
    ),
    "one is wide": Own("product", {"m": 5, "n": 17, "k": 7, "a": "float32", "b": "float8_e4m3fn"}, ()),
    "known b": Own(
        "product", {"m": 5, "n": 17, "k": 7, "a": "bfloat16", "b": "bfloat16"}, (), constants=("b",)
    ),
    "channels last": Case("conv2d", {"h": 1, "w": 4, "ci": 2, "co": 17, "k": 3, "padding": 1}, ()),
}  # fmt: skip


def whole(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-4, 5, t.shape).astype(DTYPES[t.dtype].numpy) for t in dag.inputs]


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_widened_to_pairs(name: str) -> None:
    """For `vpmaddwd`: interpreted, with the instruction in it."""
    case, rng = BYTES[name], np.random.default_rng(3)
    dag = case.dag
    space, (n, *_) = derive(dag, AVX2), sketches(case, AVX2)["vpmaddwd"]
    s = Schedule.replay(dag, space.trace(n, space.sample(n, 1, rng)[0]), AVX2)
    assert any(step.primitive == "widen" for step in s.trace.steps)
    f, inputs, plain = lower(s.nest), extremes(dag), replace(dag, constants=())
    assert "vpmaddwd" in {x.instruction.name for x in walk(f.body) if isinstance(x, Intrinsic)}
    same(interpret(f, plain, inputs), te.evaluate(plain, inputs), space.sketches[n])


@pytest.mark.slow
@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_are_widened_are_right_compiled(name: str) -> None:
    case, rng = BYTES[name], np.random.default_rng(4)
    dag, found = case.dag, sketches(case, HERE)
    if "vpmaddwd" not in found:
        pytest.skip("this CPU lacks the instruction")
    n, plain, inputs = found["vpmaddwd"][0], replace(dag, constants=()), extremes(dag, 1)
    space = derive(dag, HERE)
    check_compiled(
        plain, space.trace(n, space.sample(n, 1, rng)[0]), HERE, inputs, te.evaluate(plain, inputs)
    )


@pytest.mark.parametrize("name", HALVES)
def test_copies_of_floats_are_widened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is converted where it is added up."""
    monkeypatch.setattr(widened, "WIDENED_USES", 1)
    monkeypatch.setattr(packed_operands, "TOO_SMALL_TO_PACK", 0)
    dag, rng = HALVES[name].dag, np.random.default_rng(5)
    space, plain, inputs = derive(dag, AVX2), replace(dag, constants=()), whole(dag)
    want = te.evaluate(plain, inputs)
    wide = [n for n, x in enumerate(space.sketches) if "copies=wide" in x and "pad=inline" not in x]
    assert wide
    for n in {wide[0], wide[-1]}:
        s = Schedule.replay(dag, space.trace(n, space.sample(n, 1, rng)[0]), AVX2)
        sums = [b for b in blocks(s.nest.body) if b.reducer is not None]
        assert not any(isinstance(e, Cast) for b in sums for v in b.values for e in walk_expr(v))
        same(interpret(lower(s.nest), plain, inputs), want, space.sketches[n])
        check_compiled(plain, s.trace, HERE, inputs, want)


def test_widened_where_that_may_pay() -> None:
    wide = lambda case, t=AVX2: any("copies=wide" in x for x in derive(case.dag, t).sketches)  # noqa: E731
    halves = lambda m, n, k: Own(  # noqa: E731
        "product", {"m": m, "n": n, "k": k, "a": "bfloat16", "b": "bfloat16"}, ()
    )
    assert wide(halves(64, 64, 64)) and not wide(halves(8, 64, 64)), "b is used 8 times"
    assert not wide(halves(64, 64, 64), with_features("avx512bf16")), "an instruction reads them as they are"
    assert not wide(Own("product", {"m": 64, "n": 64, "k": 64, "a": "float32", "b": "float32"}, ()))
    small = Own("product", {"m": 64, "n": 64, "k": 64, "a": "float8_e4m3fn", "b": "float8_e5m2"}, ())
    assert offered(small, with_features("avx512bf16")) == {"vdpbf16ps"}, "all are numbers of bfloat16"
    case = s8(64, 64, 64)
    assert offered(case, AVX2) == {"vpmaddwd_s8s8", "vpmaddwd"}
    assert offered(s8(8, 64, 64), AVX2) == {"vpmaddwd_s8s8"}
    assert offered(case, with_features("avx2", "avx512bw")) == {"vpmaddwd_s8s8_zmm", "vpmaddwd_zmm"}
