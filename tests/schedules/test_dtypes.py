"""The table of dtypes: what numpy knows of them."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from schedules.dtypes import DTYPES, FLOATS, NUMBERS, computed, is_float, is_integer, is_storage, offset_to


@pytest.mark.parametrize("name", DTYPES)
def test_a_row_is_what_numpy_has(name: str) -> None:
    row = DTYPES[name]
    assert row.name == name and row.numpy == np.dtype(name) and row.itemsize == row.numpy.itemsize
    assert row.numpy.name == name
    assert is_float(name) == (name in FLOATS) == (row.kind == "float")
    assert is_integer(name) == (row.kind == "int") == (name in NUMBERS and name not in FLOATS)
    assert is_storage(name) == row.is_storage == (computed(name) != name)
    assert not DTYPES[computed(name)].is_storage
    if is_float(name):
        info = ml_dtypes.finfo(name)
        assert (row.largest, row.epsilon, row.tiny) == (info.max, info.eps, info.tiny)
    elif name == "bool":
        assert list(row.range) == [False, True]
    else:
        ends = np.iinfo(name)
        assert (row.range[0], row.range[-1]) == (ends.min, ends.max)


def test_an_index_is_no_dtype_of_tensors() -> None:
    for name in ("index", "float8", ""):
        assert not (is_float(name) or is_integer(name) or is_storage(name)) and computed(name) == name


def test_the_table_needs_no_numpy() -> None:
    code = "import sys, schedules.dtypes; assert not {'numpy', 'ml_dtypes'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_leads_from_one_integer_dtype_to_another() -> None:
    """128 added to all int8 is all uint8. Of other widths, and of floats, nothing leads there."""
    assert (offset_to("int8", "uint8"), offset_to("uint8", "int8"), offset_to("int8", "int8")) == (
        128, -128, 0,
    )  # fmt: skip
    for old, new in (("int8", "int16"), ("int16", "int8"), ("float32", "int32"), ("int16", "bfloat16")):
        assert offset_to(old, new) is None
