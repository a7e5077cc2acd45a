"""A row of the shared table is all that an elementwise function needs, in both importers."""

from __future__ import annotations

from needs import imported

imported("onnx")
imported("torch")
from autotune.models.operators import aten, onnx_op  # noqa: E402
from autotune.models.operators.elements import ELEMENTS  # noqa: E402


def test_every_row_is_known_to_both_importers() -> None:
    assert {e.onnx for e in ELEMENTS if e.onnx} <= set(onnx_op)
    assert {e.aten for e in ELEMENTS if e.aten} <= {op.split(".")[1] for op in aten}


def test_no_name_has_two_rows() -> None:
    for names in ([e.onnx for e in ELEMENTS if e.onnx], [e.aten for e in ELEMENTS if e.aten]):
        assert len(names) == len(set(names))
