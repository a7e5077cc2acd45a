"""What a worker does with a request: checks, keeps measurers, ends them, and gives way to others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fleet_cases import PEAK_S, A, B, FakeSite, facts
from log_cases import long_sum
from waiting import LIMIT_S

from autotune.backends.building.from_trace import build_object
from autotune.codegen.grid_code import MAGIC
from autotune.fleet import machine_lock, messages, serving
from autotune.fleet.errors import FleetError
from autotune.fleet.messages import FleetRequest, FleetTask
from autotune.fleet.serving import Bench, Unwanted, object_digest
from autotune.targets import detect
from autotune.tuning.open_measurers import OPEN
from schedules import ops
from schedules.model import Trace

ADD = ops.workload("add", {"n": 64})
GRID = MAGIC + b'{"kind": "cuda"}\n'


def request(do: str = "measure", n: int = 64, **more: Any) -> FleetRequest:
    task = FleetTask(ops.workload("add", {"n": n}), A, 10.0)
    given = {"do": do, "batch": "c.1", "task": task, "traces": (Trace(),), "generator": "g"}
    return FleetRequest(**given | more)


def bench(tmp_path: Path, site: FakeSite | None = None) -> Bench:
    return Bench([A], facts("here"), (0, 1), "g", site=site or FakeSite(), folder=tmp_path)


def test_what_is_measured_is_told_soon_and_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "TELL_S", 0.0)
    told: list[Any] = []
    sent = request(traces=(Trace(), Trace())).text()
    answer = messages.opened(bench(tmp_path).answer(sent, (), told.append))
    assert answer["machine"] == facts("here")
    assert [i for i, _ in answer["found"]] == [0, 1]
    assert messages.measurement(answer["found"][0][1]).time_s == 20 * PEAK_S
    assert [x["sign"] for x in told[:2]] == ["begun", "measuring"]
    assert [x["begins"] for x in told if "begins" in x] == [0, 1]
    assert [i for x in told[2:] for i, _ in x["found"]] == [0, 1]
    monkeypatch.setattr(serving, "TELL_S", 9.0)
    told.clear()
    bench(tmp_path).answer(sent, (), told.append)
    assert len(told) == 2  # the answer has all


def test_the_limit_of_the_machine(tmp_path: Path) -> None:
    answer = messages.opened(bench(tmp_path).answer(request("limit").text()))
    assert (answer["limit_s"], answer["rates"]) == (PEAK_S, {})


@pytest.mark.parametrize(
    ("change", "objects", "reason"),
    [
        ({"generator": "other"}, (), "different versions of autotune or LLVM; install the same on both"),
        (
            {"task": FleetTask(ADD, B, 10.0)},
            (),
            "for cpu kind-b, threads: 1, and this worker offers cpu kind-a",
        ),
        ({"objects": ((0, "0" * 32),)}, (), "not as many as it says"),
        ({"objects": ((0, "0" * 32),)}, (b"code",), "an object was changed on its way"),
        ({"objects": ((0, object_digest(b"AUTOTUNE-GRID")),)}, ("text",), "not as many as it says"),
        ({"objects": ((0, object_digest(GRID)),)}, (GRID,), "an object is not for the target"),
    ],
)
def test_a_request_for_others_is_refused(
    change: dict[str, Any], objects: Any, reason: str, tmp_path: Path
) -> None:
    site = FakeSite()
    error = messages.opened(bench(tmp_path, site).answer(request(**change).text(), objects))["error"]
    assert error["kind"] == "message" and reason in error["text"]
    assert not site.measured


def test_objects_that_were_compiled_elsewhere_are_measured(tmp_path: Path) -> None:
    site = FakeSite()
    code = build_object(ADD.canonical, Trace(), detect(1))
    sent = request(traces=(Trace(), Trace()), objects=((1, object_digest(code)),))
    answer = messages.opened(bench(tmp_path, site).answer(sent.text(), (code,)))
    assert len(answer["found"]) == 2 and site.given == [code]


def test_changed_objects_are_refused(tmp_path: Path) -> None:
    site = FakeSite()
    made = bench(tmp_path, site)
    code = build_object(ADD.canonical, Trace(), detect(1))
    sent = request(objects=((0, object_digest(code)),)).text()
    for at in range(0, len(code), max(1, len(code) // 200)):
        bad = code[:at] + bytes([code[at] ^ 1]) + code[at + 1 :]
        assert "changed on its way" in messages.opened(made.answer(sent, (bad,)))["error"]["text"]
    assert not site.given


def test_measurers_of_a_few_tasks_are_kept(tmp_path: Path) -> None:
    site = FakeSite()
    made = bench(tmp_path, site)
    for n in (64, 64, 128):
        made.answer(request(n=n).text())
    assert site.open == 2
    for n in range(1, 2 * OPEN):
        made.answer(request(n=64 * n).text())
    assert site.open == OPEN
    made.answer(request("close", n=64 * (2 * OPEN - 1)).text())
    assert site.open == OPEN - 1
    made.close_idle(after_s=100.0)
    assert site.open == OPEN - 1
    made.close_idle(after_s=0.0)
    assert site.open == 0


def test_arrays_move_when_the_client_says_so(tmp_path: Path) -> None:
    site = FakeSite()
    made = bench(tmp_path, site)
    for place in (0, 0, 1, 1, 2):
        made.answer(request("finalists", place=place).text())
    assert (site.moves, site.finals) == (2, 5)


def test_a_target_that_does_not_run_there_is_no_message_but_a_reason(tmp_path: Path) -> None:
    made = Bench([A, detect(1)], facts("here"), (), "g", site=FakeSite(), folder=tmp_path)
    error = messages.opened(made.answer(request(task=FleetTask(ADD, detect(1), 10.0)).text()))["error"]
    assert error["kind"] == "task" and "does not run here" in error["text"]


def test_what_nobody_waits_for_ends_with_its_processes(tmp_path: Path) -> None:
    site = FakeSite()
    made = bench(tmp_path, site)
    left = [True, True, True, False]
    with pytest.raises(Unwanted):
        made.answer(
            request(traces=(Trace(),) * 5).text(), (), lambda event: time.sleep(0), lambda: left.pop(0)
        )
    assert site.open == 0 and len(site.measured) < 5


HOLD = """
import sys, time
from pathlib import Path
from autotune.fleet import machine_lock
with machine_lock.held(map(int, sys.argv[2].split(",")), folder=Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path, cpus: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has CPUs until its stdin is closed."""
    command = [sys.executable, "-c", HOLD, str(folder), cpus]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as found:
        assert found.stdout is not None and found.stdout.readline() == "held\n"
        yield found
        found.kill()


def test_workers_that_share_a_cpu_take_turns(tmp_path: Path) -> None:
    with holder(tmp_path, "1,2") as other:
        with machine_lock.held((3, 4), folder=tmp_path):
            assert other.poll() is None  # it shares none with these
        waited = []

        def waiting() -> None:
            assert other.stdin is not None
            waited.append(other.poll())
            other.stdin.close()

        with machine_lock.held((0, 1), waiting, folder=tmp_path):
            assert other.wait(LIMIT_S) == 0 and waited[0] is None
        with machine_lock.held((2, 1), folder=tmp_path):
            pass


@pytest.mark.slow
def test_a_process_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    with holder(tmp_path, "0") as other:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        with machine_lock.held((0,), folder=tmp_path):
            pass


@pytest.mark.slow
def test_waiting_for_a_cpu_can_be_given_up(tmp_path: Path) -> None:
    site = FakeSite()
    made = bench(tmp_path, site)
    calls = iter([True] * 20 + [False] * 1000)
    with holder(tmp_path, "0,1"), pytest.raises(Unwanted):
        made.answer(request().text(), (), lambda event: None, lambda: next(calls))
    assert not site.measured


def test_a_lock_is_no_way_to_write_elsewhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "autotune-cpu-0.lock").symlink_to(victim)
    with (
        pytest.raises(FleetError, match="cpu-0.lock cannot be opened"),
        machine_lock.held((0,), folder=tmp_path),
    ):
        pass
    assert not victim.exists()


def test_a_reference_is_not_computed_beyond_the_deadline_nor_where_it_takes_for_ever(tmp_path: Path) -> None:
    target = detect(1)
    made = Bench([target], facts("here"), (0, 1), "g", folder=tmp_path)  # which really measures
    task = FleetTask(ADD, target, 10.0)
    late = messages.opened(made.answer(request(task=task, left_s=0.0).text()))
    assert late["found"] == [] and not made._kept
    endless = FleetTask(long_sum(10**11), target, 10.0)
    for more in ({}, {"left_s": 1.0}):
        error = messages.opened(made.answer(request(task=endless, **more).text()))["error"]
        assert error["kind"] == "task" and "takes about" in error["text"] and "smaller sizes" in error["text"]


@pytest.mark.slow
def test_a_reference_ends_where_nobody_waits(tmp_path: Path) -> None:
    target = detect(1)
    made = Bench([target], facts("here"), (0, 1), "g", folder=tmp_path)
    asked = 0

    def wanted() -> bool:
        nonlocal asked
        asked += 1
        return asked < 3  # at the beginning, and once it has the CPUs

    with pytest.raises(Unwanted):
        made.answer(request(task=FleetTask(ADD, target, 10.0)).text(), wanted=wanted)
    assert not made._kept
