"""What follows from the architecture of a CUDA target, and that logs know the target as before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune import backends
from autotune.targets import from_name
from autotune.targets.names import described
from schedules.expr import Const
from schedules.gpu_architectures import (
    EMULATED,
    OPT_IN_SHARED,
    STATIC_SHARED,
    compiled_for,
    features,
    number,
    shared_room,
)
from schedules.ir import Buffer
from schedules.ir.grid import shared_places
from schedules.model import Target
from schedules.space.estimate.gpu.limits import occupancy
from schedules.space.estimate.gpu.rates import GpuRates

# (described GPU, bytes that a block may share, features), as NVIDIA's tables have them.
GPUS = {
    "v100": (98304, ()),
    "t4": (65536, ("sm_75",)),
    "a100": (166912, ("sm_75", "sm_80")),
    "rtx4090": (101376, ("sm_75", "sm_80", "sm_86", "sm_89")),
    "h100": (232448, ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")),
    "h200": (232448, ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")),
    "b200": (232448, ("sm_100", "sm_100a", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90")),
    "cuda-emulator": (49152, ()),
    "adreno-740": (32768, ()),
}


@pytest.mark.parametrize("name", GPUS)
def test_an_architecture_tells_instructions_and_memory(name: str) -> None:
    target = from_name(name)
    assert (shared_room(target), features(target)) == GPUS[name]
    assert GpuRates.of(target).shared == GPUS[name][0] <= GpuRates.of(target).sm_shared


def test_emulated_gpus_have_what_they_stand_for() -> None:
    for name in ("a100", "h100"):
        here, there = from_name(f"{name}-emulator"), from_name(name)
        assert (features(here), shared_room(here)) == (features(there), shared_room(there))
        assert replace(here, arch=there.arch) == there and here.arch == f"{there.arch}-{EMULATED}"
        assert backends.of(here) is backends.named("emulator")
        assert backends.of(there) is backends.named("cuda")


def test_every_described_gpu_is_known() -> None:
    found = [t for t in map(from_name, described()) if t.kind == "cuda"]
    assert {number(t) for t in found if t.arch != EMULATED} <= set(OPT_IN_SHARED)


def test_targets_are_what_logs_know_them_by() -> None:
    """Logs have digests of targets: a number more, and what was tuned before would not be found."""
    digests = {name: from_name(name).digest for name in ("a100", "h100", "cuda-emulator")}
    assert digests == {
        "a100": "9d05b16bc61c568a04624a1ad49663e3",
        "h100": "aee7256a8f19d4cc4f2406d4f9197bd6",
        "cuda-emulator": "b5ed30aea678fe6d7dd098c30879c605",
    }


def test_a_limit_that_a_target_states_holds() -> None:
    h100 = from_name("h100")
    limits = dict(h100.limits)
    for stated in (16384, 100_000):
        own = replace(h100, limits=tuple(sorted({**limits, "shared_bytes": stated}.items())))
        assert shared_room(own) == stated
    assert shared_room(Target("cuda", "sm_90")) == 232448
    assert shared_room(Target("cuda", "sm_999")) == shared_room(Target("cuda", "sm_90-fast")) == STATIC_SHARED
    assert shared_room(Target("opencl", "sm_90")) == STATIC_SHARED
    assert {"sm_80", "sm_90"} < {*features(Target("cuda", "sm_999"))}
    assert not any(f.endswith("a") for f in features(Target("cuda", "sm_999")))


@pytest.mark.parametrize(
    ("name", "of_one", "of_two"), [("h100", 227, 113), ("a100", 163, 81), ("rtx4090", 99, 49), ("t4", 64, 32)]
)
def test_blocks_that_share_a_processor_take_a_little_more(name: str, of_one: int, of_two: int) -> None:
    """A block has 1 KB less than a processor, from compute capability 8.0 on: the table of the guide."""
    m = GpuRates.of(from_name(name))
    full = m.sm_threads
    for blocks, most in ((1, of_one), (2, of_two)):
        held = [occupancy(np.float64(128), np.float64((most << 10) + n), np.float64(32), m) for n in (0, 1)]
        assert held[0] * full == blocks * 128 > held[1] * full
    assert GpuRates.of(Target("cuda", "sm_90")).sm_shared == 232448 + 1024


def test_own_features_of_a_target_stay() -> None:
    v4 = from_name("x86-64-v4")
    assert features(v4) == v4.features
    assert "mine" in features(Target("cuda", "sm_80", features=("mine",)))


@pytest.mark.parametrize(
    ("arch", "code"),
    [("sm_90", "sm_90a"), ("sm_90a", "sm_90a"), ("sm_100", "sm_100a"), ("sm_80", "sm_80"), ("emulator",) * 2],
)
def test_code_is_for_all_instructions_of_an_architecture(arch: str, code: str) -> None:
    assert compiled_for(arch) == code


def test_shared_arrays_lie_apart_and_swizzled_ones_first() -> None:
    def buffer(name: str, rows: int, columns: int, swizzle: int = 0) -> Buffer:
        return Buffer(name, (Const(rows), Const(columns)), "float16", "shared", swizzle=swizzle)

    held = [buffer("a", 3, 5), buffer("b", 64, 64, 128), buffer("c", 1, 1), buffer("d", 8, 64, 128)]
    places, size = shared_places(held)
    assert places == {"b": 0, "d": 8192, "a": 9216, "c": 9248} and size == 9250
    assert shared_places([]) == ({}, 0)
