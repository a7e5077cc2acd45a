"""A kernel of a workload that nobody tuned: the first pick, which is kept for the next load."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import NamedTuple

from autotune import backends
from autotune.backends.building.object_cache import key, objects_of_user
from autotune.errors import CompileError
from autotune.run import plain
from autotune.run.describing import describe
from autotune.run.kernel import Kernel
from autotune.run.kernels import default_kernel, kernel_of
from autotune.settings.hooks import hook
from kernels_db import lookup
from kernels_db.errors import LogError
from kernels_db.place import locate
from schedules.documents import Malformed, any_text, integer, items, one_of, parsed
from schedules.errors import AutotuneError, ScheduleError
from schedules.model import Target, Trace, TraceError, Workload

# What chose a schedule, in words.
WORDS = {
    "similar_shape": "the schedule of a similar shape",
    "similar_machine": "the schedule of a similar machine",
    "model": "the first pick of the model",
    "default": "the default schedule",
}

# What is said of a schedule that there was no time to check.
UNCHECKED = "not checked: no check ended in time here"

log = logging.getLogger(__name__)


class PickedKernel(NamedTuple):
    """A kernel that was not tuned. ``what``: in words what was chosen. ``checked``: whether its results were
    compared, or are those of plain loops. ``alone``: why it is the plain loops, where nothing was faster
    because nothing else was right; else ""."""

    kernel: Kernel
    what: str
    checked: bool = True
    alone: str = ""

    @property
    def remark(self) -> str:
        """What a list of kernels says of it."""
        if self.alone:
            return plain.said(self.kernel, self.alone)
        return "" if self.checked else UNCHECKED


class _Kept(NamedTuple):
    """A choice. ``alone``: as of `PickedKernel`."""

    trace: str
    chosen_by: str
    alone: str


# Names of the choices that this process made.
_made_here: set[str] = set()


def untuned(
    workload: Workload, target: Target, where: str, in_place: Mapping[str, str] | None = None
) -> PickedKernel:
    """A kernel that was not tuned. ``where``: the log, whose schedules of similar tasks are tried.
    ``in_place``: outputs that are inputs (`autotune.load`), which the schedule then allows.

    The first time, a few schedules are checked and timed here. The choice is kept beside the compiled
    objects; one that no similar task made is made again once the log has other workloads, and plain loops
    because nothing else was right are so once in each process. Raises `TargetError` for a target that cannot
    run here.
    """
    backends.check_here(target)
    objects, name, seen = (
        objects_of_user(),
        _name(workload, target, where, in_place),
        _workloads(where),
    )
    kept = _kept(objects.get(name), seen)
    if kept is not None and kept.alone and name not in _made_here:  # what failed once may be right now
        kept = None
    checked, alone = True, ""
    if kept is None:
        _made_here.add(name)
        try:
            kept, checked = _made(workload, target, where, in_place)
            if checked:
                objects.put(name, json.dumps([kept.trace, kept.chosen_by, seen, kept.alone]).encode())
        except AutotuneError as err:
            alone = str(err)
    if kept is not None:
        trace, chosen_by, alone = kept
        try:
            kernel = kernel_of(workload, target, Trace.from_json(trace), None, chosen_by)
            known = "not tuned" if checked else f"not tuned, and {UNCHECKED}"
            what = f"Using {WORDS[chosen_by]}, which is {known}."
            what += f" It {plain.said(kernel, alone)}." if alone else ""
            return PickedKernel(kernel, what, checked, alone)
        except (TraceError, ScheduleError, CompileError) as err:
            log.warning("the schedule that was picked for %s is not used: %s", workload.op, err)
            alone = alone or f"the schedule that was picked is not used: {err}"
    kernel = default_kernel(workload, target)
    what = f"Using the default schedule, which is not tuned. It {plain.said(kernel, alone)}."
    return PickedKernel(kernel, what, alone=alone)


def is_kept(workload: Workload, target: Target, where: str) -> bool:
    """Whether `untuned` takes what it chose before."""
    found = objects_of_user().get(_name(workload, target, where))
    return _kept(found, _workloads(where)) is not None


def in_place_of(loops: Kernel, target: Target, where: str) -> tuple[Kernel, str] | None:
    """`untuned` in place of the plain loops that a log has of a workload, and why; None where these are the
    faster ones."""
    kernel, what, *_ = untuned(loops.workload, target, where)
    if kernel.chosen_by == "default":
        return None
    why = f"the log has only the plain loops of {describe(loops.workload)}, with which nothing was compared"
    return kernel, f"{why}\n{what}"


def _name(workload: Workload, target: Target, where: str, in_place: Mapping[str, str] | None = None) -> str:
    """The name of a first pick in the cache."""
    version = backends.of(target).versions(target)[0]
    of = workload.digest if not in_place else f"{workload.named_digest} in place {sorted(in_place.items())}"
    return key("first pick", of, target.digest, f"{version} {locate(where)}")


def _made(
    workload: Workload, target: Target, where: str, in_place: Mapping[str, str] | None
) -> tuple[_Kept, bool]:
    """A first pick, and whether it was checked. Raises `AutotuneError` where there is none."""
    more = {} if in_place is None else {"in_place": in_place}
    pick = hook("first_pick")(workload, target, where, **more)
    if pick is None:
        raise AutotuneError("no other schedule was right, or ready in time")
    alone = f"no other schedule was right: {pick.why_alone}" if pick.why_alone else ""
    return _Kept(pick.trace.to_json(), pick.chosen_by, alone), pick.time_s is not None


def _kept(data: bytes | None, seen: int) -> _Kept | None:
    if data is None:
        return None
    try:
        trace, chosen_by, workloads, alone = _KEPT(parsed(data))
    except Malformed:
        return None
    similar = chosen_by in ("similar_shape", "similar_machine")
    return _Kept(trace, chosen_by, alone) if similar or workloads == seen else None


_KEPT = items(any_text, one_of(*WORDS), integer(0), any_text)


def _workloads(where: str) -> int:
    """How many workloads a log has; 0 if it cannot be read."""
    try:
        return lookup.workloads(where)
    except LogError:
        return 0
