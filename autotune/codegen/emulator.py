"""CUDA C as an object of this CPU: what a GPU would run, run by fibers (``emulator.h``).

The object has the entry that kernels of the CPU have (`autotune.codegen.entry`), so that it is measured,
checked, kept and loaded as these are. Emulation is for tests and for finding mistakes; its times say nothing
about a GPU.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path

import numpy as np

from autotune.codegen import cuda, entry
from autotune.codegen.simt import ITEM
from autotune.errors import CompileError
from schedules.ir import Buffer, const
from schedules.simt import GridKernel, GridProgram

FLAGS = ("-O1", "-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-w")
ALIGN = 256


def build(program: GridProgram) -> bytes:
    """The object file of a program. Raises CompileError, also where there is no g++."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise CompileError("emulating a GPU needs g++; install it, or use target='cpu'")
    with tempfile.TemporaryDirectory() as tmp:
        source, out = Path(tmp) / "kernel.cpp", Path(tmp) / "kernel.o"
        source.write_text(text(program), encoding="utf-8")
        done = subprocess.run(
            [compiler, *FLAGS, "-c", str(source), "-o", str(out)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise CompileError(f"g++ refused the generated code: {done.stderr[:600]}")
        return out.read_bytes()


def text(program: GridProgram) -> str:
    """What is compiled: the shim, the CUDA C, launches, and the entry."""
    shim = files("autotune.codegen").joinpath("emulator.h").read_text(encoding="utf-8")
    offsets, size = {}, 0
    for b in program.scratch:
        offsets[b.name] = size
        size += -(-_bytes(b) // ALIGN) * ALIGN
    places = {b.name: f"args[{n}]" for n, b in enumerate(program.params)}
    places |= {n: f"(char *)args[{len(program.params)}] + {at}" for n, at in offsets.items()}
    launches = "\n".join(_launch(k, places) for k in program.kernels)
    wrappers = "\n".join(_wrapper(k) for k in program.kernels)
    signature = entry.signature(program.params, program.outputs)
    count = len(program.params)
    return f"""{shim}
{cuda.source(program)}
{wrappers}
extern "C" const char *at_emulate(void **given, void *scratch) {{
  void *args[{count + 1}];
  memcpy(args, given, sizeof(void *) * {count});
  args[{count}] = scratch;
  at_begin();
{launches}
  return at_end();
}}
extern "C" const at_head at_header;
const at_head at_header = {{{entry.ABI}, 1, {size}, at_kernel, "{signature}"}};
"""


def _wrapper(k: GridKernel) -> str:
    args = ", ".join(
        f"({'' if b.name in k.written else 'const '}{cuda.CUDA.types[b.dtype]} *)args[{n}]"
        for n, b in enumerate(k.params)
    )
    return f"static void at_{k.name}(void **args) {{ {k.name}({args}); }}"


def _launch(k: GridKernel, places: dict[str, str]) -> str:
    args = ", ".join(places[b.name] for b in k.params)
    grid, block = (", ".join(map(str, x)) for x in (k.grid, k.block))
    return (
        f"  {{ void *own[] = {{{args}}};\n"
        f"    if (!at_failed) at_launch(at_{k.name}, own, {{{grid}}}, {{{block}}}); }}"
    )


def _bytes(b: Buffer) -> int:
    return math.prod(const(n) or 1 for n in b.shape) * ITEM[b.dtype]


def run(obj: bytes, arrays: list[np.ndarray], scratch_bytes: int = 0) -> str | None:
    """Run an object of `build` on arrays, inputs then outputs; what went wrong, None for nothing."""
    import ctypes

    from autotune.codegen.compile import link

    at, keep = link(obj, ("at_emulate",), {})
    call = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)(at["at_emulate"])
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    scratch = np.full(max(1, scratch_bytes), 0xFF, np.uint8)
    said = call(ctypes.addressof(pointers), scratch.ctypes.data)
    del keep
    return said.decode() if said else None
