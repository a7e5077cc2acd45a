"""Kernels that are written by hand in CUDA C, as the emulator runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune.codegen.simt import cxx, emulator
from schedules.expr import Const
from schedules.ir import Buffer, Seq
from schedules.ir.grid import GridKernel, GridProgram


def emulated(
    body: str,
    arrays: Mapping[str, np.ndarray],
    block: tuple[int, int, int] = (32, 1, 1),
    grid: tuple[int, int, int] = (1, 1, 1),
    written: str = "out",
    *flags: str,
) -> dict[str, str | None]:
    """What each order says of a kernel: a fault, or None. Its parameters are ``arrays`` by name, of which it
    writes ``written`` (the last)."""
    params = tuple(Buffer(n, tuple(map(Const, a.shape)), str(a.dtype)) for n, a in arrays.items())
    kernel = GridKernel("kernel0", params, frozenset({written}), grid, block, (), Seq(()))
    program = GridProgram(params, (written,), (), (kernel,))
    text = emulator.text(program)
    empty = " {\n}\n"
    assert text.count(empty) == 1
    names = "".join(f"  auto {n} = v_{n};\n" for n in arrays)
    obj = emulator.linked(text.replace(empty, " {\n" + names + body + "\n}\n"), "-r", *flags)
    said = {}
    for order in emulator.ORDERS:
        arrays[written].view(np.uint8).fill(0xFF)
        said[order] = emulator.run(obj, program, list(arrays.values()), order=order, seed=1)
    return said


def one_fault(said: Mapping[str, str | None]) -> str:
    """What all orders say."""
    assert all(said.values()), said
    (text,) = {x.split(":")[0].split("[")[0] for x in said.values() if x}
    return text


def halves(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype("float16")
