"""The ``progress`` of functions that tune: shown, told to the caller's function, or neither.

What is shown is a `SuiteProgress`, whatever is tuned, and wherever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from autotune.results import text
from autotune.results.display import State, display, live, say
from autotune.settings import SettingsError

if TYPE_CHECKING:
    from autotune.results.tuned import SuiteProgress

Tell = Callable[[Any], None]


@contextmanager
def shown(quiet: bool = False, alone: bool = False) -> Iterator[Tell]:
    """A function that shows every `SuiteProgress` (`display`), on a fleet the last of each machine.
    ``alone``: whether one program is tuned. While it is one task, that task is shown."""
    machines: dict[str, SuiteProgress] = {}
    with display(quiet) as show:

        def tell(p: SuiteProgress) -> None:
            machines[p.machine] = p
            show(lambda: State(text.standing(machines, alone), text.share(p, alone)))

        yield tell


@contextmanager
def picks_shown(shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A function that shows which kernel is chosen without tuning, and which of how many it is. In a pipe it
    shows nothing: nobody asked for a run."""
    with display(not shown or not live()) as show:
        yield lambda what, n, of: show(lambda: State(f"choosing kernel {n + 1} of {of}: {what}", n / of))


def followed(progress: Tell | str | None, alone: bool = False) -> AbstractContextManager[Tell | None]:
    """What a tune is given: a function of each `SuiteProgress` that shows it, for "auto", or gives it to
    ``progress``; if ``alone`` (as of `shown`), that of the task. Raises `SettingsError` for what is neither a
    function, nor "auto", nor None."""
    if _auto(progress):
        return shown(alone=alone)
    if alone and callable(progress):
        return nullcontext(lambda p: progress(p.task))
    return nullcontext(progress)  # type: ignore[arg-type]  # a text is "auto"


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
