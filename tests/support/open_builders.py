"""Builders that make wrong code of open sizes, for tests of what checks it: (DAG, trace, target) ->
object."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from unittest.mock import patch

from autotune.backends.building import from_trace
from autotune.codegen.llvm.emit import LlvmModule
from schedules import expr as E
from schedules.expr import Const
from schedules.ir import Guard, LoweredFunc, Store, seq, size_variable
from schedules.model import Target, Trace
from schedules.passes import drop_harmless_guards
from schedules.te.compute_dag import ComputeDAG

_module_of = from_trace.module_of


def reads_rows_of_the_largest(dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
    """Guards are dropped by a proof that takes an argument to have as many rows as at the largest size."""
    with patch.object(drop_harmless_guards, "_below", lambda i, n, at: True):
        return from_trace.build_object(dag, trace, target)


def _rows_more(by: int, func: LoweredFunc, target: Target) -> LlvmModule:
    made = _module_of(func, target)
    text = re.sub(
        r"%(\S+\.size) = load (i64, ptr \S+)",
        rf"%told.\1 = load \2\n  %\1 = add i64 %told.\1, {by}",
        made.text,
    )
    assert text != made.text
    return replace(made, text=text)


def a_column_more_below(dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
    """The first row of the output gets a column behind its last, but at the largest size."""
    assert dag.open is not None
    (size,) = dag.open.sizes
    n = size_variable(size.name)

    def made(func: LoweredFunc, target: Target) -> LlvmModule:
        more = Store(func.outputs[0], (Const(0), n), Const(0.0, "float32"))
        less = Guard(E.compare("<", n, size.most), more)
        return _module_of(replace(func, body=seq(func.body, less)), target)

    with patch.object(from_trace, "module_of", made):
        return from_trace.build_object(dag, trace, target)


def _built(by: int, dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
    with patch.object(from_trace, "module_of", partial(_rows_more, by)):
        return from_trace.build_object(dag, trace, target)


def a_row_less(dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
    """The last row is left out."""
    return _built(-1, dag, trace, target)


def a_row_more(dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
    """A row is computed behind the last."""
    return _built(1, dag, trace, target)
