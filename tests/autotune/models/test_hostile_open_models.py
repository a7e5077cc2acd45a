"""Files of models with open sizes or states, and of states, that somebody changed: refused in words, or what
they say is run without leaving memory. Nothing of them is executed but kernels that were checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from children import ROOT, python_path
from open_graphs import size
from state_models import cache
from test_open_models import attention, module_of

from autotune.errors import ModelError
from autotune.models.module import Module
from autotune.models.state import ModelState
from schedules.graph.graph import Graph

FINE = {"refused", "run", "large"}


def outcomes(file: Path, first: int, last: int) -> dict[str, list[int]]:
    """{what became of changed documents: seeds}, each in a process of its own."""
    env = {**os.environ, "PYTHONPATH": python_path(__file__)}
    command = [sys.executable, str(ROOT / "tests/support/saved_mutants.py"), str(file), str(first), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[int]] = json.loads(done.stdout)
    assert found.keys() <= FINE, {k: x for k, x in found.items() if k not in FINE}
    return found


MODELS = {
    "sizes": lambda: attention(size(1, 9), size(1, 4, "b")),
    "states": cache,
}


def saved(name: str, folder: Path) -> Path:
    graph: Graph = MODELS[name]()
    module_of(graph).save(folder / "net.at")
    return folder / "net.at"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_changed_models_are_refused_or_run(name: str, tmp_path: Path) -> None:
    found = outcomes(saved(name, tmp_path), 0, 60)
    assert found["run"] and len(found["refused"]) > 30


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
def test_500_changed_models_are_refused_or_run(name: str, tmp_path: Path) -> None:
    found = outcomes(saved(name, tmp_path), 60, 560)
    assert found["run"] and len(found["refused"]) > 250


# -- states ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def net() -> Module:
    return module_of(cache())


def scribbled(data: bytes, rng: Random) -> bytes:
    """A file with bytes changed, cut off, put in, or taken out."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, how = rng.randrange(len(made)), rng.random()
        if how < 0.5:
            made[at] ^= 1 << rng.randrange(8)
        elif how < 0.6:
            made = made[:at] or made
        elif how < 0.75:
            made[at:at] = rng.randbytes(rng.choice((1, 2, 8, 100)))
        elif how < 0.9:
            del made[at : at + rng.choice((1, 2, 8))]
        else:
            other = rng.randrange(len(made))
            made[at : at + 16] = made[other : other + 16]
        made = made or bytearray(b"P")
    return bytes(made)


def try_states(net: Module, folder: Path, seeds: range) -> Counter[str]:
    """What becomes of changed files of a state: what is refused changes nothing."""
    state: ModelState = net.new_state()
    for k, a in enumerate(state.values()):
        a[...] = np.arange(a.size).reshape(a.shape) + k
    path = folder / "talk.state"
    state.save(path)
    data, found = path.read_bytes(), Counter[str]()
    for seed in seeds:
        path.write_bytes(scribbled(data, Random(seed)))
        other = net.new_state()
        try:
            other.load(path)
        except ModelError as err:
            assert 10 < len(str(err)) < 2000 and str(path) in str(err), f"seed {seed}: {err}"
            assert not any(a.any() for a in other.values()), seed
            found["refused"] += 1
        else:
            assert {n: a.shape for n, a in other.items()} == {n: a.shape for n, a in state.items()}
            same = all(np.array_equal(a, state[n]) for n, a in other.items())
            found["same" if same else "other"] += 1
    return found


def test_changed_states_are_refused_or_read(net: Module, tmp_path: Path) -> None:
    found = try_states(net, tmp_path, range(60))
    assert found["refused"] > 40, found


@pytest.mark.slow
def test_1000_changed_states_are_refused_or_read(net: Module, tmp_path: Path) -> None:
    found = try_states(net, tmp_path, range(100, 1100))
    assert found["refused"] > 700 and not found["other"], found
