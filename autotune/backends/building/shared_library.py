"""A shared object of a kernel, with functions of C. Needs a linker: llvmlite makes objects only."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

from autotune.backends.building.from_trace import module_of, programs
from autotune.codegen.llvm.compile import TILES, compile_module, host_target
from autotune.codegen.runtime import c_entry, support, threads
from autotune.codegen.runtime.by_cpu import SharedEntry, by_cpu, suffixed
from autotune.codegen.simt import cxx
from autotune.errors import CompileError
from autotune.targets.askable import baseline
from kernels_db.temporary import temporary_folder
from schedules.distribution import install
from schedules.ir import LoweredFunc
from schedules.ir.arguments import arguments
from schedules.model import Target, Trace
from schedules.te.compute_dag import ComputeDAG

MISSING = (
    "a shared object needs a linker, which LLVM as llvmlite has it lacks: install gcc, or "
    f"{install('emulator')}"
)
ELSEWHERE = "a shared object for {0} needs a linker for it: install gcc-{0}-linux-gnu, or " + install(
    "emulator"
)
_DRIVERS = ("cc", "gcc", "clang", "g++", "c++", "clang++")
DEFINED = "define void @kernel("


@dataclass(frozen=True)
class CodeOf:
    """Code of one target in a shared object: its schedule, and what `by_cpu` calls it. ``copied``: bytes of
    each input that others read packed and this code reads as it is, by its name."""

    trace: Trace
    target: Target
    name: str = ""
    copied: Mapping[str, int] = field(default_factory=dict)


def shared_library(
    dag: ComputeDAG, codes: Sequence[CodeOf], functions: Mapping[str, str], soname: str, chosen: str = ""
) -> bytes:
    """``functions``: the name of the kernel's function, by "", and of each that packs a constant input, by
    that input's, as `c_entry` defines them. ``codes``: one; or any number with ``chosen``, the name of the
    function that tells which of them this processor runs (`by_cpu`). Raises ScheduleError where a trace is
    not legal, ArgumentError for targets of several families, and CompileError, also without a linker."""
    common, objects, entries = codes[0].target, [], dict[str, SharedEntry]()
    if chosen:
        common = baseline([c.target for c in codes])
    for i, code in enumerate(codes):
        named = {k: suffixed(f, i) for k, f in functions.items()} if chosen else functions
        main, packing = programs(dag, code.trace, code.target)
        parts = {"": main} | {dag.inputs[k].name: func for k, func in packing.items()}
        for part, func in parts.items():
            objects.append(compile_module(_text(func, code.target, named[part]), code.target))
            takes = ("ptr",) * (2 if part else len(arguments(func.params, func.joined)))
            entries[functions[part]] = SharedEntry(functions[part], takes + ("i64",) * len(func.sizes))
        for part, nbytes in code.copied.items():
            objects.append(compile_module(c_entry.copying(named[part], nbytes), common))
    objects.append(compile_module(support.running(), common, optimize=False))
    objects += shared_parts(objects, common)
    if any(TILES in x for x in objects):
        objects.append(compile_module(c_entry.tiles(), common, optimize=False))
    released = [f"{f}_release" for f in functions.values()]
    if chosen:
        asked = [*entries.values(), *(SharedEntry(f, (), "void", "") for f in released)]
        text = by_cpu(asked, [c.target for c in codes], [c.name for c in codes], chosen)
        objects.append(compile_module(text, common, optimize=False))
        return link(objects, [*functions.values(), *released, chosen], soname, common.triple)
    return link(objects, [*functions.values(), *released], soname)


def shared_parts(objects: Sequence[bytes], target: Target) -> list[bytes]:
    """The thread pool, where one of the objects uses it."""
    if not any(b"at_parallel\0" in x for x in objects):
        return []
    restart = compile_module(c_entry.fork_handler(), target, optimize=False)
    return [compile_module(threads.text(target.triple), target), restart]


def linker(triple: str = "") -> tuple[str, ...] | None:
    """The command that links for a triple, by default this host's; None if there is none."""
    family = triple.partition("-")[0]
    if family in ("", host_target().triple.partition("-")[0]):
        return cxx.command(_DRIVERS, "cc")
    found = cxx.command([f"{family}-linux-gnu-gcc"], "cc")
    return (*found, "-target", f"{family}-linux-gnu") if found is not None and found[1:] else found


def linker_name() -> str | None:
    """The name of the command that links, None if there is none."""
    found = linker()
    return None if found is None else cxx.name(found)


def link(
    objects: Sequence[bytes],
    symbols: Sequence[str],
    soname: str,
    triple: str = "",
    sources: Sequence[str] = (),
    given: Mapping[str, Path] = MappingProxyType({}),
) -> bytes:
    """The shared object of ELF objects, which others see as ``symbols`` alone. ``triple``: whom it is for, by
    default this host. ``sources``: texts in C, which are a part of it and may include the files ``given``, by
    name. Raises CompileError."""
    driver = linker(triple)
    if driver is None:
        family = triple.partition("-")[0]
        raise CompileError(MISSING if linker() is None else ELSEWHERE.format(family))
    with temporary_folder() as tmp:
        # Names in the directory, as its own may have what the linker takes for a comma between options.
        parts = [f"{i}.o" for i in range(len(objects))]
        for part, code in zip(parts, objects, strict=True):
            Path(tmp, part).write_bytes(code)
        for i, text in enumerate(sources):
            parts.append(f"source{i}.c")
            Path(tmp, parts[-1]).write_text(text, encoding="utf-8")
        for name, place in given.items():
            Path(tmp, name).symlink_to(place)
        visible = "{ global: " + "".join(f"{s}; " for s in symbols) + "local: *; };\n"
        Path(tmp, "symbols").write_text(visible, encoding="ascii")
        # Nothing unmaps it: workers of its pool may still run its code.
        flags = ["-O2", "-fPIC"] if sources else []
        flags += ["-Wl,--version-script=symbols", f"-Wl,-soname,{soname}", "-Wl,-z,nodelete,-z,defs"]
        command = [*driver, "-shared", "-o", "linked.so", *parts, *flags, "-lm", "-lpthread"]
        done = subprocess.run(command, cwd=tmp, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            raise CompileError(f"{cxx.name(driver)} could not link {soname}: {done.stderr[:600]}")
        return Path(tmp, "linked.so").read_bytes()


def _text(func: LoweredFunc, target: Target, function: str) -> str:
    text = module_of(func, target, partial(c_entry.c_entry, function)).text
    # Each of the objects has a kernel.
    text = text.replace(DEFINED, DEFINED.replace("define", "define internal"), 1)
    return text.replace("@at_run(", "@at_run_tiles(") if "@at_tiles" in text else text
