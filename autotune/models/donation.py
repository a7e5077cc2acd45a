"""Inputs whose memory a caller gives away: an output of the same shape takes it.

Steps of a model run in order. So every step that reads the input must come before the first that writes the
output, or be that one, if its schedule is proved to read each element before it overwrites it (ADR 105).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.codegen.runtime.entry import layout_of
from autotune.errors import ArgumentError, ModelError
from autotune.models.call_forms import CallForms
from autotune.models.device_memory import DeviceMemory
from autotune.models.outline import KernelCall
from autotune.models.places import INPUT, OUTPUT, ArgumentPlace, place_of
from autotune.models.program import Program
from autotune.run.host_arrays import may_share, memory_of, overlap
from autotune.run.in_place import SharedPlace
from schedules.errors import suggest

if TYPE_CHECKING:
    from autotune.codegen.llvm.compile import LoadedObject


@dataclass(frozen=True)
class Donation:
    """``pairs``: {number of an input: number of the output that takes its memory}. ``codes``: {number of a
    call of a kernel: its code}, where that reads the one and writes the other."""

    pairs: Mapping[int, int] = field(default_factory=dict)
    codes: Mapping[int, LoadedObject] = field(default_factory=dict)

    def give(self, forms: CallForms, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The results of a call, some of which are inputs. Raises ArgumentError for an input whose memory
        cannot be taken."""
        found = list(results)
        read = [forms.read(x, b) for x, b in zip(inputs, forms.ins, strict=True)]
        for k, m in self.pairs.items():
            a, copied = read[k]
            label = forms.ins[k].name
            if copied or not a.flags.writeable:
                why = "lies otherwise than the model reads it" if copied else "cannot be written"
                raise ArgumentError(
                    f"input {label!r} is donated, and {why}; give a row-major array of your own"
                )
            for n, (b, _) in enumerate(read):
                if n != k and overlap(*memory_of(a), *memory_of(b)) and may_share(a, b):
                    raise ArgumentError(
                        f"input {label!r} is donated, and shares memory with input {forms.ins[n].name!r}; "
                        "give it memory of its own"
                    )
            found[m] = inputs[k]
        return found


def donation(program: Program, forms: CallForms, names: Sequence[str]) -> Donation:
    """What is made of the inputs ``names``. Raises ModelError, which says of an input why no output takes its
    memory."""
    ol, labels = program.outline, [b.name for b in forms.ins]
    if isinstance(names, str):
        raise ModelError(f"donate is {names!r}; give names of inputs, as donate=({names!r},)")
    for name in names:
        if name not in labels:
            raise ModelError(
                f"donate has {name!r}, which is no input of the model{suggest(name, labels)}; "
                f"its inputs are {', '.join(labels)}"
            )
    if isinstance(program.memory, DeviceMemory):
        raise ModelError("donate is for models on the CPU: on a GPU inputs are copied; leave it out")
    if ol.sizes:
        raise ModelError("donate is for models of one size; give numbers for the open sizes, or leave it out")
    uses = _Uses.of(program)
    taken: dict[int, int] = {}  # {output: input}
    for k in dict.fromkeys(map(labels.index, names)):
        why = _matched(k, forms, uses, taken, set())
        if why:
            raise ModelError(
                f"input {labels[k]!r} is donated, and no output can take its memory: {'; '.join(why)}; "
                "leave it out"
            )
    pairs = {k: m for m, k in sorted(taken.items())}
    codes = {}
    for n in range(len(ol.calls)):
        if places := uses.shared(n, pairs):
            codes[n] = program.kernels[ol.calls[n].task].code_in_place(places).loaded
    return Donation(pairs, codes)


