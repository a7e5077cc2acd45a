"""Searches against recorded tables: our own logs, Kernel Tuner's caches, T4 results."""

from __future__ import annotations

import gzip
import json
import lzma
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import run

import autotune as at
from autotune.search.decisions import DECISIONS
from autotune.search.policies import create
from autotune.search.simulate import read, replay
from autotune.search.table import ReplayError, Sheet, TableSpace
from autotune.targets import from_name
from kernels_db import Log, NewRecord
from schedules import ops
from schedules.space import derive
from schedules.space.base import Candidate

X, Y, KIND = (1, 2, 4, 8, 16, 32), (1, 2, 3, 4, 5, 6, 7, 8), ("row", "column")


def seconds(x: int, y: int, kind: str) -> float:
    """Best at x=8, y=5, by columns; x * y above 128 does not run."""
    if x * y > 128:
        return math.nan
    return 1e-3 * (1 + abs(math.log2(x) - 3) + 0.2 * abs(y - 5) + 0.5 * (kind == "row"))


def kernel_tuner() -> dict[str, Any]:
    cache = {}
    for x in X:
        for y in Y:
            for kind in KIND:
                t = seconds(x, y, kind)
                entry = {"block_size_x": x, "tile": y, "order": kind}
                entry["time"] = "RuntimeFailedConfig" if math.isnan(t) else t * 1e3
                cache[f"{x},{y},{kind}"] = entry
    return {
        "device_name": "A100", "kernel_name": "convolution", "problem_size": [4096],
        "tune_params_keys": ["block_size_x", "tile", "order"], "objective": "time", "cache": cache,
    }  # fmt: skip


def t4() -> dict[str, Any]:
    results = []
    for entry in kernel_tuner()["cache"].values():
        t = entry.pop("time")
        good = not isinstance(t, str)
        results.append(
            {
                "configuration": entry,
                "times": {"compilation_time": 1.0},
                "invalidity": "correct" if good else "runtime",
                "correctness": int(good),
                "objectives": ["time"],
                "measurements": [{"name": "time", "value": t, "unit": "ms"}] if good else [],
            }
        )
    return {"schema_version": "1.0.0", "metadata": {}, "results": results}


def written(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path


def check(path: Path) -> None:
    space = read(path).space
    assert space.configurations == len(X) * len(Y) * len(KIND)
    assert len(space.times_s) == sum(not math.isnan(seconds(x, y, k)) for x in X for y in Y for k in KIND)
    assert space.times_s.min() == pytest.approx(seconds(8, 5, "column"))


def test_what_models_see_of_parameters(tmp_path: Path) -> None:
    space = read(written(tmp_path / "cache.json", kernel_tuner())).space
    row = np.array([[X.index(8), Y.index(6), 1]])  # "row" comes after "column"
    seen = dict(zip(space.feature_names, space.features(0, row)[0].tolist(), strict=True))
    assert seen == pytest.approx(
        {
            "block_size_x": 8, "block_size_x.log2": 3, "block_size_x.place": 3, "block_size_x.odd": 0,
            "tile": 6, "tile.log2": math.log2(6), "tile.place": 5, "tile.odd": math.log2(3),
            "order": 1, "order.log2": 0, "order.place": 1, "order.odd": 0,
            "product.log2": math.log2(48),
        }
    )  # fmt: skip


def test_a_cache_of_kernel_tuner(tmp_path: Path) -> None:
    path = written(tmp_path / "cache.json", kernel_tuner())
    check(path)
    assert read(path).name == "convolution on A100"


def test_one_that_was_never_closed(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(kernel_tuner())[:-2] + ",\n")
    check(path)


def test_a_packed_one(tmp_path: Path) -> None:
    path = tmp_path / "cache.json.gz"
    path.write_bytes(gzip.compress(json.dumps(kernel_tuner()).encode()))
    check(path)


def test_t4_results(tmp_path: Path) -> None:
    check(written(tmp_path / "t4.json", t4()))


@pytest.mark.fast("random")
@pytest.mark.parametrize("search", ["random", "evolutionary"])
def test_a_search_finds_the_best_and_is_the_same_every_time(tmp_path: Path, search: str) -> None:
    table = read(written(tmp_path / "cache.json", kernel_tuner()))
    whole = replay(table, search, "xgb", 1000, 0)
    assert len(whole.best_s) == table.space.configurations  # every one once, then it ends
    assert whole.best_s[-1] == pytest.approx(seconds(8, 5, "column"))
    known = [t for t in whole.best_s if t is not None]
    assert known == sorted(known, reverse=True)
    assert replay(table, search, "xgb", 40, 3) == replay(table, search, "xgb", 40, 3)
    assert replay(table, search, "xgb", 40, 3) != replay(table, search, "xgb", 40, 4)


@pytest.mark.slow
def test_a_time_that_no_kernel_takes_ends_no_search(tmp_path: Path) -> None:
    """Its throughput would be infinite."""
    document = kernel_tuner()
    first, *_, last = document["cache"].values()
    first["time"] = last["time"] = 1e-310
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(document))
    assert len(replay(read(path), "evolutionary", "scratch", 40, 0).best_s) == 40


