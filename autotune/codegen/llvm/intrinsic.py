"""Instructions as LLVM IR: the text that an instruction brings, with the operands' addresses in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from autotune.codegen.llvm.scope import Scopes
from schedules.instructions import Instruction

_NAME = re.compile(r"%[A-Za-z_]\w*")
_SLOT = re.compile(r"\{([\w.]+)\}")


def has(ins: Instruction, features: Collection[str]) -> bool:
    """Whether a target with these features runs an instruction."""
    return "llvm" in ins.spellings and ins.runs_on(features)


def emit(text: str, slots: Mapping[str, str], s: Scopes, declare: Callable[[str], None]) -> None:
    """``slots``: what stands in braces. Names of values are made new ones."""
    names: dict[str, str] = {}

    def renamed(m: re.Match[str]) -> str:
        if m[0] not in names:
            names[m[0]] = s.fresh(f"{m[0][1:]}.")
        return names[m[0]]

    for line in text.strip().splitlines():
        if line.startswith(("declare", "@")):
            declare(line)
        else:
            s.do(_SLOT.sub(lambda m: slots[m[1]], _NAME.sub(renamed, line)))
