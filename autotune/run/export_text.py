"""The texts in C of an exported kernel: its header, and an example that calls it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.codegen.runtime.by_cpu import NO_CODE
from schedules.dtypes import DTYPES, STORED_FLOATS
from schedules.strides import MemoryLayout

# Types of C by dtype. C99 has none for floats of storage: their bits are in an integer.
C_TYPES = {
    **{name: f"uint{8 * DTYPES[name].itemsize}_t" for name in STORED_FLOATS},
    "float32": "float", "float64": "double",
    "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t", "uint16": "uint16_t", "int32": "int32_t",
    "uint32": "uint32_t", "int64": "int64_t",
    "bool": "uint8_t",
}  # fmt: skip
# Words of C and C++ that cannot name a parameter, and those that the example uses.
_TAKEN = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const
    consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do
    double dynamic_cast else enum explicit export extern false float for friend goto if inline int long
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct
    switch template this thread_local throw true try typedef typeid typename union unsigned using virtual
    void volatile wchar_t while xor xor_eq main i sum status calloc malloc printf size_t errno unix
    linux""".split()
)
# Extensions that GCC and Clang know how to ask for.
_ASKABLE = frozenset(
    """avx avx2 fma bmi bmi2 popcnt avx512f avx512bw avx512cd avx512dq avx512vl avx512vbmi avx512ifma
    avx512vnni avx512vbmi2 avx512bitalg gfni""".split()
)


@dataclass(frozen=True)
class ExportedArgument:
    """One argument of a function: its name in the workload, ``word``, its name in C, and its array."""

    name: str
    word: str
    dtype: str
    layout: MemoryLayout
    written: bool

    @property
    def before(self) -> int:
        """Elements of memory before the first one, to which the pointer is."""
        return self.layout.reach[0]


@dataclass(frozen=True)
class ExportedSize:
    """A size that a call tells, from ``least`` to ``most``: its name, and ``word``, its name in C."""

    name: str
    word: str
    least: int
    most: int


@dataclass(frozen=True)
class ExportedFunction:
    """A function of the shared object. ``of``: the weight that it packs, "" for the kernel. ``sizes``: those
    that it takes behind the arrays, whose shapes are of the largest ones."""

    name: str
    of: str
    arguments: tuple[ExportedArgument, ...]
    sizes: tuple[ExportedSize, ...] = ()


def is_identifier(word: str) -> bool:
    """Whether C and C++ take a word for a name."""
    return re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII) is not None and word not in _TAKEN


def identifiers(names: Sequence[str]) -> list[str]:
    """A name of C for each, all different and none beginning another's ``_given``."""
    found: list[str] = []
    for i, name in enumerate(names):
        word = re.sub(r"\W", "_", name, flags=re.ASCII)
        ok = is_identifier(word) and word not in found and not word.endswith("_given")
        found.append(word if ok else f"x{i}_{word}")
    return found


def header(name: str, functions: Sequence[ExportedFunction], contract: Mapping[str, Any]) -> str:
    """The header: declarations, the elements of each argument, and whether the CPU has what is needed."""
    main, packers = functions[0], functions[1:]
    ends = "."
    if contract.get("targets"):
        ends = f";\n * {NO_CODE}: this CPU runs none of the code, and nothing was computed."
    arrays = (*main.arguments, *(f.arguments[0] for f in packers))
    packing = "\n\n".join(
        f"/* {f.arguments[1].word} as {main.name} reads it, of {f.arguments[0].word}, the weight. It is read "
        "fastest where it begins with a line of 64 bytes. */\n"
        f"{_declared(f)}"
        for f in packers
    )
    release = "\n".join(f"void {f.name}_release(void);" for f in functions)
    if any(a.layout.strides is not None for a in arrays):
        ends += (
            "\n * Where strides are told, an array has them in place of row-major order. Its elements are"
            " then counted\n * with the gaps between them, and a pointer is to the first one."
        )
    body = f"""\
/* Arrays are row-major and aligned to their elements. An output overlaps nothing else. Floats of 16 bits are
 * given as their bits. Several threads may call it at once. Returns 0; 2: no memory for scratch{ends} */
{_declared(main)}
{packing and f"{chr(10)}{packing}{chr(10)}"}
/* Frees the scratch memory that is kept between calls. No call may be running. */
{release}
"""
    return framed(name, contract["operator"], contract, arrays, body)


def framed(
    name: str, title: str, contract: Mapping[str, Any], arrays: Sequence[ExportedArgument], body: str
) -> str:
    """A header of what ``title`` names, with the elements of arrays and a ``body`` of declarations."""
    wants, words = "It needs a CPU with", contract["cpu"]["features"]
    if contract.get("targets"):
        wants, words = "It has code for several CPUs, and takes the best that runs", contract["order"]
    elements = "\n".join(f"#define {name}_{a.word}_elements ((size_t){a.layout.span})" for a in arrays)
    # Names of two headers may differ in case alone.
    guard = f"AUTOTUNE_{name.upper() if name == name.lower() else f'{name}_cased'}_H"
    return f"""\
/* {commented(title)}, compiled by autotune {contract["autotune"]}. Threads: {contract["threads"]}.
 * {wants}:{wrapped(words)} */
#ifndef {guard}
#define {guard}

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{elements}

{body}
{runnable(name, contract)}

#ifdef __cplusplus
}}
#endif

#endif
"""


