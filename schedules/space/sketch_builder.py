"""The object on which sketch rules work: a schedule under construction, its holes, and structural choices.

Rules are ordinary functions that call primitives. Where the structure may go either way they ask
`SketchBuilder.choose`. `enumerate_drafts` runs the rules for every combination of answers. Each combination
that passes the legality checks becomes a sketch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count

import numpy as np

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Hole
from schedules.gpu_architectures import features
from schedules.instructions import Instruction
from schedules.ir import Block, Loop, walk
from schedules.ir.nest import find_block, loops_of, subtree_of, vars_bound
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.space.holes import NO_CAP, Choice, Columns, EvenTile, HoleSpec, PerfectTile, sample
from schedules.te.compute_dag import ComputeDAG
from schedules.te.open_sizes import extents_of

# Most sketches of a space.
MAX_SKETCHES = 32


class OutOfTime(Exception):
    """A draft that is not made to its end."""


class SketchBuilder:
    """A sketch under construction: at the largest sizes, where some are open. ``inner``: (stage, n) whose
    axis n + 1, and (buffer, n) whose dimension n + 1, has an open extent, so that it stays apart from the one
    before it. ``open``: (stage, axis) whose extent is open. ``open_dims``: (buffer, dimension), until
    dimensions are merged. ``late``: whether there is no time to go on, asked whenever a rule looks at a
    block."""

    def __init__(
        self,
        dag: ComputeDAG,
        target: Target,
        answers: Sequence[int],
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self._late = late
        self.s = Schedule(dag.largest, target)
        self.inner = _open_beside(dag)
        self.open = _open_axes(dag)
        self.open_dims = _open_dims(dag)
        self.target = target
        self.holes: list[HoleSpec] = []
        self.asked: list[int] = []  # number of options of each question
        self.words: list[str] = []
        self.done: set[str] = set()  # blocks that a rule has scheduled
        self.roots: set[str] = set()  # blocks that stay stages of their own
        self.windows: set[str] = set()  # reductions of windows whose lanes are outputs
        self.products: set[str] = set()  # windows that became products of matrices
        self.windows_of_taps: set[str] = set()  # those that might have
        self.in_parts: set[str] = set()  # sums whose parts matrix units make, and these parts
        self.copies: set[str] = set()  # copies of operands that are still to be packed
        self.nested: dict[str, tuple[str, ...]] = {}  # {reduction: it and those in it, outermost first}
        self.window_products: dict[str, tuple[str, str]] = {}  # {product: what it reads, the windows behind}
        self.alike: dict[str, str] = {}  # {block: the block whose decisions it shares}
        self._settled = False  # whether questions are not asked
        self._picked: dict[str, tuple[tuple[str, ...], str]] = {}  # {question: options, answer}
        self._answers = tuple(answers)

    def choose(self, what: str, options: Sequence[str]) -> str:
        """One of ``options``: a structural choice. An empty option adds nothing to the sketch's name, so that
        the name is the same where the question is not asked. Of blocks that are alike the first is asked."""
        shared = self._shared(what)
        if shared != what and self._picked.get(shared, ((), ""))[0] == tuple(options):
            return self._picked[shared][1]
        if self._settled:
            return options[0]
        n = len(self.asked)
        self.asked.append(len(options))
        picked = options[self._answers[n] if n < len(self._answers) else 0]
        self._picked[what] = tuple(options), picked
        if len(options) > 1 and picked:
            self.words.append(f"{what}={picked}")
        return picked

    def choose_once(self, what: str, options: Sequence[str]) -> str:
        """As `choose`, where one answer is for all blocks, so that sketches do not multiply."""
        return self._picked[what][1] if what in self._picked else self.choose(what, options)

    def choice(self, name: str, options: Sequence[int]) -> int | Hole:
        """A hole with a few options. A single option makes no hole."""
        options = tuple(sorted(set(options)))
        if len(options) == 1:
            return options[0]
        return self._hole(Choice(name, options))

    def divisor(self, name: str, of: Expr, cap: int = NO_CAP, least: int = 1) -> int | Hole:
        """A hole that divides ``of``."""
        if isinstance(of, Const) and int(of.value) == 1:
            return 1
        return self._hole(PerfectTile(name, of, cap, least))

    def even(self, name: str, of: Expr, unit: int | Hole = 1) -> int | Hole:
        """A hole that cuts ``of`` into even blocks, multiples of ``unit`` (`EvenTile`)."""
        if isinstance(of, Const) and isinstance(unit, int) and int(of.value) <= unit:
            return unit
        return self._hole(EvenTile(name, of, Const(unit) if isinstance(unit, int) else unit))

    def _hole(self, spec: HoleSpec) -> Hole:
        """A hole, or the equal one of a block that is alike."""
        taken = {h.name for h in self.holes}
        shared = replace(spec, name=self._shared(spec.name))
        if shared in self.holes and self.alike:
            return Hole(shared.name)
        own = (f"{spec.name}.own{n if n > 1 else ''}" for n in count(1))
        found = next(x for x in chain((shared.name, spec.name), own) if x not in taken)
        self.holes.append(replace(spec, name=found))
        return Hole(found)

    def some_decisions(self) -> Columns:
        """{hole: a decision that it allows}, the same in each run."""
        row = sample(tuple(self.holes), 1, np.random.default_rng(0))[0]
        return Columns((h.name, int(x)) for h, x in zip(self.holes, row, strict=True))

    def _shared(self, name: str) -> str:
        """The name of a hole or a question, ``block.what``, as that of the block whose decisions it shares.
        What was made of a block, as its loops and its partial results, is called ``block_...``."""
        block, dot, what = name.partition(".")
        end = len(block)
        while end > 0:
            if block[:end] in self.alike:
                return f"{self.alike[block[:end]]}{block[end:]}{dot}{what}"
            end = block.rfind("_", 0, end)
        return name

    @property
    def name(self) -> str:
        """The sketch's name: its structural choices."""
        return " ".join(self.words) or "plain"

    # -- steps that rules share ------------------------------------------------------------------

    def parallel(self, *loops: str) -> None:
        """Share nested loops, as one, among the threads of the target if it has several."""
        if self.threads > 1:
            self.s.parallel(self.fused(loops))

    def is_nested(self, name: str) -> bool:
        """Whether a reduction is scheduled with the one that reads it, or that it reads."""
        return any(name in chain for chain in self.nested.values())

    def last_unscheduled(self) -> str | None:
        """The last block that no rule has scheduled."""
        return next((name for name in reversed(self.s.blocks()) if name not in self.done), None)

    @contextmanager
    def scheduling(self, name: str) -> Iterator[None]:
        """Afterwards a block is scheduled, and so is every block that was made meanwhile."""
        before = set(self.s.blocks())
        yield
        self.done |= {name} | (set(self.s.blocks()) - before)

    def schedule_rest(self, schedule: Callable[[SketchBuilder, str], object]) -> None:
        """Schedule each block that no rule has scheduled, the last first."""
        while (last := self.last_unscheduled()) is not None:
            with self.scheduling(last):
                schedule(self, last)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Meanwhile the first option is the answer to each question: what is scheduled takes little of the
        time, and would multiply sketches."""
        before, self._settled = self._settled, True
        yield
        self._settled = before

    # -- facts that rules ask for ---------------------------------------------------------------

    @property
    def threads(self) -> int:
        """Threads of the target."""
        return self.target.threads

    def runs(self, ins: Instruction) -> bool:
        """Whether the target has an instruction, and none that is better for the same."""
        return ins.offered(features(self.target))

    def lanes_of(self, dtype: str) -> int:
        """Elements of ``dtype`` in a vector register."""
        return max(1, self.target.limit("vector_bytes", 16) // DTYPES[dtype].itemsize)

    def block(self, name: str) -> Block:
        """The block of this name. Raises `OutOfTime` if the sketch is late."""
        if self._late():
            raise OutOfTime
        return find_block(self.s.nest, name)

    def loops(self, name: str) -> list[Loop]:
        """The loops around a block, outermost first."""
        return loops_of(self.s.nest, name)

    def own_loops(self, name: str) -> list[Loop]:
        """The loops that the block shares with no other, outermost first."""
        own = {id(x) for x in walk(subtree_of(self.s.nest, name))}
        return [x for x in self.loops(name) if id(x) in own]

    def own_apart(self, name: str) -> tuple[list[str], list[str]]:
        """The names of the block's own loops: (those of its reduction, the others)."""
        reduce = vars_bound(self.block(name), "reduce")
        own = [x.var for x in self.own_loops(name)]
        return [x for x in own if x in reduce], [x for x in own if x not in reduce]

    def split_dim(self, buffer: str, dim: int, inner: int) -> None:
        """`Schedule.split_dim`; what is known of the dimensions behind it moves with them."""
        self.s.split_dim(buffer, dim, inner)
        self.open_dims = {(b, d + (b == buffer and d > dim)) for b, d in self.open_dims}
        self.inner = frozenset((b, d + (b == buffer and d >= dim)) for b, d in self.inner)

    def fused(self, loops: Sequence[str]) -> str:
        """Fuse nested loops into one; a single loop is returned as it is."""
        return self.s.fuse(*loops) if len(loops) > 1 else loops[0]

    def dtype(self, block: Block) -> str:
        """The dtype of a block's output."""
        return self.s.nest.buffer(block.writes[0].buffer).dtype


