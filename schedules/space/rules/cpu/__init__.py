"""Sketch rules for CPUs: which loops become tiles, threads, vectors and registers, and what is packed."""

from __future__ import annotations

from schedules.space.rules.cpu.groups import apply_rules
from schedules.space.rules.cpu.plain import schedule_plainly

__all__ = ["apply_rules", "schedule_plainly"]
