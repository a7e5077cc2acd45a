"""Kernels that are written by hand in CUDA C, as the emulator runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.codegen.simt import emulator
from schedules.expr import Const
from schedules.ir import Buffer, Seq
from schedules.ir.grid import GridKernel, GridProgram

WALL = 1 << 16
POISON = 0xA5


@dataclass(frozen=True)
class Ran:
    """What became of a run: a fault or none, and what it wrote."""

    fault: str | None
    out: np.ndarray


def emulated(
    body: str,
    arrays: Mapping[str, np.ndarray],
    block: tuple[int, int, int] = (32, 1, 1),
    grid: tuple[int, int, int] = (1, 1, 1),
    flags: tuple[str, ...] = (),
) -> dict[str, Ran]:
    """A kernel in each order. Its parameters are ``arrays`` by name, of which it writes the last."""
    params = tuple(Buffer(n, tuple(map(Const, a.shape)), str(a.dtype)) for n, a in arrays.items())
    written = params[-1].name
    kernel = GridKernel("kernel0", params, frozenset({written}), grid, block, (), Seq(()))
    program = GridProgram(params, (written,), (), (kernel,))
    text = emulator.text(program)
    empty = " {\n}\n"
    assert text.count(empty) == 1
    names = "".join(f" auto {n} = v_{n};" for n in arrays)
    obj = emulator.linked(text.replace(empty, f" {{{names}\n{body}\n}}\n"), "-r", *flags)
    ran = {}
    for order in emulator.ORDERS:
        inputs = [a for n, a in arrays.items() if n != written]
        ran[order] = run_between_walls(obj, program, inputs, arrays[written], order)
    return ran


def run_between_walls(
    obj: bytes,
    program: GridProgram,
    inputs: Sequence[np.ndarray],
    like: np.ndarray,
    order: str,
    which: int = 0,
) -> Ran:
    """A run of a program of one output. Between its arrays lies memory that is none of them."""
    sizes = [-(-a.nbytes // WALL) * WALL for a in (*inputs, like)]
    memory = np.full(sum(sizes) + WALL * (len(sizes) + 1), POISON, np.uint8)
    placed, at = [], WALL
    for a, size in zip((*inputs, like), sizes, strict=True):
        placed.append(memory[at : at + a.nbytes].view(a.dtype).reshape(a.shape))
        at += size + WALL
    for a, here in zip(inputs, placed, strict=False):
        here[...] = a
    before = memory.copy()
    fault = emulator.run(obj, program, placed, which, order=order, seed=1)
    out = placed[-1].copy()
    placed[-1].view(np.uint8)[...] = POISON
    if fault is None and not np.array_equal(before, memory):
        fault = "memory that is no output is written"
    return Ran(fault, out)


def unanimous(ran: Mapping[str, Ran], right: np.ndarray) -> dict[str, str]:
    """What is wrong with each run: its fault, or its numbers. Empty where all is well."""
    said = {}
    for order, x in ran.items():
        if x.fault or not np.array_equal(x.out, right):
            said[order] = x.fault or "wrong numbers"
    return said
