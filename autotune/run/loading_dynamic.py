"""Loads programs whose sizes vary."""

from __future__ import annotations

import os

from autotune import targets
from autotune.errors import KernelNotFound
from autotune.run.dynamic_kernel import DynamicKernel
from autotune.run.dynamic_workload import DynamicWorkload
from autotune.run.kernel import Kernel
from autotune.run.stored import asked_threads, not_found, stored
from autotune.settings import database
from kernels_db.place import locate
from schedules.model import Target, Workload


def load_dynamic(
    dynamic: DynamicWorkload,
    *,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
    fallback: bool = False,
) -> DynamicKernel:
    """`autotune.load` of a program whose sizes vary. Without ``threads`` all sizes run with as many as the
    best record of the largest tuned size. Raises as `autotune.load` does."""
    where = database(db)
    wanted = targets.parse(target, threads)
    asked = asked_threads(target, threads)
    sizes = dynamic.tuned(where)
    errors: list[Exception] = []
    for one in reversed(sizes):
        kernel, unusable = stored(dynamic.at(one), wanted, asked, where)
        if kernel is not None:
            wanted = kernel.target
            break
        errors += [] if unusable is None else [unusable]
    else:
        if not fallback:
            raise errors[0] if errors else _not_found(dynamic, sizes, where, threads)

    def make(workload: Workload) -> Kernel:
        found, _ = stored(workload, wanted, wanted.threads, where)
        if found is not None:
            return found
        from autotune.run.untuned import untuned

        return untuned(workload, wanted, where)[0]

    return DynamicKernel(dynamic, make, sizes)


def _not_found(
    dynamic: DynamicWorkload, sizes: list[tuple[int, ...]], where: str, threads: int | None
) -> KernelNotFound:
    if sizes:  # on other machines, or with other threads
        return not_found(dynamic.at(sizes[-1]), where, threads)
    return KernelNotFound(
        f"no tuned kernel of {dynamic} in {locate(where)}\n"
        "tune it first: autotune.tune with the same arguments, or take fallback=True"
    )
