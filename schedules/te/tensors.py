"""Tensors and axes of tensor expressions, and the walk from tensors to a `ComputeDAG`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

from schedules import expr as E
from schedules.dtypes import DTYPES, is_integer
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Cast, Const, Expr, Load, Var, numpys
from schedules.loads import with_loads
from schedules.te.compute_dag import Axis, ComputeDAG, Reducer, Stage
from schedules.te.compute_dag import Tensor as DagTensor
from schedules.te.dims import Dim, at_sizes, check_stride, dims_of, extent_at, stride_at
from schedules.te.extent import Extent, written
from schedules.te.marks import unmarked
from schedules.te.open_sizes import untold, with_room
from schedules.te.scalars import cast, element_of
from schedules.te.unique import Taken

NO_SIZES: Mapping[Dim, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class IterVar(Var):
    """An axis while an expression is written. Two axes of one name stay two. ``extent``: number of points, an
    expression of dimensions where it varies. ``reduce``: whether it is a reduction axis, not one of a
    compute's shape. ``start``: its first value, and ``where``: conditions for those that count, both by other
    axes (`schedules.te.bounded_axes`)."""

    extent: Any
    reduce: bool
    start: Any = 0
    where: tuple[Expr, ...] = ()
    ends: tuple[Any, Any] | None = None

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def least(self) -> Any:
        """The least of its values, an integer or an expression of dimensions."""
        return 0 if self.ends is None else self.ends[0]

    @property
    def most(self) -> Any:
        """The largest of its values."""
        return self.extent - 1 if self.ends is None else self.ends[1]

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Carry:
    """What makes a tensor the state of a scan. ``axes``: its dimensions along which steps run one after
    another, the outermost first. ``step``: 1 from the first point on, -1 from the last one. ``read``: an
    element, of the state and indices. ``stored``: what each step stores, once `te.scan` is told."""

    axes: tuple[int, ...]
    step: int
    read: Callable[[Tensor, tuple[Expr, ...]], Expr]
    stored: list[Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A multi-dimensional value: an input (``op`` is None), or output ``index`` of stage ``op``. ``shape``:
    integers, and expressions of dimensions where it varies. ``name``: None until `dag` gives one, unless the
    user gave one. ``strides``: of an input, in elements; None: it is row-major.

    ``A[i, j]`` is one element. An index is arithmetic over axes, or an integer (int8 to int64, uint8 to
    uint32) that is read from tensors: ``W[ids[i], j]`` is a row of ``W`` for each element of ``ids``. That
    is its first row for elements below 0, its last for those beyond. Raises `WorkloadError` for other
    indices."""

    shape: tuple[Any, ...]
    dtype: str
    name: str | None = None
    op: Op | None = None
    index: int = 0
    strides: tuple[Any, ...] | None = None
    carry: Carry | None = None

    def __copy__(self) -> Tensor:
        """Itself, because a tensor does not change and is compared by identity."""
        return self

    def __deepcopy__(self, memo: object) -> Tensor:
        return self

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __getitem__(self, index: Any) -> Expr:
        items = index if isinstance(index, tuple) else (index,)
        if len(items) != self.ndim:
            raise WorkloadError(
                f"{self!r} has {self.ndim} dimensions but is indexed with {len(items)}: "
                f"[{', '.join(E.show(i) if isinstance(i, Expr) else str(i) for i in items)}]; give one index "
                "for each dimension"
            )
        at = tuple(self._index(d, x) for d, x in enumerate(items))
        if self.carry is not None:
            return self.carry.read(self, at)
        return TensorLoad(self.name or "tensor", at, self.dtype, self)

    def _index(self, d: int, x: Any) -> Expr:
        """Index ``d`` of an element. One that is read from tensors is held inside the dimension."""
        if isinstance(x, Expr):
            dtype = E.dtype_of(x)
            if dtype == INDEX:
                return E.minimum(E.maximum(x, 0), self.shape[d] - 1) if E.loads(x) else x
            if not is_integer(dtype):
                remedy = 'compute an integer, e.g. te.cast(x, "int32")'
                if dtype == "bool":
                    remedy = "choose between integers, e.g. te.select(x, 1, 0)"
                raise WorkloadError(
                    f"{self!r} is indexed by {E.show(x)} of dtype {dtype}; an index is arithmetic over axes "
                    f"and integers, or an integer that is read from tensors: {remedy}"
                )
            return held_inside(x, self.shape[d])
        if isinstance(x, bool) or not hasattr(x, "__index__"):
            raise WorkloadError(f"{self!r} is indexed by {x!r}; an index is an axis or an integer")
        return E.wrap(x)

    def _misused(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("")

    def _refuse(self, word: str) -> NoReturn:
        """Raise `WorkloadError`. ``word``: the function of `te` that was meant, if one was."""
        how = "say what an element is, as in te.compute(shape, lambda i, j: x[i, j] + y[i, j])"
        if not self.ndim:
            how = f"its one element is {self.name or 'x'}[()], in a te.compute"
        elif word:
            last = ("k",) if word in numpys.REDUCTIONS else ()
            example = f"te.{word}({element_of(self, last)}, axis=k)" if last else element_of(self)
            how = f"te.{word} takes its elements in a te.compute, as in {example}"
        raise WorkloadError(f"{self!r} is no array that can be computed with: {how}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _misused
    __matmul__ = __rmatmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __pow__ = _misused
    __abs__ = __round__ = _misused

    def __array_function__(self, function: Any, *_: Any, **__: Any) -> NoReturn:
        self._refuse(numpys.word(function.__name__))

    def __array_ufunc__(self, ufunc: Any, method: str, *_: Any, **__: Any) -> bool:
        """numpy asks its operands, in place of computing with each element. A tensor is no array's equal."""
        name = ufunc.__name__
        if name in ("equal", "not_equal"):
            return bool(name == "not_equal")
        self._refuse("" if name in numpys.OPERATORS else numpys.word(name))

    def __iter__(self) -> NoReturn:
        raise WorkloadError(f"{self!r} cannot be iterated; index it inside te.compute")

    def __repr__(self) -> str:
        return f"tensor {self.name or '(unnamed)'}{list(self.shape)} {self.dtype}"


def held_inside(x: Expr, extent: Any) -> Expr:
    """An integer as an index: ``x``, or the nearer end of 0..``extent`` - 1 where it lies beyond. That is
    found in the dtype of ``x``, so that nothing is cut off before. No data can then make a kernel read
    outside of a tensor (the mode "clip" of numpy's `take`, JAX's and TVM's gather)."""
    x = E.widen(x)
    dtype = E.dtype_of(x)
    most = DTYPES[dtype].range[-1]
    end = written(extent)
    last = cast(end - 1, dtype) if isinstance(end, Expr) else Const(min(end - 1, most), dtype)
    return Cast(INDEX, E.minimum(E.maximum(x, 0), last))


@dataclass(frozen=True, slots=True)
class TensorLoad(Load):
    """A load that knows its tensor, not only the tensor's name."""

    tensor: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """A stage under construction. ``axes``: names and extents, as of `IterVar`. ``values``, ``where`` and
    ``places`` use plain variables and `TensorLoad` loads."""

    axes: tuple[tuple[str, Any], ...]
    reduce_axes: tuple[tuple[str, Any], ...]
    values: tuple[Expr, ...]
    reducer: Reducer | None
    names: tuple[str | None, ...]
    where: tuple[Expr, ...] = ()
    places: tuple[Expr, ...] = ()
    scan: tuple[tuple[str, int], ...] = ()

    def reads(self) -> list[Tensor]:
        """Tensors read, in order of first use."""
        every = (*self.values, *self.where, *self.places)
        accesses = (x for v in every for x in E.walk(v) if isinstance(x, TensorLoad))
        return list(dict.fromkeys(x.tensor for x in accesses))

    def extents(self) -> list[Any]:
        """Of its axes, then of its reduction axes."""
        return [n for _, n in (*self.axes, *self.reduce_axes)]

    def parts(self) -> list[Any]:
        """Extents and values: what may have dimensions."""
        return [*self.extents(), *self.values, *self.where, *self.places]


# A tensor as the key of a table: two objects may stand for one output of a stage.
Key = tuple[Tensor | Op, int]


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """A reduction of ``values`` over ``axes``. It can only be the whole body of a compute."""

    reducer: Reducer
    values: tuple[Expr, ...]
    axes: tuple[IterVar, ...]

    def _misused(self, *_: Any, **__: Any) -> NoReturn:
        raise WorkloadError(f"{self!r}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __pow__ = __rpow__ = _misused
    __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __neg__ = __abs__ = __round__ = _misused
    __array_ufunc__ = __array_function__ = _misused
    __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __iter__ = _misused

    def __repr__(self) -> str:
        return (
            f"te.{self.reducer.name} over {', '.join(a.name for a in self.axes)} must be the whole body of "
            "a te.compute: give it a stage of its own and read that stage's result"
        )


def dag(tensors: Sequence[Tensor], sizes: Mapping[Dim, int] = NO_SIZES) -> ComputeDAG:
    """The compute DAG of an operator, given all its inputs and outputs. ``sizes``: the numbers for its
    dimensions (`schedules.te.dims`); one that has none stays open (`ComputeDAG.open`).

    Inputs are the listed placeholders, outputs the listed computed tensors, each in their order. Outputs may
    be read by others: ``[A, B, C, D]`` with D reading C returns C and D, ``[A, B, D]`` only D. Stages are in
    topological order. Names are the user's, else ``I0``, ``T0``, ... by position; a name used twice gets a
    number. Raises `WorkloadError`.

    >>> x = te.placeholder((4,), name="x")
    >>> y = te.compute((4,), lambda i: x[i] + 1.0, name="y")
    >>> [t.name for t in te.dag([x, y]).inputs]
    ['x']
    """
    made = marked_dag(tensors, sizes)
    if wrong := untold(made):
        raise WorkloadError(wrong)
    room = {d.name for t, d in zip(_inputs(tensors), made.inputs, strict=True) if t.strides is not None}
    return with_room(unmarked(made), room)


def marked_dag(tensors: Sequence[Tensor], sizes: Mapping[Dim, int] = NO_SIZES) -> ComputeDAG:
    """`dag`, whose extents know their sizes (`schedules.te.marks`), for whoever goes on to compute with the
    shapes of ``tensors``: both are of the same dimensions."""
    listed = _listed(tensors)
    inputs = _inputs(tensors)
    computed = [t for t in listed if t.op is not None]
    if not computed:
        raise WorkloadError("the operator's tensors hold no output; list the result of te.compute too")
    ops, leaves = discover([t.op for t in computed if t.op is not None])
    for t in leaves:
        if t.carry is not None:
            raise WorkloadError(
                f"{t!r} is the state of a scan, and nothing is stored in it; say what a step stores: "
                f"out = te.scan({t.name or 'state'}, value)"
            )
        if t not in listed:
            raise WorkloadError(
                f"{t!r} is read but not listed; list every input, "
                f"e.g. [{t.name or 'A'}, ..., {computed[-1].name or 'C'}]"
            )
    read = set(leaves)
    for t in inputs:
        if t not in read:
            raise WorkloadError(f"input {t!r} is read by no listed output; leave it out or list its output")
    unset = [d for d in _dims(inputs, ops) if d not in sizes]
    unknown = [d for d in unset if d.open is False]
    if unknown:
        raise WorkloadError(
            f"the expression has sizes that vary ({', '.join(map(repr, unknown))}) and open=False, which "
            "autotune.tune and autotune.load take; here give numbers: te.dag(tensors, {m: 64})"
        )
    sizes = {**sizes, **{d: d.hi for d in unset if d.lo == d.hi}}  # one from 5 to 5 is 5
    _check_open(inputs, ops, sizes)
    taken = {n for t in inputs for n in [t.name] if n} | {n for op in ops for n in op.names if n}
    names = _assign(inputs, ops, taken)
    scans = scan_axes(ops)
    stages = []
    for op in ops:
        values, where, places = (
            tuple(at_sizes(_resolve(v, names), sizes) for v in x) for x in (op.values, op.where, op.places)
        )
        axes, reduce_axes = _axes(op.axes, sizes), _axes(op.reduce_axes, sizes)
        shape = tuple(a.extent for a in axes)
        outs = tuple(DagTensor(names[op, i], shape, E.dtype_of(v)) for i, v in enumerate(values))
        stages.append(Stage(outs, axes, reduce_axes, values, op.reducer, where, places, scans.get(op, ())))
    try:
        return ComputeDAG(
            tuple(_input(names[t, 0], t, sizes) for t in inputs),
            tuple(stages),
            tuple(names[key(t)] for t in computed),
        )
    except ValueError as err:
        raise WorkloadError(str(err)) from err


def _check_open(inputs: Sequence[Tensor], ops: Sequence[Op], sizes: Mapping[Dim, int]) -> None:
    """Raise `WorkloadError` for an open dimension without a number in a stride, or in values alone."""
    extents = [*(n for t in inputs for n in t.shape), *(n for op in ops for n in op.extents())]
    told = {*sizes, *dims_of(map(written, extents))}
    for op in ops:
        for name, v in zip(op.names, op.values, strict=True):
            if found := [d for d in dims_of([v]) if d not in told]:
                raise WorkloadError(
                    f"a value of {name or 'a stage'} depends on the open size {found[0]!r}, and no extent of "
                    "an input tells it of a call; give it as an input, or say open=False for a kernel of "
                    "each size"
                )
    for i, t in enumerate(inputs):
        for s in t.strides or ():
            check_stride(t.name or f"I{i}", s, sizes)


def _input(name: str, t: Tensor, sizes: Mapping[Dim, int]) -> DagTensor:
    strides = None if t.strides is None else tuple(stride_at(s, sizes) for s in t.strides)
    return DagTensor(name, tuple(_sized(n, sizes) for n in t.shape), t.dtype, strides)


def _sized(extent: Any, sizes: Mapping[Dim, int]) -> int:
    """An extent as a number, one that stays open as an `Extent`. Raises `WorkloadError`."""
    e = written(extent)
    open_ = {d: d.hi for d in dims_of([e]) if d not in sizes}
    largest = extent_at(e, {**sizes, **open_})
    return Extent(at_sizes(e, sizes)) if open_ else largest


def _listed(tensors: Sequence[Tensor]) -> dict[Tensor, None]:
    """The tensors of an operator, in order, each once."""
    seen: dict[Tensor, None] = {}
    for i, t in enumerate(tensors if isinstance(tensors, (tuple, list)) else [tensors]):
        if not isinstance(t, Tensor):
            raise WorkloadError(f"item {i} of the operator's tensors is {t!r}; list te tensors only")
        if t in seen:
            raise WorkloadError(f"{t!r} is listed twice; list each input and output once")
        seen[t] = None
    return seen


def _inputs(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t for t in _listed(tensors) if t.op is None]


def dims(tensors: Sequence[Tensor]) -> list[Dim]:
    """The sizes that vary in an operator, given all its inputs and outputs; those of inputs first."""
    ops, leaves = discover([t.op for t in tensors if isinstance(t, Tensor) and t.op is not None])
    return _dims([t for t in tensors if isinstance(t, Tensor) and t.op is None] or leaves, ops)


def _dims(inputs: Sequence[Tensor], ops: Sequence[Op]) -> list[Dim]:
    lie = [n for t in inputs for n in (*t.shape, *(t.strides or ()))]
    return dims_of(map(written, [*lie, *(x for op in ops for x in op.parts())]))


def _axes(axes: tuple[tuple[str, Any], ...], sizes: Mapping[Dim, int]) -> tuple[Axis, ...]:
    return tuple(Axis(name, _sized(n, sizes)) for name, n in axes)


def key(t: Tensor) -> Key:
    """The placeholder itself, or the stage and the number of its output; of a state, of what is stored."""
    if t.carry is not None and t.carry.stored:
        return key(t.carry.stored[0])
    return (t if t.op is None else t.op), t.index


def discover(roots: Iterable[Op]) -> tuple[list[Op], list[Tensor]]:
    """Stages in topological order (depth first, reads left to right) and the placeholders met. The stages of
    a scan, which read what later ones store, stand one after another."""
    order: dict[Op, None] = {}
    leaves: dict[Tensor, None] = {}
    stored: dict[Op, None] = {}
    todo = list(roots)
    while todo:
        stack = [(op, False) for op in reversed(todo)]
        while stack:
            op, ready = stack.pop()
            if op in order:
                continue
            if ready:
                order[op] = None
                continue
            stack.append((op, True))
            reads = op.reads()
            made = [key(t)[0] for t in reads if t.carry is not None]
            stored |= {x: None for x in made if isinstance(x, Op)}
            leaves |= {t: None for t in reads if isinstance(key(t)[0], Tensor)}
            stack += [(t.op, False) for t in reversed(reads) if t.op is not None]
        todo = [op for op in stored if op not in order]
    ops = [op for group in loops_of(list(order)) for op in group] if stored else list(order)
    return ops, list(leaves)


def loops_of(ops: Sequence[Op]) -> list[list[Op]]:
    """Stages (in topological order, if no state is looked at) in groups that depend on one another in a
    circle, as those of a scan do. Each group stands after what it reads (Tarjan's algorithm)."""
    place = {op: n for n, op in enumerate(ops)}
    number, low = dict[Op, int](), dict[Op, int]()
    open_: list[Op] = []
    inside = set[Op]()
    groups: list[list[Op]] = []

    def before(op: Op) -> list[Op]:
        return [x for t in op.reads() if isinstance(x := key(t)[0], Op) and x in place]

    for root in ops:
        work = [] if root in number else [(root, iter(before(root)))]
        while work:
            op, rest = work[-1]
            if op not in number:
                number[op] = low[op] = len(number)
                open_.append(op)
                inside.add(op)
            new = None
            for x in rest:
                if x not in number:
                    new = x
                    break
                if x in inside:
                    low[op] = min(low[op], number[x])
            if new is not None:
                work.append((new, iter(before(new))))
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[op])
            if low[op] == number[op]:
                at = open_.index(op)
                group = sorted(open_[at:], key=place.__getitem__)
                inside.difference_update(group)
                del open_[at:]
                groups.append(group)
    return groups


def scan_axes(ops: Sequence[Op]) -> dict[Op, tuple[tuple[str, int], ...]]:
    """{stage of a scan: its (axis, step), the outermost first}. Raises `WorkloadError` for stages that have
    not the axes of the scan that they are steps of."""
    if not any(t.carry is not None for op in ops for t in op.reads()):
        return {}
    found = {}
    for group in loops_of(ops):
        own = set(group)
        states = [t for op in group for t in op.reads() if t.carry is not None and key(t)[0] in own]
        if not states:
            continue
        first = states[0]
        assert first.carry is not None
        for t in states:
            assert t.carry is not None
            if (t.carry.axes, t.carry.step) != (first.carry.axes, first.carry.step):
                raise WorkloadError(
                    f"{first!r} and {t!r} are states of one scan, along axes {first.carry.axes} and "
                    f"{t.carry.axes} in steps of {first.carry.step} and {t.carry.step}; give them the same"
                )
        for op in group:
            name = next((n for n in op.names if n), "a stage")
            for d in first.carry.axes:
                if d >= len(op.axes) or repr(op.axes[d][1]) != repr(first.shape[d]):
                    raise WorkloadError(
                        f"stage {name}: it is a step of the scan of {first!r}, which reads it, and its axis "
                        f"{d} is not that of the scan; give it {first.shape[d]} points there"
                    )
            found[op] = tuple((op.axes[d][0], first.carry.step) for d in first.carry.axes)
    return found


def _assign(inputs: Sequence[Tensor], ops: Sequence[Op], reserved: set[str]) -> dict[Key, str]:
    """A unique name for every tensor. Names given by users come before numbered ones."""
    taken = Taken()

    def pick(name: str | None, default: str) -> str:
        free = name is not None and name not in taken
        return taken.add(name or default, () if free else reserved)

    names: dict[Key, str] = {}
    for i, t in enumerate(inputs):
        names[t, 0] = pick(t.name, f"I{i}")
    states = {key(t): t.name for op in ops for t in op.reads() if t.carry is not None}
    count = 0
    for op in ops:
        for i, n in enumerate(op.names):
            names[op, i] = pick(n or states.get((op, i)), f"T{count}")
            count += 1
    return names


def _resolve(e: Expr, names: dict[Key, str]) -> Expr:
    """``e`` with loads by final name."""
    return with_loads(e, lambda x: Load(names[key(x.tensor)], x.indices, x.dtype))
