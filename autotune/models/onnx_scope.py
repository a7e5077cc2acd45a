"""Lowers the nodes of an ONNX graph, one after the other.

A name stands for a stage or for an array that is known. A node whose inputs are all known is evaluated. Else
its row of the table states it. Where there is no row, the function that ONNX defines the operator by is
lowered in its place, in a scope of its own, and so are functions of the model. What is left becomes an
island, or is remembered, so that all of it can be told at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
from onnx import AttributeProto, helper

from autotune.errors import ModelError
from autotune.models.frame import Frame, Gap
from autotune.models.model import identifier
from autotune.models.onnx_file import domain, to_array
from autotune.models.onnx_islands import IslandCall, island_call
from autotune.models.onnx_known import ConstantFolder, is_folded, type_of
from autotune.models.onnx_loops import loop_outputs, scan_outputs
from autotune.models.operators import onnx_op
from autotune.models.operators.base import UnsupportedForm
from autotune.models.operators.known import KnownTensor, Value
from autotune.models.operators.node import OnnxNode
from autotune.models.operators.table import OperatorRow
from schedules import te
from schedules.dtypes import DTYPES
from schedules.te.scalars import instead_of

# Most bytes of one tensor: larger ones are surely a mistake in the file.
MAX_BYTES = 2**33
# Most functions that call each other.
MAX_DEPTH = 24
CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})
# Operators that make random numbers only when training, and one that makes none although onnx says so.
_STILL = frozenset({"Dropout", "AffineGrid"})
# Most nodes of functions and branches that are lowered, each time that they are called.
MAX_NODES = 50_000


Scoped = Value | Gap | None


@dataclass(frozen=True)
class OnnxScope:
    """``values``: {name: what it stands for}. ``opsets``: {domain: version}. ``attributes``: those of the
    function that is being lowered, which its nodes may refer to. ``path``: of its caller, for messages."""

    values: dict[str, Scoped]
    opsets: Mapping[str, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    depth: int = 0


class OnnxLowering(Frame):
    """State of one import. ``label``: of the file. ``functions``: the model's own, by domain, name and
    overload."""

    def __init__(self, label: str, functions: Sequence[Any], folder: ConstantFolder, islands: bool):
        super().__init__(label)
        self.folder, self.islands = folder, islands
        self.functions = {(domain(f.domain), f.name, getattr(f, "overload", "")): f for f in functions}
        self.calls: list[IslandCall] = []
        self._nodes = 0
        self._trial = 0  # above 0, the first unsupported node ends a trial

    def check_constant(self, known: KnownTensor, name: str) -> None:
        """Raise UnsupportedForm for values that no input of a graph has."""
        if known.dtype not in DTYPES:
            name = str(known.value.dtype)
            raise UnsupportedForm(f"type {name} is not supported; cast it to one of {instead_of(name)}")
        if 0 in known.shape:
            raise UnsupportedForm(f"a value of shape {list(known.shape)} has no elements")

    def gap(self, op: str, path: str, why: str) -> Gap:
        """Remember a node that is not supported; in a trial, end that."""
        if self._trial:
            raise UnsupportedForm(f"{op} in the function that defines it, or in the body of a loop: {why}")
        return super().gap(op, path, why)

    # --- graphs -------------------------------------------------------------------------------

    def run(self, nodes: Sequence[Any], wanted: Sequence[str], scope: OnnxScope) -> None:
        """Lower what the ``wanted`` names of a scope need."""
        for proto in _reachable(nodes, wanted):
            self._node(proto, scope)

    def _node(self, proto: Any, scope: OnnxScope) -> None:
        op = proto.op_type
        self._nodes += scope.depth > 0  # what the file itself has is as long as the file
        if self._nodes > MAX_NODES:
            raise ModelError(f"{self.label}: functions and branches have more than {MAX_NODES} nodes in all")
        label = proto.name or next(filter(None, proto.output), op)
        path = f"{scope.path}/{label}" if scope.path else label
        values: dict[str, Scoped] = {}
        for name in filter(None, proto.input):
            if name not in scope.values:
                raise ModelError(f"{self.label}: node {path} ({op}) reads {name!r}, which nothing computes")
            values[name] = scope.values[name]
        kind = op if not proto.domain else f"{op} of domain {proto.domain}"
        made = self.lowered(
            op, path, lambda: self._outputs(_resolved(proto, scope), values, scope, path), kind
        )
        made = [made] * len(proto.output) if isinstance(made, Gap) else made
        for name, x in zip(proto.output, made, strict=False):
            if name:
                unnamed = isinstance(x, KnownTensor) and not x.name
                scope.values[name] = replace(x, name=identifier(name)) if unnamed else x

    def _outputs(
        self, proto: Any, values: dict[str, Scoped], scope: OnnxScope, path: str
    ) -> Sequence[Scoped]:
        op, where = proto.op_type, domain(proto.domain)
        function = self.functions.get((where, op, getattr(proto, "overload", "")))
        if function is not None:
            return self._call(function, proto, values, scope, path)
        version = scope.opsets.get(where)
        if version is None:
            raise ModelError(f"the model imports no version of domain {proto.domain or 'ai.onnx'!r}")
        if (row := onnx_op.row(f"{where}.{op}")) is not None and where:
            if any(isinstance(x, Gap) for x in values.values()):
                return [Gap()] * len(proto.output)
            return self._by_row(row, proto, None, [values[n] if n else None for n in proto.input])
        try:
            schema: Any = onnx.defs.get_schema(op, version, where)
        except onnx.defs.SchemaError:
            raise UnsupportedForm(
                f"domain {proto.domain!r} is not ONNX's" if where else f"opset {version} has no such operator"
            ) from None
        if any(isinstance(x, Gap) for x in values.values()):
            if not (onnx_op.row(op, schema.since_version) or _has_body(schema)) or where:
                raise UnsupportedForm("no expression for it")
            return [Gap()] * len(proto.output)
        if op in CONTROL and not where:
            return self._control(proto, schema.since_version, values, scope, path)
        _refuse_kinds(op)
        if (
            schema.node_determinism == onnx.defs.OpSchema.NodeDeterminism.NonDeterministic
            and op not in _STILL
        ):
            raise UnsupportedForm("it makes random numbers")
        needed = (f for f in schema.inputs if f.option == onnx.defs.OpSchema.FormalParameterOption.Single)
        for i, formal in enumerate(needed):  # they come first
            if i >= len(proto.input) or values.get(proto.input[i]) is None:
                raise ModelError(f"its input {formal.name} is missing")
        known = {n: x for n, x in values.items() if isinstance(x, KnownTensor)}
        every = len(known) == sum(x is not None for x in values.values())
        if every and not where and is_folded(op, [known.get(n) for n in proto.input]):
            arrays = {n: x.value for n, x in known.items()}
            made = self.folder.evaluate(proto, arrays, {**scope.opsets, proto.domain: version})
            return [KnownTensor(x) for x in made]
        inputs = [values[n] if n else None for n in proto.input]
        try:
            return self._lower(proto, schema, inputs, scope, path)
        except UnsupportedForm as err:
            if not self.islands or self._trial:
                raise
            call = island_call(
                proto, values, {**scope.opsets, proto.domain: version}, path, self.constant, err
            )
            self.calls.append(call)
            return [call.outputs.get(n) for n in proto.output]

    def _lower(
        self, proto: Any, schema: Any, inputs: Sequence[Scoped], scope: OnnxScope, path: str
    ) -> Sequence[Scoped]:
        """By the table, else by the function that defines the operator."""
        reason = UnsupportedForm("no expression for it")
        found = None if domain(proto.domain) else onnx_op.row(proto.op_type, schema.since_version)
        if found is not None:
            try:
                return self._by_row(found, proto, schema, inputs)
            except UnsupportedForm as err:
                reason = err
        body = _body(schema, proto, inputs, scope.opsets)
        if body is None:
            raise reason
        values = dict(zip(proto.input, inputs, strict=True))
        defaults = [a.default_value for a in schema.attributes.values() if a.default_value.name]
        self._trial += 1
        try:
            return self._call(body, proto, values, scope, path, defaults)
        except UnsupportedForm as err:
            raise (reason if found is not None else err) from err
        finally:
            self._trial -= 1

    def _by_row(
        self, row: OperatorRow, proto: Any, schema: Any, inputs: Sequence[Scoped]
    ) -> Sequence[Scoped]:
        """What a row of the table makes. ``schema``: of the operator, None where onnx has none."""
        defaults = {} if schema is None else schema.attributes
        attributes = {n: _value(a.default_value) for n, a in defaults.items() if a.default_value.name}
        attributes |= {a.name: self._attribute(a) for a in proto.attribute}
        used = frozenset(i for i, name in enumerate(proto.output) if name)
        which = (1 if schema is None else schema.since_version, len(proto.output))
        node = OnnxNode(proto.op_type, used, self.constant, *which, attributes=attributes)
        made = row.outputs(node, inputs, {})
        every: Sequence[Scoped] = made if isinstance(made, (tuple, list)) else (made,)
        for x in every:
            if isinstance(x, te.Tensor):
                check_size(x.shape, x.dtype, "its output")
        return every

    def _attribute(self, a: Any) -> Any:
        if a.type == AttributeProto.TENSOR:
            return to_array(a.t, f"attribute {a.name}", None)
        return _value(a)

    # --- functions and branches ---------------------------------------------------------------

    def _call(
        self, function: Any, proto: Any, values: Mapping[str, Scoped], scope: OnnxScope, path: str,
        defaults: Sequence[Any] = (),
    ) -> Sequence[Scoped]:  # fmt: skip
        """Lower a function's body in a scope of its own. ``defaults``: of its attributes."""
        if scope.depth >= MAX_DEPTH:
            raise ModelError(f"functions call each other more than {MAX_DEPTH} deep")
        given = [values.get(n) if n else None for n in proto.input]
        if len(given) > len(function.input):
            raise ModelError(f"{len(given)} inputs for the {len(function.input)} of function {function.name}")
        given += [None] * (len(function.input) - len(given))
        every = (*defaults, *function.attribute_proto, *proto.attribute)
        attributes = {a.name: a for a in every}
        opsets = {**scope.opsets, **{domain(o.domain): o.version for o in function.opset_import}}
        named = dict(zip(function.input, given, strict=True))
        inner = OnnxScope(named, opsets, attributes, path, scope.depth + 1)
        wanted = [o if n else "" for o, n in zip(function.output, proto.output, strict=False)]
        return self._inside(inner, function.node, wanted, function.name)

    def _control(
        self, proto: Any, version: int, values: dict[str, Scoped], scope: OnnxScope, path: str
    ) -> Sequence[Scoped]:
        if proto.op_type == "If":
            return self._branch(proto, values, scope, path)
        if proto.op_type == "Loop":
            return loop_outputs(self, proto, values, scope, path)
        if proto.op_type == "Scan":
            return scan_outputs(self, proto, version, values, scope, path)
        raise UnsupportedForm("control flow is not supported")

    def _branch(
        self, proto: Any, values: Mapping[str, Scoped], scope: OnnxScope, path: str
    ) -> Sequence[Scoped]:
        """The branch that a known condition takes."""
        cond = values[proto.input[0]]
        if not isinstance(cond, KnownTensor) or cond.value.size != 1:
            raise UnsupportedForm("control flow is not supported: its condition is not known at import")
        if scope.depth >= MAX_DEPTH:
            raise ModelError(f"branches nest more than {MAX_DEPTH} deep")
        name = "then_branch" if cond.value.item() else "else_branch"
        graph = next(a.g for a in proto.attribute if a.name == name)
        inner = OnnxScope(dict(scope.values), scope.opsets, scope.attributes, path, scope.depth + 1)
        for t in graph.initializer:
            inner.values[t.name] = KnownTensor(to_array(t, f"initializer {t.name!r} of {name}", None))
        return self._inside(inner, graph.node, [o.name for o in graph.output], name)

    def body(
        self, scope: OnnxScope, nodes: Sequence[Any], wanted: Sequence[str], what: str
    ) -> Sequence[Scoped]:
        """What the body of a loop makes of a step. Raises UnsupportedForm for what is not supported."""
        if scope.depth >= MAX_DEPTH:
            raise ModelError(f"loops nest more than {MAX_DEPTH} deep")
        self._trial += 1
        try:
            return self._inside(scope, nodes, wanted, what)
        finally:
            self._trial -= 1

    def _inside(
        self, scope: OnnxScope, nodes: Sequence[Any], wanted: Sequence[str], what: str
    ) -> Sequence[Scoped]:
        """The ``wanted`` values of a scope, after its nodes; None for those without a name."""
        self.run(nodes, [name for name in wanted if name], scope)
        if lost := [name for name in wanted if name and name not in scope.values]:
            raise ModelError(f"{what} does not compute its output {lost[0]!r}")
        return [scope.values[name] if name else None for name in wanted]


