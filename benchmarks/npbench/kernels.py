"""Kernels of a program: plain loops, first picks, or tuned ones."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import autotune as at
from benchmarks.npbench.program import Program

WAYS = ("plain", "first", "tuned")


def kernels(program: Program, p: Any, dtype: str, way: str, db: str | None = None) -> SimpleNamespace:
    """The kernels by name. "plain": loops as they are written. "first": what is picked without a trial.
    "tuned": the best of the log ``db``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is stored
        found = SimpleNamespace(
            **{name: kernel(tensors, way, db) for name, tensors in program.kernels(dtype, p).items()}
        )
    return SimpleNamespace(**vars(found), **program.repeats(found, p))


def kernel(tensors: Any, way: str, db: str | None) -> Any:
    """A kernel of tensors, or of a DAG."""
    if way == "plain":
        return at.build(at.Schedule(tensors), threads=1)
    return at.load(tensors, threads=1, db=db, fallback=True)


def tune(program: Program, p: Any, dtype: str, seconds: float, db: str) -> list[Any]:
    """Tunes the kernels of a program, ``seconds`` for all of them together."""
    found = program.kernels(dtype, p)
    share = seconds / len(found)
    return [
        at.tune(ts, threads=1, budget_s=share, db=db, progress=None, name=f"{program.name}_{name}")
        for name, ts in found.items()
    ]
