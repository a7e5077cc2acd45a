"""A call that is timed again and again on the same numbers. Needs numpy alone: processes of other
environments load this file by its path."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np


class Timed:
    """A call on arrays of its own. What a call changes is put back before the next, outside of the time."""

    def __init__(self, arrays: Mapping[str, np.ndarray], call: Callable[[Any], Any]) -> None:
        self.arrays = {name: np.asarray(x) for name, x in arrays.items()}
        self.own = SimpleNamespace(**{name: x.copy() for name, x in self.arrays.items()})
        self.call = call
        self.result = call(self.own)
        own = vars(self.own)
        self.changed = [n for n, x in self.arrays.items() if x.tobytes() != own[n].tobytes()]

    def seconds(self) -> float:
        """CPU seconds of this thread for one call."""
        for name in self.changed:
            np.copyto(getattr(self.own, name), self.arrays[name])
        begin = time.thread_time()
        self.call(self.own)
        return time.thread_time() - begin
