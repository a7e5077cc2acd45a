"""Lowers the nodes of a program in ATen, one after the other.

A node stands for a stage, or for a tensor that is known: a weight, or what is computed of numbers alone,
which torch itself computes here. Any other node is stated by its row of the table. Those that have none are
remembered, so that all of them can be told at once.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.errors import ModelError, one_line
from autotune.models.frame import Frame, Gap
from autotune.models.model import identifier
from autotune.models.operators import aten, complex_op
from autotune.models.operators.axes import reshape
from autotune.models.operators.base import UnsupportedForm
from autotune.models.operators.complex import PARTS, Complex, is_complex
from autotune.models.operators.known import KnownTensor, Value
from autotune.models.operators.node import TorchNode
from autotune.models.torch_sizes import flat
from schedules import te
from schedules.dtypes import DTYPES
from schedules.te.scalars import instead_of

# Makes a number of a tensor of one element. The tensor stands for it.
ITEM = "aten._local_scalar_dense.default"
# Most bytes of one tensor that is computed of nothing but numbers.
MAX_BYTES = 2**30


Scoped = Value | Complex | Gap | Sequence[Value | Complex | Gap]


def dtype_name(val: Any) -> str:
    return str(val.dtype).removeprefix("torch.")


def supported_dtype(val: Any, what: str) -> str:
    """Of a tensor of torch. Raises ModelError for what is not supported."""
    dtype = dtype_name(val)
    if dtype not in DTYPES:
        raise ModelError(
            f"{what} is {dtype}, which is not supported: convert it to one of {instead_of(dtype)}"
        )
    return dtype


def shape_and_dtype(val: Any, what: str) -> tuple[tuple[int, ...], str]:
    """Of a tensor of torch. Raises ModelError for what is not supported."""
    dtype = supported_dtype(val, what)
    shape = tuple(int(n) for n in val.shape)
    if 0 in shape:
        raise ModelError(f"{what} of shape {list(shape)} has no elements")
    if val.device.type not in ("cpu", "meta"):
        raise ModelError(f"{what} is on {val.device}: whole models run on CPUs; give module.cpu()")
    return shape, dtype


@dataclass
class TorchLowering(Frame):
    """State of one import. ``values``: what nodes stand for."""

    values: dict[Any, Scoped] = field(default_factory=dict)

    def know(self, node: Any, tensor: Any, name: str, weight: bool) -> None:
        """Let a node stand for a tensor of torch, called ``name``, of any dtype until it is read."""
        self.values[node] = KnownTensor(tensor, weight, identifier(name))

    def check_constant(self, known: KnownTensor, name: str) -> None:
        """Raise ModelError for a tensor that no input of a graph is."""
        if not isinstance(known.value, np.ndarray):
            shape_and_dtype(known.value, f"constant {name}")

    def result(self, node: Any) -> te.Tensor:
        """What a node that the program returns stands for."""
        x = self.values[node]
        if isinstance(x, Complex):
            raise ModelError(
                f"{self.label}: output {node.name} is complex, which is not supported: return "
                "torch.view_as_real of it"
            )
        if isinstance(x, KnownTensor):
            return self.constant(x)
        assert isinstance(x, te.Tensor)
        return x

    # --- nodes --------------------------------------------------------------------------------

    def run(self, graph: Any, returned: Any) -> None:
        """Lower what the returned nodes need."""
        needed = _needed(graph, returned)
        for node in graph.nodes:
            if node.op == "call_function" and node in needed:
                self.values[node] = self._lowered(node, needed)
            elif node.op == "get_attr" and node in needed:
                self.values[node] = Gap("it is a graph of its own")
            elif node.op not in ("placeholder", "output") and node in needed:
                raise ModelError(
                    f"{self.label}: node {node.name} is a {node.op}, which no exported program has"
                )

    def _lowered(self, node: Any, needed: set[Any]) -> Scoped:
        if node.target is operator.getitem:
            return self._item(node)
        op = str(node.target)
        made: Scoped = self.lowered(op, path_of(node), lambda: self._outputs(node, op, needed))
        return made

    def _item(self, node: Any) -> Scoped:
        of, index = node.args
        every = self.values[of]
        if isinstance(every, Gap):
            return every
        assert isinstance(every, (list, tuple))
        found = every[index]
        if isinstance(found, Gap):
            return self.gap(str(of.target), path_of(of), found.why)
        return found

    def _outputs(self, node: Any, op: str, needed: set[Any]) -> Scoped:
        args, kwargs = self._arguments(node.args), {k: self._argument(v) for k, v in node.kwargs.items()}
        row = self._row(node, op, args, kwargs)
        if any(isinstance(x, Gap) for x in flat((args, list(kwargs.values())))):
            if row is None:
                raise UnsupportedForm(_why_not(node, op))
            return Gap("what it reads is not supported")
        known = self._known(node, op, args, kwargs)
        if known is not None:
            return known
        if op == ITEM:
            return reshape(args[0] if isinstance(args[0], te.Tensor) else self.constant(args[0]), ())
        if row is None:
            why = "complex numbers are not supported by it" if op in aten else _why_not(node, op)
            raise UnsupportedForm(why)
        if op.startswith("aten.as_strided"):
            args = _from_its_start(args, node.args[0])
        vals = node.meta["val"]
        many = isinstance(vals, (list, tuple))
        first = vals[0] if many else vals
        if any(not isinstance(n, int) for n in first.shape):
            raise UnsupportedForm("the shape of its output depends on data")
        if all(0 in v.shape for v in flat(vals)):
            made = [self._called(nothing(v), node) for v in flat(vals)]
            return made if many else made[0]
        shape = tuple(int(n) for n in first.shape)
        dtype = PARTS.get(dtype_name(first), dtype_name(first))
        if not _is_complex(first) and 0 not in shape:  # of several outputs some may be empty
            shape_and_dtype(first, "its output")
        used = (
            {u.args[1] for u in node.users if u in needed and u.target is operator.getitem} if many else {0}
        )
        called = TorchNode(op, frozenset(used), self.constant, shape, dtype, self._common(node))
        made = row.outputs(called, args, kwargs)
        outputs = made if isinstance(made, (list, tuple)) else (made,)
        self._check(outputs, vals if many else [vals])
        if not many:
            return outputs[0]
        return [Gap(f"its output {i} has no expression") if x is None else x for i, x in enumerate(outputs)]

    def _row(self, node: Any, op: str, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        """What states an operator: of complex numbers another function."""
        vals = flat(node.meta.get("val"))
        given = flat((args, list(kwargs.values())))
        if any(is_complex(x) for x in given) or any(_is_complex(v) for v in vals):
            return complex_op.row(op)
        return aten.row(op)

    def _check(self, outputs: Sequence[Value | Complex | None], vals: Sequence[Any]) -> None:
        """Raise ModelError where a row and torch disagree on what is made."""
        for x, val in zip(outputs, vals, strict=False):
            if isinstance(x, Complex):
                if (x.shape, x.parts.dtype) != (tuple(val.shape), PARTS.get(dtype_name(val))):
                    raise ModelError(f"{x.parts!r} was stated for {dtype_name(val)}{list(val.shape)}")
            elif isinstance(x, te.Tensor) and (x.shape, x.dtype) != (tuple(val.shape), dtype_name(val)):
                raise ModelError(
                    f"{x.dtype}{list(x.shape)} was stated for {dtype_name(val)}{list(val.shape)}"
                )

    # --- what is known ------------------------------------------------------------------------

    def _known(self, node: Any, op: str, args: list[Any], kwargs: Mapping[str, Any]) -> Scoped | None:
        """What torch computes of a node without tensors that are not known. None for other nodes, and for
        those of weights that have a row: rewrites of the graph compute them, and again of other weights."""
        import torch

        kinds = (te.Tensor, Complex, KnownTensor)
        tensors = [x for x in flat((args, list(kwargs.values()))) if isinstance(x, kinds)]
        if not all(isinstance(x, KnownTensor) for x in tensors) or not hasattr(node.target, "tags"):
            return None
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            return None
        weight = any(x.weight for x in tensors if isinstance(x, KnownTensor))
        in_memory = op.startswith("aten.as_strided")
        if weight and op in aten and not in_memory:
            return None
        _afford(node)
        plain = _plain(args)
        if in_memory:
            plain[0] = _as_in_memory(plain[0], node.args[0].meta["val"])
        try:
            with torch.no_grad():
                made = node.target(*plain, **{k: _plain(v) for k, v in kwargs.items()})
        except RuntimeError as err:
            raise ModelError(f"torch cannot compute it: {one_line(err)}") from err
        if isinstance(made, torch.Tensor):
            return self._called(KnownTensor(made, weight), node)
        if isinstance(made, (list, tuple)):
            return [self._called(KnownTensor(x, weight), node) for x in made]
        if op == ITEM and not weight:
            return made
        raise UnsupportedForm("it makes no tensor")

    def _called(self, known: KnownTensor, node: Any) -> KnownTensor:
        return replace(known, name=identifier(node.name))

    def _arguments(self, args: Sequence[Any]) -> list[Any]:
        return [self._argument(x) for x in args]

    def _argument(self, x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return self._arguments(x)
        return self.values[x] if hasattr(x, "meta") and x in self.values else x

    def _common(self, node: Any) -> str:
        """The dtype that tensors and numbers of a call promote to; empty where they do not."""
        import torch

        numbers = {torch.SymBool: True, torch.SymInt: 1, torch.SymFloat: 1.0}
        vals = [a.meta["val"] if hasattr(a, "meta") else a for a in node.args]
        vals = [numbers.get(type(v), v) for v in vals]
        vals = [v for v in vals if isinstance(v, (torch.Tensor, bool, int, float))]
        while len(vals) > 1 and isinstance(vals[0], torch.Tensor):
            try:
                found = torch.result_type(vals[0], vals[1])
            except RuntimeError:  # floats of 8 bits beside others
                return ""
            vals = [torch.empty(tuple(vals[0].shape), dtype=found, device="meta"), *vals[2:]]
        return dtype_name(vals[0]) if vals and isinstance(vals[0], torch.Tensor) else ""


# --- helpers ----------------------------------------------------------------------------------


def nothing(val: Any) -> KnownTensor:
    """A tensor without elements, of which all is known."""
    import torch

    return KnownTensor(torch.empty(tuple(val.shape), dtype=val.dtype), False)


def _as_in_memory(x: Any, val: Any) -> Any:
    """A known tensor with the strides that it has in the program. Raises UnsupportedForm for a part of a
    larger one, whose other elements are not known here."""
    import torch

    if val.untyped_storage().nbytes() != val.numel() * val.dtype.itemsize or val.storage_offset():
        raise UnsupportedForm("it reads the memory around a part of a tensor")
    return torch.empty_strided(val.shape, val.stride(), dtype=x.dtype).copy_(x)


def _from_its_start(args: list[Any], of: Any) -> list[Any]:
    """The arguments of as_strided, with an offset from the first element of the tensor. Raises
    UnsupportedForm where that is not known, or the tensor is not row-major."""
    val, (x, size, strides, *rest) = of.meta["val"], args
    if not val.is_contiguous():
        raise UnsupportedForm("it reads the memory of a tensor that is not row-major")
    if not rest or rest[0] is None:
        return [x, size, strides, 0]
    if of.op == "placeholder":
        raise UnsupportedForm(
            "what it reads depends on where its input begins in memory: leave out the offset"
        )
    return [x, size, strides, rest[0] - val.storage_offset()]


def _is_complex(val: Any) -> bool:
    return hasattr(val, "dtype") and val.dtype.is_complex


def path_of(node: Any) -> str:
    """The module in which a node stands, and its name."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    inner = re.sub(r"^L\['\w+'\]\.?", "", str(stack[-1][0])) if stack else ""  # as torch.compile names it
    return f"{inner}/{node.name}" if inner else str(node.name)


