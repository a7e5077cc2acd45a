"""Progress and results of tuning in a line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from schedules.units import counts, of_peak, percent, rate, seconds, visible

if TYPE_CHECKING:
    from autotune.results.tuned import Progress, SuiteProgress, SuiteResult, TaskResult, TuneResult
    from schedules.model import Workload

# Tasks that a line names, and most characters of a name.
SHOWN, LONGEST = 5, 60
# {reason why a run ended: words for it}.
ENDINGS = {
    "trials": "all trials done",
    "budget": "budget used",
    "interrupted": "interrupted; everything measured is kept",
    "exhausted": "nothing left to try",
    "converged": "nothing better to expect",
    "frozen": "the log as it is",
    "tuned": "tuned before",
}


def speed(workload: Workload, time_s: float | None) -> str:
    """GFLOP/s or GB/s of a workload that takes ``time_s``."""
    from schedules.ops import compulsory_bytes

    return rate(workload.flops, compulsory_bytes(workload.dag), time_s)


def of_pick(workload: Workload, number: int, count: int) -> str:
    """Which kernel is chosen without tuning."""
    from autotune.run.describing import describe

    return f"choosing kernel {number + 1} of {count}: {describe(workload)}"


def of_task(workload: Workload, progress: Progress) -> str:
    """Phase, best rate and its share of peak, trials, failures by cause, time left."""
    limit = "" if progress.trials is None else f"/{progress.trials}"
    failed = counts(progress.failed)
    parts = [
        progress.phase,
        f"best {_best(workload, progress)}",
        f"{progress.measured}{limit} trials" + (f" + {progress.resumed} resumed" if progress.resumed else ""),
        *([f"{progress.stopped_early} stopped early"] if progress.stopped_early else []),
        *([f"failed: {failed}"] if failed else []),
        *([] if progress.pairwise is None else [f"model orders {percent(progress.pairwise)} of pairs"]),
        f"{_left(progress):.0f} s left",
    ]
    return " | ".join(parts)


def _best(workload: Workload, progress: Progress) -> str:
    """The best so far. A time that was not measured again is marked: the luckiest of many looks too good."""
    words = speed(workload, progress.best_time_s)
    if progress.share_of_peak is not None:
        words += f" ({of_peak(progress.share_of_peak)})"
    return f"{words}, provisional" if progress.provisional else words


def of_suite(progress: SuiteProgress) -> str:
    """Tasks that have a kernel, their weighted latency, the task of this turn, time left."""
    from autotune.run.describing import describe

    weighted = (
        []
        if progress.weighted_s is None
        else [f"weighted {seconds(progress.weighted_s)}{', provisional' if progress.provisional else ''}"]
    )
    best = _best(progress.workload, progress.task)
    parts = [
        f"{progress.ready} of {progress.tasks} tasks ready",
        *weighted,
        f"{progress.measured} trials",
        f"{progress.task.phase} {progress.number + 1}: {describe(progress.workload)}, best {best}",
        f"{_left(progress):.0f} s left",
    ]
    return " | ".join(parts)


def of_fleet(machines: Mapping[str, SuiteProgress]) -> str:
    """A line for each machine: its task, the best of it, trials; and the time that is left."""
    from autotune.run.describing import describe

    lines = [
        f"{visible(name)}: {p.task.phase} {p.number + 1} of {p.tasks}, {describe(p.workload)}, "
        f"best {_best(p.workload, p.task)}, {p.task.measured} trials"
        for name, p in machines.items()
    ]
    last = max(machines.values(), key=lambda p: p.elapsed_s)
    return "\n".join([*lines, f"{_left(last):.0f} s left"])


def _left(progress: Progress | SuiteProgress) -> float:
    return max(0.0, progress.budget_s - progress.elapsed_s)


def share(progress: Progress | SuiteProgress) -> float:
    """The share of the budget, or of the trials, that is used."""
    done = progress.elapsed_s / progress.budget_s if progress.budget_s > 0 else 1.0
    trials = getattr(progress, "trials", None)
    if trials:
        done = max(done, progress.measured / trials)
    return min(max(done, 0.0), 1.0)


def of(result: Any) -> str:
    """A result, as `rendering.Shown` knows it: one line, and for several targets one for each."""
    match result.shown_as:
        case "task":
            return of_result(result)
        case "sizes":
            kernels = sum(r.best is not None for r in result.by_size.values())
            return f"{of_result(result)}; {kernels} sizes have a kernel"
        case "targets":
            return "\n".join(f"{name}: {of_result(r)}" for name, r in result.by_target.items())
        case "model":
            return f"{result.name}: {of_tasks(result)}{_inside(result)}"
        case "one of tasks":
            return f"<TaskResult {short(result.result)}>"
    return of_tasks(result)


def short_of(result: Any) -> str:
    """A result for a prompt, as `of`."""
    match result.shown_as:
        case "one of tasks":
            return short(result.result)
        case "tasks":
            return of_tasks(result)
        case "model":
            return f"{result.name[:80]}: {of_tasks(result)}"
    return short(result)


def _inside(result: Any) -> str:
    moved = sum(p.chosen != p.best for p in result.in_place)
    if not moved:
        return ""
    return f"; inside the model, another schedule is faster for {moved} of {len(result.in_place)}"


def of_result(result: TuneResult) -> str:
    """The task, the best, how many trials and how long."""
    from autotune.run.describing import describe

    best = "no valid kernel found" + (f", as {result.error}" if result.error else "")
    if result.best is not None:
        part = result.best.share_of_peak
        best = f"{seconds(result.best.time_s)}, {speed(result.workload, result.best.time_s)}"
        best += "" if part is None else f", {of_peak(part)}"
        best += ", with its plain loops alone" if result.only_plain else ""
    spent = f"{trials(result)}, {result.elapsed_s:.1f} s ({ending(result.stopped)})"
    return f"{describe(result.workload, result.target.threads)}: {best}; {spent}"


def short(result: TuneResult) -> str:
    """`of_result` in at most 160 characters: without the reason where there is no kernel."""
    from autotune.run.describing import describe

    best = "no valid kernel" if result.best is None else seconds(result.best.time_s)
    return f"{describe(result.workload, result.target.threads)[:100]}: {best}; {result.measured} trials"


def trials(result: TuneResult) -> str:
    """``312 trials, 40 stopped early, failed: timeout 1``."""
    failed = counts(result.failed)
    words = f"{result.measured} trial{'s' if result.measured != 1 else ''}"
    words += f", {result.stopped_early} stopped early" if result.stopped_early else ""
    return words + (f", failed: {failed}" if failed else "")


def ending(stopped: str) -> str:
    """Why a run ended, in words."""
    return ENDINGS.get(stopped, stopped)


def of_tasks(result: SuiteResult) -> str:
    """How many tasks have a kernel, what all take together, how many trials and how long."""
    together = "" if result.weighted_s is None else f", {seconds(result.weighted_s)} together"
    failed: Counter[str] = Counter()
    for t in result.tasks:
        failed.update(t.result.failed)
    causes = f", failed: {counts(failed)}" if failed else ""
    spent = f"{result.measured} trials{causes}, {result.elapsed_s:.1f} s ({ending(result.stopped)})"
    missing = no_time(result)
    return f"{kernels(result)}{together}; {spent}{f'; {missing}' if missing else ''}"


def kernels(result: SuiteResult) -> str:
    """``9 of 12 tasks have a kernel, 2 their plain loops alone (conv, head)``."""
    ready = sum(t.result.ready for t in result.tasks)
    plain = [t for t in result.tasks if t.result.only_plain]
    alone = f", {len(plain)} their plain loops alone ({named(plain)})" if plain else ""
    return f"{ready} of {len(result.tasks)} tasks have a kernel{alone}"


def no_time(result: SuiteResult) -> str:
    """``no time for conv, head: give 60 s``; "" where there was time for each task."""
    if result.needed_s is None or not result.late:
        return ""
    return f"no time for {named(result.late)}: give a budget of {result.needed_s:g} s, or tune again"


def named(tasks: Sequence[TaskResult]) -> str:
    """The names of tasks, few of many."""
    shown = ", ".join(name_of(t) for t in tasks[:SHOWN])
    return shown + (f" and {len(tasks) - SHOWN} more" if len(tasks) > SHOWN else "")


def name_of(task: TaskResult) -> str:
    """What people know a task by: its place in a suite or model, else what it computes."""
    from autotune.run.describing import describe

    return visible(task.task.group or describe(task.task.workload))[:LONGEST]
