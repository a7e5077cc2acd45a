"""Convolutions on GPUs as products of matrices: meaning, and what lowered kernels hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from grid_cases import TARGET, Case, emulate, need_cxx, program, sampled, space

import autotune as at
from autotune import backends
from autotune.codegen.simt import cuda, emulator
from schedules import ops, te
from schedules.ir import Alloc, Nest, interp, walk
from schedules.ir.grid import GridProgram
from schedules.ir.interp_grid import run_grid
from schedules.ir.nest import find_block
from schedules.model import Trace
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import derive

# Small sizes that tiles do not divide: (operator, parameters, dtype, layout).
WINDOWS: dict[str, tuple[str, dict[str, object], str, str | None]] = {
    "3x3": ("conv2d", {"b": 2, "h": 5, "w": 7, "ci": 8, "co": 6, "k": 3, "padding": 1}, "float16", "NHWC"),
    "stride": ("conv2d", {"h": 9, "w": 8, "ci": 4, "co": 5, "k": 3, "stride": 2}, "float32", "NHWC"),
    "dilation": ("conv2d", {"h": 7, "w": 8, "ci": 3, "co": 5, "k": 2, "dilation": 3}, "float32", "NHWC"),
    "1x1": ("conv2d", {"b": 2, "h": 5, "w": 3, "ci": 8, "co": 6, "k": 1, "stride": 2}, "float16", "NHWC"),
    "groups": ("conv2d", {"h": 5, "w": 6, "ci": 8, "co": 6, "k": 3, "groups": 2}, "float32", "NHWC"),
    "NCHW": ("conv2d", {"b": 2, "h": 5, "w": 6, "ci": 3, "co": 4, "k": 3, "padding": 1}, "float32", "NCHW"),
    "epilogue": ("conv2d_bias_relu", {"h": 5, "w": 6, "ci": 4, "co": 7, "k": 3}, "float32", "NHWC"),
    "1d": ("conv1d", {"b": 2, "l": 9, "ci": 5, "co": 7, "k": 3, "dilation": 2}, "float32", None),
    "3d": ("conv3d", {"d": 3, "h": 4, "w": 3, "ci": 5, "co": 6, "k": 3, "padding": 1}, "float32", None),
    "capsules": ("capsule_conv2d", {"h": 3, "w": 3, "ci": 2, "co": 2, "k": 3, "padding": 1}, "float32", None),
    "int8": ("quantized_conv2d", {"h": 5, "w": 4, "ci": 4, "co": 5, "k": 3, "padding": 1}, "int8", None),
}  # fmt: skip


def window(name: str) -> Case:
    op, params, dtype, layout = WINDOWS[name]
    w = ops.workload(op, params, None if dtype == "int8" else dtype, layout)
    rng = np.random.default_rng(3)
    data = tuple(rng.integers(-3, 4, t.shape).astype(t.dtype) for t in w.dag.inputs)
    return Case(w.dag, data, tuple(ops.reference(w, list(data))))


def products(c: Case, each: int = 1) -> Iterator[tuple[str, Trace]]:
    return ((name, trace) for name, trace in sampled(c.dag, each) if ".window=product" in name)


def interpret(c: Case, nest: Nest, p: GridProgram, what: str) -> None:
    """Run both, and check them."""
    for run in (lambda a: interp.run(nest, a), lambda a: run_grid(p, a)):
        outputs = c.poisoned()
        run(dict(zip([t.name for t in c.dag.params], [*c.inputs, *outputs], strict=True)))
        c.check(outputs, what)


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
def test_products_of_windows_compute_the_convolution(name: str) -> None:
    """The serial interpreter, the interpreter of grids and the emulator agree."""
    c = window(name)
    found = list(products(c))
    assert found
    for what, trace in found[:2]:
        interpret(c, Schedule.replay(c.dag, trace, TARGET).nest, program(c.dag, trace), what)
    emulate(c, 4)


# What matrix units do of them: (operator, parameters, dtype, layout, dtypes of the instruction).
UNITS: dict[str, tuple[str, dict[str, object], str | None, str | None, str]] = {
    "3x3": ("conv2d", {"h": 5, "w": 4, "ci": 8, "co": 6, "k": 3, "padding": 1}, "float16", "NHWC", ""),
    "stride": ("conv2d", {"h": 9, "w": 8, "ci": 4, "co": 10, "k": 3, "stride": 2}, "bfloat16", "NHWC", ""),
    "1x1": ("conv2d", {"b": 2, "h": 5, "w": 3, "ci": 8, "co": 6, "k": 1}, "float16", "NHWC", ""),
    "groups": ("conv2d", {"h": 5, "w": 6, "ci": 8, "co": 16, "k": 3, "groups": 2}, "float16", "NHWC", ""),
    "NCHW": ("conv2d", {"h": 5, "w": 6, "ci": 3, "co": 8, "k": 3, "padding": 1}, "float16", "NCHW", ""),
    "epilogue": ("conv2d_bias_relu", {"h": 4, "w": 5, "ci": 6, "co": 10, "k": 2}, "float16", "NHWC", ""),
    "int8": ("quantized_conv2d", {"h": 4, "w": 4, "ci": 8, "co": 8, "k": 2}, None, None, "uint8"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", UNITS)
def test_matrix_units_do_convolutions(name: str) -> None:
    """The serial interpreter, that of grids, and the emulator in three orders of landing agree."""
    need_cxx()
    op, params, dtype, layout, unit = UNITS[name]
    w, target = ops.workload(op, params, dtype, layout), backends.parse("a100-emulator")
    rng = np.random.default_rng(3)
    data = tuple(rng.integers(-3, 4, t.shape).astype(t.dtype) for t in w.dag.inputs)
    c = Case(w.dag, data, tuple(ops.reference(w, list(data))))
    found = derive(w.dag, target)
    wanted = f"_{unit or dtype}"
    number, sketch = next((n, x) for n, x in enumerate(found.sketches) if wanted in x and "with=" in x)
    rows = found.sample(number, 200, rng)
    rows = rows[found.valid(number, rows)][:2]
    assert len(rows)
    schedules = [Schedule.replay(w.dag, found.trace(number, row), target) for row in rows]
    programs = [lower_simt(s.nest) for s in schedules]
    obj = emulator.build(*programs)
    for n, p in enumerate(programs):
        for order in ("early", "late", "random"):
            outputs = c.poisoned()
            fault = emulator.run(obj, p, [*c.inputs, *outputs], n, order=order)
            assert fault is None, f"{sketch} {rows[n]}: {fault}"
            c.check(outputs, f"{sketch} {rows[n]} {order}")
    interpret(c, schedules[0].nest, programs[0], sketch)


def test_a_convolution_is_one_product() -> None:
    """Rows are images and pixels, terms are taps and channels. Nobody stores what windows read."""
    c = window("3x3")
    ((_, trace),) = products(c)
    nest = Schedule.replay(c.dag, trace, TARGET).nest
    assert [(i.kind, int(i.extent.value)) for i in find_block(nest, "y").iters] == [  # type: ignore[attr-defined]
        ("spatial", 2 * 5 * 7), ("spatial", 6), ("reduce", 9 * 8),
    ]  # fmt: skip
    p = program(c.dag, trace)
    (kernel,) = p.kernels
    assert not p.scratch
    scopes = sorted(x.buffer.scope for x in walk(kernel.body) if isinstance(x, Alloc))
    assert scopes.count("shared") == 2 and "global" not in scopes


@pytest.mark.slow
def test_windows_are_read_in_vectors() -> None:
    """Channels lie side by side, and padding begins and ends with whole vectors of them."""
    c = window("3x3")
    texts = [cuda.source(program(c.dag, t)) for _, t in products(c, 30)]
    assert any("AT_LOAD(at_bits16, 8, v_x[" in x or "AT_LOAD(at_bits16, 4, v_x[" in x for x in texts)


def test_a_long_sum_of_windows_is_split() -> None:
    w = ops.workload("conv2d", {"h": 4, "w": 4, "ci": 256, "co": 8, "k": 3, "padding": 1})
    found = derive(w.dag, TARGET).sketches
    assert "y.window=product y.reduction=split" in found and "y.window=product y.reduction=whole" in found


def _asked(dag: te.ComputeDAG) -> bool:
    return any("window" in x for x in space(dag).sketches)


def test_what_is_no_product_stays() -> None:
    """Depthwise windows have no columns. A square reads one operand. A pool multiplies nothing."""
    for op, p in (
        ("depthwise_conv2d", {"h": 6, "w": 5, "c": 7, "k": 3}),
        ("max_pool2d", {"h": 7, "w": 7, "c": 3, "k": 2}),
    ):
        assert not _asked(ops.workload(op, p).dag)
    x, k = te.placeholder((9,), "float32", name="x"), te.reduce_axis(3, name="k")
    y = te.compute((4, 7), lambda j, i: te.sum(x[i + k] * x[j + k], axis=k), name="y")
    assert not _asked(te.dag([x, y]))


def test_open_sizes_are_left() -> None:
    n = at.dim(1, 8)
    x, w = te.placeholder((n, 9, 4), "float32", name="x"), te.placeholder((3, 4, 5), "float32", name="w")
    r, c = te.reduce_axis(3, name="r"), te.reduce_axis(4, name="c")
    y = te.compute((n, 7, 5), lambda b, i, o: te.sum(x[b, i + r, c] * w[r, c, o], axis=(r, c)), name="y")
    assert not _asked(te.dag([x, w, y]))
