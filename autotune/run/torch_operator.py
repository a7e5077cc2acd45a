"""Kernels as operators of torch: what torch's dispatcher, its autograd and torch.compile know of them.

An operator is defined by `torch.library.Library` rather than `torch.library.custom_op`, whose calls take ten
microseconds more (ADR 48). Only functions here import torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import index
from threading import RLock
from typing import Any, TypeVar

from autotune.codegen.runtime.entry import layout_of
from autotune.errors import ArgumentError
from autotune.run.host_arrays import lies_otherwise
from autotune.run.torch_calls import refuse_gradient
from schedules.dtypes import DTYPES
from schedules.ir import Buffer

NAMESPACE = "autotune"
Call = TypeVar("Call", bound=Callable[..., Any])


@dataclass(frozen=True)
class Gradients:
    """``of(needed, known)``: a gradient or None for each input. ``needed`` says of which inputs one is.
    ``known``: the gradients of the floating-point outputs, the inputs, and the outputs where ``outputs``."""

    of: Callable[[Sequence[bool], Sequence[Any]], Any]
    outputs: bool = False


_names: set[str] = set()
_plain: dict[int, tuple[Any, str]] = {}  # (kernel, name) without a gradient, by the kernel's identity
_lock = RLock()


def define(kernel: Any, gradients: Gradients | None, name: str | None) -> str:
    """Define an operator that calls a kernel. Returns its name in ``torch.ops.autotune``. Raises
    ArgumentError for a name that cannot be had."""
    import torch

    ins, outs = kernel.parameters
    with _lock:
        name = _new_name(kernel, name)
        takes = ", ".join(f"Tensor {_identifier(b.name, i)}" for i, b in enumerate(ins))
        gives = "Tensor" if len(outs) == 1 else f"({', '.join('Tensor' for _ in outs)})"
        # A kernel reads its inputs in the order of memory that they were traced with.
        strict = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
        library = _library()
        library.define(f"{name}({takes}) -> {gives}", tags=(torch.Tag.pt2_compliant_tag, strict))
        library.impl(name, lambda *inputs: kernel(*inputs), "CompositeExplicitAutograd")
        full = f"{NAMESPACE}::{name}"
        torch.library.register_fake(full, _fake(ins, outs, gradients is not None), lib=library)
        if gradients is not None:
            backward, keep = _autograd(kernel, gradients)
            torch.library.register_autograd(full, backward, setup_context=keep, lib=library)
        return name


def overload(name: str) -> Any:
    """The operator of that name, as it is called."""
    import torch

    return getattr(getattr(torch.ops, NAMESPACE), name).default


def plain_name(kernel: Any) -> str:
    """The name of the operator of a kernel without a gradient, which is defined once."""
    with _lock:
        if id(kernel) not in _plain:
            _plain[id(kernel)] = (kernel, define(kernel, None, None))
        return _plain[id(kernel)][1]


def plain_name_of_size(kernel: Any, shapes: tuple[tuple[int, ...], ...]) -> str:
    """`plain_name` of the kernel for inputs of these shapes."""
    return plain_name(kernel.of_shapes(shapes))


def numbers_of(kernel: Any) -> tuple[tuple[int, str], ...]:
    """(place, dtype) of the inputs without dimensions, of which calls may give numbers."""
    return tuple((i, b.dtype) for i, b in enumerate(kernel.parameters[0]) if not b.shape)


# torch.compile takes what these return for constants of the traced program.
plain_name._dynamo_marked_constant = True  # type: ignore[attr-defined]
plain_name_of_size._dynamo_marked_constant = True  # type: ignore[attr-defined]
numbers_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def traced(kernel: Any, /, *inputs: Any, out: Any = None, **named: Any) -> Any:
    """What torch.compile traces in the place of ``Kernel.__call__``: the call of an operator."""
    if named:
        inputs = kernel.placed(inputs, named)
    import torch

    for i, dtype in numbers_of(kernel):  # operators take tensors alone
        if i < len(inputs) and isinstance(inputs[i], (bool, int, float)):
            one = torch.full((), inputs[i], dtype=getattr(torch, dtype))
            inputs = (*inputs[:i], one, *inputs[i + 1 :])
    return _called(plain_name(kernel), inputs, out)


def traced_of_size(kernel: Any, /, *inputs: Any, out: Any = None, **named: Any) -> Any:
    """`traced` for a kernel whose sizes vary. Each size is traced for itself."""
    if named:
        inputs = kernel.placed(inputs, named)
    # torch.compile takes an index for a number, and an int for a size that may vary.
    shapes = tuple([tuple([index(n) for n in x.shape]) for x in inputs])
    return _called(plain_name_of_size(kernel, shapes), inputs, out)


def _called(name: str, inputs: Sequence[Any], out: Any) -> Any:
    import torch

    made = getattr(torch.ops.autotune, name).default(*inputs)
    if out is None:
        return made
    for to, x in zip(out, made) if isinstance(out, (tuple, list)) else [(out, made)]:
        to.copy_(x)
    return out


def traced_on_device(
    kernel: Any, /, *inputs: Any, out: Any = None, stream: Any = None, **named: Any
) -> Any:
    """`traced` for a kernel that takes a stream."""
    if stream is not None:
        raise ArgumentError("torch.compile chooses the stream: call the kernel without stream= inside of it")
    return traced(kernel, *inputs, out=out, **named)


def traced_as(instead: Callable[..., Any]) -> Callable[[Call], Call]:
    """Have torch.compile trace another function, with the same defaults, in the place of the one decorated.
    (The public decorators that set this attribute need torch.)"""

    def mark(call: Call) -> Call:
        call._torchdynamo_inline = instead  # type: ignore[attr-defined]
        return call

    return mark


@cache
def _library() -> Any:
    import torch

    make: Any = torch.library.Library  # which has no types
    return make(NAMESPACE, "FRAGMENT")


def _new_name(kernel: Any, name: str | None) -> str:
    if name is not None:
        if not name.isidentifier() or name in _names:
            why = "there is one already" if name in _names else "it is no identifier"
            raise ArgumentError(f"no operator can be named {name!r}, as {why}: give another name, or none")
    else:
        stem = f"{_identifier(kernel.workload.op, 0)}_{kernel.workload.digest[:12]}"
        name, i = stem, 1
        while name in _names:
            i += 1
            name = f"{stem}_{i}"
    _names.add(name)
    return name


def _identifier(name: str, i: int) -> str:
    name = re.sub(r"\W", "_", name, flags=re.ASCII)
    return name if name.isidentifier() and name != "self" else f"x{i}_{name}"


def _fake(ins: Sequence[Buffer], outs: Sequence[Buffer], differentiable: bool) -> Callable[..., Any]:
    """What the operator does to tensors without memory: it checks inputs, and makes outputs like a call's."""
    import torch

    wanted = [(b.name, layout_of(b), getattr(torch, b.dtype)) for b in ins]
    made = [(layout_of(b), getattr(torch, b.dtype)) for b in outs]

    def fake(*inputs: Any) -> Any:
        for x, (name, lies, dtype) in zip(inputs, wanted, strict=True):
            if x.dtype != dtype or tuple(x.shape) != lies.shape:
                raise ArgumentError(
                    f"input {name!r} is {x.dtype} of shape {tuple(x.shape)}, but the kernel is compiled for "
                    f"{dtype} of shape {lies.shape}: give that, or tune another kernel"
                )
            if not lies.lies_as(x.stride()):
                raise lies_otherwise(f"input {name!r}", name, x.stride(), lies, True, "its .contiguous()")
            if x.requires_grad and not differentiable and torch.is_grad_enabled():
                raise refuse_gradient(f"input {name!r}")
        device = inputs[0].device if inputs else "cpu"
        results = tuple(
            torch.empty_strided(lies.shape, lies.steps, dtype=dtype, device=device) for lies, dtype in made
        )
        return results if len(results) > 1 else results[0]

    return fake


