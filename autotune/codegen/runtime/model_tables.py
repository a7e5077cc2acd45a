"""A whole model as tables in C, which `model.c` runs (ADR 118)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from autotune.codegen.runtime.by_cpu import NO_CODE
from autotune.codegen.runtime.c_entry import OUTSIDE, STATUS
from autotune.platform import amx

# Bases of words: of weights, of the memory of an instance, of where the numbers of a call are, and of the
# first array of a call. Behind the arrays follow states, sizes and each number.
WEIGHTS, MEMORY, TOLD, FIRST_ARRAY = range(4)
NO_ROWS = 10
# What functions of a model return: {status: (its name, what it means)}.
STATUSES: Mapping[int, tuple[str, str]] = {
    0: ("DONE", STATUS[0]),
    1: ("OUTSIDE", OUTSIDE[1]),
    2: ("NO_MEMORY", "no memory for weights, or for what lies between kernels"),
    3: ("NO_TILES", STATUS[3]),
    4: ("NO_POINTER", "an instance, an array or the path of the weights is NULL"),
    NO_CODE: ("NO_CODE", "this CPU runs none of the code"),
    6: ("UNREADABLE", "the file of weights cannot be read"),
    7: ("OTHER_LENGTH", "the file of weights has another length: it is of another export, or cut off"),
    8: ("DAMAGED", "the file of weights has another checksum: it is of another export, or damaged"),
    9: ("BUSY", "the instance is in a call: a call from another thread needs an instance of its own"),
    NO_ROWS: ("NO_ROWS", "the call would write or read a state outside of its rows, and nothing was changed"),
}
MOST_RANK = 8  # of arrays with room for the largest sizes


@dataclass(frozen=True)
class Word:
    """An argument of a kernel: ``offset`` bytes from a ``base`` on, and by ``moves``, each the number of a
    number of the call with the bytes of a step. A size is a base."""

    base: int
    offset: int = 0
    moves: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class NativeStep:
    """A call of the kernel that is the function ``symbol``."""

    symbol: str
    words: tuple[Word, ...]
    threads: int = 1


@dataclass(frozen=True)
class Check:
    """Calls end with ``status`` unless a number is from ``least`` to ``most``."""

    number: int
    least: int
    most: int
    status: int = NO_ROWS


@dataclass(frozen=True)
class Room:
    """An array that steps have with room for the largest sizes: at ``offset`` in memory, with ``strides`` in
    elements of ``item`` bytes. ``base``: the caller's. Extents are numbers from ``first_number`` on."""

    base: int
    written: bool
    offset: int
    item: int
    strides: tuple[int, ...]
    first_number: int


@dataclass(frozen=True)
class TableCopy:
    """The new value of state number ``to`` is ``nbytes`` at ``offset`` from a base on."""

    to: int
    base: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class WeightPack:
    """``nbytes`` of weights as code reads them, at ``to``, of the file's from ``given`` on: packed by the
    function ``symbol``, or as they are where that is empty."""

    given: int
    to: int
    nbytes: int
    symbol: str = ""


@dataclass(frozen=True)
class NativeProgram:
    """The steps of calls of certain ``sizes``, None for any. ``numbers``: steps that compute numbers of the
    call: first the extents of arrays with room, then others. ``scratch``: where it begins in memory."""

    sizes: tuple[int | None, ...]
    steps: tuple[NativeStep, ...]
    numbers: tuple[NativeStep, ...]
    checks: tuple[Check, ...]
    rooms: tuple[Room, ...]
    copies: tuple[TableCopy, ...]
    scratch: int


@dataclass(frozen=True)
class NativeModel:
    """A model. ``programs``: the one of all sizes last. ``sizes``: least and most of each. ``states``: where
    each lies, from ``states_at`` in memory on. ``starts``: (the same, where among the weights, bytes) of
    those that do not begin with zeros. ``numbers``: most of a program. ``inside``: whether the weights are in
    the shared object. ``crc``: of the weights. ``tiles``: whether kernels use AMX. ``packs``: what makes of
    the file's weights a block of ``block_bytes``, with ``pack_scratch``; none where they are stored as they
    are read."""

    programs: tuple[NativeProgram, ...]
    inputs: int
    outputs: int
    sizes: tuple[tuple[int, int], ...]
    states: tuple[int, ...]
    states_at: int
    states_bytes: int
    starts: tuple[tuple[int, int, int], ...]
    numbers: int
    memory_bytes: int
    weights_bytes: int
    crc: int
    inside: bool
    tiles: bool = False
    packs: tuple[WeightPack, ...] = ()
    block_bytes: int = 0
    pack_scratch: int = 0


# The weights in the shared object, which are read where they are.
WEIGHTS_INSIDE = """\
__asm__(".pushsection .rodata\\n.balign 64\\n.globl at_inside\\n.hidden at_inside\\nat_inside:\\n"
        ".incbin \\"weights\\"\\n.popsection");
"""
_INSIDE = 'extern const char at_inside[] __attribute__((visibility("hidden")));'


def source(model: NativeModel, name: str, wrapper: str, of_set: str = "") -> str:
    """The text in C of a model whose functions are called ``name`` and more. ``wrapper``: the text of
    ``run``, which uses ``FUNCTION`` and ``call``. ``of_set``: what the functions of one of several sets of
    code are called instead."""
    runtime = files("autotune.codegen.runtime").joinpath("model.c").read_text(encoding="utf-8")
    before, _, after = runtime.partition('#include "tables.h"\n')
    return before + _tables(model, name, of_set or name) + after + wrapper


