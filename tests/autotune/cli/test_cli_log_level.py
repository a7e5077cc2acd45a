"""``--log-level``: where it may stand, what it goes over, and what debug says."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from cli_runner import run
from log_cases import copy_of
from typer.main import get_command

import autotune
from autotune import cli
from autotune.cli import completion, export, verbosity
from autotune.cli.app import app
from autotune.settings import LOG_LEVELS
from autotune.tuning import diagnostics


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Levels of loggers are the process's: other tests get theirs back."""
    before = {name: logging.getLogger(name).level for name in verbosity.PACKAGES}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def level() -> str:
    (found,) = {logging.getLogger(name).level for name in verbosity.PACKAGES}
    return logging.getLevelName(found).lower()


def test_it_stands_before_or_after_a_command_and_the_last_one_counts() -> None:
    for words, expected in (
        (("ops",), "warning"),
        (("--log-level", "debug", "ops"), "debug"),
        (("ops", "--log-level", "info"), "info"),
        (("ops", "matmul", "--log-level=error"), "error"),
        (("ops", "--log-level", "DEBUG"), "debug"),
        (("--log-level", "debug", "ops", "--log-level", "error"), "error"),
        (("log", "--log-level", "info", "stats", "--db", "/nonexistent/x.db"), "info"),
        (("log", "stats", "--db", "/nonexistent/x.db", "--log-level", "error"), "error"),
    ):
        run(*words)
        assert level() == expected, words


def test_it_goes_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_LOG_LEVEL", "error")
    for words, expected in (
        (("ops",), "error"),
        (("ops", "--log-level", "debug"), "debug"),
        (("--log-level", "info", "ops"), "info"),
    ):
        assert run(*words).status == 0 and level() == expected, words


@pytest.mark.parametrize("words", [("--log-level", "loud", "ops"), ("ops", "--log-level", "loud")])
def test_a_level_that_there_is_not_is_named(words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert ran.status == 2 and ran.out == ""
    assert "--log-level 'loud' is not one of debug, info, warning, error" in ran.err


def test_every_command_has_it_once() -> None:
    def below(command: Any) -> Iterator[Any]:
        yield command
        for c in getattr(command, "commands", {}).values():
            yield from below(c)

    found = list(below(get_command(app)))
    assert len(found) > 15
    for command in found:
        assert sum(verbosity.OPTION in p.opts for p in command.params) == 1, command.name


def test_shells_complete_it_and_go_on_behind_it() -> None:
    command = get_command(app)
    assert completion.answer(command, "autotune tune matmul --log-level ") == list(LOG_LEVELS)
    assert completion.answer(command, "autotune --log-level debug log ver") == ["verify"]


def told(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autotune", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=True, env={**os.environ, **environment}
    )


@pytest.mark.slow
def test_debug_says_what_goes_on_and_leaves_stdout_alone(tmp_path: Path) -> None:
    tune = (
        "tune",
        "matmul",
        "--shape",
        "m=32,n=32,k=32",
        "--threads",
        1,
        "--trials",
        20,
        "--model",
        "analytic",
    )
    more = ("--budget", "60s", "--db", tmp_path / "t.db", "--json")
    done = told(*tune, *more, "--log-level", "debug")
    assert json.loads(done.stdout)["best"]
    for said in (
        "autotune: DEBUG: space of matmul: ",
        " configurations, derived in ",
        "earlier runs of matmul: 0 trials, 0 to learn from, best none yet",
        "search of matmul: evolutionary with the model analytic, ",
        "measuring process ",
        "builder process ",
        "worker process ",
        "round 1 of matmul: ",
        "AnalyticModel fitted to ",
        "finalists of matmul, pass 1: ",
        "run of matmul ended (",
    ):
        assert said in done.stderr, said
    assert "SELECT" not in done.stderr  # of the database library
    quiet = told(*tune, *more, "--frozen")
    assert json.loads(quiet.stdout)["best"] and not quiet.stderr


@pytest.mark.slow
def test_loading_says_whether_the_object_was_in_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db = tmp_path / "t.db"
    autotune.tune("add", n=1000, threads=1, trials=1, budget_s=20.0, db=db, progress=None)
    said = []
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.DEBUG, logger="autotune"):
            kernel = autotune.load("add", n=1000, threads=1, db=db)
        assert f"record {kernel.record.uid} of the log is used, with 1 threads" in caplog.messages
        said.append([m for m in caplog.messages if m.startswith("kernel of add")])
    assert "compiled in" in said[0][0]
    assert said[1][0].endswith("is in the cache") and len(said[1]) == 1


def test_a_message_that_nobody_reads_makes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def text(_: object) -> str:
        raise AssertionError("text was made")

    monkeypatch.setattr(diagnostics, "seconds", text)
    monkeypatch.setattr(diagnostics, "counts", text)
    workload = copy_of(64)
    verbosity.report("info")
    diagnostics.round_done(workload, 1, 16, 16, 1e-3, 0.5)
    diagnostics.ended(workload, "trials", 16, {"timeout": 1}, {"search": 0.1})


def test_messages_go_to_what_is_stderr_when_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("autotune.x", logging.WARNING, "x.py", 1, "said %s", ("late",), None)
    verbosity._HANDLER.emit(record)
    assert "said late" in capsys.readouterr().err


def test_warnings_are_messages_without_a_line_of_code() -> None:
    ours, theirs = typer.__file__, str(Path(os.__file__))
    assert verbosity.warning_text("no\x1b log", UserWarning, ours, 7) == "autotune: WARNING: no\\x1b log\n"
    for category, place in ((UserWarning, theirs), (DeprecationWarning, ours)):
        assert f"{place}:7: {category.__name__}: no log" in verbosity.warning_text(
            "no log", category, place, 7
        )


def test_the_process_prints_its_warnings_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "argv", ["autotune", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert warnings.formatwarning is verbosity.warning_text


def test_help_has_no_types_of_python_for_options() -> None:
    for command in ("tune", "bench", "export", "replay", "generate"):
        text = run(command, "--help").out
        assert not re.search(r"^  -.*<\w", text, re.MULTILINE), text
    assert "--search evolutionary|local|" in run("tune", "--help").out


def test_spaces_between_targets_do_not_count() -> None:
    assert export._targets(SimpleNamespace(targets="cpu, x86-64-v3,")) == ["cpu", "x86-64-v3"]
    assert export._targets(SimpleNamespace(targets=" ,")) == []
    assert export._targets(SimpleNamespace(targets=None)) is None
