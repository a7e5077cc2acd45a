"""The spelling of generated code in a language for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from autotune.codegen.simt.atomics import Update
from schedules.ir.grid import GridKernel

# The place of an element in swizzled memory (`schedules.ir.strides.swizzled`).
SWIZZLE = ("AT_SWIZZLE", "#define AT_SWIZZLE(at, above, mask) ((at) ^ ((at) >> (above) & (mask)))\n")


@dataclass(frozen=True)
class Dialect:
    """How a language spells what the generator needs. ``types``: {dtype: C name}. ``float_suffix``: what
    ends the names of functions of float. ``without_half``: the macro that tells that it has no conversions of
    float16. ``atomics``: the functions of atomic updates. ``shuffles``: whether threads of a warp exchange
    registers. ``asked``: a shared array, with {at} besides, in memory that the launch asks for."""

    name: str
    prelude: str
    types: dict[str, str]
    head: Callable[[str, str, GridKernel], str]  # (name, parameters, kernel)
    parameter: Callable[[str, str, bool], str]  # (type, name, written)
    shared: str  # with {type}, {name} and {count}
    block_id: str  # with {axis}
    thread_id: str
    barrier: str
    load: str  # with {type}, {n}, {buffer} and {at}
    store: str  # and {value}
    atomics: Callable[[Collection[Update]], str]
    float_suffix: str
    without_half: str
    shuffles: bool
    aligned: bool  # vectors lie at multiples of their size
    asked: str = ""
    calls: str = ""  # the spelling of instructions
    caches: bool = False  # AT_READ_AS, AT_WRITE_AS and AT_STORE_AS are defined; elsewhere hints are ignored
    copies: bool = False  # AT_COPY, AT_SIGNAL and AT_AWAIT are defined; elsewhere copies are done at once
    where_used: tuple[tuple[str, str], ...] = ()  # what few kernels have, and what defines each

    def before(self, kernels: str) -> str:
        """What stands before the text of kernels."""
        return self.prelude + "".join(defined for word, defined in self.where_used if word in kernels)