def _tables(m: NativeModel, name: str, functions: str) -> str:
    own = [f"{n} = {status}" for status, (n, _) in STATUSES.items()]
    defined = {
        "INPUTS": m.inputs,
        "OUTPUTS": m.outputs,
        "STATES": len(m.states),
        "STATES_AT": m.states_at,
        "STATES_BYTES": m.states_bytes,
        "N_STARTS": len(m.starts),
        "SIZES": len(m.sizes),
        "NUMBERS": m.numbers,
        "MEMORY_BYTES": m.memory_bytes,
        "MOST_WORDS": max([1, *(sum(len(s.words) for s in _every(p)) for p in m.programs)]),
        "WEIGHTS_BYTES": m.weights_bytes,
        "WEIGHTS_CRC": f"{m.crc:#x}u",
        "BESIDE": int(not m.inside),
        "TILES": amx.ARCH_PRCTL if m.tiles else 0,
        "TILES_REQUEST": amx.REQUEST,
        "TILES_STATE": amx.TILE_DATA,
        "INSTANCE": f"{name}_instance",
        "FUNCTION(at_rest)": f"{functions}##at_rest",
        "PACKS": len(m.packs),
        "BLOCK_BYTES": m.block_bytes,
        "PACK_SCRATCH": m.pack_scratch,
    }
    symbols = dict.fromkeys(s.symbol for p in m.programs for s in _every(p))
    symbols |= dict.fromkeys(x.symbol for x in m.packs if x.symbol)
    parts = [
        *(f"#define {n} {value}" for n, value in defined.items()),
        f"enum {{ {', '.join(own)} }};",
        _INSIDE if m.inside else "",
        *(f'extern at_kernel {s} __attribute__((visibility("hidden")));' for s in symbols),
        _array("int64_t", "states", m.states),
        _array("at_range", "ranges", m.sizes),
        _array("at_start", "starts", m.starts),
        _array("at_pack", "packs", [(x.symbol or "0", x.given, x.to, x.nbytes) for x in m.packs])
        if m.packs
        else "",
        *(_program(i, p) for i, p in enumerate(m.programs)),
        _array("at_program", "programs", [_row(i, p) for i, p in enumerate(m.programs)]),
    ]
    return "\n".join(parts) + "\n"


def _every(p: NativeProgram) -> tuple[NativeStep, ...]:
    return (*p.numbers, *p.steps)


def _program(i: int, p: NativeProgram) -> str:
    words: list[Any] = []
    moves: list[Any] = []
    steps: list[Any] = []
    for s in _every(p):
        steps.append((s.symbol, len(words), len(s.words), s.threads))
        for w in s.words:
            words.append((w.base, len(moves), len(w.moves), w.offset))
            moves += w.moves
    rooms = [
        (r.base, int(r.written), len(r.strides), r.first_number, r.item, r.offset, tuple(r.strides))
        for r in p.rooms
    ]
    rows = {
        "sizes": ("int64_t", [-1 if n is None else n for n in p.sizes]),
        "words": ("at_word", words),
        "moves": ("at_move", moves),
        "steps": ("at_step", steps),
        "checks": ("at_check", [(c.number, c.status, c.least, c.most) for c in p.checks]),
        "rooms": ("at_room", rooms),
        "copies": ("at_copy", [(c.to, c.base, c.offset, c.nbytes) for c in p.copies]),
    }
    return "\n".join(_array(kind, f"{name}_{i}", values) for name, (kind, values) in rows.items())


def _row(i: int, p: NativeProgram) -> tuple[Any, ...]:
    counts = len(p.numbers), len(p.steps), len(p.checks), len(p.rooms), len(p.copies)
    tables = *(f"{x}_{i}" for x in ("sizes", "words", "moves", "steps")), f"steps_{i} + {len(p.numbers)}"
    return (*tables, *(f"{x}_{i}" for x in ("checks", "rooms", "copies")), *counts, p.scratch)


def _array(kind: str, name: str, values: Sequence[Any]) -> str:
    """A table of one row at least, as C has none of nothing."""
    rows = ",\n    ".join(map(_value, values)) or "0"
    zero = "{0}" if rows == "0" and kind != "int64_t" else rows
    return f"static const {kind} {name}[] = {{\n    {zero}\n}};"


def _value(x: Any) -> str:
    if isinstance(x, tuple):
        return f"{{{', '.join(map(_value, x))}}}"
    if isinstance(x, int):
        return f"INT64_C({x})" if x > -(1 << 63) else "INT64_MIN"
    return str(x)


def enumerated(name: str) -> str:
    """The statuses as names of C."""
    told = (f"{name}_{word} = {status}" for status, (word, _) in STATUSES.items())
    return f"enum {{\n    {f',{chr(10)}    '.join(told)}\n}};"


def common(name: str, inside: bool) -> str:
    """The text in C of what all sets of code share: a function that says what a status means, and the
    weights if they are ``inside``."""
    cases = _lines(f"    case {s}: return {json.dumps(text)};" for s, (_, text) in STATUSES.items())
    return (WEIGHTS_INSIDE if inside else "") + (
        f"const char *{name}_error_text(int status);\n"
        f"const char *{name}_error_text(int status) {{\n    switch (status) {{\n{cases}    }}\n"
        '    return "no status of this model";\n}\n'
    )


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
