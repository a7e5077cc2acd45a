"""Kernels for programs without Python: ``autotune.export`` writes a shared object, its header, a contract and
an example (ADR 49)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import backends
from autotune.backends import confined
from autotune.backends.building.shared_library import CodeOf
from autotune.codegen.runtime.c_entry import NOWHERE, OUTSIDE, STATUS
from autotune.codegen.runtime.entry import layout_of
from autotune.codegen.runtime.open_signature import open_text_of
from autotune.errors import ArgumentError
from autotune.run import export_text
from autotune.run.export_codes import ChosenCode, chosen_codes, codes_of
from autotune.run.export_text import ExportedArgument, ExportedFunction, ExportedSize
from autotune.run.kernel import Kernel
from autotune.settings import database
from autotune.targets import features
from autotune.targets.askable import baseline, best_first
from kernels_db.replacing import in_place_of
from schedules.distribution import VERSION
from schedules.dtypes import DTYPES
from schedules.ir import Buffer
from schedules.ir.nest import tensor_buffer
from schedules.model import Target

CONTRACT_VERSION = 1


@dataclass(frozen=True)
class Exported:
    """The files that `export` wrote."""

    library: Path
    header: Path
    contract: Path
    example: Path


def export(
    kernel: Kernel,
    directory: str | os.PathLike[str],
    name: str | None = None,
    *,
    targets: Sequence[str | Target] | None = None,
    db: str | os.PathLike[str] | None = None,
) -> Exported:
    """Write a kernel for the CPU as a shared object that needs no Python.

    ``directory`` is made where it is missing. It gets four files, and those of an earlier export of that name
    are replaced:

    - ``NAME.so``: ``int NAME_run(inputs ..., outputs ...)`` on pointers to the first elements of arrays,
      which are row-major, or have the strides that the kernel was tuned for, with an int64 behind them for
      each open size;
    - ``NAME.h``: its declaration, the number of elements of each argument, and whether this CPU can run it;
    - ``NAME.json``: the contract: names, shapes, dtypes and order of arguments, threads, features of the CPU;
    - ``NAME_example.c``: a program that calls it.

    ``name``: an identifier of C; by default the operator's. A kernel with constant weights has
    ``NAME_pack_WEIGHT`` for each that it reads packed.

    ``targets``: names of processors, such as ``["x86-64-v3", "x86-64-v4", "znver5"]``. The object then has
    code for each, and takes that for the processor that it runs on: of those with the widest vectors the one
    of its name, else that with the most extensions. ``NAME_target()`` says which. Where it can run none, each
    function returns 5, and computes nothing. For a target of the kernel's own processor the kernel's schedule
    is taken, for others the best of the log ``db`` (as of `load`) with as many threads, else a first pick,
    with a warning. An input that any of them reads packed is given packed.

    Raises `ArgumentError` for a name that is none, a directory that cannot be written, a kernel whose
    schedule is not known, or targets of several families; `TargetError` for targets that are none; and
    `CompileError` for a kernel of a GPU, and where there is no linker (install gcc, or the extra
    ``emulator``).

        >>> kernel = at.load("matmul", m=64, n=32, k=48)
        >>> at.export(kernel, "build").library
        PosixPath('build/matmul.so')
        >>> several = at.export(kernel, "build", "any", targets=["cpu", "x86-64-v3"])
    """
    if not isinstance(kernel, Kernel):
        raise ArgumentError(f"export takes a kernel, as at.load gives it, not a {type(kernel).__name__}")
    name = file_name(kernel.workload.op, name)
    trace = kernel.trace
    if trace is None:
        raise ArgumentError(
            f"the schedule of this kernel of {kernel.workload.op} is not known, so it cannot be compiled for "
            "export: load it by autotune.load"
        )
    found: list[ChosenCode] = []
    codes, functions = [CodeOf(trace, confined(kernel.target))], _functions(kernel, name)
    if targets is not None:
        found = chosen_codes(kernel, targets, database(db))
        codes, packed = codes_of(kernel, found)
        functions = _functions(kernel, name, packed)
    soname, chosen = f"{name}.so", f"{name}_target" if found else ""
    symbols = {f.of: f.name for f in functions}
    library = backends.of(kernel.target).shared_library(kernel.workload.dag, codes, symbols, soname, chosen)
    contract = _contract(kernel, name, functions, found)
    return _written(Path(directory), name, library, functions, contract)


def _written(
    folder: Path,
    name: str,
    library: bytes,
    functions: Sequence[ExportedFunction],
    contract: Mapping[str, Any],
) -> Exported:
    ends = (".so", ".h", ".json", "_example.c")
    files = Exported(*(folder / f"{name}{x}" for x in ends))
    with writing(folder, "kernel"):
        write_file(files.library, library)
        write_text(files.header, export_text.header(name, functions, contract))
        write_text(files.contract, json.dumps(contract, indent=1) + "\n")
        write_text(files.example, export_text.example(name, functions))
    return files


@contextmanager
def writing(folder: Path, what: str) -> Iterator[None]:
    """Make a directory for the files of a ``what``. Raises ArgumentError where they cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as err:
        raise ArgumentError(
            f"the {what} cannot be exported to {folder}: {err.strerror or err}; choose another directory"
        ) from err


