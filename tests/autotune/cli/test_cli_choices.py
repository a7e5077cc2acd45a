"""A search policy or a cost model is one row: the command line offers it, takes it and uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run
from typer.main import get_command

from autotune.cli import completion
from autotune.cli.app import app
from autotune.search.base import SearchPolicy
from autotune.search.policies import POLICIES, PolicyKind
from autotune.search.random import RandomSearch
from cost_model.base import CostModel
from cost_model.models import MODELS, ModelKind
from cost_model.random import RandomModel


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was made by the rows "dice" and "coin"."""
    made: list[str] = []

    def policy(*, space: Any, seed: int, **_: Any) -> SearchPolicy:
        made.append("dice")
        return RandomSearch(space, seed)

    def model(names: tuple[str, ...], seed: int, threads: int, prior: CostModel | None) -> CostModel:
        made.append("coin")
        assert prior is None  # a row says what it begins with
        return RandomModel(names, seed)

    monkeypatch.setitem(POLICIES, "dice", PolicyKind("dice", policy))
    monkeypatch.setitem(MODELS, "coin", ModelKind("coin", model))
    return made


def test_a_new_row_is_offered_and_used(made: list[str], tmp_path: Path) -> None:
    for option, name in (("--search", "dice"), ("--model", "coin"), ("--cost-model", "coin")):
        assert completion.answer(get_command(app), f"autotune tune matmul {option} {name[:2]}") == [name]
    path = tmp_path / "cache.json"
    cache = {str(x): {"x": x, "time": float(x)} for x in (1, 2, 4, 8)}
    path.write_text(json.dumps({"kernel_name": "k", "tune_params_keys": ["x"], "cache": cache}))
    for option, name in (("--search", "dice"), ("--model", "coin")):
        assert run("replay", path, "--trials", 2, "--seeds", 1, option, name).status == 0
        assert made == [name]
        made.clear()
        refused = run("replay", path, option, "cards")
        assert refused.status == 2 and name in refused.err


@pytest.mark.slow
def test_a_new_row_tunes(made: list[str], tmp_path: Path) -> None:
    words = ("tune", "matmul", "--shape", "m=8,n=8,k=8", "--threads", "1", "--trials", "2")
    for option, name in (("--search", "dice"), ("--model", "coin")):
        ran = run(*words, option, name, "--db", tmp_path / f"{name}.db", "--json")
        assert ran.status == 0 and ran.json["best"]["time_s"] > 0
        assert made == [name]
        made.clear()


def test_names_are_read_without_what_they_name() -> None:
    code = (
        "import sys, autotune.search.policies, cost_model.models\n"
        "heavy = ('numpy', 'autotune.search.base', 'cost_model.xgb', 'cost_model.saved')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
