"""Compiles CUDA C to an object for this CPU: fibers run what a GPU would run (``emulator.h``).

What runs them (``emulator_runtime.cpp``, ``emulator_matrices.cpp``) is compiled once and linked to each. The
object has the entry of CPU kernels (`autotune.codegen.runtime.entry`), so it is measured, checked, kept
and loaded as these are. Emulation is for tests and for finding mistakes. Its times say nothing about a GPU.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files

import numpy as np

from autotune.codegen.grid_code import GridCode
from autotune.codegen.runtime import entry
from autotune.codegen.simt import cuda, cxx
from autotune.codegen.simt.emit import atomics_of, emit
from autotune.settings.hooks import hook
from kernels_db.temporary import temporary_folder
from schedules.ir import nbytes
from schedules.ir.grid import GridKernel, GridProgram
from schedules.model import canonical, digest

# Flags of the C++ compiler. From C++17 on, <math.h> has special functions that take most of a compilation.
FLAGS = (
    "-O1", "-std=gnu++14", "-Ulinux", "-Uunix", "-fPIC", "-fno-exceptions", "-fno-rtti",
    "-fno-threadsafe-statics", "-fno-asynchronous-unwind-tables", "-w", "-ffp-contract=off",
)  # fmt: skip
# Orders in which threads take turns and copies land.
ORDERS = ("early", "late", "random")
_RUNTIME = ("emulator_runtime.cpp", "emulator_matrices.cpp")
# Alignment of arrays between kernels (bytes).
ALIGN = 256


def build(*programs: GridProgram) -> bytes:
    """The object file of one or more programs, which `run` selects by number. Raises CompileError, also
    without a C++ compiler."""
    return linked(text(*programs), "-r")


def driver(code: GridCode, *, shared: bool = False) -> bytes:
    """An object, or a shared library, with the functions that a driver launches (`launched`), and the
    launcher ``at_cuLaunchKernel``. Raises CompileError."""
    parts = ["#define AT_STRICT", _shim(), code.source]
    types = {a.name: cuda.CUDA.types[a.dtype] for a in (*code.params, *code.scratch)}
    for x in code.launches:
        args = ", ".join(f"({types[n]} *)*(void **)params[{i}]" for i, n in enumerate(x.arrays))
        parts.append(f'extern "C" void {launched(x.kernel)}(void **params) {{ {x.kernel}({args}); }}')
        # what a driver reads in a GPU's code: it copies the parameters of what it launches later
        parts.append(f'extern "C" const int {launched(x.kernel)}_count = {len(x.arrays)};')
    return linked("\n".join([*parts, "AT_DRIVER"]), "-shared" if shared else "-r")


def linked(source: str, *how: str) -> bytes:
    """What the C++ compiler makes of a source and the runtime. Loops stay loops. GCC does not know the advice
    to unroll them. Clang takes it for each, however large, and compiles for tens of times as long."""
    with temporary_folder() as tmp:
        path = tmp / "runtime.o"
        path.write_bytes(runtime(cxx.command() or ()))
        return cxx.build(source.replace("#pragma unroll", ""), *FLAGS, *how, "-nostdlib", given=[path])


@cache
def runtime(compiler: tuple[str, ...]) -> bytes:
    """The object of what runs fibers, by a compiler; from the cache of objects where that has it. Raises
    CompileError."""
    source = _shim() + "".join(map(_file, _RUNTIME))
    objects = hook("objects")()
    key = digest(canonical(["emulator", source, *FLAGS, *compiler, platform.machine()]))
    found: bytes | None = objects.get(key)
    if found is None:
        found = cxx.build(source, *FLAGS, "-c")
        objects.put(key, found)
    return found


def launched(kernel: str) -> str:
    """Name of the function that a driver launches for a kernel."""
    return f"at_{kernel}"


def _shim() -> str:
    return _file("emulator.h")


def _file(name: str) -> str:
    return files("autotune.codegen.simt").joinpath(name).read_text(encoding="utf-8")


def text(*programs: GridProgram) -> str:
    """The source that is compiled: shim, CUDA C, launches, and the entry, which runs the first program."""
    made = [_program(p, n) for n, p in enumerate(programs)]
    parts = [_shim(), cuda.CUDA.before("".join(made)), *atomics_of(cuda.CUDA, *programs), *made]
    first = programs[0]
    calls = ", ".join(f"at_program{n}" for n in range(len(programs)))
    size, _ = _scratch(first)
    signature = entry.signature(first.params, first.outputs)
    return "\n".join(
        [
            *parts,
            f"static void (*const at_programs[])(void **, void *) = {{{calls}}};",
            f'AT_ENTRY({entry.ABI}, {size}, "{signature}")',
        ]
    )


def _program(program: GridProgram, number: int) -> str:
    """Kernels under their own names, and a function that launches them in sequence."""
    kernels = [replace(k, name=f"p{number}_{k.name}") for k in program.kernels]
    _, offsets = _scratch(program)
    places = {b.name: f"args[{n}]" for n, b in enumerate(program.params)}
    places |= {n: f"(char *)scratch + {at}" for n, at in offsets.items()}
    # lines are told as those of the kernel
    lines = ["#line 1\n" + emit(k, cuda.CUDA).text + "\n" + _wrapper(k) for k in kernels]
    lines.append(f"static void at_program{number}(void **args, void *scratch) {{")
    lines += [_launch(k, places) for k in kernels]
    return "\n".join([*lines, "}"])


def _scratch(program: GridProgram) -> tuple[int, dict[str, int]]:
    """(bytes of the arrays between kernels, {array: its offset})."""
    offsets, size = {}, 0
    for b in program.scratch:
        offsets[b.name] = size
        size += -(-nbytes(b) // ALIGN) * ALIGN
    return size, offsets


def _wrapper(k: GridKernel) -> str:
    args = ", ".join(
        f"({'' if b.name in k.written else 'const '}{cuda.CUDA.types[b.dtype]} *)args[{n}]"
        for n, b in enumerate(k.params)
    )
    return f"static void at_{k.name}(void **args) {{ {k.name}({args}); }}"


def _launch(k: GridKernel, places: dict[str, str]) -> str:
    args = ", ".join(places[b.name] for b in k.params)
    regions = ", ".join(f"{{{places[b.name]}, {nbytes(b)}}}" for b in k.params)
    grid, block = (", ".join(map(str, x)) for x in (k.grid, k.block))
    return (
        f"  {{ void *own[] = {{{args}}};\n    at_region all[] = {{{regions}}};\n"
        f'    at_launched what = {{"{k.name}", at_{k.name}, own, all, {len(k.params)}}};\n'
        f"    at_launch(&what, {{{grid}}}, {{{block}}}); }}"
    )


def run(
    obj: bytes,
    program: GridProgram,
    arrays: Sequence[np.ndarray],
    which: int = 0,
    *,
    order: str = "random",
    seed: int = 0,
) -> str | None:
    """Run program ``which`` of an object of `build` on arrays, inputs then outputs. ``order``: of `ORDERS`,
    with the ``seed`` of a random one. Returns a mistake that a GPU would have let pass, None if there was
    none. Raises ValueError for another order."""
    from autotune.codegen.llvm.compile import link

    at, keep = link(obj, ("at_emulate",), {})
    ptr = ctypes.c_void_p
    call = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int, ptr, ptr, ctypes.c_int, ctypes.c_uint)(
        at["at_emulate"]
    )
    pointers = (ptr * len(arrays))(*(a.ctypes.data for a in arrays))
    scratch = np.full(max(1, _scratch(program)[0]), 0xFF, np.uint8)
    said = call(which, ctypes.addressof(pointers), scratch.ctypes.data, ORDERS.index(order), seed)
    del keep
    return said.decode() if said else None
