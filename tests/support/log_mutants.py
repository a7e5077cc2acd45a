"""Exports of a log in which something is odd or hostile, with every digest computed again: no digest protects
from a stranger who writes his own."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from kernels_db.exchange import line, seal
from schedules.model import canonical, digest

Item = dict[str, Any]

# Types in the order of an export.
TYPES = ("workload", "target", "machine", "run", "record")
# What is put in the place of something.
ODD: tuple[Any, ...] = (
    0, -1, -5, 1, 2, 7, 64, 10**6, 2**31, 2**40 + 1, 10**9, 10**11, 2**63 - 1, 10**40,
    0.0, -0.0, 1.5, -1.0, 1e-12, 5e-324, 1e308, True, None, [], {}, [[]], [0], [[], {}], {"x": {}},
    "", "x", "inf", "nan", "T0", "T2", "k0", "i0", "sum", "float64", "float16", "int8", "int64", "bool",
    "index", "complex64", "cpu", "cuda", "matmul", "softmax", "../../x",
    ["const", "int32", 1.5], ["const", "float32", "nan"], ["var", "i0"], ["load", "T0", "float32"],
)  # fmt: skip
# Times and other fields of a record that make no sense.
NO_TIMES: tuple[Any, ...] = (
    -1.0, 0.0, 5e-324, 1e308, "nan", None, [], [-1.0], [1e308] * 1000, 10**9, "ok", "crash",
)  # fmt: skip
# Decisions and predictions that make no sense.
NO_CHOICE: tuple[Any, ...] = ([10**40] * 8, [-1] * 5, [1.5] * 5, ["x"] * 5, {"model": "x"})


def parsed(lines: Sequence[str]) -> list[Item]:
    """The objects of an export, without its header."""
    return [json.loads(x) for x in lines[1:]]


def sealed(items: Sequence[Item]) -> list[str]:
    """Lines of these objects, with digests that fit them."""
    new: dict[str, str] = {}
    lines = []
    for kind in TYPES:
        for item in (x for x in items if x.get("type") == kind):
            for name in ("workload", "target", "machine", "run"):
                if isinstance(item.get(name), str):
                    item[name] = new.get(item[name], item[name])
            try:
                if kind in ("run", "record"):
                    made = seal(kind, item)["uid"]  # type: ignore[arg-type]
                    new[str(item.get("uid"))] = item["uid"] = made
                else:
                    made = digest(canonical(item.get("definition")))
                    new[str(item.get("digest"))] = item["digest"] = made
                lines.append(line(item))
            except (ValueError, TypeError):  # what no JSON has
                continue
    return lines


def task(items: Sequence[Item], random: Random, records: int = 12) -> list[Item]:
    """A copy of one task: its workload, its target, a machine, a run, and the fastest of its records."""
    workload = random.choice([x for x in items if x["type"] == "workload"])["digest"]
    of = [x for x in items if x["type"] == "record" and x["workload"] == workload]
    kept = sorted(of, key=lambda r: r["time_s"] or 1.0)[:records]
    keys = {workload, *(r[n] for r in kept for n in ("target", "machine", "run"))}
    return copy.deepcopy([x for x in items if x.get("digest", x.get("uid")) in keys] + kept)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all that is inside a value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _places(value[key], (*path, key))


def _put(item: Any, path: tuple[Any, ...], x: Any) -> None:
    for key in path[:-1]:
        item = item[key]
    item[path[-1]] = x


def _at(item: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        item = item[key]
    return item


def _replaced(items: list[Item], random: Random) -> str:
    """Something becomes something odd."""
    item = random.choice(items)
    path = random.choice(list(_places(item)))
    odd = random.choice(ODD)
    _put(item, path, copy.deepcopy(odd))
    return f"{item.get('type')} {path}: {odd!r}"


def _swapped(items: list[Item], random: Random) -> str:
    """Two parts change places."""
    item = random.choice(items)
    paths = list(_places(item))
    a, b = random.choice(paths), random.choice(paths)
    if a[: len(b)] == b or b[: len(a)] == a:
        return "nothing"
    x, y = _at(item, a), _at(item, b)
    _put(item, a, y)
    _put(item, b, x)
    return f"{item.get('type')}: {a} and {b} change places"


def _resized(items: list[Item], random: Random) -> str:
    """An extent is another one wherever it stands, so that the expression still fits together."""
    definition = next(x for x in items if x["type"] == "workload")["definition"]["dag"]
    stages = [(s, list_) for s in definition["stages"] for list_ in ("axes", "reduce_axes") if s[list_]]
    stage, axes = random.choice(stages)
    old = random.choice(stage[axes])[1]
    new = random.choice((0, -5, 1, 10**6, 10**9, 10**11, 10**40, 2.0, "8", True))

    def everywhere(value: Any) -> None:
        for path in list(_places(value)):
            if type(_at(value, path)) is int and _at(value, path) == old:
                _put(value, path, new)

    everywhere(definition)
    return f"extent {old}: {new!r}"


def _long_sum(items: list[Item], random: Random) -> str:
    """A sum of a great many terms, of few elements."""
    stages = next(x for x in items if x["type"] == "workload")["definition"]["dag"]["stages"]
    for s in stages:
        for axis in s["reduce_axes"]:
            name, extent = axis
            axis[1] = random.choice((10**9, 10**11, 2**40))

            def inside(e: Any, name: str = name, extent: int = extent) -> Any:
                if e == ["var", name]:
                    return ["%", e, extent]
                return [inside(x) for x in e] if isinstance(e, list) else e

            s["values"] = [inside(v) for v in s["values"]]
    return "long sums"


def _timed(items: list[Item], random: Random) -> str:
    record = random.choice([x for x in items if x["type"] == "record"])
    name = random.choice(("time_s", "times_s", "error", "trial", "created", "kind", "status", "reason"))
    odd = random.choice(
        (-1.0, 0.0, 5e-324, 1e308, "nan", None, [], [-1.0], [1e308] * 1000, 10**9, "ok", "crash")
    )
    record[name] = odd
    return f"record {name}: {str(odd)[:40]}"


def _told(items: list[Item], random: Random) -> str:
    """What a search reads beside a trace is odd."""
    record = random.choice([x for x in items if x["type"] == "record"])
    environment = record["environment"]
    keys = ("decisions", "predicted", "limit", "memory_bytes", "seconds", "reference_rate", "round", "device")
    key = random.choice((*environment, *keys))
    environment[key] = copy.deepcopy(
        random.choice((*ODD, [10**40] * 8, [-1] * 5, [1.5] * 5, ["x"] * 5, {"model": "x"}))
    )
    return f"record environment {key}: {str(environment[key])[:40]}"


def _stepped(items: list[Item], random: Random) -> str:
    """A schedule that does not fit: a step is repeated, left out, or of another place."""
    record = random.choice([x for x in items if x["type"] == "record"])
    steps = record["trace"]["steps"]
    if not steps:
        steps.append(
            ["split", {"factors": [None, random.choice((0, -1, 10**40))], "loop": "T2_i0", "tail": "guard"}]
        )
    n = random.randrange(len(steps))
    change = random.choice(("repeat", "leave out", "shuffle", "odd"))
    if change == "repeat":
        steps *= random.choice((2, 50))
    elif change == "leave out":
        del steps[n]
    elif change == "shuffle":
        random.shuffle(steps)
    elif list(_places(steps[n][1])):
        _put(steps[n][1], random.choice(list(_places(steps[n][1]))), copy.deepcopy(random.choice(ODD)))
    return f"trace: {change} {n}"


def _of_a_target(items: list[Item], random: Random) -> str:
    target = next(x for x in items if x["type"] == "target")["definition"]
    way = random.choice(("threads", "limits", "unknown", "features"))
    if way == "threads":
        target["threads"] = random.choice((0, -1, 10**9, 2**70, "1", 1.5))
    elif way == "limits":
        target["limits"][random.choice((*target["limits"], "warp"))] = random.choice(
            (0, -1, 1, 3, 10**12, 10**40, 1.5)
        )
    elif way == "unknown":
        target["flavour"] = 1
    else:
        target["features"] = random.choice(([], ["x"], ["+" * 1000], [1], "abc"))
    return f"target {way}"


CHANGES: tuple[Callable[[list[Item], Random], str], ...] = (
    _replaced, _replaced, _replaced, _swapped, _resized, _long_sum, _timed, _told, _stepped, _of_a_target,
)  # fmt: skip


def mutants(items: Sequence[Item], seed: int, number: int) -> tuple[list[str], list[str]]:
    """Lines of ``number`` changed copies of tasks, and what was changed in each."""
    random = Random(seed)
    lines: list[str] = []
    said = []
    for _ in range(number):
        chosen = task(items, random)
        said.append(random.choice(CHANGES)(chosen, random))
        lines += sealed([x for x in chosen if isinstance(x, dict)])
    order = {kind: n for n, kind in enumerate(TYPES)}
    return sorted(set(lines), key=lambda x: order.get(json.loads(x).get("type"), 9)), said
