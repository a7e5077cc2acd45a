"""The ``progress`` of functions that tune: shown, told to the caller's function, or neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from autotune.results import text
from autotune.results.display import State, display, live, say
from autotune.settings import SettingsError

if TYPE_CHECKING:
    from autotune.results.tuned import Progress, SuiteProgress
    from schedules.model import Workload

P = TypeVar("P")
Auto = Literal["auto"]
Tell = Callable[[P], None]


@contextmanager
def task_shown(workload: Workload, quiet: bool = False) -> Iterator[Tell[Progress]]:
    """A function that shows every `Progress` of a task (`display`)."""
    with display(quiet) as show:
        yield lambda p: show(lambda: State(text.of_task(workload, p), text.share(p)))


@contextmanager
def suite_shown(quiet: bool = False) -> Iterator[Tell[SuiteProgress]]:
    """A function that shows every `SuiteProgress` (`display`)."""
    with display(quiet) as show:
        yield lambda p: show(lambda: State(text.of_suite(p), text.share(p)))


@contextmanager
def fleet_shown(quiet: bool = False) -> Iterator[Tell[SuiteProgress]]:
    """A function that shows the last `SuiteProgress` of each machine, a line for each (`display`)."""
    machines: dict[str, SuiteProgress] = {}
    with display(quiet) as show:

        def tell(p: SuiteProgress) -> None:
            machines[p.machine] = p
            show(lambda: State(text.of_fleet(machines), text.share(p)))

        yield tell


@contextmanager
def picks_shown(shown: bool) -> Iterator[Callable[[Workload, int, int], None]]:
    """A function that shows of which workload a kernel is chosen without tuning, and which of how many it is.
    In a pipe it shows nothing: nobody asked for a run."""
    with display(not shown or not live()) as show:
        yield lambda w, n, of: show(lambda: State(text.of_pick(w, n, of), n / of))


def task_followed(
    progress: Tell[Progress] | Auto | None, workload: Workload
) -> AbstractContextManager[Tell[Progress] | None]:
    """What a tune of one task is given: ``progress`` itself, or for "auto" a function that shows it. Raises
    `SettingsError` for what is neither, nor None."""
    return _followed(progress, lambda: task_shown(workload))


def suite_followed(
    progress: Tell[SuiteProgress] | Auto | None,
) -> AbstractContextManager[Tell[SuiteProgress] | None]:
    """As `task_followed`, of many tasks."""
    return _followed(progress, suite_shown)


def fleet_followed(
    progress: Tell[SuiteProgress] | Auto | None,
) -> AbstractContextManager[Tell[SuiteProgress] | None]:
    """As `suite_followed`, on a fleet."""
    return _followed(progress, fleet_shown)


def _followed(
    progress: Tell[P] | Auto | None, shown: Callable[[], AbstractContextManager[Tell[P]]]
) -> AbstractContextManager[Tell[P] | None]:
    return shown() if _auto(progress) else nullcontext(cast("Tell[P] | None", progress))


def concluded(progress: object, result: str) -> None:
    """Say the result in a line, where progress was shown."""
    if _auto(progress):
        say(result)


def _auto(progress: object) -> bool:
    if progress is None or callable(progress):
        return False
    if progress == "auto":
        return True
    raise SettingsError(
        f"progress is {progress!r}; it must be a function of one argument, None for silence, or left out"
    )
