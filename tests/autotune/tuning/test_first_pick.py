"""The first pick: what similar tasks and the model propose, for loading and for short runs."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import run as command
from fake_clock import install
from hypothesis import given
from hypothesis import strategies as st
from log_filler import fill, host
from made_up import tune
from search_table import FormulaSpace
from test_tuner import PEAK_S, TARGET, WORKLOAD, FakeMeasurer

import autotune as at
from autotune.measure.process import MeasureError
from autotune.measure.results import SIZES_S, Measurement
from autotune.measure.starting import may_be_late_s, shared_start
from autotune.run import untuned
from autotune.search.decisions import DECISIONS
from autotune.tuning import first_pick, plain_loops
from autotune.tuning.options import TuneOptions
from autotune.tuning.similar import Seed, seeds
from kernels_db.records import NewRecord
from kernels_db.store import Log
from schedules import ops
from schedules.model import Step, Target, Trace, Workload
from schedules.space import derive
from schedules.space.base import Candidate

SHAPE = {"m": 64, "n": 48, "k": 80}


def matmul(**sizes: int) -> Workload:
    return ops.workload("matmul", SHAPE | sizes)


def store(db: Path, workload: Workload, target: Target, number: int, time_s: float) -> tuple[str, list[int]]:
    """A record of a drawn candidate; its sketch and decisions."""
    space = derive(workload.canonical, target)
    rng = np.random.default_rng(number)
    sketch = number % len(space.sketches)
    rows = space.sample(sketch, 512, rng)
    row = rows[space.valid(sketch, rows)][0]
    trace = space.trace(sketch, row)
    with Log(db) as log:
        made = log.start_run(workload, target, {"cpu": "a test"}, seed=0)
        facts = {DECISIONS: row.tolist()}
        log.add(
            NewRecord(
                made.uid, number, space.sketches[sketch], trace, "ok", times_s=[time_s], environment=facts
            )
        )
        log.finish_run(made)
    return space.sketches[sketch], row.tolist()


# -- what is proposed ------------------------------------------------------------------------------


@pytest.mark.slow
def test_seeds_are_the_schedules_of_similar_shapes_fitted_to_this_one(tmp_path: Path) -> None:
    db, target = tmp_path / "t.db", host()
    sketch, row = store(db, matmul(), target, 0, 1e-5)
    store(db, matmul(), target, 1, 2e-5)
    store(db, ops.workload("softmax", {"m": 64, "n": 640}), target, 0, 1e-9)  # of another structure
    own = derive(matmul().canonical, target)
    other = matmul(n=49, k=81)
    first, second = seeds(other, target, derive(other.canonical, target), str(db), 6)
    assert {first.chosen_by, second.chosen_by} == {"similar_shape"}
    (same, *_) = seeds(matmul(m=65), target, own, str(db), 6)
    assert (own.sketches[same.candidate.sketch], list(same.candidate.row)) == (sketch, row)
    for m in (1, 7, 37, 100, 1000):
        space = derive(matmul(m=m).canonical, target)
        for seed in seeds(matmul(m=m), target, space, str(db), 6):
            row_ = np.array([seed.candidate.row], dtype=np.int64)
            assert space.valid(seed.candidate.sketch, row_).all()
    far = matmul(m=64 << 9)
    assert seeds(far, target, derive(far.canonical, target), str(db), 6) == []


def test_seeds_of_the_nearest_come_first_and_other_machines_count(tmp_path: Path) -> None:
    db, target = tmp_path / "t.db", host()
    other = replace(target, threads=target.threads + 1)
    store(db, matmul(), other, 0, 1e-5)
    space = derive(matmul().canonical, target)
    (only,) = seeds(matmul(), target, space, str(db), 6)
    assert only.chosen_by == "similar_machine"
    store(db, matmul(m=128), target, 1, 1e-9)
    assert [s.chosen_by for s in seeds(matmul(), target, space, str(db), 6)] == [
        "similar_machine", "similar_shape",
    ]  # fmt: skip
    assert [s.chosen_by for s in seeds(matmul(), other, space, str(db), 6)] == ["similar_shape"]
    assert len(seeds(matmul(), target, space, str(db), 1)) == 1


@pytest.mark.slow
def test_the_model_proposes_where_too_little_is_similar(tmp_path: Path) -> None:
    db, target = tmp_path / "t.db", host()
    space = derive(matmul().canonical, target)
    found = first_pick.proposals(matmul(), target, space, str(db))
    assert {p.chosen_by for p in found} == {"model"} and len(found) == first_pick.PICKS
    for n in range(4):
        store(db, matmul(m=128), target, n, 1e-5 * (n + 1))
    found = first_pick.proposals(matmul(), target, space, str(db))
    assert {p.chosen_by for p in found} == {"similar_shape"} and len(found) >= first_pick.ENOUGH


def test_decisions_become_the_nearest_that_a_space_allows() -> None:
    big, small = (derive(matmul(m=m).canonical, host()) for m in (512, 37))
    rng = np.random.default_rng(0)
    for s, name in enumerate(big.sketches):
        rows = big.sample(s, 200, rng)
        assert (big.nearest(s, rows) == rows).all()  # what is allowed stays
        there = small.sketches.index(name)
        moved = small.nearest(there, rows)
        assert (small.nearest(there, moved) == moved).all()


# -- the race --------------------------------------------------------------------------------------


class Racing:
    """A measurer of candidates with the given results; it answers within deadlines only."""

    def __init__(self, *status: str) -> None:
        self.status, self.asked = status, list[int]()

    def arrivals(
        self,
        traces: Sequence[int],
        best_s: float | None = None,
        deadline: float = 0.0,
        latest: float | None = None,
    ) -> Iterator[tuple[int, Measurement]]:
        for i, n in enumerate(traces):
            if time.monotonic() < deadline:
                self.asked.append(n)
                yield i, Measurement(self.status[n], "", (1.0,), 1.0 + n)


def race(measurer: Any, n: int, until: float, enough: int = 1) -> list[int]:
    traces: Any = range(n)
    return [i for i, _ in first_pick.race(measurer, list(traces), until, 60.0, enough=enough)]


def test_after_the_limit_a_race_goes_on_one_by_one_until_one_is_right() -> None:
    soon, gone = time.monotonic() + 60, time.monotonic() - 1
    assert race(Racing("ok", "ok", "crash"), 3, soon) == [0, 1, 2]
    assert race(Racing("crash", "wrong_result", "ok", "ok"), 4, gone) == [0, 1, 2]
    assert race(Racing("crash", "crash"), 2, gone) == [0, 1]


def test_after_the_limit_a_race_goes_on_until_enough_were_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """One candidate alone may be several times slower than the next."""
    gone = time.monotonic() - 1
    monkeypatch.setattr(first_pick, "MORE_S", 60.0)
    assert race(Racing("ok", "slow", "crash", "ok", "ok"), 5, gone, enough=3) == [0, 1, 2, 3]
    assert race(Racing("ok", "ok"), 2, gone, enough=3) == [0, 1]
    monkeypatch.setattr(first_pick, "MORE_S", 0.0)
    assert race(Racing("crash", "ok", "ok", "ok"), 4, gone, enough=3) == [0, 1]


class Late:
    """A machine on which all takes ``slower`` times as long as on a quiet one: its site and its measurer. A
    candidate takes a second, but for those of ``takes``; the n-th is the faster the larger its place in
    ``speed``."""

    def __init__(self, slower: float, speed: Sequence[int], takes: dict[int, float]) -> None:
        self.slower, self.speed, self.takes = slower, speed, takes
        self.made, self.tried = time.monotonic(), list[str]()

    def measurer(self, *_: Any, **__: Any) -> Any:
        return contextlib.nullcontext(self)

    def start(self) -> None:
        time.sleep(0.2 * self.slower)

    def arrivals(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float = 0.0,
        latest: float | None = None,
    ) -> Iterator[tuple[int, Measurement]]:
        for i, trace in enumerate(traces):
            lost = (time.monotonic() - self.made) * (1 - 1 / self.slower)
            until = deadline if latest is None else max(deadline, min(deadline + lost, latest))
            if time.monotonic() >= until:
                return
            n = number_of(trace)
            time.sleep(self.slower * self.takes.get(n, 0.2))
            self.tried.append(str(n))
            yield i, Measurement("ok", "", (1.0,), 1.0 / (1 + self.speed.index(n)))


def numbered(n: int) -> Trace:
    return Trace((Step("numbered", (("n", n),)),))


def number_of(trace: Trace) -> int:
    return int(dict(trace.steps[0].args)["n"]) if trace.steps else -1


def picked(slower: float, speed: Sequence[int], takes: dict[int, float], patch: Any) -> Any:
    install(patch)
    planned = [(numbered(n), "model") for n in range(len(speed) - 1)]
    patch.setattr(first_pick, "_planned", lambda *_: planned)
    site: Any = Late(slower, speed, takes)
    return first_pick.first_pick(matmul(), host(), "none.db", site=site), site.tried


@pytest.mark.slow
@given(
    st.permutations(range(-1, 8)),
    st.dictionaries(st.integers(0, 7), st.floats(0.05, 4.0), max_size=4),
    st.floats(1.0, 7.0),
)
def test_a_busy_machine_tries_and_picks_what_a_quiet_one_does(
    speed: list[int], takes: dict[int, float], slower: float
) -> None:
    """Up to the time at which it is over in any case."""
    with pytest.MonkeyPatch.context() as patch:
        assert picked(slower, speed, takes, patch) == picked(1.0, speed, takes, patch)


@given(st.permutations(range(-1, 8)), st.floats(400.0, 1e6))
def test_plain_loops_are_never_the_pick_for_lack_of_time(speed: list[int], slower: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        pick, tried = picked(slower, speed, {}, patch)
    assert (pick.trace, pick.chosen_by, pick.time_s) == (numbered(0), "model", None) and not tried


def test_picks_of_one_model_are_late_together_for_so_long() -> None:
    """On a busy machine the first ones try what they try on a quiet one, and later ones what there is time
    for."""
    speed = [*range(-1, 8)]
    with pytest.MonkeyPatch.context() as patch, shared_start(12.0):
        quiet = picked(1.0, speed, {}, patch)
        assert may_be_late_s() == 12.0
        found = [picked(4.0, speed, {}, patch) for _ in range(4)]
        assert found[0] == quiet and may_be_late_s() == 0.0
        assert 0 < len(found[-1][1]) < len(quiet[1])
        assert all(pick.chosen_by == "model" for pick, _ in found)
    assert may_be_late_s() == math.inf


class Failing(Late):
    """A machine on which every candidate but the plain loops fails."""

    def arrivals(self, *args: Any, **more: Any) -> Iterator[tuple[int, Measurement]]:
        for i, m in super().arrivals(*args, **more):
            plain = self.tried[-1] == "-1"
            yield i, m if plain else Measurement("timeout", "took longer than 4.0 s")


def test_plain_loops_say_why_nothing_else_was_right(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    planned = [(numbered(n), "model") for n in range(3)]
    monkeypatch.setattr(first_pick, "_planned", lambda *_: planned)
    site: Any = Failing(1.0, range(-1, 3), {})
    pick = first_pick.first_pick(matmul(), host(), "none.db", site=site)
    assert pick is not None and (pick.trace, pick.chosen_by) == (plain_loops.TRACE, "default")
    assert pick.why_alone == "3 timeout (took longer than 4.0 s)" and site.tried[-1] == "-1"
    fastest, _ = picked(1.0, [0, 1, 2, -1], {}, monkeypatch)  # plain loops that are the fastest of all
    assert (fastest.chosen_by, fastest.why_alone) == ("default", "")


def test_where_measuring_does_not_work_the_estimate_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise MeasureError("measuring could not start: no memory")

    monkeypatch.setattr(Late, "start", refuse)
    pick, _ = picked(1.0, range(-1, 8), {}, monkeypatch)
    assert (pick.trace, pick.time_s) == (numbered(0), None)


def test_where_sizes_are_open_the_mean_over_sizes_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What leads at the largest size may be slow at smaller ones."""

    class Sizes(Late):
        def arrivals(self, *args: Any, **more: Any) -> Iterator[tuple[int, Measurement]]:
            for i, m in super().arrivals(*args, **more):
                small = 0.01 if m.time_s == 1.0 / 8 else 1.0
                yield i, replace(m, facts={SIZES_S: {"m=1": small}})

    planned = [(numbered(n), "model") for n in range(8)]
    install(monkeypatch)
    monkeypatch.setattr(first_pick, "_planned", lambda *_: planned)
    site: Any = Sizes(1.0, range(-1, 8), {})
    pick = first_pick.first_pick(matmul(), host(), "none.db", site=site)
    assert pick is not None and (pick.trace, pick.time_s) == (numbered(6), 1.0 / 8)


