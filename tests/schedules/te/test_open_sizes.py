"""DAGs with sizes that a call tells: `schedules.te.open_sizes`."""

import json

import numpy as np
import pytest

from schedules import te
from schedules.errors import WorkloadError
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import dim
from schedules.te.open_sizes import at, sizes_of


def rows(m, name="x"):
    x = te.placeholder((m, 4), name=name)
    return [x, te.compute((m, 4), lambda i, j: x[i, j] + 1.0, "y")]


def test_a_dag_keeps_an_open_size_and_has_the_numbers_of_the_largest() -> None:
    dag = te.dag(rows(dim(2, 9, "m", open=True)))
    assert [t.shape for t in dag.params] == [(9, 4), (9, 4)]
    assert dag.open is not None and dag.open.ranges == {"m": (2, 9)}
    assert dag.largest == te.dag(rows(9)) and dag.largest.open is None
    assert at(dag, {"m": 5}) == te.dag(rows(5))
    assert at(te.dag(rows(5)), {}) == te.dag(rows(5))


def test_json_reads_back_and_other_dags_have_no_field() -> None:
    dag = te.dag(rows(dim(2, 9, open=True)))
    assert ComputeDAG.from_json(json.loads(json.dumps(dag.to_json()))) == dag
    assert "open" not in te.dag(rows(9)).to_json()


def test_a_workload_is_known_by_its_range_and_not_by_names() -> None:
    def digest(m, name="x"):
        return Workload(te.dag(rows(m, name))).digest

    own = digest(dim(2, 9, open=True))
    assert own == digest(dim(2, 9, "m", open=True)) == digest(dim(2, 9, "rows", open=True), "A")
    assert len({own, digest(dim(1, 9, open=True)), digest(dim(2, 8, open=True)), digest(9)}) == 4
    w = Workload(te.dag(rows(dim(2, 9, "rows", open=True))))
    assert w.canonical.open is not None and list(w.canonical.open.ranges) == ["n0"]
    back = Workload.from_json(w.json, names=w.names)
    assert back.dag == w.dag


def test_dimensions_that_are_not_open_are_given_numbers_beside_one_that_is() -> None:
    m, k = dim(2, 9, "m", open=True), dim(1, 8, open=False)
    x = te.placeholder((m, k), name="x")
    tensors = [x, te.compute((m, k), lambda i, j: x[i, j] * 2.0, "y")]
    assert te.dag(tensors, {k: 4}).open is not None
    assert te.dag(tensors, {k: 4, m: 3}) == at(te.dag(tensors, {k: 4}), {"m": 3})
    with pytest.raises(WorkloadError, match=r"sizes that vary \(1\.\.8\)"):
        te.dag(tensors)


def test_extents_are_arithmetic_of_a_size() -> None:
    m = dim(2, 9, "m", open=True)
    x = te.placeholder((2 * m + 1,), name="x")
    dag = te.dag([x, te.compute((m,), lambda i: x[2 * i] + x[2 * i + 1], "y")])
    a = np.arange(11, dtype="float32")
    assert np.array_equal(te.evaluate(dag, [a])[0], a[0:10:2] + a[1:11:2])
    assert sizes_of(dag, [(11,)]) == {"m": 5}
    for extent in (10, 3, 21):
        with pytest.raises(
            WorkloadError, match=f"has extent {extent} in dimension 0; the size m may be 2 to 9"
        ):
            sizes_of(dag, [(extent,)])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda m, x: te.compute((9, 4), lambda i, j: x[i, j]), r"x\[i, j\] cannot be proved below"),
        (lambda m, x: te.compute((m, 4), lambda i, j: x[i + 1, j]), "is 9 at i=8, outside"),
        (lambda m, x: te.compute((m - 2, 4), lambda i, j: x[i, j]), "is below 1 or shrinks"),
    ],
)
def test_what_cannot_be_open_is_refused(make, said: str) -> None:
    m = dim(2, 9, "m", open=True)
    x = te.placeholder((m, 4), name="x")
    with pytest.raises(WorkloadError, match=said):
        te.dag([x, make(m, x)])


