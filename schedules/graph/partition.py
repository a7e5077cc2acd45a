"""Cuts a graph into groups, each of which is one kernel.

Predicates decide, no operator's name:

- A product is a group, with the sums that it ends in, as of groups with a scale each, and with the maps that
  follow it one to one: bias, residual, activation.
- A reduction of whole rows is a group with all that follows until rows are whole again: softmax, layer norm.
  What turns rows into columns is none of it. Rows that alone read rows are one group with these, and so are
  sums of the bytes that rows make: a norm, and the rounding of what it makes.
- Two products with reductions of rows between them are one group: attention. Its parts stay known, because
  only measuring tells which is faster.
- A map whose readers are all in one group joins them. A concatenation, what is looked up in a table, and
  gathered rows of windows join no product. A map that pads, reads nothing, or dequantises bytes, is computed
  by each reader for itself.

No path leaves a group and comes back to it. What is joined of tensors in their places (`joins`) is none. What
writes to a state (`states`) comes after all that reads what is there before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Var
from schedules.graph.apart import together
from schedules.graph.edit import factors, is_map, is_product, is_sum_of_products, points, readers, steps
from schedules.graph.graph import Graph, Group, Island
from schedules.graph.group import group_of
from schedules.graph.kinds import (
    channels_summed,
    is_depthwise,
    is_gathered,
    is_guarded,
    is_joined,
    is_looked_up,
    is_one_to_one,
    is_row_reduction,
    is_turned,
    makes_bytes,
    walked,
)
from schedules.graph.states import overwritten
from schedules.model import Workload
from schedules.te.compute_dag import Stage
from schedules.te.extent import is_same

# Most nodes of an expression that makes wider numbers of bytes, for it to be computed by each reader.
WIDENED = 16
# (What it needs, what it gives, a part of the model; None: what is joined of others).
_Part = tuple[set[str], set[str], Group | Island | None]


def partition(graph: Graph) -> tuple[Group | Island, ...]:
    """The groups and islands of a graph, in an order in which they can run."""
    return tuple(_cut(graph).result())


def results_of_maps(graph: Graph) -> set[str]:
    """What groups give that are maps alone."""
    return set(_cut(graph).results_of_maps())


@dataclass(frozen=True)
class EarlyMap:
    """A map that the kernel of its ``readers`` computes. ``padding``: what stands between, which each reader
    computes for itself."""

    stage: Stage
    readers: tuple[Stage, ...]
    padding: tuple[Stage, ...]


def early_maps(graph: Graph) -> list[EarlyMap]:
    """The maps that the kernels of their readers compute, and that could have a kernel of their own. Those of
    attention are none: that is cut as one."""
    cut = _cut(graph)
    return [x for x in cut.early if cut.group[x.stage.name] not in cut.parts]


def window_products(graph: Graph) -> list[tuple[Stage, Stage]]:
    """(Windows, a product that sums their channels) where the product's kernel may compute the windows."""
    return list(_cut(graph).windows())


def _cut(graph: Graph) -> _Cut:
    """The stages of a graph in groups."""
    cut = _Cut(graph)
    for run in together(graph.dag.stages):
        cut.join(run)
    cut.copies()
    cut.rows()
    cut.sums()
    cut.epilogues()
    cut.prologues(of_rows=True)
    cut.prologues()
    cut.rows_of_rows()
    for windows, product in list(cut.windows()):
        if windows.name in graph.recut:
            cut.join([windows, product])
    cut.attention()
    return cut


# Points of a stage, terms of its sum, and loads.
_Rough = tuple[tuple[int, int, int], ...]


def _rough(members: Iterable[Stage]) -> _Rough:
    """What stages of one task have alike, whatever their axes are called and however they are merged."""

    def one(s: Stage) -> tuple[int, int, int]:
        return int(points(s)), prod(int(a.extent) for a in s.reduce_axes), len(s.reads())

    return tuple(sorted(map(one, {m.name: m for m in members}.values())))


