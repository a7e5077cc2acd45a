"""What works on a system that is not Linux, as far as Linux can tell: such a system is made up, by taking
away what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autotune.platform import clocks, cpus, faults, files, machine, pages, processes
from autotune.targets import facts, features

SUPPORT = Path(__file__).parents[2] / "support"
BEGIN = f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\nimport other_system\n"


def run(code: str, tmp_path: Path) -> str:
    env = os.environ | {"AUTOTUNE_DB": str(tmp_path / "t.db"), "AUTOTUNE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_every_module_is_imported(system: str, tmp_path: Path) -> None:
    code = f"other_system.become({system!r}, {system!r})\nprint(other_system.import_everything())"
    assert int(run(code, tmp_path)) > 700


KERNEL = """
import autotune as at, numpy as np
kernel = at.load("matmul", m=24, n=40, k=8, threads=1, fallback=True)
a, b = np.arange(192, dtype="float32").reshape(24, 8) % 7, np.arange(320, dtype="float32").reshape(8, 40) % 5
print(np.array_equal(kernel(a, b), a @ b))
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_kernel_that_nobody_tuned_is_picked_compiled_and_right(system: str, tmp_path: Path) -> None:
    assert run(f"other_system.become({system!r})\n{KERNEL}", tmp_path).split() == ["True"]


@pytest.mark.slow
def test_a_search_says_what_the_system_lacks(tmp_path: Path) -> None:
    code = """
other_system.become("win32")
import autotune as at
try:
    at.tune("matmul", m=16, n=16, k=16, threads=1, budget="5s")
except at.AutotuneError as err:
    print(type(err).__name__, err)
"""
    told = run(code, tmp_path)
    assert told.startswith(
        "MeasureError measuring could not start: this operating system lacks copies of a process (fork)"
    )
    assert "tune on Linux, and load kernels here from its log, or with fallback=True" in told


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without the files of Linux, affinity, and files in memory."""
    for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "waitid"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    for module in (files, machine, processes):
        for name in ("PROC", "CPU_INFO", "BOOT"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, Path("/nothing"))


def test_nothing_is_known_where_the_system_does_not_tell(elsewhere: None) -> None:
    assert cpus.usable_cpu_set() == frozenset() and cpus.usable_cpus() >= 1
    assert cpus.quota(Path("/nothing"), Path("/nothing")) is None
    assert machine.host_flags(Path("/nothing")) is None and machine.boot() is None
    assert machine.nvidia_driver() is None and machine.cpu_model()
    assert processes.own_threads() == [] and processes.scheduled(processes.folder_of(1)) == (0.0, 0.0)
    assert processes.began(os.getpid()) is None and processes.space_of_numbers() is None
    assert not processes.children_die_too() and faults.handle(0) is None
    assert facts.caches(Path("/nothing")) == facts.DEFAULT_CACHES
    assert machine.system() == "darwin" and features._same_system("arm64-apple-darwin23")
    assert features._same_system("arm64-apple-macosx14") and not features._same_system("x86_64-pc-linux-gnu")


def test_a_thread_stays_where_it_is_without_affinity(elsewhere: None) -> None:
    with cpus.on_cpus(frozenset({0})):
        pass


def test_priorities_are_left_alone_where_there_are_none(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "nice")
    monkeypatch.delattr(os, "setpriority")
    processes.step_back(10)
    processes.thread_steps_back(10)


def test_a_file_without_a_path_is_among_temporary_files(elsewhere: None, tmp_path: Path) -> None:
    file = files.anonymous_file("x")
    os.write(file, b"seven")
    assert os.pread(file, 9, 0) == b"seven" and os.fstat(file).st_nlink == 0
    os.close(file)


def test_a_child_is_reaped_without_waitid(elsewhere: None) -> None:
    for kill, status in ((False, 7), (True, -9)):
        code = f"import time; time.sleep({60 * kill}); raise SystemExit(7)"
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        assert os.waitstatus_to_exitcode(processes.reaped(child.pid, kill)) == status
        child.returncode = 0  # nobody waits for it again


def test_libraries_and_systems_have_the_names_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.driver_library("cuda") == "libcuda.so.1"
    monkeypatch.setattr(sys, "platform", "win32")
    assert machine.driver_library("cuda") == "nvcuda.dll" and machine.system() == "windows"
    assert features._same_system("x86_64-pc-windows-msvc")


def test_without_locks_nobody_is_kept_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "lock", "w") as one, open(tmp_path / "lock") as other:
        assert files.locked(one.fileno()) and not files.locked(other.fileno())
        assert files.is_read_only(other.fileno()) and not files.is_read_only(one.fileno())
        monkeypatch.setitem(sys.modules, "fcntl", None)
        assert files.locked(other.fileno()) and not files.is_read_only(other.fileno())


def test_without_limits_and_numbers_of_users_nothing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    processes.limit_own(1, 1)
    with open(os.devnull, "wb") as f:
        f.write(bytes(2))
    assert files.user_id() == os.geteuid()
    monkeypatch.delattr(os, "geteuid")
    assert files.user_id() == 0


def test_a_lower_limit_of_files_stays() -> None:
    code = """
import resource
from autotune.platform.processes import limit_own
limit_own(1 << 40, 64 << 20)
print(resource.getrlimit(resource.RLIMIT_FSIZE))
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
limit_own(1 << 40, 64 << 20)
print(resource.getrlimit(resource.RLIMIT_FSIZE), resource.getrlimit(resource.RLIMIT_CORE))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == [f"({64 << 20}, {64 << 20})", "(5000, 5000) (0, 0)"]


def test_what_measuring_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.lacking() == []
    processes.check_measuring()
    monkeypatch.delattr(os, "fork")
    with pytest.raises(OSError, match=r"lacks copies of a process \(fork\); tune on Linux"):
        processes.check_measuring()


def test_pages_are_reserved_opened_and_closed() -> None:
    size = 4 * pages.PAGE
    at = pages.reserve(size)
    pages.protect(at, size, pages.READ | pages.WRITE)
    pages.prefer_huge(at, size)
    view = np.frombuffer((np.ctypeslib.ctypes.c_byte * size).from_address(at), np.int8)
    assert not view.any()
    del view
    pages.give_back(at, size)
    with pytest.raises(MemoryError, match="cannot change the protection of"):
        pages.protect(at, size, pages.READ)
    with pytest.raises(MemoryError, match="cannot map"):
        pages.reserve(1 << 62)


def test_clocks_are_those_of_this_system() -> None:
    import time

    assert clocks.MONOTONIC == time.CLOCK_MONOTONIC and clocks.THREAD_CPU == time.CLOCK_THREAD_CPUTIME_ID
