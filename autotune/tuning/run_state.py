"""Whether a run that was not closed still goes on. A process that is killed cannot say in the log that it
ends, so a run names its process among its options."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from autotune.platform import machine, processes
from kernels_db.records import Run
from schedules.model import digest

if TYPE_CHECKING:
    from kernels_db.store import Log

PROCESS = "process"  # the option that names it
KILLED = "killed"  # the state of a run whose process is gone, beside those that the log has
# Time after the last sign of life, and after the budget, until a run elsewhere counts as gone (seconds).
SILENT_S = 600.0


def own_process() -> dict[str, object] | None:
    """This process: where its number holds (a boot of a machine, or a container), its number, and when it
    began, because numbers are given again. None where the system does not tell."""
    where, pid = _where(), os.getpid()
    began = processes.began(pid)
    return None if where is None or began is None else {"where": where, "pid": pid, "began": began}


def state_of(run: Run, last: str) -> str:
    """The state of a run: as the log has it, and `KILLED` for one that its process did not close. ``last``:
    when it gave the last sign of life. A process of another machine is not seen: its run counts as gone some
    minutes after its budget."""
    if run.state != "running":
        return run.state
    told = run.options.get(PROCESS)
    if isinstance(told, Mapping) and told.get("where") == _where() is not None:
        pid = told.get("pid")
        began = processes.began(pid) if type(pid) is int and 0 < pid < 1 << 32 else None
        return KILLED if began is None or began != told.get("began") else "running"
    return KILLED if _silent(run, last) else "running"


def states(log: Log) -> dict[str, int]:
    """How many runs are in each state."""
    found = Counter(log.runs_by_state())
    found.pop("running", None)
    found.update(state_of(run, last) for run, last in log.open_runs())
    return dict(sorted(found.items()))


def _silent(run: Run, last: str) -> bool:
    """Whether a run gave no sign of life for long, though its budget is over."""
    budget_s = run.options.get("budget_s")
    try:
        ends = datetime.fromisoformat(run.started) + timedelta(seconds=float(budget_s or 0.0))
        quiet = datetime.now(UTC) - max(ends, datetime.fromisoformat(last))
    except (ValueError, TypeError, OverflowError):  # a log may come from anywhere
        return True
    return quiet > timedelta(seconds=SILENT_S)


def _where() -> str | None:
    boot, space = machine.boot(), processes.space_of_numbers()
    return None if boot is None or space is None else digest(f"{boot} {space}")[:16]
