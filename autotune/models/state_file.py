"""Files of states: the values of what a model keeps, without code (`ModelState.save`)."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from autotune.errors import ModelError, refused
from autotune.models.archive import Archive, Damaged, replaced, short, write_array
from kernels_db.opening import open_regular
from schedules.documents import any_text, integer, items, list_of, one_of, record
from schedules.dtypes import DTYPES
from schedules.model import canonical
from schedules.te.compute_dag import Tensor
from schedules.units import some

Array = NDArray[Any]
FORMAT, VERSION, DOCUMENT = "autotune state", 1, "state.json"


def write(tensors: Sequence[Tensor], arrays: Mapping[str, Array], path: str | os.PathLike[str]) -> None:
    """Write a state to a file, whole or not at all. Raises `ModelError`."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "tensors": [[t.name, list(t.shape), t.dtype] for t in tensors],
    }

    def into(f: IO[bytes]) -> None:
        with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
            z.writestr(zipfile.ZipInfo(DOCUMENT), canonical(document))
            for i, t in enumerate(tensors):
                write_array(z, _member(i), arrays[t.name])

    replaced(path, into)


def read(tensors: Sequence[Tensor], path: str | os.PathLike[str]) -> dict[str, Array]:
    """The values of a state that has these ``tensors``. Raises `ModelError`."""
    place = Path(path)
    try:
        with open_regular(place) as f, zipfile.ZipFile(f) as z:
            return _read(tensors, Archive(z, str(place), DOCUMENT, "state of a model"), str(place))
    except OSError as err:
        raise ModelError(f"{place} cannot be read: {refused(err)}") from err
    except zipfile.BadZipFile as err:
        raise ModelError(f"{place} is no state of a model, or damaged: {err}") from None
    except Damaged as err:
        raise ModelError(f"{place} is damaged: {err}") from err.__cause__


def _read(tensors: Sequence[Tensor], archive: Archive, place: str) -> dict[str, Array]:
    v = archive.document()
    if not isinstance(v, dict) or v.get("format") != FORMAT:
        raise ModelError(f"{place} is no state of a model: {DOCUMENT} is another document")
    if v.get("version") != VERSION:
        raise ModelError(
            f"{place} has version {str(v.get('version'))[:40]}, and this autotune reads {VERSION}: use the "
            "autotune that wrote it"
        )
    try:
        found = tuple(_STATE(v)["tensors"])
    except (ValueError, TypeError, OverflowError) as err:
        raise Damaged(short(err)) from err
    if found != tuple(tensors):
        raise ModelError(
            f"{place} has the state of another model: it has {shown(found)}, and this one {shown(tensors)}"
        )
    if odd := sorted(set(archive.members) - {DOCUMENT, *(_member(i) for i in range(len(found)))}):
        raise Damaged(f"it holds {odd[0]!r}, which no state of a model has")
    return {t.name: archive.array(_member(i), t, f"state {t.name!r}") for i, t in enumerate(found)}


def shown(tensors: Sequence[Tensor]) -> str:
    """What a state has, in words."""
    return some([f"{t.name} {t.dtype}{list(t.shape)}" for t in tensors], 6) or "nothing"


def _member(number: int) -> str:
    return f"states/{number}.npy"


def _tensor(x: Any) -> Tensor:
    return Tensor(*_TENSOR(x))


_TENSOR = items(any_text, list_of(integer(1, (1 << 48) - 1, "a size of at least 1")), one_of(*DTYPES))
_STATE = record({"format": one_of(FORMAT), "version": integer(VERSION, VERSION), "tensors": list_of(_tensor)})
