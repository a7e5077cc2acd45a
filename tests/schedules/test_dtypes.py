"""The table of dtypes: what numpy knows of them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from schedules.dtypes import DTYPES, FLOATS, computed, is_float, is_integer, is_storage


@pytest.mark.parametrize("name", DTYPES)
def test_a_row_is_what_numpy_has(name: str) -> None:
    row = DTYPES[name]
    assert row.name == name and row.numpy == np.dtype(name) and row.itemsize == row.numpy.itemsize
    assert is_float(name) == (name in FLOATS) == (row.kind == "float") != is_integer(name)
    assert is_storage(name) == row.is_storage == (computed(name) != name)
    assert not DTYPES[computed(name)].is_storage
    if is_float(name):
        info = np.finfo(name)
        assert (row.largest, row.epsilon, row.tiny) == (info.max, info.eps, info.tiny)
    else:
        ends = np.iinfo(name)
        assert (row.range[0], row.range[-1]) == (ends.min, ends.max)


def test_an_index_and_a_condition_are_no_dtypes_of_tensors() -> None:
    for name in ("index", "bool", "float8", ""):
        assert not (is_float(name) or is_integer(name) or is_storage(name)) and computed(name) == name


def test_the_table_needs_no_numpy() -> None:
    code = "import sys; from schedules.dtypes import DTYPES; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