def _matched(k: int, forms: CallForms, uses: _Uses, taken: dict[int, int], seen: set[int]) -> list[str]:
    """Find an output for input ``k``, for which inputs that have one may take another. Returns why there is
    none."""
    mine = layout_of(forms.ins[k]), forms.ins[k].dtype
    alike = [m for m, b in enumerate(forms.outs) if (layout_of(b), b.dtype) == mine]
    if not alike or mine[0].strides is not None:
        return [f"none is {mine[1]}{mine[0]}, row-major"]
    told = []
    for m in alike:
        if m in seen:
            continue
        seen.add(m)
        why = uses.refusal(k, m)
        if not why and m in taken and _matched(taken[m], forms, uses, taken, seen):
            why = f"input {forms.ins[taken[m]].name!r} takes it"
        if not why:
            taken[m] = k
            return []
        told.append(f"output {forms.outs[m].name!r}: {why}")
    return told or ["other inputs take those that are like it"]


@dataclass(frozen=True)
class _Uses:
    """Steps by number: which read each input, and which write each output."""

    program: Program
    calls: Mapping[int, int]  # {number of a step: of its call}
    reads: Mapping[int, set[int]]
    writes: Mapping[int, set[int]]

    @staticmethod
    def of(program: Program) -> _Uses:
        ol, calls = program.outline, dict[int, int]()
        reads: dict[int, set[int]] = {n: set() for n in range(len(ol.inputs))}
        writes: dict[int, set[int]] = {n: set() for n in range(len(dict.fromkeys(ol.outputs)))}
        for step, s in enumerate(ol.steps):
            if isinstance(s, KernelCall):
                calls[step] = len(calls)
                places = program.arguments[calls[step]]
                read, wrote = places[: len(s.reads)], places[len(s.reads) :]
            else:
                read = [place_of(ol, program.plan, n) for n in s.reads if n not in ol.constants]
                wrote = [place_of(ol, program.plan, t.name) for t in s.writes]
            for p in read:
                if p.base == INPUT:
                    reads[p.number].add(step)
            for p in wrote:
                if p.base == OUTPUT:
                    writes[p.number].add(step)
        for _, name in program.replaced:  # states that take a value at the end
            p = place_of(ol, program.plan, name)
            if p.base == INPUT:
                reads[p.number].add(len(ol.steps))
        return _Uses(program, calls, reads, writes)

    def refusal(self, k: int, m: int) -> str:
        """Why output ``m`` cannot lie in input ``k``; "" where it can."""
        last, first = max(self.reads[k], default=-1), min(self.writes[m], default=-1)
        if first < 0:
            return "no step writes it"
        if last > first:
            return f"{self._what(first)} writes it before {self._what(last)} reads the input"
        if last < first:
            return ""
        call = self.calls.get(first)
        if call is None:
            return f"{self._what(first)} is an island, which reads and writes in Python"
        places = self.shared(call, {k: m})
        if not places:
            return f"{self._what(first)} reads the input at a place that a call tells"
        try:
            self.program.kernels[self.program.outline.calls[call].task].code_in_place(places)
        except ArgumentError as err:
            return f"{self._what(first)} reads and writes: {err}"
        return ""

    def shared(self, call: int, pairs: Mapping[int, int]) -> tuple[SharedPlace, ...]:
        """Which arguments of a call share memory; none where that is not known."""
        places, n = self.program.arguments[call], len(self.program.outline.calls[call].reads)
        found = []
        for w, out in enumerate(places[n:], n):
            for i, of in enumerate(places[:n]):
                if out.base == OUTPUT and of.base == INPUT and pairs.get(of.number) == out.number:
                    if _moves(out) or _moves(of):
                        return ()
                    found.append(SharedPlace(w, i, out.offset - of.offset))
        return tuple(found)

    def _what(self, step: int) -> str:
        steps = self.program.outline.steps
        if step >= len(steps):
            return "the end of a call, which keeps it,"
        s = steps[step]
        if not isinstance(s, KernelCall):
            return f"step {step} ({s.name})"
        return f"step {step} ({self.program.kernels[s.task].workload.op})"


def _moves(p: ArgumentPlace) -> bool:
    return bool(p.moves)
