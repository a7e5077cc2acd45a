"""Makes this Python that of a system that is not Linux, in a process of its own: nothing is undone."""

from __future__ import annotations

import importlib
import mmap
import os
import pkgutil
import signal
import socket
import sys

# What Python has on Linux and on macOS, and not on Windows; and what on Linux alone.
POSIX = {
    os: "fork forkpty killpg setpgid geteuid getuid nice setpriority register_at_fork sysconf waitid pread "
    "pwrite set_blocking O_NONBLOCK O_CLOEXEC O_DIRECTORY O_NOFOLLOW",
    mmap: "MAP_PRIVATE MAP_ANONYMOUS MAP_SHARED MADV_FREE PROT_READ",
    socket: "send_fds recv_fds",
    signal: "SIGKILL SIGBUS pthread_kill",
}
LINUX = {
    os: "sched_getaffinity sched_setaffinity memfd_create waitid",
    mmap: "MADV_HUGEPAGE MAP_NORESERVE",
}
LIBRARIES = (
    "asyncio numpy ml_dtypes llvmlite.binding psutil platformdirs subprocess tempfile multiprocessing.pool "
    "ctypes.util sqlalchemy.orm sqlite3 alembic typer rich.console pydantic xgboost threadpoolctl "
    "plotly.graph_objects"
)


# What psutil reads here: it knows other systems too.
OF_PSUTIL = ("/proc/meminfo", "/proc/stat", "/proc/vmstat")
# Left out: they are for this system as it was installed.
OTHERS = "torch onnx onnxruntime tvm cuda pycuda pyopencl pynvml distributed dask sklearn openai transformers"


def become(system: str, name: str | None = None) -> None:
    """``system``: "darwin" or "win32". ``name``: of it in Python, where that is told too: code for it cannot
    be run here."""
    for library in LIBRARIES.split():
        importlib.import_module(library)
    sys.modules.update(dict.fromkeys(OTHERS.split()))  # type: ignore[arg-type]
    lacks = [LINUX] if system == "darwin" else [LINUX, POSIX]
    for module, names in ((m, n.split()) for table in lacks for m, n in table.items()):
        for attribute in names:
            if hasattr(module, attribute):
                delattr(module, attribute)
    if system == "win32":
        sys.modules["fcntl"] = sys.modules["resource"] = None  # type: ignore[assignment]
        os.supports_dir_fd.clear()
    if name is not None:
        sys.platform = name

    def hook(event: str, args: tuple[object, ...]) -> None:
        path = str(args[0]) if event in ("open", "os.listdir") else ""
        if path.startswith(("/proc", "/sys/")) and path not in OF_PSUTIL:
            raise FileNotFoundError(f"{args[0]}: no such file")

    sys.addaudithook(hook)


def import_everything() -> int:
    """Import each module of the four packages whose libraries are there; how many."""
    count = 0
    for package in ("schedules", "cost_model", "kernels_db", "autotune"):
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if found.name.endswith("__main__") or found.name.startswith("kernels_db.migrations."):
                continue  # they run when they are imported
            try:
                importlib.import_module(found.name)
                count += 1
            except ModuleNotFoundError as err:
                if (err.name or "").partition(".")[0] in ("autotune", "fcntl", "resource"):
                    raise
            except ImportError as err:
                if "extra" not in str(err) and "install" not in str(err):
                    raise
    return count
