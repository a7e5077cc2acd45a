"""Expressions of strangers: refused where they are read, or right between inaccessible pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from children import python_path
from model_cases import each_stage, layers, packing_kernel

from autotune.models.module import Module
from autotune.models.outline import outline
from autotune.models.program import Program
from autotune.run.kernels import default_kernel
from autotune.targets import detect

SUPPORT = Path(__file__).resolve().parents[1] / "support"
FINE = {"refused", "refused later", "large", "right", "run"}


def outcomes(program: str, *words: str) -> dict[str, list[int]]:
    """{what became of them: seeds}, without the fine ones; how many ran."""
    env = {**os.environ, "PYTHONPATH": python_path(__file__)}
    command = [sys.executable, str(SUPPORT / program), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert not (found.keys() - FINE), {k: x for k, x in found.items() if k not in FINE}
    return found


@pytest.mark.slow
def test_changed_expressions_are_refused_or_right() -> None:
    assert len(outcomes("dag_mutant_runs.py", "0", "100")["right"]) > 5


@pytest.mark.soak
def test_5000_changed_expressions_are_refused_or_right() -> None:
    assert len(outcomes("dag_mutant_runs.py", "100", "5100")["right"]) > 400


@pytest.mark.slow
def test_changed_models_are_refused_or_run(tmp_path: Path) -> None:
    found = outcomes("saved_mutants.py", str(saved(tmp_path)), "0", "40")
    assert found["run"] and len(found["refused"]) > 20


@pytest.mark.soak
def test_2000_changed_models_are_refused_or_run(tmp_path: Path) -> None:
    found = outcomes("saved_mutants.py", str(saved(tmp_path)), "40", "2040")
    assert found["run"] and len(found["refused"]) > 1000


def saved(folder: Path) -> Path:
    """A small model in a file: two layers, of which the first packs its weight."""
    graph, _ = layers(2, n=16)
    ol = outline(graph, each_stage(graph)[1])
    kernels = [default_kernel(w, detect(1)) for w in ol.tasks]
    kernels[0] = packing_kernel(ol.tasks[0], detect(1))
    program = Program.of(ol, kernels, graph.values.__getitem__, lambda island, arrays: arrays)
    Module(program, detect(1), "net", [None] * len(kernels)).save(folder / "net.at")
    return folder / "net.at"
