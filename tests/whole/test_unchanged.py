"""What has no open size stays as it is, byte for byte: digests, spaces, features, code, and what callers of C
see. `unchanged` makes the hashes, and says how they are renewed where a change is meant."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import unchanged

STORED = unchanged.stored()
GROUPS = unchanged.groups()
# Those that a run of the fast tests makes: operators of few sketches, in one dtype.
FAST = (
    "space of matmul m=5,n=7,k=3 float32", "space of softmax m=5,n=9 float32", "space of add n=11 float32"
)  # fmt: skip


def kinds(*beginnings: str) -> list[str]:
    return [n for n in GROUPS if n.startswith(beginnings)]


def check(names: list[str]) -> None:
    moved = []
    for name in names:
        found = GROUPS[name]()
        moved += [f"{name}: {what}" for what, text in found.items() if STORED[name].get(what) != text]
    assert not moved, f"{len(moved)} are not what they were: {'; '.join(moved[:20])}; {unchanged.RENEW}"


def test_every_group_is_stored() -> None:
    assert sorted(STORED) == sorted(GROUPS), f"groups and hashes do not fit; {unchanged.RENEW}"


def test_digests_of_operators_are_what_they_were() -> None:
    check(kinds("digests of "))


def test_what_callers_of_c_see_is_what_it_was() -> None:
    check(kinds("export of "))


def test_code_of_stored_logs_is_what_it_was() -> None:
    check([f"log {name}" for name in unchanged.EXPORTS])


def test_spaces_and_code_of_some_operators_are_what_they_were() -> None:
    check(list(FAST))


def test_a_change_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more line of text moves the hashes of the code alone, of CPUs and of GPUs."""
    right = unchanged.code_of
    monkeypatch.setattr(unchanged, "code_of", lambda *x: right(*x) + "\n; more")
    name = "space of softmax m=5,n=9 float32"
    with pytest.raises(
        AssertionError, match=f"2 are not what they were: {name}: code; {name}: code of GPUs; "
    ):
        check([name])


@pytest.mark.slow
def test_spaces_and_code_of_operators_are_what_they_were() -> None:
    check([n for n in kinds("space of ") if n.endswith(("float32", "int8"))])


@pytest.mark.slow
def test_tasks_of_shipped_logs_are_what_they_were() -> None:
    check(["log cuda-h100", *kinds("task ")[::8]])


@pytest.mark.soak
def test_everything_is_what_it_was() -> None:
    check(list(GROUPS))
