"""Kernels that this process loaded before, so that the next load of the same takes microseconds.

An entry holds while the log's file is as it was, and the CPUs of this process are the same. A server tells no
such state, so what comes from one is looked up each time.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune.platform.cpus import usable_cpu_set
from kernels_db.place import locate

if TYPE_CHECKING:
    from autotune.run.kernel import Kernel

# Most kernels that are kept.
MOST = 256


class _Entry(NamedTuple):
    state: Hashable
    kernel: Kernel


_entries: OrderedDict[Hashable, _Entry] = OrderedDict()


def clear() -> None:
    """Forget all kernels, such as those that were compiled by another version."""
    _entries.clear()


def load(key: tuple[Any, ...], where: str, find: Callable[[], tuple[Kernel, bool]]) -> Kernel:
    """The kernel of ``key``, all that it is asked for by, from the log ``where``. ``find`` gives it, and
    whether it may be kept: not if a warning came with it."""
    state = _state(where)
    try:
        had = _entries.get(key)
    except TypeError:  # arguments that cannot be compared, such as lists
        return find()[0]
    if had is not None and state is not None and had.state == state:
        return had.kernel
    kernel, keep = find()
    if keep and state is not None and _state(where) == state:  # nobody wrote meanwhile
        _entries[key] = _Entry(state, kernel)
        while len(_entries) > MOST:
            _entries.popitem(last=False)
    return kernel


def _state(where: str) -> Hashable:
    """What changes with the log's file or with the CPUs of this process; None where that is not known."""
    version = locate(where).version()
    if version is None:
        return None
    return version, usable_cpu_set() or os.cpu_count()
