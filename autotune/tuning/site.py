"""Where candidates are measured: on whose machine, against which limit, and at what cost.

A tuning run asks its site alone, so that a machine elsewhere can stand behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from autotune import backends, targets
from autotune.backends.building.generator_version import this_machine
from autotune.measure.control import comparing_s
from autotune.measure.timing import finals_s
from autotune.tuning import preparation
from schedules.errors import AutotuneError
from schedules.model import Target, Trace, Workload

if TYPE_CHECKING:
    from autotune.measure import Control, Nominal
    from autotune.measure.inputs import Tolerance
    from autotune.measure.results import Measurement


class SiteLost(AutotuneError):
    """A machine that measures is gone. Its tasks may go on on another."""


MOVE_S = 0.4  # until processes run whose arrays are in another place


class Measuring(Protocol):
    """What a session needs of a measurer, which is open until its context is left: see
    `autotune.measure.Measurer`. A method raises KeyboardInterrupt where the user wants no more, and
    `SiteLost` where the machine is gone. ``waiting`` and ``begins``, if set: called some times a second
    while it waits, and with the number of a trace that begins to run."""

    waiting: Callable[[], None] | None
    begins: Callable[[int], None] | None

    def __enter__(self) -> Measuring: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def start(self) -> None:
        """Have ready now what the first candidate would start."""

    def arrivals(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        *,
        latest: float | None = None,
    ) -> Iterator[tuple[int, Measurement]]:
        """Measurements with their indices, each as it stands; none for what the deadline cut off.
        ``latest``: until when the deadline is put off while others have the CPUs; a machine elsewhere may
        keep to the deadline."""

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        """Interleaved measurements, one a trace."""

    def object(self, trace: Trace) -> bytes | None:
        """The compiled object of a candidate that was measured "ok", if it is still kept."""

    def move(self) -> None:
        """Have all arrays in other pages of memory from now on."""

    @property
    def nominal(self) -> Nominal | None:
        """The speed that times are normalised to, where there is one."""

    @property
    def control(self) -> Control | None:
        """The candidate beside which others are timed, where there is one."""


class Site(Protocol):
    """A machine that measures. `Here` is this one."""

    def machine(self) -> Mapping[str, str | int]:
        """Facts of the machine, as the log keeps them (`targets.machine`)."""

    def check(self, target: Target) -> None:
        """Raises `TargetError` unless it runs code for a target."""

    def spare(self, target: Target) -> bool:
        """Whether this process may use a CPU while the site measures for a target."""

    def roofline(self, workload: Workload, target: Target) -> Callable[[], float] | None:
        """A function that measures the least seconds that it needs for a workload. None, or a function that
        gives 0: unknown."""

    def cost_s(self, time_s: float, count: int, rounds: int, repeats: int, warm_runs: int) -> float:
        """Seconds that `Measuring.finalists` takes at most for ``count`` candidates of about ``time_s``."""

    def move_s(self, time_s: float, warm_runs: int) -> float:
        """Seconds that `Measuring.move` costs, until candidates of about ``time_s`` are timed again."""

    def measurer(
        self,
        workload: Workload,
        target: Target,
        budget_s: float,
        nominal: Nominal | None = None,
        control: Control | None = None,
        tolerance: Tolerance | None = None,
        reference_s: float | None = None,
        waiting: Callable[[], None] = lambda: None,
    ) -> Measuring:
        """What measures a task. ``budget_s``: of the run. ``nominal``, ``control``: of an
        earlier one of the same run. ``reference_s``: seconds that a reference may take, else it is computed
        in part; None: a share of the budget. ``waiting``: called now and then while that is computed here;
        what it raises ends it. Raises `WorkloadError` where a reference takes longer than the budget."""


class Here:
    """This machine, and worker processes on it. See `Site`."""

    def machine(self) -> Mapping[str, str | int]:
        return this_machine()

    def check(self, target: Target) -> None:
        backends.check_here(target)

    def spare(self, target: Target) -> bool:
        return targets.usable_cpus() > target.threads

    def roofline(self, workload: Workload, target: Target) -> Callable[[], float] | None:
        return backends.of(target).roofline(workload, target)

    def cost_s(self, time_s: float, count: int, rounds: int, repeats: int, warm_runs: int) -> float:
        return finals_s(time_s, count, rounds, repeats, warm_runs)

    def move_s(self, time_s: float, warm_runs: int) -> float:
        return MOVE_S + comparing_s(time_s, warm_runs)

    def measurer(self, *task: Any, **how: Any) -> Measuring:
        return preparation.measurer(*task, **how)


HERE: Site = Here()
