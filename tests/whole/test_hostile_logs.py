"""Whatever a stranger writes into an export, with digests that fit: it is refused with a reason, or every
command that reads the log ends with a message, and what is good is found beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run
from fleet_cases import FakeSite
from learnable_logs import fill as fill_learnable
from learnable_logs import matmul
from log_cases import long_sum
from log_filler import fill, host
from log_mutants import mutants, parsed
from signals import alarm

import autotune as at
from autotune.backends.building.from_trace import check_legal
from autotune.search import decisions
from autotune.tuning import measured, neighbours, prediction_quality, preparation, recheck, resume
from autotune.tuning.options import TuneOptions
from autotune.tuning.similar import seeds
from kernels_db import Log, NewRecord
from schedules.errors import AutotuneError
from schedules.model import Target, Trace, Workload
from schedules.space import derive

GOOD = (32, 48, 16)  # the task whose records nobody changed
HEADER = '{"format":"autotune-log","version":2}\n'


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """What hangs fails. Nothing here takes a tenth of it."""
    with alarm(300):
        yield


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """An export with tasks that can be learnt from, and softmax."""
    db = tmp_path_factory.mktemp("good") / "good.db"
    fill_learnable(db, (GOOD, (48, 32, 64)), n=12, on=host())
    conv2d = {"h": 8, "w": 8, "ci": 4, "co": 8, "k": 3}
    fill(db, [("softmax", {"m": 16, "n": 32}, 1e-3), ("conv2d", conv2d, 1e-3)])
    with Log(db) as log:
        return list(log.export_lines())


class References(FakeSite):
    """Measures nothing, but computes right results, and replays schedules."""

    def measurer(self, workload: Workload, target: Target, *more: Any, **kw: Any) -> Any:
        preparation.measurer(workload, target, *more, **kw).close()
        self.during = lambda trace: check_legal(workload.canonical, trace, target)
        return super().measurer()


def every_use(db: Path, folder: Path) -> None:
    """All that reads a log, but measuring. An error is one of this project's own."""
    for words in (
        ("stats",), ("stats", "--json"), ("list",), ("list", "--json"), ("export", folder / "e.jsonl"),
        ("export", folder / "e.json", "--format", "t4"), ("pin", folder / "x.lock"), ("pin", "--remove"),
        ("prune",),
    ):  # fmt: skip
        ran = run("log", *words, "--db", db)
        assert ran.status == 0, (words, ran.err)
    assert run("log", "merge", db, "--db", folder / "other.db").status == 0
    assert run("report", "--db", db, "-o", folder / "report.html").status == 0
    for words in (("best", "--nearest"), ("best", "--ir"), ("explain",)):
        command, *more = words
        ran = run(command, "matmul", "--shape", "m=32,n=48,k=16", "--threads", 1, "--db", db, *more)
        assert ran.status in (0, 1, 2) and (ran.out or ran.err.startswith("autotune: ")), words
    try:
        at.load("matmul", m=32, n=48, k=16, threads=1, db=db)
    except AutotuneError as err:
        assert "cannot be used" in str(err)
    try:
        measured.of_places([str(db)])
    except AutotuneError as err:
        assert "there is nothing to learn from" in str(err)
    workload, target = matmul((40, 24, 48)), host()
    space = derive(workload.canonical, target)
    with Log(db) as log:
        seeds(workload, target, space, log.place, 8)
        neighbours.neighbours(log, workload, target, space, TuneOptions())
        prediction_quality.of_log(log)
        own = matmul(GOOD)
        resume.read(log, own, target, derive(own.canonical, target))
        verdicts = list(recheck.verify(log, 3, site_of=lambda t: References() if t.kind == "cpu" else None))
        odd = [v for v in verdicts if "cannot be checked: " in v.reason]
        assert not odd, [(v.workload, v.reason) for v in odd]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 40))])
def test_mutants_of_an_export_are_refused_or_do_no_harm(seed: int, good: list[str], tmp_path: Path) -> None:
    lines, said = mutants(parsed(good), seed, 24)
    (tmp_path / "x.jsonl").write_text("".join([HEADER, *lines]))
    ran = run("log", "import", tmp_path / "x.jsonl", "--db", tmp_path / "a.db")
    assert ran.status in (0, 1) and "new record" in ran.out, said
    every_use(tmp_path / "a.db", tmp_path)


def test_what_is_good_is_found_beside_what_is_odd(good: list[str], tmp_path: Path) -> None:
    lines, _ = mutants(parsed(good), 99, 24)
    (tmp_path / "x.jsonl").write_text("".join([HEADER, *lines]))
    (tmp_path / "good.jsonl").write_text("".join(good))
    db = tmp_path / "a.db"
    run("log", "import", tmp_path / "x.jsonl", tmp_path / "good.jsonl", "--db", db)
    with Log(db) as log:
        found = list(recheck.verify(log, site_of=lambda t: References() if t == host() else None))
    mine = [v for v in found if v.workload.digest == matmul(GOOD).digest]
    assert mine and all(v.status in ("ok", "slower", "failed") for v in mine)


@pytest.mark.slow
def test_an_expression_of_very_many_stages_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its space would take hours to derive. Other tasks are learnt from."""
    monkeypatch.setattr(decisions, "STAGES", 4)
    db = fill_learnable(tmp_path / "a.db", (GOOD,), n=12)
    x = at.te.placeholder((8, 8), name="x")
    last = x
    for n in range(5):
        k = at.te.reduce_axis(8, name="k")
        last = at.te.compute((8, 8), lambda i, j, a=last, k=k: at.te.sum(a[i, k] * x[k, j], axis=k), f"s{n}")
    with Log(db) as log:
        for w in (Workload(at.te.dag([x, last])), long_sum(10**11)):
            session = log.start_run(w, host(), {"cpu": "x"}, seed=0)
            for i in range(9):
                told: dict[str, Any] = {"decisions": []}
                log.add(NewRecord(session.uid, i, "s", Trace(), "ok", times_s=[1e-9], environment=told))
    found = measured.of_places([str(db)])
    assert len(found.tasks) == 1 and sum(found.left_out.values()) == 2
    assert run("report", "--db", db, "-o", tmp_path / "report.html").status == 0
