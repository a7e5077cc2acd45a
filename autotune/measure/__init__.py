"""Measuring candidates: build, check, time; each in a process that may die of it."""

from __future__ import annotations

from autotune.measure.inputs import random_inputs
from autotune.measure.measurer import Measurer
from autotune.measure.process import MeasureError
from autotune.measure.results import Control, Measurement, Nominal, Options

__all__ = [
    "Control",
    "MeasureError",
    "Measurement",
    "Measurer",
    "Nominal",
    "Options",
    "random_inputs",
]