def runnable(name: str, contract: Mapping[str, Any]) -> str:
    """The function that tells whether this CPU can run the code."""
    if contract.get("targets"):
        return f"""\
/* The name of the code that this CPU runs, NULL where it runs none. The first call of a function chooses. */
const char *{name}_target(void);

static inline int {name}_runnable(void) {{
    return {name}_target() != 0;
}}"""
    cpu = contract["cpu"]
    need = [f for f in cpu["features"] if f in _ASKABLE] if cpu["triple"].startswith("x86_64") else []
    ask = "\n        && ".join(f'__builtin_cpu_supports("{f}")' for f in need) or "1"
    return f"""\
/* Whether this CPU has what the code needs, as far as the compiler can ask. */
static inline int {name}_runnable(void) {{
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    if (!__builtin_cpu_supports("sse2")) return 1; /* which all have: zig's library cannot ask */
    return {ask};
#else
    return 1;
#endif
}}"""


def example(name: str, functions: Sequence[ExportedFunction]) -> str:
    """A program that fills the inputs, calls the kernel, and prints the sum of each output."""
    main, packers = functions[0], functions[1:]
    packed = {f.arguments[1].word: f for f in packers}
    arrays = [*main.arguments, *(f.arguments[0] for f in packers)]
    read = [a for a in arrays if not a.written and a.word not in packed]
    lines = [
        *example_head(name, "void", arrays),
        f"    if (!{name}_runnable() || {' || '.join(f'!{a.word}' for a in arrays)}) return 1;",
        *filled(name, read),
        *(f"    {f.name}({', '.join(given(f.arguments, f.sizes))});" for f in packers),
        f"    int status = {main.name}({', '.join(given(main.arguments, main.sizes))});",
        *summed(name, main.arguments, '"status %d, sum of {} %.9g\\n", status, sum_{}'),
    ]
    return "\n".join([*lines, "    return status;", "}"]) + "\n"


def example_head(name: str, takes: str, arrays: Sequence[ExportedArgument]) -> list[str]:
    """Lines of an example, up to the memory of arrays. ``takes``: what its main takes."""
    return [
        f"/* cc {name}_example.c ./{name}.so -Wl,-rpath,. -o {name}_example && ./{name}_example */",
        "#include <stdio.h>",
        "#include <stdlib.h>",
        f'#include "{name}.h"',
        "",
        f"int main({takes}) {{",
        *(f"    {c_type(a)} *{a.word} = {memory(name, a)};" for a in arrays),
    ]


def filled(name: str, arrays: Sequence[ExportedArgument]) -> list[str]:
    """Lines that fill arrays with small whole numbers."""
    return [
        f"    for (size_t i = 0; i < {name}_{a.word}_elements; i++) {a.word}[i] = i % {period(a)};"
        for a in arrays
    ]


def summed(name: str, arrays: Sequence[ExportedArgument], said: str) -> list[str]:
    """Lines that print the sum of each array that is written. ``said``: what printf is given, with {} where
    its word stands."""
    lines = []
    for a in (a for a in arrays if a.written):
        lines += [
            f"    double sum_{a.word} = 0;",
            f"    for (size_t i = 0; i < {name}_{a.word}_elements; i++) sum_{a.word} += {a.word}[i];",
            f"    printf({said.replace('{}', a.word)});",
        ]
    return lines


def period(a: ExportedArgument) -> int:
    return 2 if a.dtype == "bool" else 7


def memory(name: str, a: ExportedArgument) -> str:
    count = f"{name}_{a.word}_elements"
    gaps = a.written and a.layout.strides is not None  # which nothing writes
    return f"calloc({count}, sizeof *{a.word})" if gaps else f"malloc(sizeof *{a.word} * {count})"


def given(arguments: Sequence[ExportedArgument], sizes: Sequence[ExportedSize]) -> list[str]:
    """What an example gives a function."""
    arrays = (f"{a.word} + {a.before}" if a.before else a.word for a in arguments)
    return [*arrays, *(str(s.most) for s in sizes)]


def taken(arguments: Sequence[ExportedArgument], sizes: Sequence[ExportedSize]) -> list[str]:
    """What a function takes, as it is declared."""
    return [*(pointer(a.dtype, a.written, a.word) for a in arguments), *(f"int64_t {s.word}" for s in sizes)]


def pointer(dtype: str, written: bool, word: str) -> str:
    """What a function takes for an array, as it is declared."""
    return f"{'' if written else 'const '}{C_TYPES[dtype]} *{word}"


def _declared(f: ExportedFunction) -> str:
    takes = ", ".join(taken(f.arguments, f.sizes))
    shapes = "; ".join(map(shown, f.arguments))
    if f.sizes:
        told = ", ".join(f"{s.word} is {s.least} to {s.most}" for s in f.sizes)
        shapes += (
            f".\n * These are of the largest sizes: {told}. A call tells them. For others\n"
            " * it returns 1, and computes nothing."
        )
    return f"/* {shapes} */\nint {f.name}({takes});"


def shown(a: ExportedArgument) -> str:
    lies = a.layout
    shape = f"[{']['.join(map(str, lies.shape))}]" if lies.shape else ""
    strides = "" if lies.strides is None else f", strides {', '.join(map(str, lies.strides))}"
    before = f", {a.before} elements before the pointer" if a.before else ""
    return f"{a.word}: {a.dtype}{shape}{strides}{before}"


def c_type(a: ExportedArgument) -> str:
    return C_TYPES[a.dtype]


def commented(text: str) -> str:
    """A text of others for a comment, which it cannot end: ``*/``, ends of lines, and what a compiler or a
    reader takes for something else are replaced."""
    return "".join(
        c if c.isprintable() and c not in "\\?" else "_"
        for c in text.replace("*/", "* /").replace("/*", "/ *")
    )


def wrapped(words: Sequence[str]) -> str:
    return "".join(f"\n *   {line}" for line in textwrap.wrap(" ".join(words), 100)) or " nothing special"