def extent(loop: Loop) -> int:
    """The loop's extent if it is known, else 0."""
    return int(loop.extent.value) if isinstance(loop.extent, Const) else 0


def innermost(d: SketchBuilder, loops: Sequence[Loop]) -> Loop:
    """The last of nested ``loops`` that is longer than 1. Loops of extent 1 inside it are moved around it."""
    last = next((x for x in reversed(loops) if extent(x) != 1), loops[-1])
    if last is not loops[-1]:
        d.s.reorder(*(x.var for x in loops if x is not last), last.var)
    return last


def _open_axes(dag: ComputeDAG) -> set[tuple[str, str]]:
    _, stages = extents_of(dag)
    return {
        (s.name, a.var)
        for s, own in zip(dag.stages, stages, strict=True)
        for a, n in zip((*s.axes, *s.reduce_axes), own, strict=True)
        if E.variables(n)
    }


def _open_dims(dag: ComputeDAG) -> set[tuple[str, int]]:
    shapes, _ = extents_of(dag)
    return {(name, d) for name, x in shapes.items() for d, n in enumerate(x) if E.variables(n)}


def _open_beside(dag: ComputeDAG) -> frozenset[tuple[str, int]]:
    shapes, stages = extents_of(dag)
    every = [*shapes.items(), *((s.name, x) for s, x in zip(dag.stages, stages, strict=True))]
    return frozenset((name, d - 1) for name, x in every for d, n in enumerate(x) if d and E.variables(n))


def enumerate_drafts(
    dag: ComputeDAG,
    target: Target,
    rules: Callable[[SketchBuilder], None],
    limit: int = MAX_SKETCHES,
    enough: Callable[[], bool] = lambda: False,
) -> list[SketchBuilder]:
    """A builder for every combination of structural choices that the primitives accept, depth first.
    ``enough``: whether those that there are must do. It is asked after each combination, and while one is
    drawn, which then ends. The first sketch is drawn to its end, as there is no space without one."""
    out: list[SketchBuilder] = []
    answers: list[int] = []
    while len(out) < limit:
        d = SketchBuilder(dag, target, answers, lambda: bool(out) and enough())
        try:
            rules(d)
            out.append(d)
        except ScheduleError:
            pass  # this combination is not legal
        except OutOfTime:
            break
        if out and enough():
            break
        path = (answers + [0] * len(d.asked))[: len(d.asked)]
        while path and path[-1] + 1 >= d.asked[len(path) - 1]:
            path.pop()
        if not path:
            break
        path[-1] += 1
        answers = path
    return out
