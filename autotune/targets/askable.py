"""What code asks a processor when it is loaded: where each extension of a target is told, and which
processors a name means. Only tables are here; `autotune.codegen.runtime.by_cpu` makes the code.

What a processor tells lies in words of 32 bits (`WORDS` of its family). A target needs bits of these.

Sources: Intel's and AMD's manuals of CPUID; hwcap.h of Linux; Host.cpp of LLVM for families and models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.errors import ArgumentError
from autotune.targets import features
from autotune.targets.facts import vector_unit
from schedules.model import Target

# Registers that CPUID writes, by index.
EAX, EBX, ECX, EDX = range(4)
# Words of x86-64: (leaf, subleaf, register). Two more follow: XCR0, and what the system grants.
X86_WORDS = (
    (1, 0, ECX), (1, 0, EDX), (7, 0, EBX), (7, 0, ECX), (7, 0, EDX), (7, 1, EAX), (7, 1, EDX),
    (0x80000001, 0, ECX),
)  # fmt: skip
XCR0, GRANTED = len(X86_WORDS), len(X86_WORDS) + 1
# Bits of XCR0 that the system sets where it saves registers: of AVX, of AVX-512, of tiles.
_YMM, _ZMM, _TILES = 0x6, 0xE6, 0x60000
OSXSAVE = 27  # bit of leaf 1, ecx: whether XCR0 can be read
# Extensions of x86-64 by word: {LLVM's name: bit}.
_X86_BITS: tuple[Mapping[str, int], ...] = (
    {"sse3": 0, "pclmul": 1, "ssse3": 9, "fma": 12, "sse4.1": 19, "sse4.2": 20, "movbe": 22, "popcnt": 23,
     "aes": 25, "avx": 28, "f16c": 29},
    {"cmov": 15, "sse": 25, "sse2": 26},
    {"bmi": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "adx": 19, "avx512ifma": 21,
     "avx512cd": 28, "sha": 29, "avx512bw": 30, "avx512vl": 31},
    {"avx512vbmi": 1, "avx512vbmi2": 6, "gfni": 8, "vaes": 9, "vpclmulqdq": 10, "avx512vnni": 11,
     "avx512bitalg": 12, "avx512vpopcntdq": 14},
    {"avx512vp2intersect": 8, "amx-bf16": 22, "avx512fp16": 23, "amx-tile": 24, "amx-int8": 25},
    {"avxvnni": 4, "avx512bf16": 5, "amx-fp16": 21, "avxifma": 23},
    {"avxvnniint8": 4, "avxneconvert": 5, "avxvnniint16": 10},
    {"lzcnt": 5, "sse4a": 6, "xop": 11, "fma4": 16},
)  # fmt: skip
X86 = {name: (word, 1 << bit) for word, bits in enumerate(_X86_BITS) for name, bit in bits.items()}
# Of those, what uses the upper halves of registers but has no name that begins with avx.
_WIDE = frozenset(("fma", "f16c", "vaes", "vpclmulqdq", "xop", "fma4"))
# Words of AArch64: what `getauxval` is asked for (AT_HWCAP, AT_HWCAP2). Extensions: (word, bit).
ARM_WORDS = (16, 26)
ARM = {
    "fp-armv8": (0, 1 << 0), "neon": (0, 1 << 1), "lse": (0, 1 << 8), "fullfp16": (0, 1 << 9 | 1 << 10),
    "rdm": (0, 1 << 12), "dotprod": (0, 1 << 20), "sve": (0, 1 << 22),
    "sve2": (1, 1 << 1), "i8mm": (1, 1 << 13), "bf16": (1, 1 << 14),
}  # fmt: skip
# Processors of x86-64 by LLVM's name: (family, (first, last) of its models, ...).
MODELS: Mapping[str, tuple[int, Sequence[tuple[int, int]]]] = {
    "haswell": (6, ((0x3C, 0x3C), (0x3F, 0x3F), (0x45, 0x46))),
    "broadwell": (6, ((0x3D, 0x3D), (0x47, 0x47), (0x4F, 0x4F), (0x56, 0x56))),
    "skylake": (6, ((0x4E, 0x4E), (0x5E, 0x5E), (0x8E, 0x8E), (0x9E, 0x9E), (0xA5, 0xA6))),
    "skylake-avx512": (6, ((0x55, 0x55),)),
    "cascadelake": (6, ((0x55, 0x55),)),
    "cooperlake": (6, ((0x55, 0x55),)),
    "icelake-client": (6, ((0x7D, 0x7E),)),
    "icelake-server": (6, ((0x6A, 0x6A), (0x6C, 0x6C))),
    "tigerlake": (6, ((0x8C, 0x8D),)),
    "alderlake": (6, ((0x97, 0x97), (0x9A, 0x9A))),
    "raptorlake": (6, ((0xB7, 0xB7), (0xBA, 0xBA), (0xBF, 0xBF))),
    "sapphirerapids": (6, ((0x8F, 0x8F),)),
    "emeraldrapids": (6, ((0xCF, 0xCF),)),
    "graniterapids": (6, ((0xAD, 0xAD),)),
    "graniterapids-d": (6, ((0xAE, 0xAE),)),
    "znver1": (0x17, ((0x00, 0x2F),)),
    "znver2": (0x17, ((0x30, 0xFF),)),
    "znver3": (0x19, ((0x00, 0x0F), (0x20, 0x5F))),
    "znver4": (0x19, ((0x10, 0x1F), (0x60, 0x7F), (0xA0, 0xAF))),
    "znver5": (0x1A, ((0x00, 0x77),)),
}
# Names of LLVM that mean extensions alone, not a processor.
_LEVELS = frozenset(("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"))


@dataclass(frozen=True)
class Needs:
    """What is asked for a target. ``words``: bits that each word of its family must have. ``models``: first
    and last ``family << 8 | model`` of the processors that it is named after. ``group``: how capable it is
    beside others, whether it has tiles and the bytes of its vectors."""

    words: tuple[int, ...]
    models: tuple[tuple[int, int], ...]
    group: tuple[bool, int]


def askable(target: Target) -> Target:
    """A target of the same name with those extensions alone that code can ask for, which is what to compile
    for. A processor that is not known here, whose name may come from anywhere, becomes any of its family.

    >>> len(askable(from_name("x86-64-v3")).features) < len(from_name("x86-64-v3").features)
    True
    """
    x86 = is_x86(target)
    table = X86 if x86 else ARM
    known = target.arch in MODELS or target.arch in _LEVELS
    arch = target.arch if x86 and known else features.generic(target)
    return replace(target, arch=arch, features=tuple(f for f in target.features if f in table))


def needs(target: Target) -> Needs:
    """What a processor must tell to run code of `askable`."""
    x86 = is_x86(target)
    table, words = (X86, [0] * (GRANTED + 1)) if x86 else (ARM, [0] * len(ARM_WORDS))
    for name in target.features:
        if name not in table:
            continue
        word, bits = table[name]
        words[word] |= bits
        if x86 and (name.startswith("avx") or name in _WIDE):
            words[XCR0] |= _ZMM if name.startswith("avx512") else _YMM
        if name.startswith(features.TILES):
            words[XCR0] |= _TILES
            words[GRANTED] |= 1
    family, models = MODELS.get(target.arch, (0, ())) if x86 else (0, ())
    tiles = any(f.startswith(features.TILES) for f in target.features)
    group = (tiles, vector_unit(target.features)["vector_bytes"])
    return Needs(tuple(words), tuple((family << 8 | a, family << 8 | b) for a, b in models), group)


def best_first(targets: Sequence[Target]) -> tuple[int, ...]:
    """Numbers of targets, the most capable first: those with tiles, with wide vectors, with many extensions;
    among equals as given."""

    def capable(i: int) -> tuple[bool, int, int]:
        return (*needs(targets[i]).group, len(targets[i].features))

    return tuple(sorted(range(len(targets)), key=capable, reverse=True))


def is_x86(target: Target) -> bool:
    """Whether a target is of x86-64; else it is of AArch64. Raises `ArgumentError` for any other."""
    machine = target.triple.partition("-")[0]
    if target.grid or machine not in ("x86_64", "aarch64"):
        raise ArgumentError(
            f"target {target.kind} {target.arch} is of {machine or 'no known family'}: code that is chosen "
            "when it is loaded is for x86_64 or aarch64; leave it out"
        )
    return machine == "x86_64"


def one_family(targets: Sequence[Target]) -> None:
    """Raises `ArgumentError` unless one shared object can have code for all of these."""
    if not targets:
        raise ArgumentError('targets is empty: name at least one, such as targets=["x86-64-v3"]')
    kinds = {is_x86(t): t for t in targets}
    if len(kinds) > 1:
        raise ArgumentError(
            f"targets {kinds[True].arch} and {kinds[False].arch} are of two families, and a shared object is "
            "of one: export each family into a directory of its own"
        )


def baseline(targets: Sequence[Target]) -> Target:
    """Any processor of the family of these: what runs everywhere is compiled for it."""
    first = targets[0]
    return Target("cpu", features.generic(first), first.triple, () if is_x86(first) else ("fp-armv8", "neon"))
