"""What checks found of a stage is remembered for the very same values only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedules.expr import Binary, Const, Load, Var
from schedules.te import compute_dag
from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor


def _dag(one: object, rows: int = 4, read: int = 4) -> ComputeDAG:
    x = Load("x", (Var("i"),), "int32")
    value = Binary("+", x, Const(one, "int32"))  # type: ignore[arg-type]
    stage = Stage((Tensor("y", (rows,), "int32"),), (Axis("i", rows),), (), (value,))
    return ComputeDAG((Tensor("x", (read,), "int32"),), (stage,), ("y",))


@pytest.mark.parametrize("wrong", [1.0, True])
def test_wrong_literal_is_refused_after_a_right_one_that_equals_it(wrong: object) -> None:
    right = _dag(1)
    assert Const(wrong, "int32") == Const(1, "int32")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is no value of 'int32'"):
        _dag(wrong)
    assert right.stages[0].name == "y"


def test_same_stage_is_checked_again_where_what_it_reads_is_shorter() -> None:
    right = _dag(1)
    with pytest.raises(ValueError, match="outside 0..2 of x"):
        replace(right, inputs=(Tensor("x", (3,), "int32"),))


def test_stage_is_checked_again_where_its_axis_is_longer() -> None:
    right = _dag(1)
    longer = replace(right.stages[0], outputs=(Tensor("y", (5,), "int32"),), axes=(Axis("i", 5),))
    with pytest.raises(ValueError, match="outside 0..3 of x"):
        replace(right, stages=(longer,))


def test_unchanged_stages_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    right, checked = _dag(1), []
    monkeypatch.setattr(compute_dag, "check_types", lambda s, *_: checked.append(s.name))
    other = replace(right.stages[0], outputs=(Tensor("z", (4,), "int32"),))
    replace(right, stages=(*right.stages, other))
    assert checked == ["z"]
