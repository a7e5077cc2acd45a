"""The names in a compute DAG, apart from what it computes.

A DAG is an expression and names for its tensors, axes and reducers. `rename` gives the same expression
other names; `canonical` are the names that everybody's form of it gets, so that one expression is one
workload:

- tensors are ``T0``, ``T1``, ... in the order of their definition: inputs, then the outputs of each stage,
- the axes of a stage are ``i0``, ``i1``, ..., its reduction axes ``k0``, ``k1``, ...,
- a reducer is called by what it does: ``sum``, ``prod``, ``min``, ``max``, or ``combine`` for any other,
- sizes that a call tells are ``n0``, ``n1``, ....

The order of inputs, axes, stages and outputs is part of the expression, and stays. Everything here works on
the JSON of a DAG (`ComputeDAG.to_json`), which takes no proof that loads stay inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schedules.documents import Malformed, any_text, items, list_of, nullable, record
from schedules.te.sizes_in_values import variable

# What a reducer of one component is called, by the operation of x0 and y0.
_REDUCERS = {"+": "sum", "*": "prod", "min": "min", "max": "max"}


@dataclass(frozen=True)
class StageNames:
    """Of a stage: its outputs, its axes with the reduction axes after them, its reducer (None: it has
    none)."""

    outputs: tuple[str, ...]
    axes: tuple[str, ...]
    reducer: str | None


@dataclass(frozen=True)
class Names:
    """All names of a DAG, in the order of definition. ``Names.of_dag(dag.to_json())`` reads them."""

    inputs: tuple[str, ...]
    stages: tuple[StageNames, ...]
    sizes: tuple[str, ...] = ()

    @staticmethod
    def of_dag(dag: Mapping[str, Any]) -> Names:
        """Those that a DAG has."""
        return Names(
            tuple(t[0] for t in dag["inputs"]),
            tuple(
                StageNames(
                    tuple(t[0] for t in s["outputs"]),
                    tuple(a[0] for a in (*s["axes"], *s["reduce_axes"])),
                    None if s["reducer"] is None else s["reducer"]["name"],
                )
                for s in dag["stages"]
            ),
            tuple(s[0] for s in dag["open"]["sizes"]) if "open" in dag else (),
        )

    @property
    def tensors(self) -> tuple[str, ...]:
        """Inputs, then the outputs of each stage."""
        return (*self.inputs, *(n for s in self.stages for n in s.outputs))

    def to_json(self) -> dict[str, Any]:
        """A JSON value: ``{"inputs": [name, ...], "stages": [[outputs, axes, reducer], ...]}``, and ``sizes``
        where there are some."""
        stages = [[list(s.outputs), list(s.axes), s.reducer] for s in self.stages]
        sizes = {"sizes": list(self.sizes)} if self.sizes else {}
        return {"inputs": list(self.inputs), "stages": stages} | sizes

    @staticmethod
    def from_json(v: Any) -> Names:
        """Inverse of `to_json`. Raises ValueError on anything malformed."""
        try:
            found = _NAMES(v)
        except Malformed as err:
            raise ValueError(f"malformed names: {err}") from None
        stages = tuple(StageNames(*s) for s in found["stages"])
        return Names(found["inputs"], stages, found.get("sizes", ()))


_NAMES = record(
    {
        "inputs": list_of(any_text),
        "stages": list_of(items(list_of(any_text), list_of(any_text), nullable(any_text))),
    },
    {"sizes": list_of(any_text)},
)


def canonical(dag: Mapping[str, Any]) -> Names:
    """The names that the same expression gets whatever it is called: see the module."""
    count = len(dag["inputs"])
    stages = []
    for s in dag["stages"]:
        outputs = tuple(f"T{count + n}" for n in range(len(s["outputs"])))
        count += len(outputs)
        spatial = [f"i{n}" for n in range(len(s["axes"]))]
        reduced = [f"k{n}" for n in range(len(s["reduce_axes"]))]
        stages.append(StageNames(outputs, (*spatial, *reduced), _reducer(s["reducer"])))
    sizes = tuple(f"n{k}" for k in range(len(dag["open"]["sizes"]))) if "open" in dag else ()
    return Names(tuple(f"T{n}" for n in range(len(dag["inputs"]))), tuple(stages), sizes)


def rename(dag: Mapping[str, Any], to: Names) -> dict[str, Any]:
    """The JSON of a DAG with other names, all of them changed at once, so that they may change places.
    Raises ValueError where ``to`` has not as many as the DAG."""
    of = Names.of_dag(dag)
    if _shape(of) != _shape(to):
        raise ValueError("malformed names: they are of another expression")
    tensors = dict(zip(of.tensors, to.tensors, strict=True))
    sizes = {variable(a): variable(b) for a, b in zip(of.sizes, to.sizes, strict=True)}
    known: dict[str, Any] = {}
    if dag.get("constants"):
        known["constants"] = [tensors[n] for n in dag["constants"]]
    if "open" in dag:
        known["open"] = _open(dag["open"], dict(zip(of.sizes, to.sizes, strict=True)))
    return known | {
        "inputs": [[tensors[n], *rest] for n, *rest in dag["inputs"]],
        "outputs": [tensors[n] for n in dag["outputs"]],
        "stages": [
            _stage(s, tensors, sizes | dict(zip(old.axes, new.axes, strict=True)), new.reducer)
            for s, old, new in zip(dag["stages"], of.stages, to.stages, strict=True)
        ],
    }


def _stage(
    s: Mapping[str, Any], tensors: Mapping[str, str], variables: Mapping[str, str], reducer: str | None
) -> dict[str, Any]:
    # The operands x0, y0, ... of a reducer are places, not names, and stay.
    unusual = {k: [_expr(v, tensors, variables) for v in s[k]] for k in ("where", "places") if k in s}
    if "scan" in s:
        unusual["scan"] = [[variables[n], step] for n, step in s["scan"]]
    return unusual | {
        "outputs": [[tensors[n], *rest] for n, *rest in s["outputs"]],
        "axes": [[variables[n], extent] for n, extent in s["axes"]],
        "reduce_axes": [[variables[n], extent] for n, extent in s["reduce_axes"]],
        "values": [_expr(v, tensors, variables) for v in s["values"]],
        "reducer": None if s["reducer"] is None else {**s["reducer"], "name": reducer},
    }


def _open(opened: Mapping[str, Any], sizes: Mapping[str, str]) -> dict[str, Any]:
    def extents(xs: Any) -> list[Any]:
        return [[of, at, _expr(extent, {}, sizes)] for of, at, extent in xs]

    own = [[sizes[n], *rest] for n, *rest in opened["sizes"]]
    return {**opened, "sizes": own, "inputs": extents(opened["inputs"]), "axes": extents(opened["axes"])}


def _expr(v: Any, tensors: Mapping[str, str], variables: Mapping[str, str]) -> Any:
    if not isinstance(v, list):
        return v
    match v[0]:
        case "var":
            return ["var", variables[v[1]]]
        case "hole":
            return ["hole", variables[v[1]]]
        case "load":
            return ["load", tensors[v[1]], v[2], *[_expr(x, tensors, variables) for x in v[3:]]]
        case "const":
            return v
        case _:
            return [v[0], *[_expr(x, tensors, variables) for x in v[1:]]]


def _reducer(reducer: Mapping[str, Any] | None) -> str | None:
    if reducer is None:
        return None
    match reducer["combine"]:
        case [[op, ["load", "x0", _], ["load", "y0", _]]] if op in _REDUCERS:
            return _REDUCERS[op]
    return "combine"


def _shape(names: Names) -> list[Any]:
    """How many names there are, where."""
    each = [(len(s.outputs), len(s.axes), s.reducer is None) for s in names.stages]
    return [len(names.inputs), len(names.sizes), *each]
