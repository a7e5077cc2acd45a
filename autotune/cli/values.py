"""What a shell offers for an option of the command line, of the operator and the word so far."""

from __future__ import annotations

from collections.abc import Iterable


def operators(op: str, word: str) -> Iterable[str]:
    from schedules.ops import REGISTRY

    return REGISTRY


def shape(op: str, word: str) -> Iterable[str]:
    """``NAME=`` for each parameter that ``--shape`` does not give yet."""
    from schedules.ops import REGISTRY

    if op not in REGISTRY:
        return
    found = REGISTRY[op]
    *before, name = word.split(",")
    if "=" in name and not name.endswith("="):  # its value stands there: the next one
        before.append(name)
    start = "".join(f"{item}," for item in before)
    given = {item.partition("=")[0] for item in before}
    taken = {*given}
    for p in found.params:  # shape=2x3 stands for m=2 and n=3
        if p.instead:
            taken |= {p.instead} if p.name in given else {p.name} if p.instead in given else set()
    for short, names in found.shorthands:  # k=3 is kh=3 and kw=3
        taken |= {*names} if short in taken else {short} if taken & {*names} else set()
    yield from (f"{start}{x}=" for x in found.keywords() if x not in taken)


def dtypes(op: str, word: str) -> Iterable[str]:
    from schedules.dtypes import DTYPES
    from schedules.ops import REGISTRY

    return REGISTRY[op].dtypes if op in REGISTRY else DTYPES


def layouts(op: str, word: str) -> Iterable[str]:
    from schedules.ops import OPERATORS, REGISTRY

    some = (REGISTRY[op],) if op in REGISTRY else OPERATORS
    return dict.fromkeys(name for o in some for name in o.layouts)


def targets(op: str, word: str) -> Iterable[str]:
    from autotune import backends
    from autotune.targets.names import described

    return dict.fromkeys([*backends.kinds(), *described()])


def peers(op: str, word: str) -> Iterable[str]:
    """Those that the list does not have yet."""
    from autotune.measure.compare.peers import OF_FILES, PEERS

    before, comma, _ = word.rpartition(",")
    return [f"{before}{comma}{name}" for name in (*PEERS, *OF_FILES) if name not in before.split(",")]
