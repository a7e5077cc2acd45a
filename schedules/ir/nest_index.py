"""Where blocks and loops of a program stand, and who uses buffers. Rules ask a program many times between two
changes, each of which leaves most of its parts as they are: a part is walked once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from schedules import expr as E
from schedules.ir.nodes import Block, Loop, Seq, Stmt, kids

# Parts whose index is kept: those of a long program, before and after changes.
PARTS = 1 << 12


class _Part:
    """The index of a statement that stands in the root of a program. ``named``: the first block or loop of a
    name. ``repeated``: whether a statement stands in it twice."""

    def __init__(self, root: Stmt) -> None:
        self.around: dict[int, Stmt | None] = {id(root): None}  # by identity: what a statement stands in
        self.blocks: list[Block] = []
        self.named: dict[tuple[type, str], Stmt] = {}
        self.readers: dict[str, list[Block]] = {}
        self.writers: dict[str, list[Block]] = {}
        self.repeated = False
        todo = [root]
        while todo:
            x = todo.pop()
            if isinstance(x, Block):
                self._add(x)
            elif isinstance(x, Loop):
                self.named.setdefault((Loop, x.var), x)
            inner = kids(x)
            for k in inner:
                self.repeated |= id(k) in self.around
                self.around.setdefault(id(k), x)
            todo.extend(reversed(inner))

    def _add(self, b: Block) -> None:
        self.blocks.append(b)
        self.named.setdefault((Block, b.name), b)
        places = (i for w in b.writes for i in w.indices)  # of a scatter: they are read from tensors
        for name in dict.fromkeys(x.buffer for v in (*b.values, *b.where, *places) for x in E.loads(v)):
            self.readers.setdefault(name, []).append(b)
        for name in dict.fromkeys(w.buffer for w in b.writes):
            self.writers.setdefault(name, []).append(b)

    def path(self, s: Stmt) -> tuple[Stmt, ...]:
        def upwards() -> Iterator[Stmt]:
            x: Stmt | None = s
            while x is not None:
                yield x
                x = self.around[id(x)]

        return tuple(upwards())[::-1]


class NestIndex:
    """Of a program: ``blocks`` in its order, and ``named``, the first block or loop of a name."""

    def __init__(self, root: Stmt) -> None:
        self._above = (root,) if isinstance(root, Seq) else ()
        self._parts = [_part(_Very(s)) for s in (root.stmts if isinstance(root, Seq) else (root,))]
        self.blocks = [b for p in self._parts for b in p.blocks]
        self.named: dict[tuple[type, str], Stmt] = {}
        for p in reversed(self._parts):  # the first of a name is the last that is put there
            self.named.update(p.named)

    def once(self, s: Stmt) -> bool:
        """Whether a statement inside the root stands in the program, at one place."""
        found = [p for p in self._parts if id(s) in p.around]
        return len(found) == 1 and not found[0].repeated

    def path(self, s: Stmt) -> tuple[Stmt, ...]:
        """Statements from the root down to one of the program."""
        if any(s is x for x in self._above):
            return self._above
        return (*self._above, *next(p for p in self._parts if id(s) in p.around).path(s))

    def readers(self, buffer: str) -> list[Block]:
        """The blocks that read a buffer, in order."""
        return [b for p in self._parts for b in p.readers.get(buffer, ())]

    def writers(self, buffer: str) -> list[Block]:
        """The blocks that write a buffer, in order."""
        return [b for p in self._parts for b in p.writers.get(buffer, ())]


class _Very:
    """A statement as a key: equal to itself alone."""

    __slots__ = ("it",)

    def __init__(self, it: Stmt) -> None:
        self.it = it  # which keeps it alive, and so its number its own

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Very) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)


def index_of(root: Stmt) -> NestIndex:
    """The index of a program; those of the last few are kept."""
    return _index(_Very(root))


@lru_cache(maxsize=8)
def _index(very: _Very) -> NestIndex:
    return NestIndex(very.it)


@lru_cache(maxsize=PARTS)
def _part(very: _Very) -> _Part:
    return _Part(very.it)
