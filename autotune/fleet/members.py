"""Who is in a fleet: workers as their scheduler lists them, and the machines that they are of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from autotune.fleet.errors import FleetError, MessageError
from autotune.fleet.messages import small
from schedules.documents import Malformed, any_text, flag, list_of, parsed, record, text
from schedules.errors import suggest
from schedules.model import Target, canonical, digest

MOST_ADVERT = 1 << 20  # characters
_FAMILIES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Offered:
    """A target that a worker offers. ``asked``: what its user calls it. ``slot``: the resource for it."""

    asked: str
    target: Target
    slot: str

    def __repr__(self) -> str:
        return f"<Offered {self.asked}: {self.target!r}>"


@dataclass(frozen=True)
class Member:
    """A worker. ``facts``: of its machine. ``builds``: whether it compiles. ``busy``: tasks that it has.
    ``process``: names its process, whatever address that has after it connected again. ``problem``: why it
    gets no work, if it gets none."""

    address: str
    name: str
    busy: int
    facts: Mapping[str, str | int] = field(default_factory=dict)
    offers: Sequence[Offered] = ()
    generator: str = ""
    builds: bool = True
    process: str = ""
    problem: str = ""

    def __repr__(self) -> str:
        return f"<Member {self.name} at {self.address}>"


@dataclass(frozen=True)
class FleetMachine:
    """A machine and one of its targets: what a task is measured on. ``workers``: their addresses."""

    name: str
    facts: Mapping[str, str | int]
    target: Target
    slot: str
    builds: bool
    workers: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Of its facts, which every message of it has."""
        return facts_digest(self.facts)

    def __repr__(self) -> str:
        return f"<FleetMachine {self.name}: {self.target!r}>"


def slot(key: str, target: Target) -> str:
    """The resource of Dask that stands for a target on a machine."""
    return f"autotune:{key}:{target.digest[:12]}"


def facts_digest(facts: Mapping[str, str | int]) -> str:
    """The digest of a machine's facts."""
    return digest(canonical(dict(facts)))


def members_of(workers: Mapping[str, Any], generator: str) -> list[Member]:
    """Members from the workers of a scheduler, by name. Those of others, which tell nothing of autotune, are
    left out. ``generator``: this version's."""
    found = []
    for address, told in workers.items():
        if "autotune" not in told:
            continue
        name = str(told.get("name", address))[:200]
        busy = _busy(told)
        try:
            member = _member(address, name, told["autotune"], busy)
        except MessageError as err:
            member = Member(address, name, busy, problem=str(err))
        if not member.problem and member.generator != generator:
            theirs, llvm = (str(member.facts.get(k, "?")) for k in ("autotune", "llvm"))
            problem = (
                f"it has autotune {theirs[:40]} with LLVM {llvm[:20]}, whose code differs from this one's; "
                "install the same versions on both"
            )
            member = replace(member, problem=problem)
        found.append(member)
    return sorted(found, key=lambda m: (m.name, m.address))


def machines_of(members: Iterable[Member], target: Target) -> dict[str, FleetMachine]:
    """The machines that offer a target, by slot."""
    found: dict[str, FleetMachine] = {}
    for member in members:
        for offer in member.offers if not member.problem else ():
            if offer.target.digest == target.digest:
                name = str(member.facts.get("name") or member.name)
                made = FleetMachine(name, member.facts, target, offer.slot, member.builds)
                before = found.get(offer.slot, made)
                found[offer.slot] = replace(before, workers=(*before.workers, member.address))
    return found


def targets_of(
    members: Sequence[Member], wanted: Sequence[str | Target], threads: int | None = None
) -> list[Target]:
    """The targets of a fleet that a user asks for, each once: those that workers call so, or whose processor
    has that name, or that are equal; all of them where nothing is asked for. ``threads``: of these those with
    so many threads. Raises `FleetError` for one that no worker offers."""
    offers = [o for m in members if not m.problem for o in m.offers]
    if not members:
        raise FleetError(
            "the fleet has no worker of autotune; start one on each machine: autotune worker ADDRESS"
        )
    if not offers:
        reasons = "; ".join(f"{m.name}: {m.problem}" for m in members[:5])
        raise FleetError(f"no worker of the fleet can be used: {reasons}")
    found: dict[str, Target] = {}
    each: Sequence[str | Target | None] = wanted or [None]
    for one in each:
        fitting = [o.target for o in offers if one is None or one in (o.asked, o.target.arch, o.target)]
        if threads is not None:
            fitting = [t for t in fitting if t.threads == threads or t.grid]
        if not fitting:
            raise FleetError(_not_offered(one, threads, offers))
        found |= {t.digest: t for t in fitting}
    return list(found.values())


def _not_offered(wanted: str | Target | None, threads: int | None, offers: Sequence[Offered]) -> str:
    called = wanted.arch if isinstance(wanted, Target) else wanted
    asked = "a target" if called is None else f"target {called}"
    with_threads = "" if threads is None else f" with {threads} threads"
    names = sorted({f"{o.asked} ({o.target.arch}, threads: {o.target.threads})" for o in offers})
    close = suggest(called, [o.asked for o in offers] + [o.target.arch for o in offers]) if called else ""
    more = f" --target {called}" if called else ""
    more += f" --threads {threads}" if threads is not None else ""
    return (
        f"no worker of the fleet offers {asked}{with_threads}{close}; there are {', '.join(names)}; start "
        f"one with: autotune worker ADDRESS{more}"
    )


def _member(address: str, name: str, advert: object, busy: int) -> Member:
    """Raises `MessageError` for what a worker of this version does not say."""
    if not isinstance(advert, str) or len(advert) > MOST_ADVERT:
        raise MessageError("what it says of itself is no text")
    try:
        told = _ADVERT(parsed(advert))
    except Malformed as err:
        raise MessageError(f"what it says of itself cannot be read: {err}") from None
    facts, offers = told["machine"], told["targets"]
    for offer in offers:
        if offer.slot != slot(told["key"], offer.target):
            raise MessageError(f"its slot for {offer.asked} is not of that target")
        _check_family(offer.target, facts)
    return Member(address, name, busy, facts, offers, told["generator"], told["builds"], told["process"])


def _facts(x: object) -> dict[str, Any]:
    if not small(x) or not all(isinstance(v, (str, int)) and len(str(v)) < 500 for v in x.values()):
        raise Malformed("it is no small object of texts and whole numbers")
    return x


def _offered(x: object) -> Offered:
    return Offered(**_OFFERED(x))


_OFFERED = record(
    {"asked": text(200), "target": lambda x: Target.from_json(canonical(x)), "slot": any_text},
    open_ended=True,
)
_ADVERT = record(
    {
        "machine": _facts,
        "key": text(12, "[0-9A-Za-z]{12}", "12 letters and digits that say which machine it is of"),
        "targets": list_of(_offered),
        "generator": any_text,
        "builds": flag,
        "process": text(40),
    },
    open_ended=True,
)


def _check_family(target: Target, facts: Mapping[str, Any]) -> None:
    """A CPU's target is of the family of the machine that offers it."""
    said = str(facts.get("architecture", "")).lower()
    family = target.triple.partition("-")[0].lower()
    if not target.grid and _FAMILIES.get(family, family) != _FAMILIES.get(said, said):
        raise MessageError(
            f"it offers {target.arch}, a target of {family}, and says it is a machine of {said}"
        )


def _busy(told: Mapping[str, Any]) -> int:
    try:
        return int(told["metrics"]["task_counts"].get("executing", 0))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return 0
