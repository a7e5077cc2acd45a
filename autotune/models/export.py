"""Whole models for programs without Python: ``net.export`` writes a shared object, its header, a contract,
examples, and perhaps a file of weights (ADR 118)."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from autotune.backends import confined
from autotune.backends.building.model_library import ModelParts, function_code, model_library
from autotune.codegen.llvm.compile import TILES
from autotune.codegen.runtime import model_tables
from autotune.codegen.runtime.model_tables import NativeModel
from autotune.errors import ArgumentError, ModelError
from autotune.models import export_text as text
from autotune.models.export_codes import CodeSet, own_set, scratch_of, sets_of
from autotune.models.export_contract import contract_of
from autotune.models.export_text import ExportedCall
from autotune.models.export_weights import (
    FileWeights,
    ReadWeights,
    plain_weights,
    read_weights,
    stored_weights,
)
from autotune.models.native_program import Bases, ProgramWriter, WrittenProgram
from autotune.models.outline import nbytes
from autotune.models.places import up
from autotune.models.program import Program
from autotune.models.saving import ModuleContents
from autotune.run.export import file_name, write_file, write_text, writing
from autotune.settings import database
from autotune.targets.askable import baseline
from kernels_db.replacing import in_place_of
from kernels_db.temporary import temporary_place
from schedules.graph.graph import Island
from schedules.graph.plan import ALIGNMENT
from schedules.model import Target

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


def export_module(
    module: ModuleContents,
    directory: str | os.PathLike[str],
    name: str | None,
    weights: Where,
    targets: Sequence[str | Target] | None = None,
    db: str | os.PathLike[str] | None = None,
) -> ExportedModel:
    """`autotune.models.module.Module.export`."""
    name = file_name(module.name, name)
    programs = [*(p.program for p in module.own), module.program]
    _check(module, programs, weights)
    if targets is None:
        codes, file = [own_set(name, programs, confined(module.target))], stored_weights(programs)
        reads = [ReadWeights(file.at)]
    else:
        codes = sets_of(name, programs, targets, database(db))
        file, each = plain_weights(programs)
        reads = [read_weights(file, each, code) for code in codes]
    inside = weights == "inside" or (weights == "auto" and file.nbytes < BESIDE)
    if inside and file.nbytes > MOST_INSIDE:
        raise ArgumentError(
            f"the weights take {file.nbytes >> 20} MiB, and a shared object has {MOST_INSIDE >> 20} at most: "
            'give weights="beside"'
        )
    folder, call = Path(directory), text.call_of(module.program.outline)
    files = ExportedModel(
        library=folder / f"{name}.so",
        header=folder / f"{name}.h",
        contract=folder / f"{name}.json",
        example=folder / f"{name}_example.c",
        python_example=folder / f"{name}_example.py",
        weights=None if inside else folder / f"{name}.weights",
    )
    with writing(folder, "model"):
        with _written(file, files.weights) as (place, crc):
            models = [
                _model(module, code, read, file.nbytes, crc, inside)
                for code, read in zip(codes, reads, strict=True)
            ]
            library = _library(name, call, codes, models, place if inside else None)
        contract = contract_of(module, name, call, codes, [model for model, _ in models])
        write_file(files.library, library)
        write_text(files.header, text.header(name, call, contract))
        write_text(files.contract, json.dumps(contract, indent=1) + "\n")
        write_text(files.example, text.example(name, call, inside))
        write_text(files.python_example, text.python_example(name, call, inside))
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


@contextmanager
def _written(file: FileWeights, place: Path | None) -> Iterator[tuple[Path, int]]:
    """The file of weights with its checksum: at ``place``, or for a while. An older one there is replaced
    when the rest has been written."""
    if place is not None:
        with in_place_of(place) as f:
            crc = file.write(f)
            os.chmod(f.name, 0o644)
            yield place, crc
        return
    with tempfile.NamedTemporaryFile(dir=temporary_place()) as f:
        crc = file.write(f)
        f.flush()
        yield Path(f.name), crc


def _model(
    module: ModuleContents, code: CodeSet, read: ReadWeights, weights_bytes: int, crc: int, inside: bool
) -> tuple[NativeModel, list[bytes]]:
    """The model as tables, and objects of its kernels. ``weights_bytes``, ``crc``: of the file."""
    whole = code.programs[-1].outline
    bases = Bases(
        len(whole.inputs), len(dict.fromkeys(whole.outputs)), tuple(sorted(whole.states)),
        tuple(s.name for s in whole.sizes),
    )  # fmt: skip
    objects, written = code.objects, list[WrittenProgram]()
    for number, p in enumerate(code.programs):
        sizes = module.own[number].sizes if number < len(module.own) else {}
        functions = {i: code.code(k).main.symbol for i, k in enumerate(p.kernels)}
        prefix = f"at_{code.prefix}_p{number}"
        made = ProgramWriter(p, bases, prefix, sizes, read.at, functions).written()
        objects += [function_code(f, code.target, s).code for s, f in made.functions.items()]
        written.append(made)
    states_at = up(max(w.memory_bytes for w in written), ALIGNMENT)
    places, end = {}, 0
    for user in bases.states:
        places[user] = end
        end = up(end + nbytes(whole.tensors[whole.states[user].tensor]), ALIGNMENT)
    initial = code.programs[-1].initial
    model = NativeModel(
        # what says more sizes goes first, as `FormsBySize` has it
        programs=tuple(sorted((w.tables for w in written), key=lambda p: p.sizes.count(None))),
        inputs=bases.inputs,
        outputs=bases.outputs,
        sizes=tuple((s.least, s.most) for s in whole.sizes),
        states=tuple(places.values()),
        states_at=states_at,
        states_bytes=end,
        starts=tuple((places[n], read.at[id(a)], a.nbytes) for n, a in initial.items()),
        numbers=max(w.numbers for w in written),
        memory_bytes=states_at + end,
        weights_bytes=weights_bytes,
        crc=crc,
        inside=inside,
        tiles=any(TILES in x for x in objects),
        packs=read.packs,
        block_bytes=read.nbytes,
        pack_scratch=scratch_of(code),
    )
    return model, objects


def _library(
    name: str,
    call: ExportedCall,
    codes: Sequence[CodeSet],
    models: Sequence[tuple[NativeModel, list[bytes]]],
    inside: Path | None,
) -> bytes:
    """The shared object. ``inside``: the file of weights that is a part of it."""
    sources = [
        model_tables.source(model, name, text.wrapper(name, call), code.prefix)
        for code, (model, _) in zip(codes, models, strict=True)
    ]
    sources.append(model_tables.common(name, inside is not None))
    parts = ModelParts(
        [x for _, objects in models for x in objects],
        sources,
        [f"{name}_{f}" for f in call.functions],
        inside,
    )
    if codes[0].packs:
        targets = [c.target for c in codes]
        entries = text.entries(name, call)
        names = [c.name for c in codes]
        several = replace(parts, entries=entries, targets=targets, names=names, chosen=f"{name}_target")
        return model_library(several, baseline(targets), f"{name}.so")
    return model_library(parts, codes[0].target, f"{name}.so")
