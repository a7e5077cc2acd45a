"""Loops that measure a peak and are schedules. This user compiles one once; then the cache of objects has it.

Compiling the loop of an instruction takes 30 to 100 ms, finding it 1 ms. Products of bytes have up to five.
"""

from __future__ import annotations

from contextlib import suppress

from autotune.backends.building.from_trace import build_object
from autotune.backends.building.generator_version import generator_version
from autotune.backends.building.object_cache import key, objects_of_user
from autotune.codegen.llvm.compile import LoadedObject, load_object
from autotune.errors import CompileError
from schedules.model import Target, Trace, Workload
from schedules.te.compute_dag import ComputeDAG


def loaded(dag: ComputeDAG, trace: Trace, target: Target) -> LoadedObject:
    """The code of a schedule in this process. ``target``: a CPU that this process runs on.

    Raises `ScheduleError` where the trace is not legal, and `CompileError`.
    """
    objects = objects_of_user()
    name = key(trace.to_json(), Workload(dag).named_digest, target.digest, generator_version())
    found = objects.get(name)
    if found is not None:
        with suppress(CompileError):  # it is compiled again and replaced
            return load_object(found)
    obj = build_object(dag, trace, target)
    objects.put(name, obj)
    return load_object(obj)
