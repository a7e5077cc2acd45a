"""llama.cpp by its program ``llama-bench``, where the package is missing.

Each sample is a run of the program, which reads the file anew and times itself by the clock of the wall. It
tells no logits.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import one_line
from autotune.measure.compare.peers import PeerError
from autotune.models.decoding import Calls, Spent
from schedules.documents import integer, list_of, parsed, wrong

PROGRAM = "llama-bench"
CACHES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_SAMPLES = list_of(integer(1, 10**15, "nanoseconds"))


@dataclass(frozen=True)
class LlamaBench:
    """The program as a contender. ``path``: of the program; ``file``: of the model."""

    path: str
    file: str
    threads: int
    cache: str
    name: str = "llama.cpp"
    tells_cpu: bool = False
    logits: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    def run(self, calls: Calls) -> list[Spent]:
        """What each call took, of calls of as many tokens each: the mean. Raises `PeerError`."""
        tokens, depth = calls[0]
        rows, n = len(tokens), len(calls)
        cache = CACHES[self.cache]
        words = [self.path, "-m", self.file, "-t", str(self.threads), "-ngl", "0", "-r", "1", "-o", "json"]
        words += ["-ctk", cache, "-ctv", cache, "-d", str(depth)]
        words += ["-p", str(rows), "-n", "0"] if rows > 1 else ["-p", "0", "-n", str(n)]
        ran = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
        try:
            taken = sum(self._samples(ran.stdout)) * 1e-9 / n
        except ValueError as err:
            said = one_line(ran.stderr or str(err), 300)
            raise PeerError(
                f"{PROGRAM} does not time {self.file}: {said}; leave it out of --against"
            ) from None
        return [Spent(taken, float("nan"))] * n

    @staticmethod
    def _samples(text: str) -> tuple[int, ...]:
        """Nanoseconds of a run. Raises ValueError for another document."""
        made: Any = parsed(text)
        if not isinstance(made, list) or len(made) != 1 or not isinstance(made[0], dict):
            raise wrong(made, "a list of one run")
        return tuple(_SAMPLES(made[0].get("samples_ns")))
