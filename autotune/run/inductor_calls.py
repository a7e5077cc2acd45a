"""What code that Inductor generated calls: kernels by their text, which stands in that code (ADR 117)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.run import torch_calls
from autotune.run.kernels import unpickled


def kernel(text: str) -> Callable[..., Any]:
    """A function ``f(*inputs, out=x)`` on torch tensors of the layout that the kernel has. ``text``: of
    `Kernel.as_text`. It goes through every check of a pickled kernel, and is compiled here or found in this
    machine's cache. The function returns ``out``. Raises as `autotune.run.kernels.unpickled`; the function as
    a call of the kernel.

    Example: ``f = kernel(at.load("matmul", m=64, n=64, k=64).as_text()); f(a, b, out=c)``.
    """
    found = unpickled(text)
    calls = torch_calls.of_process(found.code, found.parameters[1])
    fast = torch_calls.refuse if calls is None else calls.fast

    def call(*inputs: Any, out: Any) -> Any:
        if fast(*inputs, out) != 0:
            found(*inputs, out=out)  # which says what does not fit
        return out

    return call
