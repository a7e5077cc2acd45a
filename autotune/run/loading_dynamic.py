"""Loads programs whose sizes vary."""

from __future__ import annotations

from autotune import backends
from autotune.errors import KernelNotFound
from autotune.run.asked import Asked
from autotune.run.describing import describe
from autotune.run.dynamic_kernel import DynamicKernel
from autotune.run.dynamic_workload import DynamicWorkload
from autotune.run.kernel import Kernel
from autotune.run.stored import not_found, stored, unsearched
from autotune.run.warned import warn
from kernels_db.place import locate
from schedules.model import Workload


def load_dynamic(dynamic: DynamicWorkload, asked: Asked) -> DynamicKernel:
    """`autotune.load` of a program whose sizes vary. Where no number of threads is asked for, all sizes run
    with as many as the best record of the largest tuned size. ``asked.nearest``: each size that is tuned for
    similar machines only gets a kernel as `autotune.load` gives it. Raises as `autotune.load` does."""
    where, wanted = asked.where, asked.target
    sizes = dynamic.tuned(where)
    similar: dict[str, Kernel] = {}  # what was tried here already, by workload

    def of_similar(workload: Workload, threads: int | None) -> Kernel | None:
        if not asked.nearest:
            return None
        if workload.digest not in similar:
            from autotune.run.similar_target import nearest as look

            tried = look(workload, where, wanted, threads)
            if tried is None:
                return None
            warn(f"nothing is stored of {describe(workload)} for this machine; {tried}")
            similar[workload.digest] = tried.kernel
        return similar[workload.digest]

    errors: list[Exception] = []
    for one in reversed(sizes):
        kernel, unusable = stored(dynamic.at(one), wanted, asked.exactly, where)
        if kernel is not None:
            wanted = kernel.target
            break
        errors += [] if unusable is None else [unusable]
    else:
        kernels = (of_similar(dynamic.at(one), asked.threads) for one in reversed(sizes))
        kernel = next((k for k in kernels if k is not None), None)
        if kernel is not None:
            wanted = backends.parse(backends.HOST, kernel.target.threads)
        elif not asked.fallback:
            raise errors[0] if errors else _not_found(dynamic, sizes, asked)

    def make(workload: Workload) -> Kernel:
        found, _ = stored(workload, wanted, wanted.threads, where)
        if found is not None and asked.fallback and unsearched(workload, wanted, wanted.threads, where):
            from autotune.run.untuned import in_place_of

            picked = in_place_of(found, wanted, where)
            return found if picked is None else picked[0]
        if found is None:
            found = of_similar(workload, wanted.threads)
        if found is not None:
            return found
        from autotune.run.untuned import untuned

        return untuned(workload, wanted, where)[0]

    return DynamicKernel(dynamic, make, sizes)


def _not_found(dynamic: DynamicWorkload, sizes: list[tuple[int, ...]], asked: Asked) -> KernelNotFound:
    if sizes:  # on other machines, or with other threads
        return not_found(dynamic.at(sizes[-1]), asked.where, asked.target, asked.threads)
    return KernelNotFound(
        f"no tuned kernel of {dynamic} in {locate(asked.where)}\n"
        "tune it first: autotune.tune with the same arguments",
        "or take schedules that are not tuned: fallback=True",
    )
