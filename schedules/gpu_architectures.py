"""What the architecture of a CUDA target tells that its limits do not: which instructions it has, how much
memory a block may share, and what its code is compiled for.

It follows from `Target.arch` alone, so that targets stay what logs know them by. An emulated target has the
word `EMULATED` behind the architecture that it stands for. Sources: CUDA C++ Programming Guide, *Compute
Capabilities* (tables of features and of technical specifications); PTX ISA, *.target*.
"""

from __future__ import annotations

import re

from schedules.model import Target

EMULATED = "emulator"  # what the architecture of an emulated target is, or ends with
# Architectures after which instructions are named, the oldest first.
NUMBERED = (75, 80, 86, 89, 90, 100, 120)
# Those that have instructions of their own, which no later one has.
OWN = (90, 100, 103, 110, 120, 121)
# Bytes that a block may share without asking; where a target states another limit, that holds.
STATIC_SHARED = 48 << 10
# Bytes that a block may share where its launch asks for them (opt-in), by architecture.
OPT_IN_SHARED = {
    70: 96, 72: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227,
    120: 99, 121: 99,
}  # fmt: skip
# Bytes of a processor's shared memory that each block takes besides its own, and from which architecture on.
RESERVED_SHARED, RESERVING = 1 << 10, 80
# Multiply-adds of 16-bit floats, added up in float32, of a processor's matrix units in a cycle, as `mma.sync`
# reaches them, by architecture. An H100 has 2048, of which mma.sync gets about 0.6
# (docs/measurements/matrix-units.md).
MATRIX_UNITS = {
    75: 512, 80: 1024, 86: 512, 87: 512, 89: 512, 90: 1229, 100: 1024, 103: 1024, 120: 512, 121: 512,
}  # fmt: skip
_ARCH = re.compile(r"sm_(\d{2,3})(a?)(?:-" + EMULATED + ")?")


def number(target: Target) -> int:
    """The number of a CUDA target's architecture, 90 for "sm_90"; 0 for other targets."""
    found = _ARCH.fullmatch(target.arch) if target.numbered else None
    return 0 if found is None else int(found[1])


def features(target: Target) -> tuple[str, ...]:
    """The features that code for a target may use, sorted: its own, and for CUDA the name of each
    architecture whose instructions it has. Those of an architecture alone end with "a".

    >>> from autotune.targets import from_name
    >>> features(from_name("a100"))
    ('sm_75', 'sm_80')
    >>> "sm_90a" in features(from_name("h100-emulator"))
    True
    """
    n = number(target)
    known = {f"sm_{x}" for x in NUMBERED if x <= n}
    return tuple(sorted({*target.features, *known, *([f"sm_{n}a"] if n in OWN else [])}))


def shared_room(target: Target) -> int:
    """Bytes that the threads of a block may share. Above `STATIC_SHARED` a launch has to ask for them."""
    stated = target.limit("shared_bytes", STATIC_SHARED)
    return OPT_IN_SHARED.get(number(target), 0) << 10 or stated if stated == STATIC_SHARED else stated


def taken_shared(target: Target) -> int:
    """Bytes of a processor's shared memory that each block takes besides those that its threads share."""
    return RESERVED_SHARED if number(target) >= RESERVING else 0


def matrix_rate(target: Target) -> int:
    """Multiply-adds of 16-bit floats that a processor's matrix units do in a cycle; 0: it has none."""
    return MATRIX_UNITS.get(number(target), 0)


def compiled_for(arch: str) -> str:
    """The architecture that code is compiled for, so that it may have all instructions of "sm_90"."""
    found = _ARCH.fullmatch(arch)
    return f"{arch}a" if found is not None and int(found[1]) in OWN and not found[2] else arch
