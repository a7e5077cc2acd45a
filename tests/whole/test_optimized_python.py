"""``python -O`` takes asserts away, and ``-OO`` docstrings too: nothing else changes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import autotune as at

ROOT = Path(at.__file__).parents[1]
PACKAGES = ("autotune", "schedules", "cost_model", "kernels_db")

CODE = """
assert False, "asserts are gone"
import sys
import numpy as np
import autotune as at
from autotune.cli.app import app
from schedules.primitives import Split
assert Split.__doc__ is None

result = at.tune("add", n=64, threads=1, trials=12, budget_s=60, db="t.db", progress=None)
kernel = at.load("add", n=64, threads=1, db="t.db")
x = np.arange(64, dtype=np.float32)
if not np.array_equal(kernel(x, x), 2 * x) or not str(result.explain()):
    raise SystemExit("a wrong result")
result.report("t.html")
for words in (["--help"], ["tune", "--help"], ["log", "stats", "--db", "t.db"], ["ops", "matmul"]):
    status = app(words, standalone_mode=False)
    if status:
        raise SystemExit(f"{words}: {status}")
"""
WITH_TORCH = """
import torch
import autotune
f = torch.compile(lambda x: torch.relu(x) + 1.0, backend="autotune")
if not torch.equal(f(torch.arange(8.0)), torch.arange(8.0) + 1):
    raise SystemExit("a wrong result")
"""


def without_docstrings(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(code)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-OO", str(script)], capture_output=True, text=True, cwd=folder, env=environment
    )


@pytest.mark.soak
@pytest.mark.parametrize("code", [CODE, WITH_TORCH])
def test_everything_works_without_asserts_and_docstrings(tmp_path: Path, code: str) -> None:
    if code is WITH_TORCH:
        pytest.importorskip("torch")
    ran = without_docstrings(code, tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_the_cost_model_is_imported_without_docstrings(tmp_path: Path) -> None:
    ran = without_docstrings("from cost_model.library import xgboost\nxgboost().Booster", tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_asserts_check_nothing_but_what_a_type_checker_cannot_see() -> None:
    """What may be wrong is raised as an error of ours, which ``-O`` keeps."""
    found = []
    for path in (p for package in PACKAGES for p in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert) and not narrows(node.test):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def narrows(test: ast.expr) -> bool:
    """``x is not None``, ``isinstance(x, T)``, ``not isinstance(x, T)``, or several of these."""
    match test:
        case ast.BoolOp(op=ast.And(), values=each):
            return all(map(narrows, each))
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return narrows(inner)
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
    return False
