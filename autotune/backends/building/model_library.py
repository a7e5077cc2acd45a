"""A shared object of a whole model: kernels, what runs them (`autotune.codegen.runtime.model_tables`), and
perhaps the weights. What runs them is C, so that it needs a compiler of it, as linking does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.backends.building.from_trace import module_of, programs
from autotune.backends.building.shared_library import DEFINED, link, shared_parts
from autotune.codegen.llvm.compile import compile_module
from autotune.codegen.runtime.by_cpu import SharedEntry, by_cpu
from schedules.ir import LoweredFunc
from schedules.model import Target, Trace
from schedules.te.compute_dag import ComputeDAG


@dataclass(frozen=True)
class FunctionCode:
    """An object with the function ``void symbol(ptr args, ptr scratch, i32 threads)``, and the bytes of
    scratch memory that it needs."""

    symbol: str
    code: bytes
    scratch_bytes: int


@dataclass(frozen=True)
class KernelCode:
    """A kernel, and by the number of a weight what packs it: a function of the weight and what is packed."""

    main: FunctionCode
    packing: Mapping[int, FunctionCode]

    @property
    def objects(self) -> list[bytes]:
        return [self.main.code, *(f.code for f in self.packing.values())]


def kernel_code(
    dag: ComputeDAG, trace: Trace, target: Target, symbol: str, packing: bool = False
) -> KernelCode:
    """The function ``symbol`` of a schedule. ``packing``: whether with what packs its weights. Raises
    ScheduleError where the trace is not legal, and CompileError."""
    main, packs = programs(dag, trace, target)
    made = {i: function_code(f, target, f"{symbol}_pack{i}") for i, f in packs.items()} if packing else {}
    return KernelCode(function_code(main, target, symbol), made)


def function_code(func: LoweredFunc, target: Target, symbol: str) -> FunctionCode:
    """The function ``symbol`` of a program."""
    module = module_of(func, target, lambda *_: "")
    text = module.text.replace(DEFINED, f"define void @{symbol}(", 1)
    return FunctionCode(symbol, compile_module(text, target), module.scratch_bytes)


@dataclass(frozen=True)
class ModelParts:
    """What a shared object is made of. ``objects``: of kernels. ``sources``: texts in C. ``symbols``: what
    others see. ``weights``: a file that becomes a part of it. ``entries``: functions that each of the sets of
    code has, which are for ``targets`` of these ``names``; ``chosen`` tells which is taken."""

    objects: Sequence[bytes]
    sources: Sequence[str]
    symbols: Sequence[str]
    weights: Path | None = None
    entries: Sequence[SharedEntry] = ()
    targets: Sequence[Target] = ()
    names: Sequence[str] = ()
    chosen: str = ""


def model_library(parts: ModelParts, common: Target, soname: str) -> bytes:
    """``common``: what is compiled for every processor that runs any of the code. Raises CompileError, also
    without a compiler of C."""
    objects, symbols = [*parts.objects, *shared_parts(parts.objects, common)], [*parts.symbols]
    if parts.chosen:
        text = by_cpu(parts.entries, parts.targets, parts.names, parts.chosen)
        objects.append(compile_module(text, common, optimize=False))
        symbols.append(parts.chosen)
    given: Mapping[str, Path] = {} if parts.weights is None else {"weights": parts.weights.absolute()}
    return link(objects, symbols, soname, common.triple, parts.sources, given)
