"""Reads models from files and out of pickles (`autotune.models.saving`).

A file may come from anywhere. Every schedule goes through the checks of one of a log and is compiled here, or
found in this machine's own cache. Arrays go through those of an `Archive`.
"""

from __future__ import annotations

import base64
import io
import math
import os
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from autotune import backends, targets
from autotune.errors import CompileError, MissingExtraError, ModelError, refused
from autotune.measure.memory import free_bytes
from autotune.models.archive import Archive, Damaged, short
from autotune.models.compiling import Missing, untuned_kernels
from autotune.models.fallback import run_island
from autotune.models.model import MOST_OWN
from autotune.models.module import Module
from autotune.models.outline import KernelCall, Outline, arena, nbytes
from autotune.models.own_programs import OwnProgram, check_own, joint_tasks
from autotune.models.program import Program
from autotune.models.row_counts import RowCount
from autotune.models.saving import DOCUMENT, FIRST_VERSION, FORMAT, VERSION, member_name, state_member
from autotune.models.signature import read as read_signature
from autotune.models.sizes import told_sizes
from autotune.models.weights import KeptOnce
from autotune.run.kernel import Kernel
from autotune.run.kernels import kernel_of
from autotune.run.pickled import read as read_kernel
from autotune.run.untuned import WORDS
from autotune.settings import database
from kernels_db.opening import open_regular
from schedules.distribution import install
from schedules.documents import (
    any_text,
    flag,
    integer,
    items,
    list_of,
    mapping_of,
    nullable,
    number,
    one_of,
    record,
)
from schedules.dtypes import DTYPES
from schedules.errors import AutotuneError, ScheduleError
from schedules.expr import Expr
from schedules.expr_json import from_json
from schedules.graph.graph import Argument, GraphState, Island, PlaceMove
from schedules.model import Target, Trace, TraceError, Workload
from schedules.te.compute_dag import Tensor

Array = NDArray[Any]
StoredKernel = tuple[Workload, Target, Trace, str]
MOST_MOVES = 8  # numbers of a call that move one place
CHOSEN_BY = ("log", "schedule", *WORDS)
# What a reader of a malformed document raises.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)


def load_model(
    path: str | os.PathLike[str], *, fallback: bool = False, db: str | os.PathLike[str] | None = None
) -> Module:
    """The model that `Module.save` wrote, ready to run.

    Nothing in the file is executed: every schedule is checked as one of a log is, and compiled here or found
    in the cache of compiled objects. Weights are packed one after the other, so that memory holds them little
    more than once. A model that was tuned for another machine is refused; ``fallback=True`` allows it:
    schedules whose instructions this CPU has are taken as they are, and other tasks get kernels that were not
    tuned, as of `autotune.load`, which looks into the log ``db``. A warning says so.

    Example: ``net = at.load_model("net.at"); y = net(x)``.

    Raises `ModelError` for a file that is none, is damaged or is for another machine.
    """
    place = Path(path)
    try:
        with open_regular(place) as f:
            return _loaded(_Place(str(place)), f, fallback, database(db))
    except OSError as err:
        raise ModelError(f"{place} cannot be read: {refused(err)}") from err


def unpickled(data: bytes, donate: Sequence[str] = ()) -> Module:
    """The model of what `pickle` has in its place: the bytes of its file, and inputs whose memory calls take.
    They go through every check of one,
    and no other machine's schedules are taken. Raises `ModelError`."""
    remedy = "save it to a file, and allow it there: autotune.load_model(path, fallback=True)"
    found = _loaded(_Place("the pickled model", remedy), io.BytesIO(data), False, database(None))
    return found.donating(donate) if donate else found


@dataclass(frozen=True)
class _Place:
    """Where a model is read from, for messages. ``allow``: how one for another machine is taken."""

    name: str
    allow: str = "allow it: fallback=True"

    def __str__(self) -> str:
        return self.name


def _loaded(place: _Place, f: IO[bytes], fallback: bool, where: str) -> Module:
    try:
        with zipfile.ZipFile(f) as z:
            return _load(place, z, fallback, where)
    except zipfile.BadZipFile as err:
        raise ModelError(f"{place} is no saved model, or damaged: {err}") from None
    except Damaged as err:
        raise ModelError(f"{place} is damaged: {err}") from err.__cause__


