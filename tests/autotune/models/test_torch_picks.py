"""First picks of graphs of torch.compile: limited in time, in the background, shown where people look."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fake_clock
import pytest
from torch_cases import exported, torch

import autotune as at
from autotune.errors import ModelError
from autotune.models import compiling, torch_backend
from autotune.models.module import Module
from autotune.results import following
from autotune.run import untuned
from autotune.run.kernels import default_kernel
from autotune.targets import usable_cpus
from schedules.model import Target, Workload

nn = torch.nn
PICK_S = 4.0


class Picks:
    """First picks that are the plain loops, and take `PICK_S` of a clock that only they move."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = fake_clock.Clock()
        self.made: dict[str, Target] = {}
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        patch.setattr(untuned, "untuned", self._untuned)
        patch.setattr(untuned, "is_kept", lambda workload, target, where: workload.digest in self.made)
        for module in (compiling, torch_backend):
            patch.setattr(module, "time", self.clock)

    def _untuned(self, workload: Workload, target: Target, where: str) -> untuned.PickedKernel:
        if workload.digest not in self.made:
            assert self.may_go_on.wait(60)
            self.clock.sleep(PICK_S)
            self.made[workload.digest] = target
        return untuned.PickedKernel(default_kernel(workload, target), "")


@pytest.fixture
def picks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Picks]:
    """A log and a cache of the test's own, and no graphs of other tests."""
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "log.db"))
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    torch_backend._graphs.clear()
    yield Picks(monkeypatch)
    torch.compiler.reset()


class Net(nn.Module):  # type: ignore[misc,name-defined]
    """Three kernels: two products and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.second(torch.softmax(self.first(x), -1))


def compiled(module: Any, **options: Any) -> Callable[..., Any]:
    return torch.compile(module.eval(), backend=torch_backend.backend, options=options)  # type: ignore[no-any-return]


def called(f: Callable[..., Any], module: Any, x: Any) -> list[str]:
    """What a call warns of; its result is torch's."""
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.testing.assert_close(f(x), module(x), rtol=1e-5, atol=1e-5)
    return [str(w.message) for w in said if "torch.compile" in str(w.message) or "tuned" in str(w.message)]


@pytest.mark.slow
def test_picks_that_take_too_long_leave_the_graph_to_torch_for_good(picks: Picks) -> None:
    module, x = Net(), torch.randn(3, 6)
    f = compiled(module, threads=1, limit_s=1.5 * PICK_S)
    [told] = called(f, module, x)
    assert "runs as torch runs it: 2 of 3 kernels that are not tuned were chosen, which took 6 s" in told
    assert "autotune.tune_model(" in told and '{"limit_s": 300}' in told and '{"background": True}' in told
    assert called(f, module, x) == [] and at.torch.modules() == [] and len(picks.made) == 2
    torch.compiler.reset()  # the next process goes on with what was kept
    [told] = called(compiled(module, threads=1, limit_s=1.5 * PICK_S), module, x)
    assert "3 of 3 tasks run kernels that are not tuned" in told and len(at.torch.modules()) == 1


@pytest.mark.slow
def test_there_is_a_limit_by_default_and_none_where_it_must_compile(
    picks: Picks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_backend, "LIMIT_S", 0.5 * PICK_S)
    module, x = Net(), torch.randn(3, 6)
    [told] = called(compiled(module, threads=1), module, x)
    assert "runs as torch runs it" in told
    torch.compiler.reset()
    [told] = called(compiled(module, threads=1, strict=True), module, x)
    assert "3 of 3 tasks run kernels that are not tuned" in told
    picks.made.clear()
    torch.compiler.reset()
    with torch.no_grad(), pytest.raises(ModelError, match="were chosen, which took 2 s"):
        compiled(module, threads=1, strict=True, limit_s=0.5 * PICK_S)(x)


@pytest.mark.slow
def test_other_sizes_have_a_limit_of_their_own(picks: Picks) -> None:
    """Tuned for one batch, called with another."""
    module = Net()
    f = compiled(module, threads=1, limit_s=10 * PICK_S)
    called(f, module, torch.randn(1, 6))
    before = len(picks.made)
    f = compiled(module, threads=1, limit_s=0.5 * PICK_S)
    [told] = called(f, module, torch.randn(2, 6))
    assert "1 of 3 kernels" in told and len(picks.made) == before + 1
    assert called(f, module, torch.randn(2, 6)) == []
    torch.compiler.reset()
    assert called(compiled(module, threads=1, limit_s=0), module, torch.randn(1, 6))[0].startswith("3 of 3")


