"""The explanation of a whole model: which kernels take the time, what bounds each, what fusing saves."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from autotune.errors import KernelNotFound
from autotune.models.graph_choices import choices_of, recorded
from autotune.models.in_place import KEY, context_of
from autotune.models.model import Model, shown_sizes
from autotune.models.outline import workload_of
from autotune.models.preparation import PreparedModel, chosen, prepared_programs
from autotune.report.data import number
from autotune.report.explain import cpu, gpu
from autotune.report.explain.rewrites import of_rewrites
from autotune.results.explanation import Explanation, Row, Section
from autotune.run.asked import Asked
from autotune.run.describing import describe
from autotune.run.loading import find
from kernels_db import lookup
from kernels_db.records import Hit
from schedules.errors import AutotuneError
from schedules.graph.graph import Graph, Group
from schedules.graph.valid_rows import read_whole, rows_of_states
from schedules.model import Target, Trace, Workload
from schedules.schedule import Schedule
from schedules.space.estimate.cpu.facts import analyse
from schedules.te.flops import count_flops
from schedules.te.fusion import Fusion, by_stage, fused
from schedules.trace_names import to_named
from schedules.units import percent, seconds, size

TOP = 8  # kernels that are explained, those that take longest


@dataclass(frozen=True)
class _Timed:
    """A kernel of a model: its trace in canonical names, seconds of a call, calls. ``inside``: whether it was
    timed inside the model, or alone."""

    trace: Trace
    target: Target
    time_s: float
    calls: int
    inside: bool

    @property
    def whole_s(self) -> float:
        """Seconds of all calls."""
        return self.time_s * self.calls


def of_model(model: Model, target: Target, where: str) -> Explanation:
    """The explanation of a model with the kernels that a log has. Raises `KernelNotFound` where it has none,
    or `ModelError`."""
    found: dict[str, Hit | None] = {}

    def hit(workload: Workload) -> Hit | None:
        if workload.digest not in found:
            found[workload.digest] = _hit(workload, target, where)
        return found[workload.digest]

    def time_s(workload: Workload) -> float | None:
        known = hit(workload)
        return None if known is None else known.time_s

    programs = prepared_programs(model, choices_of("measured", Asked.of(target, None, where)))
    sections = [section for one in programs for section in _of_program(one, hit, time_s, target, where)]
    threads = f"{target.threads} thread{'s' if target.threads > 1 else ''}"
    if not sections:
        kernels = {w.digest for one in programs for w in one.outline(time_s).tasks}
        raise KernelNotFound(
            f"none of the {len(kernels)} kernels of {model.source} is tuned for {target.arch} with "
            f"{threads}; tune them first: autotune tune {model.source} --threads {target.threads}"
        )
    return Explanation(
        f"{model.name or model.source}, {threads} on {target.arch}",
        (
            *sections,
            of_rewrites(programs[0]),
            *_rewrites(model, target, where),
            *_states(programs[0].graph),
        ),
    )


def _of_program(
    made: PreparedModel,
    hit: Callable[[Workload], Hit | None],
    time_s: Callable[[Workload], float | None],
    target: Target,
    where: str,
) -> tuple[Section, ...]:
    """What is said of all sizes, or of a size with a program of its own."""
    parts = [*chosen(made.parts, time_s)]
    groups = [p for p in parts if isinstance(p, Group)]
    workloads = {w.digest: w for w in (workload_of(g.dag) for g in groups)}
    counts = Counter(workload_of(g.dag).digest for g in groups)
    tuned = {d: h for d, w in workloads.items() if (h := hit(w)) is not None}
    if not tuned:
        return ()
    context = context_of(made.outline(time_s))
    timed = {d: _timed(h, counts[d], context, where) for d, h in tuned.items()}
    total = sum(t.whole_s for t in timed.values())
    top = sorted(timed, key=lambda d: -timed[d].whole_s)[:TOP]
    islands = len(parts) - len(groups)
    inside = sum(t.inside for t in timed.values())
    sections = (
        _whole(len(groups), len(workloads), len(tuned), inside, islands, total, sum(map(count_of, groups))),
        _fusion(groups),
        Section(
            "Kernels that take longest: time x calls, and what bounds them",
            tuple(row for n, d in enumerate(top) for row in _kernel(n + 1, workloads[d], timed[d], total)),
        ),
    )
    at = f" at {shown_sizes(made.sizes)}" if made.sizes else ""
    return tuple(replace(s, title=s.title + at) for s in sections)


def _hit(workload: Workload, target: Target, where: str) -> Hit | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return find(workload, Asked.of(target, None, where))
    except AutotuneError:
        return None


def count_of(group: Group) -> int:
    """Operations of a group."""
    return count_flops(group.dag)


def _timed(hit: Hit, calls: int, context: str, where: str) -> _Timed:
    """As a record of the log has it; or as it was timed inside the model, with the trace that was the fastest
    there (ADR 55), if the best was among what was timed."""
    task = (hit.record.workload, hit.target.digest)
    for options in lookup.run_options(where, *task):
        told = options.get(KEY)
        if not isinstance(told, dict) or told.get("model") != context:
            continue
        times, chosen = told.get("times_s"), told.get("chosen")
        if not isinstance(times, dict) or hit.record.trace_digest not in times:
            continue
        record = lookup.of_trace(where, *task, chosen) if isinstance(chosen, str) else None
        if record is not None and (time_s := number(times.get(chosen))):
            return _Timed(record.trace, hit.target, time_s, calls, inside=True)
    return _Timed(hit.record.trace, hit.target, hit.time_s, calls, inside=False)


def _whole(
    groups: int, kernels: int, tuned: int, inside: int, islands: int, total: float, flops: int
) -> Section:
    how = f"{inside} kernels timed inside the model, {tuned - inside} alone"
    rows = [
        Row("kernels", f"{groups} calls of {kernels} different kernels, {tuned} of them tuned", "log",
            {"calls": groups, "kernels": kernels, "tuned": tuned}),
        Row("operations", f"{flops:,}", "definition", {"operations": flops}),
        Row("time of kernels", f"{seconds(total)}: {how}; what is not tuned is left out", "log",
            {"time_s": total, "inside": inside}),
    ]  # fmt: skip
    if islands:
        rows.append(
            Row("islands", f"{islands} operators run outside of kernels", "definition", {"islands": islands})
        )
    return Section("Model", tuple(rows))


def _fusion(groups: list[Group]) -> Section:
    """The graph as it is cut, beside one kernel for each stage."""
    apart = _sum([by_stage(g.dag) for g in groups])
    cut = _sum([fused(g.dag) for g in groups])
    saved = apart.bytes - cut.bytes
    rows = [
        Row(
            name,
            f"{f.kernels} kernels: {f.operations:,} operations / {f.transfers:,} elements "
            f"= {f.intensity:.4g}; {size(f.bytes)}",
            "definition",
            {"kernels": f.kernels, "operations": f.operations, "transfers": f.transfers, "bytes": f.bytes},
        )
        for name, f in (("one stage each", apart), ("as it is cut", cut))
    ]
    part = percent(saved / apart.bytes) if apart.bytes else "0 %"
    rows.append(
        Row(
            "saved",
            f"{size(saved)} of intermediates stay out of memory: {part}",
            "definition",
            {"bytes": saved},
        )
    )
    return Section("Fused and unfused: elements that kernels read from and write to memory", tuple(rows))


def _rewrites(model: Model, target: Target, where: str) -> tuple[Section, ...]:
    """What a run tried of rewrites that may lose; no section where the log has nothing of it."""
    rows = tuple(
        Row(str(n + 1), str(t), "log", {"usual_s": t.usual_s, "other_s": t.other_s, "taken": int(t.taken)})
        for n, t in enumerate(recorded(model.graph, where, target, None).tried)
    )
    return (Section("Rewrites that may lose: seconds of a call in what differs", rows),) if rows else ()


def _states(graph: Graph) -> tuple[Section, ...]:
    """Which states are read up to the last valid row, and why others are not; no section without states."""
    if not graph.states:
        return ()
    whole, placed = read_whole(graph), {r.tensor for r in rows_of_states(graph)}
    rows = []
    for name, state in graph.states.items():
        if name in whole:
            text = f"each call reads all rows: {whole[name]}"
        elif state.new in placed:
            text = "each call reads the valid rows"
        else:
            text = "each call reads all of it, and replaces it"
        rows.append(Row(name, text, "definition", {"valid_rows": state.new in placed and name not in whole}))
    return (Section("States: what calls read", tuple(rows)),)


def _sum(parts: list[Fusion]) -> Fusion:
    return Fusion(
        sum(f.kernels for f in parts),
        sum(f.operations for f in parts),
        sum(f.transfers for f in parts),
        sum(f.bytes for f in parts),
    )


def _kernel(n: int, workload: Workload, timed: _Timed, total: float) -> list[Row]:
    largest = replace(workload, dag=workload.dag.largest)  # at which it is timed, where sizes are open
    schedule = Schedule.replay(largest.dag, to_named(workload, timed.trace), timed.target)
    speed, share = count_flops(workload.dag) / timed.time_s / 1e9, timed.whole_s / total
    bound = (
        gpu.bound(schedule.nest, timed.target)
        if timed.target.grid
        else cpu.bound(largest, schedule.nest, timed.target)
    )
    how = "inside the model" if timed.inside else "alone"
    text = f"{percent(share)}: {seconds(timed.time_s)} {how} x {timed.calls}, {speed:.3g} GFLOP/s"
    numbers: dict[str, float | int | str | None] = {
        "share": share,
        "time_s": timed.time_s,
        "calls": timed.calls,
        "gflops": speed,
        "inside": int(timed.inside),
        "workload": workload.digest,
    }
    rows = [
        Row(f"{n}", text, "log", numbers),
        Row(f"{n} is", describe(workload).removeprefix("the expression of "), "definition"),
        Row(f"{n} is bound by", bound, "estimate", {"bound": bound}),
    ]
    if by := ", ".join(sorted(_adding(schedule, timed.target))):
        rows.insert(2, Row(f"{n} adds products by", by, "definition", {"instruction": by}))
    return rows


def _adding(schedule: Schedule, target: Target) -> set[str]:
    """Names of the instructions that do sums of products."""
    used = () if target.grid else (b.instruction for b in analyse(schedule.nest))
    return {i.name for i in used if i is not None and i.terms > 1}
