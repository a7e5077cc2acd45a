"""How results are shown: as text for prompts, and as HTML for notebooks."""

from __future__ import annotations

from typing import ClassVar


class Shown:
    """A result that prompts and notebooks show. ``shown_as``: what `text` and `html` know it by, "task",
    "sizes", "targets", "tasks", "one of tasks" or "model"."""

    shown_as: ClassVar[str]

    def __str__(self) -> str:
        from autotune.results import text  # nobody who only tunes needs it

        return text.of(self)

    def __repr__(self) -> str:
        from autotune.results import text

        return f"<{type(self).__name__} {text.short(self)}>"

    def _repr_html_(self) -> str:
        from autotune.results import html

        return html.of(self)