def _autograd(kernel: Any, gradients: Gradients) -> tuple[Callable[..., Any], Callable[..., None]]:
    """(backward, setup_context) as `torch.library.register_autograd` takes them."""
    ins, outs = kernel.parameters
    floats = [i for i, b in enumerate(outs) if _is_float(b)]

    def keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        made = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*inputs, *(made if gradients.outputs else ()))

    def backward(ctx: Any, *given: Any) -> Any:
        of_outputs = [given[i].contiguous() for i in floats]
        found = gradients.of(ctx.needs_input_grad, [*of_outputs, *ctx.saved_tensors])
        found = found if isinstance(found, (tuple, list)) else (found,)
        if len(found) != len(ins):
            raise ArgumentError(
                f"backward of {kernel.workload.op} gave {len(found)} gradients for {len(ins)} inputs: give "
                "one for each, or None"
            )
        return tuple(found)

    return backward, keep


def of_function(backward: Callable[..., Any]) -> Gradients:
    """The gradients that a user's function computes."""
    return Gradients(lambda needed, known: backward(*known))


def of_one(kernel: Any, backward: Any) -> Gradients:
    """The gradients that one kernel computes, all at once. Raises ArgumentError where it does not fit."""
    call, places = _gradient(kernel, backward, kernel.parameters[0])
    return Gradients(lambda needed, known: call(*(known[i] for i in places)), _reads_outputs(kernel, places))


