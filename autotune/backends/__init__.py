"""Backends, one a kind of target. All that depends on the kind is asked of one.

No other module knows the names of kinds.

A new one is a file here and a name in `registry.BACKENDS`. A backend is imported when it is first asked for.
`parse` makes a target of what a user gives; `check_here` says whether code for one can run on this host.
"""

from autotune.backends.host import check_here, confined, lacking, runnable
from autotune.backends.parse_target import alone, names_grid, parse
from autotune.backends.registry import BACKENDS, HOST, asked_for, find, kinds, named, of, of_code

__all__ = [
    "BACKENDS", "HOST", "alone", "asked_for", "check_here", "confined", "find", "kinds", "lacking", "named",
    "names_grid", "of", "of_code", "parse", "runnable",
]  # fmt: skip
