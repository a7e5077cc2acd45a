"""ONNX's own test cases of operators, which its package makes without files or network."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from graph_meaning import evaluate
from needs import imported

import autotune as at
from schedules.dtypes import DTYPES, is_float, is_storage

onnx = imported("onnx")
from onnx import numpy_helper  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402

# What refusals of these cases say. A case whose axes or shapes are inputs is tried with them as weights.
UNKNOWN = "must be known at import"


@lru_cache(maxsize=1)
def cases() -> list[Any]:
    """All cases of nodes. The ones of training and of ai.onnx.ml are among them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(load_model_tests(kind="node"), key=lambda c: c.name)


def cases_of(modules: Mapping[str, str]) -> list[Any]:
    """Cases of one node, by {module of onnx that makes them: operator}. All cases take seconds to make."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            importlib.import_module(f"onnx.backend.test.case.node.{name}")
        node = importlib.import_module("onnx.backend.test.case.node")
    ops = {(op,) for op in modules.values()}
    return [c for c in node._NodeTestCases if tuple(n.op_type for n in c.model.graph.node) in ops]


def array(x: Any) -> Any:
    """An input or output of a case."""
    return numpy_helper.to_array(x) if hasattr(x, "data_type") else np.asarray(x)


def check(case: Any) -> str:
    """Import a case and compare it with what it expects. Returns "ok", "bound" (its integers were made
    weights), or why it is refused. Raises AssertionError for a wrong result."""
    model, sets = case.model, case.data_sets
    how = "ok"
    try:
        imported_model = at.import_onnx(model)
    except at.ModelError as err:
        if UNKNOWN not in str(err):
            return str(err)
        model, sets = _bound(case)
        how = "bound"
        try:
            imported_model = at.import_onnx(model)
        except at.ModelError as again:
            return str(again)
    for inputs, outputs in sets:
        got = evaluate(imported_model.graph, [array(x) for x in inputs])
        full = [x for x in map(array, outputs) if x.size]  # the others are none of the graph
        for port, have, want in zip(imported_model.outputs, got, full, strict=True):
            assert have.shape == want.shape and have.dtype == want.dtype, (case.name, port)
            name = have.dtype.name
            # Numbers that are stored in 16 bits are rounded there, but not where ONNX's function rounds them.
            rtol = case.rtol
            if is_float(name) and is_storage(name):
                rtol = max(rtol, 1.5 * DTYPES[name].epsilon)
                have, want = have.astype(np.float32), want.astype(np.float32)
            # The expected zeros of an inverse transform are rounded ones.
            atol = max(case.atol, 1e-6 if "DFT" in {n.op_type for n in model.graph.node} else 0)
            np.testing.assert_allclose(have, want, rtol=rtol, atol=atol, err_msg=f"{case.name} {port}")
    return how


def _bound(case: Any) -> tuple[Any, Any]:
    """The case with all inputs but the first as weights, or with a lone one."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inputs, outputs = case.data_sets[0]
    first = min(1, len(inputs) - 1)
    for port, x in list(zip(model.graph.input, inputs, strict=False))[first:]:
        model.graph.initializer.append(numpy_helper.from_array(array(x), port.name))
    return model, [(inputs[:first], outputs)]
