"""Recorded formulas: the values that numpy gives, each different operation once; compiled or not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from space_cases import target

from autotune.search import columns as compiled
from autotune.search.columns import compile_columns
from schedules import expr as E
from schedules import ops
from schedules.expr import Const, Hole
from schedules.space import derive
from schedules.space.estimate import recording
from schedules.space.estimate.recording import CHUNK, Recorded, RecordedProgram
from schedules.space.holes import Columns

Formulas = Callable[[Columns], list[list[Any]]]
Maker = Callable[[Formulas], RecordedProgram]


@pytest.fixture(params=["numpy", "compiled"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Maker]:
    """What makes programs of the holes ``a`` and ``b``: run by numpy, or compiled before the first row."""
    monkeypatch.setattr(recording, "COMPILE_US", 0.0)
    compiler = compile_columns if request.param == "compiled" else None
    programs: list[RecordedProgram] = []

    def make(groups: Formulas) -> RecordedProgram:
        programs.append(RecordedProgram(["a", "b"], groups, compiler))
        return programs[-1]

    yield make
    assert all((p._compiled is not None) == (compiler is not None) for p in programs)


def formulas(env: Columns) -> list[object]:
    a, b = Hole("a"), Hole("b")
    up = E.evaluate(E.ceildiv(a, b), env, env.known)
    mod = E.evaluate((a * 3) % b + a // b, env, env.known)
    small = E.evaluate(E.minimum(a * b, Const(100)), env, env.known)
    x, y = env["a"], env["b"]
    bits = x.astype(np.int64) & -x.astype(np.int64)
    either = np.where((x > y) & ~(x == 7), np.clip(bits, 2.0, y), np.zeros_like(x))
    return [up, mod, small, bits, either, 2 * x * 0.0 + 1.0 * y + 0.0, np.ceil(x / y) - np.maximum(3, y), 5.0]


def columns(rows: np.ndarray) -> Columns:
    return Columns({"a": rows[:, 0], "b": rows[:, 1]})


@pytest.mark.parametrize("n", [0, 1, 100, CHUNK + 3])
def test_a_program_gives_what_numpy_gives(n: int, made: Maker) -> None:
    rows = np.random.default_rng(0).integers(1, 1 << 20, (n, 2))
    rows[::2] %= 13
    rows += 1
    program = made(lambda env: [formulas(env)])
    want = [np.broadcast_to(np.asarray(x, np.float64), n) for x in formulas(columns(rows))]
    got = np.empty((len(want), n))
    for part, found, _ in program.run(rows):
        for k, x in enumerate(found):
            got[k, part] = x
    assert np.array_equal(got, np.stack(want))


@pytest.mark.parametrize("asked", [[], [1], [2], [2, 1, 3], [3, 1, 2, 2]])
def test_groups_are_worked_out_where_they_are_asked_for(asked: list[int], made: Maker) -> None:
    """Whatever was asked for before, and whether another group or the first one needs the same columns."""

    def groups(env: Columns) -> list[list[object]]:
        a, b = env["a"], env["b"]
        c, d = a * b + 1, np.sqrt(a)
        return [[c / 2, 3.0], [c - d, (c - d) * b], [(c - d) * (a + 2), c / 2, d + 4], [a, 7.0]]

    rows = np.random.default_rng(1).integers(1, 100, (CHUNK + 5, 2))
    want = groups(columns(rows.astype(np.float64)))
    for part, first, group in made(groups).run(rows):
        found = {0: first, **{k: group(k) for k in asked}}
        for k, got in found.items():
            assert len(got) == len(want[k])
            for x, y in zip(got, want[k], strict=True):
                assert np.array_equal(
                    np.broadcast_to(x, len(rows[part])), np.broadcast_to(y, len(rows))[part]
                )


def test_what_only_another_group_needs_is_not_done_for_the_first() -> None:
    def groups(env: Columns) -> list[list[object]]:
        c = env["a"] * env["b"]
        return [[c + 1], [np.sqrt(c), c + 1], [np.sqrt(c) - 2]]

    done = [[f.__name__ for f, *_ in steps] for steps in RecordedProgram(["a", "b"], groups).listing.steps]
    assert done == [["multiply", "add"], ["sqrt"], ["sqrt", "subtract"]]


def test_an_operation_is_done_once_and_only_if_it_is_needed() -> None:
    done: list[str] = []

    def counted(env: Columns) -> list[list[object]]:
        a, b = env["a"], env["b"]
        np.sqrt(a)  # of no use to anyone
        return [[a * b + 1, 1 + b * a, (a * b) * 1.0, b * 0.0]]

    program = RecordedProgram(["a", "b"], counted)
    done = [f.__name__ for f, *_ in program.listing.steps[0]]
    assert sorted(done) == ["add", "multiply"]


@pytest.mark.slow
def test_nothing_is_left_for_the_garbage_collector() -> None:
    """Hundreds of programs are made before a search's first pick: their columns took it a tenth of that."""

    def alive() -> int:
        return sum(type(x) is Recorded for x in gc.get_objects())  # isinstance asks proxies for their class

    gc.collect()
    gc.disable()
    try:
        before = alive()
        program = RecordedProgram(["a", "b"], lambda env: [[env["a"] * env["b"]], [np.sqrt(env["a"])]])
        assert alive() == before
    finally:
        gc.enable()
    assert [len(steps) for steps in program.listing.steps] == [1, 1]