class _Cut:
    """The group of each stage, by number, while groups are joined."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.stages = {s.name: s for s in graph.dag.stages}
        self.place = {name: n for n, name in enumerate(self.stages)}
        self.made = {t.name: s for s in graph.dag.stages for t in s.outputs}
        self.kept = set(graph.dag.outputs)  # callers get them, or islands
        self.group = dict(self.place)
        self.members: dict[int, list[Stage]] = {n: [s] for n, s in enumerate(graph.dag.stages)}
        self.read = readers(graph.dag.stages)
        self.joined = {self.place[name] for name in graph.joins}  # groups that are no kernels
        # {tensor: what is written over it, which is after all that reads it}
        self.over: dict[str, set[str]] = {}
        for rows, olds in overwritten(graph).items():
            for old in olds:
                self.over.setdefault(old, set()).add(rows)
        self.copied: set[str] = set()  # stages that each reader computes for itself
        self.products = {s.name for s in graph.dag.stages if is_product(s)}
        self.summed = self._sums_of_products()  # {what sums the results of a product: the product}
        self.parts: dict[int, list[list[Stage]]] = {}  # {group: those that it was joined of}
        self.early: list[EarlyMap] = []

    # -- the graph ---------------------------------------------------------------------------

    def users(self, s: Stage) -> list[Stage]:
        """Stages that read a stage, through those that are copied."""
        found: dict[str, Stage] = {}
        for t in s.outputs:
            for r in self.read.get(t.name, ()):
                found |= {u.name: u for u in self.users(r)} if r.name in self.copied else {r.name: r}
        return list(found.values())

    def after(self, s: Stage) -> Iterator[Stage]:
        """Stages that need a stage, also by way of islands, and those that write over what it reads."""
        yield from self.users(s)
        if self.over:
            found = {rows for t in s.outputs for rows in self.over.get(t.name, ())}
            found |= set() if s.name in self.graph.joins else self._over(s)
            yield from (self.made[rows] for rows in found)
        names = {t.name for t in s.outputs}
        for island in self.graph.islands:
            if names & set(island.reads):
                yield from self._after_island(island)

    def _after_island(self, island: Island) -> Iterator[Stage]:
        names = {t.name for t in island.writes}
        for n in names:
            for r in self.read.get(n, ()):
                yield from self.users(r) if r.name in self.copied else (r,)
        for other in self.graph.islands:
            if names & set(other.reads):
                yield from self._after_island(other)

    def sources(self, s: Stage) -> list[Stage]:
        """Stages that a stage reads."""
        return [self.made[n] for n in dict.fromkeys(x.buffer for x in s.reads()) if n in self.made]

    def join(self, stages: Iterable[Stage]) -> bool:
        """Make the groups of stages one, unless a path would leave it and come back."""
        numbers = {self.group[s.name] for s in stages}
        if len(numbers) == 1:
            return True
        if numbers & self.joined or self._returns(numbers):
            return False
        if self.over and self._writes_over(numbers):
            return False
        one = min(numbers)
        joined = sorted((m for n in numbers for m in self.members.pop(n)), key=lambda s: self.place[s.name])
        self.members[one] = joined
        self.group |= {m.name: one for m in joined}
        return True

    def _over(self, s: Stage) -> set[str]:
        """What is written over tensors that a stage reads."""
        return {rows for x in s.reads() for rows in self.over.get(x.buffer, ())}

    def _returns(self, numbers: set[int]) -> bool:
        """Whether a path leads from groups over another one back to them."""
        todo = [r for n in numbers for m in self.members[n] for r in self.after(m)]
        todo = [r for r in todo if self.group[r.name] not in numbers]
        seen: set[int] = set()
        while todo:
            g = self.group[todo.pop().name]
            if g in numbers:
                return True
            if g not in seen:
                seen.add(g)
                todo += [r for m in self.members[g] for r in self.after(m)]
        return False

    def _writes_over(self, numbers: Collection[int]) -> bool:
        """Whether groups together would read what they write over."""
        members = [m for n in numbers for m in self.members[n]]
        return bool({m.name for m in members} & {rows for m in members for rows in self._over(m)})

    def _sums_of_products(self) -> dict[str, Stage]:
        """{a sum of the results of a product, which alone reads these: the product}."""
        found: dict[str, Stage] = {}
        for s in self.stages.values():
            for p in self.sources(s):
                own = p.name in self.kept or p.name in self.graph.recut
                alone = len(self.read.get(p.name, ())) == 1 and not own
                if alone and p.name in self.products and is_sum_of_products(s, p):
                    found[s.name] = p
        return found

    def by_product(self, s: Stage) -> bool:
        """Whether a stage is a product, or the sum that one ends in."""
        return s.name in self.products or s.name in self.summed

    def by_rows(self, s: Stage) -> bool:
        """Whether a stage reduces rows, and is no part of a product."""
        return s.name not in self.summed and is_row_reduction(s)

    # -- rules -------------------------------------------------------------------------------

    def copies(self) -> None:
        """What each reader computes for itself: padding, and what reads nothing."""
        for s in reversed(self.stages.values()):
            if s.name in self.graph.views or s.name in self.graph.joins or self._over(s):
                continue
            free, cheap = is_map(s) and not s.reads(), is_guarded(s) or self._widens_bytes(s)
            if (free or cheap) and not {t.name for t in s.outputs} & self.kept:
                if free or any(not is_map(r) for r in self.users(s)):
                    self.copied.add(s.name)

    def _widens_bytes(self, s: Stage) -> bool:
        """Whether a map makes wider numbers of the bytes that one stage made, and little else: each kernel
        that needs these reads the bytes."""
        if not is_map(s) or len(s.values) > 1:
            return False
        wide = [x for x in s.reads() if any(E.variables(i) for i in x.indices)]
        bytes_ = [x for x in wide if x.buffer in self.made and DTYPES[x.dtype].itemsize == 1]
        small = E.size(s.values[0])[0] <= WIDENED
        return small and len(wide) == len(bytes_) == 1 and DTYPES[s.outputs[0].dtype].itemsize > 1

    def rows(self) -> None:
        """Reductions of rows, up to where rows are whole again."""
        for s in self.stages.values():
            if not self.by_rows(s):
                continue
            whole = steps(s)
            inside, edge = {s.name: s}, [s]
            while edge:
                for r in self.users(edge.pop()):
                    if (
                        r.name in inside
                        or self.by_product(r)
                        or self.group[r.name] in self.joined
                        or not r.plain
                    ):
                        continue
                    if self._turns_rows(inside.values(), r):
                        continue
                    inside[r.name] = r
                    if points(r) < whole:
                        edge.append(r)
            self.join(inside.values())

    def sums(self) -> None:
        """Products, and the sums that they end in."""
        for name, product in self.summed.items():
            self.join([product, self.stages[name]])

    def rows_of_rows(self) -> None:
        """Reductions of the same rows, one after the other: those that alone read what others make, and sums
        of bytes that others make."""
        for s in self.stages.values():
            if not self.by_rows(s):
                continue
            own = self.group[s.name]
            before = {self.group[p.name] for p in self.sources(s)} - {own}
            if len(before) != 1:
                continue
            (other,) = before
            made = self.members[other]
            if any(map(self.by_product, made)) or not any(map(self.by_rows, made)):
                continue
            read = [p for p in self.sources(s) if self.group[p.name] == other]
            users = {self.group[r.name] for p in made for r in self.users(p)} - {other}
            kept = any(t.name in self.kept for p in made for t in p.outputs)
            bytes_ = all(DTYPES[p.outputs[0].dtype].itemsize == 1 for p in read)
            if (bytes_ or (users == {own} and not kept)) and self._same_rows(made, self.members[own]):
                self.join([read[0], s])

    def _same_rows(self, made: Sequence[Stage], after: Sequence[Stage]) -> bool:
        """Whether stages walk the rows of those that ``made`` what they read, in their order."""
        rank = min(len(m.axes) for m in made if self.by_rows(m))
        names = {m.name for m in made}
        return all(
            x.indices[:rank] == tuple(Var(a.var) for a in s.axes[:rank])
            for s in after
            for x in s.reads()
            if x.buffer in names
        )

    def prologues(self, of_rows: bool = False) -> None:
        """Maps whose readers are all in one group, which is one of rows if so asked. What follows a product
        stays with that."""
        for s in reversed(self.stages.values()):
            users = self.users(s)
            numbers = {self.group[r.name] for r in users}
            outputs = {t.name for t in s.outputs}
            own = s.name in self.copied or s.name in self.graph.recut
            if own or not is_map(s) or outputs & self.kept or len(numbers) != 1:
                continue
            beside, readers_ = self.members[self.group[s.name]], self.members[numbers.pop()]
            rows = any(map(self.by_rows, readers_))
            apart = is_joined(s) or is_looked_up(s) or is_gathered(s) or (makes_bytes(s) and not of_rows)
            if apart and any(map(self.by_product, readers_)):
                continue
            if any(map(self.by_product, beside)) or (not rows if of_rows else len(beside) > 1):
                continue
            new = self.group[s.name] != self.group[users[0].name]
            if not any(r.places or r.scan for r in readers_) and self.join([s, *users]) and new:
                between = (r for t in outputs for r in self.read.get(t, ()) if r.name in self.copied)
                self.early.append(EarlyMap(s, tuple(users), tuple(between)))

    def windows(self) -> Iterator[tuple[Stage, Stage]]:
        """Depthwise convolutions, and the products of their channels, where one alone needs the other."""
        for s in self.stages.values():
            read = self.made.get(channels_summed(s))
            if read is None:
                continue
            own, number = self.group[read.name], self.group[s.name]
            before, after = ([m for m in self.members[n] if m.reducer is not None] for n in (own, number))
            alone = own != number and after == [s] and self._next(own) == number
            if alone and len(before) == 1 and is_depthwise(before[0]):
                yield before[0], s

    def epilogues(self) -> None:
        """Maps that follow one to one what nobody else reads. Where a sum can follow either of two products,
        it follows the one with which it is a task that the graph has already; else the last."""
        several: list[tuple[Stage, list[Stage]]] = []
        for s in self.stages.values():
            if not is_map(s) or s.name in self.copied or is_looked_up(s):
                continue
            found = [p for p in self.sources(s) if self._one_to_one(p, s)]
            if len(found) > 1:
                several.append((s, found))
            elif found and not self._turns_rows(found[:1], s):
                self.join([found[0], s])
        both = [{p.name: [*self._beside(p), *self._beside(s)] for p in found} for s, found in several]
        known: dict[_Rough, set[str]] = {_rough(m): set() for each in both for m in each.values()}
        for members in self.members.values():
            if (rough := _rough(members)) in known:
                known[rough].add(self._task(members))
        for s, found in several:
            each = {p.name: [*self._beside(p), *self._beside(s)] for p in found}
            tasks = {name: (_rough(m), self._task(m)) for name, m in each.items()}
            new = {name for name, (rough, task) in tasks.items() if task not in known.get(rough, ())}
            for p in sorted(found, key=lambda p: (p.name in new, -self.place[p.name])):
                if self.join([p, s]):
                    rough, task = tasks[p.name]
                    known.setdefault(rough, set()).add(task)
                    break

    def _beside(self, s: Stage) -> list[Stage]:
        """The stages of a group."""
        return self.members[self.group[s.name]]

    def _turns_rows(self, rows: Iterable[Stage], s: Stage) -> bool:
        """Whether a map after rows has their axes in another order."""
        beside = [m for n in {self.group[p.name] for p in rows} for m in self.members[n]]
        sums = [m for m in beside if self.by_rows(m)]
        made: dict[str, list[list[int]]] = {m.name: [] for m in beside}
        for m in sums:
            for x in m.reads():
                made.setdefault(x.buffer, []).append(walked(m, x))
        return bool(sums) and is_turned(s, made)

    def _task(self, members: list[Stage]) -> str:
        """What identifies the kernel of stages, if they were a group."""
        ordered = sorted({m.name: m for m in members}.values(), key=lambda m: self.place[m.name])
        return Workload(self._made(ordered).dag).digest

    def _one_to_one(self, p: Stage, s: Stage) -> bool:
        names = {t.name for t in p.outputs}
        loads = [x for x in s.reads() if x.buffer in names]
        whole = is_same(points(p), points(s)) and is_one_to_one(s, loads)
        return (
            p.name not in self.copied
            and whole
            and not (p.places or p.scan)
            and not names & self.kept
            and [r.name for r in self.users(p)] == [s.name]
        )

    def attention(self) -> None:
        """Products of two tensors, of which the second reads rows made of the first."""
        for s in self.stages.values():
            if not self._of_tensors(s):
                continue
            rows = self._next(self.group[s.name])
            after = None if rows is None else self._next(rows)
            if rows is None or after is None or not any(map(self.by_rows, self.members[rows])):
                continue
            products = [m for m in self.members[after] if is_product(m)]
            parts = [self.members[n] for n in (self.group[s.name], rows, after)]
            if len(products) == 1 and self._of_tensors(products[0]):
                if self.join(m for part in parts for m in part):
                    self.parts[self.group[s.name]] = parts

    def _of_tensors(self, s: Stage) -> bool:
        pair = factors(s.values[0]) if is_product(s) else ()
        return bool(pair) and not any(x.buffer in self.graph.values for x in pair)

    def _next(self, number: int) -> int | None:
        """The only group that reads a group, whose results nobody else gets."""
        members = self.members[number]
        if any(t.name in self.kept for m in members for t in m.outputs):
            return None
        found = {self.group[r.name] for m in members for r in self.users(m)} - {number}
        return found.pop() if len(found) == 1 else None

    # -- result ------------------------------------------------------------------------------

    def results_of_maps(self) -> Iterator[str]:
        """What groups give that are maps alone."""
        for number in self.members.keys() - self.joined:
            own = self._own(number)
            if own and all(map(is_map, self._with_copies(own))):
                yield from (self.kept | self._read_outside(own)) & {t.name for m in own for t in m.outputs}

    def result(self) -> Iterator[Group | Island]:
        """Groups and islands in the order of what they need."""
        kept = {s.tensor for s in self.graph.states.values()}
        ready = set(self.graph.inputs) | set(self.graph.values) | kept
        left: list[_Part] = []
        for number in sorted(self.members):
            members = self._own(number)
            if number in self.joined:
                left.append((set(self.graph.joins[members[0].name]), {members[0].name}, None))
            elif members:
                one = self._made(members)
                one = replace(one, parts=tuple(map(self._made, self.parts.get(number, ()))))
                left.append(({a.tensor for a in one.inputs}, set(one.outputs), one))
        left += [(set(i.reads), {t.name for t in i.writes}, i) for i in self.graph.islands]
        left = self._in_turn(left) if self.over else left
        while left:
            n = next(k for k, (needs, _, _) in enumerate(left) if needs <= ready)
            _, gives, item = left.pop(n)
            ready |= gives
            if item is not None:
                yield item

    def _own(self, number: int) -> list[Stage]:
        """The stages of a group but those that each reader computes for itself."""
        return [m for m in self.members[number] if m.name not in self.copied]

    def _in_turn(self, parts: list[_Part]) -> list[_Part]:
        """Parts, those that write to a state with the results of all that must read it before as needs."""
        found = []
        for needs, gives, item in parts:
            before: set[str] = set()
            for reads, results, other in parts:
                over = {rows for r in reads for rows in self.over.get(r, ())}
                if other is not None and other is not item and over & gives:
                    before |= results
            there = {old for old, rows in self.over.items() if rows & gives}
            found.append((needs | before | there, gives, item))
        return found

    def _made(self, members: list[Stage]) -> Group:
        return group_of(self.graph, self._with_copies(members), self.kept | self._read_outside(members))

    def _with_copies(self, members: list[Stage]) -> list[Stage]:
        found = {m.name: m for m in members}
        todo = list(members)
        while todo:
            for p in self.sources(todo.pop()):
                if p.name in self.copied and p.name not in found:
                    found[p.name] = p
                    todo.append(p)
        return sorted(found.values(), key=lambda s: self.place[s.name])

    def _read_outside(self, members: list[Stage]) -> set[str]:
        own = {m.name for m in members}
        return {t.name for m in members for t in m.outputs if {r.name for r in self.users(m)} - own}
