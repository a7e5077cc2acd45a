"""Section: the tasks of a log, and the facts of one of them."""

from __future__ import annotations

from collections import Counter

from autotune.report.data import CAUSES, LogData, LoggedTask
from autotune.report.parts import ReportSection, SectionPart, rate, seconds, short, table, text, unit
from autotune.tuning import run_state
from kernels_db.records import Run
from schedules.units import peak_share

# What describes a machine, in the order in which it is told.
MACHINE = ("cpu", "gpu", "device", "usable_cpus", "memory_gib", "system", "autotune", "llvm")


def failures(task: LoggedTask) -> str:
    """``crashed 2, ran too long 1``: failed trials by cause; those stopped early apart, as they are none."""
    counts = [(s, n) for s, n in task.by_status.most_common() if s not in ("ok", "slow")]
    return ", ".join(f"{CAUSES.get(s, s)} {n}" for s, n in counts)


def machine_words(info: object) -> str:
    """A machine in a line; as the log has it, not escaped."""
    known = info if isinstance(info, dict) else {}
    words = {
        "usable_cpus": "%s CPUs usable",
        "memory_gib": "%s GiB",
        "autotune": "autotune %s",
        "llvm": "LLVM %s",
    }
    said = [words.get(k, "%s") % str(known[k])[:60] for k in MACHINE if known.get(k) not in (None, "")]
    return ", ".join(said) or "a machine without a description"


def _last(task: LoggedTask) -> str:
    return max((r.started for r in task.runs), default="")[:16].replace("T", " ")


def _row(number: int, task: LoggedTask) -> str:
    best_s = None if task.best is None else task.best.time_s
    value = 0.0 if not best_s else (task.bytes if task.by_bytes else task.workload.flops) / best_s
    bar = "" if task.share is None else f'<i class="bar" style="--share:{min(task.share, 1.0):.3f}"></i>'
    stopped = task.by_status["slow"]
    machine = text(machine_words(next(iter(task.machines.values()), {})).split(",")[0])
    cells: list[tuple[str, str, str]] = [
        ("", f'<a href="#task-{number}">{short(task.name, 110)}</a>', text(task.name)),
        ("number", seconds(best_s), repr(best_s or 9e99)),
        ("number", rate(task, best_s), repr(value)),
        ("number share", f"{bar}{peak_share(task.share, task.peak_of)}", repr(task.share or 0.0)),
        ("number", f"{len(task.trials):,}", str(len(task.trials))),
        ("number", f"{stopped:,}" if stopped else "", str(stopped)),
        ("", text(failures(task)), str(task.failed)),
        ("number", str(len(task.runs)), str(len(task.runs))),
        (
            "",
            short(f"{task.target.arch}, {task.target.threads} thread{'s' * (task.target.threads != 1)}"),
            "",
        ),
        ("", machine, ""),
        ("", text(_last(task)), ""),
    ]
    made = "".join(
        "<td" + (f' class="{c}"' if c else "") + (f' data-v="{v}"' if v else "") + f">{h}</td>"
        for c, h, v in cells
    )
    return f'<tr data-task="{number}">{made}</tr>'


HEADERS = (
    "task",
    ">best",
    ">speed",
    ">of limit",
    ">trials",
    ">stopped early",
    "failures",
    ">runs",
    "target",
    "machine",
    "last run (UTC)",
)


def of_log(log: LogData) -> SectionPart | None:
    """The table of tasks."""
    if not log.tasks:
        return None
    head = "".join(
        f'<th class="sorts{" number" if h.startswith(">") else ""}" tabindex="0" role="button">'
        f"{text(h.removeprefix('>'))}</th>"
        for h in HEADERS
    )
    body = "".join(_row(n, t) for n, t in enumerate(log.tasks))
    search = ""
    if len(log.tasks) > 5:
        search = (
            '<input type="search" id="filter" placeholder="Search tasks: conv2d, float32, 2 threads …" '
            'aria-label="Search tasks"><span id="found" class="remark"></span>'
        )
    unknown = sum(t.limit is None for t in log.tasks)
    remark = ""
    if unknown:
        remark = (
            f'<p class="remark">The log does not know the limit of {unknown:,} of {len(log.tasks):,} tasks: '
            "it has that of runs that search, of this version of autotune or a newer one.</p>"
        )
    return SectionPart(
        f'{search}<div class="scroll tall"><table '
        f'class="tasks"><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        f"</table></div>{remark}"
    )


