"""Loops of plain Python as C: the program that gcc compiles is the one that numba compiles.

A function of loops has ranges, conditions, assignments to numbers and elements, arithmetic, and functions of
`math`. Extents of arrays are constants in the C, as in a tuned kernel. Floats have the type ``real``.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import inspect
import subprocess
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FLAGS = ("-O3", "-march=native", "-ffast-math")
INTEGERS = {
    "bool": "uint8_t",
    "uint8": "uint8_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint32": "uint32_t",
}
FUNCTIONS = ("sqrt", "exp", "sin", "cos", "tanh", "atan2", "floor", "log", "pow")
OPERATORS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "/", ast.Mod: "%", ast.BitXor: "^",
    ast.BitAnd: "&", ast.BitOr: "|", ast.LShift: "<<", ast.RShift: ">>", ast.Lt: "<", ast.LtE: "<=",
    ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.And: "&&", ast.Or: "||",
}  # fmt: skip


class Translator:
    """A function of loops for given arguments as C."""

    def __init__(self, loops: Callable[..., None], values: Sequence[Any], real: str) -> None:
        tree = ast.parse(textwrap.dedent(inspect.getsource(loops))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self.tree, self.real = tree, real
        names = [a.arg for a in tree.args.args]
        self.given = dict(zip(names, values, strict=True))
        self.floats = {n for n, v in self.given.items() if self._is_float(v)}
        self.locals: dict[str, str] = {}

    def _is_float(self, value: Any) -> bool:
        return isinstance(value, float) or getattr(value, "dtype", np.dtype("int64")).kind == "f"

    def text(self) -> str:
        self._types()
        body = "".join(self._statement(s, 1) for s in self.tree.body)
        declared = "".join(
            f"  {'real' if t == 'real' else 'int64_t'} {n};\n" for n, t in sorted(self.locals.items())
        )
        parameters = ", ".join(self._parameter(n, v) for n, v in self.given.items())
        head = "#include <math.h>\n#include <stdint.h>\n#define MIN(a, b) ((a) < (b) ? (a) : (b))\n"
        head += "#define MAX(a, b) ((a) > (b) ? (a) : (b))\n" + f"typedef {self.real} real;\n"
        return f"{head}void {self.tree.name}({parameters}) {{\n{declared}{body}}}\n"

    def _parameter(self, name: str, value: Any) -> str:
        if not isinstance(value, np.ndarray):
            return f"{'real' if self._is_float(value) else 'int64_t'} {name}"
        kind = "real" if value.dtype.kind == "f" else INTEGERS[value.dtype.name]
        rest = "".join(f"[{n}]" for n in value.shape[1:])
        return f"{kind} (*restrict {name}){rest}" if rest else f"{kind} *restrict {name}"

    def _types(self) -> None:
        """Numbers that are ever given a float are floats; the rest are integers."""
        while True:
            before = dict(self.locals)
            for node in ast.walk(self.tree):
                if isinstance(node, ast.For):
                    assert isinstance(node.target, ast.Name)
                    self.locals[node.target.id] = "int"
                elif isinstance(node, (ast.Assign, ast.AugAssign)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for target in targets:
                        if isinstance(target, ast.Name):
                            real = self.locals.get(target.id) == "real" or self._real(node.value)
                            self.locals[target.id] = "real" if real else "int"
            if before == self.locals:
                return

    def _real(self, e: ast.expr) -> bool:
        match e:
            case ast.Constant(value=v):
                return isinstance(v, float)
            case ast.Name(id=name):
                return name in self.floats or self.locals.get(name) == "real"
            case ast.Subscript(value=ast.Name(id=name)):
                return name in self.floats
            case ast.BinOp(op=ast.Div()):
                return True
            case ast.BinOp(left=a, right=b):
                return self._real(a) or self._real(b)
            case ast.UnaryOp(operand=a):
                return self._real(a)
            case ast.IfExp(body=a, orelse=b):
                return self._real(a) or self._real(b)
            case ast.Call(func=ast.Name(id=name), args=args):
                return name in FUNCTIONS or (name != "int" and any(map(self._real, args)))
        return False

    def _statement(self, s: ast.stmt, depth: int) -> str:
        pad = "  " * depth
        body = lambda ss: "".join(self._statement(x, depth + 1) for x in ss)  # noqa: E731
        match s:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return ""
            case ast.Assign(targets=[target], value=value):
                return f"{pad}{self._expr(target)} = {self._expr(value)};\n"
            case ast.AugAssign(target=target, op=op, value=value):
                return f"{pad}{self._expr(target)} {OPERATORS[type(op)]}= {self._expr(value)};\n"
            case ast.For(target=ast.Name(id=v), iter=ast.Call(args=args)):
                first, last = (args[0], args[1]) if len(args) > 1 else (ast.Constant(0), args[0])
                down = len(args) == 3
                step = f"{v}--" if down else f"{v}++"
                test = f"{v} {'>' if down else '<'} {self._expr(last)}"
                return f"{pad}for ({v} = {self._expr(first)}; {test}; {step}) {{\n{body(s.body)}{pad}}}\n"
            case ast.While(test=test):
                return f"{pad}while ({self._expr(test)}) {{\n{body(s.body)}{pad}}}\n"
            case ast.If(test=test):
                other = f" else {{\n{body(s.orelse)}{pad}}}" if s.orelse else ""
                return f"{pad}if ({self._expr(test)}) {{\n{body(s.body)}{pad}}}{other}\n"
            case ast.Break():
                return f"{pad}break;\n"
        raise TypeError(f"loops have no {ast.unparse(s)}")

    def _expr(self, e: ast.expr) -> str:
        match e:
            case ast.Constant(value=v):
                return f"(real){v!r}" if isinstance(v, float) else str(int(v))
            case ast.Name(id=name):
                return name
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                parts = index.elts if isinstance(index, ast.Tuple) else [index]
                return name + "".join(f"[{self._expr(i)}]" for i in parts)
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=index):
                assert isinstance(index, ast.Constant)
                return str(self.given[name].shape[index.value])
            case ast.BinOp(left=a, op=ast.Pow(), right=b):
                return f"pow{self._suffix()}({self._expr(a)}, {self._expr(b)})"
            case ast.BinOp(left=a, op=op, right=b):
                left = f"(real){self._expr(a)}" if isinstance(op, ast.Div) else self._expr(a)
                return f"({left} {OPERATORS[type(op)]} {self._expr(b)})"
            case ast.BoolOp(op=op, values=values):
                return "(" + f" {OPERATORS[type(op)]} ".join(map(self._expr, values)) + ")"
            case ast.Compare(left=a, ops=[op], comparators=[b]):
                return f"({self._expr(a)} {OPERATORS[type(op)]} {self._expr(b)})"
            case ast.UnaryOp(op=ast.USub(), operand=a):
                return f"(-{self._expr(a)})"
            case ast.UnaryOp(op=ast.Not(), operand=a):
                return f"(!{self._expr(a)})"
            case ast.IfExp(test=test, body=a, orelse=b):
                return f"({self._expr(test)} ? {self._expr(a)} : {self._expr(b)})"
            case ast.Call(func=ast.Name(id="int"), args=[a]):
                return f"((int64_t){self._expr(a)})"
            case ast.Call(func=ast.Name(id="float"), args=[a]):
                return f"((real){self._expr(a)})"
            case ast.Call(func=ast.Name(id="abs"), args=[a]):
                return f"fabs{self._suffix()}({self._expr(a)})"
            case ast.Call(func=ast.Name(id=name), args=args) if name in ("min", "max"):
                return f"{name.upper()}({', '.join(map(self._expr, args))})"
            case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
                return f"{name}{self._suffix()}({', '.join(map(self._expr, args))})"
        raise TypeError(f"loops have no {ast.unparse(e)}")

    def _suffix(self) -> str:
        return "f" if self.real == "float" else ""


def compiled(
    loops: Callable[..., None], values: Sequence[Any], dtype: str, folder: Path
) -> Callable[..., None]:
    """Loops compiled by gcc for these arguments: their dtypes and shapes are part of the code."""
    text = Translator(loops, values, "float" if dtype == "float32" else "double").text()
    stem = folder / f"{loops.__name__}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    library = stem.with_suffix(".so")
    if not library.exists():
        stem.with_suffix(".c").write_text(text)
        # Linked without the flags: a library linked with -ffast-math has the whole process drop subnormals.
        for words in (
            ["gcc", *FLAGS, "-fPIC", "-c", "-o", f"{stem}.o", f"{stem}.c"],
            ["gcc", "-shared", "-o", str(library), f"{stem}.o", "-lm"],
        ):
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"gcc does not compile {stem}.c: {done.stderr[:2000]}")
    function = getattr(ctypes.CDLL(str(library)), loops.__name__)
    function.restype = None
    number = ctypes.c_float if dtype == "float32" else ctypes.c_double

    def called(*given: Any) -> None:
        function(*(_word(x, number) for x in given))

    return called


def _word(x: Any, number: Any) -> Any:
    if isinstance(x, np.ndarray):
        return ctypes.c_void_p(x.ctypes.data)
    return number(x) if isinstance(x, (float, np.floating)) else ctypes.c_int64(int(x))
