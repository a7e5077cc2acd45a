"""A job maker of a few lines is tuned on this machine, on a fleet, and by a command."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from made_up import MadeUp
from model_cases import Made
from needs import imported
from typer.testing import CliRunner

import autotune as at
from autotune import backends
from autotune.results.tuned import SuiteProgress, SuiteResult, SuiteTask
from autotune.tuning.jobs import Job
from autotune.tuning.options import TuneOptions
from autotune.tuning.tuner import OneMachine, Place, tune_jobs
from schedules import ops
from schedules.model import Target

HERE = backends.parse("cpu", 1)


@dataclass(frozen=True)
class Halves:
    """A product and those of half its size, down to a least one. The result: seconds by size."""

    size: int
    least: int
    options: TuneOptions

    @property
    def sizes(self) -> list[int]:
        return [self.size >> k for k in range(self.size.bit_length()) if self.size >> k >= self.least]

    def job(self, target: Target) -> Job:
        works = [ops.workload("matmul", {"m": n, "n": n, "k": n}) for n in self.sizes]
        return Job([SuiteTask(w, 1.0, str(n)) for w, n in zip(works, self.sizes, strict=True)], self.options)

    def result(self, target: Target, found: SuiteResult) -> dict[int, float]:
        best = {n: t.result.best for n, t in zip(self.sizes, found.tasks, strict=True)}
        return {n: b.time_s for n, b in best.items() if b is not None}


HALVES = Halves(16, 4, TuneOptions(trials=2, budget_s=60.0, search="random", model="analytic"))


def made_here() -> OneMachine:
    return OneMachine(HERE, MadeUp(lambda workload: Made()))


def test_it_is_tuned_here(tmp_path: Path) -> None:
    seen: list[SuiteProgress] = []
    with at.Log(tmp_path / "t.db") as log:
        (found,) = tune_jobs(HALVES, made_here(), log, seen.append).values()
        assert set(found) == {16, 8, 4} and all(s > 0 for s in found.values())
        assert len(log.tasks()) == 3 and seen[-1].tasks == 3


def test_a_job_without_tasks_measures_nothing(tmp_path: Path) -> None:
    with at.Log(tmp_path / "t.db") as log:
        assert tune_jobs(Halves(2, 4, HALVES.options), made_here(), log) == {HERE: {}}
        assert not log.runs()


@pytest.mark.slow
def test_it_is_tuned_on_a_local_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported("distributed")
    from autotune.fleet.tuning import FleetPlace

    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    with at.Log(tmp_path / "t.db") as log:
        (found,) = tune_jobs(HALVES, FleetPlace("local:2", "cpu", 1), log).values()
        assert set(found) == {16, 8, 4}


def test_it_is_tuned_by_a_command(tmp_path: Path) -> None:
    """With what every command that tunes has: progress on stderr, and signals that end it in good order."""
    from autotune.cli import results
    from autotune.cli.output import print_json
    from autotune.results.following import shown

    app = typer.Typer()

    @app.command()
    def halves(size: int, db: Path) -> None:
        with results.interruptible() as interrupts, at.Log(db) as log, shown() as tell:
            maker = Halves(size, 4, HALVES.options)
            print_json(tune_jobs(maker, made_here(), log, tell, interrupts=interrupts)[HERE])

    ran = CliRunner().invoke(app, ["8", str(tmp_path / "t.db")], catch_exceptions=False)
    assert set(json.loads(ran.stdout)) == {"8", "4"} and ran.exit_code == 0


@pytest.mark.usefixtures("two_cpus")
def test_a_place_is_whatever_has_a_crew(tmp_path: Path) -> None:
    """Two targets on one machine, one after the other."""

    class Both(OneMachine):
        @property
        def targets(self) -> list[Target]:
            return [HERE, backends.parse("cpu", 2)]

        @contextmanager
        def reached(self) -> Iterator[Both]:
            yield self

    both: Place = Both(HERE, MadeUp(lambda workload: Made()))
    with at.Log(tmp_path / "t.db") as log:
        assert [*map(len, tune_jobs(HALVES, both, log).values())] == [3, 3]


def test_one_place_searches() -> None:
    """Whatever is tuned, and wherever: the rounds of a session are asked for in one line."""
    found = []
    for path in Path(at.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "session.search":
                found.append(path.name)
    assert found == ["suite.py"]
