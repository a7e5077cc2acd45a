"""Calls of kernels for the CPU on torch tensors: outputs are tensors too, and no gradient is lost unseen.

Shapes, dtypes and memory are checked in machine code, as those of numpy arrays are (ADR 48). Here is what
that cannot see. torch is never imported: a tensor given means that it is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from autotune.codegen.runtime import exchange
from autotune.codegen.runtime.entry import layout_of
from autotune.errors import ArgumentError
from autotune.run import new_arrays
from schedules.ir import Buffer
from schedules.strides import MemoryLayout

# In place of outputs: see `TorchCalls.outputs`.
DISPATCHED = ("dispatched",)


class TorchCalls:
    """What the calls of one kernel need of torch, looked up once."""

    __slots__ = ("_enabled", "_forward", "_new", "_plain", "_tensor", "fast")

    def __init__(self, torch: Any, fast: Callable[..., int], outputs: Sequence[Buffer]) -> None:
        """``fast``: the builtin of `entry.at_call` that takes tensors too."""
        self.fast = fast
        self._tensor = torch.Tensor
        self._enabled = torch.is_grad_enabled
        # Which levels of forward-mode derivatives are entered. torch has no public name for it.
        forward = torch.autograd.forward_ad
        self._forward: Any = forward if hasattr(forward, "_current_level") else _NoLevels()
        self._new = [_maker(torch, layout_of(b), getattr(torch, b.dtype)) for b in outputs]
        self._plain = (torch.Tensor, torch.nn.Parameter)  # without a meaning of their own
        for kind in self._plain:
            exchange.accept(kind)

    def outputs(
        self, inputs: Sequence[Any], out: tuple[Any, ...] | None, describe: Callable[[int], str]
    ) -> tuple[Any, ...] | None:
        """``out``, or new tensors where the first input is one; None for a call without tensors;
        `DISPATCHED` for tensors without memory of their own, such as torch.compile's, which the kernel's
        operator takes. ``describe``: an argument in words, by its number. Raises ArgumentError for what loses
        a gradient."""
        tensor = self._tensor
        arrays = inputs if out is None else (*inputs, *out)
        plain = self._plain
        found = False
        for x in arrays:
            if type(x) in plain:
                found = True
                if not (x.requires_grad or x.is_neg()):
                    continue
            elif not isinstance(x, tensor):
                continue
            found = True
            if type(x).__torch_dispatch__ is not tensor.__torch_dispatch__:
                return DISPATCHED
            if (x.requires_grad and self._enabled()) or x.is_neg():
                raise _refused(x, describe(next(i for i, y in enumerate(arrays) if y is x)))
        if not found:
            return None
        if self._forward._current_level >= 0:
            self._check_tangents(arrays, describe)
        if out is not None:
            return out
        if not isinstance(inputs[0], tensor):
            raise ArgumentError(
                f"{describe(0)} is a {type(inputs[0]).__name__}, and others are torch tensors, so it is not "
                "clear what the output is to be: give torch.from_numpy of it, or the output by out="
            )
        return self.new()

    def new(self) -> tuple[Any, ...]:
        """New tensors for the outputs."""
        return tuple([make() for make in self._new])

    def plain(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The same memory, without what autograd knows of it, which DLPack refuses."""
        return tuple(x.detach() if isinstance(x, self._tensor) else x for x in arrays)

    def _check_tangents(self, arrays: Sequence[Any], describe: Callable[[int], str]) -> None:
        for i, x in enumerate(arrays):
            if isinstance(x, self._tensor) and self._forward.unpack_dual(x).tangent is not None:
                raise ArgumentError(
                    f"{describe(i)} has a forward-mode derivative, which would be lost: kernels have none; "
                    "use reverse mode, by autotune.torch.op(kernel, backward=...)"
                )


class _NoLevels:
    """In the place of torch's count, where it has another."""

    _current_level = -1


def of_process(loaded: Any, outputs: Sequence[Buffer]) -> TorchCalls | None:
    """The `TorchCalls` of a kernel's loaded code, or of what has no fast path (None); None where nobody has
    imported torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    fast = refuse if loaded is None else loaded.python_function(True) or refuse
    return TorchCalls(torch, fast, outputs)


def _refused(x: Any, name: str) -> ArgumentError:
    if x.is_neg():
        return ArgumentError(f"{name} is a negated view of another tensor: give x.resolve_neg()")
    return refuse_gradient(name)


def refuse_gradient(name: str) -> ArgumentError:
    """The error for an input whose gradient a kernel would lose."""
    return ArgumentError(
        f"{name} requires a gradient, which would be lost: call the kernel under torch.no_grad(), give "
        "x.detach(), or make an operator with a gradient of it, autotune.torch.op(kernel, backward=...)"
    )


def written(arrays: Sequence[Any]) -> None:
    """Tell autograd: what it may have saved of these is no longer what it was."""
    torch = sys.modules.get("torch")
    if torch is not None:
        for x in arrays:
            if isinstance(x, torch.Tensor) and not x.is_inference():
                torch.autograd.graph.increment_version(x)


def is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def refuse(*arrays: object) -> int:
    """In place of a fast path where there is none."""
    return 1


def _maker(torch: Any, layout: MemoryLayout, dtype: Any) -> Callable[[], Any]:
    shape, strides = layout.shape, layout.strides
    if strides is not None:
        memory = new_arrays.tensor_maker(torch, (layout.span,), dtype)
        if memory is not None:
            return lambda: memory().as_strided(shape, strides)
        return partial(torch.empty_strided, shape, strides, dtype=dtype, device="cpu")
    large = new_arrays.tensor_maker(torch, shape, dtype)
    # a tensor like one that takes no memory is made in half the time of torch.empty
    return large or partial(torch.empty_like, _model(torch, shape, dtype))


def _model(torch: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A tensor of one element that torch.empty_like takes for a contiguous one of a shape."""
    one = torch.empty((), dtype=dtype, device="cpu").expand(shape)
    return one if torch.empty_like(one).is_contiguous() else torch.empty(shape, dtype=dtype, device="cpu")
