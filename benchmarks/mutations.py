"""Small changes of Python source that its tests should notice.

`mutants.py` draws some and runs the tests. A change is made in the text, where `ast` tells. Left out is
what tests rightly don't hold: annotations, docstrings, texts, messages of errors, logging, ``__repr__``,
decorators, `assert`, arguments about speed, and numbers that were set by measuring (large ones, and those of
constants with names in capitals).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

COMPARED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: (r"not\s+in", "in"),
}  # fmt: skip
COMPUTED = {
    ast.Add: (r"\+", "-"), ast.Sub: ("-", "+"), ast.Mult: (r"\*", "//"), ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
}  # fmt: skip
JOINED = {ast.And: (r"\band\b", "or"), ast.Or: (r"\bor\b", "and")}
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
LARGEST = 64  # above are limits, which tests hardly hold to the last unit
OF_SPEED = {"maxsize", "timeout", "timeout_s", "buffering", "stacklevel", "indent", "daemon"}
LOGGED = {"debug", "info", "warning", "error", "exception", "warn"}


@dataclass(frozen=True, order=True)
class Change:
    """Bytes ``start`` to ``end`` of the source, which begin in ``line``, become ``text``."""

    line: int
    start: int
    end: int
    text: str
    kind: str

    def applied(self, source: bytes) -> bytes | None:
        """The source with this change, or None where that is no Python or means the same."""
        out = source[: self.start] + self.text.encode() + source[self.end :]
        try:
            return None if ast.dump(ast.parse(out)) == ast.dump(ast.parse(source)) else out
        except SyntaxError:
            return None


def changes(source: bytes) -> list[Change]:
    """All changes of a module's source, in its order.

    Raises SyntaxError where the source is no Python.
    """
    return sorted(set(_Finder(source).of(ast.parse(source))))


def _left_out(node: ast.AST) -> bool:
    """Whether nothing in this node is changed."""
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.arg():
            return True
        case ast.FunctionDef(name="__repr__"):
            return True
        case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=value):
            name = ast.unparse(target)
            return name == "__all__" or (name.upper() == name and _are_numbers(value))
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in LOGGED
        case ast.If(test=test):
            return "TYPE_CHECKING" in (text := ast.unparse(test)) or "__name__" in text
        case ast.keyword(arg=name):
            return name in OF_SPEED
    return False


class _Finder:
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def of(self, node: ast.AST) -> Iterator[Change]:
        """The changes of a node and of those in it."""
        if _left_out(node):
            return
        yield from self.own(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases") or isinstance(node, ast.Raise):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.of(child)

    def own(self, node: ast.AST) -> Iterator[Change]:
        """The changes of this node itself."""
        match node:
            case ast.Compare(left=left, ops=ops, comparators=right):
                for op, (a, b) in zip(ops, pairwise([left, *right]), strict=True):
                    yield from self.between(a, b, *COMPARED[type(op)], "comparison")
            case ast.BinOp(left=a, right=b, op=op) if type(op) in COMPUTED and not _is_text(a, b):
                yield from self.between(a, b, *COMPUTED[type(op)], "arithmetic")
            case ast.BoolOp(op=op, values=values):
                for a, b in pairwise(values):
                    yield from self.between(a, b, *JOINED[type(op)], "and / or")
            case ast.Constant(value=int(n)) if not isinstance(n, bool) and n <= LARGEST:
                yield self.put(node, str(n + 1), "number")
            case ast.UnaryOp(op=ast.Not(), operand=x):
                yield self.put(node, f"({self.text(x)})", "not")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in EXTREMES:
                func = self.text(node.func)
                yield self.put(node.func, func[: -len(name)] + EXTREMES[name], "min / max")
            case ast.Return(value=ast.Constant(value=bool(b)) as value):
                yield self.put(value, str(not b), "result")
            case ast.Return(value=ast.AST() as value) if not _is_none(value):
                yield self.put(value, "None", "result")
            case ast.Expr(value=ast.Call() as value) if not _left_out(value):
                yield self.put(node, "pass", "statement")
            case ast.AugAssign() | ast.Continue() | ast.Break():
                yield self.put(node, "pass", "statement")
            case ast.Tuple(elts=elts, ctx=ast.Load()) | ast.List(elts=elts, ctx=ast.Load()) if len(elts) > 1:
                yield from self.without_one(elts, "element")
        match node:
            case ast.If(test=test) | ast.IfExp(test=test):
                yield self.put(test, "True", "condition")
                yield self.put(test, "False", "condition")
                for s in node.body if isinstance(node, ast.If) else ():
                    if isinstance(s, ast.Raise):
                        yield self.put(s, "pass", "statement")
            case ast.While(test=test):
                yield self.put(test, "False", "condition")
            case ast.comprehension(ifs=ifs):
                for test in ifs:
                    yield self.put(test, "True", "condition")
            case ast.Call(args=args, keywords=keywords):
                for i, k in enumerate(keywords, len(args)):
                    if k.arg is not None and not _left_out(k):
                        yield self.without([*args, *keywords], i, "argument")

    # -- text ----------------------------------------------------------------------------------

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The bytes of a node."""
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[
            node.end_lineno - 1
        ] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def change(self, start: int, end: int, text: str, kind: str) -> Change:
        return Change(self.source.count(b"\n", 0, start) + 1, start, end, text, kind)

    def put(self, node: ast.AST, text: str, kind: str) -> Change:
        """Other text in place of a node."""
        return self.change(*self.span(node), text, kind)

    def between(self, a: ast.AST, b: ast.AST, pattern: str, text: str, kind: str) -> Iterator[Change]:
        """Another operator between two operands. Around it may be parentheses and comments."""
        start, end = self.span(a)[1], self.span(b)[0]
        gap = re.sub(rb"#[^\n]*", lambda m: b" " * len(m[0]), self.source[start:end])
        if m := re.search(pattern.encode(), gap):
            yield self.change(start + m.start(), start + m.end(), text, kind)

    def without(self, nodes: list, i: int, kind: str) -> Change:
        """A list without one of its members, and its comma."""
        start, end = self.span(nodes[i])
        if i + 1 < len(nodes):
            end = self.span(nodes[i + 1])[0]
        elif i:
            start = self.span(nodes[i - 1])[1]
        return self.change(start, end, "", kind)

    def without_one(self, nodes: list, kind: str) -> Iterator[Change]:
        if len(nodes) > 2:
            yield from (self.without(nodes, i, kind) for i in range(len(nodes)))
            return
        start, end = self.span(nodes[0])[0], self.span(nodes[1])[1]
        for kept in nodes:  # one with a comma stays a tuple
            yield self.change(start, end, f"{self.text(kept)},", kind)


def _are_numbers(node: ast.AST | None) -> bool:
    """Whether it is a number, an expression of numbers, or a tuple of such."""
    parts = [] if node is None else list(ast.walk(node))
    fine = (ast.operator, ast.unaryop, ast.expr_context, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.Constant)
    return all(isinstance(n, fine) and not isinstance(getattr(n, "value", 0), str | None) for n in parts)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(*nodes: ast.AST) -> bool:
    return any(
        isinstance(n, ast.JoinedStr) or (isinstance(n, ast.Constant) and isinstance(n.value, str))
        for n in nodes
    )