# --- helpers ----------------------------------------------------------------------------------


def check_size(shape: Sequence[int], dtype: str, what: str) -> None:
    """Raise ModelError for a tensor that is surely a mistake."""
    nbytes = DTYPES[dtype].itemsize
    for n in shape:
        nbytes *= n
    if nbytes > MAX_BYTES:
        raise ModelError(
            f"{what} has shape {list(shape)}, {nbytes >> 30} GB of {dtype}; "
            f"at most {MAX_BYTES >> 30} GB are taken"
        )


def _reachable(nodes: Sequence[Any], wanted: Sequence[str]) -> list[Any]:
    """The nodes that the wanted names need, in order."""
    needed, out = set(wanted), []
    for node in reversed(nodes):
        if any(o in needed for o in node.output if o):
            out.append(node)
            needed.update(_reads(node))
    return out[::-1]


def _reads(node: Any) -> Iterator[str]:
    """Names that a node reads, and the graphs in it."""
    yield from filter(None, node.input)
    for a in node.attribute:
        for g in [a.g] * a.HasField("g") + list(a.graphs):
            for inner in g.node:
                yield from _reads(inner)
            yield from (o.name for o in g.output)


def _resolved(proto: Any, scope: OnnxScope) -> Any:
    """A node with the values of the function's attributes that it refers to."""
    if not any(a.ref_attr_name for a in proto.attribute):
        return proto
    out = onnx.NodeProto()
    out.CopyFrom(proto)
    del out.attribute[:]
    for a in proto.attribute:
        if not a.ref_attr_name:
            out.attribute.append(a)
        elif (given := scope.attributes.get(a.ref_attr_name)) is not None:
            new = out.attribute.add()
            new.CopyFrom(given)
            new.name = a.name
    return out


