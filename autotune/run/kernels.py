"""From a schedule to a `Kernel`: the object from the cache, or compiled through every legality check."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, cast

from autotune import backends
from autotune.backends import check_here, confined
from autotune.backends.building.object_cache import ObjectCache, key, objects_of_user
from autotune.errors import CompileError
from autotune.run.kernel import Kernel
from autotune.run.open_kernel import open_kernel
from autotune.run.pickled import read
from schedules.errors import ScheduleError
from schedules.ir.nest import tensor_buffer
from schedules.model import Target, Trace, Workload

if TYPE_CHECKING:
    from autotune.backends.drivers.object import DeviceObject
    from autotune.codegen.llvm.compile import LoadedObject

    Loaded = tuple[LoadedObject | DeviceObject, dict[int, LoadedObject]]

log = logging.getLogger(__name__)


def kernel_of(
    workload: Workload, target: Target, trace: Trace, record: Any = None, chosen_by: str = "schedule"
) -> Kernel:
    """The kernel of a schedule. ``record``: that of a log which the trace comes from, for `Kernel.record`.
    ``chosen_by``: as of `Kernel`; "log" if there is a record. A trace that a caller wrote by hand has the
    names of the workload's DAG, any other has canonical names.

    Raises `ScheduleError` where the trace is not legal for the workload, and `CompileError`.
    """
    chosen_by = chosen_by if record is None else "log"
    by_hand = chosen_by == "schedule"
    objects = objects_of_user()
    code = confined(target)
    of = workload.named_digest if by_hand else workload.digest
    versions = backends.of(code).versions(code)
    names = [key(trace.to_json(), of, code.digest, version) for version in versions]
    loaded = _cached(objects, names[0])
    if loaded is not None:
        log.debug("kernel of %s: its object %s is in the cache", workload.op, names[0])
    else:
        begin = time.monotonic()
        obj = _built(workload, trace, code, by_hand)
        for name in names:
            objects.put(name, obj)
        loaded = _load(obj)
        took_s = time.monotonic() - begin
        log.debug("kernel of %s: nothing is in the cache, compiled in %.2f s", workload.op, took_s)
    main, packing = loaded
    if workload.dag.open is not None:
        return open_kernel(cast("LoadedObject", main), workload, target, record, trace, packing, chosen_by)
    params = tuple(map(tensor_buffer, workload.dag.params))
    make = _class_for(main)
    return make(main, params, workload.dag.outputs, workload, target, record, trace, packing, chosen_by)


def unpickled(text: str) -> Kernel:
    """The kernel of a text that `pickle` has in its place. Its schedule goes through every check of one of a
    log, and is compiled here, or found in this machine's own cache. It has no `Kernel.record`. Raises
    `TargetError` where this host cannot run it, `ScheduleError`, and `CompileError` or ValueError for a text
    that is none."""
    workload, target, trace, chosen_by = read(text)
    check_here(target)
    return kernel_of(workload, target, trace, chosen_by=chosen_by)


def _built(workload: Workload, trace: Trace, code: Target, named: bool) -> bytes:
    """The object of a trace, in the names of the workload or in canonical ones; errors have the former."""
    from autotune.backends.building.from_trace import build_object, check_legal

    if named:
        return build_object(workload.dag, trace, code)
    try:
        return build_object(workload.canonical, trace, code)
    except ScheduleError:
        from schedules.trace_names import to_named

        check_legal(workload.dag, to_named(workload, trace), code)
        raise


def _class_for(loaded: LoadedObject | DeviceObject) -> type[Kernel]:
    """What calls it: on arrays of the host, or where its device's memory has addresses, of the device."""
    device = getattr(loaded, "device", None)
    if device is None:
        return Kernel
    from autotune.backends.drivers.protocol import Addressed
    from autotune.run.device_kernel import DeviceKernel

    return DeviceKernel if isinstance(device, Addressed) else Kernel


def default_kernel(workload: Workload, target: Target) -> Kernel:
    """The kernel of the untuned schedule: the loops as the expression states them. Raises `TargetError`
    for a target that cannot run here."""
    check_here(target)
    return kernel_of(workload, target, Trace(), chosen_by="default")


def source_of(workload: Workload, target: Target, trace: Trace) -> str:
    """The LLVM IR text of a schedule in the workload's own names, or the C of one for a GPU."""
    return backends.of(target).source(workload.dag, trace, target)


def _cached(objects: ObjectCache, name: str) -> Loaded | None:
    obj = objects.get(name)
    if obj is None:
        return None
    try:
        return _load(obj)
    except CompileError:  # it will be compiled again and replaced
        return None


def _load(obj: bytes) -> Loaded:
    """What runs, and what packs constants, by the number of the input. Raises CompileError."""
    return backends.of_code(obj).load(obj)
