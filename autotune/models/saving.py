"""Writes models to files and pickles: an uncompressed zip of a JSON document and the weights as ``.npy``.

The document has the outline of the model and, for each task, its expression, schedule and target as `pickle`
has a kernel. There is no code in it. `autotune.models.saved` reads it.
"""

from __future__ import annotations

import base64
import io
import os
import zipfile
from collections.abc import Sequence
from typing import IO, Any

from autotune.models.archive import replaced, write_array
from autotune.models.outline import KernelCall, Outline
from autotune.models.program import Program
from autotune.models.signature import Signature, as_json
from schedules.expr_json import to_json
from schedules.graph.graph import Argument, Island
from schedules.model import Target, canonical
from schedules.te.compute_dag import Tensor

# Files of models that have strides have a version of their own, as older readers know none. So have those of
# models with open sizes or states.
FORMAT, FIRST_VERSION, WITH_STRIDES, VERSION = "autotune model", 1, 2, 3
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
    document = canonical(_document(program, name, target, tuned_s, signature))
    replaced(path, lambda f: _write(f, document, program))


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
            write_array(z, member_name(i), program.weight(weight))
        for i, state in enumerate(program.outline.states):
            if state in program.initial:
                write_array(z, state_member(i), program.initial[state])


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
        lies = [[name, *_argument(at)] for name, at in ol.views.items()]
        called["views"], called["joins"] = lies, [[name, list(of)] for name, of in ol.joins.items()]
    lies_otherwise = bool(ol.views) or any(t.strides is not None for t in ol.tensors.values())
    version = WITH_STRIDES if lies_otherwise else FIRST_VERSION
    if ol.sizes:
        called |= _sizes(ol)
    if ol.states:
        states = [[name, s.tensor, s.new, name in program.initial] for name, s in ol.states.items()]
        called["states"] = states
    if ol.counts:
        called["counts"] = [[c.name, c.least, c.most, to_json(c.number)] for c in ol.counts]
    if ol.sizes or ol.states:
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
        "reads": [_argument(a) for a in s.reads],
        "writes": list(s.writes),
        "origins": list(s.origins),
    }


def _argument(a: Argument) -> list[Any]:
    moves = [
        [to_json(m.index), m.stride, m.rows, m.extent, *([] if m.counted is None else [to_json(m.counted)])]
        for m in a.moves
    ]
    return [a.tensor, a.start, *([moves] if moves else [])]


def member_name(number: int) -> str:
    """The name of a weight's member."""
    return f"weights/{number}.npy"


def state_member(number: int) -> str:
    """The name of the member with a state's first value."""
    return f"states/{number}.npy"
