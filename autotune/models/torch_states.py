"""What a program of torch writes to: its buffers and inputs as states of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.errors import ModelError
from autotune.models.assembling import Kept
from autotune.models.model import identifier
from autotune.models.operators.base import Array
from autotune.models.operators.known import KnownTensor
from schedules import te

if TYPE_CHECKING:
    from autotune.models.torch_scope import TorchLowering

# Where torch cannot decompose a program that writes to buffers.
STRICT = "export it with torch.export.export(module, inputs, strict=True)"


@dataclass(frozen=True)
class OldState:
    """A state before a call. ``node``: of the program. ``initial``: None for zeros."""

    node: Any
    tensor: te.Tensor
    initial: Array | None


def is_written(program: Any) -> bool:
    """Whether a program writes to a buffer or to an input, also where torch has not decomposed it."""
    sig = program.graph_signature
    return bool(sig.buffers_to_mutate or sig.user_inputs_to_mutate) or any(
        getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in program.graph.nodes
    )


def old_states(program: Any, lowering: TorchLowering) -> dict[str, OldState]:
    """{buffer or input that a program writes to: what it is before a call}, which ``lowering`` learns. Raises
    ModelError for what is no array of a dtype that is supported."""
    from autotune.models.torch_scope import shape_and_dtype

    sig = program.graph_signature
    nodes = {n.name: n for n in program.graph.nodes}
    buffers, inputs = {*sig.buffers_to_mutate.values()}, {*sig.user_inputs_to_mutate.values()}
    found: dict[str, OldState] = {}
    for spec in sig.input_specs:
        called = str(getattr(spec.arg, "name", ""))
        name = called if called in inputs and spec.kind.name == "USER_INPUT" else spec.target
        if name not in buffers | inputs or called not in nodes:
            continue
        node = nodes[called]
        shape, dtype = shape_and_dtype(node.meta["val"], f"{lowering.label}: state {name!r}")
        t = te.placeholder(shape, dtype, identifier(name))
        lowering.values[node] = t
        initial = None
        if name in buffers:
            held = program.state_dict if name in program.state_dict else program.constants
            initial = KnownTensor(held[name], False, name).array()
            initial = initial.copy() if initial.any() else None
        found[name] = OldState(node, t, initial)
    return found


def kept_states(
    program: Any, every: Sequence[Any], olds: Mapping[str, OldState], lowering: TorchLowering
) -> dict[str, Kept]:
    """What the model keeps. ``every``: what the program returns, new values first."""
    specs = program.graph_signature.output_specs
    news = {s.target: x for s, x in zip(specs, every, strict=True) if s.kind.name != "USER_OUTPUT"}
    found = {}
    for name, old in olds.items():
        new = lowering.result(news[name])
        if (new.shape, new.dtype) != (old.tensor.shape, old.tensor.dtype):
            raise ModelError(f"{lowering.label}: state {name!r} becomes a tensor of another shape or dtype")
        found[name] = Kept(old.tensor, new, old.initial)
    return found
