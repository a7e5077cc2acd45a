"""The machines of a fleet on which stored records are checked again (`autotune.tuning.recheck`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from autotune.fleet import local
from autotune.fleet.building import Builders
from autotune.fleet.members import targets_of
from autotune.fleet.site import FleetSite
from autotune.run.warned import warn
from schedules.model import Target


@contextmanager
def sites(address: str, say: Callable[[str], None] = warn) -> Iterator[Callable[[Target], FleetSite | None]]:
    """A function that gives a machine which offers a target, or None. ``say``: as of `local.reached`. Raises
    `FleetError`."""
    with ExitStack() as stack:
        fleet = stack.enter_context(local.reached(address, say=say))
        builders = stack.enter_context(Builders())
        targets_of(fleet.members(), [])  # which says why, if nobody can be used

        def site_of(target: Target) -> FleetSite | None:
            for notice in fleet.news():
                say(notice)
            for machine in fleet.machines(target).values():
                return FleetSite(fleet, machine, None if machine.builds else builders)
            return None

        yield site_of