def test_a_size_of_one_value_is_a_number() -> None:
    assert te.dag(rows(dim(5, 5, open=True))) == te.dag(rows(5))


def test_an_extent_that_is_not_linear_is_looked_at_for_each_size() -> None:
    def strided(most):
        m = dim(3, most, "m", open=True)
        x = te.placeholder((m,), name="x")
        return te.dag([x, te.compute(((m - 3) // 2 + 1,), lambda i: x[2 * i] + x[2 * i + 2], "y")])

    dag = strided(20)
    a = np.arange(8, dtype="float32")
    assert np.array_equal(te.evaluate(dag, [a])[0], a[:-2:2] + a[2::2])
    with pytest.raises(WorkloadError, match="is not linear, of more than 1024 sizes"):
        strided(2000)


def test_a_load_is_proved_inside_at_every_size() -> None:
    m = dim(3, 9, "m", open=True)
    x = te.placeholder((m,), name="x")
    window = te.compute((m - 2,), lambda i: x[i] + x[i + 1] + x[i + 2], "y")
    assert te.dag([x, window]).open is not None
    guarded = te.compute((12,), lambda i: te.select(i < 3, x[te.minimum(i, 2)], 0.0), "y")
    assert te.dag([x, guarded]).open is not None
    halves = te.compute((m,), lambda i: x[i // 2 + i % 2], "y")
    assert te.dag([x, halves]).open is not None


def test_no_input_tells_a_size_that_stands_in_outputs_alone() -> None:
    x = te.placeholder((4,), name="x")
    m = dim(2, 9, "m", open=True)
    with pytest.raises(WorkloadError, match="no extent of an input tells the size m"):
        te.dag([x, te.compute((m, 4), lambda i, j: x[j], "y")])


def mutants(v):
    """Open parts that no DAG has, from one that is right."""
    for of in ("inputs", "axes"):
        for place in ([5, 0], [0, 9], [-1, 0]):
            yield {**v, of: [[*place, ["var", "m"]]]}
        yield {**v, of: [*v[of], *v[of]]}
        for extent in (
            ["var", "k"],
            7,
            ["*", ["var", "m"], 2],
            ["hole", "m"],
            ["%", ["var", "m"], 4],
            ["//", ["var", "m"], 0],
        ):
            yield {**v, of: [[0, 0, extent]]}
    yield {**v, "sizes": [["m", 0, 9]]}
    yield {**v, "sizes": [["m", 9, 2]]}
    yield {**v, "sizes": [["m", 9, 9]]}
    deep = ["var", "m"]
    for _ in range(40):
        deep = ["+", deep, 0]
    yield {**v, "axes": [[0, 0, deep]]}
    yield {**v, "sizes": [["m", 2, 1 << 50]]}
    yield {**v, "sizes": [["m", 2, 9], ["m", 2, 9]]}
    yield {**v, "sizes": [["m m", 2, 9]]}
    yield {**v, "sizes": "m"}
    yield {**v, "more": 1}
    yield {k: x for k, x in v.items() if k != "axes"}
    yield {**v, "axes": []}


def test_malformed_open_parts_are_refused_at_the_door() -> None:
    dag = te.dag(rows(dim(2, 9, "m", open=True)))
    whole = dag.to_json()
    every = list(mutants(whole["open"]))
    assert len(every) > 20
    for wrong in every:
        with pytest.raises(ValueError):
            ComputeDAG.from_json({**whole, "open": wrong})


def test_a_stage_with_an_open_input_and_a_closed_output_is_caught() -> None:
    """The output has as many rows as the largest size, and the call's input has not."""
    dag = te.dag(rows(dim(2, 9, "m", open=True)))
    v = dag.to_json()
    v["open"]["axes"] = []
    with pytest.raises(ValueError, match="cannot be proved below"):
        ComputeDAG.from_json(v)
