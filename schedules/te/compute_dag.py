"""The compute DAG: what is to be computed, without any word on how.

A `ComputeDAG` is a sequence of stages over named buffers. It is frozen and has one canonical JSON form. The
digest of that form identifies a workload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from schedules import expr as E
from schedules.documents import Malformed, any_integer, any_text, items, list_of, nullable, record, wrong
from schedules.dtypes import DTYPES
from schedules.errors import WorkloadError
from schedules.expr import Binary, Const, Expr, Load
from schedules.expr_json import from_json, to_json
from schedules.strides import flaw, row_major, settled, span
from schedules.te.domains import check_domain
from schedules.te.inside import check_loads
from schedules.te.marks import opened_by, unmarked
from schedules.te.open_sizes import OpenSizes, at_most, check_open, check_sizes, largest_sizes, read_open
from schedules.te.scans import check_group, check_scan_axes, groups
from schedules.te.scattered import check_places
from schedules.te.size import check_size
from schedules.te.sizes_in_values import stage_with_sizes
from schedules.te.typed import check_types
from schedules.te.very_stage import VeryStage

# Largest tensor and largest domain of a stage: products and sums of a few of them stay within 64 bits.
MOST_BYTES, MOST_POINTS = 2**56, 2**60


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array of the DAG: ``shape`` in elements. ``strides``: elements of memory from an index to the
    next along each dimension; None: row-major (see `schedules.strides`)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """numpy knows the name of the dtype from now on (`DType.numpy`)."""
        if self.strides is not None:
            object.__setattr__(self, "strides", settled(tuple(map(int, self.shape)), self.strides))
        if self.dtype in DTYPES and DTYPES[self.dtype].module != "numpy":
            DTYPES[self.dtype].numpy  # noqa: B018

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the last; of the largest sizes where extents are open."""
        shape = tuple(map(int, self.shape))
        return span(shape, self.strides or row_major(shape)) * DTYPES[self.dtype].itemsize

    @property
    def own_bytes(self) -> int:
        """Bytes of its elements, without the gaps between them, each place in memory counted once."""
        item = DTYPES[self.dtype].itemsize
        apart = prod(int(n) for n, s in zip(self.shape, self.strides or self.shape, strict=True) if s)
        return min(self.nbytes, apart * item)


@dataclass(frozen=True, slots=True)
class Axis:
    """An iteration axis: 0 <= var < extent."""

    var: str
    extent: int


