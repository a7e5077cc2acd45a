"""Traces under other names: a trace of one form of an expression is, renamed, that of the other form."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import random_schedule
from small_shapes import SMALL
from te.test_canonical_names import DAGS, renamings

from autotune.targets import from_name
from schedules import ops, te
from schedules.ir import Loop, walk
from schedules.model import Step, Target, Trace, Workload
from schedules.primitives import PRIMITIVES
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.names import rename
from schedules.trace_names import EITHER, LOOPS, THINGS, to_canonical, to_named

LIMITS = (("cores", 10), ("shared_bytes", 49152), ("threads_per_block", 1024), ("warp", 32))
GPU = Target("cuda", "sm_80", limits=LIMITS)
# arguments that are texts, and no names of an expression
NO_NAMES = {"axis", "scope", "key", "tail", "instruction", "dtype"}


def test_every_argument_that_is_a_text_is_known() -> None:
    known = LOOPS | THINGS | EITHER
    for p in PRIMITIVES.values():
        for f in fields(p):
            if "str" in str(f.type):
                assert (f.name in known) != (f.name in NO_NAMES), f"{p.name}.{f.name}"


@pytest.mark.fast("cpu-*", "cuda-matmul", "cuda-softmax")
@pytest.mark.parametrize("op", SMALL)
@pytest.mark.parametrize("target", [from_name("x86-64-v3"), GPU], ids=lambda t: t.kind)
def test_sketches_and_their_traces_are_those_of_the_canonical_form(op: str, target: Target) -> None:
    w = ops.workload(op, SMALL[op])
    a, b = derive(w.dag, target), derive(w.canonical, target)
    assert len(a.sketches) == len(b.sketches)
    for s, name in enumerate(a.sketches):
        for row in a.sample(s, 2, np.random.default_rng(s)):
            trace = a.trace(s, row)
            renamed, sketch = to_canonical(w, trace, name)
            assert sketch == b.sketches[s]
            Schedule.replay(w.canonical, renamed, target)
            assert to_named(w, renamed) == trace
            if target.kind == "cpu":  # rules for GPUs order operands by name
                assert renamed == b.trace(s, row)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_random_schedule_under_random_names(data: st.DataObject) -> None:
    dag = data.draw(st.sampled_from(DAGS))
    w = Workload(ComputeDAG.from_json(rename(dag.to_json(), data.draw(renamings(dag)))))
    s = random_schedule(w.dag, Random(data.draw(st.integers(0, 10**6))), 6)
    trace, _ = to_canonical(w, s.trace)
    assert shape(Schedule.replay(w.canonical, trace)) == shape(s)
    assert shape(Schedule.replay(w.dag, to_named(w, trace))) == shape(s)


def shape(s: Schedule) -> list[Any]:
    """A nest without names."""
    return [
        (type(x).__name__, str(x.extent) if "_" not in str(x.extent) else "", x.kind)
        if isinstance(x, Loop)
        else type(x).__name__
        for x in walk(s.nest.body)
    ]


def test_loops_of_a_factor_are_called_after_axes() -> None:
    """The block of a factor has the axes of the stage, by their names."""
    x, w = te.placeholder((9,), name="x"), te.placeholder((5, 9), name="w")
    k = te.reduce_axis(9, "depth")
    y = te.compute((5,), lambda row: te.sum(x[k] * (w[row, k] + 1.0), axis=k), "y")
    work = Workload(te.dag([x, w, y]))
    s = Schedule(work.dag)
    factor = s.stage_factor("y", 1, "float32")
    inner, outer = s.loops(factor)[1], s.loops(factor)[0]
    s.split(inner, (None, 3))
    s.reorder(inner + "_0", outer, inner + "_1")
    trace, _ = to_canonical(work, s.trace)
    assert not any("depth" in str(step) or "row" in str(step) for step in trace.steps)
    assert shape(Schedule.replay(work.canonical, trace)) == shape(s)
    assert to_named(work, trace) == s.trace


def test_a_name_that_looks_like_one_of_a_primitive() -> None:
    """The loop of a block that is moved is ``C_ax0``, numbered where the user calls a tensor so."""
    a = te.placeholder((4, 6), name="A")
    c = te.compute((4, 6), lambda i, j: a[i, j] + 1.0, "C")
    w = Workload(te.dag([a, te.compute((4, 6), lambda i, j: c[i, j] * 2.0, "C_ax0")]))
    s = Schedule(w.dag)
    s.compute_at("C", "C_ax0_i")
    moved = s.loops("C")[1]
    assert moved == "C_ax01"
    s.unroll(moved)
    trace, _ = to_canonical(w, s.trace)
    assert trace.steps[1].args == (("loop", "T1_ax0"),)
    Schedule.replay(w.canonical, trace)
    assert to_named(w, trace) == s.trace


def test_what_is_of_no_loop_of_the_expression_stays() -> None:
    w = ops.workload("matmul", SMALL["matmul"])
    trace = Trace((Step("split", (("factors", (None, 2)), ("loop", "zz"), ("tail", "guard"))),
                   Step("of a later version", (("loop", "c_i_0"), ("more", ("c", 1)))),
                   Step("vectorize", (("loop", 5),))))  # fmt: skip
    renamed, sketch = to_canonical(w, trace, "by hand c")
    assert renamed.steps[0] == trace.steps[0] and renamed.steps[2] == trace.steps[2]
    assert dict(renamed.steps[1].args) == {"loop": "T2_i0_0", "more": ("c", 1)} and sketch == "by hand c"
