"""Models' files as users export them, by the command: what a program in C prints is what Python computes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
from cli_runner import run
from exported import each
from exported_cases import program

import autotune as at
from autotune.codegen.simt import cxx

if cxx.command() is None:
    needs.missing("c++")
pytestmark = pytest.mark.slow


def small_onnx(folder: Path) -> Path:
    needs.imported("onnx")
    import onnx_models

    onnx_models.small_file(folder / "small.onnx")
    return folder / "small.onnx"


def small_gguf(folder: Path) -> Path:
    needs.imported("gguf")
    import gguf_models

    return Path(gguf_models.write(folder / "small.gguf", gguf_models.Sizes(layers=1, hidden=32)))


FILES: dict[str, tuple[Any, str, Any]] = {
    "onnx": (small_onnx, "batch=4", lambda p: at.import_onnx(p, shapes={"batch": 4})),
    "open": (small_onnx, "batch=1..4,open", lambda p: at.import_onnx(p, shapes={"batch": 4})),
    "gguf": (small_gguf, "context=16,rows=4", lambda p: at.import_gguf(p, context=16, rows=4)),
}


@pytest.mark.filterwarnings("ignore:.*run kernels that are not tuned:UserWarning")
@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_a_model_becomes_a_program(kind: str, tmp_path: Path) -> None:
    make, shape, imported = FILES[kind]
    path, db = make(tmp_path), tmp_path / "t.db"
    asked = ("--shape", shape, "--threads", 1, "--db", db, "--fallback", "--name", "net", "--json")
    done = run("export", path, tmp_path / "out put", *asked)
    assert done.status == 0 and "not tuned\ntune them: autotune tune" in done.err, done.err
    folder = Path(done.json["library"]).parent
    contract = json.loads((folder / "net.json").read_text())
    net = at.compile_model(imported(path), threads=1, db=db, fallback=True)
    shapes = [(a["shape"], a["dtype"]) for a in contract["arguments"] if a["role"] == "input"]
    given = [np.arange(np.prod(s)).reshape(s).astype(dtype) % 7 for s, dtype in shapes]
    expected = [float(x.sum(dtype=np.float64)) for x in each(net(*given))]
    told = program(folder, "net").splitlines()
    command = [sys.executable, "-I", "net_example.py"]
    same = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert same.stdout.splitlines() == told
    assert told[0] == "done" and len(told) == 1 + len(expected)
    for line, total in zip(told[1:], expected, strict=True):
        assert float(line.split()[-1]) == pytest.approx(total, rel=1e-5, abs=1e-5)
