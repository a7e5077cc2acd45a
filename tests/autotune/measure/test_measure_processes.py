"""Processes and descriptors: nothing is left behind, whatever happens to whom."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import measure_fakes as fakes
import psutil
import pytest
from children import children, folders

from autotune import targets
from autotune.measure import Measurer, Options
from autotune.measure.process import MeasureError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's")
QUICK = Options(timeout_s=30.0, patience_s=2.0, repeats=1)

TUNER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
sys.path[:0] = {folders!r}
import measure_fakes as fakes
from autotune import targets
from autotune.measure import Measurer, Options
options = Options(timeout_s=300, builders=1)
with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=options) as m:
    m.start()
    print("ready", flush=True)
    kinds = {kinds!r}
    for x in m.measure([fakes.trace(k, i) for i, k in enumerate(kinds)]):
        print(x.status, flush=True)
"""


def tuner(kinds: list[str]) -> subprocess.Popen[str]:
    code = TUNER.format(folders=folders(__file__), kinds=kinds)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def family(pid: int) -> list[psutil.Process]:
    """Descendants, without the tracker that multiprocessing leaves running once another test has used it."""
    return children(pid=pid, but="multiprocessing.resource_tracker", recursive=True)


def gone(processes: list[psutil.Process], within_s: float = 10.0) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return all(p.status() == psutil.STATUS_ZOMBIE for p in alive)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hangs", "builder hangs"])
def test_no_process_outlives_a_killed_parent(kind: str) -> None:
    with tuner(["right", kind]) as p:
        assert p.stdout is not None
        assert [p.stdout.readline().strip() for _ in range(2)] == ["ready", "ok"]
        time.sleep(0.3)  # into the hang
        processes = family(p.pid)
        assert len(processes) >= 3  # the zygote, a builder, the worker
        os.kill(p.pid, signal.SIGKILL)
        p.wait()
        assert gone(processes), processes


@pytest.mark.slow
def test_ctrl_c_is_the_parents_alone() -> None:
    with tuner(["right", "hangs"]) as p:
        assert p.stdout is not None
        assert [p.stdout.readline().strip() for _ in range(2)] == ["ready", "ok"]
        processes = family(p.pid)
        for child in processes:
            child.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert all(child.is_running() for child in processes)
        p.send_signal(signal.SIGINT)
        assert p.wait(20) != 0
        assert gone(processes), processes


@pytest.mark.slow
def test_close_ends_every_process_and_may_be_repeated() -> None:
    m = Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=QUICK)
    next(m.measure([fakes.trace("right")]))
    processes = family(os.getpid())
    assert processes
    m.close()
    m.close()
    assert gone(processes)


@pytest.mark.slow
def test_a_killed_zygote_is_replaced() -> None:
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=QUICK) as m:
        assert next(m.measure([fakes.trace("right")])).ok
        zygote = children("autotune.measure.zygote")
        assert len(zygote) == 1
        zygote[0].kill()
        zygote[0].wait(10)
        got = [x.status for x in m.measure([fakes.trace("right", i) for i in range(4)])]
        assert got[-1] == "ok" and set(got) <= {"ok", "crash"}


@pytest.mark.slow
def test_what_a_candidate_starts_dies_with_its_worker() -> None:
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=QUICK) as m:
        list(m.measure([fakes.trace("forks")]))
        processes = family(os.getpid())
    assert gone(processes), processes


@pytest.mark.slow
def test_a_caller_that_leaves_early_leaves_nothing_running() -> None:
    options = replace(QUICK, builders=1)  # with two, the one that hangs may run first
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=options) as m:
        results = m.measure([fakes.trace(k, i) for i, k in enumerate(["right", "hangs", "right"])])
        assert next(results).ok
        results.close()
        assert next(m.measure([fakes.trace("right", 9)])).ok


@pytest.mark.slow
def test_no_descriptor_leaks_over_many_candidates() -> None:
    kinds = ["right", "null store", "illegal", "wrong", "builder dies"] * 20
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=QUICK) as m:
        list(m.measure([fakes.trace(k) for k in kinds[:5]]))
        before = len(os.listdir("/proc/self/fd"))
        zygote = family(os.getpid())[0]
        zygote_before = zygote.num_fds()
        assert len(list(m.measure([fakes.trace(k, i) for i, k in enumerate(kinds)]))) == 100
        assert len(os.listdir("/proc/self/fd")) <= before + 3  # one child more may be alive now
        assert zygote.num_fds() <= zygote_before
        assert len(zygote.children()) <= 1 + max(1, targets.usable_cpus())


@pytest.mark.slow
@pytest.mark.parametrize(
    "refusing", ["socket.socketpair", "autotune.measure.process.anonymous_file", "subprocess.Popen"]
)
@pytest.mark.parametrize("started", [False, True])
def test_too_many_open_files_are_told_with_a_remedy(
    refusing: str, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=QUICK) as m:
        if started:
            m.start()
            if refusing == "subprocess.Popen":
                m.zygote.end()
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patched:
            patched.setattr(refusing, refuse)
            with pytest.raises(
                MeasureError, match=r"could not start: Too many open files; allow more: ulimit"
            ):
                list(m.measure([fakes.trace("right")]))
        assert len(os.listdir("/proc/self/fd")) <= before
        assert next(m.measure([fakes.trace("right")])).ok


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.slow
@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="this Linux gives no huge pages"
)
def test_a_worker_writes_to_huge_pages_as_numpy_does() -> None:
    dag = fakes.addition((1024, 4096))  # 16 MiB each
    with Measurer(dag, targets.detect(1), build=fakes.NAME, options=QUICK) as m:
        assert next(m.measure([fakes.trace("right")])).ok
        child = m.runner.child
        assert child is not None
        maps = Path(f"/proc/{child.pid}/smaps").read_text()
    regions = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", maps, flags=re.M)
    written = [x for x in regions if " rw-p " in x.split("\n", 1)[0] and _kb(x, "Rss") >= 16 << 10]
    assert len(written) >= 2  # where it is checked, and where it is timed
    for region in written:
        assert _kb(region, "AnonHugePages") >= _kb(region, "Rss") / 2, region


def _kb(region: str, what: str) -> int:
    found = re.search(rf"^{what}: *([0-9]+) kB", region, re.M)
    return int(found[1]) if found else 0


@pytest.mark.slow
def test_after_a_move_new_processes_time_what_was_built_before() -> None:
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME) as m:
        (before,) = m.measure([fakes.trace("right")])
        zygote, object_, nominal = m.zygote._process, m.object(fakes.trace("right")), m.nominal
        m.move()
        m.builders = []  # nothing is built again
        (after,) = m.finalists([fakes.trace("right")])
        assert before.ok and after.ok and zygote is not None and zygote.poll() is not None
        assert m.zygote._process is not zygote and m.object(fakes.trace("right")) == object_
        assert m.nominal == nominal, "times before and after are to compare"
