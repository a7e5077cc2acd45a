"""Instructions as LLVM IR: the text that an instruction brings, with the operands' addresses in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from autotune.codegen.llvm.scope import Scopes
from schedules.instructions import Instruction

_NAME = re.compile(r"%[A-Za-z_]\w*")
_SLOT = re.compile(r"\{([\w.]+)\}")
_MADE = re.compile(r"(%[A-Za-z_]\w*) = (?!call )(.*)")


def has(ins: Instruction, features: Collection[str]) -> bool:
    """Whether a target with these features runs an instruction."""
    return "llvm" in ins.spellings and ins.runs_on(features)


def emit(
    text: str,
    slots: Mapping[str, str],
    s: Scopes,
    declare: Callable[[str], None],
    buffers: Mapping[str, str] | None = None,
) -> None:
    """``slots``: what stands in braces. ``buffers``: {slot: the buffer that it is an address of}. Names of
    values are made new ones. What an earlier instruction of the scope has loaded, from a buffer that nothing
    there writes, or made of that, is not made again: rows of a tile share their weights."""
    names: dict[str, str] = {}

    def renamed(m: re.Match[str]) -> str:
        if m[0] not in names:
            names[m[0]] = s.fresh(f"{m[0][1:]}.")
        return names[m[0]]

    def filled(code: str) -> str:
        return _SLOT.sub(lambda m: slots[m[1]], _NAME.sub(renamed, code))

    for line in text.strip().splitlines():
        if line.startswith(("declare", "@")):
            declare(line)
            continue
        made = _MADE.fullmatch(line) if buffers is not None else None
        if made is None or buffers is None:
            s.do(filled(line))
            continue
        code = filled(made[2])
        stays = all(b not in s.top.stores for slot in _SLOT.findall(made[2]) if (b := buffers.get(slot)))
        known = s.top.memo.get(("made", code)) if stays else None
        if known is None:
            known = s.fresh(f"{made[1][1:]}.")
            s.do(f"{known} = {code}")
            if stays:
                s.top.memo["made", code] = known
        names[made[1]] = known
