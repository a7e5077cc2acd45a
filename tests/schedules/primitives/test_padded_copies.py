"""`pack` with an empty order: a copy that is padded in its own dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from schedules import te
from schedules.errors import ScheduleError
from schedules.ir import interp
from schedules.passes.lower import lower
from schedules.primitives.pack import Pack
from schedules.schedule import Schedule


def _sums() -> Schedule:
    x, k = te.placeholder((5, 7), "float32", "x"), te.reduce_axis(7, "k")
    return Schedule(te.dag([x, te.compute((5,), lambda i: te.sum(x[i, k], axis=k), "y")]))


@pytest.mark.parametrize("tiles", [[4, 4], [0, 3], [8, 0], [5, 7]])
def test_a_padded_copy_means_the_same(tiles: list[int]) -> None:
    s = _sums()
    copy = s.cache_read("y", "x")
    assert s.pack(copy, tiles, []) == ["x_global_p0", "x_global_p1"]
    shape = [int(n.value) for n in s.nest.buffer(copy).shape]  # type: ignore[attr-defined]
    assert shape == [-(-n // t) * t if t else n for n, t in zip((5, 7), tiles, strict=True)]
    x = np.arange(35, dtype="float32").reshape(5, 7)
    for program in (s.nest, lower(s.nest)):
        y = np.full(5, np.nan, "float32")
        interp.run(program, {"x": x, "y": y})
        np.testing.assert_array_equal(y, x.sum(1))


def test_it_is_said_in_words_and_replayed() -> None:
    s = _sums()
    s.pack(s.cache_read("y", "x"), [4, 0], [])
    said = Pack.of("x_global", [4, 0], []).sentence()
    assert said == "Pad `x_global` with zeros to whole tiles (dimension 0 by 4)."
    assert Schedule.replay(s.dag, s.trace).nest == s.nest


def test_an_order_of_some_dimensions_is_refused() -> None:
    s = _sums()
    s.cache_read("y", "x")
    with pytest.raises(ScheduleError, match=r"order \[0\] is not a permutation of 0..2"):
        s.pack("x_global", [4, 0], [0])