def test_large_products_and_quotients_are_exact(made: Maker) -> None:
    """Below 2**53, where floats still tell neighbours apart."""
    rows = np.array([[2**52 - 1, 3], [2**52, 3], [2**50 + 1, 2**25], [2**50, 2**25], [3 * 2**40 - 1, 3]])
    a, b = Hole("a"), Hole("b")
    program = made(lambda env: [[E.evaluate(e, env, env.known) for e in (a // b, E.ceildiv(a, b), a % b)]])
    ((_, found, _),) = program.run(rows)
    want = [[x // y for x, y in rows.tolist()], [-(-x // y) for x, y in rows.tolist()]]
    want.append([x % y for x, y in rows.tolist()])
    assert [x.astype(np.int64).tolist() for x in found] == want


# -- compiled ------------------------------------------------------------------------------------

REAL_OPS = (np.add, np.subtract, np.multiply, np.maximum, np.minimum)
TRUTH_OPS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
WHOLE_OPS = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.add, np.subtract, np.multiply, np.maximum)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_compiled_formulas_give_the_same_to_the_bit(data: st.DataObject) -> None:
    """Any operations on reals, integers and truths in a few groups that share columns."""
    step = st.tuples(*(st.integers(0, 99),) * 4, st.sampled_from("rrrwtwuclbxs"))
    plan = data.draw(st.lists(step, min_size=1, max_size=40))
    ends = sorted(data.draw(st.lists(st.integers(0, len(plan)), min_size=1, max_size=3)))

    def groups(env: Columns) -> list[list[Any]]:
        reals: list[Any] = [env["a"], env["b"], np.float64(3)]
        wholes: list[Any] = [env["a"].astype(np.int64), env["b"].astype(np.int64)]
        truths: list[Any] = [env["a"] > env["b"]]
        order: list[Any] = []

        def pick(of: list[Any], n: int) -> Any:
            return of[n % len(of)]

        for how, i, j, k, kind in plan:
            x, y, m, n = pick(reals, i), pick(reals, j), pick(wholes, i), pick(wholes, j)
            p, q = pick(truths, i), pick(truths, k)
            into, value = reals, x
            match kind:
                case "r":
                    value = REAL_OPS[how % len(REAL_OPS)](x, y)
                case "w":
                    into, value = wholes, WHOLE_OPS[how % len(WHOLE_OPS)](m & 1023, n)
                case "t":
                    into, value = truths, TRUTH_OPS[how % len(TRUTH_OPS)](*((x, y) if k % 2 else (m, n)))
                case "u":
                    value = [np.floor, np.ceil, np.negative, np.absolute][how % 4](x / 8.0)
                case "c":
                    into, value = wholes, np.minimum(np.absolute(x), 1e6).astype(np.int64)
                case "l":
                    value = np.log2(np.maximum(m & 1023, 1) * 0.0 + 4.0) + np.sqrt(np.absolute(y))
                case "b":
                    into, value = truths, [p & q, p | q, p ^ q, ~p][how % 4]
                case "x":
                    value = np.where(p, x, y) * q
                case "s":
                    value = (m & -n) / (np.absolute(y) + 1.0)
            into.append(value)
            order.append(value)
        return [order[a:b] + order[:2] for a, b in zip([0, *ends], [*ends, len(order)], strict=True)]

    rows = np.random.default_rng(len(plan)).integers(1, 100, (compiled.CHUNK + 3, 2))
    plain = RecordedProgram(["a", "b"], groups)
    run = compile_columns(plain.listing)
    assert run is not None
    for (part, want, others), (same, got, compiled_others) in zip(
        _parts(plain.run, rows), _parts(run, rows), strict=True
    ):
        assert part == same and np.array_equal(want, got, equal_nan=True)
        for a, b in zip(others, compiled_others, strict=True):
            assert np.array_equal(a, b, equal_nan=True)


def _parts(run: Any, rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray, list[np.ndarray]]]:
    """Of so many rows at a time that each way takes them at once."""
    for begin in range(0, len(rows), compiled.CHUNK):
        for part, first, group in run(rows[begin : begin + compiled.CHUNK]):
            count = 0
            while True:
                try:
                    group(count + 1)
                except IndexError:
                    break
                count += 1
            yield part, first.copy(), [group(k + 1).copy() for k in range(count)]


@pytest.mark.fast("softmax-shape2", "permute-shape4")
@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("matmul", {"m": 33, "n": 48, "k": 20}),
        ("conv2d", {"h": 9, "w": 9, "ci": 8, "co": 16, "kh": 3, "kw": 3, "padding": 1}),
        ("softmax", {"m": 64, "n": 100}),
        ("attention", {"seq": 32, "dim": 16, "heads": 2}),
        ("permute", {"shape": [40, 24], "axes": [1, 0]}),
    ],
)
def test_features_and_limits_are_the_same_compiled(
    op: str, shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "COMPILE_US", 0.0)
    dag = ops.workload(op, shape).dag
    plain, fast = derive(dag, target(2)), derive(dag, target(2), compile_columns)
    for s in range(min(len(plain.sketches), 3)):
        rows = plain.sample(s, compiled.CHUNK + 7, np.random.default_rng(s))
        valid = plain.valid(s, rows)
        assert np.array_equal(fast.valid(s, rows), valid)
        assert np.array_equal(fast.features(s, rows[valid]), plain.features(s, rows[valid]))
        assert fast.sketch(s).valid._compiled is not None


def test_it_is_compiled_once_and_when_rows_have_taken_as_long() -> None:
    asked = 0

    def compiler(listing: recording.Listing) -> recording.Run | None:
        nonlocal asked
        asked += 1
        return compile_columns(listing)

    program = RecordedProgram(["a", "b"], lambda env: [[env["a"] * env["b"]]], compiler)
    rows = np.ones((200, 2), dtype=np.int64)
    calls = 0
    while not asked:
        calls += 1
        list(program.run(rows))
    assert 10 < calls < 50 and program._compiled is not None
    list(program.run(rows))
    assert asked == 1


def test_what_has_no_instruction_stays_with_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "COMPILE_US", 0.0)
    program = RecordedProgram(["a", "b"], lambda env: [[np.arctan2(env["a"], env["b"])]], compile_columns)
    ((_, found, _),) = program.run(np.array([[3, 4]]))
    assert program._compiled is None and found[0, 0] == np.arctan2(3.0, 4.0)
