"""Targets: what this host is (`detect`), what a name means (`parse`), whether code for a target can run here.

`runnable` and `usable_cpus` read files of the operating system only, so that loading a kernel need not import
llvmlite. The identity of a target holds nothing that a change of affinity or quota moves, except ``threads``.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from autotune.codegen.simt import cxx
from autotune.settings import config_file
from schedules.errors import AutotuneError
from schedules.model import Target, digest

EMULATOR = "emulator"  # the architecture of a GPU that a C++ compiler and this CPU stand in for
_NAME = re.compile(r"[A-Za-z0-9_-]+")
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
DEFAULT_CACHES = {"l1_bytes": 32 << 10, "l2_bytes": 512 << 10, "l3_bytes": 8 << 20}  # a modest desktop core

_NO_DEVICE = {
    "cuda": "there is no NVIDIA GPU here, or no driver, or no bindings: pip install 'autotune[cuda]'; "
    "target='cuda-emulator' runs its code on this CPU, to check it",
    "opencl": "there is no OpenCL device here; pip install 'autotune[opencl]' and the driver of your device, "
    "or use target='cpu'",
}

# LLVM's name of an extension that generated code may use -> its name in /proc/cpuinfo, where they differ.
X86_NAMES = {
    "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "bmi": "bmi1", "lzcnt": "abm",
    "pclmul": "pclmulqdq", "sha": "sha_ni", "avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16", "avx512bitalg": "avx512_bitalg", "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512fp16": "avx512_fp16", "avx512vp2intersect": "avx512_vp2intersect", "avxvnni": "avx_vnni",
    "avxifma": "avx_ifma", "avxvnniint8": "avx_vnni_int8", "avxvnniint16": "avx_vnni_int16", "avxneconvert":
    "avx_ne_convert", "amx-tile": "amx_tile", "amx-int8": "amx_int8", "amx-bf16": "amx_bf16", "amx-fp16":
    "amx_fp16",
}  # fmt: skip
X86_SAME = {
    "sse", "sse2", "ssse3", "sse4a", "avx", "avx2", "fma", "fma4", "f16c", "bmi2", "popcnt", "movbe", "aes",
    "vaes", "vpclmulqdq", "gfni", "adx", "xop", "cmov", "avx512f", "avx512bw", "avx512cd", "avx512dq",
    "avx512vl", "avx512vbmi", "avx512ifma",
}  # fmt: skip
ARM_NAMES = {
    "neon": "asimd", "fp-armv8": "fp", "dotprod": "asimddp", "fullfp16": "asimdhp", "sve": "sve",
    "sve2": "sve2", "bf16": "bf16", "i8mm": "i8mm", "lse": "atomics", "rdm": "asimdrdm",
}  # fmt: skip


class TargetError(AutotuneError, ValueError):
    """A target name or description that means nothing here."""


def detect(threads: int | None = None) -> Target:
    """This host as a CPU target with ``threads`` threads (default: the CPUs this process may use).

    Raises `TargetError` if ``threads`` is below 1 or above the CPUs this process may use.
    """
    import llvmlite.binding as llvm

    usable = usable_cpus()
    threads = usable if threads is None else threads
    _check_threads(threads)
    if threads > usable:
        raise TargetError(
            f"threads={threads} is more than the {usable} CPUs this process may use; give 1 to {usable}"
        )
    features = tuple(sorted(name for name, on in llvm.get_host_cpu_features().items() if on))
    limits = {**vector_unit(features), **caches(CPU_CACHES), "cores": os.cpu_count() or 1}
    return Target(
        kind="cpu",
        arch=llvm.get_host_cpu_name(),
        triple=llvm.get_process_triple(),
        features=features,
        threads=threads,
        limits=tuple(sorted(limits.items())),
    )


def _check_threads(threads: object) -> None:
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise TargetError(
            f"threads={threads!r} is not a positive integer; give 1 to {usable_cpus()} for this machine"
        )


def detect_device(kind: str) -> Target:
    """The first device of this host of a kind, "cuda" or "opencl". Raises `TargetError` if there is none."""
    from autotune.devices import select

    if not select.available(kind):
        raise TargetError(_NO_DEVICE[kind])
    found = select.device(kind)
    return Target(kind, found.arch(), limits=tuple(sorted(found.attributes().items())))


def parse(target: str | Target | None, threads: int | None = None) -> Target:
    """A target from what a user gives: None or "cpu" (this host), "cuda" or "opencl" (its first device), a
    name of ``configs/targets``, a JSON file's path, or a `Target`.

    Raises `TargetError` for anything else, and for ``threads`` that are not a positive integer.
    """
    if threads is not None:
        _check_threads(threads)
    if isinstance(target, Target):
        _check_threads(target.threads)
        return target if threads is None else replace(target, threads=threads)
    if target is None or target == "cpu":
        return detect(threads)
    if not isinstance(target, str):
        raise TargetError(f"target {target!r} is not a name, a file or a Target; use target='cpu'")
    if target in ("cuda", "opencl"):
        return detect_device(target)
    found = from_name(target)
    return found if threads is None or found.kind != "cpu" else replace(found, threads=threads)


def from_name(name_or_file: str) -> Target:
    """A target of ``configs/targets`` by its name, or one in a JSON file (the form of `Target.json`).
    Raises `TargetError`."""
    named = config_file("targets", f"{name_or_file}.json") if _NAME.fullmatch(name_or_file) else None
    if named is None or not named.is_file():
        if not name_or_file.endswith(".json"):
            folder = config_file("targets")
            files = folder.iterdir() if folder.is_dir() else ()
            known = ", ".join(["cpu", *sorted(f.name[:-5] for f in files if f.name.endswith(".json"))])
            raise TargetError(
                f"unknown target {name_or_file!r}; known: {known}, or the path of a target's JSON file"
            )
        named = Path(name_or_file)
    try:
        return Target.from_json(named.read_text(encoding="utf-8"))
    except OSError as err:
        raise TargetError(f"target file {name_or_file!r} cannot be read: {err.strerror}") from None
    except ValueError as err:
        raise TargetError(f"target file {name_or_file!r}: {err}") from None


def usable_cpu_set() -> frozenset[int]:
    """The CPUs that the calling thread may use; empty where the system does not tell."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