@dataclass(frozen=True, slots=True)
class Reducer:
    """An associative, commutative reduction over tuples of ``len(identity)`` values.

    ``combine``: over the operands ``x0, x1, ...`` (accumulated) and ``y0, y1, ...`` (incoming), which are
    loads without indices (`operand`). ``identity``: its neutral tuple.
    """

    name: str
    identity: tuple[Const, ...]
    combine: tuple[Expr, ...]

    def apply(self, acc: tuple[Expr, ...], new: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The combined tuple: ``combine`` with its operands replaced."""
        env = {f"x{i}": a for i, a in enumerate(acc)} | {f"y{i}": b for i, b in enumerate(new)}
        return tuple(
            E.rewrite(c, lambda e: env.get(e.buffer) if isinstance(e, Load) else None) for c in self.combine
        )

    def operation(self, n: int) -> str:
        """The ``op`` (+, *, min, max) if component ``n`` is ``xn op yn``, else ""."""
        c = self.combine[n]
        if not isinstance(c, Binary) or c.op not in ("+", "*", "min", "max"):
            return ""
        names = {x.buffer for x in (c.a, c.b) if isinstance(x, Load)}
        return c.op if names == {f"x{n}", f"y{n}"} else ""

    @property
    def apart(self) -> bool:
        """Whether each component is reduced on its own by one operation."""
        return all(self.operation(n) for n in range(len(self.combine)))


def _check_tensor(t: Tensor, *, written: bool) -> None:
    """Raise ValueError for a tensor that no memory can hold, or no code can name."""
    if not t.name.isidentifier():
        raise ValueError(f"tensor name {t.name[:40]!r} is not an identifier")
    if t.dtype not in DTYPES:
        raise ValueError(f"tensor {t.name}: dtype {t.dtype[:40]!r} is not one of {', '.join(DTYPES)}")
    if any(not isinstance(n, int) or n < 1 for n in t.shape):
        raise ValueError(f"tensor {t.name}: shape {t.shape} has an extent below 1; every extent must be >= 1")
    if t.strides is not None and (wrong := flaw(t.shape, t.strides, written=written)):
        raise ValueError(f"tensor {t.name}: {wrong}")
    if t.nbytes > MOST_BYTES:
        raise ValueError(
            f"tensor {t.name}: it has more than {MOST_BYTES} bytes; make its shape or its strides smaller"
        )


def _check_axes(s: Stage) -> None:
    """Raise ValueError for axes that are not those of the outputs, or that no loop can count."""
    if not s.outputs:
        raise ValueError("a stage has no output")
    axes = (*s.axes, *s.reduce_axes)
    names = [a.var for a in axes]
    if len(set(names)) != len(names):
        raise ValueError(f"stage {s.name}: two axes share a name in {names}")
    for a in axes:
        if not a.var.isidentifier():
            raise ValueError(f"stage {s.name}: axis name {a.var[:40]!r} is not an identifier")
        if not isinstance(a.extent, int) or a.extent < 1:
            raise ValueError(f"stage {s.name}: axis {a.var} has extent {a.extent}; it must be >= 1")
    if prod(int(a.extent) for a in axes) > MOST_POINTS:
        raise ValueError(
            f"stage {s.name}: it has more than {MOST_POINTS} elements and terms; make it smaller"
        )
    for o in s.outputs:
        if o.shape != tuple(a.extent for a in s.axes):
            raise ValueError(f"stage {s.name}: output shape {o.shape} is not its axes'")


def operand(name: str, dtype: str) -> Load:
    """The operand ``x0``, ``y1``, ... of a reducer's ``combine``: a load without indices."""
    return Load(name, (), dtype)


@dataclass(frozen=True, slots=True)
class Stage:
    """``outputs[o][axes] = values[o]`` for every point of ``axes``. With a ``reducer``: the values of all
    points of ``reduce_axes`` combined. Its name is that of the first output.

    ``where``: conditions on axes and reduction axes. Only the terms of a reduction for which all of them hold
    are combined, as in sums over a triangle (`schedules.te.domains`).

    ``places``: an index for each dimension of the outputs, where a term goes. A scattered dimension has an
    index that is read from tensors, or computed from reduction axes. Each other one has its own axis
    (`schedules.te.scatter`). Empty: a term goes to the point of its axes.

    ``scan``: (axis, step) of the axes that run one after another, the outermost first, from the first point
    to the last (step 1) or from the last to the first (-1). A stage with some may read what itself, or a
    later stage of its group, made at earlier points of these (`schedules.te.scans`)."""

    outputs: tuple[Tensor, ...]
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    values: tuple[Expr, ...]
    reducer: Reducer | None = None
    where: tuple[Expr, ...] = ()
    places: tuple[Expr, ...] = ()
    scan: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """The name of its first output."""
        return self.outputs[0].name

    def reads(self) -> tuple[Load, ...]:
        """All loads of its values, conditions and places."""
        return tuple(x for v in (*self.values, *self.where, *self.places) for x in E.loads(v))

    @property
    def plain(self) -> bool:
        """Whether it is a map or a reduction over whole boxes, one after another: what has no ``where``, no
        ``places`` and no ``scan``."""
        return not (self.where or self.places or self.scan)


@lru_cache(maxsize=1 << 13)  # each rewrite of a model makes a DAG of almost the same stages
def _check_values(very: VeryStage, read: tuple[Tensor, ...], most: tuple[tuple[str, int], ...]) -> None:
    """Raise ValueError for types that do not fit, and loads that may leave their tensor. ``read``: the
    tensors that the stage reads. ``most``: the largest sizes."""
    s, known, sizes = very.stage, {t.name: t for t in read}, dict(most)
    check_types(s, known, sizes)
    extents = {a.var: int(a.extent) for a in (*s.axes, *s.reduce_axes)}
    there = stage_with_sizes(s, sizes)
    check_domain(there)
    if s.places:
        check_places(there, extents)
    read_by = (*there.values, *there.places)
    check_loads(s.name, read_by, extents, lambda e: tuple(map(int, known[e.buffer].shape)), there.where)


@dataclass(frozen=True)
class ComputeDAG:
    """Inputs, stages in topological order, and the names of the returned tensors.

    ``constants``: inputs that are known before the calls, such as weights. What a schedule makes of them
    alone may be done once, before (see `schedules.constants`).

    ``open``: sizes that a call tells; the numbers of the DAG are those of the largest ones. Extents depend on
    them, and values may (`schedules.te.open_sizes`). Where extents know their sizes (`schedules.te.marks`),
    it is read from them.

    Invariants (checked on construction, `ValueError` names the stage): names are unique identifiers, every
    expression has types that fit (see `schedules.te.typed`), every load reads an input or an earlier stage,
    or an earlier point of a scan (see `schedules.te.scans`), and is proved to stay inside it (see
    `schedules.te.inside`), axes have extent >= 1, and nothing is
    computed in a dtype of storage: it is only loaded, chosen, and converted from and to the dtype that it is
    computed with.
    """

    inputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...] = ()
    open: OpenSizes | None = None

    def __repr__(self) -> str:
        made = ", ".join(f"{n}{list(self.tensors[n].shape)}" for n in self.outputs)
        stages = f"{len(self.stages)} stage{'s' if len(self.stages) != 1 else ''}"
        return f"<ComputeDAG of {made[:120]}: {len(self.inputs)} inputs, {stages}>"

    def __copy__(self) -> ComputeDAG:
        """Itself: it does not change."""
        return self

    def __deepcopy__(self, memo: object) -> ComputeDAG:
        return self

    def __reduce__(self) -> tuple[Callable[[Any], ComputeDAG], tuple[Any]]:
        """A pickle has its JSON: what reads it makes every check again."""
        return ComputeDAG.from_json, (self.to_json(),)

    def __post_init__(self) -> None:
        opened = opened_by(self.inputs, self.stages)
        if opened is not None:
            object.__setattr__(self, "open", opened[0])
            object.__setattr__(self, "stages", opened[1])
        most: dict[str, int] = {}
        if self.open is not None:
            check_sizes(self.open.sizes)
            most = largest_sizes(self.open)
        known = self._checked_stages(most)
        inputs = {t.name: t for t in self.inputs}
        if len(set(self.outputs)) != len(self.outputs):
            raise ValueError(f"an output stands twice in {self.outputs}")
        for n in self.outputs:
            if n not in known or n in inputs:
                raise ValueError(f"output {n!r} is not computed by any stage")
        for n in self.constants:
            if n not in inputs:
                raise ValueError(f"constant {n!r} is not an input; the inputs are {', '.join(inputs)}")
        constants = set(self.constants)
        if list(self.constants) != [n for n in inputs if n in constants]:
            raise ValueError(f"constants {self.constants} must stand once each, in the order of the inputs")
        if self.open is not None:
            check_open(self)

    def _checked_stages(self, most: dict[str, int]) -> dict[str, Tensor]:
        """Every tensor by name. Raises ValueError for a stage that is none. ``most``: the largest sizes."""
        known: dict[str, Tensor] = {}

        def define(t: Tensor, *, written: bool) -> None:
            if t.name in known:
                raise ValueError(f"two tensors are named {t.name!r}; give each its own name=")
            _check_tensor(t, written=written)
            known[t.name] = t

        for t in self.inputs:
            define(t, written=False)
        together = {n: range(a, b + 1) for a, b in groups(self) for n in range(a, b + 1)}
        for n, s in enumerate(self.stages):
            _check_axes(s)
            check_scan_axes(s)
            later = {o.name: o for k in together.get(n, ()) if k >= n for o in self.stages[k].outputs}
            defined = later | known if later else known
            read = {x.buffer: defined[x.buffer] for x in s.reads() if x.buffer in defined}
            _check_values(VeryStage(s), tuple(read.values()), tuple(most.items()))
            for o in s.outputs:
                define(o, written=True)
            if n in together and n == together[n][-1]:
                check_group(self.stages[together[n][0] : n + 1])
        return known

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name."""
        out = {t.name: t for t in self.inputs}
        for s in self.stages:
            out |= {o.name: o for o in s.outputs}
        return out

    @cached_property
    def largest(self) -> ComputeDAG:
        """The DAG of the largest sizes, without open ones."""
        return at_most(unmarked(self))

    def stage(self, name: str) -> Stage:
        """The stage that computes tensor ``name``. Raises KeyError."""
        for s in self.stages:
            if any(o.name == name for o in s.outputs):
                return s
        raise KeyError(name)

    @property
    def params(self) -> tuple[Tensor, ...]:
        """The arguments of a kernel: the inputs, then the outputs."""
        return self.inputs + tuple(self.tensors[n] for n in self.outputs)

    def to_json(self) -> dict[str, Any]:
        """A canonical JSON object (key order does not matter: the codec sorts)."""

        def tensor(t: Tensor) -> list[Any]:
            # strides only where there are some: what has none keeps its digest
            steps = [] if t.strides is None else [list(t.strides)]
            return [t.name, list(map(int, t.shape)), t.dtype, *steps]

        def axes(xs: tuple[Axis, ...]) -> list[list[Any]]:
            return [[a.var, int(a.extent)] for a in xs]

        # Written only if there are some, so that a DAG without them keeps its digest.
        known: dict[str, Any] = {"constants": list(self.constants)} if self.constants else {}
        if self.open is not None:
            known["open"] = self.open.to_json()
        return known | {
            "inputs": [tensor(t) for t in self.inputs],
            "outputs": list(self.outputs),
            "stages": [
                {
                    "outputs": [tensor(t) for t in s.outputs],
                    "axes": axes(s.axes),
                    "reduce_axes": axes(s.reduce_axes),
                    "values": [to_json(v) for v in s.values],
                    "reducer": None
                    if s.reducer is None
                    else {
                        "name": s.reducer.name,
                        "identity": [to_json(c) for c in s.reducer.identity],
                        "combine": [to_json(c) for c in s.reducer.combine],
                    },
                }
                | _unusual(s)
                for s in self.stages
            ],
        }

    @staticmethod
    def from_json(v: Any) -> ComputeDAG:
        """Inverse of `to_json`. The value may come from anywhere. Raises ValueError on anything malformed."""
        try:
            return ComputeDAG(**_DAG(v))
        except Malformed as err:
            raise ValueError(f"malformed compute DAG: {err}") from None


def _unusual(s: Stage) -> dict[str, Any]:
    """What few stages have. It is written only where there is some: what has none keeps its digest."""
    parts = {"where": [to_json(x) for x in s.where], "places": [to_json(x) for x in s.places]}
    return {k: v for k, v in (parts | {"scan": [list(x) for x in s.scan]}).items() if v}


_INTS, _VALUES = list_of(any_integer), list_of(from_json)
_ROW_MAJOR = items(any_text, _INTS, any_text)
_STRIDED = items(any_text, _INTS, any_text, _INTS)


def _read_tensor(x: Any) -> Tensor:
    if not isinstance(x, list) or not 3 <= len(x) <= 4:
        raise wrong(x, "[name, shape, dtype] or these and strides")
    return Tensor(*(_ROW_MAJOR if len(x) == 3 else _STRIDED)(x))


def _read_axis(x: Any) -> Axis:
    return Axis(*_PAIR(x))


def require_dag(dag: object, who: str, other: str = "") -> None:
    """Raise `WorkloadError` for what is no compute DAG. ``other``: what may be given in its place."""
    if not isinstance(dag, ComputeDAG):
        raise WorkloadError(
            f"{who} takes a program, not a {type(dag).__name__}; give it te.dag(tensors){other}"
        )


def _read_reducer(x: Any) -> Reducer:
    return Reducer(**_REDUCER(x))


def _read_stage(x: Any) -> Stage:
    found = Stage(**_STAGE(x))
    reduced = [found.reducer.identity, found.reducer.combine] if found.reducer else []
    for parts in (found.values, found.where, found.places, *reduced):
        if parts:
            check_size(parts, f"stage {found.name if found.outputs else ''}")
    return found


_PAIR = items(any_text, any_integer)
_REDUCER = record({"name": any_text, "identity": _VALUES, "combine": _VALUES})
_STAGE = record(
    {
        "outputs": list_of(_read_tensor),
        "axes": list_of(_read_axis),
        "reduce_axes": list_of(_read_axis),
        "values": _VALUES,
        "reducer": nullable(_read_reducer),
    },
    {"where": _VALUES, "places": _VALUES, "scan": list_of(items(any_text, any_integer))},
)
_DAG = record(
    {"inputs": list_of(_read_tensor), "stages": list_of(_read_stage), "outputs": list_of(any_text)},
    {"constants": list_of(any_text), "open": read_open},
)
