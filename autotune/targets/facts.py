"""Facts of this machine: caches and vector registers for a target, processor and software for the log."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from autotune.platform.cpus import cpu_list, usable_cpus
from autotune.platform.files import read
from autotune.platform.machine import cpu_model, memory_gib, nvidia_driver

DEFAULT_CACHES = {"l1_bytes": 32 << 10, "l2_bytes": 512 << 10, "l3_bytes": 8 << 20}  # a modest desktop core


def vector_unit(features: tuple[str, ...]) -> dict[str, int]:
    """Width in bytes and number of the vector registers that the extensions give."""
    if "avx512f" in features:
        return {"vector_bytes": 64, "vector_registers": 32}
    if "avx" in features:
        return {"vector_bytes": 32, "vector_registers": 16}
    return {"vector_bytes": 16, "vector_registers": 32 if "neon" in features else 16}


def caches(root: Path) -> dict[str, int]:
    """Data cache sizes in bytes, a shared cache divided by the cores that share it; defaults where
    unknown."""
    sizes = dict(DEFAULT_CACHES)
    siblings = len(cpu_list(read(root.parent / "topology" / "thread_siblings_list"))) or 1
    for index in sorted(root.glob("index*")):
        level, kind, size = read(index / "level"), read(index / "type"), read(index / "size")
        if kind == "Instruction" or level not in ("1", "2", "3") or not size:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
        digits = size.rstrip("KMG")
        if digits.isdigit():
            sharing = max(1, len(cpu_list(read(index / "shared_cpu_list"))) // siblings)
            sizes[f"l{level}_bytes"] = int(digits) * unit // sharing
    return sizes


def machine(generator: Mapping[str, str]) -> dict[str, str | int]:
    """The machine and its software, for the log; nothing that names a host, a user or a path. ``generator``
    is what `autotune.backends.building.generator_version` tells of this version."""
    import llvmlite
    import llvmlite.binding as llvm
    import numpy

    from schedules.distribution import VERSION

    return {
        "cpu": cpu_model(),
        "cpus": os.cpu_count() or 1,
        "usable_cpus": usable_cpus(),
        "memory_gib": memory_gib(),
        "system": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "llvmlite": llvmlite.__version__,
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "autotune": VERSION,
        **generator,
        **_gpu_software(),
    }


def _gpu_software() -> dict[str, str]:
    """Versions of what compiles for GPUs and runs on them, as far as it is installed."""
    from importlib import metadata  # takes long, and loading a kernel needs none of this

    found = {}
    driver = nvidia_driver()
    if driver:
        found["nvidia_driver"] = driver
    for name, package in (("nvrtc", "nvidia-cuda-nvrtc"), ("pyopencl", "pyopencl")):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(package)
    return found
