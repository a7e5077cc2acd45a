"""What works on this machine, what does not, and what would make it work.

Each check returns one `Finding`; a check that raises is itself a finding, so that one broken part
never hides the others.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from autotune import backends
from autotune.settings import LlmSettings, Settings, SettingsError
from autotune.settings.own_folders import refusal_of
from schedules.distribution import install


@dataclass(frozen=True, slots=True)
class Finding:
    """``status``: ok, warn (works, with something missing) or fail. ``remedy``: what to do, or empty."""

    name: str
    status: str
    detail: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "status": self.status, "detail": self.detail, "remedy": self.remedy}


def examine(db: str, settings: Settings) -> list[Finding]:
    """Every finding about this machine, in the order in which one would mend things."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("python", python),
        ("llvm", llvm),
        ("cpu", cpu),
        ("caches", caches),
        ("cores", cores),
        ("compile and run", compile_and_run),
        ("threading of numpy", blas),
        ("cost model", xgboost),
        ("tuning log", lambda: log(db)),
        ("object cache", lambda: objects(settings.cache_dir)),
        ("torch", torch),
        ("export", export),
        ("fleet", fleet),
        ("llm", llm),
        *((name, partial(device, name)) for name in backends.BACKENDS[1:]),
    ]
    return [_guarded(name, check) for name, check in checks]


