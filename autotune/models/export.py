"""Whole models for programs without Python: ``net.export`` writes a shared object, its header, a contract,
examples, and perhaps a file of weights (ADR 118)."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from autotune import backends
from autotune.backends import confined
from autotune.backends.building.model_library import function_object, model_library
from autotune.codegen.llvm.compile import TILES
from autotune.codegen.runtime import model_tables
from autotune.codegen.runtime.model_tables import NativeModel
from autotune.errors import ArgumentError, ModelError
from autotune.models import export_text as text
from autotune.models.export_contract import contract_of
from autotune.models.export_text import ExportedCall
from autotune.models.native_program import Bases, WrittenProgram, written_program
from autotune.models.outline import nbytes
from autotune.models.places import WEIGHT, up
from autotune.models.program import Program
from autotune.models.saving import ModuleContents
from autotune.run.export import file_name, write_file
from kernels_db.replacing import in_place_of
from schedules.graph.graph import Island
from schedules.graph.plan import ALIGNMENT

Array = NDArray[Any]
Where = Literal["auto", "inside", "beside"]
# Bytes of weights from which on they are a file of their own, and that a shared object has at most: its code
# reaches no further.
BESIDE, MOST_INSIDE = 16 << 20, 1 << 30


@dataclass(frozen=True)
class ExportedModel:
    """The files that `Module.export` wrote. ``weights``: None where they are in the library."""

    library: Path
    header: Path
    contract: Path
    example: Path
    python_example: Path
    weights: Path | None


@dataclass(frozen=True)
class _Weights:
    """Weights as kernels read them, one after the other. ``at``: where each begins, by the `id` of its array.
    ``starts``: where the first values of states begin, by users' names."""

    arrays: tuple[Array, ...]
    at: Mapping[int, int]
    starts: Mapping[str, int]
    nbytes: int

    def write(self, f: IO[bytes]) -> int:
        """Write them, and give their CRC-32."""
        crc = done = 0
        for a in self.arrays:
            gap = bytes(self.at[id(a)] - done)
            for part in (gap, memoryview(np.ascontiguousarray(a).reshape(-1).view(np.uint8))):
                crc = zlib.crc32(part, crc)
                f.write(part)
                done += len(part)
        end = bytes(self.nbytes - done)
        f.write(end)
        return zlib.crc32(end, crc)


