"""A user's program that uses every public name. `test_packaging.py` compares the names with ``__all__``, and
checks the types by ``mypy --strict``, with the wheel installed. What tunes is not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import autotune as at
from autotune import te


def tune_and_call(db: Path) -> npt.NDArray[np.float32]:
    result = at.tune("matmul", m=512, n=512, k=512, threads=1, budget="60s", db=db)
    assert_type(result, at.TuneResult)
    if result.best is not None:
        assert_type(result.best.time_s, float)
        assert_type(result.best.trace, at.Trace)
        assert_type(result.explain(), at.Explanation)
    assert_type(at.explain("matmul", m=512, n=512, k=512, threads=1, db=db), at.Explanation)
    kernel = at.load("matmul", m=512, n=512, k=512, threads=1, db=db, fallback=True)
    assert_type(kernel, at.Kernel)
    assert_type(kernel.chosen_by, str)
    assert_type(kernel.workload, at.Workload)
    assert_type(kernel.target, at.Target)
    assert_type(kernel.trace, at.Trace | None)
    assert_type(kernel.source(), str)
    assert_type(kernel.address, int)
    assert_type(kernel.c_type, str)
    assert_type(kernel.time(), float)
    a = np.ones((512, 512), np.float32)
    out = np.empty_like(a)
    kernel(a, b=a, out=out)
    return out


def sizes_that_vary(db: Path) -> at.DynamicKernel:
    rows = at.dim(1, 512)
    result = at.tune("matmul", m=rows, n=64, k=64, threads=1, budget="60s", db=db)
    if isinstance(result, at.DynamicResult):
        assert_type(result.by_size[(512,)], at.TuneResult)
    kernel = at.load("matmul", m=rows, n=64, k=64, threads=1, db=db)
    assert isinstance(kernel, at.OpenKernel) and isinstance(kernel, at.DynamicKernel)
    kernel.prepare(m=37)
    assert_type(kernel.at(m=37), at.Kernel)
    return kernel


def on_a_fleet(address: str) -> at.TuneResult:
    targets: list[str | at.Target] = ["znver4", at.Target("cpu", "x86-64-v3")]
    result = at.tune("matmul", m=512, n=512, k=512, fleet=address, target=targets, threads=1)
    if isinstance(result, at.FleetResult):
        return result.by_target["znver4"]
    assert_type(at.tune_suite("ops.toml", fleet=address), at.SuiteResult)
    return result


def own_operator() -> list[te.Tensor]:
    a, b = te.placeholder((1000, 300), name="a"), te.placeholder((300, 70), name="b")
    k = te.reduce_axis(300, name="k")
    c = te.compute((1000, 70), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return [a, b, te.compute((1000, 70), lambda i, j: te.maximum(c[i, j], 0.0), name="d")]


def schedule_by_hand() -> at.Kernel:
    s = at.Schedule(own_operator())
    assert_type(s, at.Schedule)
    i, j, _ = s.loops("c")
    outer, inner = s.split(i, 4)
    s.split(j, [None, 16], tail="shift")
    s.unroll(inner)
    s.parallel(outer)
    compiled = at.compile_for(s, "h100")
    assert_type(compiled, at.Compiled)
    assert_type(compiled.source, str)
    steps = at.repeat(at.build(s, threads=1, in_place={}), times=2)
    assert_type(steps, at.Repeated)
    assert_type(steps.times, int | None)
    return at.build(s, threads=1)


def other_programs(kernel: at.Kernel, folder: Path) -> Any:
    at.export(kernel, folder, "several", targets=["cpu", "x86-64-v3"], db=folder / "tuning.db")
    files = at.export(kernel, folder, "doubled")
    assert_type(files, at.Exported)
    assert_type(files.library, Path)
    return at.torch.op(kernel, backward=lambda g, x: g)


def suite_and_log(db: Path) -> float | None:
    one = at.ops.workload("softmax", {"m": 64, "n": 64})
    assert_type(one, at.Workload)
    result = at.tune_suite([one, own_operator()], weights=[1.0, 2.0], budget_s=60, db=db)
    assert_type(result, at.SuiteResult)
    hit = at.best(one, db=db)
    with at.Log(db) as log:
        found = log.best(one, hit.target)
        log.export(db.with_suffix(".jsonl"))
    return None if found is None else found.time_s


def whole_model(db: Path, folder: Path, exported: object) -> npt.NDArray[np.float32]:
    model = at.import_onnx(folder / "net.onnx", shapes={"x": (1, 3, 224, 224)}, islands=True)
    assert_type(model, at.Model)
    small = at.quantize(model, weights="int8", group=64, activations=None, keep="head*")
    assert_type(small, at.Model)
    assert_type(small.quantized, at.QuantizedModel | None)
    result = at.tune_model(model, threads=1, budget="3m", db=db)
    assert_type(result, at.ModelTuneResult)
    net = at.compile_model(model, threads=1, db=db)
    assert_type(net, at.Module)
    net.save(folder / "net.at")
    assert_type(at.load_model(folder / "net.at", fallback=True), at.Module)
    files = net.export(folder, "net", weights="beside")
    assert_type(files, at.ExportedModel)
    assert_type(files.weights, Path | None)
    x = np.ones((1, 3, 224, 224), np.float32)
    assert_type(net.profile(x).total_s, float)
    assert_type(at.import_torch(exported), at.Model)
    assert_type(at.torch.modules(), list[at.Module])
    with at.torch.inductor(db=db, tune="30s", threads=1) as choices:
        assert_type(choices, at.torch.InductorChoices)
    assert_type(choices.choices, tuple[at.torch.InductorChoice, ...])
    assert_type(choices.choices[0].ours_ms, float | None)
    y: npt.NDArray[np.float32] = net(x)
    return y


def language_model(db: Path, folder: Path) -> npt.NDArray[np.int64]:
    model = at.import_gguf(folder / "x.gguf", context=512, rows=64, cache="float16")
    assert_type(model, at.Model)
    net = at.compile_model(model, threads=1, db=db)
    state = net.new_state()
    assert_type([*at.stream_tokens(net, [1, 306], state=state)], list[int])
    return at.generate(net, [1, 306], 8, choose=lambda logits: int(logits.argmax()), stop={2}, position=1)


def settings_and_errors() -> tuple[str, at.Settings | None]:
    errors: tuple[type[at.AutotuneError], ...] = (
        at.ArgumentError,
        at.CompileError,
        at.FleetError,
        at.MissingExtraError,
        at.KernelNotFound,
        at.LogError,
        at.ModelError,
        at.ReportError,
        at.ScheduleError,
        at.SettingsError,
        at.SuiteError,
        at.TargetError,
        at.TraceError,
        at.WorkloadError,
    )
    try:
        return at.__version__, at.Settings.from_environment()
    except errors as err:
        return str(err), None


def expressions() -> Any:
    """Every name of `te`, which is public too."""
    x = te.placeholder((8, 8), "float32", name="x")
    r = te.reduce_axis(8, name="r")
    largest = te.reducer((-te.inf,), lambda old, new: (te.select(old[0] > new[0], old[0], new[0]),))

    def rest(i: te.Expr, j: te.Expr) -> te.Expr:
        number = te.lookup(te.FLOAT4_E2M1, te.cast(x[i, j], "int32"))
        return number * te.fmod(x[i, j], 2.0) + te.remainder(x[i, j], 3.0) + te.floor_divide(x[i, j], 4.0)

    def inverses(i: te.Expr, j: te.Expr) -> te.Expr:
        v = w[i, j]
        v = te.asin(v) + te.acos(v) + te.atan(v) + te.sinh(v) + te.cosh(v) + te.hypot(v, te.trunc(te.tf32(v)))
        return te.where(v > 0.0, te.asinh(v) + te.acosh(v), te.atanh(v)) + te.log2(v) + te.log10(te.cbrt(v))

    w = te.compute((8, 8), rest, name="w")
    u = te.compute((8, 8), inverses, name="u")

    def of(i: te.Expr, j: te.Expr) -> te.Expr:
        v = u[i, j]
        v = te.exp(te.minimum(v, 1.0)) + te.log(te.abs(v)) + te.sqrt(v) + te.tanh(v) + te.erf(v)
        v = te.exp2(te.atan2(v, 1.0))
        v = te.fma(v, te.sigmoid(v), te.floor(v)) + te.const(1.0, "float32")
        v = te.pow(te.abs(te.sin(v) * te.cos(v) + te.tan(v)), 0.5) + te.log1p(te.abs(v)) + te.expm1(v) ** 2
        v = te.select(te.isnan(v) | ~te.isfinite(v), te.rsqrt(v), te.clip(te.round(v), -1.0, te.ceil(v)))
        n = te.cast(v, "int32")
        n = te.bitwise_xor(te.bitwise_and(te.left_shift(n, 2), 7), te.bitwise_not(n))
        v = v + te.cast(te.right_shift(te.bitwise_or(n, 1), 1) << 2 | n & 3 ^ n >> 1, "float32")
        inside = te.all(te.equal(i, 0), te.logical_not(te.any(te.not_equal(j, 0), i > j)))
        low, high = te.min_value("float32"), te.max_value("float32")
        return te.cast(te.if_then_else(inside, te.maximum(v, low), te.select(inside, v, high)), "float32")

    y = te.compute((8, 8), of, name="y")
    reductions = [f(y[0, r], axis=r) for f in (te.sum, te.prod, te.max, te.min)]
    assert_type(reductions, list[te.Reduction])
    z = [te.compute((1,), lambda _, v=v: v, name=f"z{n}") for n, v in enumerate(reductions)]
    last = te.compute((1,), lambda _: largest(y[0, r], axis=r), name="last")
    (of_y,) = te.gradient(z[1], y, saved=[y])
    assert_type(te.inputs(te.cut(of_y, of_y.op.reads() if of_y.op else [])), list[te.Tensor])
    assert_type(te.jvp([w], [x], [x]), list[te.Tensor])
    dag = te.with_strides(te.dag([x, *z, last]), {"x": (8, 1)})
    return te.evaluate(dag, [np.ones((8, 8), np.float32)])


def scans_and_scatters() -> list[te.Tensor]:
    x = te.placeholder((8, 8), "float32", name="x")
    sums = [f(x, axis=1) for f in (te.cumsum, te.cumprod, te.cummax, te.cummin)]
    assert_type(sums, list[te.Tensor])
    before = te.state((8, 8), "float32", init=0.0, name="before")
    assert_type(before, te.Tensor)
    made = te.scan(before, te.compute((8, 8), lambda t, i: before[t - 1, i] + x[t, i], name="made"))
    both = te.associative_scan(lambda a, b: a * b, x, axis=1)
    point = (8,), lambda i: i, lambda i: x[i, 0], (8,)
    scattered = [f(*point) for f in (te.scatter_add, te.scatter_max, te.scatter_min)]
    counts = te.histogram(x, 4, range=(0.0, 1.0))
    assert_type(counts, te.Tensor)
    return [*sums, made, both, *scattered, counts]
