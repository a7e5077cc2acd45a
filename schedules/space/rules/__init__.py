"""Sketch rules: how the structure of a schedule follows from the compute DAG."""

from __future__ import annotations

from schedules.space.rules.groups import apply_rules

__all__ = ["apply_rules"]
