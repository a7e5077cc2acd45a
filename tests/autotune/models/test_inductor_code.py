"""What torch.compile makes with ``at.torch.inductor``: right, ours where it wins, kept by torch."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inductor_cases import apart as apart
from inductor_cases import needs_tested
from torch_cases import F, torch

import autotune as at
from autotune.models import inductor
from autotune.models.inductor import InductorChoices
from autotune.run.kernels import default_kernel
from autotune.targets import detect
from schedules import te

nn = torch.nn
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # torch warns of its own ways
    needs_tested,
]
ALWAYS, NEVER = -1e9, 1.0  # shares that a kernel must save


@pytest.fixture
def plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the plain loops of everything."""
    monkeypatch.setattr(
        InductorChoices, "kernel", lambda self, task: default_kernel(task.workload, detect(threads=1))
    )


def compiled(
    module: Callable[..., Any], *inputs: Any, margin: float = ALWAYS, **options: Any
) -> tuple[Any, InductorChoices, str]:
    """(What it gives, the choices, the generated code)."""
    from torch._inductor.utils import run_and_get_code

    choices = at.torch.inductor()
    choices.margin = margin
    from torch._inductor import config

    with choices, config.patch(options), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = torch.compile(module, options={"fx_graph_cache": False})
        made, code = run_and_get_code(f, *inputs)
    return made, choices, code[-1]  # what comes before is of parts that were measured


def whole(*shape: int) -> Any:
    """Small whole numbers, so that sums are exact."""
    return torch.randint(-4, 5, shape).float()


def of_whole_numbers(module: Any) -> Any:
    """The same module with whole weights."""
    for p in module.parameters():
        p.data = whole(*p.shape)
    return module.eval()


class Turned(nn.Module):  # type: ignore[misc,name-defined]
    """A product whose result is turned into heads, and one that reads these."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 16), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.out(F.relu(self.into(x)).view(2, 6, 2, 8).transpose(1, 2))


class Residual(nn.Module):  # type: ignore[misc,name-defined]
    """Two convolutions and a residual, whose tensors between lie in channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, bias=False)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.second(F.relu(self.first(x))))


MODULES: dict[str, tuple[Callable[[], Any], tuple[tuple[int, ...], ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)), ((7, 12),)),
    "turned": (Turned, ((2, 6, 16),)),
    "residual": (Residual, ((2, 8, 9, 9),)),
}


