"""What an attribute is that a node leaves out: the importer's defaults are those of ONNX's own tables."""

from __future__ import annotations

from collections.abc import Iterator

from needs import imported

onnx = imported("onnx")
from autotune.models.operators import onnx_op  # noqa: E402


def asked() -> Iterator[tuple[str, str, object]]:
    """(operator, attribute, default) where a parameter of an operator's row has a default."""
    for op, rows in onnx_op.items():
        for row in rows:
            for p, *_ in row.parameters:
                if p.default is not p.empty and p.default is not None:
                    yield op, row.names.get(p.name, p.name), p.default


def of_onnx(op: str, name: str) -> list[object]:
    """The defaults of an attribute, in all versions of an operator."""
    found = [s.attributes[name].default_value for s in onnx.defs.get_all_schemas_with_history()
             if s.name == op and s.domain == "" and name in s.attributes]  # fmt: skip
    return [onnx.helper.get_attribute_value(d) for d in found if d.type]


def test_defaults_are_those_of_onnx() -> None:
    wrong, right = [], 0
    for op, name, value in asked():
        theirs = [v.decode() if isinstance(v, bytes) else v for v in of_onnx(op, name)]
        if theirs and not any(v == value or (isinstance(v, float) and abs(v - value) < 1e-6) for v in theirs):
            wrong.append((op, name, value, theirs))
        right += bool(theirs)
    assert not wrong and right > 50
