"""Names of users' own expressions (``tune([...], name="geglu")``), which a log keeps.

A log may come from anywhere: a name says what people call an expression, never what it computes.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.run.workloads import is_custom
from kernels_db import lookup
from schedules.errors import WorkloadError, suggest
from schedules.model import Workload


def shown(workload: Workload, where: str) -> Workload:
    """An expression without a name, under the one that a log has for it."""
    if workload.op != "custom":
        return workload
    name = lookup.name(where, workload.digest)
    if name in (None, "custom"):
        return workload
    known = replace(workload, op=name)
    return known if is_custom(known) else workload


def close(name: str, where: str) -> str:
    """`` (did you mean 'x'?)`` if an expression in a log has a name that is close, else empty."""
    from schedules import ops

    return suggest(name, [x for x in lookup.names(where) if x not in ops.REGISTRY and x != "custom"])


def find(name: str, where: str) -> Workload | None:
    """The expression of that name in a log; ``NAME:DIGITS`` is the one whose workload begins so. None if
    there is none. Raises `WorkloadError` where it is not clear which is meant."""
    name, _, digits = name.partition(":")
    found = [w for w in lookup.called(where, name) if is_custom(w) and w.digest.startswith(digits)]
    if len(found) > 1:
        made = (", ".join(f"{n}{list(w.dag.tensors[n].shape)}" for n in w.dag.outputs) for w in found)
        listed = "; ".join(f"{name}:{w.digest[:6]} ({m})" for w, m in zip(found[:5], made))
        raise WorkloadError(f"{len(found)} expressions are called {name}: {listed}; give one of them so")
    return found[0] if found else None
