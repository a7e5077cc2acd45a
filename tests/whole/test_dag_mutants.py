"""Expressions of strangers: refused where they are read, or right between inaccessible pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from children import python_path

RUNS = Path(__file__).resolve().parents[1] / "support" / "dag_mutant_runs.py"
FINE = {"refused", "refused later", "large", "right"}


def outcomes(first: int, last: int) -> dict[str, list[int]]:
    env = {**os.environ, "PYTHONPATH": python_path(__file__)}
    done = subprocess.run(
        [sys.executable, str(RUNS), str(first), str(last)],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_changed_expressions_are_refused_or_right() -> None:
    found = outcomes(0, 100)
    assert not (found.keys() - FINE) and len(found["right"]) > 5, found


@pytest.mark.slow
def test_5000_changed_expressions_are_refused_or_right() -> None:
    found = outcomes(100, 5100)
    assert not (found.keys() - FINE) and len(found["right"]) > 400, {k: found[k] for k in found.keys() - FINE}
