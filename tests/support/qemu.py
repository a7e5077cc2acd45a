"""Runs kernels of AArch64 by qemu, as one static program a kernel, beside GNU's assembler and linker."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from needs import missing

from autotune.codegen.llvm.compile import compile_module
from autotune.targets.names import from_name
from schedules.model import Target

# Of this family, for what was linked for a host of it; a processor that it knows is given by -cpu.
X86 = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
TOOLS = {name: shutil.which(f"aarch64-linux-gnu-{name}") for name in ("as", "ld")}
# Where the C library of AArch64 is, for programs that are not static.
SYSROOT = next(
    (x for x in (os.environ.get("QEMU_LD_PREFIX"), "/usr/aarch64-linux-gnu")
     if x and Path(x, "lib/ld-linux-aarch64.so.1").exists()), None,
)  # fmt: skip
TARGET = from_name("neoverse-v1")
# Reads all arrays, calls the kernel, writes all arrays. Loads may ask for memory to be set or moved, and what
# chooses code asks what the processor is.
START = """
 .text
 .globl _start, memset, memcpy, memmove, getauxval
_start:
 adrp x1, stack
 mov x0, sp
 str x0, [x1, :lo12:stack]
 adrp x19, all
 add x19, x19, :lo12:all
 ldr x20, =TOTAL
 mov x21, x19
 mov x22, x20
read:
 mov x0, #0
 mov x1, x21
 mov x2, x22
 mov x8, #63
 svc #0
 cmp x0, #0
 b.le call
 add x21, x21, x0
 subs x22, x22, x0
 b.gt read
call:
 adrp x0, args
 add x0, x0, :lo12:args
 adrp x1, scratch
 add x1, x1, :lo12:scratch
 mov w2, #1
 bl kernel
write:
 mov x0, #1
 mov x1, x19
 mov x2, x20
 mov x8, #64
 svc #0
 add x19, x19, x0
 subs x20, x20, x0
 b.gt write
 mov x0, #0
 mov x8, #93
 svc #0
memset:
 mov x3, x0
1: cbz x2, 2f
 strb w1, [x3], #1
 sub x2, x2, #1
 b 1b
2: ret
memcpy:
memmove:
 mov x3, x0
1: cbz x2, 2f
 ldrb w4, [x1], #1
 strb w4, [x3], #1
 sub x2, x2, #1
 b 1b
2: ret
getauxval:
 adrp x1, stack
 ldr x1, [x1, :lo12:stack]
 ldr x2, [x1], #8
 add x1, x1, x2, lsl #3
 add x1, x1, #8
1: ldr x2, [x1], #8
 cbnz x2, 1b
2: ldp x2, x3, [x1], #16
 cbz x2, 3f
 cmp x2, x0
 b.ne 2b
 mov x0, x3
 ret
3: mov x0, #0
 ret
 .data
 .balign 64
args:
ARGS
 .bss
 .balign 64
stack: .skip 64
all: .skip TOTAL
 .balign 64
scratch: .skip SCRATCH
"""


def need_qemu() -> None:
    """Skip where a program is missing."""
    if QEMU is None or not all(TOOLS.values()):
        missing("qemu")


def run(
    text: str,
    arrays: Sequence[np.ndarray],
    scratch_bytes: int,
    where: Path,
    target: Target = TARGET,
    cpu: str = "max",
) -> list[np.ndarray]:
    """The arrays after a kernel ran on them, on a processor that qemu knows as ``cpu``. ``text``: LLVM IR
    that defines ``@kernel``."""
    need_qemu()
    sizes = [-(-x.nbytes // 64) * 64 for x in arrays]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    words = {
        "ARGS": "\n".join(f" .quad all + {at}" for at in starts), "TOTAL": str(sum(sizes)),
        "SCRATCH": str(scratch_bytes + 64),
    }  # fmt: skip
    start = START
    for old, new in words.items():
        start = start.replace(old, new)
    (where / "start.s").write_text(start)
    (where / "kernel.o").write_bytes(compile_module(text, target))
    subprocess.run([TOOLS["as"], "-o", "start.o", "start.s"], cwd=where, check=True)
    subprocess.run([TOOLS["ld"], "-o", "run", "start.o", "kernel.o"], cwd=where, check=True)
    given = b"".join(x.tobytes().ljust(n, b"\0") for x, n in zip(arrays, sizes, strict=True))
    done = subprocess.run([QEMU, "-cpu", cpu, "run"], cwd=where, input=given, capture_output=True, check=True)
    return [
        np.frombuffer(done.stdout, x.dtype, x.size, at).reshape(x.shape)
        for x, at in zip(arrays, starts, strict=True)
    ]
