"""Targets: what this host is (`detect`), what a name means (`parse`), whether code for a target can run
here."""

from autotune.backends.host import check_here, confined, lacking, measured_by, runnable
from autotune.backends.parse_target import alone, parse
from autotune.targets.cpus import cores_first, on_cpus, usable_cpu_set, usable_cpus
from autotune.targets.facts import machine
from autotune.targets.names import TargetError, brief, detect, from_name

__all__ = [
    "TargetError", "alone", "brief", "check_here", "confined", "cores_first", "detect",
    "from_name", "lacking", "machine", "measured_by", "on_cpus", "parse", "runnable", "usable_cpu_set",
    "usable_cpus",
]  # fmt: skip
