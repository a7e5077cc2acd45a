"""Estimates of candidates for CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from schedules.constants import split_constants
from schedules.ir import Nest
from schedules.model import Target
from schedules.space.estimate.counting import Number
from schedules.space.estimate.cpu.facts import BlockFacts, analyse
from schedules.space.estimate.cpu.features import FEATURE_NAMES, CpuFeatures
from schedules.space.estimate.cpu.limits import within
from schedules.space.estimate.cpu.rates import CpuRates
from schedules.space.estimate.recording import Compiler
from schedules.space.gc_paused import gc_paused
from schedules.space.holes import Columns


class CpuEstimate:
    """An `Estimate` of one call. Packing of constants is not part of it."""

    feature_names: ClassVar[tuple[str, ...]] = FEATURE_NAMES

    def __init__(
        self,
        nest: Nest,
        target: Target,
        holes: Sequence[str],
        constants: Sequence[str] = (),
        compiler: Compiler | None = None,
    ) -> None:
        self._nest, self._rates = nest, CpuRates.of(target)
        self._holes, self._constants, self._compiler = holes, constants, compiler

    @cached_property
    def facts(self) -> tuple[BlockFacts, ...]:
        """The facts of every block."""
        return analyse(split_constants(self._nest, self._constants)[0])

    @cached_property
    @gc_paused()
    def _features(self) -> CpuFeatures:
        return CpuFeatures(self.facts, self._holes, self._rates, self._compiler)

    def features(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return self._features(rows)

    def within(self, env: Columns) -> Number:
        return within(self.facts, env, self._rates)
