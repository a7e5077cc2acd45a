"""Time limits where the machine is loaded: time that a process waits for a CPU does not count."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import measure_fakes as fakes
import pytest
from waiting import wait_until

from autotune import targets
from autotune.measure import Measurer, Options, process
from autotune.measure.process import WAITING, Child, Slot, waiting_s

LINUX = sys.platform == "linux" and os.path.exists(f"/proc/{os.getpid()}/schedstat")
QUICK = Options(timeout_s=20.0, build_timeout_s=0.5, patience_s=2.0, memory_bytes=2 << 30)


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="the system does not tell")
def test_waiting_for_a_cpu_is_told_and_sleeping_is_none() -> None:
    cpu = min(os.sched_getaffinity(0))
    pin = f"import os, time; os.sched_setaffinity(0, {{{cpu}}})\n"
    spins = [subprocess.Popen([sys.executable, "-c", pin + "while True: pass"]) for _ in range(3)]
    sleeps = subprocess.Popen([sys.executable, "-c", pin + "time.sleep(60)"])
    try:
        wait_until(lambda: min(waiting_s(p.pid) for p in spins) >= 0.3)
        begin = waiting_s(sleeps.pid)
        time.sleep(0.3)
        assert min(waiting_s(p.pid) for p in spins) >= 0.3
        assert waiting_s(sleeps.pid) - begin < 0.1
    finally:
        for p in (*spins, sleeps):
            p.kill()
            p.wait()
    assert waiting_s(spins[0].pid) == 0.0  # no process any more


@pytest.mark.parametrize(("waited", "over"), [(0.0, True), (0.5, True), (3.0, False), (1e9, False)])
def test_a_deadline_is_put_off_by_the_time_waited(
    monkeypatch: pytest.MonkeyPatch, waited: float, over: bool
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(process, "waiting_s", lambda pid: 7.0 + waited)
    slot = Slot(None, "builder", Child(1, None, -1, -1))  # type: ignore[arg-type]
    slot._started, slot._limit, slot._waited, slot.deadline = now - 3.0, 2.0, 7.0, now - 1.0
    assert slot.overdue(now) == over
    assert slot.overdue(now + WAITING * 2.0)  # at last it is over, whatever it waited
    assert not slot.overdue(now - 2.9)


@pytest.mark.slow
def test_a_build_that_waits_for_a_cpu_is_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.monotonic()
    kinds = [fakes.trace("builds slowly"), fakes.trace("right")]
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=QUICK) as m:
        assert [x.status for x in m.measure(kinds)] == ["timeout", "ok"]
    monkeypatch.setattr(process, "waiting_s", lambda pid: 0.9 * (time.monotonic() - begin))
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=QUICK) as m:
        assert [x.status for x in m.measure(kinds)] == ["ok", "ok"]
