"""What a run keeps for reports: the machine's limit once it was measured, and the bytes that candidates
move."""

import numpy as np
import pytest
from made_up import tune

from autotune import backends
from autotune.backends.peaks.roofline import Roofline
from autotune.tuning.known_limits import LIMIT, MEMORY_BYTES, moved
from autotune.tuning.options import TuneOptions
from kernels_db import Log
from schedules import ops
from schedules.model import Target
from schedules.ops import compulsory_bytes
from schedules.space import derive
from schedules.space.base import Candidate

HOST = Target("cpu", "x86-64-v3", threads=1, triple="x86_64-unknown-linux-gnu")


def test_the_estimate_of_a_candidate_is_that_of_the_space():
    workload = ops.workload("matmul", {"m": 512, "n": 512, "k": 512})
    space = derive(workload.canonical, HOST)
    rows = space.sample(0, 20, np.random.default_rng(0))
    expected = space.features(0, rows)[:, space.feature_names.index("total.memory_bytes")]
    told = [moved(space, Candidate(0, tuple(map(int, row))))[MEMORY_BYTES] for row in rows]
    assert told == [int(v) for v in expected] and min(told) > 0


def test_a_space_without_the_estimate_says_nothing():
    from search_table import FormulaSpace

    assert moved(FormulaSpace(), Candidate(0, (1, 1, 1, 1, 1))) == {}


def test_a_roofline_tells_its_rates():
    def seconds(rates):
        rates["flops_a_second"] = 2e9
        return 0.5

    limit = Roofline(seconds)
    assert limit.rates == {} and limit() == 0.5 and limit.rates == {"flops_a_second": 2e9}


@pytest.mark.parametrize("rates", [{"flops_a_second": 1e11, "bytes_a_second": 1e10}, {}])
def test_the_limit_is_logged_when_it_falls(tmp_path, rates):
    """Of a sequence of samples, each that is the least so far, with its rates, with the trial or final after
    it."""
    from log_cases import TARGETS, copy_of
    from search_table import FormulaSpace
    from test_tuner import FakeMeasurer

    # at the beginning, and before the finalists
    samples = iter([3e-4, 2e-4, 4e-4, 4e-4, 4e-4] + [1e-4] * 5)

    def seconds(found):
        found.update(rates)
        return next(samples)

    space = FormulaSpace()
    with Log(tmp_path / "t.db") as log:
        tune(
            *(copy_of(64), TARGETS[0], log, TuneOptions(trials=12, model="analytic", budget_s=60.0), None),
            space=space,
            measurer=FakeMeasurer(space),
            peak=Roofline(seconds),
        )
        records = list(log.records())
    told = [(r.kind, r.environment[LIMIT]) for r in records if LIMIT in r.environment]
    assert told == [("trial", {"seconds": 2e-4, **rates}), ("final", {"seconds": 1e-4, **rates})]


@pytest.mark.parametrize(("op", "params"), [("matmul", {"m": 64, "n": 64, "k": 64}), ("add", {"n": 4096})])
def test_the_cpu_measures_both_rates(op, params):
    """Of what arithmetic bounds, and of what memory does."""
    workload = ops.workload(op, params)
    from autotune import targets

    host = targets.detect(1)
    limit = backends.of(host).roofline(workload, host)
    seconds = limit()
    assert set(limit.rates) == {"flops_a_second", "bytes_a_second"}
    by_flops = workload.flops / limit.rates["flops_a_second"]
    by_bytes = compulsory_bytes(workload.dag) / limit.rates["bytes_a_second"]
    assert seconds == pytest.approx(max(by_flops, by_bytes))
