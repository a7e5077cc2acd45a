"""Whether this host can run code for a target, and what it runs it as. A target's backend knows."""

from __future__ import annotations

from autotune.backends import registry
from autotune.platform import cpus
from autotune.targets.names import TargetError
from schedules.model import Target


def runnable(target: Target) -> bool:
    """Whether this host is of the target's family and has every extension that its code may use, or has what
    emulates it."""
    backend = registry.find(target)
    return backend is not None and backend.runnable(target)


def lacking(target: Target) -> tuple[str, ...]:
    """The extensions of a target of this host's family that this host lacks, sorted."""
    backend = registry.find(target)
    return () if backend is None else backend.lacking(target)


def confined(target: Target) -> Target:
    """The target to generate code for when a runnable target comes from elsewhere."""
    return registry.of(target).confined(target)


def check_here(target: Target) -> None:
    """Raises `TargetError` unless code for a target can run on this host, with as many threads."""
    if not runnable(target):
        raise TargetError(registry.of(target).refusal(target))
    usable = cpus.usable_cpus()
    if target.threads > usable:
        raise TargetError(
            f"threads={target.threads} is more than the {usable} CPUs this process may use; "
            f"give 1 to {usable}"
        )
