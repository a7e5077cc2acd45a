"""Targets as data: what this host is (`detect`), what a name means (`from_name`)."""

from autotune.platform import cpus
from autotune.platform.cpus import cores_first, on_cpus, usable_cpu_set, usable_cpus
from autotune.targets.facts import machine
from autotune.targets.names import TargetError, brief, detect, from_name

__all__ = [
    "TargetError", "brief", "cores_first", "cpus", "detect", "from_name", "machine", "on_cpus",
    "usable_cpu_set", "usable_cpus",
]  # fmt: skip
