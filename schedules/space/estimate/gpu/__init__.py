"""Estimates of candidates for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from schedules.ir import Nest
from schedules.model import Target
from schedules.space.estimate.counting import Number
from schedules.space.estimate.gpu.facts import KernelFacts, analyse
from schedules.space.estimate.gpu.features import FEATURE_NAMES, GpuFeatures
from schedules.space.estimate.gpu.limits import within
from schedules.space.estimate.gpu.rates import GpuRates
from schedules.space.estimate.recording import Compiler
from schedules.space.gc_paused import gc_paused
from schedules.space.holes import Columns


class GpuEstimate:
    """An `Estimate` of the kernels of one call. Inputs known ahead are read as others are."""

    feature_names: ClassVar[tuple[str, ...]] = FEATURE_NAMES

    def __init__(
        self,
        nest: Nest,
        target: Target,
        holes: Sequence[str],
        constants: Sequence[str] = (),
        compiler: Compiler | None = None,
    ) -> None:
        self._nest, self._rates = nest, GpuRates.of(target)
        self._holes, self._compiler = holes, compiler

    @cached_property
    def facts(self) -> tuple[KernelFacts, ...]:
        """The facts of every kernel."""
        return analyse(self._nest)

    @cached_property
    @gc_paused()
    def _features(self) -> GpuFeatures:
        return GpuFeatures(self.facts, self._holes, self._rates, self._compiler)

    def features(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return self._features(rows)

    def within(self, env: Columns) -> Number:
        return within(self.facts, env, self._rates)
