"""How the row of an operator takes its inputs and attributes: the types of its parameters say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from autotune.models.operators.base import Operand, UnsupportedForm
from autotune.models.operators.known import KnownTensor
from autotune.models.operators.node import OnnxNode, TorchNode
from autotune.models.operators.table import Axes, Axis, Floats, Ints, OperatorRow, OperatorTable, Values
from schedules import te

X = te.placeholder((2, 3, 4), "float32", "x")
ONE = te.placeholder((), "float32", "one")


def onnx_node(attributes: Mapping[str, Any]) -> OnnxNode:
    def constant(x: KnownTensor) -> te.Tensor:
        return te.placeholder(x.shape, x.dtype, "known")

    return OnnxNode("Op", frozenset({0}), constant, 1, 1, attributes=attributes)


def taken(lower: Any, *inputs: Any, attributes: Mapping[str, Any] = {}, **how: Any) -> Any:
    """What a row of a node of ONNX gives."""
    return OperatorRow(lower, **how).outputs(onnx_node(attributes), inputs, {})


@pytest.mark.parametrize("axis", range(-3, 3))
def test_axes_are_counted_from_the_front_wherever_they_come_from(axis: int) -> None:
    def given(x: te.Tensor, axis: Axis = -1) -> int:
        return axis

    assert taken(given, X, attributes={"axis": axis}) == axis % 3
    assert taken(given, X, KnownTensor(np.array([axis]))) == axis % 3
    assert taken(given, X) == 2
    with pytest.raises(ValueError, match=r"axis 3 is outside -3\.\.2"):
        taken(given, X, attributes={"axis": 3})


def test_an_attribute_of_older_versions_is_an_input_of_newer_ones() -> None:
    def given(x: te.Tensor, axes: Axes | None = None, sizes: Ints | None = None) -> Any:
        return axes, sizes

    assert taken(given, X, attributes={"axes": [0, -1], "sizes": [5]}) == ((0, 2), [5])
    assert taken(given, X, KnownTensor(np.array([0, -1])), KnownTensor(np.array([5]))) == ((0, 2), [5])
    assert taken(given, X, None, KnownTensor(np.array([5]))) == (None, [5])
    assert taken(given, X) == (None, None)
    with pytest.raises(UnsupportedForm, match="its sizes must be known at import"):
        taken(given, X, None, X)


def test_what_is_known_is_a_tensor_a_literal_or_an_array_as_the_type_says() -> None:
    def given(x: Floats, y: Operand, z: Values, flag: bool = False) -> Any:
        return x, y, z, flag

    number = KnownTensor(np.array([[2.0]], np.float32))
    x, y, z, flag = taken(given, number, number, number, attributes={"flag": 1})
    assert (x.shape, x.dtype) == ((1, 1), "float32") and flag is True
    assert y is number.value and z.tolist() == [[2.0]]
    with pytest.raises(UnsupportedForm, match="int64 is not supported by it, only floating point"):
        taken(given, KnownTensor(np.arange(3)), number, number)


def test_inputs_and_attributes_may_have_the_parameters_of_another_format() -> None:
    def given(x: te.Tensor, groups: int, scale: te.Tensor | None = None, eps: float = 1e-5) -> Any:
        return x, groups, scale, eps

    names = {"groups": "num_groups", "eps": "epsilon"}
    attributes = {"num_groups": 2, "epsilon": 0.5}
    assert taken(given, X, ONE, attributes=attributes, inputs=("x", "scale"), names=names) == (X, 2, ONE, 0.5)
    with pytest.raises(TypeError, match="groups"):
        taken(given, X, inputs=("x", "scale"), names=names)


def test_a_number_is_a_row_of_one_to_what_works_along_axes() -> None:
    def last(x: te.Tensor, dim: Axis = -1) -> te.Tensor:
        assert (x.shape, dim) == ((1,), 0)
        return x

    node = TorchNode("aten.op.default", frozenset({0}), lambda x: ONE, (), "float32", "float32")
    assert OperatorRow(last, along=True).outputs(node, [ONE], {}).shape == ()


def test_a_row_is_for_the_versions_from_its_first_on() -> None:
    table = OperatorTable()
    old, new = (lambda x: 0), (lambda x: 1)
    table("Op")(old)
    table("Op", since=13)(new)
    found = [table.row("Op", version) for version in (1, 12, 13, 18)]
    assert [row and row.lower for row in found] == [old, old, new, new]
    assert table.row("Other", 13) is None
