"""From a schedule to a `Kernel`: the object from the cache, or compiled through every legality check."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from autotune.building import bundle
from autotune.building.object_cache import ObjectCache, key
from autotune.errors import CompileError
from autotune.run.kernel import Kernel
from autotune.settings import Settings
from autotune.targets import check_here, confined, emulated
from schedules.expr import wrap
from schedules.ir import Buffer
from schedules.model import Target, Trace, Workload

if TYPE_CHECKING:
    from autotune.codegen.llvm.compile import LoadedObject
    from autotune.devices.object import DeviceObject

    Loaded = tuple[LoadedObject | DeviceObject, dict[int, LoadedObject]]

# What decides the code that a trace gives; whatever else changes, cached objects stay good.
_GENERATOR = ("schedules", "autotune.codegen")
_CHECKS = ("building.py", "bundle.py")  # of the package autotune: what they refuse must not be cached


def kernel_of(workload: Workload, target: Target, trace: Trace, record: Any = None) -> Kernel:
    """The kernel of a schedule; ``record``: where it comes from, for `Kernel.record`.

    Raises `ScheduleError` where the trace is not legal for the workload, and `CompileError`.
    """
    objects = ObjectCache(Settings.from_environment().cache_dir)
    code = confined(target)
    names = [key(trace.to_json(), workload.digest, code.digest, version) for version in _versions(code)]
    loaded = _cached(objects, names[0])
    if loaded is None:
        from autotune.building.from_trace import build_object

        obj = build_object(workload.dag, trace, code)
        for name in names:
            objects.put(name, obj)
        loaded = _load(obj)
    main, packing = loaded
    params = tuple(Buffer(t.name, tuple(map(wrap, t.shape)), t.dtype) for t in workload.dag.params)

    def source() -> str:
        return source_of(workload, target, trace)

    make = _class_for(main)
    return make(main, params, workload.dag.outputs, workload, target, record, trace, source, packing)


def _class_for(loaded: LoadedObject | DeviceObject) -> type[Kernel]:
    """What calls it: on arrays of the host, or where its device's memory has addresses, of the device."""
    device = getattr(loaded, "device", None)
    if device is None:
        return Kernel
    from autotune.devices.protocol import Addressed
    from autotune.run.device_kernel import DeviceKernel

    return DeviceKernel if isinstance(device, Addressed) else Kernel


def default_kernel(workload: Workload, target: Target) -> Kernel:
    """The kernel of the untuned schedule: the loops as the expression states them. Raises `TargetError`
    for a target that cannot run here."""
    check_here(target)
    return kernel_of(workload, target, Trace())


def source_of(workload: Workload, target: Target, trace: Trace) -> str:
    """The LLVM IR text of a schedule, or the C of one for a GPU."""
    from autotune.building.from_trace import emit_module, grid_program

    if target.kind != "cpu":
        from autotune.codegen.simt import cuda, opencl

        dialect = opencl if target.kind == "opencl" else cuda
        return dialect.source(grid_program(workload.dag, trace, target))
    return emit_module(workload.dag, trace, confined(target)).text


def _versions(target: Target) -> list[str]:
    """What makes code for a target, with the version of NVRTC where that compiles it; then without, for where
    there is none: what was made last is found there."""
    generator = generator_version()
    if target.kind != "cuda" or emulated(target):
        return [generator]
    from importlib import metadata  # takes long

    from autotune.codegen.simt.nvrtc import FIRST_OF_13

    number = re.match(r"sm_(\d+)", target.arch)
    old = number is not None and int(number[1]) < FIRST_OF_13
    try:
        version = metadata.version("nvidia-cuda-nvrtc-cu12" if old else "nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        return [generator]
    return [f"{generator} nvrtc {version}", generator]


@cache
def generator_version() -> str:
    """Digest of the source of everything between a trace and its code, and of LLVM's version: an object
    made by any other generator is not found in the cache, and nobody has to remember a number. NVRTC's
    version is told beside it."""
    import llvmlite

    state = hashlib.blake2b(llvmlite.__version__.encode(), digest_size=16)
    sources = [x for package in _GENERATOR for x in _sources(files(package), package)]
    sources += [(x, files("autotune").joinpath(x).read_bytes()) for x in _CHECKS]
    for name, data in sources:
        state.update(f"\n{name} {len(data)}\n".encode())
        state.update(data)
    return state.hexdigest()


def _sources(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for item in sorted(folder.iterdir(), key=lambda x: x.name):
        if item.name.endswith((".py", ".h")):
            found.append((f"{prefix}/{item.name}", item.read_bytes()))
        elif item.name != "__pycache__" and item.is_dir():
            found += _sources(item, f"{prefix}/{item.name}")
    return found


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
    from autotune.building.grid_code import is_grid_code

    if not is_grid_code(obj):
        return bundle.load(obj)
    from autotune.devices.object import DeviceObject

    return DeviceObject(obj), {}
