"""Sections on the kernels of a GPU: occupancy, coalescing, shared memory, divergence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune import backends
from autotune.backends.building.cross_compile import compile_for
from autotune.codegen.simt import sass
from autotune.results.explanation import Row, Section
from schedules.errors import AutotuneError
from schedules.gpu_architectures import features
from schedules.ir import Copy, Intrinsic, Loop, Nest, walk
from schedules.ir.grid import GridKernel
from schedules.model import Target
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space.estimate.gpu.facts import KernelFacts, analyse
from schedules.space.estimate.gpu.features import measure
from schedules.space.estimate.gpu.limits import shape
from schedules.space.estimate.gpu.rates import WARP, GpuRates
from schedules.space.holes import Columns
from schedules.units import percent, seconds, size


def sections(schedule: Schedule, target: Target) -> list[Section]:
    """A section for each kernel."""
    rates, told, lowered = GpuRates.of(target), compiled(schedule, target), _lowered(schedule, target)
    return [
        Section(
            f"Kernel {n}",
            (*_kernel(k, rates), *_by_warps(lowered.get(f"kernel{n}")), *_compiled(told.get(f"kernel{n}"))),
        )
        for n, k in enumerate(analyse(schedule.nest))
    ]


def _lowered(schedule: Schedule, target: Target) -> Mapping[str, GridKernel]:
    """The kernels that a GPU runs; none of a schedule that is not finished."""
    try:
        return {k.name: k for k in lower_simt(schedule.nest, features(target)).kernels}
    except AutotuneError:
        return {}


def _by_warps(kernel: GridKernel | None) -> tuple[Row, ...]:
    """What a kernel does by instructions of whole warps, and in the background."""
    every = walk(kernel.body) if kernel is not None else []
    found = sorted({x.instruction.name for x in every if isinstance(x, Intrinsic)})
    rows = [Row("matrix units", ", ".join(found), "definition")] if found else []
    if any(isinstance(x, Copy) for x in every):
        stages = max(dict(x.annotations).get("stages", 1) for x in every if isinstance(x, Loop))
        ahead = f"begun {stages - 1} iterations ahead" if stages > 1 else "awaited before they are read"
        words = f"to shared memory in the background, {ahead}"
        rows.append(Row("copies", words, "definition", {"stages": stages}))
    return tuple(rows)


def compiled(schedule: Schedule, target: Target) -> Mapping[str, Mapping[str, int]]:
    """What the compiler tells of each kernel; nothing where it is not here, or takes no such schedule."""
    try:
        backend = backends.of(target)
        return compile_for(schedule, target).facts if backend.compiles() else {}
    except AutotuneError:  # a schedule that is not finished may be explained
        return {}


def _compiled(facts: Mapping[str, int] | None) -> tuple[Row, ...]:
    if not facts:
        return ()
    own = f"{facts['registers']} registers a thread, {size(facts['shared_bytes'])} shared by a block"
    kept = ", ".join(
        f"{size(facts[f'{what}_bytes'])} a thread {how}"
        for what, how in (("spill", "spilled"), ("stack", "on its stack"))
        if facts[f"{what}_bytes"]
    )
    rows = [Row("compiled", f"{own}, {kept or 'nothing spilled'}", "compiler", facts)]
    if total := facts.get(sass.TOTAL):
        named = ", ".join(f"{facts[x]:,} {x}" for x in sass.WATCHED if x in facts)
        rows.append(
            Row(
                "instructions",
                f"{total:,}: {named or 'none of those that are watched'}",
                "compiler",
                {x: facts[x] for x in (sass.TOTAL, *sass.WATCHED) if x in facts},
            )
        )
    return tuple(rows)


def bound(nest: Nest, target: Target) -> str:
    """What takes longest of the kernel that takes longest: computing, or global memory."""
    rates = GpuRates.of(target)
    each = [{name: float(v) for name, v in measure(k, Columns(), rates).items()} for k in analyse(nest)]
    m = max(each, key=lambda x: x["est_s"])
    return "computing" if m["waves"] * m["cycles"] / rates.clock >= 0.5 * m["est_s"] else "global memory"


def _kernel(k: KernelFacts, rates: GpuRates) -> tuple[Row, ...]:
    m = {name: float(v) for name, v in measure(k, Columns(), rates).items()}
    x = shape(k, Columns(), rates)
    threads, registers, resident = float(x.threads), float(x.registers), float(x.resident)
    warps = float(np.ceil(threads / WARP))
    room = {
        "threads": rates.sm_threads // (warps * WARP),
        "shared memory": rates.sm_shared // max(m["shared_bytes"] + rates.taken_shared, 1.0),
        "registers": rates.registers // (registers * warps * WARP),
        "blocks": rates.sm_blocks,
    }
    least = min(room, key=lambda name: room[name])
    far = m["far_bytes"]
    together = m["least_sectors"] / m["sectors"] if m["sectors"] else 1.0
    waves = f"{m['waves']:g} waves on {rates.sms:g} processors"
    launch = f"{m['blocks']:,.0f} blocks of {threads:g} threads; {waves}"
    filled = f"{percent(m['occupancy'])}: {resident:g} blocks at a time, limited by {least}"
    numbers: dict[str, Any] = {"occupancy": m["occupancy"], "resident": resident, "limited_by": least}
    return (
        Row("grid", launch, "estimate", {"blocks": m["blocks"], "threads": threads, "waves": m["waves"]}),
        Row("occupancy", filled, "estimate", numbers),
        Row("registers", f"{registers:g} a thread", "estimate", {"registers": registers}),
        Row("shared memory", f"{size(int(m['shared_bytes']))} a block", "estimate",
            {"bytes": m["shared_bytes"]}),
        Row("coalescing", f"{percent(together)} of the sectors that warps touch would do, of "
            f"{size(int(far))}", "estimate",
            {"share": together, "bytes": far, "scattered_bytes": m["scattered_bytes"]}),
        Row("intensity", f"{m['intensity']:.3g} operations a byte of global memory", "estimate",
            {"flops_per_byte": m["intensity"]}),
        Row("warps", f"{percent(m['warp_use'])} of lanes have a thread", "estimate", {"use": m["warp_use"]}),
        Row("time", f"about {seconds(m['est_s'])}", "estimate", {"time_s": m["est_s"]}),
    )  # fmt: skip
