"""Estimates: what is known of the candidates of a sketch before one is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from schedules.ir import Nest
from schedules.model import Target
from schedules.space.estimate.counting import Number
from schedules.space.estimate.recording import Compiler, RecordedProgram
from schedules.space.gc_paused import gc_paused
from schedules.space.holes import Columns


@dataclass(frozen=True)
class Formulas:
    """What differs between kinds of target. A nest has parts: blocks, or kernels.

    ``analyse(nest, constants)``: the facts of each part, as expressions over holes. ``rates``: of a target.
    ``measure``: the quantities of a part, by name. ``within``: whether all of them keep the limits.
    ``part``, ``quantities``: the name of a part in features, and of its quantities that are features, of the
    ``hot`` parts with most of ``summed[0]`` in each row. ``summed``: quantities that are added up over all.
    ``totals(facts, sums)``: the features after those of parts, by name."""

    analyse: Callable[[Nest, Sequence[str]], tuple[Any, ...]]
    rates: Callable[[Target], Any]
    measure: Callable[[Any, Columns, Any], Mapping[str, Number]]
    within: Callable[[tuple[Any, ...], Columns, Any], Number]
    part: str
    quantities: tuple[str, ...]
    hot: int
    summed: tuple[str, ...]
    totals: Callable[[tuple[Any, ...], Mapping[str, Number]], Mapping[str, Number]]

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of features: those of the hottest parts, then sums over all."""
        each = (f"{self.part}{n}.{q}" for n in range(self.hot) for q in self.quantities)
        return (*each, *self.totals((), dict.fromkeys(self.summed, 0.0)))

    def of(
        self,
        nest: Nest,
        target: Target,
        holes: Sequence[str] = (),
        constants: Sequence[str] = (),
        compiler: Compiler | None = None,
    ) -> Estimate:
        """The estimate of a nest on a target. ``holes``: names, in the order of columns. ``constants``:
        inputs known ahead. ``compiler``: as of `RecordedProgram`."""
        return Estimate(self, self.analyse(nest, constants), self.rates(target), holes, compiler)


@dataclass(frozen=True)
class Estimate:
    """The estimate of a nest by its ``facts`` and the ``rates`` of its target."""

    formulas: Formulas
    facts: tuple[Any, ...]
    rates: Any
    holes: Sequence[str] = ()
    compiler: Compiler | None = None

    def within(self, env: Columns) -> Number:
        """Whether a candidate keeps the limits of the target and of compilers, or a column of such truths."""
        return self.formulas.within(self.facts, env, self.rates)

    @cached_property
    @gc_paused()
    def _program(self) -> RecordedProgram:
        """Makes what is summed of each part, and the quantities of each."""

        def groups(env: Columns) -> list[list[Number]]:
            found = [self.formulas.measure(part, env, self.rates) for part in self.facts]
            summed = [q[name] for name in self.formulas.summed for q in found]
            return [summed, *([q[name] for name in self.formulas.quantities] for q in found)]

        return RecordedProgram(self.holes, groups, self.compiler)

    def features(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Features of every row of a decision matrix, [rows, len(feature_names)]: the quantities of the
        hottest parts, hottest first, 0 where there are fewer. Rows do not depend on each other."""
        names, width = self.formulas.feature_names, len(self.formulas.quantities)
        out = np.zeros((len(rows), len(names)), dtype=np.float32)
        sums = {name: np.empty(len(rows)) for name in self.formulas.summed}
        for part, summed, group in self._program.run(rows):
            n, parts = part.stop - part.start, len(self.facts)
            for k, column in enumerate(sums.values()):
                column[part] = sum(summed[k * parts : (k + 1) * parts])
            order = np.argsort(-summed[:parts], axis=0, kind="stable")[: self.formulas.hot]
            used = np.flatnonzero(np.bincount(order.ravel(), minlength=parts))  # few of many
            table = np.empty((n, len(used), width), dtype=np.float32)
            for k, one in enumerate(used):
                table[:, k] = group(1 + int(one)).T
            places = np.searchsorted(used, order.T) + len(used) * np.arange(n)[:, None]
            chosen = table.reshape(-1, width)[places]
            out[part, : len(order) * width] = chosen.reshape(n, -1)
        totals = self.formulas.totals(self.facts, sums)
        for k, column in enumerate(totals.values(), len(names) - len(totals)):
            out[:, k] = column
        return out
