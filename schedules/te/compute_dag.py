"""The compute DAG: what is to be computed, without any word on how.

A `ComputeDAG` is a sequence of stages over named buffers. It is frozen and has one canonical JSON form. The
digest of that form identifies a workload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from schedules import expr as E
from schedules.dtypes import DTYPES, computed, is_storage
from schedules.expr import INDEX, Binary, Call, Cast, Compare, Const, Expr, Fma, Load, Var
from schedules.expr_json import from_json, to_json
from schedules.strides import flaw, settled, span, strides_of
from schedules.te.inside import check_loads


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array of the DAG: ``shape`` in elements. ``strides``: elements of memory from an index to the
    next along each dimension; None: row-major (see `schedules.strides`). They are for what a kernel keeps
    between its stages: arguments are row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """numpy knows the name of the dtype from now on (`DType.numpy`)."""
        if self.strides is not None:
            object.__setattr__(self, "strides", settled(self.shape, self.strides))
        if self.dtype in DTYPES and DTYPES[self.dtype].module != "numpy":
            DTYPES[self.dtype].numpy  # noqa: B018

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the last."""
        return span(self.shape, strides_of(self)) * DTYPES[self.dtype].itemsize


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
            E.rewrite(c, lambda e: env.get(e.buffer) if isinstance(e, Load) else None)
            for c in self.combine
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


def _computed_storage(e: Expr) -> Expr | None:
    """A part of ``e`` that is arithmetic on a dtype of storage, or converts it from or to another dtype than
    what it is computed with. Whether conditions are equal may be asked; one is made by a comparison."""
    for x in E.walk(e):
        if isinstance(x, (Binary, Compare, Call, Fma)):
            dtypes = {E.dtype_of(y) for y in E.children(x)}
            wrong = any(map(is_storage, dtypes)) and not (dtypes == {"bool"} and _is_equality(x))
        elif isinstance(x, Cast):
            both = (x.dtype, E.dtype_of(x.a))
            wrong = x.dtype == "bool" or any(is_storage(d) and computed(d) not in both for d in both)
        else:
            continue
        if wrong:
            return x
    return None


def _no_index(e: Expr) -> Expr | None:
    """A part of ``e`` that makes an index of what is none: only int32 and int64 are converted."""
    casts = (x for x in E.walk(e) if isinstance(x, Cast) and x.dtype == INDEX)
    return next((x for x in casts if E.dtype_of(x.a) not in ("int32", "int64")), None)


def _is_equality(e: Expr) -> bool:
    return isinstance(e, Compare) and e.op in ("==", "!=")


def operand(name: str, dtype: str) -> Load:
    """The operand ``x0``, ``y1``, ... of a reducer's ``combine``: a load without indices."""
    return Load(name, (), dtype)


@dataclass(frozen=True, slots=True)
class Stage:
    """``outputs[o][axes] = values[o]`` for every point of ``axes``. With a ``reducer``: the values of all
    points of ``reduce_axes`` combined. Its name is that of the first output."""

    outputs: tuple[Tensor, ...]
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    values: tuple[Expr, ...]
    reducer: Reducer | None = None

    @property
    def name(self) -> str:
        """The name of its first output."""
        return self.outputs[0].name

    def reads(self) -> tuple[Load, ...]:
        """All loads of its values."""
        return tuple(x for v in self.values for x in E.loads(v))


