"""The algebra of merging: the same log whatever the order, however often, and from wherever."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_cases import MACHINE, TARGETS, add, copy_of, exported, fill, measured, scratch

from kernels_db import Log

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """An empty log, and one with two runs, both to be copied."""
    folder = tmp_path_factory.mktemp("log")
    with Log(folder / "empty.db"):
        pass
    with Log(folder / "runs.db") as log:
        runs = [log.start_run(copy_of(8, "custom"), t, MACHINE, seed=0).uid for t in TARGETS[:2]]
    return folder / "empty.db", folder / "runs.db", runs


one_log = st.fixed_dictionaries(
    {
        "records": st.sets(st.tuples(st.integers(0, 1), st.integers(0, 4)), max_size=6),
        "finished": st.sets(st.integers(0, 1)),
        "state": st.sampled_from(("done", "interrupted")),
        "op": st.sampled_from(("custom", "copy", "permute")),
        "extra": st.none() | st.integers(20, 22),
        "as_database": st.booleans(),
    }
)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=SLOW)
@given(parts=st.lists(one_log, min_size=3, max_size=3))
def test_merging_is_commutative_associative_and_idempotent(
    base: tuple[Path, Path, list[str]], parts: list[dict[str, Any]]
) -> None:
    empty, template, runs = base
    with scratch() as folder:
        files = []
        for i, part in enumerate(parts):
            path = Path(shutil.copy(template, folder / f"{i}.db"))
            with Log(path) as log:
                add(log, copy_of(8, part["op"]))
                if part["extra"]:
                    fill(log, 2, copy_of(part["extra"]))
                for r, t in sorted(part["records"]):
                    log.add(measured(runs[r], t))
                for r in sorted(part["finished"]):
                    log.finish_run(runs[r], part["state"])
                log.export(folder / f"{i}.jsonl")
            files.append(path if part["as_database"] else folder / f"{i}.jsonl")
        a, b, c = files
        count = iter(range(100))

        def merged(*sources: Path) -> Path:
            path = Path(shutil.copy(empty, folder / f"m{next(count)}.db"))
            with Log(path) as log:
                for source in sources:
                    assert log.merge(source).refused == {}
                log.export(path.with_suffix(".jsonl"))
            return path.with_suffix(".jsonl")

        whole = merged(a, b, c).read_bytes()
        assert merged(c, b, a).read_bytes() == whole
        assert merged(b, a, c, c, a, b).read_bytes() == whole
        assert merged(a, merged(b, c)).read_bytes() == whole
        assert merged(merged(a, b), c).read_bytes() == whole
        assert merged(a, a).read_bytes() == merged(a).read_bytes()
        with Log(folder / "0.db") as log:  # into a log that has records already
            log.merge(b)
            log.merge(c)
            assert exported(log).encode() == whole


def five_machines(folder: Path) -> list[Path]:
    """Shards of one log: five machines that tuned the same tasks, each in several files, overlapping."""
    shards = []
    for m in range(5):
        with Log(folder / f"machine{m}.db") as log:
            for t, target in enumerate(TARGETS):
                run = log.start_run(copy_of(8 + t), target, {**MACHINE, "cpu": f"CPU {m}"}, seed=m).uid
                log.export(folder / f"{m}{t}started.jsonl")  # the run goes on in another shard
                log.add_all(measured(run, i) for i in range(4))
                log.export(folder / f"{m}{t}.jsonl")
                log.add(measured(run, 1, kind="final", created="2026-02-01T00:00:00.000000Z"))
                log.finish_run(run, "done" if m % 2 else "interrupted")
                shards += [folder / f"{m}{t}started.jsonl", folder / f"{m}{t}.jsonl"]
        shards.append(folder / f"machine{m}.db")
    return shards


@pytest.mark.slow
def test_shuffled_shards_of_five_machines_make_one_log_in_any_order(tmp_path: Path) -> None:
    shards, rng, found = five_machines(tmp_path), random.Random(20), set()
    for order in range(8):
        rng.shuffle(shards)
        with Log(tmp_path / f"merged{order}.db") as log:
            new = sum(log.merge(shard).new for shard in shards)
            assert new == log.stats()["records"] == 5 * 3 * 5
            found.add(exported(log))
    assert len(found) == 1
    runs = [json.loads(x) for x in found.pop().splitlines() if '"type":"run"' in x]
    assert len(runs) == 15 and {r["state"] for r in runs} == {"done", "interrupted"}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_log_in_a_repository_merges(tmp_path: Path) -> None:
    """Two branches add to one export; with merge=union git keeps both, and importing makes it canonical."""

    def git(*words: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main")
        done = subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    git("init", "-q")
    (tmp_path / ".gitattributes").write_text("kernels.jsonl merge=union\n")
    (tmp_path / ".gitignore").write_text("*.db*\n")
    with Log(tmp_path / "a.db") as a, Log(tmp_path / "b.db") as b, Log(tmp_path / "both.db") as both:
        fill(a, 3)
        a.export(tmp_path / "kernels.jsonl")
        b.merge(tmp_path / "kernels.jsonl")
        git("add", "-A")
        git("commit", "-qm", "first")
        git("checkout", "-qb", "theirs")
        fill(b, 3)
        fill(b, 3, copy_of(9), TARGETS[1])
        b.export(tmp_path / "kernels.jsonl")
        git("commit", "-qam", "theirs")
        git("checkout", "-q", "main")
        run = a.runs()[0].uid
        a.add(measured(run, 50))
        a.export(tmp_path / "kernels.jsonl")
        assert git("diff", "--numstat").split()[:2] == ["1", "0"]  # a record is a line
        git("commit", "-qam", "ours")
        git("merge", "-q", "-m", "both", "theirs")
        assert both.merge(tmp_path / "kernels.jsonl").refused == {}
        a.merge(tmp_path / "b.db")
        assert exported(both) == exported(a)
