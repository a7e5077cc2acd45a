"""Where a graph of torch puts its outputs: in memory of their own, of an input, or of another output.

A model gives new row-major arrays. What torch gives in another way is made of them, so that whoever writes to
a result sees that in all that share its memory, as without a compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import ModelError


@dataclass(frozen=True)
class Placed:
    """How an output lies in memory. ``strides`` and ``offset``: in elements, from the beginning of the
    memory, or from the first element of ``argument``. ``argument``: the number of the argument whose memory
    it is. ``memory``: a number for each memory that outputs share; ``size``: its elements."""

    strides: tuple[int, ...]
    offset: int = 0
    argument: int | None = None
    memory: int | None = None
    size: int = 0


def places(graph: Any, args: Sequence[Any], dynamic: bool) -> Mapping[int, Placed]:
    """{output: where it is put} for tensors that are not row-major in memory of their own. ``dynamic``: the
    next call may have arguments with other strides. Raises ModelError for memory that is seen as two dtypes,
    and for views of such arguments."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in args]
        made = graph(*fakes)
    given = {_memory(x): i for i, x in reversed(list(enumerate(fakes))) if isinstance(x, torch.Tensor)}
    tensors = [y for y in made if isinstance(y, torch.Tensor)]
    owners: dict[Any, list[Any]] = {}
    for y in tensors:
        owners.setdefault(_memory(y), []).append(y)
    numbers = {key: n for n, key in enumerate(owners)}
    out: dict[int, Placed] = {}
    for n, y in enumerate(tensors):
        key, strides = _memory(y), tuple(int(s) for s in y.stride())
        if (i := given.get(key)) is not None:
            if dynamic or fakes[i].dtype != y.dtype:
                why = "of open sizes" if dynamic else "of another dtype"
                raise ModelError(f"its output {n} is a view of an input {why}: return a clone()")
            out[n] = Placed(strides, int(y.storage_offset() - fakes[i].storage_offset()), i)
        elif len(owners[key]) > 1:
            if any(x.dtype != y.dtype for x in owners[key]):
                raise ModelError(
                    f"its output {n} shares memory with another output of another dtype: return a clone()"
                )
            size = y.untyped_storage().nbytes() // y.dtype.itemsize
            out[n] = Placed(strides, int(y.storage_offset()), None, numbers[key], size)
        elif not y.is_contiguous():
            out[n] = Placed(strides)
    return out


def _memory(x: Any) -> Any:
    return x.untyped_storage()._cdata


def laid_out(made: Sequence[Any], placed: Mapping[int, Placed], args: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a model as torch's graph puts them. ``args``: of the call."""
    import torch

    memories: dict[int, Any] = {}
    out = []
    for n, y in enumerate(made):
        how = placed.get(n)
        if how is None:
            out.append(y)
        elif how.argument is not None:
            x = args[how.argument]
            out.append(x.as_strided(y.shape, how.strides, x.storage_offset() + how.offset))
        elif how.memory is None:
            out.append(torch.empty_strided(y.shape, how.strides, dtype=y.dtype).copy_(y))
        else:
            if how.memory not in memories:
                memories[how.memory] = torch.empty(how.size, dtype=y.dtype)
            view = memories[how.memory].as_strided(y.shape, how.strides, how.offset)
            out.append(view.copy_(y))
    return tuple(out)