def _load(place: _Place, z: zipfile.ZipFile, fallback: bool, where: str) -> Module:
    archive = Archive(z, str(place), DOCUMENT, "saved model")
    told = _document(archive, place)
    try:
        v = _MODEL(told)
        stored = [_stored(v), *(_stored(p["program"] | {"members": p["members"]}) for p in v.get("own", ()))]
        sizes = [dict(p["sizes"]) for p in v.get("own", ())]
        whole = stored[0].outline
        for own, at in zip(stored[1:], sizes, strict=True):
            check_own(whole, own.outline, at)
        call = v.get("signature")
        signature = None if call is None else read_signature(call, len(whole.inputs), len(whole.outputs))
        starts = _initial_members(v.get("states", ()))
    except (*MALFORMED, CompileError) as err:
        raise Damaged(short(err)) from err
    known = {DOCUMENT, *(m for p in stored for m in p.members.values()), *starts.values()}
    if odd := sorted(set(archive.members) - known):
        raise Damaged(f"it holds {odd[0]!r}, which no saved model has")
    _check_room(place, [p.outline for p in stored])
    target: Target = v["target"]
    found = _kernels(place, stored, [{}, *sizes], target, fallback, where)
    initial = {
        name: archive.array(member, whole.tensors[whole.states[name].tensor], f"state {name!r}")
        for name, member in starts.items()
    }
    once = KeptOnce() if sizes else None
    made: list[tuple[Program, tuple[float | None, ...]]] = []
    for p, kernels in zip(stored, found, strict=True):
        program = Program.of(
            p.outline, kernels, p.reader(archive), run_island, mine=True, initial=initial, once=once
        )
        made.append((program, p.seconds(kernels)))
    first = next((k for kernels in found for k in kernels), None)
    here = target if backends.runnable(target) or first is None else first.target
    own_programs = [OwnProgram(at, *m) for at, m in zip(sizes, made[1:], strict=True)]
    return Module(made[0][0], here, v["name"], made[0][1], signature=signature, own=own_programs)


@dataclass(frozen=True)
class _Stored:
    """A program of a file. ``kernels``: text and seconds of each task's. ``members``: of its weights."""

    outline: Outline
    kernels: tuple[StoredKernel, ...]
    tuned_s: tuple[float | None, ...]
    members: Mapping[str, str]

    def reader(self, archive: Archive) -> Callable[[str], Array]:
        """What reads a weight's value."""

        def read(name: str) -> Array:
            return archive.array(self.members[name], self.outline.tensors[name], f"weight {name!r}")

        return read

    def seconds(self, kernels: Sequence[Kernel]) -> tuple[float | None, ...]:
        """What the kernels took when they were tuned, as far as they are for the same machine."""
        every = zip(self.tuned_s, kernels, self.kernels, strict=True)
        return tuple(s if k.target == t else None for s, k, (_, t, *_) in every)


def _stored(v: Mapping[str, Any]) -> _Stored:
    """A program of a document. Raises ValueError, ModelError."""
    kernels = tuple(k["text"] for k in v["kernels"])
    outline = _outline(v, [workload for workload, *_ in kernels])
    _check_islands(outline)
    numbers = v.get("members", range(len(outline.constants)))
    members = dict(zip(outline.constants, map(member_name, numbers), strict=True))
    return _Stored(outline, kernels, tuple(k["tuned_s"] for k in v["kernels"]), members)


def _document(archive: Archive, place: _Place) -> dict[str, Any]:
    v = archive.document()
    if not isinstance(v, dict) or v.get("format") != FORMAT:
        raise ModelError(f"{place} is no saved model: {DOCUMENT} is another document")
    if v.get("version") not in range(FIRST_VERSION, VERSION + 1):
        raise ModelError(
            f"{place} has version {str(v.get('version'))[:40]}, and this autotune reads {FIRST_VERSION} to "
            f"{VERSION}: save the model again, or use the autotune that wrote it"
        )
    return v


def _initial_members(states: Sequence[Sequence[Any]]) -> dict[str, str]:
    """{state that does not begin with zeros: the member that has its value}."""
    return {name: state_member(i) for i, (name, _, _, given) in enumerate(states) if given}


