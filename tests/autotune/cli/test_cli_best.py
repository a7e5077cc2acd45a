"""``autotune best``: what is asked for stands alone on stdout; and the dtype that a task is known by."""

from __future__ import annotations

import json
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from cli_runner import run
from log_filler import host

from autotune.run.describing import describe
from autotune.run.workloads import as_workload, named
from kernels_db.records import NewRecord
from kernels_db.store import Log
from schedules import ops, te
from schedules.model import Trace, Workload
from schedules.schedule import Schedule

MATMUL = ops.workload("matmul", {"m": 8, "n": 8, "k": 8})


@pytest.fixture
def words(tmp_path: Path) -> tuple[object, ...]:
    s = Schedule(MATMUL.dag)
    s.split(s.loops("c")[0], 4)
    with Log(tmp_path / "t.db") as log:
        session = log.start_run(MATMUL, host(), {"cpu": "test"}, seed=0)
        log.add(NewRecord(session.uid, 0, "by hand", s.trace, "ok", times_s=(1e-6,)))
        log.finish_run(session)
    return ("best", "matmul", "--shape", "m=8,n=8,k=8", "--threads", 1, "--db", tmp_path / "t.db")


def test_without_a_part_all_is_on_stdout(words: tuple[object, ...]) -> None:
    ran = run(*words)
    assert ran.out.startswith("matmul m=8 n=8 k=8 float32, 1 thread\n  1 us, 0.8 GB/s on ") and not ran.err


def test_the_source_is_ir_alone(words: tuple[object, ...]) -> None:
    ran = run(*words, "--source")
    llvm.parse_assembly(ran.out).verify()
    assert ran.err.startswith("matmul m=8 n=8 k=8 float32, 1 thread\n")  # people see it all the same


def test_the_loop_nest_and_the_trace_stand_alone_too(words: tuple[object, ...]) -> None:
    nest, trace = run(*words, "--ir").out, run(*words, "--trace").out
    stored = Trace.from_json(json.dumps(run(*words, "--json").json["trace"]))
    assert nest.rstrip() == str(Schedule.replay(MATMUL.dag, stored)).rstrip()
    assert trace.startswith("split(factors=(None, 4), loop=")
    assert len(trace.splitlines()) == 1
    assert run(*words, "--trace", "--ir").out == f"{trace}\n{nest}"


def test_a_task_of_the_user_is_known_by_the_dtype_of_its_outputs() -> None:
    at = te.placeholder((5,), "int64", "at")
    x = te.placeholder((5,), "float32", "x")
    y = te.compute((5,), lambda i: te.select(at[i] > 2, x[i], x[i] + 1.0), "y")
    z = te.compute((5,), lambda i: te.cast(x[i], "bfloat16"), "z")
    assert describe(Workload(te.dag([at, x, y]))) == "the expression of y[5] float32"
    assert describe(Workload(te.dag([at, x, y, z]))) == "the expression of y[5], z[5] float32, bfloat16"
    assert describe(ops.workload("argmax", {"m": 4, "n": 5})) == "argmax m=4 n=5 float32"
    typed = ops.workload("matmul", {"m": 4, "n": 5, "k": 6, "out_dtype": "int32"}, "int8")
    assert describe(typed) == "matmul m=4 n=5 k=6 out_dtype=int32 int8"


def test_the_document_of_a_users_own_expression_has_its_dtype(tmp_path: Path) -> None:
    x = te.placeholder((8,), "float64", "x")
    mine = named(as_workload([x, te.compute((8,), lambda i: x[i] * 2.0, "y")], {}), "twice")
    with Log(tmp_path / "t.db") as log:
        session = log.start_run(mine, host(), {"cpu": "test"}, seed=0)
        log.add(NewRecord(session.uid, 0, "by hand", Trace(), "ok", times_s=(1e-6,)))
        log.finish_run(session)
    words = ("twice", "--threads", 1, "--db", tmp_path / "t.db", "--json")
    assert run("best", *words).json["task"]["dtype"] == "float64"
    assert run("tune", *words, "--frozen").json["task"]["dtype"] == "float64"
