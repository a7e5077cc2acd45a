"""Kernels as operators of torch: ``at.torch.op(kernel)``; as choices of its compiler:
``at.torch.inductor()``; and the models behind ``torch.compile(backend="autotune")``. Needs torch (extra
``torch``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.models.inductor import InductorChoice, InductorChoices, inductor
from autotune.run.torch_op import op

if TYPE_CHECKING:
    from autotune.models.module import Module

__all__ = ["InductorChoice", "InductorChoices", "inductor", "modules", "op"]


def modules() -> list[Module]:
    """The compiled models behind the graphs that ``torch.compile(…, backend="autotune")`` made in this
    process, in the order in which torch gave the graphs. Each can be asked for its `Module.profile`. A graph
    that torch runs itself has none.

        >>> f = torch.compile(module.eval(), backend="autotune")
        >>> with torch.no_grad():
        ...     y = f(x)
        >>> print(at.torch.modules()[-1].profile(x))
    """
    from autotune.models import torch_backend

    return torch_backend.modules()
