"""The table of functions: what a row means is numpy's, and errors of arguments change results by at most what
it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.codegen.llvm import vector_math
from schedules import te
from schedules.functions import FUNCTIONS

POINTS = np.concatenate([[0.0, 1e-30, 1e-9, 1.0, 2.0], np.logspace(-6, 3, 40), np.arange(1, 9) * math.pi / 4])
ERRORS = np.array([1e-7, 1e-5, 1e-3, 0.1, 0.9, 1.5, 30.0])  # of arguments of any size
WITHIN = np.linspace(-1, 1, 33)


def test_every_row_has_a_function_of_te_and_code_for_cpus() -> None:
    assert vector_math.FUNCTIONS == tuple(FUNCTIONS)
    assert all(callable(getattr(te, name)) for name in FUNCTIONS)
    with np.errstate(all="ignore"):
        for name, row in FUNCTIONS.items():
            for dtype in ("float32", "float64"):
                x = np.array([-2.5, -0.0, 0.5, 1.5, np.inf, np.nan], dtype)
                assert row.name == name and row.of(*[x] * row.arity).dtype == dtype, name


def test_what_is_numpys_has_its_name() -> None:
    x = np.array([0.3, 1.7, 2.5])
    own = {"erf": np.vectorize(math.erf), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "pow": np.power}
    own["tf32"] = lambda x: np.round(x * 1024 / 2 ** np.floor(np.log2(x))) / 1024 * 2 ** np.floor(np.log2(x))
    own |= {n: getattr(np, f"arc{n[1:]}") for n in FUNCTIONS if n.startswith("a") and n != "abs"}
    for name, row in FUNCTIONS.items():
        numpys = own.get(name) or getattr(np, name)
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(row.of(*[x] * row.arity), numpys(*[x] * row.arity), rtol=1e-15)


@pytest.mark.parametrize("name", [n for n, row in FUNCTIONS.items() if row.change is not None])
def test_errors_of_arguments_are_handed_on(name: str) -> None:
    """No argument within its error has a result further from that of its middle than the row says, but where
    anything is right."""
    row = FUNCTIONS[name]
    assert row.change is not None
    x = np.concatenate([POINTS, -POINTS])
    rng = np.random.default_rng(0)
    columns: list[np.ndarray] = []
    if row.arity == 1:
        a, e = (v.ravel() for v in np.meshgrid(x, ERRORS))
        columns, errors = [a], [e]
    else:
        a, b = (v.ravel() for v in np.meshgrid(x, np.concatenate([np.arange(-3, 4), x[::7]])))
        columns, errors = [a, b], [rng.choice([0.0, *ERRORS], len(a)) for _ in "xy"]
    with np.errstate(all="ignore"):
        middle = row.of(*columns)
        most = np.broadcast_to(row.change(*columns, *errors, middle), middle.shape)
        anything = row.open(*columns, *errors) | np.isinf(most)
        for _ in WITHIN:
            moved = [c + e * rng.choice(WITHIN, len(c)) for c, e in zip(columns, errors, strict=True)]
            got = row.of(*moved)
            off = np.abs(got - middle)
            wide = sum(np.where(e > 0, np.abs(c) / e, 0) for c, e in zip(columns, errors, strict=True))
            noise = 1e-12 * most + 1e-15 * (np.abs(middle) + most * wide)  # of rounding here
            wrong = ~anything & ~(off <= most + noise) & ~(got == middle)
            at = np.flatnonzero(wrong & ~(np.isnan(got) & np.isnan(middle)))[:1]
            assert not len(at), (name, [c[at] for c in columns], [e[at] for e in errors], off[at], most[at])
    assert anything.mean() < 0.8, "some arguments settle the result"