@pytest.mark.slow
def test_picks_in_the_background_run_beside_torch(picks: Picks) -> None:
    module, x = Net(), torch.randn(3, 6)
    f = compiled(module, threads=1, background=True)
    picks.may_go_on.clear()
    [told] = called(f, module, x)
    assert "runs as torch runs it: 3 kernels are chosen in the background" in told
    assert "autotune.tune_model(" in told
    assert called(f, module, x) == [] and not picks.made and at.torch.modules() == []
    [graph] = [g for r in torch_backend._graphs if (g := r()) is not None]
    [thread] = graph.picking.values()
    picks.may_go_on.set()
    thread.join(60)
    assert len(picks.made) == 3
    [told] = called(f, module, x)
    assert "3 of 3 tasks run kernels that are not tuned" in told and len(at.torch.modules()) == 1
    assert called(f, module, x) == []


@pytest.mark.slow
def test_a_tuned_graph_needs_no_background(picks: Picks) -> None:
    module, x = Net(), torch.randn(3, 6)
    at.tune_model(at.import_torch(exported(module.eval(), x)), threads=1, trials=1, progress=None)
    assert called(compiled(module, threads=1, background=True, limit_s=0), module, x) == []
    assert len(at.torch.modules()) == 1 and not picks.made


# -- what is shown ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("live", "options", "shown"), [(True, {}, True), (False, {}, False), (True, {"progress": False}, False)]
)
def test_picks_are_shown_in_a_terminal_alone(
    picks: Picks, monkeypatch: pytest.MonkeyPatch, live: bool, options: dict[str, Any], shown: bool
) -> None:
    lines: list[str] = []

    @contextlib.contextmanager
    def display(quiet: bool = False) -> Iterator[Any]:
        yield lambda state: None if quiet else lines.append(state().text)

    monkeypatch.setattr(following, "display", display)
    monkeypatch.setattr(following, "live", lambda: live)
    module, x = Net(), torch.randn(3, 6)
    called(compiled(module, threads=1, **options), module, x)
    numbers = [f"choosing kernel {n} of 3: " for n in (1, 2, 3)]
    assert [a.startswith(b) for a, b in zip(lines, numbers, strict=shown)] == [True] * (3 * shown)
    lines.clear()
    model = at.import_torch(exported(Net().eval(), torch.randn(7, 6)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        at.compile_model(model, threads=1, fallback=True, progress=None)
        assert lines == []


# -- threads ---------------------------------------------------------------------------------------


def tuned(module: Any, x: Any, threads: int) -> Any:
    model = at.import_torch(exported(module.eval(), x))
    at.tune_model(model, threads=threads, trials=1, progress=None)
    return model


@pytest.mark.slow
@pytest.mark.skipif(usable_cpus() < 2, reason="needs two CPUs")
def test_kernels_of_any_number_of_threads_are_taken_where_none_is_given(picks: Picks) -> None:
    module, x = Net(), torch.randn(3, 6)
    model = tuned(module, x, 1)
    net = at.compile_model(model)
    assert net.target.threads == 1 and repr(net).endswith(" x1>") and not picks.made
    with pytest.raises(at.KernelNotFound, match=r"with 2 threads(.|\n)*1 thread"):
        at.compile_model(model, threads=2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert called(compiled(module), module, x) == []
        [made] = at.torch.modules()
        assert repr(made).endswith(" x1>") and not picks.made
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.skipif(usable_cpus() < 2, reason="needs two CPUs")
def test_torch_has_no_more_threads_than_it_says(picks: Picks) -> None:
    module, x = Net(), torch.randn(3, 6)
    model = tuned(module, x, 2)
    assert repr(at.compile_model(model)).endswith(" x2>")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        [told] = called(compiled(module), module, x)
        assert "3 of 3 tasks" in told and {t.threads for t in picks.made.values()} == {1}
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.skipif(usable_cpus() < 2, reason="needs two CPUs")
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_missing_takes_as_many_threads_as_the_rest(picks: Picks, count: int, tmp_path: Path) -> None:
    """A part of the model is tuned, as after a short budget."""
    module, x = Net(), torch.randn(3, 6)
    first = nn.Sequential(module.first)
    tuned(first, x, count)
    model = at.import_torch(exported(module.eval(), x))
    with pytest.warns(UserWarning, match="not tuned"):
        net = at.compile_model(model, fallback=True)
    assert {t.threads for t in picks.made.values()} == {count}
    assert net.target.threads == count and repr(net).endswith(f" x{count}>")
    net.save(tmp_path / "net")
    assert repr(at.load_model(tmp_path / "net")).endswith(f" x{count}>")


def test_a_repr_names_each_number_of_threads() -> None:
    def named(numbers: Sequence[int]) -> str:
        net = object.__new__(Module)
        kernels = [type("K", (), {"target": type("T", (), {"threads": n})}) for n in numbers]
        net._programs = (type("P", (), {"kernels": kernels}),)  # type: ignore[assignment]
        return net._threads

    assert [named(n) for n in ((1, 1), (2, 1, 2))] == ["x1", "x1 and x2"]
