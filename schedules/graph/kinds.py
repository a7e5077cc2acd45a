"""What kinds of stages there are, for where a graph is cut into kernels (`partition`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Binary, Const, Expr, Load, Select, Var
from schedules.graph.edit import factors, is_map, is_plain, is_product
from schedules.te.compute_dag import Stage

# Longest side of the windows of a depthwise convolution that may be computed in another kernel.
LONGEST_WINDOW = 7


def is_guarded(stage: Stage) -> bool:
    """Whether a stage pads: a load where a condition on axes holds, else a number, or one that is loaded."""
    match stage.values:
        case (Select(cond=c, a=Load(indices=ix), b=Const() | Load() as b),):
            fixed = not E.variables(b) and not E.loads(c)  # a zero point may be computed
            return is_map(stage) and fixed and not any(map(E.loads, ix))
    return False


def is_joined(stage: Stage) -> bool:
    """Whether it depends on axes which of several loads a value is, as where tensors are concatenated. A
    product that reads such values one by one takes twice as long."""
    every = (x for v in stage.values for x in E.walk(v) if isinstance(x, Select))
    return any(E.loads(x.a) and E.loads(x.b) and not E.loads(x.cond) for x in every)


def is_looked_up(stage: Stage) -> bool:
    """Whether a map loads bytes where other bytes say: from a table. Vectors have no such load, and a tile
    of a product with it takes long to compile."""
    match stage.values:
        case (Load(indices=ix, dtype="uint8" | "int8"),):
            return is_map(stage) and any(x.dtype in ("uint8", "int8") for i in ix for x in E.loads(i))
    return False


def makes_bytes(stage: Stage) -> bool:
    """Whether a map quantises wider numbers. A product reads its bytes from memory: there an instruction may
    have them copied as it wants them."""
    wide = any(DTYPES[x.dtype].itemsize > 1 and any(map(E.variables, x.indices)) for x in stage.reads())
    return is_map(stage) and stage.outputs[0].dtype in ("uint8", "int8") and wide


def is_gathered(stage: Stage) -> bool:
    """Whether a map only copies elements, and one axis walks several dimensions of what it reads: rows of
    windows. A product that computed them itself would be a convolution again."""
    match stage.values:
        case (Load(indices=ix),):
            axes = [v for i in ix for v in E.variables(i)]
            return is_map(stage) and len(set(axes)) < len(axes)
    return False


def is_depthwise(stage: Stage) -> bool:
    """Whether a product sums windows, each channel of its own, which is the last axis of all it reads."""
    if not is_product(stage) or not stage.axes:
        return False
    channel = Var(stage.axes[-1].var)
    short = all(a.extent <= LONGEST_WINDOW for a in stage.reduce_axes)
    return short and all(x.indices and x.indices[-1] == channel for x in factors(stage.values[0]))


def channels_summed(stage: Stage) -> str:
    """What a product reads at its own points to sum all channels of it, "" where there is none."""
    if not is_product(stage) or len(stage.reduce_axes) != 1:
        return ""
    at = tuple(Var(a.var) for a in (*stage.axes[:-1], stage.reduce_axes[0]))
    found = [x.buffer for x in factors(stage.values[0]) if x.indices == at and len(at) > 1]
    return found[0] if len(found) == 1 else ""


def is_row_reduction(stage: Stage) -> bool:
    """Whether a stage reduces dimensions of what it reads from end to end, or whole groups of their
    elements."""
    if not stage.plain or is_map(stage) or is_product(stage):
        return False
    reduced = {a.var: a.extent for a in stage.reduce_axes}

    def is_whole(i: Expr) -> bool:
        match i:
            case Binary(op="+", a=Binary(op="*", a=Var(), b=Const(value=n)), b=Var(name=t)) if t in reduced:
                return n == reduced[t]
        return isinstance(i, Var) or not E.variables(i) & reduced.keys()

    return any(all(map(is_whole, x.indices)) for x in stage.reads())


def is_turned(stage: Stage, made: Mapping[str, Sequence[Sequence[int]]]) -> bool:
    """Whether a map reads tensors with its axes in another order, as where rows become columns. A kernel that
    walks what it writes would compute rows again for each of its columns. ``made``: {tensor: the orders in
    which rows are walked of it}."""
    return is_map(stage) and any(
        (w := walked(stage, x)) != sorted(w) and not any(w[: len(o)] == list(o) for o in made[x.buffer])
        for x in stage.reads()
        if x.buffer in made
    )


def walked(stage: Stage, x: Load) -> list[int]:
    """The numbers of the axes that a load walks, in the order of its dimensions, along one of them those of
    the largest steps first."""
    place = {a.var: n for n, a in enumerate(stage.axes)}
    found = []
    for i in x.indices:
        steps = affine.steps_of(i)[0]
        found += sorted(E.variables(i) & place.keys(), key=lambda v: (-abs(steps.get(v, 0)), v))
    return [place[v] for v in found]


def is_one_to_one(s: Stage, loads: Iterable[Load]) -> bool:
    """Whether a stage reads each element once by these of its loads, as the end of a kernel does."""
    return all(is_plain(x.indices) or _in_digits(x, s) for x in loads)


def _in_digits(x: Load, s: Stage) -> bool:
    """Whether a load reads each element once, some axes of the stage by quotient and remainder, and both go
    on in memory along the same last axis: the phases of a transposed convolution."""
    whole = [i for i in x.indices if isinstance(i, Var)]
    high = [(i.a, i.b) for i in x.indices if isinstance(i, Binary) and i.op == "//"]
    low = [(i.a, i.b) for i in x.indices if isinstance(i, Binary) and i.op == "%"]
    walked = [*whole, *(a for a, _ in high)]
    return (
        len(whole) + len(high) + len(low) == len(x.indices)
        and sorted(high, key=str) == sorted(low, key=str)
        and is_plain(walked)
        and x.indices[-1] == Var(s.axes[-1].var)
    )
