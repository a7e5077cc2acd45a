"""How results are shown, reported and explained: a table of functions that ``autotune/__init__`` fills.

What a result is does not know what shows it. A class that is a `Shown` asks the table, whose functions import
what they need when they are called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar


class Rendering:
    """Functions of a `Shown`. ``text``: one line or several. ``short``: at most 160 characters. ``html``: for
    notebooks. ``report``: writes a page of HTML to a path. ``explain``: why the best schedule is as fast as
    it is. (No tuple with names: making the class of one is a third of ``import autotune``.)"""

    def __init__(
        self,
        *,
        text: Callable[[Any], str],
        short: Callable[[Any], str],
        html: Callable[[Any], str],
        report: Callable[[Any, str | os.PathLike[str]], Any],
        explain: Callable[[Any], Any],
    ) -> None:
        self.text, self.short, self.html, self.report, self.explain = text, short, html, report, explain


_filled: list[Rendering] = []


def fill(rendering: Rendering) -> None:
    """Set the table, once. `import autotune` does."""
    _filled[:] = [rendering]


def rendering() -> Rendering:
    """The table."""
    return _filled[0]


class Shown:
    """A result that prompts and notebooks show. ``shown_as``: what the table's functions know it by, "task",
    "sizes", "targets", "tasks", "one of tasks", "model" or "profile"."""

    shown_as: ClassVar[str]

    def __str__(self) -> str:
        return rendering().text(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {rendering().short(self)}>"

    def _repr_html_(self) -> str:
        return rendering().html(self)
