"""Expressions that somebody else may have written: JSON of compute DAGs with structured changes, by seed.

A change keeps the document a document: a dtype is another one, an extent is another number, an operand stands
elsewhere. So most of a mutant is right, which is what a flipped byte seldom gives.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

from small_shapes import SMALL

from schedules import ops, te

DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool", "index",
)  # fmt: skip
ODD_DTYPES = ("complex64", "uint16", "object", "float32 ", "", "x" * 10_000, None, [], ["float32"], 4, {})
NUMBERS = (0, 1, -1, 2, 3, 5, 7, 16, 2**31, -(2**31), 2**40, 2**62, 2**63, -(2**63), 10**40, 10**50)
ODD_NUMBERS = (1.5, -0.5, 1e300, True, None, "3", "inf", "nan", [], [1], {}, "x" * 10_000)
OPS = (
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "min",
    "max",
    "ceildiv",
    "<<",
    ">>",
    "&",
    "|",
    "^",
    "<",
    "<=",
    "==",
    "!=",
)
TAGS = (*OPS, "and", "or", "not", "fma", "select", "cast", "call", "load", "var", "hole", "const", "evil")
NAMES = ("x0", "y0", "x1", "T0", "T1", "i0", "k0", "", "a b", "x;y", "\u2028", None, 3, [])

Path = tuple[Any, ...]


def documents() -> list[Any]:
    """The JSON of expressions to be changed: of every operator, and one of many dtypes."""
    b, q = te.placeholder((5, 7), "bool", "b"), te.placeholder((5, 7), "int8", "q")
    h, n = te.placeholder((5, 7), "bfloat16", "h"), te.placeholder((5, 7), "int32", "n")
    places = te.placeholder((5,), "int32", "places")
    out = te.compute((5, 7), lambda i, j: _mixed(b[i, j], h[i, j], q[i, j]), "out")
    rest = te.compute((5, 7), lambda i, j: (n[i, j] << 2) % (te.cast(i, "int32") + 3), "rest")
    taken = te.compute((5, 7), lambda i, j: n[te.minimum(te.maximum(places[i], 0), 4), j], "taken")
    mixed = te.dag([b, q, h, n, places, out, rest, taken]).to_json()
    return [*(ops.workload(op, p).dag.to_json() for op, p in SMALL.items()), mixed]


def _mixed(cond: Any, half: Any, byte: Any) -> Any:
    return te.cast(te.select(cond, te.exp(half), te.cast(byte, "float32")), "bfloat16")


def mutated(dags: Sequence[Any], seed: int) -> Any:
    """The JSON of one of ``dags`` with one to three changes."""
    rng = random.Random(seed)
    return changed(dags[rng.randrange(len(dags))], rng)


def changed(v: Any, rng: random.Random) -> Any:
    """A copy of a JSON value with one to three changes; one that finds nothing to change changes nothing."""
    v = copy.deepcopy(v)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice((_dtype, _number, _operand, _operand, _tag, _name, _list, _swap, _reducer, _shape))(v, rng)
    return v


def _leaves(v: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every part of a JSON value with its path."""
    yield at, v
    if isinstance(v, (list, dict)):
        for k, x in v.items() if isinstance(v, dict) else enumerate(v):
            yield from _leaves(x, (*at, k))


def _get(v: Any, path: Path) -> Any:
    for k in path:
        v = v[k]
    return v


def _put(v: Any, path: Path, x: Any) -> None:
    _get(v, path[:-1])[path[-1]] = x


def _pick(v: Any, rng: random.Random, wanted: Any) -> Path | None:
    found = [p for p, x in _leaves(v) if p and wanted(p, x)]
    return rng.choice(found) if found else None


def _is_expr(p: Path, x: Any) -> bool:
    return (
        "stages" in p
        and any(k in p for k in ("values", "identity", "combine"))
        and ((isinstance(x, list) and bool(x) and isinstance(x[0], str)) or type(x) is int)
    )


def _dtype(v: Any, rng: random.Random) -> None:
    path = _pick(v, rng, lambda p, x: x in DTYPES if isinstance(x, str) else False)
    if path:
        _put(v, path, rng.choice(DTYPES if rng.random() < 0.8 else ODD_DTYPES))


def _number(v: Any, rng: random.Random) -> None:
    path = _pick(v, rng, lambda p, x: isinstance(x, (int, float)) and not isinstance(x, bool))
    if path:
        old = _get(v, path)
        near = (old + 1, old - 1, old * 2, -old)
        _put(
            v,
            path,
            rng.choice(near if rng.random() < 0.6 else NUMBERS if rng.random() < 0.6 else ODD_NUMBERS),
        )


