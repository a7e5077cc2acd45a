"""The map in docs/architecture.md names what exists: every folder and every flat file of the packages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("autotune", "cost_model", "kernels_db", "schedules")
ROOMS = {
    room: re.findall(r"^\|((?: *`\w+(?:/|\.py)`,?)+) *\|", table, re.MULTILINE)
    for room, table in re.findall(r"\| room of `(\w+)/` \|.*?\n(.*?)\n\n", PAGE, re.DOTALL)
}


def test_every_folder_and_flat_file_stands_in_the_map_and_exists() -> None:
    for package, rows in ROOMS.items():
        named = sorted(name for row in rows for name in re.findall(r"`(.*?)`", row))
        inside = list((ROOT / package).iterdir())
        folders = [f"{p.name}/" for p in inside if p.is_dir() and any(p.rglob("*.py"))]
        files = [p.name for p in inside if p.suffix == ".py" and not p.name.startswith("__")]
        assert named == sorted(folders + files), package
    assert set(ROOMS) == {"schedules", "autotune"}


def test_every_path_that_the_map_names_exists() -> None:
    places = [ROOT, *(ROOT / p for p in PACKAGES), ROOT / "autotune" / "codegen"]
    named = set(re.findall(r"`((?:\w+/)+\w*(?:\.\w+)?)`", PAGE))
    rooms = [ROOT / p / name for p, rows in ROOMS.items() for name in re.findall(r"`(\w+)/", "".join(rows))]
    missing = {n for n in named if "x." not in n and not any((p / n).exists() for p in (*places, *rooms))}
    assert not missing
