"""Arrays that begin with a line, and those that are kept beside each other."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from autotune.codegen.runtime import aligned
from schedules.model import LINE


@pytest.mark.parametrize("make", [aligned.zeros, aligned.kept_zeros])
@pytest.mark.parametrize("shape", [(), (1, 3), (7, 5), (100, 333), (1031, 1033)])
def test_arrays_are_zeros_and_begin_with_a_line(make, shape: tuple[int, ...]) -> None:  # type: ignore[no-untyped-def]
    a = make(shape, "float32")
    assert (a.shape, a.dtype, a.ctypes.data % LINE) == (shape, np.float32, 0)
    assert a.flags.c_contiguous and a.flags.writeable and not a.any()


def test_kept_arrays_lie_beside_each_other_and_apart() -> None:
    own = [aligned.kept_zeros((n,), "uint8") for n in (aligned.LEAST, aligned.LEAST + 1, 3 * aligned.LEAST)]
    starts = [a.ctypes.data for a in own]
    for n, a in enumerate(own):
        a[:] = n + 1
    assert all((a == n + 1).all() for n, a in enumerate(own))
    assert starts[1] - starts[0] == aligned.LEAST and starts[2] - starts[1] == aligned.LEAST + LINE


def test_the_memory_of_the_last_one_is_used_again_when_nobody_has_it() -> None:
    first = aligned.kept_zeros((aligned.LEAST,), "uint8")
    a = aligned.kept_zeros((2 * aligned.LEAST,), "uint8")
    a[:] = 7
    at, view = a.ctypes.data, a[5:].view("int8").reshape(-1)
    del a
    gc.collect()
    b = aligned.kept_zeros((2 * aligned.LEAST,), "uint8")
    assert b.ctypes.data != at and (view == 7).all(), "a view still has it"
    del view, b
    gc.collect()
    c = aligned.kept_zeros((3 * aligned.LEAST,), "uint8")
    assert not c.any() and not first.any()


def test_a_full_block_is_followed_by_another() -> None:
    count = aligned.BLOCK // aligned.MOST + 2
    many = [aligned.kept_zeros((aligned.MOST - 1,), "uint8") for _ in range(count)]
    for n, a in enumerate(many):
        a[:: 1 << 12] = n
    assert all((a[:: 1 << 12] == n).all() for n, a in enumerate(many))
