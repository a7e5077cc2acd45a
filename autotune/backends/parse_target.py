"""From what a user gives to a `Target`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.backends import registry
from autotune.settings import SettingsError
from autotune.targets.names import TargetError, check_threads, detect, from_name
from schedules.model import Target


def alone(target: str | Target | Sequence[str | Target] | None) -> str | Target | None:
    """The one target that is tuned for on this machine. Raises `SettingsError` for several."""
    if isinstance(target, (list, tuple)):
        raise SettingsError("several targets are tuned for on a fleet: give fleet=ADDRESS too, or one target")
    return target  # type: ignore[return-value]


def names_grid(target: str | Target | Sequence[str | Target] | None) -> bool:
    """Whether a GPU is among targets as a user names them for a fleet, with commas between or in a list. What
    is not known here is none."""
    each = target.split(",") if isinstance(target, str) else target
    if isinstance(each, Target) or each is None:
        return each is not None and each.grid
    return any(_is_grid(x) for x in each)


def _is_grid(target: str | Target) -> bool:
    if isinstance(target, Target):
        return target.grid
    meant = registry.asked_for(target.strip())
    if meant is not None:
        return meant.name != registry.HOST
    try:
        return from_name(target.strip(), registry.kinds()).grid
    except TargetError:
        return False


def parse(target: str | Target | None, threads: int | None = None) -> Target:
    """A target from what a user gives: None (this CPU), a word that a backend answers to, such as "cpu" or
    "cuda" (the first of this machine), a name of ``configs/targets``, a JSON file's path, or a `Target`.

    Raises `TargetError` for anything else, and for ``threads`` that are not a positive integer.
    """
    if threads is not None:
        check_threads(threads)
    if isinstance(target, Target):
        check_threads(target.threads)
        return target if threads is None else replace(target, threads=threads)
    if target is None:
        return detect(threads)
    if not isinstance(target, str):
        raise TargetError(f"target {target!r} is not a name, a file or a Target; use target='cpu'")
    meant = registry.asked_for(target)
    if meant is not None:
        return meant.detect(threads)
    found = from_name(target, registry.kinds())
    return found if threads is None or found.grid else replace(found, threads=threads)
