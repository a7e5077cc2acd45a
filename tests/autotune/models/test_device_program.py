"""Models on devices: emulation, OpenCL, and NVIDIA's driver, a fake one where there is no GPU. What they give
is what the evaluator gives, bit by bit."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import gpu_fakes as fakes
import numpy as np
import pytest
from device_cases import kernel_on, one_by_one, program_on
from emulated_device import EmulatedDevice
from graph_cases import Builder as Inputs
from graph_cases import conv, dense, inputs_of, max_pool, relu, reshape, transformer
from graph_meaning import evaluate
from grid_cases import need_cxx
from joined_models import dense_block, fire, token
from model_cases import each_stage, islanded, layers, model_of, whole
from needs import missing

from autotune import backends, targets
from autotune.backends.building.from_trace import grid_program
from autotune.backends.cuda import Cuda
from autotune.backends.drivers import cuda, opencl
from autotune.backends.drivers.protocol import Device, DeviceError
from autotune.codegen.simt import nvrtc
from autotune.errors import ModelError
from autotune.models import preparation
from autotune.models.compiling import compile_model
from autotune.models.device_memory import DeviceMemory
from autotune.models.host_memory import HostMemory
from autotune.models.module import Module
from autotune.models.outline import outline
from autotune.models.program import Program, Times
from autotune.models.saved import load_model
from autotune.models.weights import Use
from autotune.run.kernels import default_kernel
from schedules import te
from schedules.graph import joins
from schedules.graph.graph import Argument, Graph, Group
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.model import Target, Trace, Workload
from schedules.te.compute_dag import ComputeDAG


@pytest.fixture(params=["emulator", "opencl", "cuda"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "opencl":
        if opencl.context() is None:
            missing("opencl")
        return opencl.device()
    if request.param == "cuda":
        if not cuda.available():
            pytest.skip("there is no driver; test_devices.py runs this on a fake one")
        return cuda.device()
    need_cxx()
    return EmulatedDevice()


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Counter[str]]:
    """How often the fake driver has been called, by name, since it was last asked."""
    if not cuda.available() or cuda.device().name() != fakes.FAKE:
        pytest.skip("needs the fake driver; test_devices.py runs this on it")
    return fakes.counted_calls(tmp_path, monkeypatch)


def run(program: Program, *inputs: np.ndarray, times: Times | None = None) -> list[np.ndarray]:
    ol = program.outline
    outputs = [np.full(ol.tensors[n].shape, 77, ol.tensors[n].dtype) for n in ol.outputs]
    program.run(inputs, outputs, times)
    return outputs


def network() -> Graph:
    """Convolution with padding, bias and activation; a pool; a classifier."""
    b = Inputs()
    x = b.input("x", 1, 3, 7, 6)
    y = max_pool(relu(conv(b, x, 4, 3, 1, 1, "conv")), 2, 2)
    return b.graph(dense(b, reshape(y, 1, 4 * 3 * 3), 5, "fc"))


@pytest.mark.fast("cuda")
def test_a_network_is_what_the_evaluator_says_again_and_again(device: Device) -> None:
    graph = network()
    program = program_on(device, graph, partition(graph))
    for seed in (1, 2, 1):
        inputs = inputs_of(graph, seed)
        expected = evaluate(graph, inputs)[0]
        assert expected.any()
        np.testing.assert_array_equal(run(program, *inputs)[0], expected)


@pytest.mark.slow
def test_a_transformer_is_what_the_evaluator_says() -> None:
    """Its exponentials and roots are not exact in any order; all else is."""
    need_cxx()
    graph = transformer(1)
    program = program_on(EmulatedDevice(), graph, partition(graph))
    inputs = inputs_of(graph)
    expected = evaluate(graph, inputs)[0]
    for _ in range(2):
        np.testing.assert_allclose(run(program, *inputs)[0], expected, rtol=1e-4, atol=1e-5)


def test_layers_share_an_arena(device: Device) -> None:
    graph, x = layers(6)
    program = program_on(device, graph)
    np.testing.assert_array_equal(run(program, x)[0], evaluate(graph, [x])[0])
    assert program.plan.nbytes == 2 * max(device.alignment, x.nbytes)
    assert program.weights_bytes == sum(v.nbytes for v in graph.values.values())


@pytest.mark.fast("opencl", "cuda")
def test_islands_run_between_what_devices_run(device: Device) -> None:
    graph, x = islanded()
    program = program_on(device, graph)
    w, c = graph.values["w"], graph.values["c"]
    for x_ in (x, x + 1):
        y, m, z = run(program, x_)
        np.testing.assert_array_equal(y, -(x_ @ w) + c)
        np.testing.assert_array_equal(m, -c)
        np.testing.assert_array_equal(z, -2 * c)


@pytest.mark.parametrize("model", [fire, dense_block, token])
def test_parts_of_joined_tensors_are_written_in_their_places(
    device: Device, model: Callable[[], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a device can neither begin memory there, nor write what lies between what it reads."""
    monkeypatch.setattr(joins, "CALL_BYTES", 0)
    graph = optimize(model())
    assert graph.joins
    made = program_on(device, graph, partition(graph))
    elsewhere = DeviceMemory(cast(Device, Unaddressed(device)))
    for p in (made, Program(made.outline, made.kernels, made.weights, made.run_island, elsewhere)):
        for seed in (1, 2):
            inputs = inputs_of(graph, seed)
            np.testing.assert_array_equal(run(p, *inputs)[0], evaluate(graph, inputs)[0])