def of_each(kernel: Any, backward: Sequence[Any]) -> Gradients:
    """The gradients that kernels compute, each that of one input, or None. Raises ArgumentError where they do
    not fit."""
    ins = kernel.parameters[0]
    if len(backward) != len(ins):
        raise ArgumentError(
            f"backward of {kernel.workload.op} has {len(backward)} kernels for {len(ins)} inputs: give one "
            "for each, or None"
        )
    calls = [None if g is None else _gradient(kernel, g, (b,)) for g, b in zip(backward, ins, strict=True)]

    def gradients(needed: Sequence[bool], known: Sequence[Any]) -> Any:
        wanted = zip(calls, needed, strict=True)
        return tuple(c[0](*(known[i] for i in c[1])) if c and need else None for c, need in wanted)

    return Gradients(gradients, any(_reads_outputs(kernel, c[1]) for c in calls if c))


def _gradient(kernel: Any, backward: Any, of: Sequence[Buffer]) -> tuple[Any, tuple[int, ...]]:
    """(the operator of a kernel that computes gradients of these inputs, which of what is known it takes).
    Raises ArgumentError."""
    ins, outs = kernel.parameters
    # Gradients are given row-major, whatever lies with strides.
    heads = [_row_major(b) for b in outs if _is_float(b)]
    known = {f"d{b.name}": b for b in heads} | {b.name: b for b in (*ins, *outs)}
    takes, gives = backward.parameters
    wanted = _types([*map(_row_major, of)])
    if _types(gives) == wanted:
        operator = overload(plain_name(backward))
        if len(known) == len(heads) + len(ins) + len(outs) and all(
            b.name in known and _types((b,)) == _types((known[b.name],)) for b in takes
        ):
            return operator, tuple([list(known).index(b.name) for b in takes])
        if _types(takes) == _types((*heads, *ins)):
            return operator, tuple(range(len(takes)))
    raise ArgumentError(
        f"backward of {kernel.workload.op}: the kernel {backward.workload.op} takes {_types(takes)} and "
        f"gives {_types(gives)}, but must take the gradients of the outputs, then all inputs, "
        f"{_types((*heads, *ins))}, or some by their names ({', '.join(known)}), and give {wanted}; "
        "where it takes others, give a function of all that calls an operator of it"
    )


def _reads_outputs(kernel: Any, places: Sequence[int]) -> bool:
    ins, outs = kernel.parameters
    return any(i >= len(ins) + sum(map(_is_float, outs)) for i in places)


def _is_float(b: Buffer) -> bool:
    return DTYPES[b.dtype].kind == "float"


def _types(buffers: Sequence[Buffer]) -> str:
    return ", ".join(f"{b.dtype}{layout_of(b)}" for b in buffers)


def _row_major(b: Buffer) -> Buffer:
    return replace(b, strides=None)
