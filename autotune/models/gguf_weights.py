"""Weights of a GGUF file as constants of a graph: floats, and codes of few bits with scales and offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.errors import ModelError
from autotune.models.decoder import Maker
from autotune.models.gguf_blocks import BLOCKS
from autotune.models.gguf_file import GgufFile, GgufTensor
from autotune.models.model import identifier
from autotune.models.operators.base import Array, stage
from autotune.models.operators.matmul import linear
from schedules import te
from schedules.dtypes import DTYPES
from schedules.expr import Expr
from schedules.ops.few_bits import FewBits, product, rounded_rows
from schedules.units import some

# {type of ggml: dtype} of floats.
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
SUPPORTED = (*FLOATS, *BLOCKS)
SHOWN = 8  # tensors that a message names


def check_types(file: GgufFile) -> None:
    """Raise ModelError that names all tensors of types that are not supported."""
    odd = [f"{t.name} ({t.type})" for t in file.tensors.values() if t.type not in SUPPORTED]
    if odd:
        raise ModelError(
            f"{file.label}: {len(odd)} of {len(file.tensors)} tensors have types that are not supported: "
            f"{some(odd, SHOWN)}; those that are: {', '.join(SUPPORTED)}; convert the model, its float file "
            f"where there is one: llama-quantize --allow-requantize --pure {file.label} out.gguf Q8_0"
        )


@dataclass
class GgufWeights:
    """The weights of one import. ``rounds``: whether activations of products with codes are rounded to int8.
    ``constants``: {input of the graph: its values}. ``coded``: {name of a tensor: its codes}. ``used``: the
    tensors that were asked for."""

    file: GgufFile
    rounds: bool
    constants: dict[te.Tensor, Array] = field(default_factory=dict)
    coded: dict[str, FewBits] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def vector(self, name: str, size: int, order: Array | None = None) -> te.Tensor:
        """A vector of floats, with its elements in another ``order``."""
        return self._floats(self._tensor(name, (size,)), order)

    def values(self, name: str, size: int) -> Array:
        """The elements of a vector of float32 that is no constant of the graph."""
        t = self._tensor(name, (size,))
        if t.type != "F32":
            raise ModelError(f"{self.file.label}: tensor {name!r} has type {t.type}, not F32")
        return t.data.view(np.float32)

    def table(self, name: str, rows: int, columns: int) -> Maker:
        """Rows of a matrix as float32, by a vector of their numbers."""
        w = self._matrix(name, rows, columns, None)

        def element(row: Expr, j: Expr) -> Expr:
            if isinstance(w, te.Tensor):
                return te.cast(w[row, j], "float32")
            g = j // w.group
            number = te.cast(w.form.at(w.codes, (row,), g, j % w.group, w.group), "float32")
            value = number * te.cast(w.scales[row, g], "float32")
            return value if w.offsets is None else value + te.cast(w.offsets[row, g], "float32")

        return lambda ids: stage((ids.shape[0], columns), lambda i, j: element(ids[i], j), "embedded")

    def product(self, name: str, rows: int, columns: int, order: Array | None = None) -> Maker:
        """x · (matrix ``name``.weight, with its rows in another ``order``)ᵀ, plus the vector ``name``.bias
        where there is one."""
        w = self._matrix(f"{name}.weight", rows, columns, order)
        has_bias = f"{name}.bias" in self.file.tensors
        bias = self.vector(f"{name}.bias", rows, order) if has_bias else None

        def multiplied(x: te.Tensor) -> te.Tensor:
            if isinstance(w, te.Tensor):
                return linear(x, w, bias)
            y = product(rounded_rows(x, w.group) if self.rounds else x, w)
            if bias is None:
                return y
            return stage(y.shape, lambda i, j: y[i, j] + te.cast(bias[j], "float32"), "biased")

        return multiplied

    def known(self, name: str, values: Array) -> te.Tensor:
        """A constant that is no tensor of the file."""
        return self._constant(name, values.dtype.name, lambda: values)

    def finish(self) -> None:
        """Raise ModelError for tensors that nobody asked for: the model would be another one."""
        odd = [n for n in self.file.tensors if n not in self.used]
        if odd:
            raise ModelError(
                f"{self.file.label}: its architecture has no {some(odd, SHOWN)}: it is a variant that is not "
                "supported"
            )

    def _tensor(self, name: str, shape: Sequence[int]) -> GgufTensor:
        found = self.file.tensors.get(name)
        if found is None:
            raise ModelError(f"{self.file.label}: tensor {name!r} is missing: convert the model again")
        self.used.add(name)
        if found.shape != tuple(shape):
            told = f"{list(found.shape)}, and its keys say {list(shape)}"
            raise ModelError(f"{self.file.label}: tensor {name!r} has shape {told}: it is damaged")
        return found

    def _matrix(self, name: str, rows: int, columns: int, order: Array | None) -> te.Tensor | FewBits:
        t = self._tensor(name, (rows, columns))
        if t.type in FLOATS:
            return self._floats(t, order)
        if name not in self.coded:
            of = BLOCKS[t.type]
            parts = of.unpacked(t.data.reshape(rows, columns // of.weights, -1), order)
            names = [f"{name}.{part}" for part in ("codes", "scales", "offsets")]
            codes, scales, *offsets = map(self.known, names, parts)
            self.coded[name] = FewBits(of.form, codes, scales, of.group, *offsets)
        return self.coded[name]

    def _floats(self, t: GgufTensor, order: Array | None) -> te.Tensor:
        if t.type not in FLOATS:
            raise ModelError(f"{self.file.label}: tensor {t.name!r} has type {t.type}, and is no matrix")
        dtype = FLOATS[t.type]
        whole = t.data.view(DTYPES[dtype].numpy).reshape(t.shape)
        return self._constant(t.name, dtype, lambda: whole if order is None else whole[order])

    def _constant(self, name: str, dtype: str, make: Callable[[], Array]) -> te.Tensor:
        """The input of the graph of this name; a table that is a product too is one."""
        own = identifier(name)
        for known in self.constants:
            if known.name == own:
                return known
        values = make()
        made = te.placeholder(values.shape, dtype, own)
        self.constants[made] = values
        return made
