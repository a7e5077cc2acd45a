"""Saved models that somebody else may have written: the document of one with structured changes, by seed.
``python saved_mutants.py FILE FIRST LAST`` loads and calls each in a process of its own, and prints a JSON
object: {outcome: [seed, ...]}. A model of open sizes is called at its largest and at its least ones."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import warnings
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from dag_mutant_runs import MOST, apart
from dag_mutants import changed

from autotune.errors import ModelError
from autotune.models.module import Module
from autotune.models.saved import load_model
from schedules import expr as E

NESTED = ("workload", "trace", "target")  # JSON as text in a kernel


def opened(file: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(the document with all texts in it parsed, the other members)."""
    with zipfile.ZipFile(file) as z:
        members = {n: z.read(n) for n in z.namelist()}
    v = json.loads(members.pop("model.json"))
    for k in v["kernels"]:
        text = json.loads(k["text"])
        k["text"] = {key: json.loads(x) if key in NESTED else x for key, x in text.items()}
    return v, members


def closed(v: dict[str, Any], members: dict[str, bytes], file: Path) -> None:
    """Inverse of `opened`, as far as the document still has such texts."""
    kernels = v.get("kernels")
    for k in kernels if isinstance(kernels, list) else ():
        text = k.get("text") if isinstance(k, dict) else None
        if isinstance(text, dict):
            whole = {key: json.dumps(x) if key in NESTED else x for key, x in text.items()}
            k["text"] = json.dumps(whole)
    with zipfile.ZipFile(file, "w") as z:
        for name, data in {"model.json": json.dumps(v).encode(), **members}.items():
            z.writestr(name, data)


def mutant(v: dict[str, Any], seed: int) -> dict[str, Any]:
    """The document with one to three changes: anywhere, or of a kernel's expression, or of its schedule."""
    rng = random.Random(seed)
    part = rng.choice(("all", "outline", "dag", "dag", "trace"))
    if part in ("dag", "trace"):
        text = rng.choice(v["kernels"])["text"]
        where = text["workload"] if part == "dag" else text["trace"]
        key = "dag" if part == "dag" else "steps"
        where[key] = changed(where[key], rng)
        return v
    kept = {k: v[k] for k in v if part == "outline" and k in ("kernels", "format", "version", "target")}
    return {**changed({k: x for k, x in v.items() if k not in kept}, rng), **kept}


def outcome(v: dict[str, Any], members: dict[str, bytes]) -> str:
    """What becomes of a file: refused, too large to run here, or run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.at"
        closed(v, members, file)
        try:
            net = load_model(file, fallback=True)
        except ModelError as err:
            return "refused" if len(str(err)) < 2000 else f"too many words: {err}"
        if sum(prod(t.shape) for t in (*net.inputs, *net.outputs)) > MOST:
            return "large"
        if sum(a.nbytes for a in net.state.values()) > MOST:
            return "large"
        for shapes in shapes_of(net):
            net(*(np.ones(s, np.dtype(t.dtype)) for s, t in zip(shapes, net.inputs, strict=True)))
        return "run"


def shapes_of(net: Module) -> list[list[tuple[int, ...]]]:
    """Shapes of the inputs at the largest and at the least sizes."""
    largest = [tuple(t.shape) for t in net.inputs]
    sizes = {n: r[0] for n, r in net.sizes.items()}
    if not sizes:
        return [largest]
    least = [list(s) for s in largest]
    ol = net.program.outline
    for k, name in enumerate(ol.inputs):
        for d, extent in ol.extents.get(name, ()):
            least[k][d] = int(E.evaluate(extent, sizes))
    return [largest, [tuple(s) for s in least]]


def main(file: str, first: int, last: int) -> None:
    warnings.simplefilter("ignore")
    found: dict[str, list[int]] = {}
    for seed in range(first, last):
        v, members = opened(Path(file))
        made = mutant(v, seed)
        found.setdefault(apart(lambda made=made, members=members: outcome(made, members)), []).append(seed)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
