"""Reads an ONNX file: its graph without the weights, and the weights as arrays.

Nothing in a file is trusted. Data outside the file is read from the model's folder only (`_inside`). Sizes
are compared with the bytes that are there before anything is allocated. onnx's checker sees the rest.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import ModelError, one_line, refused
from autotune.models.operators.base import Array
from kernels_db.opening import open_regular
from schedules.dtypes import DTYPES

# Types whose elements share bytes: only onnx unpacks these.
_PACKED = frozenset(
    getattr(TensorProto, n)
    for n in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2")
    if hasattr(TensorProto, n)
)


@dataclass(frozen=True)
class File:
    """``proto``: the model without its initializers. ``initializers``: {name: array}, not to be written to.
    ``label``: what messages call it."""

    proto: Any
    initializers: dict[str, Array]
    label: str

    @property
    def opsets(self) -> dict[str, int]:
        """{domain: version}."""
        return {domain(o.domain): o.version for o in self.proto.opset_import}


def domain(name: str) -> str:
    """A domain by its short name."""
    return "" if name == "ai.onnx" else name


def read_file(model: Any) -> File:
    """Read a path, bytes, or a ModelProto, which is not changed. Raises ModelError."""
    label, place, proto = _parse(model)
    if not proto.HasField("graph"):
        raise ModelError(f"{label} is no ONNX model: it has no graph")
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        raise ModelError(f"{label}: initializer {name!r} is sparse, which is not supported; store it dense")
    for nodes in (proto.graph.node, *(f.node for f in proto.functions)):
        _refuse_external(nodes, label)
    skeleton = _without_weights(proto)
    weights: dict[str, Array] = {}
    for t in proto.graph.initializer:
        if t.name in weights:
            raise ModelError(f"{label}: two initializers are named {t.name!r}")
        weights[t.name] = to_array(t, f"{label}: initializer {t.name!r}", place)
    _check(skeleton, proto, label)
    return File(skeleton, weights, label)


def _parse(model: Any) -> tuple[str, Path | None, Any]:
    if isinstance(model, onnx.ModelProto):
        return f"model {model.graph.name!r}", None, model
    if isinstance(model, (bytes, bytearray, memoryview)):
        label, place, data = "model (bytes)", None, bytes(model)
    else:
        path = Path(model)
        label, place = str(path), path.absolute()
        try:
            why = "" if path.is_file() else "is no file" if path.exists() else "does not exist"
            if not why:
                with open_regular(path) as f:
                    data = f.read()
        except OSError as err:
            raise ModelError(f"{label} cannot be read: {refused(err)}") from err
        except ValueError as err:
            raise ModelError(f"{label} cannot be read: {err}") from err
        if why:
            raise ModelError(f"{label} {why}; give the path of a model's file")
    if not data:
        raise ModelError(f"{label} is empty")
    try:
        return label, place, onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError, RuntimeError) as err:
        raise ModelError(f"{label} is no ONNX model, or was cut off: {err}") from err


def _without_weights(proto: Any) -> Any:
    """A copy without initializers, whose types are inputs of the graph instead."""
    out = onnx.ModelProto()
    for f, value in proto.ListFields():
        if f.name == "graph":
            continue
        target = getattr(out, f.name)
        if hasattr(target, "MergeFrom"):  # repeated, or a message
            target.MergeFrom(value)
        else:
            setattr(out, f.name, value)
    graph = out.graph
    graph.name = proto.graph.name
    for name in ("node", "input", "output", "value_info"):
        getattr(graph, name).MergeFrom(getattr(proto.graph, name))
    return out


def _refuse_external(nodes: Any, label: str) -> None:
    """Raise ModelError for data outside the file that is not an initializer of the model's graph: evaluators
    would read it."""
    for node in nodes:
        for a in node.attribute:
            graphs = [a.g] * a.HasField("g") + list(a.graphs)
            sparse = [a.sparse_tensor] * a.HasField("sparse_tensor") + list(a.sparse_tensors)
            tensors = [a.t] * a.HasField("t") + list(a.tensors)
            tensors += [t for g in graphs for t in g.initializer]
            tensors += [
                t
                for s in (*sparse, *(s for g in graphs for s in g.sparse_initializer))
                for t in (s.values, s.indices)
            ]
            if any(t.data_location == TensorProto.EXTERNAL for t in tensors):
                name = node.name or next(filter(None, node.output), "?")
                raise ModelError(
                    f"{label}: node {name} ({node.op_type}) has data in another file; only initializers of "
                    "the model's graph may"
                )
            for g in graphs:
                _refuse_external(g.node, label)


def _check(skeleton: Any, proto: Any, label: str) -> None:
    """onnx's own checks, of all but the weights."""
    seen = onnx.ModelProto()
    seen.CopyFrom(skeleton)
    del seen.graph.value_info[:]  # shapes in it are hints, and none is used
    for port in (*seen.graph.input, *seen.graph.output):
        if port.type.HasField("tensor_type"):
            port.type.tensor_type.shape.SetInParent()  # its rank may be open
    given = {i.name for i in seen.graph.input}
    for t in proto.graph.initializer:
        if t.name not in given:
            seen.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    try:
        onnx.checker.check_model(seen)
    except Exception as err:  # onnx raises what its C++ raises
        raise ModelError(f"{label} is no valid ONNX model: {one_line(err)}") from err


