"""`CallForms`: what a call of a model takes and returns, at one of its sizes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.runtime import aligned
from autotune.codegen.runtime.entry import layout_of, shape_of
from autotune.codegen.runtime.laid import laid
from autotune.errors import ArgumentError
from autotune.models.outline import Outline
from autotune.models.program import Program, Times
from autotune.models.sizes import is_roomy, layout_at
from autotune.models.weights import aligned_copy
from autotune.run import new_arrays, torch_calls
from autotune.run.host_arrays import extents_at, fitting, in_elements, is_aligned
from autotune.run.kernel import random_array
from schedules.dtypes import DTYPES
from schedules.ir import Buffer
from schedules.ir.nest import tensor_buffer

Array = NDArray[Any]


class CallForms:
    """The shapes and layouts of inputs and outputs, and what makes new outputs. It does not change.
    ``sizes``: of the model, by name; none where it has none. ``program``: the number of the program that
    calls run."""

    def __init__(self, ol: Outline, name: str, sizes: Mapping[str, int], program: int = 0) -> None:
        """``ol``: of the program. ``name``: of the model, for messages."""
        self.name, self.told, self.program = name, dict(sizes), program
        self.sizes = tuple(sizes[s.name] for s in ol.sizes)
        self.ins = [_buffer(ol, n, sizes) for n in ol.inputs]
        self.outs = [_buffer(ol, n, sizes) for n in dict.fromkeys(ol.outputs)]
        self._forms = {
            (b.name, written): (shape_of(b), DTYPES[b.dtype].numpy)
            for written, buffers in enumerate((self.ins, self.outs))
            for b in buffers
        }
        self._strided = {b.name: lies for b in self.ins if (lies := layout_of(b)).strides is not None}
        # what makes memory with room for the largest size: for inputs by name, and for outputs by number
        self._makers = {
            b.name: new_arrays.maker_of(self._strided[b.name], DTYPES[b.dtype].numpy)
            for n, b in zip(ol.inputs, self.ins, strict=True)
            if b.name in self._strided and is_roomy(ol, n)
        }
        self._roomy = {
            n: new_arrays.maker_of(lies, DTYPES[b.dtype].numpy)
            for n, b in enumerate(self.outs)
            if (lies := layout_of(b)).strides is not None
        }
        self._plain = [replace(b, strides=None) for b in self.outs]  # as a caller gets them
        self._new = [new_arrays.maker(*self._forms[b.name, True]) for b in self.outs]
        self._torch: torch_calls.TorchCalls | None = None

    def results(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """New arrays for the outputs, of the kind of the first input."""
        if self._torch is None:
            self._torch = torch_calls.of_process(None, self._plain)
        if self._torch is not None:
            tensors = self._torch.outputs(inputs, None, self._argument)
            if tensors is torch_calls.DISPATCHED:
                raise ArgumentError(
                    f"{self.name} takes tensors with memory; torch.compile has none to give: call it outside"
                )
            if tensors is not None:
                return tensors
        return self.empty()

    def tensors(self) -> tuple[Any, ...]:
        """New torch tensors for the outputs."""
        import torch

        self._torch = self._torch or torch_calls.TorchCalls(torch, torch_calls.refuse, self._plain)
        return self._torch.new()

    def empty(self) -> list[Array]:
        """New arrays for the outputs."""
        return [make() for make in self._new]

    def random(self) -> tuple[Array, ...]:
        """Random inputs: standard normal, or integers of -8 to 8."""
        rng = np.random.default_rng(0)
        return tuple(random_array(rng, b) for b in self.ins)

    def run(
        self,
        program: Program,
        inputs: Sequence[Any],
        results: Sequence[Any],
        states: Sequence[Array] = (),
    ) -> None:
        """Run the program on the inputs of a call. ``states``: as of `Program.run`. Raises ArgumentError."""
        outputs = [self._viewed(x, b, True) for x, b in zip(results, self.outs, strict=True)]
        read = [self.read(x, b)[0] for x, b in zip(inputs, self.ins, strict=True)]
        self.run_on(program, read, outputs, None, states)

    def run_on(
        self,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        times: Times | None = None,
        states: Sequence[Array] = (),
    ) -> None:
        """Run the program on inputs that it was given by `read`. ``times``, ``states``: as of
        `Program.run`."""
        if not self._roomy:
            program.run(inputs, outputs, times, self.sizes, states)
            return
        written = [self._roomy[n]() if n in self._roomy else x for n, x in enumerate(outputs)]
        program.run(inputs, written, times, self.sizes, states)
        for n in self._roomy:
            outputs[n][...] = written[n]

    def read(self, x: Any, b: Buffer) -> tuple[Array, bool]:
        """(An input as the program reads it, whether it was copied). Raises ArgumentError."""
        a = self._viewed(x, b, False)
        lies = self._strided.get(b.name)
        if lies is None:
            ready = aligned_copy(a, keep=True)
        else:
            steps = in_elements(a)
            kept = steps is not None and lies.lies_as(steps) and is_aligned(a)
            if kept:
                ready = a
            elif (make := self._makers.get(b.name)) is None:
                ready = laid(a, lies, aligned.zeros)
            else:
                ready = make()
                ready[...] = a
        return ready, ready is not a

    def _argument(self, i: int) -> str:
        return f"input {self.ins[i].name!r}" if i < len(self.ins) else f"argument {i}"

    def _viewed(self, x: Any, b: Buffer, written: bool) -> Array:
        """An array of the right shape and dtype over the same memory. Raises ArgumentError."""
        shape, dtype = self._forms[b.name, written]
        a = x if type(x) is np.ndarray else self._of_torch(x)
        if a is not None and a.dtype == dtype and a.shape == shape:
            return a
        if self.told and not written and tuple(getattr(x, "shape", shape)) != shape:
            told = ", ".join(f"{name} = {n}" for name, n in self.told.items())
            raise ArgumentError(
                f"input {b.name!r} has shape {tuple(x.shape)}; at {told}, which the inputs tell, it has "
                f"shape {shape}: give that shape"
            )
        if self._torch is not None:
            (x,) = self._torch.plain((x,))
        return fitting(x, b, written, "model")[0]

    def _of_torch(self, x: Any) -> Array | None:
        """A torch tensor as numpy has it, without a copy; None for what numpy has not, and for other
        things."""
        if self._torch is None or not torch_calls.is_tensor(x):
            return None
        try:
            return cast(Array, self._torch.plain((x,))[0].numpy())
        except (TypeError, RuntimeError):  # another device, layout or dtype: `fitting` says which
            return None


# Sizes whose forms are kept, at most.
MOST_KEPT = 256


class FormsBySize:
    """The `CallForms` of a model with open sizes, each made at the first call of its size. ``own``: sizes
    that have programs of their own, with their outlines, in the order of the programs from number 1 on."""

    def __init__(self, ol: Outline, name: str, own: Sequence[tuple[Mapping[str, int], Outline]] = ()) -> None:
        self._outline, self._name = ol, name
        # what says more sizes goes first
        self._own = sorted(enumerate(own, 1), key=lambda x: -len(x[1][0]))
        places = [(ol.inputs.index(s.source.input), s.source.dim) for s in ol.sizes]
        self._key = extents_at(places)
        self._kept: dict[Any, CallForms] = {}
        self.largest = CallForms(ol, name, {s.name: s.most for s in ol.sizes})

    def of(self, inputs: Sequence[Any]) -> CallForms:
        """The forms of a call. Raises ArgumentError."""
        try:
            return self._kept[self._key(inputs)]
        except (LookupError, AttributeError, TypeError):
            return self._new(inputs)

    def _new(self, inputs: Sequence[Any]) -> CallForms:
        ol, sizes = self._outline, {}
        for s in ol.sizes:
            at, label = s.source, ol.label(s.source.input)
            x = inputs[ol.inputs.index(at.input)]
            shape = tuple(getattr(x, "shape", None) or np.shape(x))
            rank = len(ol.tensors[at.input].shape)
            if len(shape) != rank:
                raise ArgumentError(f"input {label!r} has shape {shape}; give it {rank} dimensions")
            n = at.told(int(shape[at.dim]))
            if n is None or not s.least <= n <= s.most:
                same = (at.step, at.first) == (1, 0)
                linear = "" if same else f" (the size {s.name}: {s.least} to {s.most})"
                raise ArgumentError(
                    f"input {label!r} has {int(shape[at.dim])} elements in dimension {at.dim}; the "
                    f"model takes {at.extent(s.least)} to {at.extent(s.most)}{linear}: give a size in that "
                    "range, or import the model for a wider one"
                )
            sizes[s.name] = n
        made = self.at(sizes)
        while len(self._kept) >= MOST_KEPT:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[self._key_of(sizes)] = made
        return made

    def at(self, sizes: Mapping[str, int]) -> CallForms:
        """The forms of calls of these sizes: of the program of their own, else of that of all sizes."""
        for number, (own, ol) in self._own:
            if own.items() <= sizes.items():
                return CallForms(ol, self._name, sizes, number)
        return CallForms(self._outline, self._name, sizes)

    def _key_of(self, sizes: Mapping[str, int]) -> Any:
        extents = tuple(s.source.extent(sizes[s.name]) for s in self._outline.sizes)
        return extents if len(extents) > 1 else extents[0]


def _buffer(ol: Outline, name: str, sizes: Mapping[str, int]) -> Buffer:
    lies = layout_at(ol, name, sizes)
    t = replace(ol.tensors[name], name=ol.label(name), shape=lies.shape, strides=lies.strides)
    return tensor_buffer(t)
