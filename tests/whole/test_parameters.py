"""No function has so many parameters that a caller loses count, but the doors that users come in by."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax import tree

ROOT = Path(__file__).parents[2]
PACKAGES = ("autotune", "schedules", "cost_model", "kernels_db")
MOST = 8
# What begins a function: its name, up to the end of its parameters.
HEAD = re.compile(r"\bdef \w+.*?\)(?: -> [^\n]*)?:\s", re.S)
# Functions of the public API.
DOORS = {
    "autotune/api.py: tune", "autotune/api.py: tune_suite",
    "autotune/models/tuning.py: tune_model", "autotune/models/compiling.py: compile_model",
    "autotune/run/loading.py: load", "autotune/run/loading.py: best",
}  # fmt: skip
# Their parameters are the inputs and attributes of an operator of another format, in its order.
OPERATORS = ("autotune/models/operators/",)
# Still too many. A function leaves this list when it is mended; none comes to it.
TO_MEND = {
    "autotune/backends/peaks/cpu_peaks.py: _loop_text", "autotune/measure/measurer.py: __init__",
    "autotune/report/parts.py: dots",
    "autotune/run/kernel.py: __init__",
    "cost_model/xgb.py: __init__",
}  # fmt: skip


def wide(source: str) -> Iterator[str]:
    """Names of the functions of a module that have more than `MOST` parameters, keyword-only ones too."""
    if all(x.group().count(",") < MOST for x in HEAD.finditer(source)):
        return  # not worth parsing
    for f in ast.walk(tree(source)):
        if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)):
            every = [a.arg for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)]
            if len([a for a in every if a not in ("self", "cls")]) > MOST:
                yield f.name


@pytest.fixture(scope="module")
def found() -> set[str]:
    files = (p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py")))
    named = ((p.relative_to(ROOT).as_posix(), p.read_text(encoding="utf-8")) for p in files)
    return {f"{name}: {f}" for name, text in named for f in wide(text) if not name.startswith(OPERATORS)}


def test_only_doors_have_many_parameters(found: set[str]) -> None:
    assert found - DOORS - TO_MEND == set()


def test_the_lists_name_no_function_that_is_mended(found: set[str]) -> None:
    assert (DOORS | TO_MEND) - found == set()


def test_keyword_only_parameters_count_and_self_does_not() -> None:
    assert [*wide("def f(self, a, b, c, d, /, e, *, g, h, i): ...")] == []
    assert [*wide("async def f(a, b, c, d, e, g, h, *, i, j): ...")] == ["f"]
