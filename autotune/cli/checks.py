"""What works on this machine, what does not, and what would make it work.

Each check returns one `Outcome`; a check that raises is itself a finding, so that one broken part
never hides the others.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from autotune import backends
from autotune.settings import LlmSettings, NoPlaceError, SettingsError, cache_dir
from autotune.settings.own_folders import refusal_of
from schedules.distribution import install


class Outcome(NamedTuple):
    """``status``: ok, warn (works, with something missing) or fail. ``remedy``: what to do, or empty."""

    status: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """An `Outcome`, and the name of its check."""

    name: str
    status: str
    detail: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "status": self.status, "detail": self.detail, "remedy": self.remedy}


def examine(db: str) -> list[Finding]:
    """Every finding about this machine, in the order in which one would mend things."""
    checks: dict[str, Callable[[], Outcome]] = {
        "python": python,
        "llvm": llvm,
        "cpu": cpu,
        "caches": caches,
        "cores": cores,
        "memory": memory,
        "compile and run": compile_and_run,
        "threading of numpy": blas,
        "cost model": xgboost,
        "tuning log": lambda: log(db),
        "object cache": objects,
        "temporary files": temporary_files,
        "torch": torch,
        "export": export,
        "fleet": fleet,
        "llm": llm,
        **{name: partial(device, name) for name in backends.BACKENDS[1:]},
    }
    return [_guarded(name, check) for name, check in checks.items()]


def _guarded(name: str, check: Callable[[], Outcome]) -> Finding:
    try:
        return Finding(name, *check())
    except Exception as err:  # the report is the place where every failure belongs
        remedy = "please report this with the output of doctor"
        return Finding(name, "fail", f"{type(err).__name__}: {err}", remedy)


def python() -> Outcome:
    where = f"{platform.system()} {platform.machine()}"
    found = f"{platform.python_implementation()} {platform.python_version()} on {where}"
    if sys.version_info[:2] < (3, 11) or sys.version_info[:2] >= (3, 14):
        return Outcome("fail", found, "use Python 3.11, 3.12 or 3.13")
    if platform.python_implementation() != "CPython":
        return Outcome("fail", found, "use CPython: compiled kernels are called through its interface")
    return Outcome("ok", found)


def llvm() -> Outcome:
    try:
        import llvmlite
        import llvmlite.binding as binding
    except (ImportError, OSError) as err:
        remedy = "pip install --force-reinstall llvmlite"
        return Outcome("fail", f"llvmlite cannot be imported: {err}", remedy)
    version = ".".join(map(str, binding.llvm_version_info))
    return Outcome("ok", f"llvmlite {llvmlite.__version__} with LLVM {version}")


def cpu() -> Outcome:
    from autotune import targets
    from autotune.platform import amx, machine

    host = targets.detect(1)
    width = host.limit("vector_bytes")
    detail = f"{host.arch}, vectors of {8 * width} bits, {host.limit('vector_registers')} vector registers"
    name = str(targets.machine({}).get("cpu", "")).strip()
    if name:
        detail = f"{name} ({detail})"
    if host.triple.startswith("x86") and "fma" not in host.features:
        remedy = "no fused multiply-add: kernels reach at most half of the usual rate"
        return Outcome("warn", detail, remedy)
    if "amx_tile" in (machine.host_flags() or ()) and (reason := amx.trouble()) is not None:
        return Outcome("warn", f"{detail}; without AMX: {reason}", "kernels use its vector registers instead")
    return Outcome("ok", f"{detail}, AMX" if "amx-tile" in host.features else detail)


def caches() -> Outcome:
    from autotune import targets

    host = targets.detect(1)
    sizes = [f"L{i} {host.limit(f'l{i}_bytes') >> 10} KiB" for i in (1, 2, 3)]
    return Outcome("ok", ", ".join(sizes) + " (each core's share)")


def cores() -> Outcome:
    from autotune import targets

    usable, total = targets.usable_cpus(), int(targets.machine({}).get("cpus", 0))
    detail = f"{usable} of {total} CPUs may be used by this process"
    if usable < total:
        remedy = "affinity or a quota withholds the others; raise it to tune with all"
        return Outcome("warn", detail, remedy)
    return Outcome("ok", detail)


def memory() -> Outcome:
    from autotune.measure.memory import free_bytes

    free = free_bytes()
    if free == sys.maxsize:
        return Outcome("warn", "the system does not tell how much is free", "mount /proc")
    return Outcome("ok", f"{free / 2**30:.3g} GiB may be taken")


def temporary_files() -> Outcome:
    """Where they go. Tuning and loading need none."""
    from kernels_db.temporary import TemporaryFilesError, temporary_place

    try:
        return Outcome("ok", f"{temporary_place()}")
    except TemporaryFilesError as err:
        what, _, remedy = str(err).partition(": ")
        return Outcome("warn", f"{what}; export, emulation and fleets need them", remedy)


def compile_and_run() -> Outcome:
    """Builds y = x + x with the default schedule, runs it and compares."""
    import numpy as np

    from autotune.api import build
    from schedules import te
    from schedules.schedule import Schedule

    n = 1000
    x = te.placeholder((n,), "float32", name="X")
    y = te.compute((n,), lambda i: x[i] + x[i], name="Y")
    kernel = build(Schedule([x, y]), threads=1)
    given = np.arange(n, dtype=np.float32)
    if not np.array_equal(kernel(given), given + given):
        return Outcome("fail", "a compiled kernel gave a wrong result", "reinstall llvmlite")
    return Outcome("ok", "a small kernel was compiled, loaded and gave the right result")


def blas() -> Outcome:
    import numpy as np
    import threadpoolctl

    pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
    if not pools:
        remedy = "bench cannot set the thread count of numpy; install numpy from a wheel"
        return Outcome("warn", f"numpy {np.__version__}, no BLAS that threadpoolctl knows", remedy)
    p = pools[0]
    return Outcome("ok", f"numpy {np.__version__} with {p['internal_api']} {p['version']}")


def xgboost() -> Outcome:
    from cost_model.library import xgboost as imported

    try:
        module = imported()
    except Exception as err:  # a broken native library raises its own kinds of error
        remedy = "pip install --force-reinstall xgboost-cpu"
        return Outcome("fail", f"xgboost cannot be imported: {err}", remedy)
    return Outcome("ok", f"xgboost {module.__version__}")


def log(db: str) -> Outcome:
    """Opens the log for reading if there is one, and tries the directory for writing."""
    from kernels_db import lookup
    from kernels_db.place import locate
    from kernels_db.sqlite import SqliteFile
    from schedules.errors import AutotuneError

    try:
        place = locate(db)
        lookup.best(place, "", lambda target: False)
    except AutotuneError as err:
        return Outcome("fail", str(err), "choose another log with --db or AUTOTUNE_DB")
    if not isinstance(place, SqliteFile):
        return Outcome("ok", f"{place}")
    found = writable(place.path.absolute().parent, "AUTOTUNE_DB")
    if found.status != "ok":
        return found
    return Outcome("ok", f"{place}" + ("" if place.exists() else " (made by the first tune)"))


def writable(folder: Path, variable: str) -> Outcome:
    """Whether a file can be made in ``folder``, or in the nearest directory above it that exists."""
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as err:
        remedy = f"name another place with {variable}"
        return Outcome("fail", f"{existing} cannot be written: {err.strerror}", remedy)
    return Outcome("ok", f"{folder}" + ("" if folder.exists() else " (made when first needed)"))


def objects() -> Outcome:
    """Whether compiled kernels can be kept, and would be loaded again."""
    try:
        folder = cache_dir()
    except NoPlaceError as err:  # kernels are compiled in each process then
        what, _, remedy = str(err).rpartition(": ")
        return Outcome("warn", what, remedy)
    found = writable(folder, "AUTOTUNE_CACHE_DIR")
    if found.status == "fail":
        found = found._replace(status="warn")
    refusal = refusal_of(folder.stat()) if found.status == "ok" and folder.exists() else None
    if refusal is None:
        return found
    remedy = f"chmod 700 {folder}, or name a directory of this user with AUTOTUNE_CACHE_DIR"
    return Outcome("warn", f"{folder} {refusal}: it is not used", remedy)


def _library(name: str, extra: str, users: str) -> Outcome:
    """Of a library that need not be there. ``users``: what needs it, in words."""
    if importlib.util.find_spec(name) is None:
        return Outcome("ok", f"not installed; {users} it", install(extra))
    from importlib.metadata import version

    return Outcome("ok", f"{name} {version(name)}")


def torch() -> Outcome:
    return _library("torch", "torch", "import_torch, torch.compile, torch.op and bench --against torch need")


def export() -> Outcome:
    """Whether kernels can be exported as shared objects."""
    from autotune.backends.building.shared_library import linker_name

    found = linker_name()
    if found is None:
        remedy = f"install gcc, or {install('emulator')}"
        return Outcome("warn", "there is no linker; only autotune export needs it", remedy)
    return Outcome("ok", f"{found} links shared objects")


def fleet() -> Outcome:
    """Whether this machine can be a part of a fleet."""
    return _library("distributed", "fleet", "tune --fleet and autotune worker need")


def llm() -> Outcome:
    """Whether a search can ask a language model. No endpoint is asked here."""
    found = _library("openai", "llm", "tune --search llm needs")
    if found.remedy:
        return found
    if not LlmSettings.named():
        return Outcome("ok", f"{found.detail}; AUTOTUNE_LLM_URL names no endpoint")
    try:
        settings = LlmSettings.from_environment()
    except SettingsError as err:
        return Outcome("warn", f"{found.detail}; {err}")
    return Outcome("ok", f"{found.detail}; {settings.model or 'the first model'} at {settings.host}")


def device(name: str) -> Outcome:
    """Of a backend for devices."""
    return Outcome("ok", *backends.named(name).diagnosis())
