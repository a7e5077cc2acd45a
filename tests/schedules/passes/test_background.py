"""What stores to shared memory become as copies in the background: how wide, under which condition, and which
are none."""

from __future__ import annotations

import pytest

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Load, Var
from schedules.ir import Access, Block, Buffer, Copy, Guard, Iter, Loop, Nest, Stmt, Store, seq, walk
from schedules.passes.background import CopyArrays, begun, in_background
from schedules.passes.unswitch import unswitch

T, V = Var("t"), Var("v")
FROM_X = Load("x", (T,), "float32")
FROM_Z = Load("z", (T - 5,), "float32")
STORE = Store("s", (T,), FROM_X)


def vector(at: E.Expr, source: E.Expr, cond: E.Expr = E.TRUE) -> Stmt:
    """Four lanes v, each of which copies an element."""
    store: Stmt = Store("s", (at,), Load("x", (source,), "float32"))
    return Loop("v", Const(4), store if cond == E.TRUE else Guard(cond, store), "vectorize")


# {what: (statement of threads t up to 7, what is made of it: copies' counts and conditions, guards)}
MADE: dict[str, tuple[Stmt, list[tuple[int, str]], list[str]]] = {
    "a domain becomes a condition": (Guard(T < 5, STORE), [(1, "t < 5")], []),
    "what keeps inside of the buffer stays": (
        Guard(T < 5, Store("s", (T + 27,), FROM_X)),
        [(1, "True")],
        ["t < 5"],
    ),
    "sides of a joined array stay": (
        seq(
            Guard(T < 5, STORE),
            Guard(E.compare("<=", 5, T), Store("s", (T,), Load("z", (T - 5,), "float32"))),
        ),
        [(1, "True"), (1, "True")],
        ["t < 5", "5 <= t"],
    ),
    "zeros before": (Store("s", (T,), E.select(T < 2, 0.0, FROM_X)), [(1, "not (t < 2)")], []),
    "zeros before and behind": (
        Store("s", (T,), E.select(T < 6, E.select(E.compare("<=", 2, T), FROM_X, 0.0), 0.0)),
        [(1, "t < 6 and 2 <= t")],
        [],
    ),
    "a vector": (vector(T * 4 + V, T * 4 + V), [(4, "True")], []),
    "half a vector": (vector(T * 4 + V, T * 4 + V + 2), [(2, "True")] * 2, []),
    "lanes that begin anywhere": (vector(T * 4 + V, T * 4 + V + 1), [(1, "True")] * 4, []),
    "lanes apart": (vector(T * 4 + V, T * 4 + V * 2), [(1, "True")] * 4, []),
    "a condition of whole vectors": (
        vector(T * 4 + V, T * 4 + V, T * 4 + V < 12),
        [(4, "t * 4 < 12")],
        [],
    ),
    "a condition of halves": (
        vector(T * 4 + V, T * 4 + V, T * 4 + V < 10),
        [(2, "t * 4 < 10"), (2, "t * 4 + 2 < 10")],
        [],
    ),
}


@pytest.mark.parametrize("what", MADE)
def test_what_a_store_becomes(what: str) -> None:
    s, counts, guards = MADE[what]
    lies = {n: Buffer(n, (Const(32),), "float32", "shared" if n == "s" else "global") for n in "sxz"}
    made = begun(s, CopyArrays({"s"}, lies), {"t": (0, 7)})
    assert made is not None
    every = [x for x in walk(made) if isinstance(x, (Copy, Guard))]
    shown = [E.show(affine.simplify(x.cond, {})) for x in every]
    found = list(zip(every, shown, strict=True))
    assert [(x.count, c) for x, c in found if isinstance(x, Copy)] == counts
    assert [c for x, c in found if isinstance(x, Guard)] == guards


NO_COPIES = [
    Load("r", (T,), "float32"),
    Load("s", (T,), "float32"),
    FROM_X + 1.0,
    E.select(T < 5, FROM_X, 1.0),
    Const(0.0, "float32"),
]


@pytest.mark.parametrize("value", NO_COPIES)
def test_what_is_no_copy_from_global_memory(value: E.Expr) -> None:
    lies = {n: Buffer(n, (Const(32),), "float32", "global" if n == "x" else "shared") for n in "srx"}
    assert begun(Store("s", (T,), value), CopyArrays({"s"}, lies), {"t": (0, 7)}) is None


def test_elements_that_two_instances_may_write_are_not_copied_in_the_background() -> None:
    """Where one of them is left out, what it would write is not 0."""
    x, s = (Buffer(n, (Const(4), Const(4)), "float32") for n in "xs")
    i, j = Var("i"), Var("j")
    for indices, told in (((i, j), {"s"}), ((i * 4 + j, Const(0)), set())):
        block = Block(
            "b",
            (Iter("i", Const(4), "spatial"), Iter("j", Const(4), "spatial")),
            (i, j),
            (Access("s", indices),),
            (Load("x", (i, j), "float32"),),
            annotations=(("async", 1),),
        )
        body = Loop("i", Const(4), Loop("j", Const(4), block))
        assert in_background(Nest(("x", "s"), ("s",), (x, s), body)) == told


def test_choices_of_copies_are_not_taken_out_of_their_loops() -> None:
    value = E.select(T < 2, Load("x", (V,), "float32"), 0.0)
    loop = Loop("v", Const(4), Store("s", (V,), value), "vectorize")
    assert unswitch(loop, {"s"}) == loop != unswitch(loop)
