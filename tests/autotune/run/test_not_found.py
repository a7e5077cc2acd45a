"""What is said where a log has no kernel: what it has instead, and remedies that the caller really has."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import run
from log_filler import fill, host
from model_cases import graph_of, layers, model_of

import autotune as at
from autotune import targets
from autotune.errors import KernelNotFound
from schedules import te

SHAPE = {"m": 8, "n": 12, "k": 4}
WORDS = ("--shape", "m=8,n=12,k=4")


@pytest.fixture
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "usable_cpus", lambda: 2)
    monkeypatch.setattr(targets.cpus, "usable_cpus", lambda: 2)


def refused(db: Path, **wanted: int) -> str:
    with pytest.raises(KernelNotFound) as caught:
        at.load("matmul", **SHAPE, db=db, **wanted)
    return str(caught.value)


@pytest.mark.usefixtures("two_cpus")
def test_a_kernel_of_another_number_of_threads_is_offered(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    fill(db, [("matmul", SHAPE, 1e-4)])
    text = refused(db, threads=2)
    assert "\ntake that: threads=1, on the command line --threads 1\n" in text
    assert "similar machine" not in text


def test_a_kernel_of_another_machine_is_offered(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    fill(db, [("matmul", SHAPE, 1e-4)], replace(host(), arch="x86-64", features=host().features[:2]))
    text = refused(db, threads=1)
    assert "\ntry that of the most similar machine: nearest=True, or autotune best --nearest\n" in text
    assert "take that" not in text


def test_a_log_that_is_not_there_is_told_from_one_that_lacks_the_kernel(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    assert f"in {db}, which does not exist\n" in refused(db)
    fill(db, [("matmul", {"m": 9, "n": 9, "k": 9}, 1e-4)])
    assert "does not exist" not in refused(db)


@pytest.mark.slow
def test_who_asked_for_it_is_not_told_to(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        at.load("matmul", **SHAPE, db=tmp_path / "none.db", fallback=True, threads=1)
    (text,) = [str(w.message) for w in said]
    assert "tune it first: autotune tune matmul" in text and "fallback=True" not in text
    assert "fallback=True" in refused(tmp_path / "none.db")


def test_the_remedy_is_for_the_target_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(KernelNotFound) as caught:
        at.load("matmul", **SHAPE, db=tmp_path / "t.db", target="h100-emulator")
    text = str(caught.value)
    assert " for h100-emulator in " in text and "this machine" not in text
    assert "autotune tune matmul" in text and " --target h100-emulator --db " in text
    fill(tmp_path / "t.db", [("matmul", {"m": 9, "n": 9, "k": 9}, 1e-4)])
    for command in ("best", "report"):
        ran = run(command, "matmul", *WORDS, "--target", "h100-emulator", "--db", tmp_path / "t.db")
        assert ran.status == 1 and " --target h100-emulator --db " in ran.err, ran.err


def test_commands_name_no_arguments_of_calls(tmp_path: Path) -> None:
    for command in ("best", "bench", "explain"):
        ran = run(command, "matmul", *WORDS, "--db", tmp_path / "t.db")
        assert ran.status == 1 and "tune it first: autotune tune matmul" in ran.err, ran.err
        assert "fallback" not in ran.err
    ran = run("export", "matmul", *WORDS, "--db", tmp_path / "t.db", tmp_path / "made")
    assert ran.status == 1 and ran.err.rstrip().endswith("or take a schedule that is not tuned: --fallback")
    assert "fallback=True" not in ran.err


def test_the_error_can_be_copied_and_pickled() -> None:
    error = KernelNotFound("nothing", "try this")
    assert str(error) == "nothing\ntry this" and error.message == "nothing"
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert str(again) == str(error)


@pytest.mark.slow
@pytest.mark.usefixtures("two_cpus")
def test_a_model_that_was_tuned_for_other_threads_says_so(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    graph, _ = layers(1)
    model = model_of(graph)
    at.tune_model(model, threads=1, trials=0, budget_s=8, db=db, progress=None)
    with pytest.raises(KernelNotFound) as caught:
        at.compile_model(model, threads=2, db=db)
    text = str(caught.value)
    assert f"for this machine with 2 threads in {db}:" in text
    assert f"not tuned; stored: cpu {host().arch}, 1 thread\n" in text
    assert "tune them: autotune.tune_model(model, threads=2); or allow" in text
    with pytest.warns(UserWarning, match=r"tune them: autotune\.tune_model\(model, threads=2\)$") as said:
        at.compile_model(model, threads=2, db=db, fallback=True)
    assert said[0].filename == __file__


def test_a_model_of_which_nothing_is_stored_says_no_more(tmp_path: Path) -> None:
    with pytest.raises(KernelNotFound) as caught:
        at.compile_model(model_of(layers(1)[0]), threads=1, db=tmp_path / "t.db")
    assert [line.split(": ")[-1] for line in str(caught.value).splitlines()[1:-1]] == ["not tuned"]


def test_of_many_tasks_that_lack_the_same_the_first_ones_are_named(tmp_path: Path) -> None:
    xs = [te.placeholder((n,), name=f"x{n}") for n in range(2, 13)]
    ys = [te.compute(x.shape, lambda i, x=x: x[i] * 2.0, f"twice_{x.name}") for x in xs]
    with pytest.raises(KernelNotFound) as caught:
        at.compile_model(model_of(graph_of([*xs, *ys], {})), threads=1, db=tmp_path / "t.db")
    first, *lines, remedy = str(caught.value).splitlines()
    assert first.startswith("11 of 11 tasks") and remedy.startswith("tune them")
    assert len(lines) == 9 and lines[-1] == "  3 more: not tuned"


def test_a_model_for_a_device_names_it_in_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(KernelNotFound, match=r"autotune\.tune_model\(model, target='cuda-emulator'"):
        at.compile_model(model_of(layers(1)[0]), target="cuda-emulator", db=tmp_path / "t.db")


def test_a_module_is_no_model() -> None:
    for call in (at.tune_model, at.compile_model):
        with pytest.raises(at.ModelError, match=r"^the model is a list, not a Model: .*import_torch\(module"):
            call([1.0] * 1000)  # type: ignore[arg-type]


def test_without_torch_its_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(at.MissingExtraError, match=r"torch\.op needs torch, .*'autotune-compiler\[torch\]'"):
        at.torch.op(None)  # type: ignore[arg-type]
