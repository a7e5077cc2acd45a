"""Handles Ctrl-C for a long run, and what else ends one: it acts once, and never within a block that must be
completed."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from autotune.platform.processes import signal_thread

# Code of imports. An exception in the midst of it may leave the lock of all imports taken, and another thread
# would wait for it for ever.
_IMPORTS = "<frozen importlib"
AGAIN_S = 0.02  # until an interrupt that comes there is tried again


# What ends a command: Ctrl-C, a supervisor or a shutdown, and a terminal that goes away.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """A context manager within which the first of some signals raises KeyboardInterrupt, if need be at the
    end of a `hold` block, or after the code of an import. Later ones are ignored, so that they cannot cut off
    the report of the first, whose number is ``number``.

    ``to_the_end``: this holds after the ``with`` block too, for a process that ends then. ``signals``: which
    ones; a library leaves all but Ctrl-C to the program. Nothing is changed outside the main thread, and of a
    signal that is ignored or handled by others."""

    def __init__(self, to_the_end: bool = False, signals: Sequence[int] = (signal.SIGINT,)) -> None:
        self._to_the_end, self._signals = to_the_end, signals
        self._holding = False
        self._before: dict[int, Any] = {}  # handlers that were there
        self.number: int | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                if signal.getsignal(number) is usual:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        ignore = self.number is not None and self._to_the_end
        while self._before:
            number, before = self._before.popitem()
            signal.signal(number, signal.SIG_IGN if ignore else before)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Delays an interrupt until the end of the block, or of the outermost of several."""
        before, outer = self.number, self._holding
        self._holding = True
        try:
            yield
        finally:
            self._holding = outer
        if self.number is not None and before is None and not outer:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            return
        if frame is not None and frame.f_code.co_filename.startswith(_IMPORTS):
            _thread.start_new_thread(_again, (number,))
            return
        self.number = number
        if not self._holding:
            raise KeyboardInterrupt


def _again(number: int) -> None:
    """Send the signal to the main thread once more, a moment later."""
    time.sleep(AGAIN_S)
    signal_thread(threading.main_thread().ident or 0, number)
