"""Writes models to files and pickles: an uncompressed zip of a JSON document and the weights as ``.npy``.

The document has the outline of the model and, for each task, its expression, schedule and target as `pickle`
has a kernel. There is no code in it. `autotune.models.saved` reads it.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ModelError
from autotune.models.outline import KernelCall, Outline
from autotune.models.program import Program
from autotune.models.signature import Signature, as_json
from kernels_db.errors import LogError
from kernels_db.replacing import check_replaceable
from schedules.dtypes import DTYPES
from schedules.expr_json import to_json
from schedules.graph.graph import Island
from schedules.model import Target, canonical
from schedules.te.compute_dag import Tensor

Array = NDArray[Any]
# Files of models that have strides, and of those that have open sizes, have versions of their own, as older
# readers know none.
FORMAT, FIRST_VERSION, STRIDED_VERSION, VERSION = "autotune model", 1, 2, 3
DOCUMENT = "model.json"


def save(
    program: Program,
    name: str,
    target: Target,
    tuned_s: Sequence[float | None],
    path: str | os.PathLike[str],
    signature: Signature | None = None,
) -> None:
    """Write a model to a file, whole or not at all. ``tuned_s``, ``signature``: as of `Module`. Raises
    `ModelError`."""
    place = Path(path)
    try:
        check_replaceable(place)
    except LogError as err:
        raise ModelError(str(err)) from None
    document = _document(program, name, target, tuned_s, signature)
    try:
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=place.name, delete=False) as f:
            try:
                _write(f, canonical(document), program)
                f.close()
                os.replace(f.name, place)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(f.name)
                raise
    except OSError as err:
        raise ModelError(f"{place} cannot be written: {err.strerror or err}") from err


def as_bytes(
    program: Program,
    name: str,
    target: Target,
    tuned_s: Sequence[float | None],
    signature: Signature | None = None,
) -> bytes:
    """What `save` would write, for a pickle."""
    f = io.BytesIO()
    _write(f, canonical(_document(program, name, target, tuned_s, signature)), program)
    return f.getvalue()


def _write(f: IO[bytes], document: str, program: Program) -> None:
    with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
        z.writestr(zipfile.ZipInfo(DOCUMENT), document)
        for i, weight in enumerate(program.outline.constants):
            with z.open(zipfile.ZipInfo(member_name(i)), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _plain(program.weight(weight)), allow_pickle=False)


def _document(
    program: Program,
    name: str,
    target: Target,
    tuned_s: Sequence[float | None],
    signature: Signature | None,
) -> dict[str, Any]:
    ol = program.outline
    called: dict[str, Any] = {} if signature is None else {"signature": as_json(signature)}
    if ol.views:
        lies = [[name, at.tensor, at.start] for name, at in ol.views.items()]
        called["views"], called["joins"] = lies, [[name, list(of)] for name, of in ol.joins.items()]
    lies_otherwise = bool(ol.views) or any(t.strides is not None for t in ol.tensors.values())
    version = STRIDED_VERSION if lies_otherwise else FIRST_VERSION
    if ol.sizes:
        called |= _sizes(ol)
        version = VERSION
    return called | {
        "format": FORMAT,
        "version": version,
        "name": name,
        "target": target.json,
        "tensors": [_tensor(t) for t in ol.tensors.values()],
        "inputs": list(ol.inputs),
        "outputs": list(ol.outputs),
        "weights": list(ol.constants),
        "labels": dict(ol.labels),
        "kernels": [
            {"text": k.as_text(), "tuned_s": s} for k, s in zip(program.kernels, tuned_s, strict=True)
        ],
        "steps": [_step(s) for s in ol.steps],
    }


def _sizes(ol: Outline) -> dict[str, Any]:
    """The sizes, each with the extent that tells it, and the extents that depend on them."""
    return {
        "sizes": [[s.name, s.least, s.most, s.source.input, s.source.dim] for s in ol.sizes],
        "extents": [[name, d, to_json(e)] for name, extents in ol.extents.items() for d, e in extents],
    }


def _tensor(t: Tensor) -> list[Any]:
    return [t.name, list(t.shape), t.dtype, *([] if t.strides is None else [list(t.strides)])]


def _step(s: KernelCall | Island) -> dict[str, Any]:
    if isinstance(s, Island):
        return {
            "island": s.name,
            "op": s.op,
            "reads": list(s.reads),
            "writes": [_tensor(t) for t in s.writes],
            "payload": base64.b64encode(s.payload).decode(),
        }
    return ({"sizes": list(s.sizes)} if s.sizes else {}) | {
        "task": s.task,
        "reads": [[a.tensor, a.start] for a in s.reads],
        "writes": list(s.writes),
        "origins": list(s.origins),
    }


def member_name(number: int) -> str:
    """The name of a weight's member."""
    return f"weights/{number}.npy"


def _plain(value: Array) -> Array:
    """A weight as an array of a dtype that numpy itself has, which ``.npy`` can tell."""
    return value.view(plain_dtype(value.dtype.name))


def plain_dtype(dtype: str) -> np.dtype[Any]:
    row = DTYPES[dtype]
    return row.numpy if row.module == "numpy" else np.dtype(f"u{row.itemsize}")
