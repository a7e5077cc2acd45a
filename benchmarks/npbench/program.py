"""What a program of the suite is: sizes, arrays, numpy's words for it, loops for compilers, its kernels."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

Sizes = Mapping[str, Any]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Program:
    """One program of the suite, in words of our own.

    ``sizes``: sizes by preset: S and M are the suite's, tiny and odd are for tests. ``arrays(p, rng)``: every
    array of a call by name: inputs, outputs and scratch. Floats are made as float64; a number is a 0-d array.
    ``outputs``: names of results, in the order in which the following return them. ``reference(a, p)``:
    numpy's program.
    ``kernels(t, p)``: tensors of each kernel for dtype ``t``. ``run(k, a, p)``: calls them.
    ``repeats(k, p)``: kernels that run again and again in one call, by name; ``run`` finds them in ``k`` too.
    ``loops``: the program as loops over elements, which numba and a C compiler take; its parameters are
    names of arrays and sizes, and it stores in arrays. ``uses``: the public words it needs beyond plain
    stages. ``dtype``: that of the suite. ``rtol``: of float64, of what is compared; float32 has its own.
    """

    name: str
    sizes: Mapping[str, Sizes]
    arrays: Callable[[Any, np.random.Generator], Arrays]
    outputs: tuple[str, ...]
    reference: Callable[[Any, Any], tuple[Any, ...]]
    kernels: Callable[[str, Any], Mapping[str, Sequence[Any]]]
    run: Callable[[Any, Any, Any], tuple[Any, ...]]
    loops: Callable[..., None]
    uses: str = ""
    repeats: Callable[[Any, Any], Mapping[str, Any]] = lambda k, p: {}
    dtype: str = "float64"
    rtol: float = 1e-10
    rtol32: float = 2e-3


def sizes(small: Sizes, medium: Sizes, tiny: Sizes, odd: Sizes) -> Mapping[str, Sizes]:
    """Sizes by preset."""
    return {"S": small, "M": medium, "tiny": tiny, "odd": odd}


def unset(*shape: int) -> np.ndarray:
    """An array of an output or of scratch: NaN everywhere."""
    return np.full(shape, np.nan)


def sized(program: Program, preset: str) -> SimpleNamespace:
    """The sizes of a preset as attributes."""
    return SimpleNamespace(**program.sizes[preset])


def made(program: Program, p: Any, dtype: str) -> Arrays:
    """Arrays of a call from a seed of the program's name; floats have ``dtype``."""
    rng = np.random.default_rng(zlib.crc32(program.name.encode()))
    found = {name: np.asarray(x) for name, x in program.arrays(p, rng).items()}
    return {
        n: np.ascontiguousarray(x, dtype).reshape(x.shape) if x.dtype.kind == "f" else x
        for n, x in found.items()
    }


def copied(arrays: Arrays) -> SimpleNamespace:
    """Copies of arrays as attributes."""
    return SimpleNamespace(**{name: x.copy() for name, x in arrays.items()})


def refer(program: Program, p: Any, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Results of numpy's program on copies; numbers are numpy's scalars there."""
    a = SimpleNamespace(**{name: x.copy() if x.ndim else x[()] for name, x in arrays.items()})
    with np.errstate(all="ignore"):
        return tuple(np.asarray(x) for x in program.reference(a, p))


def looped(
    program: Program, p: Any, arrays: Arrays, loops: Callable[..., Any] | None = None
) -> tuple[Any, ...]:
    """Results of the loops, in Python or compiled, on copies."""
    a = copied(arrays)
    (loops or program.loops)(*arguments(program.loops, p, a))
    return tuple(getattr(a, name) for name in program.outputs)


def arguments(loops: Callable[..., Any], p: Any, a: Any) -> list[Any]:
    """What loops are called with: arrays, and numbers by value."""
    names = loops.__code__.co_varnames[: loops.__code__.co_argcount]
    values = [getattr(a, n) if hasattr(a, n) else getattr(p, n) for n in names]
    return [x[()] if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in values]


def distance(got: Sequence[Any], want: Sequence[Any]) -> float:
    """The largest difference, relative to the largest number of an output. NaN is NaN's equal."""
    found = 0.0
    for g, w in zip(got, want, strict=True):
        g, w = np.asarray(g), np.asarray(w)
        if g.shape != w.shape:
            raise ValueError(f"an output has shape {g.shape}, not {w.shape}")
        g, w = g.astype("float64"), w.astype("float64")
        known = np.isfinite(w)
        if not np.array_equal(known, np.isfinite(g)):
            return float("inf")
        scale = float(np.abs(w[known]).max(initial=0.0)) or 1.0
        found = max(found, float(np.abs(g[known] - w[known]).max(initial=0.0)) / scale)
    return found
