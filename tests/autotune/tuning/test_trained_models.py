"""Tuning with a model that a user trained: read at once, refused by name, and used by the search."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from space_cases import target

import autotune as at
from autotune.backends import parse
from autotune.search import policies
from autotune.settings import SettingsError
from autotune.tuning.options import TuneOptions
from autotune.tuning.run_records import run_options
from cost_model.base import CostModelError
from cost_model.features import DERIVED
from cost_model.saved import SavedModel, read
from cost_model.tree_ensemble import TreeEnsemble
from kernels_db import Log
from schedules import ops
from schedules.model import Target
from schedules.space import derive
from schedules.space.estimate.cpu.features import FEATURE_NAMES
from schedules.space.estimate.gpu.features import FEATURE_NAMES as GPU_FEATURES

COLUMN = "block0.unrolled"
MATMUL = ops.workload("matmul", {"m": 64, "n": 64, "k": 64})


def step(names: tuple[str, ...], at_: float, high: bool) -> TreeEnsemble:
    """A tree that wants one feature to be high, or low."""
    feature = names.index(COLUMN) if COLUMN in names else 0
    values = (0.01, 0.9) if high else (0.9, 0.01)
    return TreeEnsemble(
        np.array([0, 3]),
        np.array([feature, -1, -1], np.int32),
        np.array([at_, *values], np.float32),
        np.array([1, -1, -1], np.int32),
        np.array([2, -1, -1], np.int32),
        np.zeros(3, bool),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "team.json"
    SavedModel("xgb", FEATURE_NAMES, (step(FEATURE_NAMES, 8.0, True),)).save(path)
    return path


@pytest.fixture
def of_gpus(tmp_path: Path) -> Path:
    path = tmp_path / "gpu.json"
    SavedModel("xgb", GPU_FEATURES, (step(GPU_FEATURES, 8.0, True),)).save(path)
    return path


def test_options_read_a_file_once(file: Path) -> None:
    options = TuneOptions(model=file)
    assert isinstance(options.model, SavedModel) and options.model.origin == str(file)
    assert options.guide is options.model and options.needs_xgboost
    assert TuneOptions(model=str(file), budget_s=1.0).guide == "analytic", "as of the shipped model"
    file.unlink()
    assert replace(options, trials=3).model is options.model
    assert TuneOptions(model="xgb").model == "xgb"


def test_a_file_beside_a_search_that_asks_no_model_is_refused(file: Path) -> None:
    """A name is left alone: it may be the default."""
    for search in ("random", "grid", "local"):
        TuneOptions(search=search, model="blend")
        with pytest.raises(
            SettingsError, match=f"search {search} asks no cost model, so that .*team.json would"
        ):
            TuneOptions(search=search, model=file)
    assert {p.guided for p in policies.POLICIES.values()} == {True, False}


def test_a_name_of_a_file_without_a_dot_is_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    file.rename("team")
    assert isinstance(TuneOptions(model="team").model, SavedModel)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            "xbg",
            r"unknown model 'xbg' \(did you mean 'xgb'\?\); choose from xgb, .* file that autotune train",
        ),
        ("none.json", r"cannot read the cost model none\.json: No such file .*autotune train"),
        ("", r"unknown model ''"),
        (7, r"unknown model 7"),
        (None, r"unknown model None"),
        ("a\0b", r"unknown model"),
    ],
)
def test_what_is_no_model_is_refused_with_the_settings(model: object, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        TuneOptions(model=model)  # type: ignore[arg-type]
    if isinstance(model, str):
        with pytest.raises(SettingsError, match=said):
            at.tune("matmul", m=8, n=8, k=8, cost_model=model, progress=None)
        with pytest.raises(SettingsError, match=said):
            at.tune_suite([MATMUL], cost_model=model, progress=None)


def test_two_names_of_the_setting_do_not_go_together() -> None:
    with pytest.raises(SettingsError, match="cost_model and model are names of one setting; give cost_model"):
        at.tune("matmul", m=8, n=8, k=8, cost_model="analytic", model="random", progress=None)


def test_a_model_of_another_kind_of_target_is_refused_before_anything_runs(
    file: Path, of_gpus: Path, tmp_path: Path
) -> None:
    db = tmp_path / "t.db"
    with pytest.raises(SettingsError, match=r"gpu\.json is for gpus, and cpu is none of them; train one"):
        at.tune("matmul", m=8, n=8, k=8, cost_model=of_gpus, db=db, progress=None)
    with pytest.raises(SettingsError, match="is for gpus"):
        at.tune_suite([MATMUL], cost_model=of_gpus, db=db, progress=None)
    with Log(db) as log:
        assert not log.runs()
    with pytest.raises(SettingsError, match=r"team\.json is for cpus, and cuda is none of them"):
        TuneOptions(model=file).check(Target("cuda", "sm_90"))
    TuneOptions(model=file).check(target())
    with pytest.raises(CostModelError, match=r"gpu\.json was trained on other features than this space has"):
        policies.create("evolutionary", derive(MATMUL.canonical, target()), read(of_gpus), target=target())


@pytest.mark.slow
def test_the_first_candidates_are_those_that_the_file_wants(tmp_path: Path) -> None:
    space = derive(MATMUL.canonical, target())
    place = space.feature_names.index(COLUMN)

    def asked(high: bool) -> np.ndarray:
        path = tmp_path / "m.json"
        SavedModel("xgb", FEATURE_NAMES, (step(FEATURE_NAMES, 8.0, high),) * 2).save(path)
        search = policies.create("evolutionary", space, read(path), target=target())
        found = search.ask(16)
        assert set(search.predicted(found)) >= {"prior", "analytic"}
        return np.array([space.features(c.sketch, np.array([c.row]))[0, place] for c in found])

    assert (asked(True) >= 8).mean() > (asked(False) >= 8).mean() + 0.2


def test_a_file_of_gpus_begins_a_search_for_one(of_gpus: Path) -> None:
    """The shipped models are of CPUs: a search for a GPU begins with none of them."""
    goal = parse("cuda-emulator", None)
    space = derive(MATMUL.canonical, goal)
    for model, begins in ((read(of_gpus), True), ("xgb", False)):
        search = policies.create("evolutionary", space, model, target=goal)
        found = search.ask(8)
        predicted = search.predicted(found)
        assert ("prior" in predicted) == begins and len(found) == 8
        assert all(np.isfinite(p).all() for p in predicted.values())


def test_runs_name_a_model_by_its_digest_and_no_path(file: Path) -> None:
    told = run_options(TuneOptions(model=file))
    assert told["model"] == "trained" and told["trained"] == read(file).digest[:16]
    assert "team" not in json.dumps(told) and str(file.parent) not in json.dumps(told)
    assert run_options(TuneOptions(model="blend"))["model"] == "blend"
    assert len(DERIVED) + len(FEATURE_NAMES) == read(file).width


@pytest.mark.slow
def test_tuning_with_a_file_imports_no_training(file: Path, tmp_path: Path) -> None:
    """xgboost would import scikit-learn where it finds one."""
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("print('sklearn was imported')\n")
    words = [
        "tune",
        "matmul",
        "--shape",
        "m=64,n=64,k=64",
        "--threads",
        "1",
        "--trials",
        "8",
        "--budget",
        "20s",
    ]
    code = (
        "import sys\n"
        "from autotune.cli import main\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code\n"
        "assert 'xgboost' in sys.modules, 'the model was used'\n"
        "print([m for m in ('cost_model.training', 'cost_model.evaluation') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--db", str(tmp_path / "t.db"), "--cost-model", str(file)],
        capture_output=True, text=True, timeout=120,
        env=os.environ | {
            "AUTOTUNE_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]" and "sklearn was imported" not in done.stdout
    with Log(tmp_path / "t.db") as log:
        predicted = [r.environment.get("predicted", {}) for r in log.records(kind="trial")]
        assert any("prior" in p for p in predicted) and log.runs()[0].options["model"] == "trained"
