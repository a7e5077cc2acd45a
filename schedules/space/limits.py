"""Static limits: what can't be any good, or would take the compiler seconds, is never built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from schedules.primitives.unroll import MAX_UNROLL
from schedules.primitives.vectorize import MAX_LANES
from schedules.space.quantities import BlockFacts, Machine, measure, number


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one candidate."""

    spilled_registers: int = 6
    unrolled_vectors: int = 640  # vector operations in one unrolled body
    scratch_bytes: int = 1 << 30


def within(
    facts: tuple[BlockFacts, ...], env: Mapping[str, Any], rows: int, m: Machine, limits: Limits | None = None
) -> np.ndarray:
    """Which rows keep the limits, [rows] of bool."""
    limits = limits or Limits()
    ok = np.ones(rows, dtype=bool)
    for b in facts:
        q = measure(b, env, m)
        ok &= q["lanes"] <= MAX_LANES
        ok &= q["unrolled"] <= MAX_UNROLL
        ok &= q["vectors"] <= limits.unrolled_vectors
        if b.reduces:
            ok &= q["spills"] <= limits.spilled_registers
        written = sum((number(a.whole, env) * a.item for a in b.accesses if a.write), np.zeros(()))
        ok &= written <= limits.scratch_bytes
    return ok
