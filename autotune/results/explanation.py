"""`Explanation`: numbers with their meaning and their source, as text, HTML or JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from textwrap import wrap
from typing import Any

SOURCES: Mapping[str, str] = {
    "definition": "counted in the expression",
    "estimate": "computed from the loop nest; not measured",
    "counter": "counted in the lowered nest, as the interpreter counts when it runs it",
    "compiler": "told by the compiler, or counted in its machine code",
    "target": "a limit or rate that the target or its model tells",
    "log": "measured when it was tuned",
}
MARGIN = 2
WIDTH = 100  # columns of the text
UNITS = re.compile(r"(\d) ([KMG]?B\b|bytes|%|[num]?s\b)")  # what stays on the line of its number
LEAST = 30  # columns of a statement, however narrow the terminal is


@dataclass(frozen=True)
class Row:
    """One statement. ``text``: for people. ``numbers``: what it is made of, by name with unit, such as
    ``before_bytes``. ``source``: a key of `SOURCES`."""

    name: str
    text: str
    source: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"the source {self.source!r} of {self.name} is not one of {', '.join(SOURCES)}")


@dataclass(frozen=True)
class Section:
    """Rows on one subject."""

    title: str
    rows: tuple[Row, ...]

    def lines(self, names: int, width: int) -> list[str]:
        """The rows as text, wrapped. ``names``: columns of their names; ``width``: columns of all."""
        out = []
        for r in self.rows:
            first = f"  {r.name.ljust(names)}"
            room = max(width - len(first), LEAST)
            words = UNITS.sub("\\1\N{NO-BREAK SPACE}\\2", f"{r.text}  [{r.source}]")
            parts = wrap(words, room, break_long_words=False, break_on_hyphens=False)
            parts = [x.replace("\N{NO-BREAK SPACE}", " ") for x in parts]
            out += [(first if n == 0 else " " * len(first)) + part for n, part in enumerate(parts)]
        return out


@dataclass(frozen=True)
class Explanation:
    """Why a kernel takes the time that it takes. ``str`` is the text, ``to_json`` the same as data.

    >>> print(at.explain("matmul", m=64, n=64, k=64, threads=1))
    matmul ...
    """

    title: str
    sections: tuple[Section, ...]

    def __repr__(self) -> str:
        rows = sum(len(s.rows) for s in self.sections)
        return f"<Explanation of {self.title[:100]}: {rows} statements; print it>"

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """The text, wrapped to ``width`` columns where words allow."""
        lines = [self.title]
        for s in self.sections:
            lines += ["", s.title, *s.lines(self.names, width)]
        return "\n".join([*lines, "", *self.legend])

    @property
    def names(self) -> int:
        """Columns of the names of rows."""
        return max((len(r.name) for s in self.sections for r in s.rows), default=0) + MARGIN

    @property
    def legend(self) -> list[str]:
        """What the sources that it names mean."""
        used = {r.source for s in self.sections for r in s.rows}
        return [f"[{name}] {words}" for name, words in SOURCES.items() if name in used]

    def _repr_html_(self) -> str:
        from autotune.results.html import table

        parts = [f"<h3>{escape(self.title)}</h3>"]
        for s in self.sections:
            parts.append(table(("", s.title, "source"), [(r.name, r.text, r.source) for r in s.rows]))
        return "".join(parts)

    def number(self, row: str, name: str) -> float | int | str | None:
        """A number of the first row of that name. Raises KeyError."""
        found = next((r for s in self.sections for r in s.rows if r.name == row), None)
        if found is None:
            raise KeyError(row)
        return found.numbers[name]

    def to_json(self) -> dict[str, Any]:
        """A JSON value: ``title``, ``sources``, ``sections`` of ``title`` and ``rows``."""
        return {
            "title": self.title,
            "sources": dict(SOURCES),
            "sections": [
                {
                    "title": s.title,
                    "rows": [
                        {"name": r.name, "text": r.text, "source": r.source, "numbers": dict(r.numbers)}
                        for r in s.rows
                    ],
                }
                for s in self.sections
            ],
        }
