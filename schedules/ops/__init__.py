"""The operator library. A new operator is one file here and one line in `OPERATORS`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from schedules import te
from schedules.errors import WorkloadError, instead, suggest
from schedules.model import Workload
from schedules.ops.argmax import ARGMAX, ARGMIN
from schedules.ops.attention import ATTENTION, TRANSPOSE_BATCH_MATMUL_SOFTMAX
from schedules.ops.base import MAX_ELEMENTS, TYPED, Array, Operator, Param, Types, compulsory_bytes
from schedules.ops.conv import (
    CAPSULE_CONV2D,
    CONV1D,
    CONV2D,
    CONV2D_BIAS_RELU,
    CONV2D_BN_RELU,
    CONV3D,
    DEPTHWISE_CONV2D,
)
from schedules.ops.conv_transpose import CONV2D_TRANSPOSE
from schedules.ops.elementwise import ADD, FUSED_MULTIPLY_ADD, PERMUTE
from schedules.ops.matmul import BATCH_MATMUL, MATMUL, MATMUL_BIAS_GELU, MATMUL_BIAS_RELU
from schedules.ops.normalize import LAYER_NORM, RMS_NORM, SOFTMAX
from schedules.ops.pool import AVG_POOL2D, MAX_POOL2D
from schedules.ops.quantized import QUANTIZED_CONV2D, QUANTIZED_MATMUL
from schedules.ops.reduce import NORM2, REDUCE_SUM
from schedules.ops.weight_only import WEIGHT_ONLY_MATMUL
from schedules.te.dims import Dim, dim
from schedules.te.scalars import check_dtype
from schedules.te.strided import strides_given, with_strides

__all__ = [
    "OPERATORS", "REGISTRY", "Operator", "Param", "compulsory_bytes", "describe", "get", "makes",
    "parse_shape", "reference", "workload",
]  # fmt: skip

# The operators of the library, in the order of lists.
OPERATORS: tuple[Operator, ...] = (
    MATMUL,
    BATCH_MATMUL,
    MATMUL_BIAS_RELU,
    MATMUL_BIAS_GELU,
    CONV1D,
    CONV2D,
    CONV3D,
    CONV2D_BIAS_RELU,
    CONV2D_BN_RELU,
    CONV2D_TRANSPOSE,
    DEPTHWISE_CONV2D,
    CAPSULE_CONV2D,
    QUANTIZED_MATMUL,
    QUANTIZED_CONV2D,
    WEIGHT_ONLY_MATMUL,
    MAX_POOL2D,
    AVG_POOL2D,
    SOFTMAX,
    LAYER_NORM,
    RMS_NORM,
    ATTENTION,
    TRANSPOSE_BATCH_MATMUL_SOFTMAX,
    NORM2,
    REDUCE_SUM,
    ARGMAX,
    ARGMIN,
    PERMUTE,
    ADD,
    FUSED_MULTIPLY_ADD,
)
# {name: operator}.
REGISTRY: Mapping[str, Operator] = MappingProxyType({op.name: op for op in OPERATORS})
# Parameters that are words.
WORDS = frozenset(TYPED).union(p.name for op in OPERATORS for p in op.params if p.kind == "word")


def get(name: str) -> Operator:
    """The operator of this name. Raises `WorkloadError`, with the closest name, if there is none."""
    if not isinstance(name, str) or name not in REGISTRY:
        raise WorkloadError(
            f"unknown operator {name!r}{instead(name, REGISTRY, 'operators are')}"
        )
    return REGISTRY[name]


def workload(
    name: str, params: Mapping[str, Any], dtype: str | None = None, layout: str | None = None
) -> Workload:
    """The workload of a library operator. ``params`` of the result hold every parameter, and the layout if
    the operator has layouts. ``dtype``: by default float32, or the first that the operator has. Operators
    that add up take ``accumulator`` and ``out_dtype`` with the parameters: the dtypes that sums are made in
    and stored as. Raises `WorkloadError` for unknown or unsuitable arguments."""
    op = get(name)
    usual = "float32" if "float32" in op.dtypes else op.dtypes[0]
    dtype = usual if dtype is None else check_dtype(dtype, name)
    if dtype not in op.dtypes:
        raise WorkloadError(f"{name}: dtype {dtype} is not supported; choose one of {', '.join(op.dtypes)}")
    layout = _layout(op, layout)
    chosen = {k: params[k] for k in TYPED if k in params}
    types = op.types(dtype, chosen)
    opened = {k: v for k, v in params.items() if isinstance(v, Dim) and v.open is not False}
    given = {k: v for k, v in params.items() if k not in chosen}
    p = op.resolve(given | {k: v.hi for k, v in opened.items()})
    dag = te.dag(_built(op, p, types, layout, opened))
    for t in dag.tensors.values():
        if math.prod(t.shape) > MAX_ELEMENTS:
            raise WorkloadError(
                f"{name}: tensor {t.name}{list(t.shape)} has {math.prod(t.shape)} elements, "
                f"more than the limit of {MAX_ELEMENTS}; use smaller sizes"
            )
    plain = op.types(dtype)
    told = {"accumulator": types.accumulator, "out_dtype": types.output}
    other = {k: v for k, v in told.items() if v != getattr(plain, "output" if k == "out_dtype" else k)}
    full = op.named(p) | other | ({"layout": layout} if layout else {})
    full |= {k: f"{d.lo}..{d.hi},open" for k, d in opened.items()}
    return Workload(dag, name, tuple(sorted(full.items())), op.flops(p))


def _built(
    op: Operator, p: Mapping[str, Any], types: Types, layout: str | None, opened: Mapping[str, Dim]
) -> list[te.Tensor]:
    """The tensors of an operator, with dimensions for sizes that are open. Raises `WorkloadError` for one of
    which the expression needs the number."""
    for k in opened:
        if k not in p:
            raise WorkloadError(f"{op.name}: {k} stands for several sizes; open each by its own name")
    try:
        return op.build({**p, **{k: Dim(k, d.lo, d.hi, open=True) for k, d in opened.items()}}, types, layout)
    except TypeError as err:
        if not opened:
            raise
        raise WorkloadError(
            f"{op.name}: its expression needs numbers for {', '.join(opened)} ({err}); give open=False "
            "for a kernel of each size"
        ) from None


def _layout(op: Operator, layout: str | None) -> str | None:
    if layout is None:
        return op.layouts[0] if op.layouts else None
    if not op.layouts:
        raise WorkloadError(f"{op.name} has no layouts; leave layout out")
    if layout not in op.layouts:
        close = suggest(layout, op.layouts)
        raise WorkloadError(f"{op.name}: layout {layout!r} is not one of {', '.join(op.layouts)}{close}")
    return layout


def _given(w: Workload) -> dict[str, Any]:
    """The parameters of a workload as `workload` takes them: a log has lists and texts of them."""

    def one(name: str, v: Any) -> Any:
        opened = isinstance(v, str) and name not in (*TYPED, "layout")
        return _parse_value(name, v) if opened else tuple(v) if isinstance(v, list) else v

    return {k: one(k, v) for k, v in w.params}


def makes(w: Workload) -> bool:
    """Whether a workload computes what its operator's name and parameters say. A log from elsewhere may claim
    any name.
    """
    try:
        given = _given(w)
        layout = given.pop("layout", None)
        made = workload(w.op, given, w.dag.inputs[0].dtype, layout)
        dag = with_strides(made.dag, strides_given(w.dag))
    except (WorkloadError, ValueError, TypeError, LookupError, OverflowError):
        return False
    same = Workload(replace(dag, constants=w.dag.constants)).digest == w.digest
    return same and made.flops == w.flops


def parameters(workload: Workload) -> dict[str, Any]:
    """Every parameter of a library operator's workload, also those that it does not name as they have their
    defaults, and its layout; the largest sizes, where some are open. Raises `WorkloadError`."""
    op = get(workload.op)
    given = {k: v.hi if isinstance(v, Dim) else v for k, v in _given(workload).items()}
    more = {k: given.pop(k) for k in (*TYPED, "layout") if k in given}
    return op.resolve(given) | more


def reference(workload: Workload, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a library operator's workload, by its numpy reference."""
    op = get(workload.op)
    p = parameters(workload)
    layout = p.pop("layout", None)
    return op.reference(p, op.types(workload.dag.inputs[0].dtype, p), layout, inputs)


