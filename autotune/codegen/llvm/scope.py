"""Scopes of a function under construction: where code goes, and what is known there.

A scope's code is a list of lines. A loop's text joins its parent only when its body is complete. So code that
an inner scope puts into an outer one comes before the loop: hoisting is writing to another list.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Scope:
    """A region that runs as a whole: a function body, a loop body, one side of a branch.

    ``always``: whether it runs at least once when its parent is entered, so that loads may move out.
    ``stores``: buffers written in the region; loads of others stay valid. ``room``: number of further loads
    that may move out of it. ``innermost``: a loop around no other, whose addresses are stepped pointers.
    ``pointers``: (name, value before the loop, element type, elements a step). ``counted``: whether something
    in it reads the loop's counter.
    """

    label: str
    always: bool
    stores: frozenset[str]
    room: int = 0
    lines: list[str] = field(default_factory=list)
    memo: dict[Hashable, Any] = field(default_factory=dict)
    innermost: bool = False
    counted: bool = False
    pointers: list[tuple[str, str, str, int]] = field(default_factory=list)

    def lets_out(self, buffer: str) -> bool:
        """Whether a load may move out of the region."""
        return self.always and self.room > 0 and buffer not in self.stores


class Scopes:
    """The stack of scopes, and fresh names."""

    def __init__(self, stores: frozenset[str]) -> None:
        self.stack = [Scope("entry", True, stores)]
        self._n = 0

    @property
    def depth(self) -> int:
        """Depth of the current scope."""
        return len(self.stack) - 1

    @property
    def top(self) -> Scope:
        """The current scope."""
        return self.stack[-1]

    def fresh(self, hint: str = "v") -> str:
        """A new SSA name."""
        self._n += 1
        return f"%{hint}{self._n}"

    def label(self, hint: str) -> str:
        """A new label."""
        self._n += 1
        return f"{hint}{self._n}"

    def emit(self, code: str, *, at: int | None = None, hint: str = "v") -> str:
        """Append ``%new = code``; returns the name."""
        name = self.fresh(hint)
        self.stack[self.depth if at is None else at].lines.append(f"  {name} = {code}")
        return name

    def do(self, code: str) -> None:
        """Append an instruction without a result."""
        self.top.lines.append(f"  {code}")

    def start(self, label: str) -> None:
        """Begin a basic block in the current scope."""
        self.top.lines.append(f"{label}:")
        self.top.label = label

    def recall(self, key: Hashable) -> Any:
        """A remembered value that is known here; None without one."""
        for s in reversed(self.stack):
            if key in s.memo:
                return s.memo[key]
        return None

    def recall_load(self, key: Hashable, buffer: str) -> Any:
        """A remembered load that no later store can have changed."""
        for s in reversed(self.stack):
            if buffer in s.stores:
                return None if key not in s.memo else s.memo[key]
            if key in s.memo:
                return s.memo[key]
        return None

    def load_level(self, buffer: str, depth: int) -> int:
        """The outermost scope that may hold a load whose address is known at ``depth``."""
        level = self.depth
        while level > depth and self.stack[level].lets_out(buffer):
            level -= 1
        for s in self.stack[level + 1 :]:
            s.room -= 1
        return level