@dataclass(frozen=True)
class ComputeDAG:
    """Inputs, stages in topological order, and the names of the returned tensors.

    ``constants``: inputs that are known before the calls, such as weights. What a schedule makes of them
    alone may be done once, before (see `schedules.constants`).

    Invariants (checked on construction, `ValueError` names the stage): names are unique, every
    load reads an input or an earlier stage with the right rank and dtype and is proved to stay inside it
    (see `schedules.te.inside`), axes have extent >= 1, and nothing is computed in a dtype of storage: it is
    only loaded, chosen, and converted from and to the dtype that it is computed with.
    """

    inputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...] = ()

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
        known: dict[str, Tensor] = {}

        def define(t: Tensor, *, written: bool) -> None:
            if t.name in known:
                raise ValueError(f"two tensors are named {t.name!r}; give each its own name=")
            if not t.name.isidentifier():
                raise ValueError(f"tensor name {t.name!r} is not an identifier")
            if t.dtype not in DTYPES:
                raise ValueError(
                    f"tensor {t.name}: dtype {t.dtype!r} is not one of {', '.join(DTYPES)}"
                )
            if any(not isinstance(n, int) or n < 1 for n in t.shape):
                raise ValueError(
                    f"tensor {t.name}: shape {t.shape} has an extent below 1; every extent must be >= 1"
                )
            if t.strides is not None and (wrong := flaw(t.shape, t.strides, written=written)):
                raise ValueError(f"tensor {t.name}: {wrong}")
            known[t.name] = t

        for t in self.inputs:
            define(t, written=False)
        for s in self.stages:
            vars_ = [a.var for a in (*s.axes, *s.reduce_axes)]
            if len(set(vars_)) != len(vars_):
                raise ValueError(f"stage {s.name}: two axes share a name in {vars_}")
            scope = set(vars_)
            for v in (*s.values, *(s.reducer.combine if s.reducer else ())):
                if (bad := _computed_storage(v)) is not None:
                    one = next(d for x in (bad, *E.children(bad)) if is_storage(d := E.dtype_of(x)))
                    raise ValueError(
                        f"stage {s.name}: {E.show(bad)} computes in {one}, a dtype for storage only; "
                        f'use te.cast(x, "{computed(one)}")'
                    )
                if (bad := _no_index(v)) is not None:
                    raise ValueError(
                        f"stage {s.name}: {E.show(bad)} makes an index of {E.dtype_of(bad.a)}; "  # type: ignore[attr-defined]
                        'convert it to int32 or int64 first, e.g. te.cast(x, "int32")'
                    )
            for v in s.values:
                for x in E.walk(v):
                    if isinstance(x, Var) and x.name not in scope:
                        raise ValueError(
                            f"stage {s.name}: axis {x.name!r} is not an axis of this stage"
                        )
                    if isinstance(x, Load):
                        if x.buffer not in known:
                            raise ValueError(
                                f"stage {s.name}: reads {x.buffer!r}, which no earlier stage computes"
                            )
                        t = known[x.buffer]
                        if len(x.indices) != len(t.shape) or x.dtype != t.dtype:
                            raise ValueError(
                                f"stage {s.name}: {E.show(x)} does not fit {t.name}{list(t.shape)} {t.dtype}"
                            )
            extents = {a.var: a.extent for a in (*s.axes, *s.reduce_axes)}
            check_loads(s.name, s.values, extents, lambda e: known[e.buffer].shape)
            for o in s.outputs:
                if o.shape != tuple(a.extent for a in s.axes):
                    raise ValueError(f"stage {s.name}: output shape {o.shape} is not its axes'")
                define(o, written=True)
        for n in self.outputs:
            if n not in known or n in {t.name for t in self.inputs}:
                raise ValueError(f"output {n!r} is not computed by any stage")
        names = [t.name for t in self.inputs]
        for n in self.constants:
            if n not in names:
                raise ValueError(f"constant {n!r} is not an input; the inputs are {', '.join(names)}")
        if list(self.constants) != [n for n in names if n in self.constants]:
            raise ValueError(f"constants {self.constants} must stand once each, in the order of the inputs")

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name."""
        out = {t.name: t for t in self.inputs}
        for s in self.stages:
            out |= {o.name: o for o in s.outputs}
        return out

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
            return [t.name, list(t.shape), t.dtype, *([] if t.strides is None else [list(t.strides)])]

        def axes(xs: tuple[Axis, ...]) -> list[list[Any]]:
            return [[a.var, a.extent] for a in xs]

        # Written only if there are some, so that a DAG without constants keeps its digest.
        known = {"constants": list(self.constants)} if self.constants else {}
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
                for s in self.stages
            ],
        }

    @staticmethod
    def from_json(v: Any) -> ComputeDAG:
        """Inverse of `to_json`. Raises ValueError on anything malformed."""
        try:

            def tensor(x: Any) -> Tensor:
                name, shape, dtype, *more = x
                if len(more) > 1:
                    raise ValueError(f"a tensor is [name, shape, dtype] or these and strides, not {x!r}")
                strides = tuple(_int(n) for n in more[0]) if more else None
                return Tensor(str(name), tuple(_int(n) for n in shape), str(dtype), strides)

            def axes(xs: Any) -> tuple[Axis, ...]:
                return tuple(Axis(str(n), _int(e)) for n, e in xs)

            stages = []
            for s in v["stages"]:
                r = s["reducer"]
                reducer = None
                if r is not None:
                    identity = tuple(from_json(c) for c in r["identity"])
                    if not all(isinstance(c, Const) for c in identity):
                        raise ValueError("a reducer's identity must be constants")
                    reducer = Reducer(
                        str(r["name"]),
                        identity,  # type: ignore[arg-type]
                        tuple(from_json(c) for c in r["combine"]),
                    )
                stages.append(
                    Stage(
                        tuple(tensor(t) for t in s["outputs"]),
                        axes(s["axes"]),
                        axes(s["reduce_axes"]),
                        tuple(from_json(x) for x in s["values"]),
                        reducer,
                    )
                )
            return ComputeDAG(
                tuple(tensor(t) for t in v["inputs"]),
                tuple(stages),
                tuple(map(str, v["outputs"])),
                tuple(map(str, v.get("constants", ()))),
            )
        except (KeyError, TypeError, IndexError) as err:
            raise ValueError(f"malformed compute DAG: {err!r}") from None


def _int(x: Any) -> int:
    if not isinstance(x, int) or isinstance(x, bool):
        raise ValueError(f"expected an integer, got {x!r}")
    return x
