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
from dataclasses import dataclass
from hashlib import sha256
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from autotune.models.archive import replaced, write_array
from autotune.models.outline import KernelCall, Outline
from autotune.models.own_programs import OwnProgram
from autotune.models.program import Program
from autotune.models.signature import Signature, as_json
from schedules.expr_json import to_json
from schedules.graph.graph import Argument, Island
from schedules.model import Target, canonical
from schedules.te.compute_dag import Tensor

Array = NDArray[Any]
# Files of models that have strides have a version of their own, as older readers know none. So have those of
# models with open sizes or states, and those with several programs.
FORMAT, FIRST_VERSION, WITH_STRIDES, WITH_SIZES, VERSION = "autotune model", 1, 2, 3, 4
DOCUMENT = "model.json"


@dataclass(frozen=True)
class ModuleContents:
    """What is written of a module. ``program``, ``tuned_s``, ``signature``, ``own``: as of `Module`."""

    program: Program
    name: str
    target: Target
    tuned_s: Sequence[float | None]
    signature: Signature | None = None
    own: Sequence[OwnProgram] = ()


def save(module: ModuleContents, path: str | os.PathLike[str]) -> None:
    """Write a model to a file, whole or not at all. Raises `ModelError`."""
    document = _document(module)
    replaced(path, lambda f: _write(f, document, module))


def as_bytes(module: ModuleContents) -> bytes:
    """What `save` would write, for a pickle."""
    f = io.BytesIO()
    _write(f, _document(module), module)
    return f.getvalue()


def _write(f: IO[bytes], document: dict[str, Any], module: ModuleContents) -> None:
    program = module.program
    with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
        if not module.own:
            z.writestr(zipfile.ZipInfo(DOCUMENT), canonical(document))
        written = _Weights(z, bool(module.own))
        members = [written.add(program.weight(n)) for n in program.outline.constants]
        for i, state in enumerate(program.outline.states):
            if state in program.initial:
                write_array(z, state_member(i), program.initial[state])
        if module.own:
            document["members"] = members
            for told, own in zip(document["own"], module.own, strict=True):
                told["members"] = [written.add(own.program.weight(n)) for n in own.program.outline.constants]
            z.writestr(zipfile.ZipInfo(DOCUMENT), canonical(document))


class _Weights:
    """The members of weights, numbered from 0. ``once``: whether equal ones are one."""

    def __init__(self, z: zipfile.ZipFile, once: bool) -> None:
        self._z, self._once, self._count = z, once, 0
        self._known: dict[Any, int] = {}

    def add(self, value: Array) -> int:
        """The number of the member that has a value."""
        if self._once:
            raw: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            number = self._known.setdefault((value.dtype.str, value.shape, sha256(raw).digest()), self._count)
            if number < self._count:
                return number
        write_array(self._z, member_name(self._count), value)
        self._count += 1
        return self._count - 1


def _document(module: ModuleContents) -> dict[str, Any]:
    found = _of_program(module.program, module.tuned_s)
    if module.signature is not None:
        found["signature"] = as_json(module.signature)
    if module.own:
        found["version"] = VERSION
        found["own"] = [
            {"sizes": [[n, k] for n, k in p.sizes.items()], "program": _of_program(p.program, p.tuned_s)}
            for p in module.own
        ]
    return found | {"format": FORMAT, "name": module.name, "target": module.target.json}


def _of_program(program: Program, tuned_s: Sequence[float | None]) -> dict[str, Any]:
    ol = program.outline
    more: dict[str, Any] = {}
    if ol.views:
        lies = [[name, *_argument(at)] for name, at in ol.views.items()]
        more["views"], more["joins"] = lies, [[name, list(of)] for name, of in ol.joins.items()]
    lies_otherwise = bool(ol.views) or any(t.strides is not None for t in ol.tensors.values())
    version = WITH_STRIDES if lies_otherwise else FIRST_VERSION
    if ol.sizes:
        more |= _sizes(ol)
    if ol.states:
        states = [[name, s.tensor, s.new, name in program.initial] for name, s in ol.states.items()]
        more["states"] = states
    if ol.counts:
        more["counts"] = [[c.name, c.least, c.most, to_json(c.number)] for c in ol.counts]
    if ol.sizes or ol.states:
        version = WITH_SIZES
    return more | {
        "version": version,
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
