"""The rooms of a package, its first-level folders and flat files: who imports whom, and no circle."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from syntax import tree

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Rooms:
    """``uses``: {room: the other rooms that a module of it imports}."""

    uses: dict[str, frozenset[str]]

    @property
    def arrows(self) -> int:
        return sum(map(len, self.uses.values()))

    def reached(self, room: str) -> set[str]:
        """All that a room imports, and what those import, and so on."""
        found: set[str] = set()
        new = set(self.uses[room])
        while new:
            found |= new
            new = set().union(*(self.uses[r] for r in new)) - found
        return found

    @property
    def circles(self) -> list[list[str]]:
        """The sets of rooms that all reach each other (strongly connected), the largest first."""
        reached = {room: self.reached(room) for room in self.uses}
        found = {frozenset(o for o in there if room in reached[o]) for room, there in reached.items()}
        return sorted((sorted(c) for c in found if c), key=lambda c: (-len(c), c))


def rooms(package: Path) -> Rooms:
    """The rooms of a package. All imports count: at the top, within a function, for a type checker only. The
    package's own ``__init__.py`` is a room too."""
    files = {module_of(package, path): path for path in package.rglob("*.py")}
    uses: dict[str, set[str]] = {room_of(module): set() for module in files}
    for module, path in files.items():
        for name in imported(path.read_text(encoding="utf-8")):
            while name and name not in files:
                name = name.rpartition(".")[0]
            if name and room_of(name) != room_of(module):
                uses[room_of(module)].add(room_of(name))
    return Rooms({room: frozenset(used) for room, used in uses.items()})


def module_of(package: Path, path: Path) -> str:
    return ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    return (module.split(".") + ["__init__"])[1]


def imported(text: str) -> list[str]:
    """What a file imports: the longest name of each, such as ``package.module.function``."""
    names: list[str] = []
    for node in ast.walk(tree(text)):
        if isinstance(node, ast.Import):
            names += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names += [f"{node.module}.{a.name}" for a in node.names]
    return names


def test_rooms_are_read_off_all_imports(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from p.a import f\n",
        "a/__init__.py": "from p.a.deep import f\n",
        "a/deep.py": "import numpy\ndef f():\n    from p import b\n",
        "b.py": "if TYPE_CHECKING:\n    from p.c.names import N\n",
        "c/__init__.py": "",
        "c/names.py": "import p.a.deep\n",
        "d.py": "from p import errors\nfrom p.e import x\n",
        "e.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    p = rooms(tmp_path / "p")
    assert {room: set(used) for room, used in p.uses.items()} == {
        "__init__": {"a"},
        "a": {"b"},
        "b": {"c"},
        "c": {"a"},
        "d": {"__init__", "e"},
        "e": set(),
    }
    assert (p.arrows, p.circles) == (6, [["a", "b", "c"]])


def test_the_rooms_of_schedules_have_floors() -> None:
    assert rooms(ROOT / "schedules").circles == []


# The floors of `autotune/`, from the ground up: a room imports those before it alone.
FLOORS = (
    "platform", "errors", "settings", "targets", "codegen", "backends", "run", "measure", "search", "results",
    "tuning", "fleet", "models", "report", "api", "torch", "__init__", "cli", "__main__",
)  # fmt: skip


def test_a_room_of_autotune_imports_lower_ones_alone() -> None:
    found = rooms(ROOT / "autotune")
    assert set(found.uses) == set(FLOORS)
    floor = {room: n for n, room in enumerate(FLOORS)}
    upward = {f"{a} -> {b}" for a, used in found.uses.items() for b in used if floor[b] > floor[a]}
    assert upward == set()
    assert found.circles == []


# Rooms that every other may use. They stand on each other alone: who uses them is tied to nothing more.
GROUND = FLOORS[:3]


def test_the_rooms_of_autotune_are_few() -> None:
    found = rooms(ROOT / "autotune")
    assert len(found.uses.keys() - {"__init__", "__main__"}) <= 17
    assert all(found.uses[room] <= set(GROUND) for room in GROUND)
    assert sum(len(used - set(GROUND)) for used in found.uses.values()) <= 70


def test_the_map_has_the_rooms_in_the_order_of_their_floors() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("| room of `autotune/` | has |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = [name for cell in cells for name in re.findall(r"`(\w+)(?:/|\.py)`", cell)]
    assert named == [room for room in FLOORS if not room.startswith("__")]
