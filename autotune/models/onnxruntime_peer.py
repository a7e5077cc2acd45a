"""Whole models beside ONNX Runtime, which runs the file that they were imported from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.compare.bench import DisagreementError, same_form
from autotune.measure.compare.onnx_session import refusals, session
from autotune.models.module import Module
from autotune.models.sizes import shape_at
from schedules.dtypes import DTYPES, is_float
from schedules.te.compute_dag import Tensor

Array = NDArray[Any]
# {peer: why a model's file does not go with it}; None where it does.
PEERS = {
    "onnxruntime": None,
    "torch.compile": "it compiles torch modules, and an ONNX file is none",
    "torch": "it runs torch modules, and an ONNX file is none",
    "llama.cpp": "it runs language models of GGUF",
}
# How far outputs of float32 may be apart, by the size of the whole output (root of the mean square): rounding
# adds up over the layers of a network, and what is wrong is far off.
FAR = 1e-3


def inputs_at(module: Module, sizes: Mapping[str, int], seed: int) -> list[Array]:
    """Random inputs of a model at these of its open sizes."""
    ol = module.program.outline
    given = zip(module.inputs, ol.inputs, strict=True)
    tensors = [replace(t, shape=shape_at(ol, n, sizes), strides=None) for t, n in given] if sizes else None
    return inputs_for(tensors or module.inputs, seed)


def inputs_for(tensors: Sequence[Tensor], seed: int) -> list[Array]:
    """Random inputs of a model: standard-normal floats, and integers 0 and 1, which any table of embeddings
    and any mask has."""
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(t.shape).astype(DTYPES[t.dtype].numpy)
        if is_float(t.dtype)
        else rng.integers(0, 2, t.shape).astype(DTYPES[t.dtype].numpy)
        for t in tensors
    ]


def onnxruntime_call(
    path: str | os.PathLike[str], module: Module, inputs: Sequence[Array]
) -> Callable[[], list[Array]]:
    """A call of ONNX Runtime on these inputs, with the module's number of threads. Raises `PeerError`."""
    with refusals(os.fspath(path)):
        made = session(os.fspath(path), module.target.threads)
    feeds = {t.name: x for t, x in zip(module.inputs, inputs, strict=True)}
    names = [t.name for t in module.outputs]
    return lambda: list(made.run(names, feeds))


def agree(module: Module, peer: str, ours: Sequence[Array], theirs: Sequence[Array]) -> None:
    """Raises `DisagreementError` where outputs are further apart than rounding explains (`FAR`)."""
    for t, a, b in zip(module.outputs, ours, theirs, strict=True):
        same_form(peer, t.name, b, a)
        x, y = (v.astype(np.float64) for v in (a, b))
        both = np.isfinite(x) & np.isfinite(y)
        size = float(np.sqrt(np.mean(y[both] ** 2))) if both.any() else 0.0
        coarser = max(1.0, DTYPES[t.dtype].epsilon / DTYPES["float32"].epsilon)
        bound = FAR * coarser * size if is_float(t.dtype) else 0.0
        apart = np.abs(np.where(both, x - y, 0)).max(initial=0.0)
        same = np.array_equal(np.where(both, 0, x), np.where(both, 0, y), equal_nan=True)
        if not same or apart > bound:
            raise DisagreementError(
                f"{peer} and the tuned model differ in {t.name} by {apart:.3g}, and its size is {size:.3g}; "
                f"leave {peer} out of --against"
            )
