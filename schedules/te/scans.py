"""Scans: stages whose points along some axes run one after another, and read what earlier points made.

A group of a scan is the smallest run of consecutive stages from one that loads a tensor which is not defined
yet, up to the stage that makes it. Its stages run together: all of them at the first point of the scan axes,
then all of them at the next one. Such an order exists only if what is read was made before, so every read of
the group's own tensors is proved to be of an earlier point, or, of an earlier stage, of the same point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Load, Var
from schedules.te.infeasible import impossible
from schedules.te.inside import guarded_loads
from schedules.te.sizes_in_values import without_holes
from schedules.te.very_stage import VeryStage

if TYPE_CHECKING:
    from schedules.te.compute_dag import ComputeDAG, Stage

# Most axes of a scan: the proof that a read is earlier looks at each of them apart.
MOST_AXES = 6


def groups(dag: ComputeDAG | Sequence[Stage]) -> tuple[tuple[int, int], ...]:
    """(first, last) numbers of the stages of each group, in order. Groups do not overlap: runs that would are
    one."""
    stages: Sequence[Stage] = dag if isinstance(dag, Sequence) else dag.stages
    if not any(s.scan for s in stages):
        return ()
    makers = {o.name: n for n, s in enumerate(stages) for o in s.outputs}
    found: list[tuple[int, int]] = []
    for n, s in enumerate(stages):
        last = max((makers.get(x.buffer, -1) for x in s.reads()), default=-1)
        if last < n:
            continue
        if found and found[-1][1] >= n:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((n, last))
    return tuple(found)


def check_grid_scans(dag: ComputeDAG) -> None:
    """Raise ScheduleError for a scan that GPUs do not run: one thread has all steps of a point, so a step may
    read neither other points of the steps before nor other stages."""
    for first, last in groups(dag):
        s = dag.stages[last]
        if first < last:
            why = f"has a step of {last - first + 1} stages"
        elif s.reducer is not None or not _reads_own_points(s):
            why = "reads other points of the steps before"
        else:
            continue
        raise ScheduleError(
            f"stage {s.name} is a scan that {why}, for which threads of a GPU would wait for each other; "
            "tune for a CPU, or call a kernel of one step in a loop"
        )


def _reads_own_points(s: Stage) -> bool:
    """Whether a step reads of earlier steps what is at its own point of all other axes."""
    steps, made = scan_positions(s), {o.name for o in s.outputs}
    others = [n for n in range(len(s.axes)) if n not in steps]
    return all(x.indices[n] == Var(s.axes[n].var) for x in s.reads() if x.buffer in made for n in others)


def scan_positions(s: Stage) -> tuple[int, ...]:
    """The dimensions of the outputs of a stage along which it is a scan, the outermost loop first."""
    at = {a.var: n for n, a in enumerate(s.axes)}
    return tuple(at[v] for v, _ in s.scan)


def scan_extents(s: Stage) -> tuple[int, ...]:
    """How many points each scan axis has, the outermost first."""
    return tuple(int(s.axes[n].extent) for n in scan_positions(s))


def check_scan_axes(s: Stage) -> None:
    """Raise ValueError for scan axes that are none of the stage's axes, or have no direction."""
    if not s.scan:
        return
    own = [a.var for a in s.axes]
    names = [v for v, _ in s.scan]
    for v, step in s.scan:
        if v not in own:
            raise ValueError(
                f"stage {s.name}: the scan runs over {v[:40]!r}, and its axes are {', '.join(own) or 'none'}"
            )
        if step not in (1, -1):
            raise ValueError(
                f"stage {s.name}: the scan runs in steps of {step} over {v}; 1 and -1 are possible"
            )
    if len(set(names)) != len(names):
        raise ValueError(f"stage {s.name}: an axis stands twice in its scan over {', '.join(names)}")
    if len(names) > MOST_AXES:
        raise ValueError(f"stage {s.name}: its scan has {len(names)} axes, more than {MOST_AXES}; use fewer")
    if s.places:
        raise ValueError(
            f"stage {s.name}: it scatters and is a step of a scan; scatter in a stage of its own behind it"
        )