@contextmanager
def on_cpus(cpus: frozenset[int]) -> Iterator[None]:
    """The calling thread, and threads that it creates meanwhile, may use these CPUs (none: as they are)."""
    before = usable_cpu_set()
    if cpus and cpus != before:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus and cpus != before:
            os.sched_setaffinity(0, before)


def cores_first(cpus: frozenset[int], root: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """CPUs in an order in which the first are of different cores."""

    def number(cpu: int) -> tuple[int, int]:
        siblings = _cpu_list(_read(root / f"cpu{cpu}" / "topology" / "thread_siblings_list"))
        return sum(x in cpus for x in siblings if x < cpu), cpu

    return sorted(cpus, key=number)


def usable_cpus() -> int:
    """How many CPUs this process may keep busy: its affinity, cut by the cgroup's CPU quota (at least 1)."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _quota()
    return max(1, count if quota is None else min(count, int(quota + 0.5)))


def runnable(target: Target) -> bool:
    """Whether this host is of the target's family and has every extension that its code may use, or has what
    emulates it."""
    if emulated(target):
        return cxx.command() is not None
    if target.kind in _NO_DEVICE:
        from autotune.devices import select

        return select.available(target.kind) and select.device(target.kind).arch() == target.arch
    return target.kind == "cpu" and _same_family(target) and not lacking(target)


def lacking(target: Target) -> tuple[str, ...]:
    """The extensions of a target of this host's family that this host lacks, sorted."""
    flags = host_flags()
    if flags is None:  # no /proc/cpuinfo: ask LLVM
        import llvmlite.binding as llvm

        has = {name for name, on in llvm.get_host_cpu_features().items() if on}
        return tuple(sorted(set(target.features) - has))
    names = _names()
    return tuple(sorted(f for f in target.features if f in names and names[f] not in flags))


def brief(target: Target) -> str:
    """``cpu znver3, 2 threads``."""
    return f"{target.kind} {target.arch}, {target.threads} thread{'s' if target.threads > 1 else ''}"


def confined(target: Target) -> Target:
    """The target to generate code for when a runnable target comes from elsewhere: this host's processor
    as it is, any other by its extensions alone. The name of a processor implies more of them, and names
    and extensions that LLVM does not know end the process."""
    here = detect(1)
    if target.kind != "cpu":
        return target
    if (target.arch, target.features) == (here.arch, here.features):
        return target
    x86 = _family(target.triple.split("-")[0]) == "x86"
    known = tuple(f for f in target.features if f in _names())
    return replace(target, arch="x86-64" if x86 else "generic", triple=here.triple, features=known)


def emulated(target: Target) -> bool:
    """Whether the target is a GPU whose code this host runs itself, to check it: its times say nothing."""
    return target.kind == "cuda" and target.arch == EMULATOR


def measured_by(target: Target) -> Target:
    """The CPU that runs what is measured for a target, and its clock."""
    return detect(1) if target.kind != "cpu" else target


def check_here(target: Target) -> None:
    """Raises `TargetError` unless code for a target can run on this host, with as many threads."""
    if emulated(target) and not runnable(target):
        raise TargetError(f"cannot emulate a GPU: {cxx.MISSING}")
    if not runnable(target):
        missing = f"{target.kind} {target.arch}" if target.kind == "cpu" else f"a {target.kind} target"
        raise TargetError(f"this CPU cannot run code for {missing}; use target='cpu', which is this host")
    usable = usable_cpus()
    if target.threads > usable:
        raise TargetError(
            f"threads={target.threads} is more than the {usable} CPUs this process may use; "
            f"give 1 to {usable}"
        )


def host_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str] | None:
    """The extensions of the first CPU that the kernel lists, or None where there is no such file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return None


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
    siblings = len(_cpu_list(_read(root.parent / "topology" / "thread_siblings_list"))) or 1
    for index in sorted(root.glob("index*")):
        level, kind, size = _read(index / "level"), _read(index / "type"), _read(index / "size")
        if kind == "Instruction" or level not in ("1", "2", "3") or not size:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
        digits = size.rstrip("KMG")
        if digits.isdigit():
            sharing = max(1, len(_cpu_list(_read(index / "shared_cpu_list"))) // siblings)
            sizes[f"l{level}_bytes"] = int(digits) * unit // sharing
    return sizes


def machine() -> dict[str, str | int]:
    """The machine and its software, for the log; nothing that names a host, a user or a path. ``generator``
    stands for all that makes code of a trace, ``thread_runtime`` for what its threads are."""
    import llvmlite
    import llvmlite.binding as llvm
    import numpy

    from autotune import __version__
    from autotune.run.kernels import generator_version

    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count() or 1,
        "usable_cpus": usable_cpus(),
        "memory_gib": _memory_gib(),
        "system": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "llvmlite": llvmlite.__version__,
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "autotune": __version__,
        "generator": generator_version(),
        "thread_runtime": f"autotune pool {digest(_source('codegen/threads.py'))[:12]}",
        **_gpu_software(),
    }


def _source(name: str) -> str:
    from importlib.resources import files  # loading a kernel needs none of this

    return files("autotune").joinpath(name).read_text(encoding="utf-8")


def _gpu_software() -> dict[str, str]:
    """Versions of what compiles for GPUs and runs on them, as far as it is installed."""
    from importlib import metadata  # takes long, and loading a kernel needs none of this

    found = {}
    driver = re.search(r"Kernel Module(?: for \S+)?\s+([0-9.]+)", _read(Path("/proc/driver/nvidia/version")))
    if driver:
        found["nvidia_driver"] = driver[1]
    for name, package in (("nvrtc", "nvidia-cuda-nvrtc"), ("pyopencl", "pyopencl")):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(package)
    return found


def _names() -> dict[str, str]:
    """LLVM's name of every extension of this host's family that code may use -> the kernel's name."""
    if _family(platform.machine()) == "x86":
        return X86_NAMES | {name: name for name in X86_SAME}
    return ARM_NAMES