# What is told of a parameter.
_TOLD_OF_PARAMS = (
    "name", "doc", "kind", "form", "axes", "required", "instead", "default", "minimum", "maximum", "options",
)  # fmt: skip


def describe() -> list[dict[str, Any]]:
    """The library as JSON data: name, doc, parameters, layouts, dtypes of every operator."""
    return [
        {
            "name": op.name,
            "doc": op.doc,
            "usage": op.usage(),
            "example": op.example(),
            "params": [{name: getattr(p, name) for name in _TOLD_OF_PARAMS} for p in op.params],
            "shorthands": {short: list(names) for short, names in op.shorthands},
            "layouts": list(op.layouts),
            "dtypes": list(op.dtypes),
            "typed": list(TYPED) if op.retyped else [],
            "weights": list(op.weights),
        }
        for op in OPERATORS
    ]


# One ``name=value`` of a shape, and values that are no list.
_ITEM = re.compile(
    r"\s*([A-Za-z_]\w*)\s*=\s*(\([^()]*\)|\[[^\[\]]*\]|[0-9]+\.\.[0-9]+\s*,\s*(?:open|fixed)\b|[^,()\[\]]*?)\s*(?:,|$)"
)
_INT = re.compile(r"[+-]?[0-9]{1,30}")
_FLOAT = re.compile(r"(?=.*[.eE])[+-]?(?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")
_RANGE = re.compile(r"([0-9]{1,30})\.\.([0-9]{1,30})(?:\s*,\s*(open|fixed))?")
_FLAGS = {"true": True, "false": False}
# What may stand behind a range: whether one kernel is for all of its sizes.
_OPEN = {"open": True, "fixed": False, None: None}