def file_name(what: str, name: str | None) -> str:
    """``name``, or one of ``what`` is exported. Raises ArgumentError for what is no identifier of C."""
    if name is None:
        found = re.sub(r"\W", "_", what, flags=re.ASCII)
        return found if export_text.is_identifier(found) else f"kernel_{found}"
    if not export_text.is_identifier(name):
        raise ArgumentError(
            f"name={name!r} is no identifier of C: give letters, digits and _, such as "
            f"{file_name(what, None)!r}"
        )
    return name


def _functions(
    kernel: Kernel, name: str, packed: Mapping[int, Buffer] | None = None
) -> list[ExportedFunction]:
    """The kernel's function, then those that pack weights. ``packed``: these, by the number of the input;
    None: as the kernel reads them."""
    ins, outs = kernel.parameters
    packed = {i: ins[i] for i in kernel.packed} if packed is None else packed
    ins = tuple(packed.get(i, b) for i, b in enumerate(ins))
    opened = kernel.workload.dag.open
    told = opened.sizes if opened is not None else ()
    words = export_text.identifiers([*(b.name for b in (*ins, *outs)), *(s.name for s in told)])
    named = zip((*ins, *outs), words, strict=False)
    arguments = tuple(_argument(b, word, i >= len(ins)) for i, (b, word) in enumerate(named))
    sizes = zip(told, words[len(arguments) :], strict=True)
    found = [
        ExportedFunction(
            f"{name}_run", "", arguments, tuple(ExportedSize(s.name, w, s.least, s.most) for s, w in sizes)
        )
    ]
    tensors = {t.name: t for t in kernel.workload.dag.inputs}
    for i, word in enumerate(words[: len(ins)]):
        if i in packed:
            given = tensor_buffer(tensors[ins[i].name])
            pack = (_argument(given, f"{word}_given", False), _argument(ins[i], word, True))
            found.append(ExportedFunction(f"{name}_pack_{word}", given.name, pack))
    return found


def _argument(b: Buffer, word: str, written: bool) -> ExportedArgument:
    return ExportedArgument(b.name, word, b.dtype, layout_of(b), written)


def _contract(
    kernel: Kernel, name: str, functions: list[ExportedFunction], found: Sequence[ChosenCode] = ()
) -> dict[str, Any]:
    target = baseline([c.target for c in found]) if found else confined(kernel.target)
    record = kernel.record
    main = functions[0]
    sizes = described_sizes(main.sizes)
    returns = dict(sorted((STATUS | (OUTSIDE if sizes else {}) | (NOWHERE if found else {})).items()))
    opened = {"sizes": sizes, "open": open_text_of(kernel.workload.dag).strip()} if sizes else {}
    several = described_codes(name, found, [_schedule(c) for c in found]) if found else {}
    return (
        opened
        | several
        | {
            "contract": CONTRACT_VERSION,
            "autotune": VERSION,
            "name": name,
            "library": f"{name}.so",
            "header": f"{name}.h",
            "operator": kernel.workload.op,
            "parameters": dict(kernel.workload.params),
            "workload": kernel.workload.digest,
            "function": functions[0].name,
            "arguments": [described(a) for a in functions[0].arguments],
            "returns": {str(status): meaning for status, meaning in returns.items()},
            "packing": [
                {"weight": f.of, "function": f.name, "arguments": [described(a) for a in f.arguments]}
                for f in functions[1:]
            ],
            "threads": kernel.target.threads,
            "cpu": described_cpu(target),
            "time_s": getattr(record, "time_s", None),
            "record_id": getattr(record, "uid", None),
            "schedule": json.loads(kernel.trace.to_json()) if kernel.trace is not None else None,
        }
    )


def _schedule(c: ChosenCode) -> dict[str, Any]:
    return {
        "schedule_from": c.chosen_by,
        "time_s": c.time_s,
        "record_id": c.record_id,
        "schedule": json.loads(c.trace.to_json()),
    }


def described_codes(name: str, codes: Sequence[Any], more: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a contract says of several ``codes``, each with a name and a target, and ``more`` of each."""
    targets = [c.target for c in codes]
    return {
        "targets": [
            {"name": c.name, "arch": c.target.arch, "features": list(c.target.features), **own}
            for c, own in zip(codes, more, strict=True)
        ],
        "order": [codes[i].name for i in best_first(targets)],
        "chosen_by": f"{name}_target",
    }


def described_cpu(target: Target) -> dict[str, Any]:
    return {"triple": target.triple, "arch": target.arch, "features": list(features.known(target))}


def described_sizes(sizes: Sequence[ExportedSize]) -> list[dict[str, Any]]:
    return [{"name": s.name, "c_name": s.word, "least": s.least, "most": s.most} for s in sizes]


def described(a: ExportedArgument) -> dict[str, Any]:
    size, lies = DTYPES[a.dtype].itemsize, a.layout
    before, _ = lies.reach
    order: dict[str, Any] = {"order": "row-major"}
    if lies.strides is not None:
        order = {"order": "strided", "strides": list(lies.strides), "bytes_before": before * size}
    return {
        "name": a.name,
        "c_name": a.word,
        "c_type": export_text.C_TYPES[a.dtype],
        "role": "output" if a.written else "input",
        "dtype": a.dtype,
        "shape": list(lies.shape),
        **order,
        "bytes": lies.span * size,
        "alignment": size,
    }


def write_text(path: Path, text: str) -> None:
    """`write_file`, of a text."""
    write_file(path, text.encode())


def write_file(path: Path, data: bytes) -> None:
    """Replace a file at once: a process that has the old library mapped keeps it."""
    with in_place_of(path) as f:
        f.write(data)
        os.chmod(f.name, 0o755 if path.suffix == ".so" else 0o644)