@pytest.mark.usefixtures("plain_loops")
class TestCode:
    """Results are those of torch, whoever computes them."""

    @pytest.mark.parametrize("name", MODULES)
    @pytest.mark.parametrize("freezing", [False, True])
    def test_kernels_are_called_and_right(self, name: str, freezing: bool) -> None:
        make, shapes = MODULES[name]
        module, inputs = of_whole_numbers(make()), [whole(*s) for s in shapes]
        with torch.no_grad():
            made, choices, code = compiled(module, *inputs, freezing=freezing, max_autotune=freezing)
            expected = module(*inputs)
        assert torch.equal(made, expected) and made.stride() == expected.stride()
        taken = sum(c.taken for c in choices.choices)
        packed_by_torch = freezing and name == "residual"  # convolutions, which have no choice then
        assert code.count("autotune_kernel('") == taken == (0 if packed_by_torch else 2)

    def test_what_does_not_win_is_not_called(self) -> None:
        module, x = of_whole_numbers(nn.Sequential(nn.Linear(12, 16), nn.ReLU())), whole(7, 12)
        with torch.no_grad():
            made, choices, code = compiled(module, x, margin=NEVER)
            torch.compiler.reset()
            _, _, taken = compiled(module, x, margin=ALWAYS)
        (one,) = choices.choices
        assert torch.equal(made, module(x)) and "autotune_" not in code and "addmm(" in code
        assert not one.taken and one.ours_ms and one.inductor_ms and "Inductor taken (autotune " in str(one)
        assert "autotune_" in taken and "addmm(" not in taken

    def test_where_inductor_wins_its_code_stays(self) -> None:
        """Plain loops of a large product are many times slower than Inductor's."""
        x, y = whole(256, 256), whole(256, 256)
        _, choices, code = compiled(torch.mm, x, y, margin=inductor.MARGIN)
        (one,) = choices.choices
        assert one.ours_ms is not None and one.inductor_ms is not None
        assert one.ours_ms > one.inductor_ms and not one.taken and "autotune_" not in code

    def test_a_kernel_with_another_result_is_not_taken(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        a, b = te.placeholder((6, 8), "float32", "a"), te.placeholder((8, 10), "float32", "b")
        k = te.reduce_axis(8, "k")
        c = te.compute((6, 10), lambda i, j: te.sum(a[i, k] * b[k, j] * 1.01, axis=k), "c")
        wrong = _plain([a, b, c])
        monkeypatch.setattr(InductorChoices, "kernel", lambda self, task: wrong)
        x, y = whole(6, 8), whole(8, 10)
        with caplog.at_level(logging.WARNING):
            made, choices, code = compiled(torch.mm, x, y)
        assert torch.equal(made, x @ y) and "autotune_" not in code
        assert "gave another result than Inductor, and is not used" in caplog.text
        assert not choices.choices[0].taken

    def test_gradients_are_those_of_torch(self) -> None:
        w, x = whole(8, 5).requires_grad_(), whole(6, 8).requires_grad_()
        made, choices, _ = compiled(lambda w, x: torch.relu(x @ w), w, x)
        made.sum().backward()
        got = w.grad, x.grad
        w.grad = x.grad = None
        torch.relu(x @ w).sum().backward()
        assert torch.equal(got[0], w.grad) and torch.equal(got[1], x.grad)
        assert choices.choices[0].taken

    @pytest.mark.parametrize(
        ("x", "why"),
        [
            (
                torch.ones(6, 8, dtype=torch.bfloat16),
                "it has torch.bfloat16, whose",
            ),
            (torch.ones(6, 8, dtype=torch.float16), "it has torch.float16, whose"),
            (torch.ones(0, 8), "it has a tensor without elements"),
            (torch.ones(6, 16)[:, ::2], "an input is a part of a larger tensor"),
        ],
    )
    def test_what_is_no_plain_tensor_is_left_to_inductor(self, x: Any, why: str) -> None:
        y = torch.ones(8, 10, dtype=x.dtype)
        made, choices, code = compiled(torch.mm, x, y)
        assert torch.equal(made, x @ y) and "autotune_" not in code
        assert [c.why[: len(why)] for c in choices.choices] == [why]

    def test_a_transposed_input_has_a_kernel(self) -> None:
        x, y = whole(8, 6).t(), whole(8, 10)
        made, choices, _ = compiled(torch.mm, x, y)
        assert torch.equal(made, x @ y) and choices.choices[0].taken

    @pytest.mark.parametrize("where", ["inductor_pass.clusters", "inductor_lowering.task_of"])
    def test_a_failure_of_ours_does_not_break_compilation(
        self, where: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*given: Any) -> None:
            raise ZeroDivisionError("by design")

        x, y = whole(6, 8), whole(8, 10)
        import autotune.models.inductor_lowering
        import autotune.models.inductor_pass  # noqa: F401

        monkeypatch.setattr(f"autotune.models.{where}", fail)
        with at.torch.inductor() as choices, pytest.warns(UserWarning, match="Zero.*by design") as told:
            made = torch.compile(torch.mm, options={"fx_graph_cache": False})(x, y)
        assert torch.equal(made, x @ y) and not any(c.taken for c in choices.choices)
        assert len([w for w in told if "Inductor chooses alone where it did" in str(w.message)]) == 1

    def test_the_last_of_several_that_are_on_offers_kernels(self) -> None:
        x, y = whole(6, 8), whole(8, 10)
        with at.torch.inductor() as outer:
            made, inner, _ = compiled(torch.mm, x, y)
        assert torch.equal(made, x @ y) and outer.choices == () and len(inner.choices) == 1

    def test_max_autotune(self) -> None:
        x, y = whole(32, 64), whole(64, 48)
        choices = at.torch.inductor()
        choices.margin = ALWAYS
        with choices:
            made = torch.compile(torch.mm, mode="max-autotune")(x, y)
        assert torch.equal(made, x @ y) and choices.choices[0].taken

    def test_two_threads_compile(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        x, y = whole(6, 8), whole(8, 10)
        fs = (lambda x, y: torch.mm(x, y) + 1, lambda x, y: torch.relu(torch.mm(x, y)))
        choices = at.torch.inductor()
        choices.margin = ALWAYS
        with choices, ThreadPoolExecutor(2) as pool:
            made = list(pool.map(lambda f: torch.compile(f)(x, y), fs))
        assert all(torch.equal(m, f(x, y)) for m, f in zip(made, fs, strict=True))

    def test_sizes_that_vary_are_left_to_inductor(self) -> None:
        choices = at.torch.inductor()
        x, y = whole(6, 8), whole(8, 10)
        with choices:
            f = torch.compile(torch.mm, dynamic=True)
            assert torch.equal(f(x, y), x @ y)
        assert [c.why for c in choices.choices] == ["its sizes vary"]

    def test_code_without_python_is_left_to_inductor(self) -> None:
        from torch._inductor import config

        from autotune.models import inductor_pass

        graph = torch.fx.symbolic_trace(lambda x, y: torch.mm(x, y)).graph
        before = str(graph)
        choices = at.torch.inductor()
        with choices, config.patch(cpp_wrapper=True):
            with pytest.warns(UserWarning, match="offers Inductor no kernels for code without Python"):
                inductor_pass.passes()[-1](graph)
        assert str(graph) == before and choices.choices == ()


def _plain(tensors: Any) -> Any:
    from schedules.model import Workload

    return default_kernel(Workload(te.dag(tensors)), detect(threads=1))


class TestLog:
    """What the log has, and short runs."""

    def test_without_a_kernel_in_the_log_inductor_chooses_alone(self) -> None:
        x, y = whole(6, 8), whole(8, 10)
        made, choices, code = compiled(torch.mm, x, y)
        assert torch.equal(made, x @ y) and "autotune_" not in code
        assert str(choices) == "mm: Inductor alone: the log has no kernel of it"

    def test_a_run_comes_first_once(self) -> None:
        x, y = torch.rand(32, 48), torch.rand(48, 16)
        for tune in (10, None):
            torch.compiler.reset()
            choices = at.torch.inductor(tune=tune)
            choices.margin = ALWAYS
            with choices:
                made = torch.compile(torch.mm, options={"fx_graph_cache": False})(x, y)
            torch.testing.assert_close(made, x @ y)
            assert choices.choices[0].taken

    def test_a_second_process_neither_tunes_nor_measures(self, tmp_path: Path) -> None:
        file = tmp_path / "process.py"
        file.write_text(PROCESS)
        first, second = (
            json.loads(subprocess.check_output([sys.executable, str(file)], text=True).splitlines()[-1])
            for _ in range(2)
        )
        assert first == {"right": True, "hits": 0, "measured": True, "chosen": [True], "tuned": True}
        assert second == {"right": True, "hits": 1, "measured": False, "chosen": [], "tuned": False}


PROCESS = """
import json, sys
import torch
from torch._dynamo.utils import counters
from torch._inductor.runtime.benchmarking import benchmarker
import autotune as at

torch.set_num_threads(1)
plain, calls = benchmarker.benchmark, []
benchmarker.benchmark = lambda *given, **named: calls.append(1) or plain(*given, **named)
torch.manual_seed(0)
x, y = torch.rand(32, 48), torch.rand(48, 16)
choices = at.torch.inductor(tune=15)
choices.margin = -1e9
with choices:
    made = torch.compile(torch.mm)(x, y)
print(json.dumps({
    "right": torch.allclose(made, x @ y), "hits": counters["inductor"]["fxgraph_cache_hit"],
    "measured": bool(calls), "chosen": [c.taken for c in choices.choices],
    "tuned": "autotune.tuning.tuner" in sys.modules,
}))
"""


class TestPackages:
    """torch.export and AOTInductor with operators of kernels."""

    def test_a_package_needs_its_operators(self, tmp_path: Path) -> None:
        kernel = _plain_product()
        op: Any = at.torch.op(kernel)
        x, y = whole(6, 8), whole(8, 10)

        class Model(nn.Module):  # type: ignore[misc,name-defined]
            def forward(self, x: Any, y: Any) -> Any:
                return torch.relu(op(x, y))

        exported = torch.export.export(Model(), (x, y))
        package, program = tmp_path / "model.pt2", tmp_path / "program.pt2"
        torch._inductor.aoti_compile_and_package(exported, package_path=str(package))
        torch.export.save(exported, str(program))
        (tmp_path / "kernel.pkl").write_bytes(pickle.dumps(kernel))
        torch.save((x, y), tmp_path / "inputs.pt")
        file = tmp_path / "loads.py"
        file.write_text(LOADS)
        lines = subprocess.check_output([sys.executable, str(file), str(tmp_path)], text=True).splitlines()
        assert lines[-3:] == [
            "Could not find schema for autotune::" + op.name().split("::")[1] + ".",
            "True",
            "True",
        ]


def _plain_product() -> Any:
    a, b = te.placeholder((6, 8), "float32", "a"), te.placeholder((8, 10), "float32", "b")
    k = te.reduce_axis(8, "k")
    return _plain([a, b, te.compute((6, 10), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")])


LOADS = """
import pickle, sys
from pathlib import Path
import torch
import autotune as at

here = Path(sys.argv[1])
x, y = torch.load(here / "inputs.pt")
try:
    torch._inductor.aoti_load_package(str(here / "model.pt2"))(x, y)
except RuntimeError as err:
    print(str(err).splitlines()[0])
at.torch.op(pickle.loads((here / "kernel.pkl").read_bytes()))
for f in (torch._inductor.aoti_load_package(str(here / "model.pt2")),
          torch.export.load(str(here / "program.pt2")).module()):
    print(torch.equal(f(x, y), torch.relu(x @ y)))
"""
