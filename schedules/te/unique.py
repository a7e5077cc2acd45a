"""Names that are given once."""

from __future__ import annotations

from collections.abc import Container, Iterable


class Taken:
    """Names that are taken already. Another thing of such a name gets a number."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = set(names)
        self._last: dict[str, int] = {}  # {name: the number that it was given last}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str, reserved: Container[str] = ()) -> str:
        """Take ``name``, or one with a number where it is taken or ``reserved``. Returns what was taken."""
        out = name
        while out in self._names or out in reserved:
            self._last[name] = self._last.get(name, 0) + 1
            out = f"{name}_{self._last[name]}"
        self._names.add(out)
        return out
