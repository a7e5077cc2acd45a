"""``--fleet``, ``worker`` and ``fleet``: what they refuse before anything is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_runner import run
from needs import imported

import autotune as at
from autotune import backends
from autotune.cli import output, results
from autotune.results import display
from autotune.results.tuned import Best, SuiteResult, SuiteTask, TaskResult, TuneResult
from autotune.tuning.makers import Tasks
from schedules.model import Target, Trace

SHAPE = ("--shape", "m=64,n=64,k=64")
ADDRESS = "no address of a scheduler; give one such as tcp://host:8786 or tls://host:8786"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tune", "net.onnx", "--fleet", "local:1", "--frozen"), "--frozen does not go with a model"),
        (("tune", "matmul", "--shape", "m=1..9,fixed,n=4,k=4", "--frozen"), "--frozen takes one size"),
        (("tune", "matmul", *SHAPE, "--fleet", "local:1", "--frozen"), "--frozen measures nothing"),
        (("tune", "matmul", *SHAPE, "--build-here"), "--build-here goes with --fleet"),
        (("tune", "matmul", *SHAPE, "--target", "cpu,x86-64-v3"), "several targets are tuned for on a fleet"),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...], said: str) -> None:
    ran = run(*words)
    assert ran.status == 2 and said in ran.err


@pytest.mark.slow
def test_addresses_that_are_none() -> None:
    imported("distributed")
    for command in (("worker",), ("fleet",), ("tune", "matmul", *SHAPE, "--fleet")):
        for address in (
            "host:8786",
            "tcp://host",
            "tcp://host:0",
            "tcp://host:70000",
            "tcp://a b:1",
            "local:x",
        ):
            ran = run(*command, address)
            assert ran.status == 2 and f"{address!r} is {ADDRESS}" in ran.err, ran.err
    for name in ("worker", "fleet"):
        ran = run(name, "local:2")
        assert ran.status == 2 and "local:2 is a fleet that tune and log verify start and end" in ran.err
    ran = run("tune", "matmul", *SHAPE, "--fleet", "local:0")
    assert ran.status == 2 and "fleet 'local:0' has no workers; give local:1 or more" in ran.err


def test_results_are_printed_when_the_progress_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that goes takes along what was printed below it."""
    target = backends.parse("x86-64-v3", 1)
    workload = at.ops.workload("matmul", {"m": 64, "n": 64, "k": 64})
    best = Best(1e-4, 20.0, None, Trace(), "r")
    result = TuneResult(workload, target, best, 9, {}, 0, 3.0, 0, "budget")
    task = TaskResult(SuiteTask(workload, 1.0, "mine"), result, 2.0)
    suite = SuiteResult((task,), 1e-4, 9, 3.0, 6.0, 0, "budget")
    shown: list[bool] = []

    def found(maker: object, *_: object, **__: object) -> dict[Target, object]:
        assert display._busy.locked()  # the progress is shown meanwhile
        return {target: suite if isinstance(maker, Tasks) else result}

    def console() -> Any:
        shown.append(display._busy.locked())
        return output.console()

    monkeypatch.setattr(results, "console", console)
    monkeypatch.setattr("autotune.tuning.tuner.tune_jobs", found)
    (tmp_path / "s.toml").write_text(
        '[[group]]\nsuite = "s"\nname = "g"\nop = "matmul"\n'
        'fields = ["m", "n", "k"]\nshapes = [[64, 64, 64]]\n'
    )
    for words in (("matmul", *SHAPE), ("--suite", tmp_path / "s.toml")):
        ran = run("tune", *words, "--fleet", "local:1", "--db", tmp_path / "t.db")
        assert ran.status == 0 and "100 us" in ran.out and "  log " in ran.out, ran
    assert shown and not any(shown)