def _guarded(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as err:  # the report is the place where every failure belongs
        return Finding(
            name, "fail", f"{type(err).__name__}: {err}", "please report this with the output of doctor"
        )


def python() -> Finding:
    where = f"{platform.system()} {platform.machine()}"
    found = f"{platform.python_implementation()} {platform.python_version()} on {where}"
    if sys.version_info[:2] < (3, 11) or sys.version_info[:2] >= (3, 14):
        return Finding("python", "fail", found, "use Python 3.11, 3.12 or 3.13")
    if platform.python_implementation() != "CPython":
        return Finding(
            "python", "fail", found, "use CPython: compiled kernels are called through its interface"
        )
    return Finding("python", "ok", found)


def llvm() -> Finding:
    try:
        import llvmlite
        import llvmlite.binding as binding
    except (ImportError, OSError) as err:
        return Finding(
            "llvm", "fail", f"llvmlite cannot be imported: {err}", "pip install --force-reinstall llvmlite"
        )
    version = ".".join(map(str, binding.llvm_version_info))
    return Finding("llvm", "ok", f"llvmlite {llvmlite.__version__} with LLVM {version}")


def cpu() -> Finding:
    from autotune import targets

    host = targets.detect(1)
    width = host.limit("vector_bytes")
    detail = f"{host.arch}, vectors of {8 * width} bits, {host.limit('vector_registers')} vector registers"
    name = str(targets.machine({}).get("cpu", "")).strip()
    if name:
        detail = f"{name} ({detail})"
    if host.triple.startswith("x86") and "fma" not in host.features:
        return Finding(
            "cpu", "warn", detail, "no fused multiply-add: kernels reach at most half of the usual rate"
        )
    return Finding("cpu", "ok", detail)


def caches() -> Finding:
    from autotune import targets

    host = targets.detect(1)
    sizes = [f"L{i} {host.limit(f'l{i}_bytes') >> 10} KiB" for i in (1, 2, 3)]
    return Finding("caches", "ok", ", ".join(sizes) + " (each core's share)")


def cores() -> Finding:
    from autotune import targets

    usable, total = targets.usable_cpus(), int(targets.machine({}).get("cpus", 0))
    detail = f"{usable} of {total} CPUs may be used by this process"
    if usable < total:
        return Finding(
            "cores", "warn", detail, "affinity or a quota withholds the others; raise it to tune with all"
        )
    return Finding("cores", "ok", detail)


def compile_and_run() -> Finding:
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
        return Finding(
            "compile and run", "fail", "a compiled kernel gave a wrong result", "reinstall llvmlite"
        )
    return Finding("compile and run", "ok", "a small kernel was compiled, loaded and gave the right result")


def blas() -> Finding:
    import numpy as np
    import threadpoolctl

    pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
    if not pools:
        return Finding(
            "threading of numpy", "warn", f"numpy {np.__version__}, no BLAS that threadpoolctl knows",
            "bench cannot set the thread count of numpy; install numpy from a wheel",
        )  # fmt: skip
    p = pools[0]
    return Finding(
        "threading of numpy", "ok", f"numpy {np.__version__} with {p['internal_api']} {p['version']}"
    )


def xgboost() -> Finding:
    from cost_model.library import xgboost as imported

    try:
        module = imported()
    except Exception as err:  # a broken native library raises its own kinds of error
        return Finding(
            "cost model",
            "fail",
            f"xgboost cannot be imported: {err}",
            "pip install --force-reinstall xgboost-cpu",
        )
    return Finding("cost model", "ok", f"xgboost {module.__version__}")


def log(db: str) -> Finding:
    """Opens the log for reading if there is one, and tries the directory for writing."""
    from kernels_db import lookup
    from kernels_db.place import locate
    from kernels_db.sqlite import SqliteFile
    from schedules.errors import AutotuneError

    try:
        place = locate(db)
        lookup.best(place, "", lambda target: False)
    except AutotuneError as err:
        return Finding("tuning log", "fail", str(err), "choose another log with --db or AUTOTUNE_DB")
    if not isinstance(place, SqliteFile):
        return Finding("tuning log", "ok", f"{place}")
    found = writable("tuning log", place.path.absolute().parent, "AUTOTUNE_DB")
    if found.status != "ok":
        return found
    return Finding("tuning log", "ok", f"{place}" + ("" if place.exists() else " (made by the first tune)"))


def writable(name: str, folder: Path, variable: str) -> Finding:
    """Whether a file can be made in ``folder``, or in the nearest directory above it that exists."""
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as err:
        return Finding(
            name,
            "fail",
            f"{existing} cannot be written: {err.strerror}",
            f"name another place with {variable}",
        )
    return Finding(name, "ok", f"{folder}" + ("" if folder.exists() else " (made when first needed)"))


def objects(folder: Path) -> Finding:
    """Whether compiled kernels can be kept in ``folder``, and would be loaded from it."""
    found = writable("object cache", folder, "AUTOTUNE_CACHE_DIR")
    if found.status == "fail":  # kernels are compiled in each process then
        found = replace(found, status="warn")
    refusal = refusal_of(folder.stat()) if found.status == "ok" and folder.exists() else None
    if refusal is None:
        return found
    remedy = f"chmod 700 {folder}, or name a directory of this user with AUTOTUNE_CACHE_DIR"
    return Finding("object cache", "warn", f"{folder} {refusal}: it is not used", remedy)


def torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding(
            "torch",
            "ok",
            "not installed; import_torch, torch.compile, torch.op and bench --against torch need it",
            install("torch"),
        )
    from importlib.metadata import version

    return Finding("torch", "ok", f"torch {version('torch')}")


def export() -> Finding:
    """Whether kernels can be exported as shared objects."""
    from autotune.backends.building.shared_library import linker_name

    found = linker_name()
    if found is None:
        remedy = f"install gcc, or {install('emulator')}"
        return Finding("export", "warn", "there is no linker; only autotune export needs it", remedy)
    return Finding("export", "ok", f"{found} links shared objects")


def fleet() -> Finding:
    """Whether this machine can be a part of a fleet."""
    if importlib.util.find_spec("distributed") is None:
        return Finding(
            "fleet", "ok", "not installed; tune --fleet and autotune worker need it", install("fleet")
        )
    from importlib.metadata import version

    return Finding("fleet", "ok", f"distributed {version('distributed')}")


def llm() -> Finding:
    """Whether a search can ask a language model. No endpoint is asked here."""
    if importlib.util.find_spec("openai") is None:
        return Finding("llm", "ok", "not installed; tune --search llm needs it", install("llm"))
    from importlib.metadata import version

    found = f"openai {version('openai')}"
    if not LlmSettings.named():
        return Finding("llm", "ok", f"{found}; AUTOTUNE_LLM_URL names no endpoint")
    try:
        settings = LlmSettings.from_environment()
    except SettingsError as err:
        return Finding("llm", "warn", f"{found}; {err}")
    return Finding("llm", "ok", f"{found}; {settings.model or 'the first model'} at {settings.host}")


def device(name: str) -> Finding:
    """Of a backend for devices."""
    return Finding(name, "ok", *backends.named(name).diagnosis())
