"""Names that users give and names that are made up stay apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import check_compiled, check_interpreted, host, inputs

from schedules import te
from schedules.dag import ComputeDAG
from schedules.ir import Loop, Nest, Seq
from schedules.lower import lower
from schedules.nest import initial
from schedules.schedule import Schedule
from schedules.simt import lower_simt
from schedules.verify import VerifyError


def check(s: Schedule) -> None:
    """The nest, what it is lowered to, and the kernel compute what the expression says."""
    data = inputs(s.dag)
    want = te.evaluate(s.dag, data)
    check_interpreted(s.nest, s.dag, data, want)
    check_compiled(s.dag, s.trace, host(), data, want)


def two_loops() -> ComputeDAG:
    """Loop ``conv_out_c`` of axis ``out_c`` of one stage, and of axis ``c`` of another."""
    a = te.placeholder((30, 5), name="A")
    x = te.compute((30, 5), lambda out_c, j: a[out_c, j] + 1.0, name="conv")
    return te.dag([a, te.compute((3, 5), lambda c, c1: x[c * 9, c1] * 2.0, name="conv_out")])


def test_loops_of_two_stages_that_would_have_one_name_are_numbered() -> None:
    s = Schedule(two_loops())
    assert s.loops("conv") == ["conv_out_c", "conv_j"]
    assert s.loops("conv_out") == ["conv_out_c2", "conv_out_c1"]  # axis c1 keeps the plain name
    check(s)
    s.split("conv_out_c2", [None, 2])
    s.compute_at("conv", "conv_out_c2_0")
    check(s)


def test_a_copy_whose_loops_are_numbered_can_be_packed() -> None:
    a = te.placeholder((6, 5), name="A")
    b = te.compute((6, 5), lambda shared_x0, j: a[shared_x0, j] + 1.0, name="B")
    s = Schedule([a, te.compute((5, 6), lambda i, j: b[j, i] * 2.0, name="C")])
    copy = s.cache_read("C", "B", "shared")
    assert s.loops(copy) == ["B_shared_x01", "B_shared_x1"]
    s.pack(copy, [4, 0], [0, 1, 2])
    check(s)


def test_lowering_refuses_a_name_that_two_have() -> None:
    nest = initial(two_loops())
    assert isinstance(nest.body, Seq)
    first, second = nest.body.stmts
    assert isinstance(second, Loop)
    twice = replace(nest, body=Seq((first, replace(second, var="conv_out_c"))))
    refused(twice, "before lowering: two loops are named conv_out_c")
    refused(replace(nest, buffers=(*nest.buffers, nest.buffers[0])), "two buffers are named A")


def refused(nest: Nest, message: str) -> None:
    for f in (lower, lower_simt):
        with pytest.raises(VerifyError, match=message):
            f(nest)
