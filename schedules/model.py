"""Values that travel: `Workload`, `Target`, `Step`, `Trace`, and their canonical JSON.

Canonical text is JSON with sorted keys, no spaces and ASCII only; digests are blake2b-128 of it,
the same on every platform and Python version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

from schedules.distribution import UPGRADE
from schedules.documents import (
    Malformed,
    an_object,
    any_text,
    integer,
    items,
    list_of,
    mapping_of,
    name,
    parsed,
    parsed_object,
    record,
    short,
)
from schedules.documents import canonical as canonical
from schedules.documents import digest as digest
from schedules.errors import AutotuneError
from schedules.te.compute_dag import ComputeDAG
from schedules.te.names import Names, rename
from schedules.te.names import canonical as canonical_names

TRACE_VERSION = 1
WORKLOAD_VERSION = 2  # with canonical names; version 1 has the names that it was written under
MOST_THREADS, MOST_OF_A_LIMIT = 1 << 15, 1 << 50  # of a target: more is a mistake
LINE = 64  # bytes of a cache line, on the CPUs that are tuned for


@dataclass(frozen=True)
class Workload:
    """What is computed. Identity is the expression alone, without its names: the same one under other names
    of tensors, axes and reducers has the same `digest`. ``dag`` has the names that people see, in
    errors, signatures and printed schedules; ``op`` and ``params`` describe it to them (``op`` is
    "custom" for a user's own expression).

    >>> def doubled(name):
    ...     x = te.placeholder((8,), name=name)
    ...     return te.dag([x, te.compute((8,), lambda i: x[i] * 2.0, name="of_" + name)])
    >>> at.Workload(doubled("a")).digest == at.Workload(doubled("b")).digest
    True
    """

    dag: ComputeDAG
    op: str = "custom"
    params: tuple[tuple[str, Any], ...] = ()  # sorted by name
    flops: int = 0

    def __repr__(self) -> str:
        return f"<Workload {' '.join([self.op, *(f'{k}={v}' for k, v in self.params)])}>"[:200]

    @cached_property
    def json(self) -> str:
        """Canonical text of the expression, which `digest` identifies."""
        dag = self.dag.to_json()
        return canonical({"version": WORKLOAD_VERSION, "dag": rename(dag, canonical_names(dag))})

    @cached_property
    def digest(self) -> str:
        return digest(self.json)

    @cached_property
    def named_digest(self) -> str:
        """The digest with the names of ``dag``, for what is made of them, such as a schedule in these names.
        It is the digest that version 1 had."""
        return digest(canonical({"version": 1, "dag": self.dag.to_json()}))

    @cached_property
    def canonical(self) -> ComputeDAG:
        """The DAG under its canonical names (`schedules.te.names`), which the schedules of a log and of a
        search are written in."""
        return self.dag if not self.names else ComputeDAG.from_json(parsed(self.json, once=False)["dag"])

    @cached_property
    def names(self) -> dict[str, Any]:
        """The names of ``dag`` as a JSON value (`Names.to_json`); empty where they are the canonical ones."""
        dag = self.dag.to_json()
        own = Names.of_dag(dag)
        return {} if own == canonical_names(dag) else own.to_json()

    @staticmethod
    def from_json(
        text: str,
        op: str = "custom",
        params: Mapping[str, Any] | None = None,
        flops: int = 0,
        names: Mapping[str, Any] | None = None,
    ) -> Workload:
        """Inverse of `json`, with ``names`` as `Workload.names` gives them (None or empty: those of the
        text). Reads version 1 too, whose text has names of its own. Raises ValueError on malformed text or
        names, or a version that is not known."""
        try:
            v = parsed_object(text, once=False)
        except Malformed as err:
            raise ValueError(f"malformed workload: {err}") from None
        version = v.get("version")
        if type(version) is not int or not 1 <= version <= WORKLOAD_VERSION:
            raise ValueError(
                f"workload version {str(version)[:40]!r} is not one of 1 to {WORKLOAD_VERSION}, which this "
                f"autotune reads; update autotune: {UPGRADE}"
            )
        dag = ComputeDAG.from_json(v.get("dag"))
        if names:
            dag = ComputeDAG.from_json(rename(dag.to_json(), Names.from_json(names)))
        return Workload(dag, op, tuple(sorted((params or {}).items())), flops)


@dataclass(frozen=True)
class Target:
    """The machine a kernel is for. ``features`` are the instruction-set extensions that code may
    use, ``limits`` integers such as ``vector_bytes``, ``vector_registers``, ``l1_bytes``,
    ``l2_bytes``, ``l3_bytes`` (per core what a core has to itself), ``cores``. ``threads`` is
    what a kernel runs with and part of the identity; cache sizes and the like are too, since a
    schedule depends on them.

    >>> target = at.best("matmul", m=64, n=64, k=64, threads=1).target
    >>> target.kind, target.threads, target.limit("cores") >= 1
    ('cpu', 1, True)
    """

    kind: str  # "cpu", "cuda", "opencl"
    arch: str  # LLVM CPU name or sm_XX
    triple: str = ""
    features: tuple[str, ...] = ()  # sorted
    threads: int = 1
    limits: tuple[tuple[str, int], ...] = ()  # sorted by name

    def __repr__(self) -> str:
        return f"<Target {self.kind} {self.arch}, {self.threads} thread{'s' if self.threads != 1 else ''}>"

    @property
    def grid(self) -> bool:
        """Whether kernels are grids of threads, as those of GPUs are."""
        return self.kind != "cpu"

    @property
    def bounds_launches(self) -> bool:
        """Whether a kernel may say how many of its blocks share a processor (CUDA's launch bounds)."""
        return self.kind == "cuda"

    @property
    def numbered(self) -> bool:
        """Whether ``arch`` is a number of NVIDIA's, such as sm_90, that tells what instructions there are."""
        return self.kind == "cuda"

    def limit(self, name: str, default: int = 0) -> int:
        """The limit called ``name``, ``default`` where the target does not state it."""
        return dict(self.limits).get(name, default)

    @cached_property
    def json(self) -> str:
        return canonical(
            {
                "kind": self.kind,
                "arch": self.arch,
                "triple": self.triple,
                "features": list(self.features),
                "threads": self.threads,
                "limits": dict(self.limits),
            }
        )

    @cached_property
    def digest(self) -> str:
        return digest(self.json)

    @staticmethod
    def from_json(text: str) -> Target:
        """Inverse of `json`. The text may come from anywhere. Raises ValueError on malformed text."""
        try:
            v = _TARGET(parsed(text, once=False))
            # sizes of a CPU are never 0 (`autotune.targets.facts`); attributes of devices may be
            if v["kind"] == "cpu" and 0 in v["limits"].values():
                raise Malformed(f"limits: expected a whole number from 1 to {MOST_OF_A_LIMIT}, got 0")
        except Malformed as err:
            raise ValueError(f"malformed target: {err}") from None
        features, limits = tuple(sorted(v["features"])), tuple(sorted(v["limits"].items()))
        return Target(v["kind"], v["arch"], v["triple"], features, v["threads"], limits)


_TARGET = record(
    {
        "kind": name,
        "arch": name,
        "triple": name,
        "features": list_of(name),
        "threads": integer(1, MOST_THREADS),
        "limits": mapping_of(integer(0, MOST_OF_A_LIMIT), key=name),
    }
)


JSONScalar = Any  # int, str, bool, None, or lists of these; a hole is {"hole": name}


@dataclass(frozen=True, slots=True)
class Step:
    """One application of a primitive: its name and its arguments (JSON values only)."""

    primitive: str
    args: tuple[tuple[str, JSONScalar], ...]  # sorted by name

    def __str__(self) -> str:
        """The primitive and its arguments, as in a call."""
        return f"{self.primitive}({', '.join(f'{k}={_thawed(v)!r}' for k, v in self.args)})"


@dataclass(frozen=True)
class Trace:
    """A sequence of steps: a schedule as data. ``Trace.from_json(t.to_json()) == t``.

    >>> x = te.placeholder((64,), name="x")
    >>> schedule = at.Schedule([x, te.compute((64,), lambda i: x[i] + 1.0, name="y")])
    >>> schedule.split("y_i", 8)
    ['y_i_0', 'y_i_1']
    >>> print(schedule.trace)
    split(factors=[None, 8], loop='y_i', tail='guard')
    >>> at.Trace.from_json(schedule.trace.to_json()) == schedule.trace
    True
    """

    steps: tuple[Step, ...] = field(default=())

    def __repr__(self) -> str:
        n = len(self.steps)
        return f"<Trace of {n} step{'s' if n != 1 else ''}>"

    def __str__(self) -> str:
        """A step a line: its primitive and its arguments."""
        return "\n".join(map(str, self.steps))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def to_json(self) -> str:
        """The trace as one line of JSON, with its version."""
        return self._json

    def document(self) -> dict[str, Any]:
        """The value that `to_json` is the text of; tuples in it are written as lists."""
        return {"version": TRACE_VERSION, "steps": [[s.primitive, dict(s.args)] for s in self.steps]}

    @cached_property
    def _json(self) -> str:
        return canonical(self.document())

    @cached_property
    def digest(self) -> str:
        return digest(self.to_json())

    @staticmethod
    def from_json(text: str) -> Trace:
        """Raises `TraceError` (a ValueError) on malformed text or an unknown version."""
        try:
            v = parsed_object(text, once=False)
            if v.get("version") != TRACE_VERSION:
                version = short(v.get("version"))
                raise TraceError(
                    f"trace version {version} is not {TRACE_VERSION}; update autotune to read it"
                )
            return Trace(_TRACE(v)["steps"])
        except Malformed as err:
            raise TraceError(f"malformed trace: {err}") from None


class TraceError(AutotuneError, ValueError):
    """Text that is not a trace this version can read.

    >>> at.Trace.from_json("{}")
    Traceback (most recent call last):
        ...
    schedules.model.TraceError: trace version None is not 1; update autotune to read it
    """


def _thawed(v: Any) -> Any:
    return [_thawed(x) for x in v] if isinstance(v, (tuple, list)) else v


def _freeze(v: Any) -> Any:
    return tuple([_freeze(x) if isinstance(x, list) else x for x in v]) if isinstance(v, list) else v


def _read_step(x: Any) -> Step:
    primitive, args = _STEP(x)
    return Step(primitive, tuple([(k, _freeze(args[k])) for k in sorted(args)]))


_STEP = items(any_text, an_object)
_TRACE = record({"version": integer(TRACE_VERSION, TRACE_VERSION), "steps": list_of(_read_step)})
