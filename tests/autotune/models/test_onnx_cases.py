"""ONNX's own test cases of operators: each is imported and right, or refused by name."""

from __future__ import annotations

import collections
import re
from typing import Any

import pytest
from onnx_cases import cases, cases_of, check

# Reasons of refusals: every one names what it is about.
NAMED = re.compile(
    r"nodes? cannot be imported:\n  [A-Z]\w+.* \(\d+\): "  # operators, with the names of nodes
    r"|(input|output) '[^']*'"  # a port whose type, shape or kind is not supported
    r"|: node [^ ]+.* \([A-Z]\w+\): "
)


def survey(some: list[Any]) -> tuple[collections.Counter[str], dict[str, str]]:
    """(how many cases of each outcome, {refused case: why})."""
    counts: collections.Counter[str] = collections.Counter()
    refused = {}
    for case in some:
        outcome = check(case)
        if outcome not in ("ok", "bound"):
            refused[case.name], outcome = outcome, "refused"
        counts[outcome] += 1
    return counts, refused


# What the quick tests try: {module of onnx: operator}.
SAMPLE = {
    "batch_normalization": "BatchNormalization", "clip": "Clip", "concat": "Concat", "conv": "Conv",
    "convtranspose": "ConvTranspose", "cumsum": "CumSum", "div": "Div", "expand": "Expand",
    "gemm": "Gemm", "layernormalization": "LayerNormalization", "logsoftmax": "LogSoftmax", "lrn": "LRN",
    "matmul": "MatMul", "pad": "Pad", "quantizelinear": "QuantizeLinear", "reducemax": "ReduceMax",
    "reshape": "Reshape", "resize": "Resize", "slice": "Slice", "softmax": "Softmax", "split": "Split",
    "squeeze": "Squeeze", "transpose": "Transpose", "trilu": "Trilu", "where": "Where",
}  # fmt: skip


def test_a_sample_is_right_or_refused_by_name() -> None:
    counts, refused = survey(cases_of(SAMPLE))
    assert all(NAMED.search(why) for why in refused.values()), refused
    assert counts["ok"] >= 130 and counts["bound"] >= 75 and counts["refused"] <= 35, (counts, refused)


@pytest.mark.soak
def test_all_are_right_or_refused_by_name() -> None:
    counts, refused = survey(cases())
    assert all(NAMED.search(why) for why in refused.values()), refused
    assert counts["ok"] >= 1130 and counts["bound"] >= 240, counts
