"""`Explanation`: numbers with their meaning and their source, as text, HTML or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

SOURCES: Mapping[str, str] = {
    "definition": "counted in the expression",
    "estimate": "computed from the loop nest; not measured",
    "counter": "counted in the lowered nest, as the interpreter counts when it runs it",
    "target": "a limit or rate that the target or its model tells",
    "log": "measured when it was tuned",
}
MARGIN = 2


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
        width = max((len(r.name) for s in self.sections for r in s.rows), default=0) + MARGIN
        lines = [self.title]
        for s in self.sections:
            lines += ["", s.title]
            lines += [f"  {r.name.ljust(width)}{r.text}  [{r.source}]" for r in s.rows]
        used = {r.source for s in self.sections for r in s.rows}
        lines += ["", *(f"[{name}] {words}" for name, words in SOURCES.items() if name in used)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from autotune.progress.html import table

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
