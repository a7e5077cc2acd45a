"""Handles Ctrl-C for a long run: it acts once, and never within a block that must be completed."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Code of imports. An exception in the midst of it may leave the lock of all imports taken, and another thread
# would wait for it for ever.
_IMPORTS = "<frozen importlib"
AGAIN_S = 0.02  # until an interrupt that comes there is tried again


class Interrupts:
    """A context manager within which the first SIGINT raises KeyboardInterrupt, if need be at the end of a
    `hold` block, or after the code of an import. Later ones are ignored, so that they cannot cut off the
    report of the first.

    ``to_the_end``: this holds after the ``with`` block too, for a process that ends then. Nothing is changed
    outside the main thread, or where SIGINT is ignored or handled by others."""

    def __init__(self, to_the_end: bool = False) -> None:
        self._to_the_end = to_the_end
        self._ours = self._seen = self._holding = False

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._ours = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            ignore = self._seen and self._to_the_end
            signal.signal(signal.SIGINT, signal.SIG_IGN if ignore else signal.default_int_handler)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Delays an interrupt until the end of the block."""
        before = self._seen
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._seen and not before:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._seen:
            return
        if frame is not None and frame.f_code.co_filename.startswith(_IMPORTS):
            _thread.start_new_thread(_again, (number,))
            return
        self._seen = True
        if not self._holding:
            raise KeyboardInterrupt


def _again(number: int) -> None:
    """Send the signal to the main thread once more, a moment later."""
    time.sleep(AGAIN_S)
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(signal.Signals(number))
