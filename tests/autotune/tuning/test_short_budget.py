"""A budget of a second gives a kernel that is stored, and loads nothing that takes as long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_runner import run

import autotune as at

PROGRAM = """
import sys
from autotune.cli.app import app
status = app(sys.argv[1:], standalone_mode=False)
assert "xgboost" not in sys.modules, "takes a second to load"
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["1s", pytest.param("10ms", marks=pytest.mark.soak)])
def test_a_kernel_is_stored(tmp_path: Path, budget: str) -> None:
    db, shape = tmp_path / "t.db", "m=48,n=40,k=56"
    words = ["tune", "matmul", "--shape", shape, "--budget", budget, "--db", db, "--threads", 1, "--json"]
    ran = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, words)], capture_output=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["best"]["record_id"] and found["trials"]["measured"] >= 1 and found["elapsed_s"] < 10
    kernel = at.load("matmul", db=db, threads=1, m=48, n=40, k=56)
    a, b = np.ones((48, 56), np.float32), np.ones((56, 40), np.float32)
    assert (kernel(a, b) == 56).all()
    assert run("log", "verify", "--db", db, "--slower", 1000, "--json").json["ok"] == 1
    assert run(*words, "--trials", 1, "--budget", "20s").json["trials"]["resumed"] >= 1
