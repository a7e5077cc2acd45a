"""Measurers of one thread that start Python once: what forks from it, what ends it, what a kill costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import measure_fakes as fakes
import psutil
import pytest
from children import children, folders
from test_measure_processes import QUICK, family, gone

from autotune import targets
from autotune.measure import Measurer, starting
from autotune.measure.starting import Nursery, shared_start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them")


def measurer() -> Measurer:
    return Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=QUICK)


def started() -> list[psutil.Process]:
    """Pythons that this process started for measuring, oldest first."""
    return children("autotune.measure")


@pytest.mark.slow
def test_two_measurers_start_python_once_and_all_ends_with_the_block() -> None:
    with shared_start():
        for _ in range(2):
            with measurer() as m, measurer() as beside:
                assert [next(x.measure([fakes.trace("right")])).status for x in (m, beside)] == ["ok", "ok"]
                assert m.nominal == beside.nominal  # measured once
                [nursery] = started()
                zygotes = nursery.children()
                assert len(zygotes) == 2 and all(len(z.children()) >= 2 for z in zygotes)
            assert gone(zygotes) and nursery.is_running() and not nursery.children()
    assert gone([nursery])


@pytest.mark.slow
def test_what_happens_to_a_candidate_is_told_as_without_it() -> None:
    kinds = ["right", "null store", "illegal", "wrong", "builder dies", "writes past", "right"]
    traces = [fakes.trace(k, i) for i, k in enumerate(kinds)]
    with measurer() as m:
        alone = [(x.status, x.reason) for x in m.measure(traces)]
    with shared_start(), measurer() as m:
        assert [(x.status, x.reason) for x in m.measure(traces)] == alone


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["nursery", "zygote"])
def test_what_is_killed_is_replaced(killed: str) -> None:
    with shared_start(), measurer() as m, measurer() as beside:
        for x in (m, beside):
            assert next(x.measure([fakes.trace("right")])).ok
        [nursery] = started()
        (nursery if killed == "nursery" else nursery.children()[0]).kill()
        for x in (m, beside):
            got = [y.status for y in x.measure([fakes.trace("right", i) for i in range(4)])]
            assert got[-1] == "ok" and set(got) <= {"ok", "crash"}
        found = started()
    assert len(found) == 1 and gone(found)


@pytest.mark.slow
def test_moving_makes_a_new_zygote_of_the_same_start() -> None:
    with shared_start(), measurer() as m:
        assert next(m.measure([fakes.trace("right")])).ok
        [nursery] = started()
        before = {z.pid for z in nursery.children()}
        m.move()
        assert next(m.measure([fakes.trace("right")])).ok
        assert started() == [nursery] and not before & {z.pid for z in nursery.children()}


def test_blocks_within_share_it_and_threads_have_their_own() -> None:
    with shared_start():
        outer = Nursery.of_thread()
        with shared_start():
            assert Nursery.of_thread() is outer
        assert Nursery.of_thread() is outer
        found: list[Nursery | None] = []
        thread = threading.Thread(target=lambda: found.append(Nursery.of_thread()))
        thread.start()
        thread.join()
        assert found == [None]
    assert Nursery.of_thread() is None


def test_a_fork_of_the_process_leaves_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_start():
        assert Nursery.of_thread() is not None
        with monkeypatch.context() as patch:
            patch.setattr(starting.os, "getpid", lambda: -1)
            assert Nursery.of_thread() is None


@pytest.mark.slow
def test_no_process_outlives_a_killed_parent() -> None:
    code = (
        f"import sys; sys.path[:0] = {folders(__file__)!r}\n"
        "from test_starting import fakes, measurer, shared_start\n"
        "with shared_start(), measurer() as m:\n"
        "    assert next(m.measure([fakes.trace('right')])).ok\n"
        "    print('ready', flush=True)\n"
        "    list(m.measure([fakes.trace('hangs')]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None and p.stdout.readline().strip() == "ready"
        processes = family(p.pid)
        assert len(processes) >= 4  # the nursery, the zygote, a builder, the worker
        os.kill(p.pid, signal.SIGKILL)
        p.wait()
        assert gone(processes), processes