@pytest.mark.slow
def test_a_model_finds_more_than_chance(tmp_path: Path) -> None:
    table = read(written(tmp_path / "cache.json", kernel_tuner()))

    def after(search: str) -> float:
        found = [replay(table, search, "xgb", 32, seed).best_s[-1] or math.inf for seed in range(8)]
        return float(np.mean(found))

    assert after("evolutionary") < after("random")


@pytest.mark.slow
def test_our_own_log_and_its_export(tmp_path: Path) -> None:
    db, export = tmp_path / "tuning.db", tmp_path / "all.jsonl"
    shape = {"m": 16, "n": 24, "k": 8}
    result = at.tune("matmul", trials=10, budget_s=60, threads=1, db=db, **shape)
    run("log", "export", export, "--db", db)
    for path in (db, export):
        table = read(path)
        # the plain loops, which are tried where they may win, are in no space
        assert result.measured - 1 <= table.space.configurations <= result.measured
        assert result.best is not None
        ran = replay(table, "evolutionary", "xgb", 50, 0)
        assert len(ran.best_s) == table.space.configurations
        assert ran.best_s[-1] == pytest.approx(table.space.times_s.min())


def test_failures_and_decisions_of_no_space_in_a_log(tmp_path: Path) -> None:
    workload, target = ops.workload("matmul", {"m": 16, "n": 24, "k": 8}), from_name("x86-64-v3")
    space, db = derive(workload.canonical, target), tmp_path / "tuning.db"
    c = create("random", space).ask(1)[0]
    trace = space.trace(c.sketch, np.array(c.row))

    def add(status: str, row: list[int], times: tuple[float, ...] = ()) -> None:
        name, facts = space.sketches[c.sketch], {DECISIONS: row}
        log.add(NewRecord(made, 0, name, trace, status, times_s=times, environment=facts))

    with Log(db) as log:
        made = log.start_run(workload, target, {}, seed=0).uid
        add("ok", [2**63] * len(c.row), (1.0,))
        add("crash", list(c.row))
    with pytest.raises(ReplayError, match="none of the 1 configurations of matmul m=16 .* ran"):
        read(db)
    assert run("replay", db).status == 2
    with Log(db) as log:
        for t in (3.0, 2.0):
            add("ok", list(c.row), (t,))
        add("timeout", list(c.row))
    assert read(db).space.times_s.tolist() == [2.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "neither a log"),
        ("hello", "neither a log"),
        ("{}", "no table of Kernel Tuner"),
        ('{"results": []}', "has no configurations"),
        ('{"cache": {}, "tune_params_keys": ["x"]}', "has no configurations"),
        ('{"cache": {"1": {"x": 1, "time": "InvalidConfig"}}, "tune_params_keys": ["x"]}', "none of its 1"),
        ('{"cache": [], "tune_params_keys": []}', "cache: expected an object, got"),
        ('{"cache": {"1": 5}, "tune_params_keys": ["x"]}', r"cache\.1: expected an object, got 5"),
        ('{"results": 5}', "results: expected a list, got 5"),
        ('{"results": [1]}', r"results\[0\]: expected an object"),
        ('{"results": [{"configuration": {"x": 1}}], "metadata": []}', "metadata: expected an object"),
        ('{"results": [{"configuration": {"x": 1%s}}]}' % ("0" * 400), "none of its 1"),
        ('{"results": %s' % ("[" * 100_000), "is nested too deeply"),
        ('{"line": "of something"}\n{"else": 1}', "neither a tuning log"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises((ReplayError, at.LogError), match=message):
        read(path)
    assert run("replay", path).status == 2


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    path = written(tmp_path / "cache.json", kernel_tuner())
    found = run("replay", path, "--trials", 20, "--seeds", 3, "--json").json
    promised = {"space", "configurations", "valid", "optimum_s", "runs"}
    assert set(found) == promised | {"task", "tasks", "notes"} and found["task"] is None
    assert [r["seed"] for r in found["runs"]] == [0, 1, 2]
    assert all(len(r["best_s"]) == 20 for r in found["runs"])
    text = run("replay", path, "--trials", 20, "--seeds", 3, "--search", "random").out
    assert "96 configurations" in text and "%" in text


@pytest.mark.fast("True-t4")
@pytest.mark.parametrize("made", [kernel_tuner, t4])
@pytest.mark.parametrize("packed", [False, True])
def test_a_torn_table_is_read_as_far_as_it_goes(tmp_path: Path, made: Any, packed: bool) -> None:
    whole, path = json.dumps(made(), indent=1), tmp_path / "cache.json"
    for cut in (len(whole) // 2, len(whole) - 70, whole.index('"column"') + 3):
        text = whole[:cut].encode()
        path.write_bytes(gzip.compress(text) if packed else text)
        table = read(path)
        assert 0 < table.space.configurations <= 96
        (note,) = table.notes
        line = whole[:cut].count("\n") + 1
        assert f"torn at line {line}" in note or f"torn at line {line - 1}" in note
        assert note in run("replay", path, "--trials", 2, "--seeds", 1).out
        assert run("replay", path, "--trials", 2, "--seeds", 1, "--json").json["notes"] == [note]


def test_a_cache_torn_anywhere_is_read_or_refused_as_one(tmp_path: Path) -> None:
    text, path, before = json.dumps(kernel_tuner()), tmp_path / "cache.json", 0
    for cut in range(text.index('"tune_params_keys"') + 18, len(text), 97):
        path.write_text(text[:cut])
        try:
            count = read(path).space.configurations
        except ReplayError as err:
            assert "a cache of Kernel Tuner, torn at line 1, with no configuration" in str(err)
            assert before == 0
        else:
            assert before <= count == min(text[:cut].count("}"), 96)
            before = count
    assert before > 90


def log_of_two_tasks(path: Path) -> None:
    target = from_name("x86-64-v3")
    with Log(path) as log:
        for n, count in ((16, 3), (24, 5)):
            workload = ops.workload("matmul", {"m": 16, "n": n, "k": 8})
            space = derive(workload.canonical, target)
            made = log.start_run(workload, target, {}, seed=0).uid
            for i, c in enumerate(create("random", space).ask(count)):
                trace, facts = space.trace(c.sketch, np.array(c.row)), {DECISIONS: list(c.row)}

                def add(kind: str, t: float, status: str = "ok") -> None:
                    name = space.sketches[c.sketch]  # noqa: B023
                    log.add(
                        NewRecord(made, 0, name, trace, status, times_s=(t,), environment=facts, kind=kind)  # noqa: B023
                    )

                add("trial", 1.0 + i)
                if i == 0:  # lucky, and timed again
                    add("trial", 0.5)
                    add("final", 0.75)
                    add("final", 4.0)
                if i == 1:  # found wrong afterwards
                    add("trial", 1.0, "wrong_result")


@pytest.mark.slow
def test_the_newest_final_is_what_a_schedule_takes(tmp_path: Path) -> None:
    log_of_two_tasks(tmp_path / "t.db")
    table = read(tmp_path / "t.db")
    assert sorted(table.space.times_s.tolist()) == [3.0, 4.0, 4.0, 5.0]
    with Log(tmp_path / "t.db") as log:
        tasks = sorted(log.tasks(), key=lambda task: log.workload(task[0]).params)
        for number, (w, t) in enumerate(tasks, 1):
            best = log.best(w, t)
            assert best is not None
            assert read(tmp_path / "t.db", str(number)).space.times_s.min() == best.time_s


@pytest.mark.slow
def test_which_task_of_a_log(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    log_of_two_tasks(db)
    words = ("replay", db, "--trials", 2, "--seeds", 1, "--search", "random")
    found = run(*words, "--json").json
    assert found["task"] == 2 and found["configurations"] == 5 and len(found["tasks"]) == 2
    assert found["space"] == found["tasks"][1] == "matmul m=16 n=24 k=8 float32, 1 thread on x86-64-v3"
    said = " ".join(run(*words).out.split())
    assert "task 2 of 2, that with the most records" in said and f"1: {found['tasks'][0]}" in said
    for task in ("1", "matmul m=16,n=16", "N=16"):
        other = run(*words, "--task", task, "--json").json
        assert other["task"] == 1 and other["configurations"] == 3, task
    for task, message in (("3", "no task of"), ("softmax", "no task of"), ("matmul", "2 tasks of .* are")):
        refused = run(*words, "--task", task)
        assert refused.status == 2 and re.search(message, refused.err) and "n=24" in refused.err
    cache = written(tmp_path / "cache.json", kernel_tuner())
    assert "a table of one task" in run("replay", cache, "--task", "1").err


@pytest.mark.slow
def test_lines_of_an_export_that_are_not_valid_are_noted(tmp_path: Path) -> None:
    log_of_two_tasks(tmp_path / "t.db")
    export = tmp_path / "all.jsonl.xz"
    run("log", "export", export, "--db", tmp_path / "t.db")
    assert read(export).notes == ()
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(lzma.decompress(export.read_bytes())[:-9])
    (note,) = read(torn).notes
    assert "1 lines of" in note and str(torn) in note


def test_a_table_offers_what_a_space_does() -> None:
    rows = np.array([[0, 0], [0, 1], [1, 1]], dtype=np.int64)
    sheet = Sheet("s", ("a", "b"), rows, np.array([1.0, math.nan, 3.0]), rows.astype(np.float32))
    space, rng = TableSpace([sheet], ["a", "b"]), np.random.default_rng(0)
    crossed = space.crossover(0, rows, rows[::-1], rng)
    for made in (space.sample(0, 50, rng), space.mutate(0, rows[[0] * 50], rng), crossed):
        assert space.valid(0, made).all()
    assert not space.valid(0, np.array([[1, 0]])).any()
    assert (space.mutate(0, rows[[0] * 50], rng) == [0, 1]).all(axis=1).any()
    assert space.time_s(Candidate(0, (0, 1))) is None and space.time_s(Candidate(0, (1, 1))) == 3.0
    assert space.trace(0, rows[1]) != space.trace(0, rows[2])