def test_candidates_that_came_out_of_order_are_tried_after_the_limit() -> None:
    """One that failed early hides none of those before it."""

    class Reversed(Racing):
        def arrivals(self, traces: Sequence[int], *args: Any, **more: Any) -> Any:
            if len(traces) > 1:  # the last one is refused at once; the limit cuts off the others
                return iter([(len(traces) - 1, Measurement("illegal", ""))])
            return super().arrivals(traces, *args, **more)

    measurer = Reversed("crash", "ok", "illegal")
    soon = time.monotonic() + 60
    assert race(measurer, 3, soon) == [2, 0, 1] and measurer.asked == [0, 1]


# -- short runs ------------------------------------------------------------------------------------


def short(db: Path, measurer: FakeMeasurer, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    space = measurer.space
    picks = [Seed(Candidate(0, (1,) * len(space.holes(0))), "model")]
    monkeypatch.setattr(first_pick, "proposals", lambda *a: picks)
    with Log(db) as log:
        chosen = TuneOptions(**{"model": "analytic"} | options)
        found = tune(*(WORKLOAD, TARGET, log, chosen), space=space, measurer=measurer, peak=lambda: PEAK_S)
        return found, list(log.records(kind="trial"))


def test_no_trials_are_the_candidates_of_a_first_pick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurer = FakeMeasurer(FormulaSpace())
    found, records = short(tmp_path / "t.db", measurer, monkeypatch, trials=0)
    assert found.stopped == "trials" and found.best is not None and found.measured == len(records)
    assert records[0].environment["chosen_by"] == "model" and records[0].environment[DECISIONS]
    assert {r.trace_digest for r in records[1:]} <= {plain_loops.TRACE.digest}
    again, _ = short(tmp_path / "t.db", measurer, monkeypatch, trials=0)
    assert (again.measured, again.resumed) == (0, len(records)) and again.best is not None


def test_a_second_is_enough_for_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measurer = FakeMeasurer(FormulaSpace(), sleep_s=0.3)
    found, records = short(tmp_path / "t.db", measurer, monkeypatch, budget_s=0.2)
    assert found.best is not None and found.stopped == "budget" and found.measured == 1
    measurer = FakeMeasurer(FormulaSpace())
    found, records = short(tmp_path / "u.db", measurer, monkeypatch, budget_s=2.0, trials=9)
    assert found.measured == 9 and len({r.trace_digest for r in records}) == 9  # none twice


# -- loading ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_untuned_kernel_is_picked_checked_and_kept(tmp_path: Path) -> None:
    db, shape = tmp_path / "t.db", {"m": 37, "n": 30, "k": 44}
    with pytest.raises(at.KernelNotFound):
        at.load("matmul", **shape, threads=1, db=db)
    script = (
        "import sys, json, warnings, autotune as at, numpy as np\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        f"    k = at.load('matmul', **{shape}, threads=1, db=sys.argv[1], fallback=True)\n"
        "a, b = np.ones((37, 44), 'f4'), np.full((44, 30), 2, 'f4')\n"
        "assert (k(a, b) == 88).all() and k.record is None and k.workload.dag.outputs\n"
        "print(json.dumps([k.chosen_by, str(said[-1].message), k.trace.to_json(), sorted(sys.modules)]))\n"
    )
    words = [sys.executable, "-c", script, str(db)]
    told = [subprocess.run(words, capture_output=True, check=True).stdout for _ in range(2)]
    (by, said, trace, modules), again = map(json.loads, told)
    assert by in ("model", "default") and "which is not tuned" in said and "autotune tune" in said
    assert again[:3] == [by, said, trace]  # the second load takes what the first kept
    assert "autotune.tuning.first_pick" in modules
    parts = ("autotune.search", "autotune.tuning", "autotune.measure", "cost_model")
    assert not [m for m in again[3] if m.startswith(parts)]
    assert not db.exists()


def test_a_log_goes_before_a_first_pick_and_a_new_one_is_made_when_the_log_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, made = tmp_path / "t.db", []

    def pick(workload: Workload, target: Target, where: str) -> first_pick.Pick | None:
        made.append(workload.digest)
        return first_pick.Pick(Trace(), "model" if len(made) < 2 else "similar_shape", 1e-6)

    monkeypatch.setattr(first_pick, "first_pick", pick)
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))

    def chosen(**sizes: int) -> str:
        with pytest.warns(UserWarning, match="not tuned"):
            return at.load("matmul", **SHAPE | sizes, threads=1, db=db, fallback=True).chosen_by

    assert [chosen(), chosen()] == ["model", "model"] and len(made) == 1
    fill(db, [("matmul", {"m": 8, "n": 8, "k": 8}, 1e-6)])
    assert [chosen(), chosen()] == ["similar_shape", "similar_shape"] and len(made) == 2
    fill(db, [("matmul", {"m": 9, "n": 8, "k": 8}, 1e-6)])
    assert chosen() == "similar_shape" and len(made) == 2
    fill(db, [("matmul", SHAPE, 1e-6)])
    assert at.load("matmul", **SHAPE, threads=1, db=db, fallback=True).chosen_by == "log"


