"""Runs an island: an operator that is no expression, by onnx's reference evaluator."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ModelError, one_line
from schedules.graph.graph import Island

Array = NDArray[Any]


def run_island(island: Island, reads: Sequence[Array]) -> list[Array]:
    """What an island writes, for arrays of what it reads, in their order.

    Its payload is a model of one node, whose inputs that are known are initializers. Slow: it is Python and
    numpy. Raises ModelError where the evaluator fails, or gives another shape or dtype than was inferred.
    """
    try:
        names, evaluator = _evaluator(island.payload)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            made = evaluator.run(None, dict(zip(names, reads, strict=True)))
    except Exception as err:  # the evaluator raises what numpy raises
        raise ModelError(
            f"{island.op} at {island.name} failed in onnx's reference evaluator: {one_line(err)}"
        ) from err
    out = []
    for t, x in zip(island.writes, made, strict=True):
        array = np.asarray(x, order="C")
        if array.shape != t.shape or array.dtype != np.dtype(t.dtype):
            raise ModelError(
                f"{island.op} at {island.name} gave {array.dtype}{list(array.shape)}, "
                f"but {t.dtype}{list(t.shape)} was inferred"
            )
        out.append(array)
    return out


@lru_cache(maxsize=64)
def _evaluator(payload: bytes) -> tuple[tuple[str, ...], Any]:
    """(names of the inputs, the evaluator) of a payload."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.ModelProto.FromString(payload)
    return tuple(i.name for i in model.graph.input), ReferenceEvaluator(model)
