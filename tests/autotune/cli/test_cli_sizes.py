"""Ranges of sizes on the command line: compared, explained, exported and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from cli_runner import run
from log_filler import fill

import autotune as at
from autotune.cli.sizes import chosen_sizes
from autotune.run.open_kernel import sizes_of_open
from schedules import ops

RANGE = ("--shape", "m=1..24,n=8,k=4", "--threads", 1)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a kernel for a range."""
    db = tmp_path_factory.mktemp("sizes") / "t.db"
    fill(db, [("matmul", {"m": at.dim(1, 24), "n": 8, "k": 4}, 1e-6)])
    return db


def test_sizes_that_are_compared() -> None:
    def chosen(text: str, **sizes: Any) -> list[tuple[int, ...]]:
        workload = ops.workload("matmul", {"n": 8, "k": 4, **sizes})
        return chosen_sizes(text, workload.dag, sizes_of_open(workload).dims)

    one = at.dim(1, 512)
    assert chosen("", m=one) == [(1,), (23,), (512,)]
    assert chosen("37, 1,37", m=one) == [(37,), (1,)]
    two = {"m": at.dim(1, 9), "n": at.dim(2, 4)}
    assert chosen("", **two) == [(1, 2), (5, 3), (9, 4)] and chosen("3x4", **two) == [(3, 4)]
    for text, said in (
        ("0", "0 is outside m=1..512"),
        ("513", "513 is outside"),
        ("3x4", "is no size of"),
        ("x", "x"),
    ):
        with pytest.raises(typer.BadParameter, match=said):
            chosen(text, m=one)


def test_a_range_is_compared_at_some_of_its_sizes(tuned: Path) -> None:
    words = ("bench", "matmul", *RANGE, "--db", tuned, "--duration", "10ms")
    found = run(*words, "--json", "--must-beat", "numpy").json
    assert [x["size"] for x in found["sizes"]] == [{"m": 1}, {"m": 5}, {"m": 24}]
    assert all({r["impl"] for r in x["rows"]} == {"autotune", "numpy"} for x in found["sizes"])
    assert [r["params"]["m"] for x in found["sizes"] for r in x["rows"][:1]] == [1, 5, 24]
    each = [x["ratio"]["numpy"] for x in found["sizes"]]
    assert min(each) <= found["ratio"]["numpy"] <= max(each)
    shown = run(*words, "--sizes", "3,7")
    assert shown.status == 0 and "matmul m=3 n=8 k=4" in shown.out and "m=7" in shown.out
    assert "Over 2 sizes: " in shown.out


def test_sizes_go_with_a_range(tuned: Path) -> None:
    ran = run("bench", "matmul", "--shape", "m=4,n=8,k=4", "--sizes", "3", "--db", tuned)
    assert ran.status == 2 and "--sizes goes with a range" in ran.err
    ran = run("bench", "matmul", *RANGE, "--sizes", "3,25", "--db", tuned)
    assert ran.status == 2 and "25 is outside m=1..24" in ran.err


def test_a_range_is_shown_explained_and_exported(tuned: Path, tmp_path: Path) -> None:
    for command in ("best", "explain"):
        ran = run(command, "matmul", *RANGE, "--db", tuned)
        assert ran.status == 0 and "matmul m=1..24,open n=8 k=4" in ran.out
    assert run("export", "matmul", *RANGE, "--db", tuned, tmp_path / "build").status == 0
    assert "int64_t m);" in (tmp_path / "build" / "matmul.h").read_text("utf-8")


def test_what_is_tuned_for_a_wider_range_is_told(tuned: Path) -> None:
    ran = run("best", "matmul", "--shape", "m=2..9,n=8,k=4", "--threads", 1, "--db", tuned)
    assert ran.status == 1
    assert "stored there for a wider range, which load takes: matmul m=1..24,open n=8 k=4 float32" in ran.err
    ran = run("best", "matmul", "--shape", "m=2..25,n=8,k=4", "--threads", 1, "--db", tuned)
    assert "wider" not in ran.err
