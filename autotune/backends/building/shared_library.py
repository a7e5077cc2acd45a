"""A shared object of a kernel, with functions of C. Needs a linker: llvmlite makes objects only."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from autotune.backends.building.from_trace import module_of, programs
from autotune.codegen.llvm.compile import TILES, compile_module
from autotune.codegen.runtime import c_entry, support, threads
from autotune.codegen.simt import cxx
from autotune.errors import CompileError
from kernels_db.temporary import temporary_folder
from schedules.distribution import install
from schedules.ir import LoweredFunc
from schedules.model import Target, Trace
from schedules.te.compute_dag import ComputeDAG

MISSING = (
    "a shared object needs a linker, which LLVM as llvmlite has it lacks: install gcc, or "
    f"{install('emulator')}"
)
_DRIVERS = ("cc", "gcc", "clang", "g++", "c++", "clang++")
_DEFINED = "define void @kernel("


def shared_library(
    dag: ComputeDAG, trace: Trace, target: Target, functions: Mapping[str, str], soname: str
) -> bytes:
    """``functions``: the name of the kernel's function, by "", and of each that packs a constant input, by
    that input's, as `c_entry` defines them. Raises ScheduleError where the trace is not legal, and
    CompileError, also without a linker."""
    main, packing = programs(dag, trace, target)
    parts = {"": main} | {dag.inputs[i].name: func for i, func in packing.items()}
    objects, symbols = [compile_module(support.running(), target, optimize=False)], []
    for part, func in parts.items():
        function = functions[part]
        objects.append(compile_module(_text(func, target, function), target))
        symbols += [function, f"{function}_release"]
    if any(b"at_parallel\0" in x for x in objects):
        objects.append(compile_module(threads.text(target.triple), target))
        objects.append(compile_module(c_entry.fork_handler(), target, optimize=False))
    if any(TILES in x for x in objects):
        objects.append(compile_module(c_entry.tiles(), target, optimize=False))
    return link(objects, symbols, soname)


def linker() -> tuple[str, ...] | None:
    """The command that links, None if there is none."""
    return cxx.command(_DRIVERS, "cc")


def linker_name() -> str | None:
    """The name of the command that links, None if there is none."""
    found = linker()
    return None if found is None else cxx.name(found)


def link(objects: Sequence[bytes], symbols: Sequence[str], soname: str) -> bytes:
    """The shared object of ELF objects, which others see as ``symbols`` alone. Raises CompileError."""
    driver = linker()
    if driver is None:
        raise CompileError(MISSING)
    with temporary_folder() as tmp:
        paths = [tmp / f"{i}.o" for i in range(len(objects))]
        for path, code in zip(paths, objects, strict=True):
            path.write_bytes(code)
        visible, out = tmp / "symbols", tmp / "linked.so"
        visible.write_text("{ global: " + "".join(f"{s}; " for s in symbols) + "local: *; };\n")
        # Nothing unmaps it: workers of its pool may still run its code.
        flags = [f"-Wl,--version-script={visible}", f"-Wl,-soname,{soname}", "-Wl,-z,nodelete,-z,defs"]
        command = [*driver, "-shared", "-o", out, *paths, *flags, "-lm", "-lpthread"]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompileError(f"{cxx.name(driver)} could not link {soname}: {done.stderr[:600]}")
        return out.read_bytes()


def _text(func: LoweredFunc, target: Target, function: str) -> str:
    text = module_of(func, target, partial(c_entry.c_entry, function)).text
    # Each of the objects has a kernel.
    text = text.replace(_DEFINED, _DEFINED.replace("define", "define internal"), 1)
    return text.replace("@at_run(", "@at_run_tiles(") if "@at_tiles" in text else text