def export_module(
    module: ModuleContents, directory: str | os.PathLike[str], name: str | None, weights: Where
) -> ExportedModel:
    """`autotune.models.module.Module.export`."""
    name = file_name(module.name, name)
    programs = [*(p.program for p in module.own), module.program]
    _check(module, programs, weights)
    held = _weights(programs)
    inside = weights == "inside" or (weights == "auto" and held.nbytes < BESIDE)
    if inside and held.nbytes > MOST_INSIDE:
        raise ArgumentError(
            f"the weights take {held.nbytes >> 20} MiB, and a shared object has {MOST_INSIDE >> 20} at most: "
            'give weights="beside"'
        )
    folder, call = Path(directory), text.call_of(module.program.outline)
    files = ExportedModel(
        *(folder / f"{name}{end}" for end in (".so", ".h", ".json", "_example.c", "_example.py")),
        None if inside else folder / f"{name}.weights",
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _written(held, files.weights) as (place, crc):
            model, library = _library(module, programs, held, name, call, crc, place if inside else None)
        contract = contract_of(module, name, call, model)
        write_file(files.library, library)
        write_file(files.header, text.header(name, call, contract).encode())
        write_file(files.contract, (json.dumps(contract, indent=1) + "\n").encode())
        write_file(files.example, text.example(name, call, inside).encode())
        write_file(files.python_example, text.python_example(name, call, inside).encode())
    except OSError as err:
        raise ArgumentError(
            f"the model cannot be exported to {folder}: {err.strerror or err}; choose another directory"
        ) from err
    return files


def _check(module: ModuleContents, programs: Sequence[Program], weights: str) -> None:
    """Raise ModelError for what only Python runs."""
    if weights not in ("auto", "inside", "beside"):
        raise ArgumentError(f'weights={weights!r} is neither "auto", "inside" nor "beside"')
    for p in programs:
        islands = [f"{s.name} ({s.op})" for s in p.outline.steps if isinstance(s, Island)]
        if islands:
            raise ModelError(
                f"{module.name} has operators that only Python runs: {', '.join(islands[:3])}; a model for C "
                "has none: import it without islands, which says what is not supported"
            )
        if p.codes:
            raise ModelError(
                f"{module.name} takes the memory of inputs for outputs (donate), which a model for C does "
                "not: compile it without donate"
            )
        for k in p.kernels:
            if k.trace is None:
                raise ModelError(
                    f"the schedule of the kernel of {k.workload.op} is not known, so it cannot be compiled "
                    "for export: compile the model by compile_model"
                )


def _weights(programs: Sequence[Program]) -> _Weights:
    arrays: dict[int, Array] = {}
    for p in programs:
        arrays |= {id(a.weight): a.weight for places in p.arguments for a in places if a.base == WEIGHT}
    initial = programs[-1].initial
    at, end = {}, 0
    for a in (*arrays.values(), *initial.values()):
        at[id(a)] = end
        end = up(end + a.nbytes, ALIGNMENT)
    starts = {name: at[id(a)] for name, a in initial.items()}
    return _Weights((*arrays.values(), *initial.values()), at, starts, max(end, ALIGNMENT))


@contextmanager
def _written(held: _Weights, place: Path | None) -> Iterator[tuple[Path, int]]:
    """The file of weights with its checksum: at ``place``, or for a while. An older one there is replaced
    when the rest has been written."""
    if place is not None:
        with in_place_of(place) as f:
            crc = held.write(f)
            os.chmod(f.name, 0o644)
            yield place, crc
        return
    with tempfile.NamedTemporaryFile() as f:
        crc = held.write(f)
        f.flush()
        yield Path(f.name), crc


def _library(
    module: ModuleContents,
    programs: Sequence[Program],
    held: _Weights,
    name: str,
    call: ExportedCall,
    crc: int,
    inside: Path | None,
) -> tuple[NativeModel, bytes]:
    """The model as tables, and its shared object. ``inside``: the file of weights that is a part of it."""
    whole = programs[-1].outline
    bases = Bases(
        len(whole.inputs), len(dict.fromkeys(whole.outputs)), tuple(sorted(whole.states)),
        tuple(s.name for s in whole.sizes),
    )  # fmt: skip
    target = confined(module.target)
    symbols: dict[str, str] = {}  # {digests of task and schedule: function}
    objects: list[bytes] = []
    written: list[WrittenProgram] = []
    for number, p in enumerate(programs):
        sizes = module.own[number].sizes if number < len(module.own) else {}
        functions = {i: _compiled(k, symbols, objects) for i, k in enumerate(p.kernels)}
        made = written_program(p, bases, f"at_p{number}", sizes, held.at, functions)
        objects += [function_object(f, target, symbol) for symbol, f in made.functions.items()]
        written.append(made)
    states_at = up(max(w.memory_bytes for w in written), ALIGNMENT)
    places, end = {}, 0
    for user in bases.states:
        places[user] = end
        end = up(end + nbytes(whole.tensors[whole.states[user].tensor]), ALIGNMENT)
    model = NativeModel(
        # what says more sizes goes first, as `FormsBySize` has it
        tuple(sorted((w.tables for w in written), key=lambda p: p.sizes.count(None))),
        bases.inputs,
        bases.outputs,
        tuple((s.least, s.most) for s in whole.sizes),
        tuple(places.values()),
        states_at,
        end,
        tuple((places[n], at, programs[-1].initial[n].nbytes) for n, at in held.starts.items()),
        max(w.numbers for w in written),
        states_at + end,
        held.nbytes,
        crc,
        inside is not None,
        any(TILES in x for x in objects),
    )
    source = model_tables.source(model, name, text.wrapper(name, call))
    functions = [f"{name}_{f}" for f in call.functions]
    return model, model_library(objects, [source], target, functions, f"{name}.so", inside)


def _compiled(kernel: Any, symbols: dict[str, str], objects: list[bytes]) -> str:
    """The function of a kernel, which is compiled once."""
    target = confined(kernel.target)
    key = f"{kernel.workload.digest} {kernel.trace.to_json()} {target.threads}"
    if key not in symbols:
        symbols[key] = f"at_kernel_{len(symbols)}"
        made = backends.of(target).kernel_object(kernel.workload.dag, kernel.trace, target, symbols[key])
        objects.append(made)
    return symbols[key]