def _outline(v: Mapping[str, Any], tasks: Sequence[Workload]) -> Outline:
    tensors = {t.name: t for t in v["tensors"]}
    if len(tensors) != len(v["tensors"]):
        raise ValueError("two tensors have one name")
    extents: dict[str, tuple[tuple[int, Expr], ...]] = {}
    for name, d, extent in v.get("extents", ()):
        extents[name] = (*extents.get(name, ()), (d, extent))
    states = {name: GraphState(tensor, new) for name, tensor, new, _ in v.get("states", ())}
    if len(states) != len(v.get("states", ())):
        raise ValueError("two states have one name")
    return Outline(
        tensors, v["inputs"], v["outputs"], v["weights"], tuple(tasks), v["steps"], v["labels"],
        dict(v.get("views", ())), dict(v.get("joins", ())), told_sizes(v.get("sizes", ()), extents), extents,
        states, tuple(RowCount(*c) for c in v.get("counts", ())),
    )  # fmt: skip


def _check_islands(outline: Outline) -> None:
    """Raise ModelError for an island whose payload may do more than its step says."""
    islands = [s for s in outline.steps if isinstance(s, Island)]
    if not islands:
        return
    try:
        from autotune.models.onnx_payload import check_payload
    except ImportError as err:
        raise MissingExtraError(
            f"{err}; a model with islands needs the extra onnx: {install('onnx')}"
        ) from err
    for s in islands:
        check_payload(s.payload, s.op, [outline.tensors[name] for name in s.reads], s.writes)


def _read_tensor(x: Any) -> Tensor:
    found = Tensor(*(_STRIDED if isinstance(x, list) and len(x) == 4 else _TENSOR)(x))
    if found.strides is not None and len(found.strides) != len(found.shape):
        raise ValueError(f"tensor {found.name!r} has {len(found.strides)} strides")
    if found.nbytes >= 1 << 56:
        raise ValueError(f"tensor {found.name!r} is too large")
    return found


def _read_step(x: Any) -> KernelCall | Island:
    if isinstance(x, dict) and "island" in x:
        v = _ISLAND(x)
        payload = base64.b64decode(v["payload"], validate=True)
        return Island(v["island"], v["op"], v["reads"], v["writes"], payload)
    v = _CALL(x)
    return KernelCall(v["task"], v["reads"], v["writes"], v["origins"], v.get("sizes", ()))


def _read_argument(x: Any) -> Argument:
    """A place in a tensor, perhaps with what moves it."""
    if isinstance(x, list) and len(x) == 3:
        name, start, moves = _MOVED(x)
        return Argument(name, start, moves)
    return Argument(*_PLACE(x))


def _read_move(x: Any) -> PlaceMove:
    open_rows = isinstance(x, list) and len(x) == 5
    return PlaceMove(*(_OPEN_MOVE if open_rows else _MOVE)(x))


def _read_view(x: Any) -> tuple[str, Argument]:
    name, *place = x if isinstance(x, list) and x else ("",)
    return any_text(name), _read_argument(place)


_SIZE, _TEXTS = integer(0, (1 << 48) - 1, "a size"), list_of(any_text)
_LENGTH = integer(1, (1 << 48) - 1, "a size of at least 1")
_TENSOR = items(any_text, list_of(_LENGTH), one_of(*DTYPES))
_STRIDED = items(any_text, list_of(_LENGTH), one_of(*DTYPES), list_of(_SIZE))
_ISLAND = record(
    {
        "island": any_text,
        "op": any_text,
        "reads": _TEXTS,
        "writes": list_of(_read_tensor),
        "payload": any_text,
    }
)
_PLACE = items(any_text, _SIZE)
_MOVE = items(from_json, _LENGTH, _LENGTH, _LENGTH)
_OPEN_MOVE = items(from_json, _LENGTH, _LENGTH, _LENGTH, from_json)
_MOVED = items(any_text, _SIZE, list_of(_read_move, MOST_MOVES))
_CALL = record(
    {"task": _SIZE, "reads": list_of(_read_argument), "writes": _TEXTS, "origins": _TEXTS},
    {"sizes": _TEXTS},
)
_PROGRAM: dict[str, Any] = {
    "version": integer(FIRST_VERSION, VERSION),
    "tensors": list_of(_read_tensor),
    "inputs": _TEXTS,
    "outputs": _TEXTS,
    "weights": _TEXTS,
    "labels": mapping_of(any_text),
    "kernels": list_of(
        record(
            {
                "text": lambda x: read_kernel(any_text(x)),
                "tuned_s": nullable(number(math.ulp(0.0), 1e6, "seconds")),
            }
        )
    ),
    "steps": list_of(_read_step),
}
_MORE_OF_PROGRAM: dict[str, Any] = {
    "views": list_of(_read_view),
    "joins": list_of(items(any_text, _TEXTS)),
    "sizes": list_of(items(any_text, _SIZE, _SIZE, any_text, _SIZE)),
    "extents": list_of(items(any_text, _SIZE, from_json)),
    "counts": list_of(items(any_text, _SIZE, _SIZE, from_json)),
    "states": list_of(items(any_text, any_text, any_text, flag)),
}
_OWN = record(
    {
        "sizes": list_of(items(any_text, _LENGTH)),
        "program": record(_PROGRAM, _MORE_OF_PROGRAM),
        "members": list_of(_SIZE),
    }
)
_MODEL = record(
    {"format": one_of(FORMAT), "name": any_text, "target": lambda x: Target.from_json(any_text(x))}
    | _PROGRAM,
    {"signature": lambda x: x, "own": list_of(_OWN, MOST_OWN), "members": list_of(_SIZE)} | _MORE_OF_PROGRAM,
)