def _needed(graph: Any, returned: Any) -> set[Any]:
    """The nodes that are needed for what is returned."""
    stack = [x for x in flat(returned) if hasattr(x, "all_input_nodes")]
    seen = set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += node.all_input_nodes
    return seen


def _plain(x: Any) -> Any:
    """KnownTensor tensors as torch's."""
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
    if isinstance(x, KnownTensor) and isinstance(x.value, np.ndarray):
        import torch

        return torch.from_numpy(x.value)
    return x.value if isinstance(x, KnownTensor) else x


def _why_not(node: Any, op: str) -> str:
    """Why an operator without a row has none."""
    import torch

    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return "it makes random numbers; dropout makes none after module.eval()"
    if not hasattr(node.target, "overloadpacket"):
        return (
            "control flow is not supported" if "cond" in op or "loop" in op else "it is no operator of ATen"
        )
    return "no expression for it"


def _afford(node: Any) -> None:
    """Raise ModelError for an output that is known but too large to keep."""
    for val in flat(node.meta.get("val")):
        if hasattr(val, "shape") and all(isinstance(n, int) for n in val.shape):
            nbytes = int(np.prod(val.shape, dtype=np.int64)) * val.dtype.itemsize
            if nbytes > MAX_BYTES and not node.all_input_nodes:
                raise ModelError(
                    f"its output of shape {list(val.shape)} is known at import but too large to keep: "
                    f"at most {MAX_BYTES >> 20} MB are"
                )