def check_group(stages: Sequence[Stage]) -> None:
    """Raise ValueError unless the stages of a group run over the same points in the same order, and every
    read of the group's tensors is of what was made before."""
    last = stages[-1]
    for s in stages:
        if not s.scan:
            made = next(
                (o.name for x in stages for o in x.outputs if any(r.buffer == o.name for r in s.reads())), ""
            )
            raise ValueError(
                f"stage {s.name}: it stands between stages of the scan of {last.name}"
                + (f" and reads {made}" if made else "")
                + ", and is no step of it; give it the scan's axes, or compute it before or after the scan"
            )
        if scan_extents(s) != scan_extents(last) or [d for _, d in s.scan] != [d for _, d in last.scan]:
            raise ValueError(
                f"stage {s.name}: its scan has extents {list(scan_extents(s))} and steps "
                f"{[d for _, d in s.scan]}; that of {last.name}, which it runs with, has "
                f"{list(scan_extents(last))} and {[d for _, d in last.scan]}"
            )
    key = tuple(map(VeryStage, stages))
    if wrong := _late_read(key):
        raise ValueError(wrong)


@lru_cache(maxsize=1 << 10)
def _late_read(group: tuple[VeryStage, ...]) -> str:
    """What is wrong with the first read that is not proved to be of what was made before; else nothing."""
    for s, load, guards, same in _own_loads([x.stage for x in group]):
        steps, known, ranges = _distances(group, s, load, guards)
        if all(impossible((*known, *case), ranges) for case in not_earlier(steps, same)):
            continue
        order = " and then ".join(
            f"{v} from {'first to last' if p == 1 else 'last to first'}" for v, p in s.scan
        )
        own = f"{s.outputs[0].name}[{', '.join(a.var for a in s.axes)}]"
        return (
            f"stage {s.name}: it reads {E.show(load)} where it makes {own}, and that is not proved to be "
            f"made {'by then' if same else 'before'} in the order of the scan, {order}; read an earlier "
            "step, or test that it is one, in the condition of a te.select or in where= of a te.reduce_axis"
        )
    return ""


def own_reads(
    stages: Sequence[Stage],
) -> Iterator[tuple[tuple[Expr, ...], tuple[Expr, ...], dict[str, tuple[int, int]], bool]]:
    """Of each read of a group's own tensors: `distances`, the conditions on axes under which it happens, the
    ranges of these axes, and whether an earlier stage made it, so that it may be of the same step."""
    group = tuple(map(VeryStage, stages))
    for s, load, guards, same in _own_loads(stages):
        yield *_distances(group, s, load, guards), same


def _distances(
    group: Sequence[VeryStage], s: Stage, load: Load, guards: tuple[Expr, ...]
) -> tuple[tuple[Expr, ...], tuple[Expr, ...], dict[str, tuple[int, int]]]:
    maker = next(x.stage for x in group if any(o.name == load.buffer for o in x.stage.outputs))
    ranges = {a.var: (0, int(a.extent) - 1) for a in (*s.axes, *s.reduce_axes)}
    return distances(load, s, maker), guards, ranges


def _own_loads(stages: Sequence[Stage]) -> Iterator[tuple[Stage, Load, tuple[Expr, ...], bool]]:
    """Each read of the group's own tensors: the stage that reads, the load, the conditions under which it
    does, and whether the stage that makes it stands before."""
    makers = {o.name: n for n, s in enumerate(stages) for o in s.outputs}
    for n, s in enumerate(stages):
        told = tuple(map(without_holes, s.where))
        for value, guards in (*((v, told) for v in s.values), *((c, ()) for c in s.where)):
            for load, conds in guarded_loads(without_holes(value), guards):
                if load.buffer in makers:
                    yield s, load, conds, makers[load.buffer] < n


def distances(e: Load, reader: Stage, maker: Stage) -> tuple[Expr, ...]:
    """How many steps before its own point the reader reads, along each scan axis, the outermost first."""
    return tuple(
        (Var(v) - e.indices[p]) if step == 1 else (e.indices[p] - Var(v))
        for (v, step), p in zip(reader.scan, scan_positions(maker), strict=True)
    )


def not_earlier(steps: Sequence[Expr], same: bool) -> list[tuple[Expr, ...]]:
    """The cases, each of conditions that hold together, in which a vector of distances is not
    lexicographically above 0, or with ``same`` not at least 0."""
    cases, equal = list[tuple[Expr, ...]](), list[Expr]()
    for d in steps:
        cases.append((*equal, E.compare("<", d, Const(0))))
        equal.append(E.compare("==", d, Const(0)))
    return cases if same else [*cases, tuple(equal)]
