"""The work before the first trial: checks that tuning is feasible, a measurer with limits that suit the
budget, and the import of xgboost."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from autotune import backends, settings
from autotune.measure import Control, Measurer, Nominal, Options, starting
from autotune.measure.inputs import Tolerance
from autotune.measure.memory import check_fits
from autotune.measure.sampled import plan
from autotune.settings import SettingsError
from schedules.errors import WorkloadError
from schedules.model import Target, Workload
from schedules.te.compute_dag import ComputeDAG
from schedules.te.open_sizes import strides_that_depend
from schedules.units import digits

FASTEST = 5e10  # FLOP/s of a thread's good candidate, at least where it matters
MOST_FLOPS = 10**30  # that a message says: a log may state a number that no float holds
LEAST_S = 3.0  # a shorter budget ends after the first candidates, which may take so long
WHOLE_SHARE = 0.1  # of the budget: a reference that takes longer is computed in part
LATE = 2.0  # times that share: after a reference that took longer there are no others
CHECKS = 4  # runs of a candidate until it is checked and timed, with room for a slow machine


@contextlib.contextmanager
def xgboost_on_its_way() -> Iterator[None]:
    """Import xgboost, which takes a second or two, while the measurer starts and the first trials run. Until
    the end of the block the environment asks no OpenMP runtime to bind threads to CPUs."""
    given_up = threading.Event()

    def work() -> None:
        from cost_model.xgb import prefetch

        with contextlib.suppress(ImportError, OSError):  # the search will say so
            prefetch(given_up.is_set)

    thread = threading.Thread(target=work, name="import xgboost")
    with settings.environment(settings.UNBOUND):
        thread.start()
        try:
            yield
        finally:
            given_up.set()
            thread.join()


def check_feasible(
    workload: Workload, budget_s: float, memory: bool = True, most_s: float | None = None
) -> None:
    """Raises `WorkloadError` for arrays that do not fit in memory, arguments whose strides depend on an open
    size, and where computing the right result takes longer than ``most_s`` seconds (None: than the budget);
    `SettingsError` for a budget (seconds) that one run alone would use up. ``memory``: whether the arrays are
    on this machine."""
    if wrong := strides_that_depend(workload.dag):
        raise WorkloadError(wrong)
    if memory:
        check_fits(workload.dag)
    if workload.flops > FASTEST * max(budget_s, LEAST_S):
        takes = digits(min(workload.flops, MOST_FLOPS) / 1e9)
        raise SettingsError(
            f"one run takes {takes} GFLOP: it alone would use up the budget of {budget_s:g} s; "
            f"give more time, or use smaller sizes"
        )
    _in_part(workload.dag, WHOLE_SHARE * budget_s, max(budget_s, LEAST_S) if most_s is None else most_s)


def _in_part(dag: ComputeDAG, limit_s: float, most_s: float) -> bool:
    """Whether the reference is computed in part, as it would take longer than ``limit_s`` seconds. Raises
    `WorkloadError` where even that takes longer than ``most_s``: nothing would ever be checked."""
    in_part, takes_s = plan(dag, limit_s)
    if takes_s > most_s:
        raise WorkloadError(
            f"computing the right result of {', '.join(dag.outputs)}, with which kernels are compared, takes "
            f"about {digits(takes_s)} s, more than the {digits(most_s)} s there are; give more time, or use "
            f"smaller sizes"
        )
    return in_part


def measurer(
    workload: Workload,
    target: Target,
    budget_s: float,
    nominal: Nominal | None = None,
    control: Control | None = None,
    tolerance: Tolerance | None = None,
    reference_s: float | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> Measurer:
    """A measurer with time limits that suit the budget (seconds). ``reference_s``: seconds that a reference
    may take, else it is computed in part (None: a share of the budget). See `Measurer` for the other
    parameters. Raises `WorkloadError` where a reference takes longer than the budget."""
    starting.begin()  # while the right outputs are computed
    if reference_s is None:
        reference_s = WHOLE_SHARE * budget_s
    in_part = _in_part(workload.dag, reference_s, max(budget_s, LEAST_S))
    runs_s = CHECKS * workload.flops / FASTEST  # a good candidate's, before it is timed
    slow_s = backends.of(target).measuring.slower * runs_s
    limits = Options(
        timeout_s=max(min(max(10.0, slow_s), max(1.0, budget_s / 5)), 2 * runs_s),
        build_timeout_s=min(20.0, max(2.0, budget_s / 5)),
        patience_s=min(1.5, max(0.5, budget_s / 20)),
    )
    return Measurer(
        *(workload, target),
        tolerance=tolerance,
        options=limits,
        in_part=in_part,
        whole_s=LATE * reference_s,
        most_s=LATE * max(budget_s, LEAST_S),
        nominal=nominal,
        control=control,
        waiting=waiting,
    )
