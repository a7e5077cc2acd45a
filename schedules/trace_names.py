"""A trace under the names of another form of its expression: that of a log, or that of a user.

The steps of a trace name loops, blocks and buffers, which are called after tensors and axes: the loop of axis
``i`` of ``C`` is ``C_i``, its parts are ``C_i_0`` and ``C_i_1``. Logs have the canonical names of
`schedules.te.names`; people see their own. `to_canonical` and `to_named` change one into the other, as data,
so that a trace that is not legal, or not of this expression, keeps what it says.

Names that a user gave may look like those that primitives give (a reduction axis ``r0``); a primitive then
numbers its own. Such a trace is replayed under both names side by side, which tells what each is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from schedules.errors import ScheduleError
from schedules.ir import SCOPES, Block, Loop, Nest, walk
from schedules.ir.nest import initial, initial_loops
from schedules.model import Step, Trace, Workload
from schedules.primitives import PRIMITIVES
from schedules.te.compute_dag import ComputeDAG
from schedules.te.names import Names

# What the arguments of primitives name, by the argument; all others hold no names of the expression.
LOOPS = frozenset({"loop", "loops"})
THINGS = frozenset({"block", "buffer", "sums"})  # blocks and buffers, which are called alike
EITHER = frozenset({"where"})
NOT_LEGAL = (ScheduleError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
# Others make blocks and buffers.
_MAKES_LOOPS = frozenset({"split", "split_axis", "tile", "fuse", "merge_axes", "pack"})
# They make a block whose loops are called after the axes of the block that they are given.
_MAKES_LOOPS_OF_AXES = frozenset({"stage_factor"})
_GIVEN = re.compile(
    r"(.*_)?((ax|r|x|p)?\d+|(init|write|rf|part|shift|scale|rescale|run|term|sum|"
    + "|".join(SCOPES)
    + r")\d*)"
)


def to_canonical(workload: Workload, trace: Trace, sketch: str = "") -> tuple[Trace, str]:
    """A trace under the names of ``workload.dag``, and the name of its sketch, under canonical names."""
    return _renamed(trace, sketch, workload.dag, workload.canonical)


def to_named(workload: Workload, trace: Trace) -> Trace:
    """A trace under canonical names, under those of ``workload.dag``, so that it can be replayed on that."""
    return _renamed(trace, "", workload.canonical, workload.dag)[0]


def _renamed(trace: Trace, sketch: str, of: ComputeDAG, to: ComputeDAG) -> tuple[Trace, str]:
    if of is to:
        return trace, sketch
    names = _Renaming(of, to)
    return Trace(tuple(map(names.step, trace.steps))), names.sketch(sketch)


class _Renaming:
    """What each loop, and each block or buffer, is called in the other form, after the steps so far."""

    def __init__(self, of: ComputeDAG, to: ComputeDAG) -> None:
        a, b = Names.of_dag(of.to_json()), Names.of_dag(to.to_json())
        self._things = dict(zip(a.tensors, b.tensors, strict=True))
        self._loops = dict(zip(_loops(a), _loops(b), strict=True))
        axes = [
            (x.outputs, [*zip(x.axes, y.axes, strict=True)]) for x, y in zip(a.stages, b.stages, strict=True)
        ]
        self._axes = {name: pairs for names, pairs in axes for name in names}
        self._nests = (initial(of), initial(to)) if _risky(a) or _risky(b) else None

    def step(self, step: Step) -> Step:
        args = tuple((k, _each(v, f) if (f := self._called(k)) else v) for k, v in step.args)
        renamed = Step(step.primitive, args)
        self._learn(step, renamed)
        return renamed

    def sketch(self, name: str) -> str:
        """The name of a sketch: words such as ``C.by=rows`` or ``C_pad=copy``."""
        return " ".join(map(self._word, name.split(" ")))

    def _word(self, word: str) -> str:
        what, equals, picked = word.partition("=")
        block, dot, question = what.partition(".")
        if not equals or (not dot and picked not in ("copy", "inline")):
            return word
        return f"{self._thing(block)}{dot}{question}={picked}"

    def _learn(self, step: Step, renamed: Step) -> None:
        """What a step has made."""
        cls = PRIMITIVES.get(step.primitive)
        if cls is None:
            return
        try:
            pair = cls.from_step(step), cls.from_step(renamed)
            made = [[x] if isinstance(x, str) else list(x or ()) for x in (p.result() for p in pair)]
        except ScheduleError:  # not of this version
            self._nests = None
            return
        home = self._loops if step.primitive in _MAKES_LOOPS else self._things
        home |= dict(zip(*made, strict=True))
        if step.primitive in _MAKES_LOOPS_OF_AXES:
            block = str(dict(step.args).get("block"))
            while block and block not in self._axes:  # a block that was made of a stage has its axes
                block = block.rpartition("_")[0]
            pairs = self._axes.get(block, ())
            new = zip(*made, strict=True)
            self._loops |= {f"{x}_{i}": f"{y}_{j}" for x, y in new for i, j in pairs}
        if self._nests is not None:
            try:
                for p, nest in zip(pair, self._nests, strict=True):
                    p.check(nest)  # what is not legal may grow beyond all bounds
                a, b = (p.apply(nest) for p, nest in zip(pair, self._nests, strict=True))
                self._nests = a, b
                self._pair(a, b)
            except NOT_LEGAL:
                self._nests = None  # the rest is named by what its steps say alone

    def _pair(self, a: Nest, b: Nest) -> None:
        """Take the names from two nests that differ in nothing else. Raises ValueError where they do."""
        self._things |= {x.name: y.name for x, y in zip(a.buffers, b.buffers, strict=True)}
        for x, y in zip(walk(a.body), walk(b.body), strict=True):
            if isinstance(x, Loop) and isinstance(y, Loop):
                self._loops[x.var] = y.var
            elif isinstance(x, Block) and isinstance(y, Block):
                self._things[x.name] = y.name

    def _called(self, argument: str) -> Callable[[str], str] | None:
        """What gives the names in an argument; None where it holds none."""
        if argument in LOOPS:
            return self._loop
        return self._thing if argument in THINGS else self._either if argument in EITHER else None

    def _loop(self, name: str) -> str:
        return self._found(name, self._loops, self._things)

    def _thing(self, name: str) -> str:
        return self._found(name, self._things)

    def _either(self, name: str) -> str:
        return self._thing(name) if name in self._things else self._loop(name)

    @staticmethod
    def _found(name: str, *homes: dict[str, str]) -> str:
        """What a name is in the other form: known itself, or called after the longest that is known."""
        if name in homes[0]:
            return homes[0][name]
        end = name.rfind("_")
        while end > 0:
            stem = name[:end]
            for home in homes:
                if stem in home:
                    return home[stem] + name[end:]
            end = name.rfind("_", 0, end)
        return name


def _loops(names: Names) -> list[str]:
    return [x for own in initial_loops([(s.outputs[0], s.axes) for s in names.stages]) for x in own]


def _risky(names: Names) -> bool:
    """Whether a name looks like one that a primitive gives."""
    axes = {a for s in names.stages for a in s.axes}
    if any("_" in a or _GIVEN.fullmatch(a) for a in axes):
        return True
    bases = {*names.tensors, *_loops(names)}
    return any(
        "_" in t and _GIVEN.fullmatch(t) and any(t.startswith(f"{x}_") for x in bases) for t in names.tensors
    )


def _each(v: Any, f: Callable[[str], str]) -> Any:
    if isinstance(v, tuple):
        return tuple(_each(x, f) for x in v)
    return f(v) if isinstance(v, str) else v
