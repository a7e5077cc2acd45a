"""Hostile input from outside: sizes, targets, options and logs that must end in a message, not in a crash."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import run
from log_filler import fill, host

import autotune as at
from autotune import backends
from autotune.backends.building import from_trace
from autotune.measure import memory
from autotune.run.workloads import as_workload
from autotune.settings import database
from autotune.tuning.interrupts import Interrupts
from kernels_db import Log, NewRecord
from schedules import ops, te
from schedules.errors import ScheduleError
from schedules.model import Step, Trace
from schedules.te.tensors import Tensor
from schedules.trace_names import to_canonical

MATMUL = {"m": 512, "n": 512, "k": 512}
SHAPE = ",".join(f"{k}={v}" for k, v in MATMUL.items())


def step(primitive: str, **args: Any) -> Step:
    return Step(primitive, tuple(sorted(args.items())))


def split(loop: str, *factors: int) -> Step:
    return step("split", loop=loop, factors=(None, *factors), tail="guard")


def store(db: Path, trace: Trace) -> None:
    """A log that claims ``trace`` to be the fastest kernel there is."""
    with Log(db) as log:
        workload = ops.workload("matmul", MATMUL)
        made = log.start_run(workload, host(), {"cpu": "elsewhere"}, seed=0)
        stored, _ = to_canonical(workload, trace)
        log.add(NewRecord(made.uid, 0, "x", stored, "ok", times_s=[1e-9], kind="final"))


# -- command line ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune", "add", "--shape", "n=17179869184"], "GiB of memory"),
        (["tune", "matmul", "--shape", "m=131072,n=131072,k=1"], "GiB of memory"),
        (["tune", "matmul", "--shape", "m=9999,n=9999,k=9999", "--budget", "1s"], "use up the budget"),
        (["tune", "conv2d", "--shape", "h=8,w=8,ci=8,co=8,k=3,padding=1000000000"], "make it smaller"),
        (["tune", "matmul", "--shape", SHAPE, "--seed", str(10**26)], "2^63 - 1"),
        (["tune", "matmul", "--shape", SHAPE, "--threads", "999"], "threads=999 is more than"),
        (
            ["tune", "matmul", "--shape", SHAPE, "--target", "x86-64-v3", "--threads", "999"],
            "CPUs|cannot run",
        ),
        (["tune", "matmul", "--shape", "m=1e18,n=1,k=1"], "not an integer"),
        (["tune", "matmul", "--shape", f"m={10**18},n=1,k=1"], "outside 1.."),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_status_2(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 64 << 30)
    found = run(*words, "--db", tmp_path / "t.db", "--json")
    assert found.status == 2
    message = found.json["error"]["message"]
    assert any(part in message for part in said.split("|")), message


def test_a_target_that_this_cpu_cannot_run_is_refused_before_anything_runs(tmp_path: Path) -> None:
    there = replace(host(), arch="future", features=tuple(sorted({*host().features, "amx-fp16"})))
    if backends.runnable(there):
        pytest.skip("this CPU has the newest extension there is")
    path = tmp_path / "there.json"
    path.write_text(there.json, encoding="utf-8")
    found = run("tune", "matmul", "--shape", SHAPE, "--target", path, "--db", tmp_path / "t.db")
    assert found.status == 2 and "cannot run code for" in found.err
    with pytest.raises(at.TargetError, match="cannot run code for"):
        at.load("matmul", **MATMUL, target=there, db=tmp_path / "t.db", fallback=True)


def test_why_a_stored_kernel_is_not_taken_is_said(tmp_path: Path) -> None:
    there = replace(host(), arch="future", features=tuple(sorted({*host().features, "amx-fp16"})))
    if backends.runnable(there):
        pytest.skip("this CPU has the newest extension there is")
    fill(tmp_path / "t.db", [("matmul", MATMUL, 1e-6)], there)
    found = run("best", "matmul", "--shape", SHAPE, "--db", tmp_path / "t.db")
    assert found.status == 1 and "this CPU lacks amx-fp16" in found.err


@pytest.mark.parametrize("bad", ["5s", True, 0, -1.0, float("nan"), float("inf")])
def test_a_budget_of_the_wrong_kind_is_refused(bad: Any, tmp_path: Path) -> None:
    with pytest.raises(at.SettingsError, match="the budget is"):
        at.tune("matmul", **MATMUL, budget_s=bad, db=tmp_path / "t.db")


@pytest.mark.parametrize(
    "option", [{"trials": "5"}, {"trials": 1.5}, {"trials": -1}, {"seed": "x"}, {"seed": -1}]
)
def test_counts_of_the_wrong_kind_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(at.SettingsError, match="it must be an integer"):
        at.tune("matmul", **MATMUL, db=tmp_path / "t.db", **option)


def test_a_database_or_dtype_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(at.SettingsError, match="give a path"):
        database(5)  # type: ignore[arg-type]
    with pytest.raises(at.WorkloadError, match="dtype 5"):
        at.load("matmul", **MATMUL, dtype=5, db=tmp_path / "t.db")  # type: ignore[arg-type]


def test_without_a_dtype_an_operator_has_float32_or_its_own(tmp_path: Path) -> None:
    sizes = {"m": 5, "n": 6, "k": 7}
    common: dict[str, Any] = {**sizes, "threads": 1, "db": tmp_path / "t.db"}
    tuned = at.tune("quantized_matmul", **common, trials=0, progress=None)
    assert tuned.workload.dag.params[0].dtype == "uint8"
    for dtype in (None, "uint8"):
        assert at.load("quantized_matmul", **common, dtype=dtype).chosen_by == "log"
        assert at.best("quantized_matmul", **common, dtype=dtype).time_s == tuned.best.time_s
        assert at.explain("quantized_matmul", **common, dtype=dtype)
    assert as_workload("matmul", sizes).digest == as_workload("matmul", sizes, "float32").digest
    where = ("--shape", "m=5,n=6,k=7", "--threads", 1, "--db", tmp_path / "t.db")
    done = run("best", "quantized_matmul", *where)
    assert done.status == 0 and "uint8" in done.out


# -- size ------------------------------------------------------------------------------------------


def test_memory_is_counted_with_every_copy() -> None:
    dag = ops.workload("add", {"n": 1 << 20}).dag
    assert memory.needed_bytes(dag) > 3 * 3 * 4 << 20
    memory.check_fits(dag, free=1 << 30)
    with pytest.raises(at.WorkloadError, match="use smaller sizes"):
        memory.check_fits(dag, free=8 << 20)


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert memory.free_bytes(tmp_path) == 600000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes(tmp_path) > 600000


def test_a_system_that_does_not_tell_of_memory_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_proc() -> None:
        raise FileNotFoundError(2, "No such file or directory", "/proc/meminfo")

    monkeypatch.setattr(memory.psutil, "virtual_memory", no_proc)
    assert memory.free_bytes(tmp_path) == sys.maxsize
    memory.check_fits(ops.workload("add", {"n": 1 << 20}).dag, free=memory.free_bytes(tmp_path))


def test_indices_of_huge_extents_are_checked_without_listing_them() -> None:
    n = 1 << 39
    x = te.placeholder((n,), name="x")

    def shifted(by: int) -> Tensor:
        return te.compute((n,), lambda i: te.select(i >= 1, x[i - by], 0.0), name="y")

    shifted(1)
    with pytest.raises(at.WorkloadError, match="is -1 at i=1"):
        shifted(2)


# -- logs that say what they like --------------------------------------------------------------------

TOO_MUCH: dict[str, tuple[list[Step], str]] = {
    "every loop unrolled": ([step("unroll", loop=x) for x in ("c_i", "c_j", "c_k")], "unrolls to"),
    "two loops unrolled": ([step("unroll", loop=x) for x in ("c_i", "c_j")], "unrolls to"),
    "too many lanes": (
        [step("reorder", loops=("c_i", "c_k", "c_j")), step("vectorize", loop="c_j")],
        "lanes",
    ),
    "one step, many loops": ([split("c_i", *[1] * 5000)], "longer than any schedule"),
    "many steps": ([step("partition", loop="c_i")] * 3000, "longer than any schedule"),
    "deep nest": ([split("c_i" + "_0" * x, 1) for x in range(250)], "nests loops or an expression"),
    "buffers beyond every address": (
        [
            step("cache_read", block="c", buffer="a", scope="global"),
            step("pack", buffer="a_global", tiles=(2**40, 2**40), order=(0, 1, 2, 3)),
        ],
        "GiB",
    ),
    "unknown primitive": ([step("__init__", dag=3)], "unknown primitive"),
    "unknown argument": ([step("unroll", loop="c_i", foo=1)], "takes loop"),
    "rounded up beyond 64 bits": (
        [step("split", loop="c_i", factors=(2**62, 4), tail="guard"), step("parallel", loop="c_i_0")],
        "step 0: split c_i: .* exceed 64 bits",
    ),
    "digits without end": ([split("c_i", 10**4000, 1, 2)], "exceed 64 bits"),
    "tiles that are all tail": ([split("c_i", 2**40, 4)], "the loops run"),
    "tails upon tails": ([split(f"c_{x}", 2**24, 4) for x in "ijk"], "the loops run"),
    "negative factor": ([split("c_i", -4)], "below 1"),
    "wrong kind": ([step("unroll", loop=((("c_i",),),))], "is not a"),
}


@pytest.mark.fast(but=["deep nest"])
@pytest.mark.usefixtures("usual_recursion")
@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_stored_schedule_beyond_reason_is_refused(name: str, tmp_path: Path) -> None:
    steps, said = TOO_MUCH[name]
    store(tmp_path / "t.db", Trace(tuple(steps)))
    with pytest.raises(ScheduleError, match=said):
        at.load("matmul", **MATMUL, threads=1, db=tmp_path / "t.db")
    found = run("best", "matmul", "--shape", SHAPE, "--threads", 1, "--db", tmp_path / "t.db")
    assert found.status == 2 and "cannot be used" in found.err
    fill(tmp_path / "t.db", [("matmul", MATMUL, 1e-3)])
    with pytest.warns(UserWarning, match=said):  # and the next best is taken
        assert at.best("matmul", **MATMUL, threads=1, db=tmp_path / "t.db").time_s == 1e-3


@pytest.mark.slow
def test_a_factor_beyond_the_extent_still_computes(tmp_path: Path) -> None:
    store(tmp_path / "t.db", Trace((split("T2_i0", 2**62),)))
    kernel = at.load("matmul", **MATMUL, threads=1, db=tmp_path / "t.db")
    a, b = (np.random.default_rng(0).integers(-3, 4, (512, 512)).astype(np.float32) for _ in range(2))
    assert np.array_equal(kernel(a, b), a @ b)


def test_operations_count_copies() -> None:
    dag = ops.workload("matmul", {"m": 64, "n": 64, "k": 64}).dag
    plain = from_trace.operations(from_trace.scheduled(dag, Trace(), host()).body, 16)
    inner = Trace((step("unroll", loop="c_k"),))
    assert from_trace.operations(from_trace.scheduled(dag, inner, host()).body, 16) > 50 * plain / 2


def test_code_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    dag = ops.workload("matmul", {"m": 4, "n": 4, "k": 4}).dag
    lines = from_trace.emit_module(dag, Trace(), host()).text.count("\n")
    monkeypatch.setattr(from_trace, "MAX_LINES", 5)
    with pytest.raises(ScheduleError, match=r"gives \d+ lines of code, more than 5; unroll fewer"):
        from_trace.build_object(dag, Trace(), host())
    monkeypatch.setattr(from_trace, "MAX_LINES", lines)
    from_trace.build_object(dag, Trace(), host())


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["skylake-avx512", "znver5", "nosuchcpu", "", 'a"b'])
def test_the_name_of_a_stored_processor_decides_nothing(arch: str, tmp_path: Path) -> None:
    there = replace(host(), arch=arch, features=("avx2", "fma", "made-up", "sse2"))
    if not backends.runnable(there):
        pytest.skip("a test of x86 with AVX2")
    assert backends.confined(there).arch == "x86-64"
    assert backends.confined(there).features == ("avx2", "fma", "sse2")
    assert backends.confined(host()) == host()
    fill(tmp_path / "t.db", [("matmul", {"m": 8, "n": 8, "k": 8}, 1e-6)], there)
    script = (
        "import sys, numpy as np, autotune as at\n"
        "a = np.ones((8, 8), np.float32)\n"
        "kernel = at.load('matmul', m=8, n=8, k=8, db=sys.argv[1], nearest=True)\n"
        "assert (kernel(a, a) == 8).all()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "t.db")], check=True)


@pytest.mark.slow
def test_two_logs_merge_to_the_same_bytes_in_either_order_and_again(tmp_path: Path) -> None:
    for name, m in (("a", 8), ("b", 16)):
        fill(tmp_path / f"{name}.db", [("matmul", {"m": m, "n": 8, "k": 8}, 1e-6), ("add", {"n": 9}, 2e-6)])
    for into, parts in (("ab", "ab"), ("ba", "ba")):
        for _ in range(2):
            found = run(
                "log", "merge", *(tmp_path / f"{x}.db" for x in parts), "--db", tmp_path / f"{into}.db"
            )
            assert found.status == 0
        assert run("log", "export", tmp_path / f"{into}.jsonl", "--db", tmp_path / f"{into}.db").status == 0
    assert (tmp_path / "ab.jsonl").read_bytes() == (tmp_path / "ba.jsonl").read_bytes()
    again = run("log", "import", tmp_path / "ab.jsonl", "--db", tmp_path / "ba.db", "--json")
    assert again.json["new"] == 0 and again.json["refused"] == {}


def test_hostile_lines_are_refused_and_counted(tmp_path: Path) -> None:
    fill(tmp_path / "a.db", [("add", {"n": 9}, 2e-6)])
    run("log", "export", tmp_path / "a.jsonl", "--db", tmp_path / "a.db")
    head, *rest = (tmp_path / "a.jsonl").read_text().splitlines()
    bomb = '{"type":"x","a":' + "[" * 100_000 + "]" * 100_000 + "}"
    bad = ["{", "null", "[]", "{}", '{"type":"record"}', bomb, '{"a":' * 50_000, "\x00", "x" * (3 << 20)]
    bad += [
        '{"type":"run","seed":1e999}',
        '{"type":"machine","digest":"0","definition":{"x":' + "9" * 5000 + "}}",
    ]
    (tmp_path / "bad.jsonl").write_text("\n".join([head, *bad, *rest]))
    found = run("log", "import", tmp_path / "bad.jsonl", "--db", tmp_path / "b.db", "--json")
    assert found.status == 1 and found.json["new"] == len([x for x in rest if '"type":"record"' in x])
    assert sum(found.json["refused"].values()) == len(bad)


# -- loading and interrupts ----------------------------------------------------------------------------


@pytest.mark.slow
def test_loading_imports_no_search_no_model_and_no_mapper(tmp_path: Path) -> None:
    fill(tmp_path / "t.db", [("matmul", {"m": 8, "n": 8, "k": 8}, 1e-6)])
    script = (
        "import sys, json, autotune as at\n"
        "at.load('matmul', m=8, n=8, k=8, db=sys.argv[1])\n"
        "at.load('matmul', m=8, n=8, k=8, db=sys.argv[1], fallback=True)\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "t.db")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    roots = {"xgboost", "sklearn", "scipy", "sqlalchemy", "alembic", "typer", "rich", "cost_model", "psutil"}
    parts = {"autotune.search", "autotune.tuning", "autotune.measure", "schedules.space", "autotune.cli"}
    loaded = json.loads(done.stdout)
    assert not [m for m in loaded if m.split(".")[0] in roots or any(m.startswith(p) for p in parts)]


@pytest.fixture
def interrupt(terminal_signals: None) -> Callable[[], None]:
    return lambda: signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_for_the_end_of_a_held_block(interrupt: Callable[[], None]) -> None:
    reached = []
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        with interrupts.hold():
            interrupt()
            reached.append("end of the block")
        reached.append("after it")
    assert reached == ["end of the block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_only_the_first_interrupt_counts(interrupt: Callable[[], None]) -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        interrupt()
        with interrupts.hold():
            interrupt()
    with pytest.raises(KeyboardInterrupt):
        interrupt()
