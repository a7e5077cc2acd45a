"""The contract of estimates: what is known of the candidates of a sketch before one is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from schedules.ir import Nest
from schedules.model import Target
from schedules.space.estimate.counting import Number
from schedules.space.estimate.recording import Compiler
from schedules.space.holes import Columns


class Estimate(Protocol):
    """The estimate of a nest with holes on a target. Facts are read off the nest once, as expressions over
    holes."""

    feature_names: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        nest: Nest,
        target: Target,
        holes: Sequence[str],
        constants: Sequence[str] = (),
        compiler: Compiler | None = None,
    ) -> None:
        """``holes``: names, in the order of columns. ``constants``: inputs known ahead. ``compiler``: as of
        `Program`."""

    def features(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Features of every row of a decision matrix, [rows, len(feature_names)]. Rows do not depend on each
        other."""
        ...

    def within(self, env: Columns) -> Number:
        """Whether a candidate keeps the limits of the target and of compilers, or a column of such truths."""
        ...
