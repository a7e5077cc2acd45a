"""States of an ONNX model: pairs of an input and an output, of which the output is the input's next value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.errors import ModelError
from autotune.models.assembling import Kept
from schedules import te
from schedules.errors import suggest

NO_PAIRS: Mapping[str, str] = {}


def check_pairs(states: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str], label: str) -> None:
    """Raise ModelError for pairs that a model has not."""
    for kind, given, known in (("input", [*states], inputs), ("output", [*states.values()], outputs)):
        for name in given:
            if name not in known:
                raise ModelError(
                    f"{label}: states= names {name!r}, which is no {kind}{suggest(str(name), known)}; the "
                    f"{kind}s are {', '.join(known)}"
                )
            if given.count(name) > 1:
                raise ModelError(f"{label}: states= names {kind} {name!r} twice")


def kept_pairs(
    states: Mapping[str, str],
    inputs: Mapping[str, te.Tensor],
    outputs: Sequence[tuple[str, Any]],
    label: str,
) -> dict[str, Kept]:
    """What the model keeps. ``outputs``: what each stands for. Raises ModelError for pairs of other shapes or
    dtypes."""
    values = dict(outputs)
    found = {}
    for old, new in states.items():
        a, b = inputs[old], values[new]
        if not isinstance(b, te.Tensor):
            raise ModelError(f"{label}: output {new!r} does not depend on the inputs: it is no state")
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            grows = "; it grows: " if a.dtype == b.dtype and len(a.shape) == len(b.shape) else ": "
            raise ModelError(
                f"{label}: state {old!r} is {a.dtype}{list(a.shape)}, and {new!r} {b.dtype}{list(b.shape)}"
                f"{grows}export a cache of fixed length, in which rows are written at a position that is an "
                "input (ScatterND, TensorScatter), or leave the pair out of states="
            )
        found[old] = Kept(a, b)
    return found
