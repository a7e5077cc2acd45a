"""Attention over short rows as one kernel on matrix units: meaning, registers, and where it is offered."""

from __future__ import annotations

import numpy as np
import pytest
from grid_cases import Case, need_cxx
from needs import missing

from autotune import backends
from autotune.codegen.simt import cuda, emulator, nvrtc
from schedules import ops, te
from schedules.ir import AllReduce, interp, walk
from schedules.ir.interp_grid import run_grid
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import derive

TARGET = backends.parse("a100-emulator")
NAME = "y.by=warps"


def schedules(params: dict[str, object], count: int) -> tuple[Case, list[Schedule]]:
    w = ops.workload("attention", params, "bfloat16")
    rng = np.random.default_rng(5)
    data = tuple(rng.integers(-2, 3, t.shape).astype(t.dtype) for t in w.dag.inputs)
    found = derive(w.dag, TARGET)
    number = found.sketches.index(NAME)
    rows = found.sample(number, 50, rng)
    rows = rows[found.valid(number, rows)][:count]
    assert len(rows)
    case = Case(w.dag, data, tuple(ops.reference(w, list(data))))
    return case, [Schedule.replay(w.dag, found.trace(number, row), TARGET) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"heads": 2, "seq": 32, "dim": 16},
        {"b": 2, "heads": 1, "seq": 48, "dim": 16, "is_causal": 1},
        {"heads": 1, "seq": 16, "dim": 32, "attn_mask": (16, 16)},
    ],
)
def test_short_attention_computes_attention(params: dict[str, object]) -> None:
    """The serial interpreter, that of grids, and the emulator in three orders of landing."""
    need_cxx()
    c, found = schedules(params, 2)
    programs = [lower_simt(s.nest) for s in found]
    obj = emulator.build(*programs)
    for n, p in enumerate(programs):
        assert len(p.kernels) == 1 and not p.scratch
        for order in ("early", "late", "random"):
            outputs = c.poisoned()
            fault = emulator.run(obj, p, [*c.inputs, *outputs], n, order=order)
            assert fault is None, fault
            c.check(outputs, order)
    for run in (lambda a: interp.run(found[0].nest, a), lambda a: run_grid(programs[0], a)):
        outputs = c.poisoned()
        run(dict(zip([t.name for t in c.dag.params], [*c.inputs, *outputs], strict=True)))
        c.check(outputs, "interpreted")


@pytest.mark.slow
def test_scores_stay_in_registers() -> None:
    _, (s,) = schedules({"heads": 1, "seq": 32, "dim": 16}, 1)
    (kernel,) = lower_simt(s.nest).kernels
    reduced = [(x.op, x.near) for x in walk(kernel.body) if isinstance(x, AllReduce)]
    assert sorted(reduced) == [("+", 4), ("max", 4)]
    read = {b.name for b in kernel.params}
    assert read == {"q", "k", "v", "y"}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("seq", "dim"), [(128, 64), (256, 128)])
def test_a_gpu_spills_nothing(arch: str, seq: int, dim: int) -> None:
    if not nvrtc.available():
        missing("nvrtc")
    _, (s,) = schedules({"heads": 1, "seq": seq, "dim": dim}, 1)
    (facts,) = nvrtc.compile_cubin(cuda.source(lower_simt(s.nest)), arch).facts.values()
    assert facts["spill_bytes"] == facts["stack_bytes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "seq", "dim", "target"),
    [
        ("float16", 32, 16, "a100-emulator"),  # its weights are float32
        ("bfloat16", 24, 16, "a100-emulator"),  # a part of a tile
        ("bfloat16", 512, 16, "a100-emulator"),  # too long for registers
        ("bfloat16", 32, 16, "cuda-emulator"),  # without matrix units
    ],
)
def test_it_is_offered_where_it_fits(dtype: str, seq: int, dim: int, target: str) -> None:
    w = ops.workload("attention", {"heads": 1, "seq": seq, "dim": dim}, dtype)
    assert NAME not in derive(w.dag, backends.parse(target)).sketches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "dim", "turned", "offered"),
    [
        ("int8", 32, False, True),
        ("int8", 16, False, False),  # half of what an instruction for int8 sums up
        ("float16", 16, False, True),
        ("float16", 16, True, False),  # a warp would need the maxima of another's rows
    ],
)
def test_it_is_offered_where_warps_have_what_they_need(
    dtype: str, dim: int, turned: bool, offered: bool
) -> None:
    q, k = (te.placeholder((2, 32, dim), dtype, x) for x in "qk")
    v, sums = te.placeholder((2, 32, 16), "bfloat16", "v"), "int32" if dtype == "int8" else "float32"
    d, j, t, u = (te.reduce_axis(n, x) for n, x in ((dim, "d"), (32, "j"), (32, "t"), (32, "u")))

    def score(z: te.Expr, i: te.Expr, j: te.Expr) -> te.Expr:
        return te.sum(te.cast(q[z, i, d], sums) * te.cast(k[z, j, d], sums), axis=d)

    dot = te.compute((2, 32, 32), score, "dot")
    most = te.compute((2, 32), lambda z, i: te.max(dot[z, i, t], axis=t), "most")

    def weight(z: te.Expr, i: te.Expr, j: te.Expr) -> te.Expr:
        away = dot[z, i, j] - most[z, 31 - i if turned else i]
        return te.cast(te.exp(te.cast(away, "float32")), "bfloat16")

    e = te.compute((2, 32, 32), weight, "e")
    total = te.compute((2, 32), lambda z, i: te.sum(te.cast(e[z, i, u], "float32"), axis=u), "total")

    def mean(z: te.Expr, i: te.Expr, c: te.Expr) -> te.Expr:
        return te.sum(te.cast(e[z, i, j], "float32") * te.cast(v[z, j, c], "float32"), axis=j)

    mixed = te.compute((2, 32, 16), mean, "mixed")
    y = te.compute((2, 32, 16), lambda z, i, c: mixed[z, i, c] / total[z, i], "y")
    assert (NAME in derive(te.dag([q, k, v, y]), TARGET).sketches) == offered
