"""Sketch rules: how the structure of a schedule follows from the compute DAG."""

from __future__ import annotations

from schedules.space.rules.groups import apply_rules
from schedules.space.rules.plain import schedule_plainly

__all__ = ["apply_rules", "schedule_plainly"]
