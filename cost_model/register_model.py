"""Predicts what a GPU's compiler will report of a candidate: registers and spilled bytes.

Registers decide how many blocks a processor holds at a time. Missing ones are spilled to memory. A space
counts the registers of a candidate's arrays, and the compiler reports for each measured candidate what it
took. A correction is learnt from these pairs. Its predictions are columns for the model of a search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_model.base import Features
from schedules.space.estimate.gpu.features import HOT_KERNELS
from schedules.space.estimate.gpu.limits import occupancy
from schedules.space.estimate.gpu.rates import WARP, GpuRates

# Columns that the model adds.
NAMES = ("compiled.registers", "compiled.spill_bytes", "compiled.shared_bytes", "compiled.occupancy")
# Fewest candidates with reports that are learnt from.
LEAST = 8
# Ridge: weight of staying with the space's count (in candidates that would show no difference).
RIDGE = 10.0
# Extrapolation of the line beyond what was seen (standard deviations).
FAR = 3.0
# Bytes of a register.
WORD = 4
# Registers are allocated in multiples of this.
GRAIN = 8

Matrix = npt.NDArray[Any]  # of float64


class RegisterModel:
    """Predicts `NAMES` from features with columns ``names`` of a space for GPUs: registers and spilled bytes
    of a thread, shared bytes of a block, and the share of a processor's threads that its blocks fill. With
    several kernels the largest counts, as in a record's facts. Threads are those of the slowest kernel by the
    estimate."""

    def __init__(self, names: Sequence[str], machine: GpuRates) -> None:
        self._machine = machine
        place = {name: i for i, name in enumerate(names)}
        kernels = [f"kernel{n}" for n in range(HOT_KERNELS)]
        self._threads = place["kernel0.threads"]
        self._counted = [[place[f"{k}.{c}"] for k in kernels] for c in ("registers", "shared_bytes")]
        self._used = [i for name, i in place.items() if name.startswith("kernel")]
        self._mean: Matrix = np.zeros(len(self._used))
        self._scale: Matrix = self._mean
        self._weights: Matrix = np.zeros((len(self._used), 2))
        self._offset: Matrix = np.zeros(2)

    def learn(self, features: Features, told: Sequence[Mapping[str, Any] | None]) -> None:
        """Learn from features [n, names] and what the compiler reported of each candidate, None if nothing. A
        log may hold anything: reports that make no sense are left out."""
        demands = [_demand(t) for t in told]
        rows = [i for i, d in enumerate(demands) if d is not None]
        if len(rows) < LEAST:
            return
        known = features[rows]
        departed = np.array([d for d in demands if d is not None]) - self._count(known)
        x = self._inputs(known)
        self._mean, spread = x.mean(axis=0), x.std(axis=0)
        self._scale = np.where(spread > 1e-6, 1.0 / np.maximum(spread, 1e-6), 0.0)
        self._offset = departed.mean(axis=0)
        x = (x - self._mean) * self._scale
        self._weights = np.linalg.solve(
            x.T @ x + RIDGE * np.eye(len(self._used)), x.T @ (departed - self._offset)
        )

    def columns(self, features: Features) -> Features:
        """`NAMES` of candidates, [n, 4]. Before anything is learnt, the space's own counts."""
        x = np.clip((self._inputs(features) - self._mean) * self._scale, -FAR, FAR)
        demand, shared = (np.exp2(self._count(features) + self._offset + x @ self._weights) - (0.0, 1.0)).T
        m, threads = self._machine, np.maximum(features[:, self._threads].astype(np.float64), 1.0)
        room = np.floor(m.registers / (np.ceil(threads / WARP) * WARP) / GRAIN) * GRAIN
        given = np.minimum(demand, np.minimum(room, m.thread_registers))
        spilled, shared = WORD * (demand - given), np.maximum(shared, 0.0)
        held = occupancy(threads, shared, np.ceil(given / GRAIN) * GRAIN, m)
        return np.stack([given, spilled, shared, held], axis=1).astype(np.float32)

    def _count(self, features: Features) -> Matrix:
        """Logarithms of registers and shared bytes as the space counts them, [n, 2]."""
        registers, shared = (features[:, columns].max(axis=1) for columns in self._counted)
        return np.log2(np.stack([np.maximum(registers, 1.0), 1.0 + shared], axis=1).astype(np.float64))

    def _inputs(self, features: Features) -> Matrix:
        amounts = np.nan_to_num(features[:, self._used].astype(np.float64))
        return np.log2(1.0 + np.abs(amounts))


def _demand(told: Mapping[str, Any] | None) -> tuple[float, float] | None:
    """Logarithms of the registers that a thread would take without a limit, and of shared bytes."""
    found = [] if told is None else [told.get(k) for k in ("registers", "spill_bytes", "shared_bytes")]
    sound = [n for n in found if isinstance(n, int) and 0 <= n < 1 << 24]
    if len(sound) < 3 or not sound[0]:
        return None
    registers, spilled, shared = sound
    return math.log2(registers + spilled / WORD), math.log2(1 + shared)
