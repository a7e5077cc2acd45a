"""From a model and a tuning log to a `Module`."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from autotune import backends
from autotune.errors import KernelNotFound, ModelError
from autotune.models.fallback import run_island
from autotune.models.graph_choices import ChoicesOf, Rewrites, choices_of
from autotune.models.in_place import preferred
from autotune.models.kept_states import refuse_states
from autotune.models.model import Model
from autotune.models.module import Module
from autotune.models.origin import ModelOrigin
from autotune.models.own_programs import OwnProgram, SharedTask, joint_tasks
from autotune.models.preparation import prepared_programs
from autotune.models.program import Program
from autotune.models.shared_packing import with_shared_packings
from autotune.models.weights import KeptOnce
from autotune.results.following import picks_shown
from autotune.run.asked import Asked
from autotune.run.describing import describe
from autotune.run.kernel import Kernel
from autotune.run.plain import said
from autotune.run.stored import hits, named_place, stored, stored_elsewhere, unsearched, with_threads
from autotune.run.warned import warn
from schedules.errors import AutotuneError
from schedules.model import Target, Trace, Workload
from schedules.units import some

SHOWN = 3  # nodes of a task in a message
SHOWN_TASKS = 8  # tasks of a message that are there for the same reason
QUICK_S = 1e-4  # of plain loops that no warning names
# Seconds that the first picks of a model may take longer together because others have the CPUs. The heaviest
# tasks go first.
LATE_S = 180.0


def compile_model(
    model: Model,
    *,
    threads: int | None = None,
    target: str | Target = "cpu",
    db: str | os.PathLike[str] | None = None,
    fallback: bool = False,
    donate: Sequence[str] = (),
    rewrites: Rewrites = "measured",
    exact: bool = False,
    progress: Literal["auto"] | None = "auto",
) -> Module:
    """A model as one callable on numpy arrays or torch tensors, of the kernels that a tuning log has for it.

    ``threads=None`` takes for each task the fastest kernel whose threads this process can run; a number takes
    those that were tuned with that number alone, as `autotune.load` does. ``target``: "cpu", "cuda", "opencl"
    or "cuda-emulator". On a GPU, weights are uploaded here, and each call copies inputs and outputs; with
    "cuda" and ``cuda-bindings`` all launches are captured into a graph at the first call, which later calls
    replay. ``db``: the log. ``fallback=True`` allows kernels that were not tuned, as of `autotune.load`, with
    one warning that names them; with ``threads=None`` they take as many threads as those of the log. Sizes
    with programs of their own (`Model.with_own_sizes`) are compiled too. Choosing takes seconds a task, which
    ``progress`` shows in a terminal or a notebook, or with None nowhere. Weights are packed here, once; a
    change of the model's arrays afterwards changes nothing (see `Module.load_weights`), and the module keeps
    none of them.

    ``donate``: names of inputs whose memory a call takes for outputs, as of `Module.donating`: ``("x",)``.

    ``rewrites``, ``exact``: as of `tune_model`; "measured" does what the log has for this model and target.

    Example: ``net = at.compile_model(model, threads=1); y = net(x)``.

    Raises `KernelNotFound` that names all nodes without a kernel, `ModelError`, `TargetError`, `LogError`
    for a log that cannot be read, and `DeviceError` for a device that has no room for the weights.
    """
    picking = Picking(shown=progress is not None)
    asked = Asked.of(target, threads, db, fallback)
    net = compiled(model, asked, "model", picking, choices_of(rewrites, asked, exact))
    return net.donating(donate) if donate else net


def compiled(
    model: Model, asked: Asked, named: str, picking: Picking, choose: ChoicesOf | None = None
) -> Module:
    """`compile_model`. ``named``: the model in a message, as an argument of `autotune.tune_model`.
    ``choose``: of rewrites that may lose; None: what the log has."""
    wanted = asked.target
    if wanted.grid:
        backends.check_here(wanted)
    readies = prepared_programs(model, choose or choices_of("measured", asked))
    sizes = [ready.sizes for ready in readies]
    refuse_states(readies[0].graph.states, bool(wanted.grid))
    outlines = [ready.outline(lambda w: _seconds(w, asked)) for ready in readies]
    arguments = [named]
    arguments += [f"target={asked.named or wanted.kind!r}"] if wanted.grid else []
    arguments += [] if asked.exactly is None else [f"threads={asked.exactly}"]
    remedy = f"tune them: autotune.tune_model({', '.join(arguments)})"
    tasks, numbers = joint_tasks(outlines, sizes)
    every = with_shared_packings(outlines, numbers, _kernels(tasks, asked, remedy, picking), asked)
    wanted = replace(wanted, threads=max((k.target.threads for k in every), default=wanted.threads))
    states = {n: s.initial for n, s in readies[0].graph.states.items()}
    initial = {name: x.copy() for name, x in states.items() if x is not None}
    once = KeptOnce() if len(readies) > 1 else None
    own: list[OwnProgram] = []
    for at in sizes:
        ready, outline, kernels = readies.pop(0), outlines.pop(0), [every[n] for n in numbers.pop(0)]
        origin = ModelOrigin.of(model.name, ready.model.graph, ready.graph, ready.choices)
        values = dict(ready.graph.values)
        del ready  # so that what is packed is not kept
        program = Program.of(outline, kernels, values.pop, run_island, initial=initial, once=once)
        own.append(OwnProgram(at, program, tuple(map(tuned_s, kernels)), origin))
    whole = own.pop(0)
    return Module(whole.program, wanted, model.name, whole.tuned_s, whole.origin, model.signature, own)


def model_target(target: str | Target | None, threads: int | None) -> Target:
    """The target of a model. Raises `TargetError` for a GPU that is not here."""
    wanted = backends.parse(target, threads)
    if wanted.grid:
        backends.check_here(wanted)
    return wanted


def tuned_s(kernel: Kernel) -> float | None:
    """Seconds that a kernel took when it was tuned; None if it was not."""
    found = getattr(kernel.record, "time_s", None)
    return float(found) if isinstance(found, (int, float)) else None


def _seconds(workload: Workload, asked: Asked) -> float | None:
    """Seconds of the best kernel that a log has for a workload, where it is used."""
    if asked.fallback and unsearched(workload, asked):
        return None
    return next((h.record.time_s for h in hits(workload, asked) if not h.doubted), None)


@dataclass(frozen=True)
class Picking:
    """How kernels that are not tuned are chosen. ``until``: the time (`time.monotonic`) after which only
    those are taken that were chosen before; None: there is no limit. ``shown``: whether progress is shown."""

    until: float | None = None
    shown: bool = True


@dataclass(frozen=True)
class Missing:
    """A task that the log has no kernel for, and why."""

    task: int
    why: str


def _kernels(tasks: Sequence[SharedTask], asked: Asked, remedy: str, picking: Picking) -> list[Kernel]:
    """A kernel of each task. ``remedy``: the call that tunes. Raises `KernelNotFound` for all that have none
    together."""
    wanted, where = asked.target, asked.where
    kernels: dict[int, Kernel] = {}
    missing: list[Missing] = []
    plain: dict[int, Kernel] = {}  # which are used unless a first pick is faster
    alone: list[Missing] = []  # plain loops that nothing was compared with
    for task, workload in enumerate(t.workload for t in tasks):
        found, unusable = stored(workload, asked)
        if found is not None and asked.fallback and unsearched(workload, asked):
            plain[task] = found
            missing.append(Missing(task, "the log has only its plain loops"))
        elif found is not None:
            pinned = any(h.pinned for h in islice(hits(workload, asked), 1))
            kernels[task] = found if pinned else preferred(found, where)
            slow = kernels[task].trace == Trace() and (tuned_s(kernels[task]) or 0.0) > QUICK_S
            if slow and unsearched(workload, asked):
                alone.append(Missing(task, said(found, "the log has nothing else, as a run ended early")))
        else:
            elsewhere = stored_elsewhere(workload, where)
            why = f"not tuned; {elsewhere}" if elsewhere else "not tuned"
            missing.append(Missing(task, why if unusable is None else str(unusable)))
    if missing and not asked.fallback:
        place = f"{with_threads(asked.exactly)} in {named_place(where)}"
        raise KernelNotFound(
            f"{len(missing)} of {len(tasks)} tasks have no tuned kernel for this machine{place}:\n"
            f"{_listed(tasks, missing)}",
            f"{remedy}; or allow kernels that are not tuned: fallback=True",
        )
    if missing:
        if kernels and asked.exactly is None:  # as many as most of the others
            usual, _ = Counter(k.target.threads for k in kernels.values()).most_common(1)[0]
            wanted = replace(wanted, threads=usual)
        kernels |= untuned_kernels(tasks, missing, wanted, where, remedy, picking)
    kernels |= {task: k for task, k in plain.items() if kernels[task].chosen_by == "default"}
    if alone:
        share = f"{len(alone)} of {len(tasks)} tasks"
        warn(f"{share} run as plain loops:\n{_listed(tasks, alone)}\n{remedy}, with more time")
    return [kernels[i] for i in range(len(tasks))]


class NotPicked(ModelError):
    """There was no time to choose kernels of some tasks, which are ``left``, for a ``target`` and the log
    ``where``. ``remedy``: the call that tunes."""

    def __init__(
        self, message: str, left: Sequence[Workload], target: Target, where: str, remedy: str
    ) -> None:
        super().__init__(message)
        self.left, self.target, self.where, self.remedy = tuple(left), target, where, remedy


def untuned_kernels(
    tasks: Sequence[SharedTask],
    missing: Sequence[Missing],
    wanted: Target,
    where: str,
    remedy: str,
    picking: Picking = Picking(),
) -> dict[int, Kernel]:
    """First picks of tasks, with one warning for all, which ends with the ``remedy``. Raises `ModelError` for
    those that have none, and `NotPicked`."""
    from autotune.measure.starting import shared_start
    from autotune.run.untuned import is_kept, untuned

    kernels: dict[int, Kernel] = {}
    failed: list[Missing] = []
    left: list[Workload] = []
    picked: list[Missing] = []
    heaviest = sorted(missing, key=lambda m: -tasks[m.task].work)
    with shared_start(LATE_S), picks_shown(picking.shown) as show:
        for number, m in enumerate(heaviest):
            workload = tasks[m.task].workload
            over = picking.until is not None and time.monotonic() >= picking.until
            if over and not is_kept(workload, wanted, where):
                left.append(workload)
                continue
            show(describe(workload), number, len(missing))
            try:
                pick = untuned(workload, wanted, where)
                kernels[m.task] = pick.kernel
                picked.append(replace(m, why=", ".join(filter(None, (m.why, pick.remark)))))
            except AutotuneError as err:
                failed.append(Missing(m.task, str(err)))
    if failed:
        raise ModelError(f"{len(failed)} tasks cannot be compiled:\n{_listed(tasks, failed)}")
    if left:
        done = f"{len(missing) - len(left)} of {len(missing)}"
        raise NotPicked(f"{done} kernels that are not tuned were chosen", left, wanted, where, remedy)
    picked.sort(key=lambda m: m.task)
    share = f"{len(missing)} of {len(tasks)} tasks"
    warn(f"{share} run kernels that are not tuned:\n{_listed(tasks, picked)}\n{remedy}")
    return kernels


def _listed(tasks: Sequence[SharedTask], missing: Sequence[Missing]) -> str:
    """One line a task: the nodes that it runs, at which size, what it computes, and why it is listed. Of many
    with the same reason the first ones, and how many more there are."""
    lines, reasons = [], Counter[str]()
    for m in missing:
        reasons[m.why] += 1
        if reasons[m.why] > SHOWN_TASKS:
            continue
        task = tasks[m.task]
        named = some(task.nodes, SHOWN) + (f" at {task.where}" if task.where else "")
        lines.append(f"  {named}: {describe(task.workload)}: {m.why}")
    lines += [f"  {n - SHOWN_TASKS} more: {why}" for why, n in reasons.items() if n > SHOWN_TASKS]
    return "\n".join(lines)
