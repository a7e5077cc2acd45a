"""Functions of upper rooms that lower ones call, by name. `autotune/__init__` has the table.

A result does not know what reports it, and loading does not know what picks a schedule. Both ask here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def hook(name: str) -> Callable[..., Any]:
    """The function of a name. ``report(result, path)`` writes a page of HTML, ``explain(result)`` says why
    the best schedule is as fast as it is, ``first_pick(workload, target, where)`` picks a schedule of what
    nobody tuned, ``pick_elsewhere`` does so for a target that is not this machine,
    ``fleet(address, target, threads)`` is a fleet to tune on, ``objects()`` the cache of compiled objects."""
    # nobody imports the table: whoever imports this has imported the package, whose own import is to be short
    module, function = sys.modules["autotune"].HOOKS[name]
    return getattr(import_module(module), function)