def parse_shape(text: str) -> dict[str, Any]:
    """Parameters from text such as ``m=512,n=512,k=512``; several numbers are ``2x3x4`` or ``(2,3,4)``, flags
    0 or 1 or ``true`` or ``false``, a size that varies ``1..512``. ``1..512,open`` is one kernel for all
    sizes, ``1..512,fixed`` one for each; without either the program decides (`autotune.dim`).

    Raises `WorkloadError` on anything else. Names, kinds and ranges are the operator's to check, and what is
    missing, so that its error tells the names: empty text gives no parameters.
    """
    out: dict[str, Any] = {}
    at = 0
    while at < len(text.rstrip()):
        m = _ITEM.match(text, at)
        if m is None:
            told = "write name=integer with commas between them, such as m=512,n=512"
            if isinstance(next(reversed(out.values()), None), Dim) and "=" not in text[at:].partition(",")[0]:
                told = "behind a range stands open, fixed or nothing, such as m=1..512,open"
            raise WorkloadError(f"shape {text!r}: cannot read {text[at:]!r}; {told}")
        name, value = m.groups()
        if name in out:
            raise WorkloadError(f"shape {text!r}: {name} is given twice")
        out[name] = _parse_value(name, value)
        at = m.end()
    return out


def _parse_value(name: str, value: str) -> Dim | int | float | str | tuple[int, ...]:
    if name in WORDS:
        return value
    if bounds := _RANGE.fullmatch(value):
        if not 1 <= int(bounds[1]) <= int(bounds[2]):
            raise WorkloadError(
                f"{name}={value}: a range begins at 1 or above and does not end below that, such as 1..512"
            )
        return dim(int(bounds[1]), int(bounds[2]), name, open=_OPEN[bounds[3]])
    if value.lower() in _FLAGS:
        return _FLAGS[value.lower()]
    if _INT.fullmatch(value):
        return int(value)
    if _FLOAT.fullmatch(value):
        return float(value)
    inside = value[1:-1].rstrip(", ") if value[:1] in ("(", "[") else None
    parts = value.split("x") if inside is None else [x.strip() for x in inside.split(",")]
    if not all(_INT.fullmatch(x) for x in parts):
        raise WorkloadError(
            f"{name}={value} is not a number, nor a list of integers such as 2x3x4, nor a range, as 1..512"
        )
    return tuple(map(int, parts))
