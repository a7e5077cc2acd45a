"""Weights of a GGUF file as constants of a graph: floats as they lie, and codes of few bits with their scales.

Q8_0 and Q4_0 have a scale of float16 for 32 weights in a row, and codes of int8, or of 4 bits around 8: of a
block's 16 bytes the lower halves are the first 16 weights, the upper halves the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autotune.errors import ModelError
from autotune.models.decoder import Maker
from autotune.models.gguf_file import GgufFile, GgufTensor
from autotune.models.model import identifier
from autotune.models.operators.base import Array, stage
from autotune.models.operators.matmul import linear
from schedules import te
from schedules.dtypes import DTYPES

# {type of ggml: dtype} of floats.
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
SUPPORTED = tuple(FLOATS)
SHOWN = 8  # tensors that a message names


def check_types(file: GgufFile) -> None:
    """Raise ModelError that names all tensors of types that are not supported."""
    odd = [t for t in file.tensors.values() if t.type not in SUPPORTED]
    if odd:
        shown = ", ".join(f"{t.name} ({t.type})" for t in odd[:SHOWN])
        more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        raise ModelError(
            f"{file.label}: {len(odd)} tensor{'s' * (len(odd) > 1)} of types that are not supported: {shown}{more}; "
            f"those that are: {', '.join(SUPPORTED)}; convert it: llama-quantize --pure --allow-requantize "
            f"{file.label} out.gguf Q8_0"
        )


@dataclass
class GgufWeights:
    """The weights of one import. ``constants``: {input of the graph: its values}. ``used``: the tensors that were
    asked for."""

    file: GgufFile
    constants: dict[te.Tensor, Array] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def vector(self, name: str, size: int, order: Array | None = None) -> te.Tensor:
        """A vector of floats, with its elements in another ``order``."""
        return self._floats(self._tensor(name, (size,)), order)

    def optional(self, name: str, size: int, order: Array | None = None) -> te.Tensor | None:
        """A vector; None where the file has none of this name."""
        return self.vector(name, size, order) if name in self.file.tensors else None

    def table(self, name: str, rows: int, columns: int) -> Maker:
        """Rows of a matrix, by a vector of their numbers, as float32."""
        w = self._matrix(name, rows, columns, None)

        def looked_up(ids: te.Tensor) -> te.Tensor:
            return stage((ids.shape[0], columns), lambda i, j: te.cast(w[ids[i], j], "float32"), "embedded")

        return looked_up

    def product(self, name: str, rows: int, columns: int, order: Array | None = None) -> Maker:
        """x · (a matrix, with its rows in another ``order``)ᵀ, plus the vector ``.bias`` where there is one."""
        w = self._matrix(f"{name}.weight", rows, columns, order)
        bias = self.optional(f"{name}.bias", rows, order)
        return lambda x: linear(x, w, bias)

    def known(self, name: str, values: Array) -> te.Tensor:
        """A constant that is no tensor of the file."""
        return self._constant(name, values.dtype.name, values)

    def finish(self) -> None:
        """Raise ModelError for tensors that nobody asked for: the model would be another one."""
        odd = [n for n in self.file.tensors if n not in self.used]
        if odd:
            more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
            raise ModelError(
                f"{self.file.label}: its architecture has no {', '.join(odd[:SHOWN])}{more}: it is a variant that "
                "is not supported"
            )

    def _tensor(self, name: str, shape: Sequence[int]) -> GgufTensor:
        found = self.file.tensors.get(name)
        if found is None:
            raise ModelError(f"{self.file.label}: tensor {name!r} is missing: convert the model again")
        self.used.add(name)
        if found.shape != tuple(shape):
            raise ModelError(
                f"{self.file.label}: tensor {name!r} has shape {list(found.shape)}, and its keys say {list(shape)}"
            )
        return found

    def _matrix(self, name: str, rows: int, columns: int, order: Array | None) -> te.Tensor:
        return self._floats(self._tensor(name, (rows, columns)), order)

    def _floats(self, t: GgufTensor, order: Array | None) -> te.Tensor:
        if t.type not in FLOATS:
            raise ModelError(
                f"{self.file.label}: tensor {t.name!r} has type {t.type}, which a vector may not have"
            )
        dtype = FLOATS[t.type]
        values = t.data.view(DTYPES[dtype].numpy).reshape(t.shape)
        return self._constant(t.name, dtype, values if order is None else values[order])

    def _constant(self, name: str, dtype: str, values: Array) -> te.Tensor:
        known: Any = next((t for t in self.constants if t.name == identifier(name)), None)
        if known is None:
            known = te.placeholder(values.shape, dtype, identifier(name))
            self.constants[known] = np.asarray(values)
        return known
