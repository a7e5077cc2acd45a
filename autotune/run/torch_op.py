"""A kernel as an operator of torch: what `autotune.torch.op` is."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from autotune.errors import ArgumentError, MissingExtraError
from autotune.run import torch_operator
from autotune.run.kernel import Kernel
from schedules.distribution import install


def op(
    kernel: Kernel,
    backward: Kernel | Sequence[Kernel | None] | Callable[..., Any] | None = None,
    name: str | None = None,
) -> Callable[..., Any]:
    """An operator of torch that calls a kernel: for autograd, and for ``torch.compile(..., fullgraph=True)``.

    It takes the kernel's inputs as tensors and returns new tensors, one or a tuple. Shapes, dtypes and
    strides are those of the kernel; others raise `ArgumentError`.

    ``backward``: what computes gradients. It takes the gradients of the floating-point outputs, in order,
    then all inputs, and gives a gradient for each input:

    - a kernel with an output for each input;
    - a list with, for each input, a kernel with one output, or None for an input without a gradient;
    - a function that returns a tensor or None for each input, in a tuple. It may call other operators.

    Kernels may take some of these only, by name: ``dy`` for the gradient of output ``y``, the inputs, and the
    outputs, which are kept if one takes them. So kernels of what `te.gradient` returns are taken as they are.

    Gradients are given contiguous. They are differentiable themselves where ``backward`` is a function of
    differentiable operators. Without ``backward`` an input that requires a gradient is refused, outside
    ``torch.no_grad()``.

    ``name``: of the operator, ``torch.ops.autotune.<name>``; by default that of the kernel's operator with
    the first digits of the workload's digest. An operator lives, and holds its kernel, until the process
    ends.

    Raises `ArgumentError` for a name that is taken and for a ``backward`` that does not fit, and
    `MissingExtraError` without torch.

        >>> matmul = at.load("matmul", m=64, n=32, k=48)
        >>> da = at.torch.op(at.load("matmul", m=64, n=48, k=32, transpose_b=1))
        >>> db = at.torch.op(at.load("matmul", m=48, n=32, k=64, transpose_a=1))
        >>> mm = at.torch.op(matmul, backward=lambda g, a, b: (da(g, b), db(a, g)))
        >>> mm(a, b).sum().backward()
    """
    check_torch("autotune.torch.op")
    if not isinstance(kernel, Kernel):
        raise ArgumentError(f"op takes a kernel, as at.load gives it, not a {type(kernel).__name__}")
    if backward is None and name is None:
        found = torch_operator.plain_name(kernel)
    elif backward is None:
        found = torch_operator.define(kernel, None, name)
    else:
        if isinstance(backward, Kernel):
            gradients = torch_operator.of_one(kernel, backward)
        elif isinstance(backward, (list, tuple)):
            gradients = torch_operator.of_each(kernel, backward)
        elif callable(backward):
            gradients = torch_operator.of_function(backward)
        else:
            raise ArgumentError(
                f"backward is a {type(backward).__name__}: give a kernel, a list of kernels, or a function"
            )
        found = torch_operator.define(kernel, gradients, name)
    operator: Callable[..., Any] = torch_operator.overload(found)
    return operator


def check_torch(function: str) -> None:
    """Raises `MissingExtraError`, which names a function, where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError(f"{function} needs torch, which is not installed: {install('torch')}")
