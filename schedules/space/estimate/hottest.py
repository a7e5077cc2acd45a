"""Features of candidates with several blocks or kernels: those of the hottest ones, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from schedules.space.estimate.counting import Number
from schedules.space.estimate.recording import Compiler, RecordedProgram
from schedules.space.holes import Columns

Measured = Sequence[Mapping[str, Number]]


class Hottest:
    """``measure``: returns the quantities of each block or kernel, by name. ``names``: the quantities that
    are kept of the ones with most of ``by`` in each row. ``also``: quantities that are summed, as ``by`` is.
    ``compiler``: as of `RecordedProgram`."""

    def __init__(
        self,
        holes: Sequence[str],
        measure: Callable[[Columns], Measured],
        names: Sequence[str],
        by: str,
        also: Sequence[str] = (),
        compiler: Compiler | None = None,
    ) -> None:
        self._width, self._summed = len(names), (by, *also)

        def groups(env: Columns) -> list[list[Number]]:
            found = measure(env)
            summed = [q[name] for name in self._summed for q in found]
            return [summed, *([q[name] for name in names] for q in found)]

        self._program = RecordedProgram(holes, groups, compiler)

    def __call__(
        self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.float32]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Write the quantities of the hottest into ``out``, [rows, number kept × len(names)], hottest first,
        0 where there are fewer. Returns the sums over all, [rows] each."""
        sums = {name: np.empty(len(rows)) for name in self._summed}
        out[:] = 0.0
        for part, summed, group in self._program.run(rows):
            n, blocks = part.stop - part.start, len(summed) // len(sums)
            for k, column in enumerate(sums.values()):
                column[part] = sum(summed[k * blocks : (k + 1) * blocks])
            order = np.argsort(-summed[:blocks], axis=0, kind="stable")[: out.shape[1] // self._width]
            used = np.flatnonzero(np.bincount(order.ravel(), minlength=blocks))  # few of many blocks
            table = np.empty((n, len(used), self._width), dtype=np.float32)
            for k, block in enumerate(used):
                table[:, k] = group(1 + int(block)).T
            places = np.searchsorted(used, order.T) + len(used) * np.arange(n)[:, None]
            chosen = table.reshape(-1, self._width)[places]
            out[part, : len(order) * self._width] = chosen.reshape(n, -1)
        return sums
