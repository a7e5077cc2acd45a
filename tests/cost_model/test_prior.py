"""The shipped model and what other tasks teach: found by name, a beginning, outvoted by own trials."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from space_cases import target

from autotune.search.decisions import DECISIONS
from autotune.search.evolutionary import model_features
from autotune.search.policies import create
from autotune.tuning import neighbours
from autotune.tuning.options import TuneOptions
from cost_model import features as F
from cost_model import pretrained
from cost_model.analytic import AnalyticModel
from cost_model.base import CostModelError
from cost_model.blend import BlendModel
from cost_model.metrics import pairwise_accuracy
from cost_model.xgb import XGBModel
from kernels_db import Log, NewRecord
from schedules import ops, te
from schedules.model import Target, Workload
from schedules.space import DerivedSpace, derive
from schedules.space.estimate.cpu.features import FEATURE_NAMES
from schedules.te.flops import count_flops

NAMES = ("est_time_s", "a", "b", "c")


def made_up(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.random((n, 4)).astype(np.float32)
    y = np.exp(-2 * np.abs(x[:, 1] - 0.4) - x[:, 2] * x[:, 3])
    x[:, 0] = 1 / y
    return x, y.astype(np.float64)


def cpu(vector_bytes: int, arch: str = "any", features: tuple[str, ...] = ()) -> Target:
    return Target("cpu", arch, "", features, limits=(("vector_bytes", vector_bytes),))


# -- the file ------------------------------------------------------------------------------------


SHIPPED = {
    "cpu-vector32.json": cpu(32),
    "cpu-vector64.json": cpu(64),
    "cpu-intel-server.json": cpu(64, "emeraldrapids", ("amx-tile", "avx512f")),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_files_are_small_know_these_features_and_say_where_they_come_from(name: str) -> None:
    path = files("cost_model") / "data" / name
    assert 0 < len(path.read_bytes()) < 2_000_000
    document = json.loads(path.read_text(encoding="utf-8"))
    assert len(document["provenance"]["tasks"]) >= 20 and document["provenance"]["candidates"] > 10_000
    known = [n for n in document["feature_names"] if n in FEATURE_NAMES]
    assert len(known) > 0.8 * len(FEATURE_NAMES)
    assert pretrained.shipped(SHIPPED[name]) == document
    assert pretrained.knows(FEATURE_NAMES, document) and not pretrained.knows(NAMES, document)


def test_a_cpu_has_the_model_of_the_nearest_width() -> None:
    narrow, wide = (pretrained.shipped(cpu(width)) for width in (32, 64))
    assert narrow != wide
    assert pretrained.shipped(cpu(16)) is narrow and pretrained.shipped(cpu(128)) is wide
    assert pretrained.shipped() is narrow


def test_servers_of_intel_have_a_model_of_their_own_for_wide_vectors() -> None:
    narrow, wide = (pretrained.shipped(cpu(width)) for width in (32, 64))
    server = pretrained.shipped(cpu(64, "icelake-server"))
    assert server not in (narrow, wide)
    # a virtual machine may say that it is another CPU, but not hide AMX
    assert pretrained.shipped(cpu(64, "rocketlake", ("amx-tile",))) is server
    assert pretrained.shipped(cpu(64, "rocketlake")) is wide
    assert pretrained.shipped(cpu(32, "icelake-server")) is narrow


def test_columns_are_found_by_name() -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=(50, len(FEATURE_NAMES)))).astype(np.float32)
    shipped = pretrained.shipped()
    scores = pretrained.Prior(FEATURE_NAMES, x, shipped).predict(x)
    order = rng.permutation(len(FEATURE_NAMES))
    moved = tuple(FEATURE_NAMES[i] for i in order)
    assert np.array_equal(pretrained.Prior(moved, x[:, order], shipped).predict(x[:, order]), scores)
    more = (*FEATURE_NAMES, "new to it")
    wider = np.column_stack([x, x[:, 0]])
    assert np.array_equal(pretrained.Prior(more, wider, shipped).predict(wider), scores)
    fewer = FEATURE_NAMES[:-40]
    assert np.isfinite(pretrained.Prior(fewer, x[:, :-40], shipped).predict(x[:, :-40])).all()
    with pytest.raises(CostModelError, match="columns"):
        pretrained.Prior(FEATURE_NAMES, x, shipped).predict(x[:, 1:])
    assert len(pretrained.Prior(FEATURE_NAMES, x, shipped).predict(x[:0])) == 0


def test_proportions_are_what_their_names_say() -> None:
    x = np.arange(1, 5, dtype=np.float32)[None]
    names = ("block0.cycles", "total.cycles", "block0.instances", "est_time_s")
    nothing = np.full(len(F.COMPARED), np.nan, dtype=np.float32)
    found = F.inputs(x, names, names, F.Usual(2.0, nothing))[0].tolist()
    got = dict(zip((*names, *F.DERIVED), found, strict=True))
    assert got["block0.cycles"] == 1 and got["block0.share"] == 0.5
    assert got["block0.cycles_per_instance"] == pytest.approx(1 / 3)
    assert got["estimate_over_usual"] == 1.0  # doublings: 4 s over 2 s
    assert np.isnan(got["block1.share"]) and np.isnan(got["block0.spilled"])
    assert np.isnan(got["block0.cycles_over_usual"]), "nothing is known to be usual"


def test_amounts_are_compared_with_those_of_good_candidates() -> None:
    names = ("est_time_s", "block0.outer", "block1.spills")
    good = [(1.0 + k / 100, 64.0, 0.0) for k in range(F.FEWEST)]
    bad = [(50.0, 9999.0, 5.0)] * 30
    usual = F.usual(np.array(bad + good, dtype=np.float32), names)
    assert usual.estimate_s == pytest.approx(1.035)
    x = np.array([[1.035, 256.0, 0.0], [2.07, 16.0, 3.0]], dtype=np.float32)
    found = dict(zip((*names, *F.DERIVED), F.inputs(x, names, names, usual).T, strict=True))
    np.testing.assert_allclose(found["block0.outer_over_usual"], [2.0, -2.0], atol=0.01)  # doublings
    np.testing.assert_allclose(found["estimate_over_usual"], [0.0, 1.0], atol=0.01)
    spilled = found["block1.spills_over_usual"]
    assert spilled[0] == 0.0 and spilled[1] > 30, "any is more than none"
    assert np.isnan(found["block0.cycles_over_usual"]).all()
    assert F.usual(x[:0], names).estimate_s == 1.0


def test_a_pick_is_what_boosters_and_the_estimate_agree_on() -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=(200, len(FEATURE_NAMES)))).astype(np.float32)
    prior = pretrained.Prior(FEATURE_NAMES, x, pretrained.shipped())
    alone, both = prior.learned(x), prior.predict(x)
    slower = x.copy()
    slower[:, FEATURE_NAMES.index("est_time_s")] *= 4
    share = (np.maximum(prior.learned(slower), 0.01) / np.maximum(alone, 0.01)) ** (1 / 3)
    np.testing.assert_allclose(prior.predict(slower) / both, share * 4 ** (-2 / 3), rtol=1e-4)
    assert len(prior.learned(x[:0])) == 0


def test_a_draft_asks_a_booster_about_what_the_estimate_puts_first() -> None:
    class Half:
        asked = 0

        def num_boosted_rounds(self) -> int:
            return 300

        def inplace_predict(self, seen: np.ndarray, iteration_range: tuple[int, int]) -> np.ndarray:
            self.asked += len(seen)
            return np.full(len(seen), 0.5)

    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=(200, len(FEATURE_NAMES)))).astype(np.float32)
    prior = pretrained.Prior(FEATURE_NAMES, x, pretrained.shipped())
    half = prior.__dict__["_bag"] = [Half()]
    scores, whole = prior.draft(x), prior.predict(x)
    assert half[0].asked == 100 + 200
    first = np.argsort(x[:, FEATURE_NAMES.index("est_time_s")])[:100]
    others = np.setdiff1d(np.arange(200), first)
    np.testing.assert_allclose(scores[first], whole[first])
    np.testing.assert_allclose(scores[others], whole[others] * (0.01 / 0.5) ** (1 / 3), rtol=1e-6)
    assert len(prior.draft(x[:0])) == 0
    x[::3, FEATURE_NAMES.index("est_time_s")] = np.nan
    assert (prior.draft(x)[::3] == 0).all() and np.isfinite(prior.draft(x)).all()


def test_the_prior_is_not_loaded_without_a_search() -> None:
    code = "import autotune.run.loading, sys; assert not {'xgboost', 'cost_model'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- beginning and outvoting -------------------------------------------------------------------


class Constant:
    """A prior by one column; ``sign`` -1 makes it wrong."""

    ready = True

    def __init__(self, sign: float) -> None:
        self.feature_names, self.sign = NAMES, sign

    def fit(self, *args: object) -> None: ...

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.sign / x[:, 0].astype(np.float64)


def test_a_prior_makes_a_model_ready_and_few_trials_do_not_unlearn_it() -> None:
    x, y = made_up(300, 0)
    model = XGBModel(NAMES, prior=Constant(1.0))
    assert model.ready and np.array_equal(model.predict(x), Constant(1.0).predict(x))
    model.fit(x[:10], y[:10])
    alone = XGBModel(NAMES)
    alone.fit(x[:10], y[:10])
    assert pairwise_accuracy(model.predict(x[10:]), y[10:]) > 0.9
    assert pairwise_accuracy(model.predict(x[10:]), y[10:]) > pairwise_accuracy(alone.predict(x[10:]), y[10:])


def test_a_wrong_prior_is_outvoted() -> None:
    x, y = made_up(400, 0)
    model = XGBModel(NAMES, prior=Constant(-1.0))
    assert pairwise_accuracy(model.predict(x), y) < 0.1
    model.fit(x[:200], y[:200])
    assert pairwise_accuracy(model.predict(x[200:]), y[200:]) > 0.85


def test_other_tasks_count_less_the_more_own_trials_there_are() -> None:
    x, y = made_up(400, 0)
    groups = np.r_[np.zeros(200, int), np.ones(200, int)]
    against = np.r_[y[:200], 1 / y[200:]]  # the other task says the contrary
    model = XGBModel(NAMES)
    model.fit(x, against, groups)
    fresh, truth = made_up(300, 1)
    assert pairwise_accuracy(model.predict(fresh), truth) > 0.6  # 0.5 if they counted alike


def test_a_blend_orders_what_the_estimate_drafts_and_puts_the_rest_below() -> None:
    x, y = made_up(400, 0)
    rng = np.random.default_rng(1)
    x[:, 0] *= np.exp(0.5 * rng.standard_normal(400))  # a rough estimate
    model = BlendModel(AnalyticModel(NAMES), XGBModel(NAMES))
    assert model.ready and np.array_equal(model.predict(x), AnalyticModel(NAMES).predict(x))
    model.fit(x[:200], y[:200])
    scores, draft = model.predict(x[200:]), AnalyticModel(NAMES).predict(x[200:])
    kept = np.argsort(-draft)[:100]
    assert set(np.argsort(-scores)[:100]) == set(kept)
    assert pairwise_accuracy(scores[kept], y[200:][kept]) > pairwise_accuracy(draft[kept], y[200:][kept])


# -- neighbours ---------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "t.db") as opened:
        yield opened


def fill(log: Log, workload: Workload, goal: Target, n: int = 30) -> DerivedSpace:
    """Random candidates that run as the estimate says."""
    space = derive(workload.canonical, goal)
    run = log.start_run(workload, goal, {}, seed=0)
    estimate = FEATURE_NAMES.index("est_time_s")
    for i, c in enumerate(create("random", space, seed=1).ask(n)):
        row = np.array(c.row, dtype=np.int64)
        t = float(space.features(c.sketch, row[None])[0, estimate])
        facts = {DECISIONS: list(c.row)}
        trace = space.trace(c.sketch, row)
        log.add(NewRecord(run.uid, i, space.sketches[c.sketch], trace, "ok", times_s=(t,), environment=facts))
    return space


def matmul(m: int) -> Workload:
    return ops.workload("matmul", {"m": m, "n": 64, "k": 64})


@pytest.mark.slow
def test_neighbours_are_the_nearest_tasks_of_the_operator(log: Log) -> None:
    goal = target()
    for m in (64, 128, 96, 1 << 14):
        fill(log, matmul(m), goal)
    fill(log, ops.workload("softmax", {"m": 64, "n": 64}), goal)
    space = derive(matmul(80).canonical, goal)
    found = neighbours.neighbours(log, matmul(80), goal, space, TuneOptions())
    assert found is not None and found.feature_names == model_features(space)
    assert set(found.groups) == {0, 1, 2} and len(found) == 90  # not the farthest, nor another operator
    nearest = neighbours.neighbours(log, matmul(1 << 13), goal, space, TuneOptions())
    assert nearest is not None
    for options in (TuneOptions(model="scratch"), TuneOptions(search="random")):
        assert neighbours.neighbours(log, matmul(80), goal, space, options) is None


def test_a_task_does_not_neighbour_itself_and_no_log_teaches_nothing(log: Log) -> None:
    goal = target()
    space = fill(log, matmul(64), goal)
    assert neighbours.neighbours(log, matmul(64), goal, space, TuneOptions()) is None


@pytest.mark.slow
def test_what_cannot_be_read_of_other_tasks_teaches_nothing(log: Log) -> None:
    goal, newer = target(), Target("cpu", "of a newer version")
    space = fill(log, matmul(64), goal)
    for workload, there in ((matmul(96), goal), (matmul(128), goal), (matmul(64), newer)):
        fill(log, workload, there)
    softmax = ops.workload("softmax", {"m": 64, "n": 64})
    fill(log, softmax, goal)
    with closing(sqlite3.connect(log.path)) as con, con:
        digests = (matmul(96).digest, softmax.digest)
        con.execute("UPDATE workload SET json = '{\"version\":99}' WHERE digest IN (?, ?)", digests)
        con.execute("UPDATE target SET json = '{}' WHERE digest = ?", (newer.digest,))
        con.execute("UPDATE record SET environment = '[' WHERE workload = ?", (matmul(128).digest,))
    found = neighbours.neighbours(log, matmul(80), goal, space, TuneOptions())
    assert found is not None and len(found) == 30  # of 64 x 64 x 64


def own_matmul(m: int) -> Workload:
    """That of `matmul` as a user states it."""
    a, b = te.placeholder((m, 64), name="left"), te.placeholder((64, 64), name="right")
    r = te.reduce_axis(64, "r")
    dag = te.dag([a, b, te.compute((m, 64), lambda y, x: te.sum(a[y, r] * b[r, x], axis=r), "product")])
    return Workload(dag, flops=count_flops(dag))


@pytest.mark.slow
def test_an_expression_of_ones_own_neighbours_the_operator(log: Log) -> None:
    goal = target()
    fill(log, matmul(64), goal)
    own = own_matmul(80)
    found = neighbours.neighbours(log, own, goal, derive(own.canonical, goal), TuneOptions())
    assert found is not None and len(found) == 30


@pytest.mark.slow
def test_an_operator_neighbours_the_expression(log: Log) -> None:
    goal = target()
    fill(log, own_matmul(80), goal)
    fill(log, own_matmul(1 << 15), goal)
    space = derive(matmul(64).canonical, goal)
    found = neighbours.neighbours(log, matmul(64), goal, space, TuneOptions())
    assert found is not None and len(found) == 30
