"""``autotune train`` and ``autotune evaluate`` on small logs."""

from __future__ import annotations

import builtins
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run
from learnable_logs import SIZES, fill
from needs import imported

from autotune.cli import train
from autotune.errors import MissingExtraError
from autotune.tuning.measured import Learnable, of_places
from cost_model import evaluation, training
from cost_model.saved import read


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("logs") / "a.db", SIZES[:3], n=20)


@pytest.fixture(scope="module")
def learnable(log: Path) -> Learnable:
    return of_places([str(log)])


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "TREES", 10)
    monkeypatch.setattr(training, "MORE_TREES", 5)
    monkeypatch.setattr(training, "FOREST", training.FOREST | {"n_estimators": 20})
    monkeypatch.setattr(training, "HIST", training.HIST | {"max_iter": 10})
    monkeypatch.setattr(evaluation, "REPEATS", 1)


@pytest.mark.slow
def test_train_writes_a_model_and_says_of_what(log: Path, tmp_path: Path, learnable: Learnable) -> None:
    out = tmp_path / "m.json"
    done = run("train", log, "--out", out)
    assert done.status == 0 and "XGBoost after the shipped model for cpus" in done.out
    assert "60 candidates of 3 tasks (3 workloads); the logs have 60" in done.out
    assert f"--cost-model {out}" in done.out
    assert "training XGBoost after the shipped model on 60 candidates" in done.err
    model = read(out)
    assert model.tasks == set(learnable.workloads) and str(tmp_path) not in out.read_text()
    again = run("train", "--db", log, "--out", out, "--json")
    assert again.status == 0 and not again.err
    assert again.json["digest"] == model.digest and again.json["tasks"] == 3 and again.json["seed"] == 0
    assert again.json["bytes"] == out.stat().st_size and again.json["candidates_in_logs"] == 60


@pytest.mark.slow
def test_on_a_terminal_it_says_how_far_it_is_and_clears_the_line(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    train.read([str(log)], quiet=False)
    said = capsys.readouterr()
    assert said.out == "" and said.err.endswith("\rreading task 3 of 3 \r\033[K")
    train.read([str(log)], quiet=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_train_reads_several_logs_and_makes_a_forest(log: Path, tmp_path: Path) -> None:
    imported("sklearn")
    other = fill(tmp_path / "b.db", SIZES[3:], n=20)
    done = run("train", log, other, "-o", tmp_path / "m.json", "--model", "forest", "--json")
    assert done.status == 0 and done.json["workloads"] == 4 and read(tmp_path / "m.json").learner == "forest"


@pytest.mark.slow
def test_evaluate_judges_by_folds(log: Path) -> None:
    imported("sklearn")
    done = run("evaluate", log, "--json")
    assert done.status == 0, done.out
    found = done.json
    assert found["folds"] == 3 and len(found["tasks"]) == 3 and found["read"]["candidates"] == 60
    names = ["shipped", "estimate alone", *evaluation.TRAINED.values()]
    assert list(found["models"]) == names
    for model in found["models"].values():
        assert 0 <= model["worst_task"] <= model["pairwise"] <= 1 and 0 < model["top1"] <= model["top8"] <= 1
    assert found["importance"][0]["mean"] >= found["importance"][1]["mean"]
    mean = sum(t["pairwise"]["shipped"] for t in found["tasks"]) / 3
    assert found["models"]["shipped"]["pairwise"] == pytest.approx(mean)


@pytest.mark.slow
def test_evaluate_judges_a_file_on_what_it_has_not_seen(log: Path, tmp_path: Path) -> None:
    imported("sklearn")
    some = fill(tmp_path / "some.db", SIZES[:1], n=20)
    model = tmp_path / "m.json"
    assert run("train", some, "--out", model).status == 0
    done = run("evaluate", log, "--cost-model", model)
    assert done.status == 0, done.err
    assert "note: the file has learnt from 1 tasks, which are left out: 2 are judged" in done.out
    rows = [line.split()[0] for line in done.out.splitlines()]
    assert {"shipped", "estimate", "file"} <= set(rows) and "pairwise" in done.out
    seen = run("evaluate", some, "--cost-model", model, "--json").json
    assert seen["notes"] == ["the file has learnt from all of these tasks: its figures say nothing of others"]
    assert len(seen["tasks"]) == 1 and seen["folds"] == 0


def without_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no(name: str, *rest: Any, **named: Any) -> Any:
        if name.split(".")[0] == "sklearn":
            raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", no)


@pytest.mark.slow
def test_without_the_extra_its_command_is_told(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_sklearn(monkeypatch)
    install = "pip install 'autotune-compiler[train]'"
    for words in (("evaluate", log), ("train", log, "--model", "hist", "--out", tmp_path / "m.json")):
        done = run(*words)
        assert done.status == 2 and install in done.err and "No module named 'sklearn'" in done.err
        assert f"autotune {words[0]}" in done.err
    assert not (tmp_path / "m.json").exists()
    assert issubclass(MissingExtraError, ImportError)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "xgb").write_text("a file of that name")
    assert run("evaluate", log, "--cost-model", "xgb", "--json").json["models"].keys() == {
        "shipped", "estimate alone"
    }  # fmt: skip
    assert run("train", log, "--out", tmp_path / "m.json").status == 0, "XGBoost needs no extra"


def test_mistakes_are_told_before_logs_are_read(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.tuning.measured.of_places", None)
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({"kind": "trained"}))
    for words, said in (
        (("train", log, "--out", tmp_path), "is a directory"),
        (("train", log, "--out", tmp_path / "no" / "m.json"), f"there is no directory {tmp_path / 'no'}"),
        (("train", log, "--model", "xbg"), "did you mean 'xgb'"),
        (("train", log, "--db", log), "give logs as arguments or --db, not both"),
        (("evaluate", log, "--cost-model", bad), "has version None and not 1"),
        (("evaluate", log, "--cost-model", "blend"), "'blend' is not one of xgb, analytic"),
        (("tune", "matmul", "--shape", "m=8,n=8,k=8", "--cost-model", bad), "has version None and not 1"),
        (("tune", "matmul", "--shape", "m=8,n=8,k=8", "--model", "xbg"), "did you mean 'xgb'"),
    ):
        done = run(*words)
        assert done.status == 2 and said in done.err, (words, done.err)


def test_a_directory_that_cannot_be_written_is_told_before_the_training(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.tuning.measured.of_places", None)
    monkeypatch.setattr("os.access", lambda place, mode: False)
    done = run("train", log, "--out", tmp_path / "m.json")
    assert done.status == 2 and f"--out {tmp_path / 'm.json'}: the directory cannot be written" in done.err


def test_a_model_takes_the_place_of_no_log_and_no_device(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.tuning.measured.of_places", None)
    before, link, pipe = log.read_bytes(), tmp_path / "link.json", tmp_path / "pipe"
    link.symlink_to(log)
    os.mkfifo(pipe)
    for out, said in (
        (log, f"{log} is a database and would be overwritten"),
        (link, f"{link} is a database and would be overwritten"),
        (Path(f"{log}-wal"), "is a file of the database"),
        (pipe, f"{pipe} is no regular file and would be replaced"),
    ):
        done = run("train", log, "--out", out)
        assert done.status == 2 and said in done.err, done.err
    assert log.read_bytes() == before and link.is_symlink() and pipe.is_fifo()


def test_logs_that_are_missing_are_named(tmp_path: Path) -> None:
    done = run("train", tmp_path / "none.db", "--out", tmp_path / "m.json")
    assert done.status == 2 and "there is no tuning log at" in done.err and "none.db" in done.err
    assert not (tmp_path / "m.json").exists()
