"""The import contracts of pyproject.toml hold for imports by a function too, which import-linter does not
see: ``importlib.import_module("x")`` and ``__import__("x")``."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import grimp
import pytest
from grimp import ImportGraph

ROOT = Path(__file__).resolve().parents[2]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
PACKAGES = LINTER["root_packages"]
FORBIDDING = [c for c in LINTER["contracts"] if c["type"] == "forbidden"]
# Modules of the pure packages that import what a variable names.
BY_VARIABLE = {
    "schedules.dtypes": "the library of a dtype is a column of its table, such as ml_dtypes",
    "kernels_db": "its public names are imported from its own modules when they are first used",
}


def imported_by_function(text: str) -> list[str | None]:
    """The modules that calls of ``import_module`` and ``__import__`` name, under whatever name the function
    is imported; None for one that is no literal, or is relative."""
    if "import_module" not in text and "__import__" not in text:
        return []
    tree = ast.parse(text)
    functions = {"import_module", "__import__"} | {
        a.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("importlib", "builtins")
        for a in node.names
        if a.asname and a.name in ("import_module", "__import__")
    }
    found: list[str | None] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
        if name in functions:
            given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
            value = given[0].value if given and isinstance(given[0], ast.Constant) else None
            found.append(value if isinstance(value, str) and value[:1] != "." else None)
    return found


def in_files() -> Iterator[tuple[str, str | None]]:
    """(module, what a function of it imports) over the packages."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for name in imported_by_function(path.read_text(encoding="utf-8")):
                yield module, name


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    """Who imports whom, by statements and by functions. A library is one module of it."""
    graph = grimp.build_graph(
        *PACKAGES, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )
    return with_imports(graph, in_files())


def with_imports(graph: ImportGraph, more: Iterable[tuple[str, str | None]]) -> ImportGraph:
    """The same graph, with these imports: (module, what it imports)."""
    for module, name in more:
        if name is not None:
            top = name.split(".")[0]
            if top not in PACKAGES:
                graph.add_module(top, is_squashed=True)
            graph.add_import(importer=module, imported=name if top in PACKAGES else top)
    return graph


def broken(graph: ImportGraph, contract: dict[str, Any]) -> set[tuple[str, ...]]:
    """The ways by which a contract's source modules import what is forbidden to them."""
    for ignored in contract.get("ignore_imports", ()):
        importer, imported = ignored.split(" -> ")
        graph.remove_import(importer=importer, imported=imported)
    forbidden = set(contract["forbidden_modules"]) & graph.modules
    return {
        chain
        for source in contract["source_modules"]
        for name in forbidden
        for chain in graph.find_shortest_chains(source, name, as_packages=True)
    }


def test_calls_that_import_are_found() -> None:
    text = """
import importlib
from importlib import import_module as load

def f(name):
    importlib.import_module("a.b")
    load(name="c")
    __import__("d")
    builtins.__import__("e", globals())
    importlib.import_module(name)
    load(".beside", __package__)
    other("g")
"""
    assert imported_by_function(text) == ["a.b", "c", "d", "e", None, None]


def test_a_forbidden_import_by_a_function_breaks_a_contract(graph: ImportGraph) -> None:
    pure = next(c for c in FORBIDDING if c["source_modules"] == ["schedules"])
    changed = with_imports(deepcopy(graph), [("schedules.model", "os.path")])
    assert broken(changed, pure) == {("schedules.model", "os")}


@pytest.mark.parametrize("contract", FORBIDDING, ids=lambda c: c["name"])
def test_contracts_hold_for_imports_by_functions(graph: ImportGraph, contract: dict[str, Any]) -> None:
    assert broken(deepcopy(graph), contract) == set()


def test_layers_hold_for_imports_by_functions(graph: ImportGraph) -> None:
    (contract,) = (c for c in LINTER["contracts"] if c["type"] == "layers")
    layers = [set(layer.split(" | ")) for layer in contract["layers"]]
    assert not graph.find_illegal_dependencies_for_layers(layers)
    changed = with_imports(deepcopy(graph), [("kernels_db.store", "cost_model.models")])
    assert changed.find_illegal_dependencies_for_layers(layers)


def test_pure_packages_name_what_they_import() -> None:
    found = {module for module, name in in_files() if name is None and module.split(".")[0] != "autotune"}
    assert found == set(BY_VARIABLE)
