"""Attention of few rows over a state reads keys and values once, where they lie, right at each size."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from helpers import host, inputs
from open_cases import OpenCode, close, interpreted, sampled
from state_cases import PARTS, StateCase

from autotune.backends.building.from_trace import programs
from cost_model.analytic import ESTIMATE
from schedules import te
from schedules.model import Trace
from schedules.open_program import lower_parts, parts_of
from schedules.space.derive import derive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.open_sizes import at

# Those of a model at which the estimate ranks.
WHOLE = {"heads": 4, "group": 4, "depth": 64, "most": 512}
FORMS = [StateCase("scores", outer) for outer in (True, False)] + [
    StateCase(part, outer, divided=divided)
    for part, outer, divided in product(PARTS[1:], (True, False), (True, False))
]
STORED = [StateCase(part, dtype=dtype) for part in PARTS for dtype in ("float16", "bfloat16")]
SEVERAL = [StateCase(part, queries=5, most=19) for part in PARTS]


def traces_of(dag: ComputeDAG) -> list[Trace]:
    found = list(sampled(dag, 1))
    assert found
    return found


def data_of(dag: ComputeDAG, sizes: dict[str, int]) -> list[np.ndarray]:
    """Inputs of a call in which a mask hides some rows, and never the first."""
    made = inputs(at(dag, sizes), sizes["n"])
    return [np.array(sizes["n"] // 2) if x.dtype == np.int64 else x for x in made]


def right_at(dag: ComputeDAG, trace: Trace, sizes: dict[str, int]) -> bool:
    func = lower_parts(parts_of(dag, trace), dag.open.sizes)
    got, want = interpreted(func, dag, sizes, data=data_of(dag, sizes))
    return close(got, want, exact=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*FORMS, *STORED], ids=str)
def test_every_sketch_is_right_at_every_number_of_rows(case: StateCase) -> None:
    dag = case.dag()
    for trace in traces_of(dag):
        assert [n for n in (1, 2, 13, case.most) if not right_at(dag, trace, {"n": n})] == [], trace


@pytest.mark.slow
@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_every_sketch_is_right_at_every_number_of_rows_of_both(case: StateCase) -> None:
    dag = case.dag()
    sizes = [{"rows": r, "n": n} for r, n in ((1, 1), (2, 7), (5, 17), (5, 19))]
    for trace in traces_of(dag):
        for told in sizes:
            ordered = {s.name: told[s.name] for s in dag.open.sizes}
            assert right_at(dag, trace, ordered), (told, trace)


@pytest.mark.slow
@pytest.mark.parametrize("case", [FORMS[1], FORMS[3], *STORED, *SEVERAL], ids=str)
def test_compiled_nothing_behind_the_last_row_is_touched(case: StateCase) -> None:
    """Arrays end at inaccessible pages."""
    dag, target = case.dag(), host()
    for trace in traces_of(dag):
        code = OpenCode(programs(dag, trace, target)[0], target)
        for n in (1, 2, 13, 17, case.most):
            n = min(n, case.most)
            sizes = {s.name: n if s.name == "n" else min(n, case.queries) for s in dag.open.sizes}
            data = data_of(dag, sizes)
            want = te.evaluate(at(dag, sizes), data)
            for place, got in code.outputs(dag, sizes, data).items():
                assert close(got, want, exact=False), (place, sizes, trace)


def copied(trace: Trace) -> set[str]:
    return {str(dict(s.args)["buffer"]) for s in trace.steps if s.primitive == "cache_read"}


def apart(dag: ComputeDAG) -> list[Trace]:
    """Schedules of the sketches that offer products apart from rows."""
    space = derive(dag, host())
    names = [k for k, name in enumerate(space.sketches) if "by=apart" in name or "by=dots" in name]
    rng = np.random.default_rng(0)
    return [space.trace(k, space.sample(k, 1, rng)[0]) for k in names]


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("part", PARTS)
def test_keys_and_values_are_read_where_they_lie_and_asked_for_ahead(part: str, outer: bool) -> None:
    (trace,) = apart(StateCase(part, outer, divided=part == "attended", most=70).dag())
    assert not copied(trace)
    ahead = [s for s in trace.steps if ("key", "prefetch") in s.args]
    assert len(ahead) == (2 if part == "attention" else 1)


def test_of_fixed_sizes_they_are_offered_too() -> None:
    dag = StateCase().dag()
    found = apart(dag.largest)
    assert found and any(not copied(trace) for trace in found)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("part", PARTS)
def test_the_estimate_has_them_first(part: str, dtype: str) -> None:
    space = derive(StateCase(part, dtype=dtype, divided=True, **WHOLE).dag(), host())
    column, rng, least = space.feature_names.index(ESTIMATE), np.random.default_rng(0), {}
    for k, name in enumerate(space.sketches):
        rows = space.sample(k, 256, rng)
        least[name] = space.features(k, rows[space.valid(k, rows)])[:, column].min()
    best = min(least, key=lambda name: least[name])
    near = [name for name in least if least[name] < 1.1 * least[best]]
    assert any("by=apart" in name or "by=dots" in name for name in near), least
