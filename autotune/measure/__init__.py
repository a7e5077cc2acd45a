"""Measuring candidates: build, check, time; each in a process that may die of it."""

from __future__ import annotations

from autotune.measure.measurer import Measurer, random_inputs
from autotune.measure.process import MeasureError
from autotune.measure.results import STATUSES, Measurement, Options

__all__ = ["STATUSES", "MeasureError", "Measurement", "Measurer", "Options", "random_inputs"]