def test_a_pick_that_was_not_checked_is_told_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    times = iter((None, 1e-6))
    monkeypatch.setattr(first_pick, "first_pick", lambda *a: first_pick.Pick(Trace(), "model", next(times)))
    load = {**SHAPE, "threads": 1, "db": tmp_path / "t.db", "fallback": True}
    with pytest.warns(UserWarning, match="not tuned, and not checked"):
        at.load("matmul", **load)
    with pytest.warns(UserWarning, match="which is not tuned"):
        at.load("matmul", **load)
    with pytest.warns(UserWarning, match="which is not tuned"):
        assert at.load("matmul", **load).chosen_by == "model"  # kept


def test_where_nothing_can_be_picked_the_plain_loops_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(first_pick, "first_pick", lambda *a: None)
    with pytest.warns(
        UserWarning, match="default schedule.*runs as plain loops.*no other schedule was right"
    ):
        kernel = at.load("matmul", **SHAPE, threads=1, db=tmp_path / "t.db", fallback=True)
    assert kernel.chosen_by == "default" and kernel.trace == Trace()


def test_plain_loops_for_want_of_others_are_named_and_made_again_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    picks = [
        first_pick.Pick(Trace(), "default", 1e-3, "2 timeout"),
        first_pick.Pick(Trace(), "default", 1e-3, "3 crash"),
        first_pick.Pick(Trace(), "model", 1e-6),
    ]
    monkeypatch.setattr(first_pick, "first_pick", lambda *a: picks.pop(0))

    def said() -> str:
        with pytest.warns(UserWarning) as told:
            at.load("matmul", **SHAPE, threads=1, db=tmp_path / "t.db", fallback=True)
        return str(told[-1].message)

    first = said()
    assert "runs as plain loops, which may take up to 50 times as long as a tuned kernel" in first
    assert "no other schedule was right: 2 timeout" in first and "autotune tune" in first
    assert said().count("2 timeout") == 1 and len(picks) == 2, "this process asks no more"
    monkeypatch.setattr(untuned, "_made_here", set())
    assert "3 crash" in said()
    monkeypatch.setattr(untuned, "_made_here", set())
    assert "plain loops" not in said() and "plain loops" not in said() and not picks


@pytest.mark.slow
def test_the_command_line_takes_no_trials(tmp_path: Path) -> None:
    words = ["tune", "matmul", "--shape", "m=16,n=16,k=16", "--threads", "1", "--trials", "0"]
    found = command(*words, "--db", tmp_path / "t.db", "--json")
    assert found.status == 0 and json.loads(found.out)["best"]["time_s"] > 0
    assert command(*words[:-1], "-1", "--db", tmp_path / "t.db").status == 2