def _value(a: Any) -> Any:
    """A Python value of an attribute: numbers, strings, lists."""
    found = helper.get_attribute_value(a)
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    if isinstance(found, list) and found and isinstance(found[0], bytes):
        return [x.decode("utf-8", "replace") for x in found]
    return found


def _refuse_kinds(op: str) -> None:
    """Raise UnsupportedForm for kinds of operators that never have an expression."""
    if op.startswith(("Sequence", "Optional")) or op in ("SplitToSequence", "ConcatFromSequence"):
        raise UnsupportedForm("sequences and optional values are not supported")


def _has_body(schema: Any) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)


def _body(schema: Any, proto: Any, inputs: Sequence[Scoped], opsets: Mapping[str, int]) -> Any:
    """The function that defines an operator, None if there is none."""
    version = opsets[domain(proto.domain)]
    data: bytes | None = None
    try:
        if schema.has_context_dependent_function:
            versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
            types = [(onnx.TypeProto() if x is None else type_of(x)).SerializeToString() for x in inputs]
            if versions:
                data = schema.get_context_dependent_function_with_opset_version(
                    max(versions), proto.SerializeToString(), types
                )
        if not data and schema.has_function:
            versions = [v for v in schema.function_opset_versions if v <= version]
            if versions:
                data = schema.get_function_with_opset_version(max(versions))
    except Exception:  # of onnx's C++: these types or attributes have no body
        return None
    if not data:
        return None
    return onnx.FunctionProto.FromString(data) if isinstance(data, bytes) else data
