"""The rows of a profile: whose time is whose, with times that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.models import profile as module
from autotune.models.outline import KernelCall
from autotune.models.profile import Profile, profile
from schedules import ops
from schedules.graph.graph import Island
from schedules.model import Step, Trace
from schedules.units import percent

TUNED = Trace((Step("unroll", (("loop", "i"),)),))
SHAPES = [("matmul", {"m": 8, "n": 8, "k": 8}), ("softmax", {"m": 8, "n": 8})]
KERNELS = [
    SimpleNamespace(
        workload=ops.workload(*shape), chosen_by=by, target=SimpleNamespace(threads=threads), trace=TUNED
    )
    for shape, by, threads in zip(SHAPES, ("log", "in place"), (1, 1))
]
STEPS = (
    KernelCall(1, (), ("t",), ("first", "second")),
    Island("i", "NonZero", (), ()),
    KernelCall(0, (), ("u", "v")),
    KernelCall(1, (), ("w",), ("last",)),
)
# Nanoseconds: calls of the warm run and of three others, and of the island.
CALLS = ([9_000, 9_000, 9_000], [1_000, 5_000, 30_000], [3_000, 4_000, 10_000], [2_000, 90_000, 20_000])
ISLANDS = (9_000, 60_000, 40_000, 50_000)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each run was timed in CPU time."""
    seen: list[bool] = []

    class Times:
        def __init__(self, outline: Any, cpu_clock: bool) -> None:
            seen.append(cpu_clock)
            self.calls, self.islands = [0, 0, 0], {"i": 0}

    monkeypatch.setattr(module, "Times", Times)
    return seen


def profiled(kernels: list[Any] = KERNELS, copies: tuple[str, ...] = ()) -> Profile:
    runs = iter(zip(CALLS, ISLANDS))

    def run(times: Any) -> None:
        times.calls[:], times.islands["i"] = next(runs)

    program: Any = SimpleNamespace(outline=SimpleNamespace(steps=STEPS), kernels=kernels)
    return profile(program, [4e-6, None], run, 3, copies)


def test_steps_that_run_as_plain_loops_are_marked(clocks: list[bool]) -> None:
    of_log, of_place = KERNELS
    found = profiled([of_log, SimpleNamespace(**vars(of_place) | {"trace": Trace(), "chosen_by": "default"})])
    assert [r.plain for r in found.rows] == [True, False, False, True]
    *_, total, remark = str(found).splitlines()
    share = sum(r.share for r in found.rows if r.plain)
    assert "plain loops" not in total
    assert (
        remark == f"{percent(share)} in plain loops, which no schedule makes faster: tune first, second, last"
    )
    assert str(found).count("default, plain loops") == 2
    assert "plain loops" not in str(profiled())


def test_each_row_is_of_its_step(clocks: list[bool]) -> None:
    found = profiled()
    rows = found.rows
    assert [r.group for r in rows] == [0, 1, 2, 3]
    assert [r.task for r in rows] == [1, None, 0, 1]
    assert [r.nodes for r in rows] == [("first", "second"), ("i",), ("u",), ("last",)]
    assert [r.chosen_by for r in rows] == ["in place", "island", "log", "in place"]
    assert "softmax" in rows[0].what and rows[1].what == "NonZero" and "matmul" in rows[2].what
    assert [r.in_place_s for r in rows] == pytest.approx([2e-6, 50e-6, 5e-6, 20e-6])  # medians, no warm run
    assert [r.tuned_s for r in rows] == [None, None, 4e-6, None]
    assert [r.ratio for r in rows] == [None, None, pytest.approx(1.25), None]
    assert found.total_s == pytest.approx(77e-6)
    assert [r.share for r in rows] == pytest.approx([2 / 77, 50 / 77, 5 / 77, 20 / 77])
    assert found.islands == (rows[1],) and found.in_place_over_tuned == pytest.approx(1.25)
    assert found.call_s > 0 and clocks == [True] * 4


def test_the_text_has_a_line_for_each_row(clocks: list[bool]) -> None:
    head, *lines, sums, copied = str(profiled(copies=("x", "y"))).splitlines()
    assert head.split() == ["in", "place", "tuned", "ratio", "share", "chosen", "by", "nodes"]
    cells = [line.split() for line in lines]
    assert cells[0] == ["0", "0.0020", "2.6%", "in", "place", "first", "second"]
    assert cells[1] == ["1", "0.0500", "64.9%", "island", "i"]
    assert cells[2] == ["2", "0.0050", "0.0040", "1.25", "6.5%", "log", "u"]
    assert sums == "0.0770 ms in 4 steps; in place ÷ tuned: 1.25"
    assert copied == "copied, since they lie otherwise in memory than the model reads them: x, y"


def test_kernels_of_several_threads_are_timed_by_the_wall(clocks: list[bool]) -> None:
    other = SimpleNamespace(**{**vars(KERNELS[1]), "target": SimpleNamespace(threads=2)})
    profiled([KERNELS[0], other])
    assert clocks == [False] * 4


def test_where_nothing_is_tuned_there_is_no_ratio() -> None:
    assert Profile((), 0.0, 0.0, ()).in_place_over_tuned is None
    assert "no kernel was tuned" in str(Profile((), 0.0, 0.0, ()))
