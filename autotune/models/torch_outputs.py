"""Where the results of a graph of torch lie: in memory of their own, of an argument, or of another result.

A model gives new row-major arrays. What torch gives in another way is made of them, so that whoever writes to
a result sees that in all that share its memory, as without a compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from autotune.errors import ModelError


@dataclass(frozen=True)
class Same:
    """A result that is another object: argument ``number``, or result ``number`` before it."""

    number: int
    is_argument: bool


@dataclass(frozen=True)
class View:
    """A result that lies in the memory of an argument. ``strides`` and ``offset``: in elements, from its
    first element on."""

    argument: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Fresh:
    """A result in new memory. ``memory``: a number for each, as results may share one; ``size``: its
    elements. ``strides`` and ``offset``: in elements, from the beginning of the memory."""

    memory: int
    size: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: Any

    @property
    def whole(self) -> bool:
        """Whether it is all of its memory, row by row."""
        rows = [prod(self.shape[d + 1 :]) for d in range(len(self.shape))]
        plain = all(n == 1 or s == r for n, s, r in zip(self.shape, self.strides, rows, strict=True))
        return plain and not self.offset and self.size == prod(self.shape)

    @property
    def computed(self) -> bool:
        """Whether there is something to compute."""
        return 0 not in self.shape


@dataclass(frozen=True)
class PlainValue:
    """A result that is no tensor."""

    value: Any


Result = Same | View | Fresh | PlainValue


def results_of(graph: Any, args: Sequence[Any]) -> tuple[Result, ...]:
    """Each result of a graph for arguments of these shapes and strides. Which arguments share memory makes no
    difference. Raises ModelError for memory that is seen as two dtypes, and for arguments that get another
    shape."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        fakes = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
            if isinstance(x, torch.Tensor)
            else x
            for x in args
        ]
        given = {_memory(x): i for i, x in enumerate(fakes) if isinstance(x, torch.Tensor)}
        made = graph.forward(*fakes)
    for i, (x, fake) in enumerate(zip(args, fakes, strict=True)):
        if isinstance(x, torch.Tensor) and (
            (x.shape, x.stride()) != (fake.shape, fake.stride()) or given.get(_memory(fake)) != i
        ):
            raise ModelError(f"it changes the shape or the strides of its argument {i}: return a new view")
    return tuple(_result(n, y, made, fakes, given) for n, y in enumerate(made))


def _result(n: int, y: Any, made: Sequence[Any], args: Sequence[Any], given: Mapping[Any, int]) -> Result:
    import torch

    if not isinstance(y, torch.Tensor):
        return PlainValue(y)
    for is_argument, others in ((True, args), (False, made[:n])):
        for number, x in enumerate(others):
            if x is y:
                return Same(number, is_argument)
    key, shape, strides = _memory(y), tuple(map(int, y.shape)), tuple(map(int, y.stride()))
    offset = int(y.storage_offset())
    if (i := given.get(key)) is not None:
        if args[i].dtype != y.dtype:
            raise ModelError(f"its output {n} is a view of an input of another dtype: return a clone()")
        return View(i, shape, strides, offset)
    beside = [x for x in made if isinstance(x, torch.Tensor) and x is not y and _memory(x) == key]
    if any(x.dtype != y.dtype for x in beside):
        raise ModelError(
            f"its output {n} shares memory with another output of another dtype: return a clone()"
        )
    if not y.is_cpu:
        raise ModelError(f"its output {n} is on {y.device}: whole models run on CPUs; give module.cpu()")
    if beside:
        size = y.untyped_storage().nbytes() // y.dtype.itemsize
    else:  # no more than it reaches
        offset = 0
        size = 0 if 0 in shape else 1 + sum((m - 1) * s for m, s in zip(shape, strides, strict=True))
    return Fresh(key, size, shape, strides, offset, y.dtype)


def _memory(x: Any) -> int:
    return int(x.untyped_storage()._cdata)


def laid_out(results: Sequence[Result], computed: Mapping[int, Any], args: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a call. ``computed``: {result: its value as a row-major tensor}, of all that are
    computed. ``args``: of the call."""
    import torch

    wholes: dict[int, int] = {}  # {memory: the first result that is all of it}
    for n, r in enumerate(results):
        if isinstance(r, Fresh) and r.whole and r.computed:
            wholes.setdefault(r.memory, n)
    memories = {memory: computed[n] for memory, n in wholes.items()}
    out: list[Any] = []
    for n, r in enumerate(results):
        if isinstance(r, PlainValue):
            out.append(r.value)
        elif isinstance(r, Same):
            out.append(args[r.number] if r.is_argument else out[r.number])
        elif isinstance(r, View):
            x = args[r.argument]
            out.append(x.as_strided(r.shape, r.strides, x.storage_offset() + r.offset))
        else:
            if r.memory not in memories:
                memories[r.memory] = torch.empty(r.size, dtype=r.dtype)
            view = memories[r.memory].as_strided(r.shape, r.strides, r.offset)
            if r.computed and r.memory not in wholes:
                _fill(view, computed[n])
            out.append(computed[n] if wholes.get(r.memory) == n else view)
    return tuple(out)


def _fill(view: Any, values: Any) -> None:
    """Write values to a tensor of which elements may lie at one place."""
    for d, (n, stride) in enumerate(zip(view.shape, view.stride(), strict=True)):
        if n > 1 and stride == 0:
            view, values = view.narrow(d, 0, 1), values.narrow(d, 0, 1)
    view.copy_(values)
