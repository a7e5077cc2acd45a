"""The part of a DAG has what the whole DAG has there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_shapes import SMALL

from autotune.measure.inputs import random_inputs
from schedules import ops, te
from schedules.te.evaluator import evaluate
from schedules.te.flops import count_flops
from schedules.te.part import Box, part


@pytest.mark.parametrize("name", list(SMALL))
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_a_part_has_what_the_whole_has(name: str, data: st.DataObject) -> None:
    dag = ops.workload(name, dict(SMALL[name])).dag

    def box(shape: tuple[int, ...]) -> Box:
        lows = [data.draw(st.integers(0, n - 1)) for n in shape]
        return tuple((lo, data.draw(st.integers(lo + 1, n))) for lo, n in zip(lows, shape, strict=True))

    inputs = [np.asarray(x * 2, x.dtype) for x in random_inputs(dag, 3)]
    asked = [box(dag.tensors[n].shape) for n in dag.outputs]
    found = part(dag, asked)
    cut = [x[tuple(slice(*d) for d in b)] for x, b in zip(inputs, found.inputs, strict=True)]
    whole, of_part = evaluate(dag, inputs), evaluate(found.dag, cut)
    for w, p, b, a in zip(whole, of_part, found.outputs, asked, strict=True):
        assert all(lo <= x and y <= hi for (lo, hi), (x, y) in zip(b, a, strict=True))
        np.testing.assert_allclose(p, w[tuple(slice(*d) for d in b)], rtol=1e-5, atol=1e-6)


def test_a_part_reads_and_does_no_more_than_it_needs() -> None:
    dag = ops.workload("conv2d_bias_relu", {"h": 40, "w": 40, "ci": 8, "co": 16, "k": 3, "padding": 1}).dag
    found = part(dag, [((0, 1), (10, 12), (38, 40), (4, 8))])
    assert [t.shape for t in found.dag.inputs] == [(1, 4, 3, 8), (3, 3, 8, 4), (4,)]
    assert count_flops(found.dag) * 1600 * 16 == count_flops(dag) * 16


def test_an_output_that_another_reads_gets_a_box_for_both() -> None:
    x = te.placeholder((9,), "float32", "x")
    y = te.compute((8,), lambda i: x[i] + x[i + 1], "y")
    z = te.compute((7,), lambda i: y[i] * y[i + 1], "z")
    dag = te.dag([x, y, z])
    assert dag.outputs == ("y", "z")
    found = part(dag, [((0, 1),), ((3, 5),)])
    assert found.outputs == (((0, 6),), ((3, 5),)) and found.inputs == (((0, 7),),)


def test_what_is_no_box_is_refused() -> None:
    dag = ops.workload("matmul", {"m": 4, "n": 5, "k": 6}).dag
    for box in (((0, 4),), ((0, 5), (0, 5)), ((2, 2), (0, 5)), ((-1, 4), (0, 5))):
        with pytest.raises(ValueError, match="is no part of"):
            part(dag, [box])
