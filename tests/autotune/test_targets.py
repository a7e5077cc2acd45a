"""Targets: detection, limits, parsing and what may run here."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autotune as at
from autotune import backends, targets
from autotune.backends.building.generator_version import this_machine
from autotune.platform import cpus, machine
from autotune.targets import facts, features
from schedules.model import Target


def test_detect_round_trips_and_runs_here() -> None:
    target = targets.detect()
    assert Target.from_json(target.json) == target
    assert target.features == tuple(sorted(target.features))
    assert target.threads == targets.usable_cpus() >= 1
    assert target.limit("vector_bytes") in (16, 32, 64)
    assert target.limit("l1_bytes") >= 8192 <= target.limit("l2_bytes")
    assert backends.runnable(target)


def test_threads_are_part_of_the_identity_and_checked() -> None:
    assert targets.detect(1).threads == 1
    for bad in (0, -1, 10_000, True, 1.5):
        with pytest.raises(targets.TargetError, match="threads"):
            targets.detect(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [0, -1, True, 2.5, "2"])
@pytest.mark.parametrize("target", ["cpu", "x86-64-v3", Target("cpu", "znver3")])
def test_threads_that_cannot_be_are_refused_for_any_target(target: str | Target, threads: Any) -> None:
    with pytest.raises(at.TargetError, match="is not a positive integer"):
        backends.parse(target, threads)
    if isinstance(target, Target):
        with pytest.raises(at.TargetError, match="is not a positive integer"):
            backends.parse(replace(target, threads=threads))


@pytest.mark.parametrize("threads", ["0", "1e400", "-3", "null"])
def test_a_target_file_with_impossible_threads_is_refused(threads: str, tmp_path: Path) -> None:
    text = Target("cpu", "znver3").json.replace('"threads":1', f'"threads":{threads}')
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(at.TargetError, match="malformed target"):
        backends.parse(str(tmp_path / "t.json"))


def test_a_missing_extension_or_family_is_not_runnable() -> None:
    target = targets.detect(1)
    flags = machine.host_flags()
    if flags is not None and "x86_64" in target.triple:
        absent = next(
            n for n in ("avx512fp16", "amx-fp16", "xop", "fma4") if features.X86_NAMES.get(n, n) not in flags
        )
        assert not backends.runnable(replace(target, features=(*target.features, absent)))
    assert not backends.runnable(replace(target, triple="riscv64-unknown-linux-gnu"))
    assert not backends.runnable(replace(target, kind="cuda"))


def test_parse_accepts_names_files_and_targets(tmp_path: Path) -> None:
    here = targets.detect(1)
    assert backends.parse("cpu", 1) == backends.parse(None, 1) == here
    assert backends.parse(replace(here, arch="other"), 1).arch == "other"
    assert backends.parse("x86-64-v3").arch == "x86-64-v3"
    assert backends.parse("x86-64-v3", 2).threads == 2
    file = tmp_path / "mine.json"
    file.write_text(here.json)
    assert backends.parse(str(file)) == here
    for bad, message in (
        ("gpu9", "known: cpu, .*cuda, opencl, a100, .*x86-64-v3"),
        (str(tmp_path / "no.json"), "cannot be read"),
        (3, "not a name"),
    ):
        with pytest.raises(targets.TargetError, match=message):
            backends.parse(bad)  # type: ignore[arg-type]
    file.write_text("{}")
    with pytest.raises(targets.TargetError, match="malformed"):
        backends.parse(str(file))


@pytest.mark.parametrize(
    ("features", "width", "count"),
    [(("avx", "avx2", "avx512f"), 64, 32), (("avx",), 32, 16), (("sse2",), 16, 16), (("neon",), 16, 32)],
)
def test_vector_unit(features: tuple[str, ...], width: int, count: int) -> None:
    assert facts.vector_unit(features) == {"vector_bytes": width, "vector_registers": count}


def test_caches_divide_what_cores_share(tmp_path: Path) -> None:
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "thread_siblings_list").write_text("0,8\n")
    for i, (level, kind, size, shared) in enumerate(
        [("1", "Data", "48K", "0,8"), ("1", "Instruction", "32K", "0,8"), ("2", "Unified", "2M", "0,8"),
         ("3", "Unified", "32M", "0-15")]
    ):  # fmt: skip
        folder = tmp_path / "cache" / f"index{i}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(text + "\n")
    assert facts.caches(tmp_path / "cache") == {
        "l1_bytes": 48 << 10,
        "l2_bytes": 2 << 20,
        "l3_bytes": 4 << 20,
    }
    assert facts.caches(tmp_path / "absent") == facts.DEFAULT_CACHES


def test_quota_of_either_cgroup_version(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "cpu").mkdir()
    membership.write_text("0::/a/b\n")
    assert cpus.quota(tmp_path, membership) is None
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert cpus.quota(tmp_path, membership) == 1.5
    membership.write_text("4:cpu,cpuacct:/x\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("200000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cpus.quota(tmp_path, membership) == 2.0


@pytest.mark.parametrize(("limit", "usable"), [(None, 4), (8.0, 4), (1.5, 2), (1.2, 1), (0.1, 1)])
def test_affinity_is_cut_by_a_quota(
    limit: float | None, usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 5, 7}, raising=False)
    monkeypatch.setattr(cpus, "quota", lambda: limit)
    assert cpus.usable_cpus() == usable


def test_memory_left_of_either_cgroup_version(tmp_path: Path) -> None:
    """The tightest limit at any level counts. Files that were read ahead are not taken for good."""
    membership = tmp_path / "cgroup"
    (tmp_path / "a" / "b").mkdir(parents=True)
    membership.write_text("0::/a/b\n")
    assert cpus.memory_left(tmp_path, membership) is None
    for folder, most, used in (("a", "9000", "4000"), ("a/b", "max", "3000")):
        (tmp_path / folder / "memory.max").write_text(f"{most}\n")
        (tmp_path / folder / "memory.current").write_text(f"{used}\n")
    assert cpus.memory_left(tmp_path, membership) == 5000
    (tmp_path / "a" / "memory.stat").write_text("anon 100\ninactive_file 1500\nactive_file 700\n")
    assert cpus.memory_left(tmp_path, membership) == 6500
    (tmp_path / "a" / "b" / "memory.high").write_text("3500\n")
    assert cpus.memory_left(tmp_path, membership) == 500
    (tmp_path / "a" / "b" / "memory.high").write_text("100\n")
    assert cpus.memory_left(tmp_path, membership) == 0
    membership.write_text("4:memory:/x\n5:cpu:/a\n")
    (tmp_path / "memory" / "x").mkdir(parents=True)
    for folder, most in (("memory", str((1 << 63) - 4096)), ("memory/x", "8000")):  # the first has none
        (tmp_path / folder / "memory.limit_in_bytes").write_text(most)
        (tmp_path / folder / "memory.usage_in_bytes").write_text("5000")
        (tmp_path / folder / "memory.stat").write_text("inactive_file 9\ntotal_inactive_file 1000\n")
    assert cpus.memory_left(tmp_path, membership) == 4000


def test_machine_names_nobody() -> None:
    import getpass
    import socket

    text = json.dumps(this_machine())
    assert "cpu" in json.loads(text)
    assert "/" not in text.replace("CPU/", "") or "home" not in text
    assert len(socket.gethostname()) < 4 or socket.gethostname() not in text
    assert f'"{getpass.getuser()}"' not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threads": 10**9}, "expected a whole number from 1.*got 1000000000"),
        ({"threads": True}, "expected a whole number from .*got True"),
        ({"threads": "2"}, "expected a whole number from .*got '2'"),
        ({"threads": 2.0}, "expected a whole number from .*got 2.0"),
        ({"limits": {"vector_bytes": 0}}, "expected a whole number from 1.*got 0"),
        ({"limits": {"l1_bytes": -(10**40)}}, "expected a whole number"),
        ({"limits": {"l1_bytes": None}}, "expected a whole number from .*got None"),
        ({"limits": []}, "malformed target"),
        ({"triple": "x\n@evil"}, "expected a name"),
        ({"features": ["avx512f\n"]}, "expected a name"),
        ({"features": None}, "malformed target"),
        ({"arch": "a" * 1000}, "expected a name"),
        ({"kind": ["cpu"]}, "expected a name"),
    ],
)
def test_a_target_of_a_file_is_held_to_types_and_ranges(change: dict[str, Any], message: str) -> None:
    text = json.loads(targets.detect(1).json)
    assert Target.from_json(json.dumps(text)) == targets.detect(1)
    with pytest.raises(ValueError, match=message):
        Target.from_json(json.dumps({**text, **change}))