def _check_room(place: _Place, outlines: Sequence[Outline]) -> None:
    """Raise ModelError for what memory cannot hold."""
    needed = sum(arena(ol).nbytes for ol in outlines)
    for ol in outlines[:1]:
        kept = {*ol.constants, *(s.tensor for s in ol.states.values()), *ol.inputs, *ol.outputs}
        needed += sum(nbytes(t) for n, t in ol.tensors.items() if n in kept)
    if needed > free_bytes():
        raise ModelError(f"{place} needs {needed / 2**30:.1f} GiB, and {free_bytes() / 2**30:.1f} are free")


def _kernels(
    place: _Place,
    programs: Sequence[_Stored],
    sizes: Sequence[Mapping[str, int]],
    target: Target,
    fallback: bool,
    where: str,
) -> list[list[Kernel]]:
    """A kernel of each task of each program, checked and compiled here. ``sizes``: of the programs."""
    here = targets.detect(1)
    tasks, numbers = joint_tasks([p.outline for p in programs], sizes)
    kernels: dict[tuple[int, int], Kernel] = {}
    missing: dict[int, Missing] = {}
    lacking: dict[tuple[int, int], int] = {}
    foreign: set[str] = set()
    for n, p in enumerate(programs):
        for i, (workload, t, trace, chosen_by) in enumerate(p.kernels):
            if chosen_by not in CHOSEN_BY:
                raise Damaged(f"a kernel was chosen by {chosen_by[:40]!r}")
            why = _foreign(t, here)
            if why and not fallback:
                raise ModelError(
                    f"{place} was tuned for {targets.brief(t)}, and {why}: tune the model on this machine "
                    f"and save it again, or {place.allow}"
                )
            if why:
                foreign.add(targets.brief(t))
            if why and not backends.runnable(t):
                task = lacking[n, i] = numbers[n][i]
                missing.setdefault(task, Missing(task, f"tuned for {targets.brief(t)}"))
                continue
            try:
                kernels[n, i] = kernel_of(workload, t, trace, chosen_by=chosen_by)
            except (ScheduleError, TraceError, CompileError, ValueError) as err:
                node = p.outline.nodes(i)[0]
                raise Damaged(f"the schedule of {node} is not legal: {short(err)}") from err
    if foreign:
        warnings.warn(
            f"{place} was tuned for {', '.join(sorted(foreign))}, not for this machine: tune it here",
            stacklevel=4,
        )
    if missing:
        try:
            backend = backends.of(target)
            # a model for a GPU runs on that of this machine, else on its CPU
            there = target.grid and backend.available()
            wanted = backend.detect() if there else targets.detect(target.threads)
            remedy = "tune the model here, and save it"
            picks = untuned_kernels(tasks, [*missing.values()], wanted, where, remedy)
            kernels |= {at: picks[task] for at, task in lacking.items()}
        except AutotuneError as err:
            raise ModelError(f"{place}: {err}") from err
    return [[kernels[n, i] for i in range(len(p.kernels))] for n, p in enumerate(programs)]


def _foreign(t: Target, here: Target) -> str:
    """Why a target is not that of this machine; empty if it is."""
    if not backends.runnable(t):
        return "this machine cannot run it"
    if t.grid:
        device = backends.of(t).detect()
        return "" if t == device else f"this is {targets.brief(device)} with other limits"
    if replace(t, threads=1) != here:
        return f"this is {targets.brief(here)} with other features or caches"
    if t.threads > targets.usable_cpus():
        return f"this process may use {targets.usable_cpus()} CPUs"
    return ""
