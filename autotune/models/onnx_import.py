"""`import_onnx`: a model of the ONNX format as a graph of tensor expressions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from autotune.errors import MissingExtraError, ModelError, refused
from autotune.models.assembling import assemble
from autotune.models.model import Model, identifier
from autotune.models.onnx_states import NO_PAIRS, check_pairs, kept_pairs
from autotune.models.open_import import open_model
from autotune.models.operators.known import KnownTensor
from autotune.models.operators.narrow_integers import KEPT_AS
from autotune.models.signature import Blank, Held, Leaf, Signature, TensorSlot
from schedules import te
from schedules.distribution import install
from schedules.dtypes import DTYPES
from schedules.expr import Expr
from schedules.te.dims import Dim
from schedules.te.scalars import instead_of

if TYPE_CHECKING:
    import onnx

    from autotune.models.onnx_scope import OnnxLowering

# A size, or an expression of open ones (`schedules.te.dims`).
Size = int | Expr
NO_SHAPES: Mapping[str, Size | Sequence[Size]] = MappingProxyType({})

# Where a file has operators without an expression.
ISLANDS = (
    "\nautotune.import_onnx(path, islands=True) runs operators of ONNX of known shapes in onnx's reference "
    "evaluator, slowly"
)


def import_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    shapes: Mapping[str, Size | Sequence[Size]] = NO_SHAPES,
    islands: bool = False,
    states: Mapping[str, str] = NO_PAIRS,
) -> Model:
    """A model of the ONNX format (https://onnx.ai) as a graph of tensor expressions.

    ``model``: the path of a file, its bytes, or a ModelProto. ``shapes``: {input: its shape}, or {name of a
    dimension: its extent}, for what the file leaves open. ``at.dim(1, 512)`` as an extent is an open size:
    the model takes every size of the range, and each call tells it (ADR 88). ``islands``: operators without
    an expression are kept as islands, which onnx's reference evaluator runs; else they are refused.
    ``states``: {input: the output that is its next value}, both of one shape. Calls no longer take this
    input nor return this output. The model keeps it from call to call (`Module.state`), and it begins as
    zeros. Rows are written in place (ADR 89).

    What is known before a call, such as the arithmetic on shapes, is computed here. Data outside the file is
    read from the folder of the file's path, and from that where the file lies after all links. Raises
    ModelError for what is no valid model and for all operators that have no expression, at once, and for
    nodes for which a size cannot stay open; MissingExtraError where the extra ``onnx`` is not installed.
    Examples:

        model = at.import_onnx("net.onnx", shapes={"x": (1, 3, 224, 224)})
        model = at.import_onnx("decoder.onnx", states={"past_key": "present_key"})
        model = at.import_onnx("bert.onnx", shapes={"batch": 1, "seq": at.dim(1, 512)})
    """
    try:
        from autotune.models.onnx_file import read_file
        from autotune.models.onnx_sizes import FIXED, numbers_in, numbers_of, open_sizes_of
    except ImportError as err:
        raise MissingExtraError(f"{err}; import_onnx needs the extra onnx: {install('onnx')}") from err
    try:
        file = read_file(model)
        sizes = open_sizes_of(shapes, file.label)

        def at_sizes(numbers: Mapping[Dim, int]) -> Model:
            return _imported(file, numbers_of(shapes, numbers, file.label), islands, states)

        if not sizes:
            return at_sizes({})
        return open_model(
            lambda at: at_sizes({d: at[s.name] for d, s in sizes.items()}),
            list(sizes.values()),
            numbers_in(file).__contains__,
            FIXED,
        )
    except UnicodeDecodeError as err:
        raise ModelError(f"the model is no ONNX model: a text in it is not UTF-8 ({err})") from err
    except OSError as err:
        raise ModelError(f"the model cannot be imported: {refused(err)}") from err
    except RecursionError:
        raise ModelError("the model's graphs nest too deeply") from None
    except MemoryError as err:
        raise ModelError(f"the model needs more memory than there is: {err}") from err


def _imported(
    file: Any,
    shapes: Mapping[str, int | Sequence[int]],
    islands: bool,
    states: Mapping[str, str],
) -> Model:
    """The model of a file, of one number for each size."""
    from autotune.models.onnx_known import ConstantFolder
    from autotune.models.onnx_scope import OnnxLowering, OnnxScope

    graph = file.proto.graph
    inputs = _inputs(file, shapes)
    weights = file.initializers
    folder = ConstantFolder(sum(w.nbytes for w in weights.values()))
    lowering = OnnxLowering(file.label, file.proto.functions, folder, islands)
    ports = {name: te.placeholder(*of, identifier(name)) for name, of in inputs.items()}
    known = {name: KnownTensor(w, name=identifier(name)) for name, w in weights.items()}
    scope = OnnxScope({**known, **ports}, file.opsets)
    wanted = [o.name for o in graph.output]
    if not wanted:
        raise ModelError(f"{file.label}: the graph has no outputs")
    lowering.run(graph.node, wanted, scope)
    _check_outputs(file)
    if lowering.unsupported:
        raise lowering.refusal("" if islands else ISLANDS)
    if lost := [name for name in wanted if name not in scope.values]:
        raise ModelError(f"{file.label}: output {lost[0]!r} is computed by no node")
    check_pairs(states, list(ports), wanted, file.label)
    every = [(name, scope.values[name]) for name in wanted]
    return _finish(lowering, ports, every, graph.name, states)


# --- inputs -----------------------------------------------------------------------------------


def _inputs(file: Any, shapes: Mapping[str, int | Sequence[int]]) -> dict[str, tuple[tuple[int, ...], str]]:
    """{input: (shape, dtype)}. Raises ModelError naming all dimensions that are open."""
    from autotune.models.onnx_file import dtype_of, type_name
    from autotune.models.onnx_scope import check_size

    label = file.label
    out: dict[str, tuple[tuple[int, ...], str]] = {}
    open_: list[tuple[str, str, list[int | str] | None]] = []
    used: set[str] = set()
    for port in file.proto.graph.input:
        if port.name in file.initializers:
            continue
        what = f"{label}: input {port.name!r}"
        kind = port.type.WhichOneof("value")
        if kind != "tensor_type":
            kind = (kind or "of no type").removesuffix("_type")
            raise ModelError(
                f"{what} is no tensor but {kind}; sequences and optional values are not supported"
            )
        tensor = port.type.tensor_type
        dtype = dtype_of(tensor.elem_type)
        if dtype is None:
            name = type_name(tensor.elem_type)
            raise ModelError(f"{what} has type {name}, which is not supported; use one of {instead_of(name)}")
        given = shapes.get(port.name)
        if given is not None and not isinstance(given, int):
            used.add(port.name)
            shape = _given(what, given, tensor)
        elif not tensor.HasField("shape"):
            open_.append((port.name, "its rank is not known", None))
            continue
        else:
            dims = _dims(tensor, shapes, used)
            if any(isinstance(d, str) for d in dims):
                names = ", ".join(map(str, dims))
                open_.append((port.name, f"[{names}]", dims))
                continue
            shape = tuple(int(d) for d in dims)
        if bad := [n for n in shape if n < 1]:
            raise ModelError(f"{what} has shape {list(shape)}: {bad[0]} is below 1; give shapes= that is not")
        check_size(shape, dtype, what)
        out[port.name] = (shape, dtype)
    if unknown := sorted(set(shapes) - used):
        names = ", ".join(i.name for i in file.proto.graph.input if i.name not in file.initializers)
        named = list(dict.fromkeys(d for _, _, dims in open_ for d in _names(dims)))
        raise ModelError(
            f"{label}: shapes= names {unknown[0]!r}, which is neither an input nor a named dimension that is "
            f"open; the inputs are {names}" + (f"; open dimensions are {', '.join(named)}" if named else "")
        )
    if open_:
        raise _open(label, open_)
    return out


def _check_outputs(file: Any) -> None:
    """Raise ModelError for an output of integers that are kept as others: callers would get these."""
    from autotune.models.onnx_file import type_name

    for port in file.proto.graph.output:
        name = type_name(port.type.tensor_type.elem_type)
        if name in KEPT_AS:
            raise ModelError(
                f"{file.label}: output {port.name!r} has type {name}, which is not supported; use one of "
                f"{', '.join(d for d in DTYPES if d not in KEPT_AS)}, or dequantize it"
            )


def _dims(tensor: Any, shapes: Mapping[str, int | Sequence[int]], used: set[str]) -> list[int | str]:
    """The extents of a type, and the names of those that are open. ``used`` gets the names that ``shapes``
    tells."""
    dims: list[int | str] = []
    for d in tensor.shape.dim:
        fixed = shapes.get(d.dim_param) if d.dim_param else None
        if d.WhichOneof("value") == "dim_value":
            dims.append(d.dim_value)
        elif isinstance(fixed, int):
            used.add(d.dim_param)
            dims.append(fixed)
        else:
            dims.append(d.dim_param or "?")
    return dims


def _given(what: str, given: Sequence[int], tensor: Any) -> tuple[int, ...]:
    try:
        shape = tuple(n.__index__() for n in given)
    except (TypeError, AttributeError):
        raise ModelError(f"{what}: shape {given!r} is not a sequence of integers") from None
    if tensor.HasField("shape"):
        dims = [d.dim_value if d.WhichOneof("value") == "dim_value" else None for d in tensor.shape.dim]
        if len(dims) != len(shape) or any(d is not None and d != n for d, n in zip(dims, shape)):
            stated = [d.dim_param or "?" if n is None else n for n, d in zip(dims, tensor.shape.dim)]
            raise ModelError(
                f"{what}: shape {list(shape)} does not fit that of the file, [{', '.join(map(str, stated))}]"
            )
    return shape


def _names(dims: Sequence[int | str] | None) -> list[str]:
    """The dimensions that the file names."""
    return [d for d in dims or () if isinstance(d, str) and d != "?"]


def _open(label: str, open_: Sequence[tuple[str, str, list[int | str] | None]]) -> ModelError:
    told = "; ".join(
        f"input {name!r} has shape {text}" if dims else f"input {name!r}: {text}"
        for name, text, dims in open_
    )
    name, _, dims = open_[0]
    example = tuple(d if isinstance(d, int) else 1 for d in dims or (1, 3, 224, 224))
    size = "x".join(map(str, example))
    named = next(iter(_names(dims)), None)
    ranged = f"; or a range, as shapes={{{named!r}: autotune.dim(1, 512)}}, --shape {named}=1..512"
    return ModelError(
        f"{label}: {told}; give every size: shapes={{{name!r}: {example}}}, "
        f"on the command line --shape {name}={size}{ranged if named else ''}"
    )


# --- the graph --------------------------------------------------------------------------------


def _finish(
    lowering: OnnxLowering,
    inputs: Mapping[str, te.Tensor],
    outputs: Sequence[tuple[str, Any]],
    name: str,
    states: Mapping[str, str] = NO_PAIRS,
) -> Model:
    """The model of lowered values."""
    label = lowering.label
    kept = kept_pairs(states, inputs, outputs, label)
    inputs = {n: t for n, t in inputs.items() if n not in states}
    outputs = [(n, x) for n, x in outputs if n not in states.values()]
    results: list[tuple[str, te.Tensor]] = []
    leaves: list[Leaf] = []
    for port, x in outputs:
        if isinstance(x, KnownTensor) and 0 in x.shape and x.dtype in DTYPES:
            leaves.append(Blank(x.shape, x.dtype))
            continue
        try:
            t = lowering.constant(x) if isinstance(x, KnownTensor) else x
        except ModelError as err:
            raise ModelError(f"{label}: output {port!r}: {err}") from err
        if not isinstance(t, te.Tensor):
            raise ModelError(f"{label}: output {port!r} has no value")
        leaves.append(TensorSlot(len(results)))
        results.append((port, t))
    if not results:
        what = f"output {outputs[0][0]!r} has no elements" if outputs else "all outputs are states"
        raise ModelError(f"{label}: {what}: there is nothing to compute")
    model = assemble(inputs, results, lowering.constants, lowering.origins, name, label, lowering.calls, kept)
    if len(results) == len(leaves):
        return model
    slots = tuple(map(TensorSlot, range(len(inputs))))
    return replace(model, signature=Signature(slots, tuple(inputs), {}, Held("tuple", tuple(leaves))))
