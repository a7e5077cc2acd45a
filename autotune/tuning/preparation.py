"""The work before the first trial: checks that tuning is feasible, a measurer with limits that suit the
budget, and the import of xgboost."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from autotune import backends, settings
from autotune.measure import Control, Measurer, Nominal, Options
from autotune.measure.inputs import Tolerance
from autotune.measure.memory import check_fits
from autotune.settings import SettingsError
from schedules.model import Target, Workload

REFERENCE_RATE = 5e10  # FLOP/s at which numpy computes a reference, at best
CHECKS = 4  # runs of a candidate until it is checked, with room for a slow machine


@contextlib.contextmanager
def xgboost_on_its_way() -> Iterator[None]:
    """Import xgboost, which takes a second or two, while the measurer starts and the first trials run. Until
    the end of the block the environment asks no OpenMP runtime to bind threads to CPUs."""
    given_up = threading.Event()

    def work() -> None:
        from cost_model.xgb import prefetch

        with contextlib.suppress(ImportError):  # the search will say so
            prefetch(given_up.is_set)

    thread = threading.Thread(target=work, name="import xgboost")
    with settings.environment(settings.UNBOUND):
        thread.start()
        try:
            yield
        finally:
            given_up.set()
            thread.join()


def check_feasible(workload: Workload, budget_s: float) -> None:
    """Raises `WorkloadError` for arrays that do not fit in memory, and `SettingsError` for a budget (seconds)
    that the reference alone would use up."""
    check_fits(workload.dag)
    if workload.flops > REFERENCE_RATE * budget_s:
        raise SettingsError(
            f"one run takes {workload.flops / 1e9:.3g} GFLOP: the reference result alone would use up the "
            f"budget of {budget_s:g} s; give more time, or use smaller sizes"
        )


def measurer(
    workload: Workload,
    target: Target,
    budget_s: float,
    nominal: Nominal | None = None,
    control: Control | None = None,
    tolerance: Tolerance | None = None,
) -> Measurer:
    """A measurer with time limits that suit the budget (seconds). See `Measurer` for the other parameters."""
    runs_s = CHECKS * workload.flops / REFERENCE_RATE  # a good candidate's, before it is timed
    slow_s = backends.of(target).measuring.slower * runs_s
    limits = Options(
        timeout_s=max(min(max(10.0, slow_s), max(1.0, budget_s / 5)), runs_s),
        build_timeout_s=min(20.0, max(2.0, budget_s / 5)),
        patience_s=min(1.5, max(0.5, budget_s / 20)),
    )
    return Measurer(
        *(workload, target),
        tolerance=tolerance,
        options=limits,
        nominal=nominal,
        control=control,
    )
