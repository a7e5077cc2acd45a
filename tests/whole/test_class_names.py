"""The name of a class has one meaning in the whole product."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from syntax import tree

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("autotune", "schedules", "cost_model", "kernels_db")
# Names that several modules define, and why.
SHARED = {
    "Tensor": "`te.Tensor` is what users write, and `compute_dag.Tensor` is what becomes of it",
}


def definitions(files: Mapping[str, str]) -> dict[str, list[str]]:
    """{name of a public class: the modules that define it at their top} of these texts."""
    found = defaultdict(list)
    for path, text in files.items():
        for node in tree(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return found


def test_public_classes_are_counted_by_name() -> None:
    files = {"a.py": "class A:\n    class B: ...\nclass _C: ...", "b.py": "class A: ...\nclass B: ..."}
    assert definitions(files) == {"A": ["a.py", "b.py"], "B": ["b.py"]}


def test_a_public_class_has_a_name_of_its_own() -> None:
    files = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    shared = {name: where for name, where in definitions(files).items() if len(where) > 1}
    assert sorted(shared) == sorted(SHARED), f"give these a name of their own: {shared}"
    assert all(len(where) == 2 for where in shared.values()), shared
