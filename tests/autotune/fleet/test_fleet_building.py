"""Compiling on the client for machines that do not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from fleet_cases import A
from waiting import wait_until

from autotune.backends import parse
from autotune.fleet import building
from autotune.fleet.building import Batch, Builders
from autotune.fleet.messages import FleetTask
from autotune.measure import starting
from autotune.measure.results import Measurement
from autotune.targets import detect
from schedules import ops
from schedules.model import Step, Target, Trace

WORKLOAD = ops.workload("add", {"n": 64})
NO_LOOP = Trace((Step("unroll", (("loop", "nowhere"),)),))


@pytest.fixture
def builders() -> Iterator[Builders]:
    with Builders(2) as made:
        yield made


def begun(builders: Builders, task: FleetTask, *traces: Trace) -> Batch:
    return builders.begin(task, dict(enumerate(traces)))


def refusal(batch: Batch, number: int = 0) -> Measurement | None:
    """Why a candidate could not be built."""
    return batch.taken([number], time.sleep)[1].get(number)


def task(target: Target | None = None) -> FleetTask:
    return FleetTask(WORKLOAD, target or detect(1), 10.0)


@pytest.mark.slow
def test_what_is_right_is_built_and_what_is_not_has_a_reason(builders: Builders) -> None:
    batch = begun(builders, task(), Trace(), NO_LOOP, Trace())
    refused = [refusal(batch, i) for i in range(3)]
    assert refused[0] is None and refused[2] is None and refused[1] is not None
    assert refused[1].status == "illegal" and "nowhere" in refused[1].reason
    built, _ = batch.taken([0, 2], time.sleep)
    assert built[0] == built[2] and built[0][:4] == b"\x7fELF"


@pytest.mark.slow
def test_code_for_another_processor_is_built(builders: Builders) -> None:
    batch = begun(builders, task(parse("x86-64-v3", 1)), Trace())
    assert refusal(batch) is None


@pytest.mark.slow
def test_code_for_a_machine_of_another_family_is_built(builders: Builders) -> None:
    limits = (("vector_bytes", 16), ("vector_registers", 32))
    board = Target("cpu", "cortex-a78", "aarch64-unknown-linux-gnu", ("neon",), 1, limits)
    others = [ops.workload("matmul", {"m": 8, "n": 8, "k": 8}), ops.workload("softmax", {"m": 4, "n": 8})]
    for workload in [WORKLOAD, *others]:
        batch = begun(builders, FleetTask(workload, board, 10.0), Trace())
        code = batch.taken([0], time.sleep)[0][0]
        assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == 183  # EM_AARCH64


@pytest.mark.slow
def test_a_builder_that_ends_fails_its_candidate_alone(
    builders: Builders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM ends the process for a processor that it does not know."""
    batch = begun(builders, task(A), Trace())
    found = refusal(batch)
    assert found is None or found.status in ("crash", "compile_error")
    monkeypatch.setattr(starting, "_BOOT", "import os, sys\nos._exit(3)\n")
    with Builders(1) as broken:
        dead = refusal(begun(broken, task(), Trace()))
        assert dead is not None and (dead.status, dead.reason) == ("crash", "the builder ended")
        monkeypatch.undo()
        assert refusal(begun(broken, task(), Trace())) is None


def test_where_no_process_can_be_started_nothing_is_known_of_a_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(starting.subprocess, "Popen", full)
    with Builders(1) as made:
        found = refusal(begun(made, task(), Trace()))
        assert found is not None and found.status == "error" and "temporarily unavailable" in found.reason


def test_nobody_waits_for_a_build_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C, in the midst of a build that takes long."""
    monkeypatch.setattr(starting, "_BOOT", "import time\ntime.sleep(600)\n")
    began = time.monotonic()
    with Builders(1) as slow:
        batch = begun(slow, task(), Trace(), Trace())
        wait_until(batch.futures[0].running)
        batch.close()
    assert time.monotonic() - began < 120.0  # that of a build is 600 s
    assert batch.futures[0].result()[0] == "crash" and batch.futures[1].cancelled()


def test_a_build_that_takes_too_long_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "BUILD_S", 0.2)
    monkeypatch.setattr(building, "START_S", 0.1)
    monkeypatch.setattr(starting, "_BOOT", "import time\ntime.sleep(600)\n")
    with Builders(1) as slow:
        found = refusal(begun(slow, task(), Trace()))
        assert found is not None and found.status == "timeout"