def to_array(t: Any, what: str, place: Path | None) -> Array:
    """The values of a tensor of a file. ``place``: the path of the model's file, None where no other file may
    be read. Raises ModelError where they are not there, or not all of them."""
    dims = tuple(t.dims)
    if any(n < 0 for n in dims):
        raise ModelError(f"{what} has shape {list(dims)}; extents are not negative")
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(t.data_type))
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{what} has type {t.data_type}, which ONNX does not have") from None
    count = math.prod(dims)
    if t.data_location == TensorProto.EXTERNAL:
        if t.data_type in _PACKED or dtype.hasobject:
            raise ModelError(f"{what} has type {type_name(t.data_type)}, not supported outside of the file")
        return _external(t, what, place, dtype, count).reshape(dims)
    if t.HasField("raw_data") and t.data_type not in _PACKED and not dtype.hasobject:
        data = t.raw_data
        if len(data) != count * dtype.itemsize:
            raise ModelError(
                f"{what} has {len(data)} bytes, but {dtype}{list(dims)} needs {count * dtype.itemsize}; "
                "the file is damaged"
            )
        return np.frombuffer(data, dtype.newbyteorder("<") if dtype.kind in "iuf" else dtype).reshape(dims)
    try:
        return np.asarray(numpy_helper.to_array(t))
    except Exception as err:  # of a damaged tensor: anything that numpy raises
        raise ModelError(f"{what} cannot be read: {one_line(err)}") from err


def dtype_of(elem_type: int) -> str | None:
    """The dtype of tensors of that type, None where there is none."""
    try:
        name = np.dtype(helper.tensor_dtype_to_np_dtype(elem_type)).name
    except (KeyError, TypeError, ValueError):
        return None
    return name if name in DTYPES else None


def type_name(elem_type: int) -> str:
    """ONNX's name of a type of elements."""
    try:
        return TensorProto.DataType.Name(elem_type).lower()
    except ValueError:
        return str(elem_type)


def _external(t: Any, what: str, place: Path | None, dtype: np.dtype[Any], count: int) -> Array:
    """Values that lie in another file."""
    keys = {e.key: e.value for e in t.external_data}
    where = keys.get("location", "")
    if place is None:
        raise ModelError(f"{what} lies in another file, {where!r}; give the model as a path, not as bytes")
    nbytes = count * dtype.itemsize
    try:
        offset, length = int(keys.get("offset", 0)), int(keys.get("length", nbytes))
    except ValueError:
        raise ModelError(f"{what}: offset or length of its data is no number") from None
    if offset < 0 or length != nbytes:
        raise ModelError(f"{what}: {length} bytes from {offset} on are not {dtype}{list(t.dims)}")
    path = _inside(where, what, place)
    try:
        with open_regular(path, follow=False) as file:  # all links are followed already
            size = os.fstat(file.fileno()).st_size
            if offset + nbytes > size:
                raise ModelError(
                    f"{what}: {where!r} has {size} bytes, but {nbytes} from {offset} on are "
                    "needed: it is cut off, or not that of this model"
                )
            return np.fromfile(file, dtype, count, offset=offset)
    except OSError as err:
        raise ModelError(f"{what}: its data {where!r} cannot be read: {refused(err)}") from err


def _inside(where: str, what: str, place: Path) -> Path:
    """The path of a model's data, after all links. Raises ModelError unless it lies in the folder that the
    model's path names, or in that where the model lies after all links, or below one. So the links of a hub's
    cache are followed, a model's and its data's, and no others lead out."""
    if not where or "\0" in where:
        raise ModelError(f"{what} lies in another file, whose name is {where!r}")
    named = place.parent
    outside = ModelError(
        f"{what}: its data {where!r} lies outside the model's folder; only files in {named} are read"
    )
    if os.path.isabs(where) or ".." in where.replace("\\", "/").split("/"):
        raise outside
    try:
        folders = (named.resolve(), place.resolve().parent)
        for folder in folders:
            path = (folder / where).resolve()
            if not any(path.is_relative_to(f) for f in folders):
                raise outside
            if path.exists():
                return path
    except (OSError, RuntimeError, ValueError) as err:  # RuntimeError: links in a circle
        raise ModelError(f"{what}: its data {where!r} cannot be found: {err}") from err
    raise ModelError(f"{what}: its data {where!r} is missing in {named}; copy it beside the model")
