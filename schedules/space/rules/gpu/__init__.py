"""Sketch rules for GPUs: which loops become blocks, threads and registers, and what lies in shared memory."""

from __future__ import annotations

from schedules.space.rules.gpu.groups import apply_gpu_rules
from schedules.space.rules.gpu.plain import schedule_each_plainly

__all__ = ["apply_gpu_rules", "schedule_each_plainly"]