def _operand(v: Any, rng: random.Random) -> None:
    """An expression in the place of another, of this DAG or new."""
    path = _pick(v, rng, _is_expr)
    if path is None:
        return
    other = _pick(v, rng, _is_expr)
    old = _get(v, path)
    new = (
        _get(v, other)
        if other and rng.random() < 0.5
        else rng.choice(
            (
                ["var", "i0"],
                ["var", "k0"],
                ["hole", "h"],
                0,
                -1,
                1,
                ["const", "float32", 1.5],
                ["const", "int32", 3],
                ["const", "int32", 1.5],
                ["const", "int8", 300],
                ["const", "bool", 1],
                ["const", "bool", True],
                ["const", "float32", "nan"],
                ["const", "float64", 1e300],
                ["const", "float32", 1e300],
                ["const", "index", 3],
                ["cast", rng.choice(DTYPES), old],
                ["cast", rng.choice(DTYPES), ["var", "i0"]],
                ["+", old, old],
                ["//", old, ["var", "i0"]],
                ["%", old, 0],
                ["select", ["<", ["var", "i0"], 2], old, old],
                ["load", "x0", "float32"],
                ["load", "T0", "float32", ["var", "i0"]],
                ["load", "T0", "float32", 1000],
                ["load", "y0", "float32", 1000],
                ["call", "exp", old],
                ["not", old],
                ["fma", old, old, old],
                [],
                None,
            )
        )
    )
    _put(v, path, copy.deepcopy(new))


def _tag(v: Any, rng: random.Random) -> None:
    path = _pick(v, rng, lambda p, x: isinstance(x, str) and p[-1] == 0 and x in TAGS)
    if path:
        _put(v, path, rng.choice(OPS if rng.random() < 0.7 else TAGS))


def _name(v: Any, rng: random.Random) -> None:
    path = _pick(v, rng, lambda p, x: isinstance(x, str) and x not in DTYPES and x not in TAGS)
    if path:
        others = [x for _, x in _leaves(v) if isinstance(x, str)]
        _put(v, path, rng.choice(others if rng.random() < 0.6 else NAMES))


def _list(v: Any, rng: random.Random) -> None:
    """An item of a list more, less, or twice."""
    path = _pick(v, rng, lambda p, x: isinstance(x, list) and bool(x))
    if path:
        x = _get(v, path)
        at = rng.randrange(len(x))
        how = rng.randrange(4)
        if how == 0:
            del x[at]
        elif how == 1:
            x.insert(at, copy.deepcopy(x[at]))
        elif how == 2:
            rng.shuffle(x)
        else:
            _put(v, path, rng.choice(([], None, {}, "x")))


def _swap(v: Any, rng: random.Random) -> None:
    """Two expressions, or two stages, change places."""
    a, b = (_pick(v, rng, _is_expr) for _ in range(2))
    if rng.random() < 0.2 and isinstance(v, dict) and isinstance(v.get("stages"), list):
        rng.shuffle(v["stages"])
    elif a and b and a[: len(b)] != b and b[: len(a)] != a:
        x, y = _get(v, a), _get(v, b)
        _put(v, a, y), _put(v, b, x)


def _reducer(v: Any, rng: random.Random) -> None:
    path = _pick(v, rng, lambda p, x: p[-1] == "reducer")
    if path is None:
        return
    old = _get(v, path)
    others = [x for p, x in _leaves(v) if p and p[-1] == "reducer" and x]
    if not isinstance(old, dict) or rng.random() < 0.3:
        _put(v, path, copy.deepcopy(rng.choice([None, *others])))
        return
    part = rng.choice(("identity", "combine"))
    if rng.random() < 0.5:
        _put(v, (*path, part), copy.deepcopy(old.get(rng.choice(("identity", "combine")))))
    elif isinstance(old.get(part), list) and old[part]:
        old[part][0] = rng.choice(
            (
                ["load", "T0", "float32", 1000],
                ["load", "T0", "float32"],
                ["load", "x0", "float64"],
                ["var", "i0"],
                ["+", ["load", "x0", "float32"], ["load", "T0", "float32", 1000]],
                ["const", "float64", 0.0],
                0,
                ["const", "float32", "inf"],
                ["load", "y0", "float32"],
                ["load", "x0", "float32", 0],
            )
        )


def _shape(v: Any, rng: random.Random) -> None:
    """An extent of a tensor and of its axis together: the document agrees with itself."""
    stages = v.get("stages") if isinstance(v, dict) else None
    if not isinstance(stages, list) or not stages or not isinstance(stages[0], dict):
        return
    s = rng.choice(stages)
    if not isinstance(s, dict):
        return
    if rng.random() < 0.4 and s.get("reduce_axes"):
        rng.choice(s["reduce_axes"])[-1] = rng.choice(NUMBERS)
    elif s.get("axes"):
        d = rng.randrange(len(s["axes"]))
        n = rng.choice(NUMBERS[:9] if rng.random() < 0.7 else NUMBERS)
        s["axes"][d][-1] = n
        for t in s.get("outputs") or ():
            if isinstance(t, list) and len(t) > 1 and isinstance(t[1], list) and d < len(t[1]):
                t[1][d] = n
