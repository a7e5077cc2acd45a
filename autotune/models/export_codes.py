"""Sets of code of an exported model: its kernels for each processor, and how each reads the weights."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune import backends
from autotune.backends.building.model_library import FunctionCode, KernelCode
from autotune.codegen.runtime.by_cpu import suffixed
from autotune.codegen.runtime.entry import nbytes_of
from autotune.models.host_memory import HostMemory
from autotune.models.outline import nbytes
from autotune.models.program import Program
from autotune.models.weights import Use, uses
from autotune.run.export_codes import ChosenCode, chosen_codes
from autotune.run.kernel import Kernel
from autotune.run.warned import warn
from schedules.model import Target, Trace, Workload


@dataclass(frozen=True)
class CodeSet:
    """The code of one target. ``prefix``: of the names of its functions. ``programs``: of the model, with
    kernels for the target. ``functions``: {key of a kernel (`key`): its code}. ``packs``: whether weights
    are packed when the model is made, and are `PackedLater` in the programs."""

    name: str
    target: Target
    prefix: str
    programs: tuple[Program, ...]
    functions: Mapping[str, KernelCode]
    packs: bool

    @property
    def objects(self) -> list[bytes]:
        return [x for f in self.functions.values() for x in f.objects]

    def code(self, kernel: Any) -> KernelCode:
        """The code of one of the programs' kernels."""
        return self.functions[key(kernel)]


@dataclass(frozen=True, eq=False)
class PackedLater:
    """A weight as a program reads it (``use``), which is made where the model is. ``symbol``: the function
    that packs it; "" where it is read as it is."""

    use: Use
    nbytes: int
    symbol: str


@dataclass(frozen=True)
class _Code:
    scratch_bytes: int
    threads: int


@dataclass(frozen=True, eq=False)
class _ForeignKernel:
    """What a `Program` asks of a kernel, for a processor that need not be this one."""

    workload: Workload
    target: Target
    trace: Trace
    packed: frozenset[int]
    code: _Code
    chosen: ChosenCode


def key(kernel: Any) -> str:
    """What tells the code of a kernel's own schedule apart."""
    return _key(kernel, kernel.trace, kernel.target)


def _key(kernel: Any, trace: Trace, target: Target) -> str:
    return f"{kernel.workload.digest} {trace.to_json()} {target.threads}"


def own_set(name: str, programs: Sequence[Program], target: Target) -> CodeSet:
    """The code of this machine, whose weights are packed already."""
    functions: dict[str, KernelCode] = {}
    for k in (k for p in programs for k in p.kernels):
        _compile(functions, k, k.trace, backends.confined(k.target), "at_kernel", False)
    return CodeSet("", target, name, tuple(programs), functions, False)


def sets_of(
    name: str, programs: Sequence[Program], targets: Sequence[str | Target], where: str
) -> list[CodeSet]:
    """The code of each target. ``where``: the log. First picks come with one warning. Raises as
    `autotune.run.export_codes.chosen_codes`."""
    kernels = {key(k): k for p in programs for k in p.kernels}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        chosen = {n: chosen_codes(k, targets, where) for n, k in kernels.items()}
    if said:
        warn(f"{len(said)} of {len(kernels)} tasks lack schedules of targets. The first: {said[0].message}")
    count = len(next(iter(chosen.values())))
    return [_set(i, name, programs, {n: found[i] for n, found in chosen.items()}) for i in range(count)]


def _set(i: int, name: str, programs: Sequence[Program], chosen: Mapping[str, ChosenCode]) -> CodeSet:
    functions: dict[str, KernelCode] = {}
    made = []
    for p in programs:
        foreign: list[Any] = []
        for k in p.kernels:
            c = chosen[key(k)]
            code = _compile(functions, k, c.trace, c.target, f"at_set{i}_kernel", True)
            run = _Code(code.main.scratch_bytes, c.target.threads)
            packed = frozenset(code.packing)
            foreign.append(_ForeignKernel(k.workload, c.target, c.trace, packed, run, c))
        later = {
            use: PackedLater(use, *_packed(p, foreign, use, functions))
            for ways in uses(p.outline, foreign).values()
            for use in ways
        }
        made.append(Program(p.outline, foreign, later, p.run_island, HostMemory(), p.initial))
    one = next(iter(chosen.values()))
    return CodeSet(one.name, one.target, suffixed(name, i), tuple(made), functions, True)


def _packed(
    p: Program, kernels: Sequence[Any], use: Use, functions: Mapping[str, KernelCode]
) -> tuple[int, str]:
    """Bytes of a weight as it is read, and the function that packs it."""
    if not use.packed:
        return nbytes(p.outline.tensors[use.weight]), ""
    kernel = kernels[use.task]
    symbol = functions[key(kernel)].packing[use.argument].symbol
    return nbytes_of(kernel.chosen.packed[use.argument]), symbol


def _compile(
    functions: dict[str, KernelCode],
    kernel: Kernel,
    trace: Trace | None,
    target: Target,
    prefix: str,
    packing: bool,
) -> KernelCode:
    """The code of a schedule, which is compiled once."""
    assert trace is not None
    word = _key(kernel, trace, target)
    if word not in functions:
        symbol = f"{prefix}{len(functions)}"
        made = backends.of(target).kernel_code(kernel.workload.dag, trace, target, symbol, packing)
        functions[word] = made
    return functions[word]


def scratch_of(code: CodeSet) -> int:
    """The most scratch memory of what packs weights."""
    packing: list[FunctionCode] = [f for x in code.functions.values() for f in x.packing.values()]
    return max((f.scratch_bytes for f in packing), default=0)