class Unaddressed:
    """A device as one whose memory is no addresses, and begins at few places."""

    def __init__(self, device: Device) -> None:
        self.alignment = 1024
        for name in ("allocate", "free", "upload", "download", "part", "copy"):
            setattr(self, name, getattr(device, name))


def part_of_a_tensor(start: int) -> tuple[Graph, tuple[Group, ...]]:
    """b = a[start:start + 8] w, element by element, of a = x + 1; ``w`` is read from its middle too."""
    x, w = te.placeholder((24,), "float32", "x"), te.placeholder((24,), "float32", "w")
    a = te.compute((24,), lambda i: x[i] + 1.0, "a")
    b = te.compute((8,), lambda i: a[i + start] * w[i + start], "b")
    dag = te.dag([x, w, a, b])
    values = {"w": np.arange(24, dtype="float32") - 5}
    graph = Graph(ComputeDAG(dag.inputs, dag.stages, ("b",), ("w",)), values, ("x",), ("b",), {}, ())
    p, q = te.placeholder((8,), "float32", "p"), te.placeholder((8,), "float32", "q")
    product = te.dag([p, q, te.compute((8,), lambda i: p[i] * q[i], "b")])
    product = ComputeDAG(product.inputs, product.stages, product.outputs, ("q",))
    first = ComputeDAG((dag.inputs[0],), (graph.dag.stages[0],), ("a",), ())
    return graph, (
        Group(first, (Argument("x"),), ("a",)),
        Group(product, (Argument("a", start), Argument("w", start)), ("b",)),
    )


@pytest.mark.fast(but=["emulator-1", "emulator-16", "opencl-1", "cuda-0", "cuda-4"])
@pytest.mark.parametrize("start", [0, 1, 4, 16])
def test_a_kernel_reads_from_within_a_tensor_wherever_it_begins(device: Device, start: int) -> None:
    graph, parts = part_of_a_tensor(start)
    program = program_on(device, graph, parts)
    x = whole(np.random.default_rng(0), (24,))
    for x_ in (x, -x):
        np.testing.assert_array_equal(run(program, x_)[0], evaluate(graph, [x_])[0])


@pytest.mark.slow
def test_vectors_are_read_where_they_may_begin() -> None:
    """Parts that begin at no multiple of the kernel's alignment are copied, and no other."""
    need_cxx()
    device = EmulatedDevice()
    moved = {}
    for start in (1, 4):
        graph, parts = part_of_a_tensor(start)
        program = program_on(device, graph, parts)
        for k in program.kernels:
            code = k.code.code
            object.__setattr__(code.params[0], "align", 16)
            object.__setattr__(code.params[1], "align", 16)
        program = program.with_kernels({})
        x = whole(np.random.default_rng(0), (24,))
        np.testing.assert_array_equal(run(program, x)[0], evaluate(graph, [x])[0])
        moved[start] = sum(len(s.copied) for s in program.layout.steps)
    assert moved == {1: 2, 4: 0}


def test_other_weights_are_another_program_and_shared_where_they_stay(device: Device) -> None:
    graph, x = layers(2)
    program = program_on(device, graph)
    before = run(program, x)[0]
    w0 = graph.values["w0"] * 2
    other = program.with_weights({"w0": w0})
    changed = Graph(graph.dag, {**graph.values, "w0": w0}, graph.inputs, graph.outputs, {}, ())
    np.testing.assert_array_equal(run(other, x)[0], evaluate(changed, [x])[0])
    assert not np.array_equal(run(other, x)[0], before)
    np.testing.assert_array_equal(run(program, x)[0], before)
    np.testing.assert_array_equal(other.weight("w0"), w0)
    np.testing.assert_array_equal(other.weight("w1"), graph.values["w1"])
    assert other.weights[Use("w1")] is program.weights[Use("w1")]


