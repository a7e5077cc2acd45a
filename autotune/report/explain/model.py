"""The explanation of a whole model: which kernels take the time, what bounds each, what fusing saves."""

from __future__ import annotations

import warnings
from collections import Counter

from autotune.errors import KernelNotFound
from autotune.models.model import Model
from autotune.models.outline import workload_of
from autotune.models.preparation import chosen, prepared
from autotune.progress.units import percent, seconds, size
from autotune.report.explain import cpu, gpu
from autotune.report.explain.explanation import Explanation, Row, Section
from autotune.run.describing import describe
from autotune.run.loading import find
from kernels_db.records import Hit
from schedules.errors import AutotuneError
from schedules.graph.graph import Group
from schedules.model import Target, Workload
from schedules.schedule import Schedule
from schedules.te.flops import count_flops
from schedules.te.fusion import Fusion, by_stage, fused
from schedules.trace_names import to_named

TOP = 8  # kernels that are explained, those that take longest


def of_model(model: Model, target: Target, where: str) -> Explanation:
    """The explanation of a model with the kernels that a log has. Raises `KernelNotFound` where it has none,
    or `ModelError`."""
    made = prepared(model)
    found: dict[str, Hit | None] = {}

    def hit(workload: Workload) -> Hit | None:
        if workload.digest not in found:
            found[workload.digest] = _hit(workload, target, where)
        return found[workload.digest]

    def time_s(workload: Workload) -> float | None:
        known = hit(workload)
        return None if known is None else known.time_s

    parts = [*chosen(made.parts, time_s)]
    groups = [p for p in parts if isinstance(p, Group)]
    workloads = {w.digest: w for w in (workload_of(g.dag) for g in groups)}
    counts = Counter(workload_of(g.dag).digest for g in groups)
    tuned = {d: h for d, w in workloads.items() if (h := hit(w)) is not None}
    if not tuned:
        raise KernelNotFound(
            f"none of the {len(workloads)} kernels of {model.source} is tuned for {target.arch} with "
            f"{target.threads} thread{'s' if target.threads > 1 else ''}; tune them first: "
            f"autotune tune {model.source} --threads {target.threads}"
        )
    spent = {d: counts[d] * h.time_s for d, h in tuned.items()}
    total = sum(spent.values())
    top = sorted(spent, key=lambda d: -spent[d])[:TOP]
    islands = len(parts) - len(groups)
    sections = (
        _whole(len(groups), len(workloads), len(tuned), islands, total, sum(map(count_of, groups))),
        _fusion(groups),
        Section(
            "Kernels that take longest: time alone x calls, and what bounds them",
            tuple(_kernel(n, workloads[d], tuned[d], counts[d], spent[d] / total) for n, d in enumerate(top)),
        ),
    )
    threads = f"{target.threads} thread{'s' if target.threads > 1 else ''}"
    return Explanation(f"{model.name or model.source}, {threads} on {target.arch}", sections)


def _hit(workload: Workload, target: Target, where: str) -> Hit | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return find(workload, target=target, threads=target.threads, db=where)
    except AutotuneError:
        return None


def count_of(group: Group) -> int:
    """Operations of a group."""
    return count_flops(group.dag)


def _whole(groups: int, kernels: int, tuned: int, islands: int, total: float, flops: int) -> Section:
    rows = [
        Row("kernels", f"{groups} calls of {kernels} different kernels, {tuned} of them tuned", "log",
            {"calls": groups, "kernels": kernels, "tuned": tuned}),
        Row("operations", f"{flops:,}", "definition", {"operations": flops}),
        Row("time of kernels", f"{seconds(total)}, each timed alone, what is not tuned left out", "log",
            {"time_s": total}),
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


def _sum(parts: list[Fusion]) -> Fusion:
    return Fusion(
        sum(f.kernels for f in parts),
        sum(f.operations for f in parts),
        sum(f.transfers for f in parts),
        sum(f.bytes for f in parts),
    )


def _kernel(n: int, workload: Workload, hit: Hit, count: int, share: float) -> Row:
    schedule = Schedule.replay(workload.dag, to_named(workload, hit.record.trace), hit.target)
    flops = count_flops(workload.dag)
    bound = (
        gpu.bound(schedule.nest, hit.target)
        if hit.target.grid
        else cpu.bound(workload, schedule.nest, hit.target)
    )
    text = (
        f"{percent(share)}: {seconds(hit.time_s)} x {count} [log], {flops / hit.time_s / 1e9:.3g} GFLOP/s; "
        f"bound by {bound} [estimate]; {describe(workload)}"
    )
    numbers: dict[str, float | int | str | None] = {
        "share": share,
        "time_s": hit.time_s,
        "calls": count,
        "gflops": flops / hit.time_s / 1e9,
        "bound": bound,
        "workload": workload.digest,
    }
    return Row(f"{n + 1}", text, "log", numbers)
