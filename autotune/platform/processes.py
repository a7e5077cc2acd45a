"""Processes: how they begin and end together, what limits them, and how long they waited for a CPU."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence

from autotune.platform.files import PROC

# Option of Linux's prctl: the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1
# Time that a child which is to end has to do so by itself (seconds).
GRACE_S = 2.0
# The wait status of a process that was killed; Windows names no such signal.
KILLED = int(getattr(signal, "SIGKILL", 9))
# What measuring needs of a system: where it is, its name there, and what it is.
_NEEDED = (
    (os, "fork", "copies of a process (fork)"),
    (os, "killpg", "groups of processes"),
    (socket, "send_fds", "open files that are sent to another process"),
)


def lacking() -> list[str]:
    """What this system lacks of what measuring needs for its processes. Empty on Linux and macOS."""
    return [what for module, name, what in _NEEDED if not hasattr(module, name)]


def check_measuring() -> None:
    """Raises `OSError` where candidates cannot be measured, with what the system lacks."""
    if lacking():
        raise OSError(
            f"this operating system lacks {', '.join(lacking())}; tune on Linux, and load kernels here from "
            "its log, or with fallback=True"
        )


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends, and end now if it already has. Elsewhere than on Linux
    the end of its socket has to tell it."""
    if children_die_too():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, KILLED, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def children_die_too() -> bool:
    """Whether children that called `die_with` are killed when this process is: on Linux."""
    return sys.platform == "linux"


def forked(control: socket.socket, life: Callable[[Sequence[int]], None], fds: Sequence[int]) -> int:
    """The number of a new process that runs ``life`` with these descriptors and ends. The second is its error
    output. All are closed here, and there ``control``, the socket of this process."""
    pid = os.fork()
    if pid == 0:
        control.close()
        status = 1
        try:
            os.dup2(fds[1], 2)
            life(fds)
            status = 0
        except BaseException as err:
            os.write(2, f"{type(err).__name__}: {err}\n".encode())
        finally:
            os._exit(status)
    for f in fds:
        os.close(f)
    return pid


def lead_group() -> None:
    """Have this process lead a group of its own, which `reaped` ends as a whole."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)


def limit_own(memory_bytes: int, file_bytes: int) -> None:
    """From now on this process may map this much more memory (Linux alone counts it), write files of this
    size at most, and leaves no dump. Nothing where the system has no such limits, as Windows."""
    try:
        import resource
    except ImportError:
        return
    try:
        with open(PROC / "self/statm", encoding="ascii") as f:
            mapped = int(f.read().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes, mapped + memory_bytes))
    except (OSError, ValueError):  # not Linux: no such limit is kept there
        pass
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)  # which a process cannot raise
    most = file_bytes if hard == resource.RLIM_INFINITY else min(file_bytes, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def step_back(nice: int) -> None:
    """Lower the priority of this process. Nothing where the system has no such number."""
    if hasattr(os, "nice"):
        os.nice(nice)


def thread_steps_back(nice: int) -> None:
    """Lower the priority of this thread. Linux alone has one for each thread: nothing elsewhere."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def reaped(pid: int, kill: bool) -> int:
    """Wait status of a child, whose process group is gone when this returns."""
    if kill:
        kill_group(pid)
    end = time.monotonic() + GRACE_S
    pause = 5e-5
    while (status := _ended(pid)) is None:
        if time.monotonic() > end:
            kill_group(pid)
        time.sleep(pause)
        pause = min(2 * pause, 2e-3)
    return status


def _ended(pid: int) -> int | None:
    """Wait status of a child that ended, without what it may have started; None for one that goes on."""
    if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        kill_group(pid)  # the number is still the child's
        return os.waitpid(pid, 0)[1]
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        return None
    kill_group(pid)  # a number is not given again while a group has it
    return status


def kill_group(pid: int) -> None:
    """Kill a process, and those of the group that it leads."""
    for kill in (os.killpg, os.kill):  # the group may not have been made yet
        try:
            kill(pid, KILLED)
        except (ProcessLookupError, PermissionError):
            pass


def end_child(pid: int) -> int:
    """Kill a child and wait for it; its number. Where its own children would stay it is waited for alone: the
    end of its socket ends it."""
    if children_die_too():
        os.kill(pid, KILLED)
    return os.waitpid(pid, 0)[0]


def signal_thread(thread: int, number: int) -> None:
    """Send a signal to a thread of this process; to the process where the system knows no threads."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(thread, number)
    else:
        signal.raise_signal(signal.Signals(number))


def own_threads() -> list[str]:
    """A folder for each thread of this process, which `scheduled` takes. Empty where the system has none."""
    folder = f"{PROC}/self/task"
    try:
        return [f"{folder}/{thread}" for thread in os.listdir(folder)]
    except OSError:
        return []


def folder_of(pid: int) -> str:
    """The folder of a process, which `scheduled` takes: it tells of the main thread."""
    return f"{PROC}/{pid}"


def scheduled(task: str) -> tuple[float, float]:
    """Seconds that a thread had a CPU, and that it was ready to run and had none, since it began. ``task``:
    of `own_threads` or `folder_of`. Zeros where the system does not tell."""
    try:
        with open(f"{task}/schedstat") as f:
            ran, waited = f.read().split()[:2]
            return int(ran) * 1e-9, int(waited) * 1e-9
    except (OSError, ValueError):
        return 0.0, 0.0


def began(pid: int) -> int | None:
    """When a process began, in ticks since the machine's start; None for one that is gone, and where the
    system does not tell."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
        fields = stat[stat.rindex(b")") :].split()  # a name may have spaces and brackets
        return None if fields[1] in (b"Z", b"X") else int(fields[20])
    except (OSError, ValueError, IndexError):
        return None


def space_of_numbers() -> str | None:
    """Names the container in which numbers of processes hold; None where the system does not tell."""
    try:
        return os.readlink(PROC / "self/ns/pid")
    except OSError:
        return None


def when_told_to_end(add: Callable[[int, Callable[[], object]], object], do: Callable[[], object]) -> None:
    """Have a loop of asyncio call ``do`` at SIGTERM. ``add``: its ``add_signal_handler``. Windows has none:
    Ctrl-C alone ends it there."""
    try:
        add(signal.SIGTERM, do)
    except NotImplementedError:
        pass
