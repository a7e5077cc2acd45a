"""What an attribute is that a node leaves out: the importer's defaults are those of ONNX's own tables."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from needs import imported

onnx = imported("onnx")
from autotune.models import onnx_ops  # noqa: E402

FOLDER = Path(onnx_ops.__file__).parent


def asked() -> Iterator[tuple[str, str, object]]:
    """(operator, attribute, default) where the function of an operator asks its node for an attribute."""
    for file in sorted(FOLDER.glob("*.py")):
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            names = [
                a.value
                for d in function.decorator_list
                if isinstance(d, ast.Call) and ast.unparse(d.func) == "onnx_op"
                for a in d.args
                if isinstance(a, ast.Constant)
            ]
            for call in ast.walk(function):
                match call:
                    case ast.Call(func=ast.Attribute(attr="attr"), args=[ast.Constant(value=name), default]):
                        try:
                            value = ast.literal_eval(default)
                        except ValueError:
                            continue  # it follows from the shapes
                        yield from ((op, name, value) for op in names)


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