def _same_family(target: Target) -> bool:
    return _family(target.triple.split("-")[0]) == _family(platform.machine()) and _same_system(target.triple)


def _family(architecture: str) -> str:
    name = architecture.lower()
    if name in ("x86_64", "amd64"):
        return "x86"
    return "arm" if name in ("aarch64", "arm64") else name


def _same_system(triple: str) -> bool:
    system = {"linux": "linux", "darwin": "darwin", "win32": "windows"}.get(sys.platform, sys.platform)
    return system in triple or (system == "darwin" and "macos" in triple)


def _cpu_model() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> int:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    except (ValueError, OSError, AttributeError):
        return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpu_list(text: str) -> list[int]:
    """The CPUs of a kernel list such as "0-3,8"; empty if it is not one."""
    out: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        if not low.isdigit() or (high and not high.isdigit()):
            return []
        out.extend(range(int(low), int(high or low) + 1))
    return out


def _quota(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """The tightest CPU quota of this process's cgroups, in CPUs; None where there is none."""
    quotas: list[float] = []
    for line in _read(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            bases = [root, root / "unified"]
        elif "cpu" in controllers.split(","):
            bases = [root / "cpu", root / controllers]
        else:
            continue
        parts = [p for p in path.split("/") if p and p != ".."]
        for base in bases:
            for depth in range(len(parts) + 1):  # a limit may stand at any level above the process
                folder = base.joinpath(*parts[:depth])
                fields = _read(folder / "cpu.max").split()
                if len(fields) != 2:
                    fields = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
                if all(f.isdigit() for f in fields) and int(fields[1]) > 0:
                    quotas.append(int(fields[0]) / int(fields[1]))
    return min(quotas, default=None)