@pytest.mark.fast("opencl", "cuda")
def test_steps_are_timed_and_what_they_compute_is_right(device: Device) -> None:
    graph, x = islanded()
    program = program_on(device, graph)
    times = Times(program.outline, False)
    y = run(program, x, times=times)[0]
    np.testing.assert_array_equal(y, -(x @ graph.values["w"]) + graph.values["c"])
    assert all(ns > 0 for ns in times.calls) and len(times.calls) == 3
    assert times.islands["neg"] > 0


def test_calls_of_several_threads_do_not_mix(device: Device) -> None:
    graph, x = layers(3)
    program = program_on(device, graph)
    inputs = [x + n for n in range(6)]
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(lambda x_: run(program, x_)[0], inputs * 4)]
    for x_, y in zip(inputs * 4, found, strict=True):
        np.testing.assert_array_equal(y, evaluate(graph, [x_])[0])


@pytest.mark.slow
def test_memory_goes_back_with_the_programs() -> None:
    need_cxx()
    device = EmulatedDevice()
    graph, x = layers(2)
    program = program_on(device, graph)
    other = program.with_weights({"w0": graph.values["w0"]})
    run(program, x)
    run(other, x)
    assert len(device._held) == 2 + 4 + 1
    del program
    assert len(device._held) == 1 + 4
    del other
    gc.collect()
    assert not device._held


def test_kernels_of_two_places_are_refused() -> None:
    need_cxx()
    graph, _ = layers(1)
    ol = outline(graph, each_stage(graph)[1])
    device = EmulatedDevice()
    kernels = [kernel_on(device, ol.tasks[0]), default_kernel(ol.tasks[1], backends.parse("cpu", 1))]
    with pytest.raises(ModelError, match=r"for several devices \(cpu .*, cuda emulator\)"):
        Program.of(ol, kernels, graph.values.__getitem__, lambda i, x: [])


# -- captured, on the fake driver ------------------------------------------------------------------------


def test_cuda_captures_launches_once_and_replays_them(calls: Callable[[], Counter[str]]) -> None:
    graph, x = layers(3)
    program = program_on(cuda.device(), graph)
    calls()
    for n, x_ in enumerate((x, x + 1, -x)):
        np.testing.assert_array_equal(run(program, x_)[0], evaluate(graph, [x_])[0])
        made = calls()
        assert made["launch"] == 0 and made["replay"] == 1 and made["copy"] == 2
        assert made["record_launch"] == (6 if n == 0 else 0)
        assert made["capture"] == made["instantiate"] == (n == 0)
        assert made["allocate"] == (n == 0)
    other = program.with_weights({"w0": -graph.values["w0"]})
    values = {**graph.values, "w0": -graph.values["w0"]}
    changed = Graph(graph.dag, values, graph.inputs, graph.outputs, {}, ())
    np.testing.assert_array_equal(run(other, x)[0], evaluate(changed, [x])[0])
    assert calls()["capture"] == 1
    np.testing.assert_array_equal(run(program, x)[0], evaluate(graph, [x])[0])
    assert calls()["capture"] == 0
    del program, other
    gc.collect()
    made = calls()
    assert made["exec_end"] == 2 and made["free"] == 2 + 6 + 1


def test_cuda_captures_what_lies_between_islands(calls: Callable[[], Counter[str]]) -> None:
    graph, x = islanded()
    program = program_on(cuda.device(), graph)
    w, c = graph.values["w"], graph.values["c"]
    calls()
    for n in range(2):
        np.testing.assert_array_equal(run(program, x)[0], -(x @ w) + c)
        made = calls()
        assert made["replay"] == 2 and made["capture"] == (2 if n == 0 else 0) and made["launch"] == 0


def test_cuda_copies_of_parts_are_captured(calls: Callable[[], Counter[str]]) -> None:
    graph, parts = part_of_a_tensor(1)
    program = program_on(cuda.device(), graph, parts)
    for k in program.kernels:
        for p in k.code.code.params:
            object.__setattr__(p, "align", 16)
    program = program.with_kernels({})
    x = whole(np.random.default_rng(0), (24,))
    for x_ in (x, -x):
        np.testing.assert_array_equal(run(program, x_)[0], evaluate(graph, [x_])[0])
        made = calls()
        assert made["replay"] == 1 and made["copy_inside"] == 0


