"""Backends: one contract over all of them, one that is a stub, and that nobody else knows their names."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from grid_cases import case, need_cxx

import autotune as at
from autotune import backends, targets
from autotune.backends import registry
from autotune.backends.base import Backend, Loaded
from autotune.backends.cpu import Cpu
from autotune.backends.drivers import cuda, pycuda
from autotune.codegen.grid_code import GridArray, GridCode, Launch, TensorMap
from autotune.errors import CompileError
from autotune.run.kernels import kernel_of
from autotune.settings import SettingsError
from autotune.targets.names import TargetError
from schedules.model import Target, Trace, Workload
from schedules.te.compute_dag import ComputeDAG

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", backends.BACKENDS)
def test_every_backend_keeps_the_contract(name: str) -> None:
    b = backends.named(name)
    assert isinstance(b, Backend) and backends.asked_for(b.name) is b
    text, remedy = b.diagnosis()
    assert text and isinstance(remedy, str)
    if not b.available():
        with pytest.raises((TargetError, CompileError)):
            b.device() if b.measuring.on_device else b.detect()
        pytest.skip(f"{b.name} is not usable here: {text}")
    target = b.detect()
    assert b.owns(target) and backends.of(target) is b and b.runnable(target)
    assert backends.parse(b.name) == target
    dag = case("add").dag
    b.check_legal(dag, Trace(), target)
    code = b.build(dag, Trace(), target)
    assert [n for n in backends.BACKENDS if backends.named(n).takes(code)] == [
        name if b.measuring.on_device else "cpu"
    ]
    assert b.source(dag, Trace(), target)
    assert b.versions(target)
    kernel = kernel_of(Workload(dag), target, Trace())
    c = case("add")
    np.testing.assert_array_equal(kernel(*c.inputs), c.expected[0])
    assert b.clocked_by(target).kind == backends.HOST
    limit = b.roofline(Workload(dag), target)
    assert limit is None or limit() > 0


def test_a_kind_that_nobody_knows() -> None:
    """As a log from a later version may hold."""
    metal = Target("metal", "m4")
    assert backends.find(metal) is None and not backends.runnable(metal) and backends.lacking(metal) == ()
    with pytest.raises(TargetError, match="no backend for targets of kind 'metal'; there are cpu, cuda-emul"):
        backends.check_here(metal)
    with pytest.raises(CompileError, match="damaged code, or of another version: it begins with b'autotune-"):
        backends.of_code(b'autotune-grid-2\n{"kind": "metal"}\n')


def test_a_code_that_is_damaged_is_refused_by_the_backend_that_loads_it() -> None:
    with pytest.raises(CompileError, match="damaged code for a device"):
        backends.of_code(b"autotune-grid-2\n").load(b"autotune-grid-2\n")


def test_code_that_names_an_array_that_it_does_not_have_is_damaged() -> None:
    x = GridArray("x", "float32", (64, 64), 16)
    of = TensorMap("m", "x", "float32", (64, 64), (64, 1), (8, 32), 128)
    code = GridCode("cuda", (x,), (), (), (Launch("k", (1, 1, 1), (1, 1, 1), ("x", "m")),), "", maps=(of,))
    assert GridCode.from_bytes(code.to_bytes()) == code
    for wrong in (replace(code, maps=()), replace(code, maps=(replace(of, array="y"),))):
        with pytest.raises(CompileError, match="a launch or a map names [my], which is no array"):
            GridCode.from_bytes(wrong.to_bytes())


# -- a backend of one file -----------------------------------------------------------------------------------


class Stub(Cpu):
    """A machine that runs the code of this CPU, and says so: nothing else knows of it."""

    name = "stub"

    def detect(self, threads: int | None = None) -> Target:
        return Target("stub", "one", threads=threads or 1)

    def runnable(self, target: Target) -> bool:
        return target.arch == "one"

    def confined(self, target: Target) -> Target:
        return target

    def build(self, dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
        return b"stub" + super().build(dag, trace, targets.detect(1))

    def source(self, dag: ComputeDAG, trace: Trace, target: Target) -> str:
        return super().source(dag, trace, targets.detect(1))

    def takes(self, code: bytes) -> bool:
        return code.startswith(b"stub")

    def load(self, code: bytes) -> Loaded:
        return super().load(code[4:])

    def clocked_by(self, target: Target) -> Target:
        return targets.detect(1)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    module: Any = ModuleType("autotune.backends.stub")
    module.BACKEND = Stub()
    monkeypatch.setitem(sys.modules, "autotune.backends.stub", module)
    monkeypatch.setattr(registry, "BACKENDS", ("stub", *registry.BACKENDS))
    yield module.BACKEND
    backends.named.cache_clear()


def test_a_new_backend_is_a_file_and_a_name(stub: Stub, tmp_path: Path) -> None:
    target = backends.parse("stub")
    assert backends.of(target) is stub and backends.runnable(target)
    c = case("add")
    kernel = at.build(at.Schedule(c.dag), "stub")
    np.testing.assert_array_equal(kernel(*c.inputs), c.expected[0])
    assert kernel.target == target and "define void @kernel" in kernel.source()
    with pytest.raises(TargetError, match="this CPU cannot run code for stub two"):
        backends.check_here(Target("stub", "two"))


# -- nobody else ---------------------------------------------------------------------------------------------


def kinds_asked(text: str) -> list[str]:
    """Comparisons of something with the name of a kind."""
    names = {backends.named(n).name for n in backends.BACKENDS} | {*backends.BACKENDS}
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        constants = [x.value for s in sides for x in ast.walk(s) if isinstance(x, ast.Constant)]
        if names & {x for x in constants if isinstance(x, str)}:
            found.append(ast.unparse(node))
    return found


@pytest.mark.slow
def test_no_other_module_asks_for_a_kind_by_name() -> None:
    """`schedules.model` says what a kind means to schedules. What else is listed asks something else."""
    others = {
        "autotune/backends/drivers/cuda.py": ["find_spec('cuda') is None"],  # a package of that name
        "autotune/models/torch_scope.py": ["val.device.type not in ('cpu', 'meta')"],  # torch's devices
        "autotune/models/inductor_pass.py": ["val.device.type != 'cpu'"],
    }
    for package in ("autotune", "schedules", "cost_model", "kernels_db"):
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if name.startswith("autotune/backends/") or name == "schedules/model.py":
                continue
            assert [x for x in kinds_asked(path.read_text()) if x not in others.get(name, [])] == [], name


def test_the_look_for_kinds_sees_them() -> None:
    for text in ('target.kind == "cpu"', 'kind not in ("cuda", "opencl")', '"cuda-emulator" != t.name'):
        assert kinds_asked(text) == [ast.unparse(ast.parse(text))]
    assert not kinds_asked("target.kind == other.kind") and not kinds_asked('device = "cuda"')


@pytest.mark.parametrize(
    ("choice", "usable", "found"),
    [
        ("auto", {"cuda", "pycuda"}, "cuda"),
        ("auto", {"pycuda"}, "pycuda"),
        ("pycuda", {"cuda", "pycuda"}, "pycuda"),
        ("cuda-python", {"pycuda"}, None),
        ("auto", set(), None),
    ],
)
def test_a_setting_chooses_the_binding(
    monkeypatch: pytest.MonkeyPatch, choice: str, usable: set[str], found: str | None
) -> None:
    monkeypatch.setenv("AUTOTUNE_CUDA_BINDING", choice)
    for module in (cuda, pycuda):
        own = module.__name__.rsplit(".", 1)[-1]
        monkeypatch.setattr(module, "available", lambda own=own: own in usable)
        monkeypatch.setattr(module, "device", lambda own=own: own)
    backend = backends.named("cuda")
    assert backend.available() is (found is not None)
    if found is not None:
        assert backend.device() == found


def test_a_binding_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_CUDA_BINDING", "rocm")
    with pytest.raises(SettingsError, match="AUTOTUNE_CUDA_BINDING is 'rocm'; it is one of auto, cuda-"):
        backends.named("cuda").available()


def test_emulation_needs_a_compiler() -> None:
    need_cxx()
    assert backends.named("emulator").available()
