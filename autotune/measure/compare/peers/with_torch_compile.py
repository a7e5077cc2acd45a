"""Peer torch.compile: mode max-autotune. Constant inputs are buffers of a frozen module, which inductor folds
and packs ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch._inductor.config as inductor

from autotune.errors import one_line
from autotune.measure.compare.peers import Arrays, PeerError, PreparedPeer
from autotune.measure.compare.peers.with_torch import Make, Params, limited, operator, prepared, tensor
from schedules.model import Workload
from schedules.ops import parameters


class _Module(torch.nn.Module):
    """An operator that holds its inputs at ``constant`` itself."""

    def __init__(self, make: Make, params: Params, tensors: Sequence[Any], constant: Sequence[int]) -> None:
        super().__init__()
        self._make, self._params, self._constant = make, params, tuple(constant)
        self._weights = torch.nn.ParameterList(
            [torch.nn.Parameter(tensors[i], requires_grad=False) for i in constant]
        )

    def forward(self, *free: Any) -> Any:
        given = iter(free)
        weights = dict(zip(self._constant, self._weights, strict=True))
        count = len(free) + len(weights)
        tensors = [weights[i] if i in weights else next(given) for i in range(count)]
        return self._make(self._params, tensors, None)()


@contextmanager
def prepare(workload: Workload, inputs: Arrays, outputs: Arrays, threads: int) -> Iterator[PreparedPeer]:
    """See `autotune.measure.compare`. Raises `PeerError` for an operator that torch lacks in this form, or
    that it cannot compile here (it needs a C++ compiler)."""
    make, params = operator(workload.op), parameters(workload)
    tensors = [tensor(a) for a in inputs]
    constant = [i for i, t in enumerate(workload.dag.inputs) if t.name in workload.dag.constants]
    torch._dynamo.reset()  # else code compiled for other operators counts towards its limits
    with limited(threads), torch.no_grad(), inductor.patch(freezing=bool(constant)):
        try:
            if constant:
                free = [x for i, x in enumerate(tensors) if i not in constant]
                module = torch.compile(_Module(make, params, tensors, constant).eval(), mode="max-autotune")
                module(*free)
                yield prepared(lambda: module(*free))
            else:
                call = torch.compile(make(params, tensors, None), mode="max-autotune")
                call()
                yield prepared(call)
        except torch._dynamo.exc.BackendCompilerFailed as err:
            raise PeerError(
                f"torch.compile failed for {workload.op!r}: {one_line(err, 300)}; "
                "leave torch.compile out of --against"
            ) from None
