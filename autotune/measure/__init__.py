"""Measuring candidates: build, check, time; each in a process that may die of it."""

from __future__ import annotations

from autotune.measure.measurer import Measurer, random_inputs
from autotune.measure.process import MeasureError
from autotune.measure.results import Control, Measurement, Nominal, Options
from kernels_db.records import STATUSES

__all__ = [
    "STATUSES",
    "Control",
    "MeasureError",
    "Measurement",
    "Measurer",
    "Nominal",
    "Options",
    "random_inputs",
]
