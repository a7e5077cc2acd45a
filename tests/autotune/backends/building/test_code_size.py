"""What the limits of a space let through is not refused for its length when it is lowered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import host

from autotune.backends.building.from_trace import programs
from schedules import ops
from schedules.model import Workload
from schedules.space import derive
from schedules.space.base import Candidate, trace_of
from schedules.space.estimate.cpu.limits import Limits


@pytest.mark.slow
def test_the_first_picks_of_a_first_layer_are_short_enough() -> None:
    """A 3x3 convolution of images with three channels: its taps are all unrolled, and its borders peeled, so
    that indices and guards are most of the code. Every fifth of the best by the estimate was refused."""
    shape = {"b": 4, "h": 32, "w": 32, "ci": 3, "co": 32, "k": 3, "padding": 1}
    named = ops.workload("conv2d", shape, layout="NCHW").dag
    dag = Workload(replace(named, constants=("w",))).canonical
    target = host()
    space = derive(dag, target)
    rng = np.random.default_rng(0)
    tried = 0
    for k in range(len(space.sketches)):
        rows = space.sample(k, 1500, rng)
        rows = rows[space.valid(k, rows)]
        time = space.features(k, rows)[:, space.feature_names.index("est_time_s")]
        for row in rows[np.argsort(time)[:3]]:
            programs(dag, trace_of(space, Candidate(k, tuple(map(int, row)))), target)
            tried += 1
    assert tried > 12 and Limits().code > 1 << 18
