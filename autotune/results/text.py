"""Progress and results of tuning in a line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from schedules.units import counts, of_peak, peak, percent, rate, seconds, some, visible

if TYPE_CHECKING:
    from autotune.results.tuned import SuiteProgress, SuiteResult, TaskResult, TuneResult
    from schedules.model import Workload

# Tasks that a line names.
SHOWN = 5
# {reason why a run ended: words for it}.
ENDINGS = {
    "trials": "all trials done",
    "budget": "budget used",
    "interrupted": "interrupted; everything measured is kept",
    "exhausted": "nothing left to try",
    "converged": "nothing better to expect",
    "reached": "target reached",
    "frozen": "the log as it is",
    "tuned": "tuned before",
}


def speed(workload: Workload, time_s: float | None) -> str:
    """GFLOP/s or GB/s of a workload that takes ``time_s``."""
    from schedules.ops import compulsory_bytes

    return rate(workload.flops, compulsory_bytes(workload.dag), time_s)


def standing(machines: Mapping[str, SuiteProgress], alone: bool = False) -> str:
    """Where a run stands. ``machines``: the last `SuiteProgress` of each; on a fleet they have names, and a
    line each. ``alone``: as of `following.shown`."""
    last = max(machines.values(), key=lambda p: p.elapsed_s)
    ends = [] if last.aimed is None else [str(last.aimed)]
    ends.append(f"{max(0.0, last.budget_s - last.elapsed_s):.0f} s left")
    if [*machines] != [""]:
        lines = [
            f"{visible(name)}: {p.task.phase} {p.number + 1} of {p.tasks}, {p.about}, "
            f"best {_best(p)}, {p.task.measured} trials"
            for name, p in machines.items()
        ]
        return "\n".join([*lines, *ends])
    return " | ".join([*(_of_task(last) if alone and last.tasks == 1 else _of_tasks(last)), *ends])


def _of_task(progress: SuiteProgress) -> list[str]:
    """Phase, best rate and its share of peak, trials, failures by cause."""
    p = progress.task
    limit = "" if p.trials is None else f"/{p.trials}"
    failed = counts(p.failed)
    return [
        p.phase,
        f"best {_best(progress)}",
        f"{p.measured}{limit} trials" + (f" + {p.resumed} resumed" if p.resumed else ""),
        *([f"{p.stopped_early} stopped early"] if p.stopped_early else []),
        *([f"failed: {failed}"] if failed else []),
        *([] if p.pairwise is None else [f"model orders {percent(p.pairwise)} of pairs"]),
    ]


def _of_tasks(p: SuiteProgress) -> list[str]:
    """Tasks that have a kernel, their weighted latency, the task of this turn."""
    weighted = f"weighted {seconds(p.weighted_s)}{', provisional' if p.provisional else ''}"
    return [
        f"{p.ready} of {p.tasks} tasks ready",
        *([] if p.weighted_s is None else [weighted]),
        f"{p.measured} trials",
        f"{p.task.phase} {p.number + 1}: {p.about}, best {_best(p)}",
    ]


def _best(progress: SuiteProgress) -> str:
    """The best so far. A time that was not measured again is marked: the luckiest of many looks too good."""
    p = progress.task
    words = speed(progress.workload, p.best_time_s)
    if p.share_of_peak is not None:
        words += f" ({of_peak(p.share_of_peak, peak(p.peak_of))})"
    return f"{words}, provisional" if p.provisional else words


def share(p: SuiteProgress, alone: bool = False) -> float:
    """The share of the budget that is used; of one task (``alone``), or of its trials."""
    done = p.elapsed_s / p.budget_s if p.budget_s > 0 else 1.0
    if alone and p.tasks == 1 and p.task.trials:
        done = max(done, p.task.measured / p.task.trials)
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
            moved = sum(p.chosen != p.best for p in result.in_place)
            inside = f"; inside the model, another schedule is faster for {moved} of {len(result.in_place)}"
            inside = inside if moved else ""
            own = "".join(f"; {seconds(s)} at {at}" for at, s in result.own_s.items() if s is not None)
            return f"{result.name}: {of_tasks(result)}{own}{inside}"
        case "one of tasks":
            return f"<TaskResult {short(result)}>"
    return of_tasks(result)


def short(result: Any) -> str:
    """A result for a prompt, in at most 160 characters: without the reason where there is no kernel."""
    match result.shown_as:
        case "one of tasks":
            return short(result.result)
        case "tasks":
            return of_tasks(result)
        case "model":
            return f"{result.name[:80]}: {of_tasks(result)}"
    best = "no valid kernel" if result.best is None else seconds(result.best.time_s)
    return f"{result.about[:100]}: {best}; {result.measured} trials"


def of_result(result: TuneResult) -> str:
    """The task, the best, how many trials and how long."""
    best = "no valid kernel found" + (f", as {result.error}" if result.error else "")
    if result.best is not None:
        part = result.best.share_of_peak
        best = f"{seconds(result.best.time_s)}, {speed(result.workload, result.best.time_s)}"
        best += "" if part is None else f", {of_peak(part, peak(result.best.peak_of))}"
        best += ", with its plain loops alone" if result.only_plain else ""
    return f"{result.about}: {best}; {trials(result)}, {spent(result)}{_aimed(result)}"


def trials(result: TuneResult) -> str:
    """``312 trials, 40 stopped early, failed: timeout 1``."""
    failed = counts(result.failed)
    words = f"{result.measured} trial{'s' if result.measured != 1 else ''}"
    words += f", {result.stopped_early} stopped early" if result.stopped_early else ""
    return words + (f", failed: {failed}" if failed else "")


def spent(result: TuneResult | SuiteResult) -> str:
    """``12.3 s (budget used)``."""
    return f"{result.elapsed_s:.1f} s ({ending(result.stopped)})"


def _aimed(result: TuneResult | SuiteResult) -> str:
    """``; target 200 us reached: 188 us``."""
    return "" if result.aimed is None else f"; {result.aimed}"


def ending(stopped: str) -> str:
    """Why a run ended, in words."""
    return ENDINGS.get(stopped, stopped)


def of_tasks(result: SuiteResult) -> str:
    """How many tasks have a kernel, what all take together, how many trials and how long."""
    together = "" if result.weighted_s is None else f", {seconds(result.weighted_s)} together"
    failed = sum((Counter(t.result.failed) for t in result.tasks), Counter[str]())
    causes = f", failed: {counts(failed)}" if failed else ""
    missing = no_time(result)
    whole = f"{kernels(result)}{together}; {result.measured} trials{causes}, {spent(result)}{_aimed(result)}"
    return f"{whole}; {missing}" if missing else whole


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
    return some([t.task.about for t in tasks], SHOWN)
