"""Where progress is shown: a line in a terminal, a bar in a notebook, lines now and then in a pipe."""

from __future__ import annotations

import html
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from schedules.units import visible_lines

if TYPE_CHECKING:
    from rich.console import Console

# Time between two lines in a pipe, and between two states of a bar (seconds).
PLAIN_PERIOD_S, BAR_PERIOD_S = 5.0, 0.25
# One display at a time: a tune in another thread is not shown.
_busy = threading.Lock()


class State(NamedTuple):
    """What is shown: ``text``, in a line or several; ``share`` of the budget that is used, from 0 to 1."""

    text: str
    share: float


Show = Callable[[Callable[[], State]], None]


@contextmanager
def display(quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> Iterator[Show]:
    """A function that shows what another returns, if the last state is old enough. It writes to stderr, or to
    the cell of a notebook: stdout has only results. ``quiet``: it writes nothing. It writes nothing either
    while another thread shows something. The last state of a bar stays, a terminal's line goes."""
    lost = (sys.stderr is None or getattr(sys.stderr, "closed", False)) and notebook() is None
    if quiet or lost or not _busy.acquire(blocking=False):
        yield lambda state: None
        return
    try:
        cell = notebook()
        if cell is not None:
            with _bar_in(cell, clock) as show:
                yield show
            return
        from rich.console import Console

        err = Console(file=cast(IO[str], _Stderr(sys.stderr)), highlight=False, markup=False)
        # a pipe is none, though FORCE_COLOR asks for colours in it
        if err.is_terminal and not err.is_dumb_terminal and _terminal(sys.stderr):
            with _line_in(err) as show:
                yield show
            return
        yield _plain(clock)
    finally:
        _busy.release()


@contextmanager
def _line_in(err: Console) -> Iterator[Show]:
    """A line of a terminal that changes. What others write to stderr meanwhile stands above it; so does what
    they write to stdout, if that is a terminal too. Elsewhere stdout gets it as always."""
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    spinner = Spinner("line" if err.options.ascii_only else "dots", Text("starting"), style="status.spinner")
    with Live(
        spinner,
        console=err,
        refresh_per_second=12.5,
        transient=True,
        redirect_stdout=_terminal(sys.stdout),
    ):
        yield lambda state: spinner.update(text=Text(visible_lines(state().text)))


def live() -> bool:
    """Whether what is shown can change: in a terminal or a notebook."""
    return notebook() is not None or (sys.stderr is not None and _terminal(sys.stderr))


def _terminal(stream: Any) -> bool:
    """Whether a stream is a terminal. What stands in for stdout may have a `write` alone."""
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):  # ValueError: closed
        return False


def say(text: str) -> None:
    """Show a line that stays, on stderr. In a notebook nothing: its bar stays."""
    if notebook() is None:
        _line(visible_lines(text))


def _line(text: str) -> None:
    """A line on stderr. Where that is lost, full, or a pipe that nobody reads, a run goes on without it."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=hasattr(sys.stderr, "flush"))


def _forked() -> None:
    """In a child of a fork: a line in the terminal is its parent's, and has locks that no thread here gives
    back. The child writes without it, and shows nothing of its own beside it."""
    if _busy.locked():
        sys.stdout = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
        sys.stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Stderr:
    """A stream whose terminal may be gone when it is written to: a run goes on without it."""

    def __init__(self, stream: Any) -> None:
        self._stream = getattr(stream, "rich_proxied_file", stream)  # another line stands there

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(AttributeError, OSError, ValueError):
            self._stream.flush()


def notebook() -> Any:
    """The function that shows things in the cell of the notebook which runs this, or None. IPython is asked
    only where it is loaded already, and has a kernel: its shell in a terminal is a terminal."""
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display as show

    return show


@contextmanager
def _bar_in(cell: Any, clock: Callable[[], float]) -> Iterator[Show]:
    """A bar in a cell of a notebook, with the line under it. A front end that is gone, or that cannot change
    what it shows, stops nothing."""
    last, now = clock(), State("starting", 0.0)
    handle = cell({"text/html": bar(now)}, raw=True, display_id=True)

    def update(state: State) -> None:
        if handle is not None:
            with suppress(OSError, ValueError):
                handle.update({"text/html": bar(state)}, raw=True)

    def show(state: Callable[[], State]) -> None:
        nonlocal last, now
        now = state()  # cheap, and the last one stays
        if clock() - last >= BAR_PERIOD_S:
            last = clock()
            update(now)

    yield show
    update(now._replace(share=1.0))


def bar(state: State) -> str:
    """The HTML of a state. Its text is escaped: names of tasks may come from anywhere."""
    filled = f"<progress max='100' value='{100 * state.share:.0f}' style='width: 24em'></progress>"
    lines = html.escape(visible_lines(state.text)).replace("\n", "<br>")
    return f"{filled}<br><code>{lines}</code>"


def _plain(clock: Callable[[], float]) -> Show:
    last = clock() - PLAIN_PERIOD_S

    def show(state: Callable[[], State]) -> None:
        nonlocal last
        if clock() - last >= PLAIN_PERIOD_S:
            last = clock()
            _line(visible_lines(state().text))

    return show