def of_task(log: LogData, task: LoggedTask) -> SectionPart:
    """Cards with the figures of a task, and its runs."""
    best_s = None if task.best is None else task.best.time_s
    cards = [
        ("best", seconds(best_s), "a call"),
        (
            "speed",
            rate(task, best_s),
            f"{task.workload.flops / 1e6:,.4g} MFLOP, {task.bytes / 1e6:,.4g} MB"
            if task.workload.flops
            else "",
        ),
        (
            "of limit",
            peak_share(task.share, task.peak_of),
            "not in the log" if task.limit is None else f"the limit: {seconds(task.limit.seconds)}",
        ),
        (
            "trials",
            f"{len(task.trials):,}",
            f"{task.by_status['slow']:,} stopped early, {task.failed:,} failed; {len(task.finals):,} finals",
        ),
    ]
    made = "".join(
        f'<div class="card"><span>{text(a)}</span><b>{text(b)}</b><small>{text(c)}</small></div>'
        for a, b, c in cards
    )
    trials = Counter(r.run for r in task.trials)
    rows = [
        (
            text(run.started[:19].replace("T", " ")),
            text(_state(task, run)),
            str(trials[run.uid]),
            str(run.seed),
            short(_options(run), 120),
            text(machine_words(task.machines.get(run.machine))),
        )
        for run in task.runs[-SHOWN:]
    ]
    note = f"<p>The last {SHOWN} of {len(task.runs):,} runs.</p>" if len(task.runs) > SHOWN else ""
    runs = table(("started (UTC)", "state", ">trials", ">seed", "options", "machine"), rows)
    few = "" if best_s is not None else _nothing(task)
    head = f"{len(task.runs):,} run{'s' * (len(task.runs) != 1)} on {len(task.machines)} machine"
    return SectionPart(
        "<div "
        f'class="cards">{made}</div>{few}<details><summary>{head}{"s" * (len(task.machines) != 1)}</summary>'
        f"{note}{runs}</details>"
    )


# Options of runs that are not shown: for programs.
UNSHOWN = ("in_place", run_state.PROCESS)
# Most runs of a task that are listed.
SHOWN = 20


def _state(task: LoggedTask, run: Run) -> str:
    if run.state != "running":
        return run.state
    last = max((r.created for r in task.trials if r.run == run.uid), default=run.started)
    state = run_state.state_of(run, last)
    return "not ended" if state == "running" else state


def _options(run: Run) -> str:
    shown = {k: v for k, v in run.options.items() if v is not None and k not in UNSHOWN}
    return ", ".join(f"{k}={v}" for k, v in shown.items()) or "–"


def _nothing(task: LoggedTask) -> str:
    return (
        '<p class="remark bad">No trial of this task gave a kernel. The causes are below; a larger budget '
        f"tries more: {len(task.trials):,} trials were made. Its speed would be told in {unit(task)}.</p>"
    )


SECTION = ReportSection(
    "tasks",
    "Tasks",
    "Each row is a task: one expression on one target. `best` is the time of a call of its best kernel; "
    "finalists were timed in turns, so that their times compare. `of limit` is the least time that the "
    "machine needs, by its measured arithmetic rate and bandwidth, over that time. Clocks vary, so that a "
    "few percent above 100 % occur; where it would be more, the peak was disturbed when it was measured. A "
    "candidate that is far from the best is `stopped early`, which is no failure. Click a row to see "
    "the task below; click a header to sort.",
    of_log,
    of_task,
)
