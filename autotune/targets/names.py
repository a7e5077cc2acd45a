"""Targets by name: this host as a CPU, and the files of ``configs/targets``.

The identity of a target holds nothing that a change of affinity or quota moves, except ``threads``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from autotune.platform import cpus
from autotune.platform.machine import CPU_CACHES
from autotune.settings import config_file
from autotune.targets.facts import caches, vector_unit
from autotune.targets.features import detected
from kernels_db.opening import read_regular
from schedules.errors import AutotuneError, instead
from schedules.model import Target

# Largest file of a target (bytes).
MOST_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_-]+")


class TargetError(AutotuneError, ValueError):
    """A target name or description that means nothing here.

    >>> at.load("matmul", m=64, n=64, k=64, target="h99")
    Traceback (most recent call last):
        ...
    autotune.targets.names.TargetError: unknown target 'h99'; known: cpu, ...
    """


def detect(threads: int | None = None) -> Target:
    """This host as a CPU target with ``threads`` threads (default: the CPUs this process may use).

    Raises `TargetError` if ``threads`` is below 1 or above the CPUs this process may use.
    """
    import llvmlite.binding as llvm

    usable = cpus.usable_cpus()
    threads = usable if threads is None else threads
    check_threads(threads)
    if threads > usable:
        raise TargetError(
            f"threads={threads} is more than the {usable} CPUs this process may use; give 1 to {usable}"
        )
    features = detected()
    limits = {**vector_unit(features), **caches(CPU_CACHES), "cores": os.cpu_count() or 1}
    return Target(
        kind="cpu",
        arch=llvm.get_host_cpu_name(),
        triple=llvm.get_process_triple(),
        features=features,
        threads=threads,
        limits=tuple(sorted(limits.items())),
    )


def check_threads(threads: object) -> None:
    """Raises `TargetError` for what is no number of threads."""
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise TargetError(
            f"threads={threads!r} is not a positive integer; give 1 to {cpus.usable_cpus()} for this machine"
        )


def described() -> list[str]:
    """Names of the targets of ``configs/targets``."""
    folder = config_file("targets")
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted(f.name[:-5] for f in files if f.name.endswith(".json"))


def from_name(name_or_file: str, others: Iterable[str] = ("cpu",)) -> Target:
    """A target of ``configs/targets`` by its name, or one in a JSON file (the form of `Target.json`).
    Raises `TargetError`, which lists ``others`` too."""
    named = config_file("targets", f"{name_or_file}.json") if _NAME.fullmatch(name_or_file) else None
    if named is None or not named.is_file():
        if not name_or_file.endswith(".json"):
            known = list(dict.fromkeys([*others, *described()]))
            gpu = " (did you mean 'cuda'?)" if name_or_file == "gpu" else ""
            close = gpu or instead(name_or_file, known, "known:")
            raise TargetError(f"unknown target {name_or_file!r}{close}; or give a target's JSON file")
        named = None
    try:
        data = read_regular(name_or_file, MOST_BYTES) if named is None else named.read_bytes()
        return Target.from_json(data.decode("utf-8"))
    except OSError as err:
        raise TargetError(f"target file {name_or_file!r} cannot be read: {err.strerror}") from None
    except ValueError as err:
        raise TargetError(f"target file {name_or_file!r}: {err}") from None


def brief(target: Target) -> str:
    """``cpu znver3, 2 threads``."""
    return f"{target.kind} {target.arch}, {target.threads} thread{'s' if target.threads > 1 else ''}"
