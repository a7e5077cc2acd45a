"""Models that a user trained, as files: JSON with trees as arrays, and nothing that is run.

A file may come from anyone. Its size and the number of its parts are bounded before it is parsed, its trees
pass `TreeEnsemble.check`, and a model of other features than this version's is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from cost_model.base import CostModelError, read_regular
from cost_model.features import COLUMNS, DERIVED
from cost_model.tree_ensemble import MOST_NODES, MOST_TREES, TreeEnsemble
from schedules.documents import (
    Malformed,
    an_object,
    any_text,
    integer,
    list_of,
    one_of,
    parsed_object,
    record,
    short,
)
from schedules.space.estimate.cpu.features import FEATURE_NAMES as CPU_FEATURES
from schedules.space.estimate.gpu.features import FEATURE_NAMES as GPU_FEATURES

KIND, VERSION = "trained", 1
# Features of spaces, by what they are for.
FEATURES = {"cpus": CPU_FEATURES, "gpus": GPU_FEATURES}
# Names of learners that make such files.
LEARNERS = ("xgb", "scratch", "forest", "hist")
# Most parts of a file's JSON: an empty list in a file is small, and large in memory.
MOST_PARTS = 200_000
# Most ensembles, whose mean is the prediction.
MOST_BAGS = 64
# {array of an ensemble: how its numbers are stored, little-endian}.
ARRAYS = {
    "starts": "<i8",
    "feature": "<i4",
    "threshold": "<f4",
    "left": "<i4",
    "right": "<i4",
    "missing_left": "|u1",
}


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A trained model. ``learner``: what made it, of `LEARNERS`. ``feature_names``: of the spaces that it is
    for. ``bags``: ensembles over these and `DERIVED`, whose mean is the expected worth of a candidate.
    ``provenance``: JSON about what it learnt from. ``origin``: its file, for messages."""

    learner: str
    feature_names: tuple[str, ...]
    bags: tuple[TreeEnsemble, ...] = field(repr=False)
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)
    origin: str = ""

    @property
    def serves(self) -> str:
        """What it is for: "cpus" or "gpus"."""
        return next(kind for kind, names in FEATURES.items() if names == self.feature_names)

    @cached_property
    def digest(self) -> str:
        """Of what it predicts: the same for the same trees and features."""
        found = hashlib.sha256(json.dumps([self.learner, self.feature_names]).encode())
        for bag in self.bags:
            for name, kind in ARRAYS.items():
                found.update(getattr(bag, name).astype(kind).tobytes())
        return found.hexdigest()

    @cached_property
    def boosters(self) -> list[Any]:
        """XGBoost models, one for each bag."""
        return [bag.booster(self.width) for bag in self.bags]

    @property
    def width(self) -> int:
        """Number of columns that it sees."""
        return len(self.feature_names) + len(DERIVED)

    @property
    def tasks(self) -> frozenset[str]:
        """Digests of the workloads that it has learnt from, as far as its file says."""
        found = self.provenance.get("workloads")
        return frozenset(x for x in found if isinstance(x, str)) if isinstance(found, list) else frozenset()

    def save(self, path: Path) -> None:
        """Write the file; an existing one is replaced as a whole, or what a link names. Raises OSError."""
        document = {
            "kind": KIND,
            "version": VERSION,
            "learner": self.learner,
            "columns": COLUMNS,
            "feature_names": list(self.feature_names),
            "derived": list(DERIVED),
            "provenance": dict(self.provenance),
            "bags": [_packed(bag) for bag in self.bags],
        }
        home = path.resolve()
        beside = home.with_name(f".{home.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(document, sort_keys=True, indent=0) + "\n", encoding="utf-8")
            beside.replace(home)
        except OSError as err:
            err.filename = err.filename or str(path)  # errors of writing name none
            raise
        finally:
            beside.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> SavedModel:
    """The model of a file that `SavedModel.save` wrote. Raises CostModelError that names the file, the reason
    and the remedy, for everything else."""
    name = os.fspath(path)
    document = _parsed(Path(name), name)
    if document.get("kind") != KIND:
        _refuse(name, "it is no trained cost model")
    if document.get("version") != VERSION:
        _refuse(name, f"it has version {short(document.get('version'))} and not {VERSION}")
    try:
        v = _DOCUMENT(document)
    except Malformed as err:
        _refuse(name, str(err))
    features = v["feature_names"]
    if features not in FEATURES.values():
        _refuse(name, f"it was trained on other features: {_difference(features)}")
    if v["derived"] != DERIVED or v["columns"] != COLUMNS:
        _refuse(name, "it was trained on other features: those derived from a candidate's changed since")
    width = len(features) + len(DERIVED)
    try:
        ensembles = tuple(_unpacked(bag, width) for bag in v["bags"])
        if sum(len(x) for x in ensembles) > MOST_TREES or sum(len(x.feature) for x in ensembles) > MOST_NODES:
            raise CostModelError("it has more trees than may be")
    except CostModelError as err:
        _refuse(name, str(err))
    return SavedModel(v["learner"], features, ensembles, v.get("provenance", {}), name)


def _parsed(path: Path, name: str) -> dict[str, Any]:
    try:
        raw = read_regular(path)
    except OSError as err:
        _refuse(name, err.strerror or str(err))
    except ValueError as err:  # a zero byte in the name
        _refuse(name, str(err))
    if sum(raw.count(sign) for sign in (b",", b"[", b"{", b'"')) > MOST_PARTS:
        _refuse(name, "its JSON has too many parts")
    try:
        return parsed_object(raw)
    except Malformed as err:
        _refuse(name, str(err))


def _difference(features: tuple[str, ...]) -> str:
    """In words, from the kind of features that is nearest."""
    nearest = max(FEATURES.values(), key=lambda known: len(set(known) & set(features)))
    strange = sorted(set(features) - set(nearest))
    missing = sorted(set(nearest) - set(features))
    parts = [
        f"{words} {short(names[0])}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for words, names in (("it has", strange), ("it lacks", missing))
        if names
    ]
    return ", ".join(parts) or "they have another order"


def _refuse(name: str, why: str) -> NoReturn:
    raise CostModelError(
        f"cannot read the cost model {name}: {why}; make one of your own log with: autotune train"
    ) from None


def _packed(bag: TreeEnsemble) -> dict[str, str]:
    return {
        name: base64.b64encode(getattr(bag, name).astype(kind).tobytes()).decode("ascii")
        for name, kind in ARRAYS.items()
    }


def _unpacked(texts: dict[str, str], features: int) -> TreeEnsemble:
    arrays = {}
    for name, kind in ARRAYS.items():
        try:
            raw = base64.b64decode(texts[name], validate=True)
            arrays[name] = np.frombuffer(raw, dtype=kind).astype(np.dtype(kind).newbyteorder("="))
        except ValueError:
            raise CostModelError(f"the array {name!r} of its trees is malformed") from None
    if np.any(arrays["missing_left"] > 1):
        raise CostModelError("the array 'missing_left' of its trees has other numbers than 0 and 1")
    arrays["missing_left"] = arrays["missing_left"].astype(bool)
    ensemble = TreeEnsemble(**arrays)
    ensemble.check(features)
    return ensemble


_NAMES = list_of(any_text)
_DOCUMENT = record(
    {
        "learner": one_of(*LEARNERS),
        "columns": integer(0),
        "feature_names": _NAMES,
        "derived": _NAMES,
        "bags": list_of(record(dict.fromkeys(ARRAYS, any_text)), MOST_BAGS, least=1),
    },
    {"provenance": an_object},
    open_ended=True,
)