def test_cuda_launches_kernel_after_kernel_if_told(calls: Callable[[], Counter[str]]) -> None:
    graph, x = layers(3)
    program = one_by_one(program_on(cuda.device(), graph))
    calls()
    np.testing.assert_array_equal(run(program, x)[0], evaluate(graph, [x])[0])
    made = calls()
    assert made["launch"] == 6 and made["capture"] == made["replay"] == 0


def test_an_error_while_cuda_captures_is_told_and_the_next_call_is_right(
    calls: Callable[[], Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x = layers(2)
    device = cuda.device()
    program = program_on(device, graph)
    with monkeypatch.context() as m:
        m.setattr(device, "launcher", lambda p: lambda *args: 1)
        calls()
        with pytest.raises(DeviceError, match="invalid argument"):
            run(program, x)
    made = calls()
    assert made["capture"] == made["capture_end"] == 1 and made["replay"] == 0
    np.testing.assert_array_equal(run(program, x)[0], evaluate(graph, [x])[0])


# -- modules ---------------------------------------------------------------------------------------------


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels that were not tuned are those of plain loops; code for CUDA is what the device takes."""
    from autotune.run import untuned

    def picked(workload: Workload, target: Target, where: str) -> untuned.PickedKernel:
        return untuned.PickedKernel(default_kernel(workload, target), "plain")

    monkeypatch.setattr(untuned, "untuned", picked)

    def build(self: Cuda, dag: ComputeDAG, trace: Trace, target: targets.Target) -> bytes:
        return fakes.code_for(grid_program(dag, trace, target), cuda.device()).to_bytes()

    if cuda.available() and cuda.device().name() == fakes.FAKE:
        monkeypatch.setattr(Cuda, "build", build)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "2 of 2 tasks run kernels that are not tuned")
        yield


@pytest.fixture(params=["cuda-emulator", "opencl", "cuda"])
def target(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    if kind == "cuda" and (not cuda.available() or not nvrtc.available()):
        pytest.skip("there is no driver; test_devices.py runs this on a fake one")
    if kind == "opencl" and opencl.context() is None:
        missing("opencl")
    if kind == "cuda-emulator":
        need_cxx()
    return kind


def test_a_module_for_a_gpu(
    target: str, plain: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x = layers(2)
    monkeypatch.setattr(preparation, "cut", each_stage)
    net = compile_model(model_of(graph), target=target, fallback=True)
    assert isinstance(net.program.memory, HostMemory if target == "cuda-emulator" else DeviceMemory)
    assert net.target == backends.parse(target)
    expected = evaluate(graph, [x])[0]
    np.testing.assert_array_equal(net(x), expected)
    np.testing.assert_array_equal(net(x + 1), evaluate(graph, [x + 1])[0])
    profile = net.profile(x, repeat=2)
    assert len(profile.rows) == 4 and all(r.in_place_s > 0 for r in profile.rows)
    net.save(tmp_path / "net.at")
    again = load_model(tmp_path / "net.at")
    assert again.target == net.target and type(again.program.memory) is type(net.program.memory)
    np.testing.assert_array_equal(again(x), expected)
    values = {**graph.values, "w0": graph.values["w0"][::-1].copy()}
    net.load_weights(values)
    changed = Graph(graph.dag, values, graph.inputs, graph.outputs, {}, ())
    np.testing.assert_array_equal(net(x), evaluate(changed, [x])[0])
    assert not np.array_equal(net(x), expected)


def test_a_model_of_another_gpu_is_refused_or_runs_here(
    target: str, plain: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x = layers(2)
    monkeypatch.setattr(preparation, "cut", each_stage)
    net = compile_model(model_of(graph), target=target, fallback=True)
    net.save(tmp_path / "net.at")
    monkeypatch.setattr(backends, "runnable", lambda t: not t.grid)
    with pytest.raises(ModelError, match="this machine cannot run it"):
        load_model(tmp_path / "net.at")
    with pytest.warns(UserWarning, match="not for this machine"):
        again: Module = load_model(tmp_path / "net.at", fallback=True)
    np.testing.assert_array_equal(again(x), evaluate(graph, [x])[0])


def test_a_gpu_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = layers(1)
    with pytest.raises(targets.TargetError, match="cannot run code for a cuda target"):
        compile_model(model_of(graph), target="a100")
