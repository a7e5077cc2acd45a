"""The memory between kernels decides where it counts: beyond caches, beyond a limit, and of level graphs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run
from test_measured_rewrites import HERE, of_stacking, qkv, space

import autotune as at
from autotune.models import graph_search, graph_tuning
from autotune.models.graph_choices import ToldTry
from autotune.models.graph_search import ArenaLimits, arena_bytes, decided
from kernels_db import Log


@pytest.mark.parametrize(
    ("before", "after", "limits", "factor"),
    [
        (100, 200, ArenaLimits(), 0.98),
        (100, 200, ArenaLimits(300), 0.98),
        (100, 200, ArenaLimits(150), 0.95),
        (200, 100, ArenaLimits(150), 1.0),
        (200, 100, ArenaLimits(300), 0.98),
        (100, 100, ArenaLimits(50), 0.98),
        (100, 200, ArenaLimits(math.inf, 150), 0.0),
        (300, 200, ArenaLimits(math.inf, 150), 0.98),
    ],
)
def test_how_much_faster_a_side_must_be(before: int, after: int, limits: ArenaLimits, factor: float) -> None:
    assert limits.factor(before, after, 0.98) == factor


def test_caches_are_those_of_all_threads() -> None:
    t = replace(HERE, threads=4, limits=(("l2_bytes", 1000), ("l3_bytes", 3000)))
    assert ArenaLimits.of(t, 5) == ArenaLimits(12000, 5)
    assert ArenaLimits.of(replace(t, limits=(("l2_bytes", 1000),))).cached == 4000
    assert ArenaLimits.of(replace(t, limits=())).cached == math.inf


@pytest.mark.parametrize(
    ("other_s", "limits", "taken"),
    [
        (0.97, ArenaLimits(), True),
        (0.97, ArenaLimits(1), False),
        (0.90, ArenaLimits(1), True),
        (0.90, ArenaLimits(1, 1), False),
    ],
)
def test_a_larger_arena_must_pay(
    other_s: float, limits: ArenaLimits, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, found = space(qkv())
    one = of_stacking(found)
    sizes = {base.choices: 1000}
    monkeypatch.setattr(graph_search, "arena_bytes", lambda r, of=None: sizes.get(r.choices, 2000))
    each = {d: 1.0 / sum(one.usual.values()) for d in one.usual}
    each |= {d: other_s / sum(one.other.values()) for d in one.other}
    _, tried = decided(base, [one], lambda w: each.get(w.digest, 1e-9), limits=limits)
    assert [t.taken for t in tried] == [taken]


@pytest.mark.parametrize(("times", "sizes", "other"), [
    ((1.0, 0.99), (10, 20), False),
    ((1.0, 1.01), (20, 10), True),
    ((1.0, 0.99), (10, 10), True),
    ((1.0, 0.9), (10, 20), True),
    ((1.0, 1.1), (20, 10), False),
])  # fmt: skip
def test_of_level_graphs_the_smaller_stays(
    times: tuple[float, float], sizes: tuple[int, int], other: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    base, found = space(qkv())
    chosen = base.with_choices(base.choices.turned(of_stacking(found).places))
    monkeypatch.setattr(graph_tuning, "_program", lambda *args: args[0])
    monkeypatch.setattr(graph_tuning, "_in_turns", lambda programs: times)
    monkeypatch.setattr(graph_tuning, "arena_bytes", lambda r: sizes[r is chosen])
    with Log(tmp_path / "t.db") as log:
        kept, told = graph_tuning.confirmed(base, chosen, HERE, log, "")
    assert (kept is chosen) == other
    assert (told["usual_bytes"], told["other_bytes"]) == sizes


def test_both_sizes_are_told() -> None:
    base, found = space(qkv(2))
    one = of_stacking(found)
    other = base.with_choices(base.choices.turned(one.places))
    assert one.arenas == (arena_bytes(base), arena_bytes(other)) and one.arenas[0] > 0
    told = ToldTry("a", 1e-3, 2e-3, False, (1000, 2500))
    assert "arena 2.5 KB (without: 1 KB)" in str(told)
    assert "arena" not in str(replace(told, arenas=(5, 5)))
    for wrong in ([1], [1, -1], [True, 1], "12", [1.0, 2], [1, 10**30]):
        read: Any = ToldTry.from_json({"what": "a", "arenas": wrong})
        assert read.arenas == (0, 0)
    read = ToldTry.from_json({"what": "a", "arenas": [3, 4]})
    assert read is not None and read.arenas == (3, 4)


def test_a_limit_is_a_number_of_bytes() -> None:
    for wrong in (-1, "1MB", 1.5):
        with pytest.raises(at.SettingsError, match="arena_bytes is .* a number of bytes, 0 or more"):
            at.tune_model(qkv(), threads=1, budget_s=30.0, arena_bytes=wrong)  # type: ignore[arg-type]


def test_a_limit_on_the_command_line_goes_with_a_model() -> None:
    refused = run("tune", "matmul", "--shape", "m=8,n=8,k=8", "--arena-bytes", 10)
    assert refused.status == 2 and "goes with a model alone" in refused.err
