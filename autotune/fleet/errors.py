"""Errors of a fleet."""

from __future__ import annotations

from autotune.tuning.site import SiteLost
from schedules.errors import AutotuneError


class FleetError(AutotuneError):
    """A fleet cannot be reached, has no worker for a target, or is lost: the message names the address, the
    reason and the remedy.

    >>> at.tune("add", n=64, fleet="local:0", progress=None)
    Traceback (most recent call last):
        ...
    autotune.fleet.errors.FleetError: fleet 'local:0' has no workers; give local:1 or more
    """


class MessageError(FleetError):
    """A message that is not what it must be. What is wrong is said, and nothing of it was done."""


class MachineLost(FleetError, SiteLost):
    """The machine of a task has left the fleet. The task goes on elsewhere, where there is another."""
