"""Extensions of processors: LLVM's names, those of this host, and which host is of a target's family.

It reads files of the operating system only, so that loading a kernel need not import llvmlite.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable

from autotune.platform import amx, machine
from autotune.platform.machine import host_flags
from schedules.model import Target

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

TILES = "amx-"  # what the names of extensions on tiles begin with


def detected() -> tuple[str, ...]:
    """The extensions of this host that code may use, by LLVM's names, sorted. Imports llvmlite."""
    import llvmlite.binding as llvm

    return _usable(name for name, on in llvm.get_host_cpu_features().items() if on)


def lacking(target: Target) -> tuple[str, ...]:
    """The extensions of a target of this host's family that this host lacks, sorted."""
    flags = host_flags()
    if flags is None:  # no /proc/cpuinfo: ask LLVM
        return tuple(sorted(set(target.features) - set(detected())))
    names = _names()
    has = _usable(f for f in target.features if names.get(f) in flags)
    return tuple(sorted(f for f in target.features if f in names and f not in has))


def _usable(names: Iterable[str]) -> tuple[str, ...]:
    """Without those that the operating system keeps from this process, sorted."""
    found = sorted(names)
    if any(f.startswith(TILES) for f in found) and amx.trouble() is not None:
        found = [f for f in found if not f.startswith(TILES)]
    return tuple(found)


def known(target: Target) -> tuple[str, ...]:
    """The extensions of a target that are known here."""
    return tuple(f for f in target.features if f in _names())


def generic(target: Target) -> str:
    """LLVM's name of any processor of a target's family."""
    return "x86-64" if _family(target.triple.split("-")[0]) == "x86" else "generic"


def same_family(target: Target) -> bool:
    """Whether this host is of a target's family and system."""
    family = _family(target.triple.split("-")[0])
    return family == _family(platform.machine()) and _same_system(target.triple)


def _names() -> dict[str, str]:
    """LLVM's name of every extension of this host's family that code may use -> the kernel's name."""
    if _family(platform.machine()) == "x86":
        return X86_NAMES | {name: name for name in X86_SAME}
    return ARM_NAMES


def _family(architecture: str) -> str:
    name = architecture.lower()
    if name in ("x86_64", "amd64"):
        return "x86"
    return "arm" if name in ("aarch64", "arm64") else name


def _same_system(triple: str) -> bool:
    system = machine.system()
    return system in triple or (system == "darwin" and "macos" in triple)
