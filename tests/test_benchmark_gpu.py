"""benchmarks/gpu.py, tried on emulation: steps that are cut off, skipped, and gone on with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grid_cases import need_cxx

ROOT = Path(__file__).resolve().parents[1]
SUITE = """
[[group]]
suite = "tiny"
name = "softmax"
op = "softmax"
fields = ["m", "n"]
shapes = [[5, 40]]
"""


def run(folder: Path, *args: str) -> tuple[int, str, dict[str, Any]]:
    out = folder / "out.json"
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu.py", str(folder / "tiny.toml"), "--target", "cuda-emulator",
         "--trials", "2", "--budget", "30", "--out", str(out), *args],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text()) if out.exists() else {}


@pytest.mark.slow
def test_steps_go_on_where_they_were_cut_off(tmp_path: Path) -> None:
    need_cxx()
    (tmp_path / "tiny.toml").write_text(SUITE)
    only = ("--steps", "install,suite 00,suite 01,half rows,half elementwise")
    status, said, found = run(tmp_path, *only, "--limit", "0.6")
    by_name = {s["step"]: s for s in found["steps"]}
    assert status == 1 and by_name["suite 00"]["reason"] == "took longer than 0.6 s", said
    assert by_name["install"]["status"] == "skipped"

    status, said, found = run(tmp_path, *only)
    by_name = {s["step"]: s for s in found["steps"]}
    assert status == 0 and len(found["steps"]) == 5, said
    (row,) = by_name["suite 00"]["rows"]
    assert row["measured"] == 2 and row["times_s"]["autotune"] > 0 and row["params"] == {"m": 5, "n": 40}
    assert row["skipped"]["torch"] == "needs an NVIDIA GPU, not cuda-emulator"
    assert "fewer than 2 tasks" in by_name["suite 01"]["reason"]
    (halves,) = by_name["half rows"]["rows"]
    assert halves["dtype"] == "float16" and halves["measured"] == 2 and halves["times_s"]["autotune"] > 0
    assert halves["bytes"] * 2 == row["bytes"] and row["dtype"] == "float32"
    assert "the suite has none of add" in by_name["half elementwise"]["reason"]
    assert found["environment"]["commit"] and "benchmarks/gpu.py" in found["environment"]["command"]

    kept = found
    status, said, found = run(tmp_path, *only)
    assert status == 0 and found == kept and "5 of 25 steps done" in said
    status, said, _ = run(tmp_path, "--for", "100")
    assert status == 0 and "tests: no time left" in said


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(SUITE)
    status, said, _ = run(tmp_path, "--steps", "suite 99")
    assert status == 2 and "no step 'suite 99'; the steps are install, tests, suite 00" in said
