"""Who is in a fleet: what workers say of themselves is read, or is why they get no work."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from fleet_cases import A, B, facts

from autotune.backends.building.generator_version import generator_version
from autotune.fleet.errors import FleetError
from autotune.fleet.members import Member, machines_of, members_of, targets_of
from autotune.fleet.worker import Offer
from schedules.model import Target, canonical

KEY = "0123456789ab"
GENERATOR = generator_version()


def told(*targets: Target, name: str = "box", **changes: Any) -> dict[str, Any]:
    """A worker as its scheduler lists it."""
    advert = json.loads(Offer({t.arch: t for t in targets or (A,)}, name).advert(facts(name), KEY))
    return {
        "name": f"{name}-1",
        "last_seen": 1.0,
        "metrics": {"task_counts": {"executing": 1}},
        "autotune": canonical(advert | changes),
    }


def one(worker: dict[str, Any]) -> Member:
    (found,) = members_of({"tcp://box:1": worker}, GENERATOR)
    return found


def test_what_a_worker_says_is_read() -> None:
    member = one(told(A, B))
    assert (member.name, member.problem, member.busy, member.builds) == ("box-1", "", 1, True)
    assert [o.target for o in member.offers] == [A, B] and member.facts == facts("box")
    (machine,) = machines_of([member], B).values()
    assert machine.workers == ("tcp://box:1",) and machine.name == "box"


def test_workers_of_others_are_no_members() -> None:
    assert members_of({"tcp://box:1": {"name": "dask", "resources": {}}}, GENERATOR) == []


def test_workers_of_one_machine_are_one_machine() -> None:
    members = members_of({"tcp://box:1": told(), "tcp://box:2": told()}, GENERATOR)
    (machine,) = machines_of(members, A).values()
    assert sorted(machine.workers) == ["tcp://box:1", "tcp://box:2"]


ARM = Target("cpu", "cortex-a78", "aarch64-unknown-linux-gnu", (), 1)


@pytest.mark.parametrize(
    ("worker", "problem"),
    [
        (told() | {"autotune": 7}, "no text"),
        (told() | {"autotune": "x" * (2 << 20)}, "no text"),
        (told() | {"autotune": "{"}, "cannot be read"),
        (told() | {"autotune": "[]"}, "cannot be read"),
        (told() | {"autotune": "[" * 50_000}, "cannot be read"),
        (told(machine=[]), "no small object"),
        (told(machine={"cpu": ["x"]}), "no small object"),
        (told(machine={"cpu": "x" * 1000}), "no small object"),
        (told(machine={"c" * 100_000: "x"}), "no small object"),
        (told(key="short"), "which machine it is of"),
        (told(key=None), "which machine it is of"),
        (told(targets=[{"asked": "a", "target": {}, "slot": "s"}]), "cannot be read"),
        (
            told(targets=[{"asked": "a", "target": json.loads(A.json), "slot": "other"}]),
            "is not of that target",
        ),
        (told(targets=7), "cannot be read"),
        (told(ARM), "offers cortex-a78, a target of aarch64, and says it is a machine of x86_64"),
        (told(generator="another"), "whose code differs from this one's; install the same versions on both"),
    ],
)
def test_who_says_what_cannot_be_gets_no_work(worker: dict[str, Any], problem: str) -> None:
    member = one(worker)
    assert problem in member.problem
    assert not machines_of([member], A)
    with pytest.raises(FleetError, match="no worker of the fleet can be used: box-1: "):
        targets_of([member], [])


def test_figures_of_a_worker_that_are_no_counts_are_0() -> None:
    for executing in (float("inf"), float("nan"), None, "x"):
        assert one(told() | {"metrics": {"task_counts": {"executing": executing}}}).busy == 0
    assert one(told() | {"metrics": {"task_counts": {}}}).busy == 0
    assert one(told() | {"metrics": {"task_counts": {"executing": 2}}}).busy == 2


def test_changed_adverts_are_read_or_are_a_problem() -> None:
    rng, text = random.Random(0), told(A, B)["autotune"]
    for _ in range(1000):
        at = rng.randrange(len(text))
        bad = (
            text[:at]
            + rng.choice(["", "0", '"', "}", "\x00", "é", "9" * 400])
            + text[at + rng.randrange(3) :]
        )
        member = one(told() | {"autotune": bad})
        assert member.problem or member.offers is not None
