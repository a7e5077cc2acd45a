"""Parts of joined tensors are computed in their places: what that computes, where, and when it is done."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from graph_memory import run_in_memory, touched
from hypothesis import example, given, settings
from hypothesis import strategies as st
from joined_models import concat, cut, dense_block, fire, rolled, shuffled, steps, token

from autotune.backends import parse
from autotune.models.outline import Outline, outline
from autotune.models.program import Program
from autotune.run.kernels import default_kernel
from schedules import affine, te
from schedules import expr as E
from schedules.expr import Const, Var
from schedules.graph import joins
from schedules.graph.graph import Argument, Graph, Island
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.strides import strides_of
from schedules.te.compute_dag import Axis

MODELS = {"fire": fire, "dense": dense_block, "token": token, "shuffled": shuffled, "steps": steps}
JOINED = {"fire": 1, "dense": 3, "token": 1, "shuffled": 1, "steps": 1}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a few bytes count as those of many do."""
    monkeypatch.setattr(joins, "CALL_BYTES", 0)


def outline_of(graph: Graph) -> tuple[Graph, Outline]:
    after = optimize(graph)
    return after, outline(after, partition(after))


def check_places(ol: Outline) -> None:
    """Parts lie inside of what they make up, cover it, and share no element."""
    for name, parts in ol.joins.items():
        elements = [touched(ol, Argument(p), ol.tensors[p])[1].reshape(-1) for p in parts]
        assert sorted(np.concatenate(elements)) == sorted(
            touched(ol, Argument(name), ol.tensors[name])[1].reshape(-1)
        )


@pytest.mark.parametrize("model", MODELS)
def test_joined_models_compute_what_they_did(model: str) -> None:
    graph = MODELS[model]()
    after, ol = outline_of(graph)
    assert len(ol.joins) == JOINED[model]
    check_places(ol)
    inputs = cases.inputs_of(graph)
    want = evaluate(graph, inputs)
    for x, y in zip(want, run_in_memory(ol, after.values, inputs), strict=True):
        np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("model", MODELS)
def test_joined_models_compute_so_in_kernels(model: str) -> None:
    graph = MODELS[model]()
    after, ol = outline_of(graph)
    kernels = [default_kernel(w, parse("cpu", 1)) for w in ol.tasks]
    program = Program.of(ol, kernels, after.values.__getitem__, lambda island, arrays: arrays)
    inputs = cases.inputs_of(graph)
    outputs = [np.full(ol.tensors[n].shape, 77, ol.tensors[n].dtype) for n in dict.fromkeys(ol.outputs)]
    for _ in range(2):
        program.run(inputs, outputs)
        for x, y in zip(evaluate(graph, inputs), outputs, strict=True):
            np.testing.assert_array_equal(y, x)


def test_no_kernel_only_moves_what_can_be_computed_in_its_place() -> None:
    assert len(outline_of(fire())[1].steps) == 3
    assert len(outline_of(dense_block())[1].steps) == 8, "maps in front of three convolutions are stored"
    assert len(outline_of(shuffled())[1].steps) == 6, (
        "half of the channels are copied; after that, rows are short"
    )
    assert len(outline_of(token())[1].steps) == 3, (
        "a row of its own, and what is added to the others in place"
    )


def test_a_tensor_lies_in_the_last_of_what_it_is_joined_to() -> None:
    _, ol = outline_of(dense_block())
    (root,) = {at.tensor for at in ol.views.values()}
    assert ol.tensors[root].strides is None
    steps = {n: ol.tensors[n].strides for n in ol.views}
    assert len({s[-2] for s in steps.values()}) == 1 and {s[-1] for s in steps.values()} == {1}


def test_short_rows_are_copied() -> None:
    b = cases.Builder()
    x = b.input("x", 1, 3, 4, 4)
    y = concat(cases.conv(b, x, 3, 1, name="one"), cases.conv(b, x, 32, 1, name="two"))
    assert not outline_of(b.graph(cases.conv(b, y, 5, 1, name="next")))[1].joins


def test_what_is_given_or_returned_or_joined_before_is_copied() -> None:
    b = cases.Builder()
    x = b.input("x", 3, 16)
    y = cases.matmul(x, b.constant("w", 16, 16, least=-1, most=1))
    graph = b.graph(concat(x, y), y)
    assert not outline_of(graph)[1].joins
    b = cases.Builder()
    x = b.input("x", 3, 16)
    y, z = (cases.matmul(x, b.constant(n, 16, k, least=-1, most=1)) for n, k in (("v", 16), ("w", 32)))
    graph = b.graph(concat(y, z), concat(z, y))
    after, ol = outline_of(graph)
    assert len(ol.views) == 2 and len(ol.joins) == 1, "a tensor lies in one place"
    inputs = cases.inputs_of(graph)
    for w, got in zip(evaluate(graph, inputs), run_in_memory(ol, after.values, inputs), strict=True):
        np.testing.assert_array_equal(got, w)


@pytest.mark.parametrize(
    ("wide", "place"),
    [
        (32, lambda j: j),  # the first half
        (16, lambda j: j % 8),  # the first half, twice
        (32, lambda j: j + 16),  # the second half
        (32, lambda j: 2 * j),  # every second one
        (16, lambda j: 15 - j),  # backwards
        (8, lambda j: j // 2),  # each twice
    ],
)
def test_a_box_that_has_not_each_element_once_is_computed_apart(wide: int, place: Any) -> None:
    b = cases.Builder()
    x = b.input("x", 3, 5)
    y, z = (cases.matmul(x, b.constant(n, 5, k, least=-1, most=1)) for n, k in (("v", wide), ("w", 48)))
    part = cases.stage((3, 16), lambda i, j: y[i, place(j)], "part")
    graph = b.graph(cases.dense(b, concat(part, z), 4, "d"), cases.relu(y))
    after, ol = outline_of(graph)
    assert [len(parts) for parts in ol.joins.values()] == [2] and len(ol.calls) == 5
    check_places(ol)
    inputs = cases.inputs_of(graph)
    for want, got in zip(evaluate(graph, inputs), run_in_memory(ol, after.values, inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_padding_that_is_joined_is_computed_once() -> None:
    b = cases.Builder()
    x = b.input("x", 3, 14)
    y, z = (cases.matmul(x, b.constant(n, 14, k, least=-1, most=1)) for n, k in (("v", 14), ("w", 48)))
    padded = cases.stage(
        (3, 16), lambda i, j: te.select(te.all(j >= 1, j < 15), y[i, j - 1], te.const(0, "float32")), "pad"
    )
    graph = b.graph(cases.dense(b, concat(padded, z), 4, "d"), cases.dense(b, padded, 3, "e"))
    after, ol = outline_of(graph)
    assert len(ol.joins) == 1
    check_places(ol)
    inputs = cases.inputs_of(graph)
    for x_, y_ in zip(evaluate(graph, inputs), run_in_memory(ol, after.values, inputs), strict=True):
        np.testing.assert_array_equal(y_, x_)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Any, Any, Any, Any]:
    """(a box, its axes, indices by these, the shape of what they read)."""
    ranges = [
        (lo, lo + n - 1)
        for lo, n in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=3))
    ]
    axes = [Axis(f"v{n}", hi + 1) for n, (_, hi) in enumerate(ranges)]
    indices, shape = [], []
    for _ in range(draw(st.integers(1, 4))):
        d = draw(st.integers(0, len(axes) - 1))
        lo, hi = ranges[d]
        begin = draw(st.sampled_from([lo, lo, lo, 0]))
        e, reached = Var(f"v{d}") - begin, [v - begin for v in range(lo, hi + 1)]
        for op in draw(st.lists(st.sampled_from("/%"), max_size=2)):
            c = draw(st.integers(2, 6))
            e = e // c if op == "/" else e % c
            reached = [v // c if op == "/" else v % c for v in reached]
        indices.append(e)
        shape.append(max(reached) + 1 + draw(st.sampled_from([0, 0, 0, 3])))
    return joins._Box(tuple(ranges), Const(0.0), tuple(a.extent for a in axes)), axes, indices, shape


def one_axis(n: int, shape: list[int], *indices: Any) -> tuple[Any, Any, Any, Any]:
    return joins._Box(((0, n - 1),), Const(0.0), (n,)), [Axis("v", n)], indices, shape


V = Var("v")


@settings(max_examples=100, deadline=None)
@given(boxes())
@example(one_axis(12, [3, 4], V // 4, V % 4))
@example(one_axis(12, [2, 3, 2], V // 6, V // 2 % 3, V % 2))
@example(one_axis(12, [4, 3], V % 4, V // 2 % 3))
@example(one_axis(8, [8], V % 4))
@example(one_axis(8, [4, 2], V % 6 % 4, V // 4))
def test_a_box_is_a_tensor_where_each_element_has_one_place(made: tuple[Any, Any, Any, Any]) -> None:
    box, axes, indices, shape = made
    points = list(itertools.product(*(range(lo, hi + 1) for lo, hi in box.ranges)))
    read = [
        tuple(int(value_at(i, dict(zip((a.var for a in axes), p, strict=True)))) for i in indices)
        for p in points
    ]
    steps = joins._digits(box, axes, indices, shape)
    every = set(itertools.product(*map(range, shape)))
    if steps is None:
        return
    assert len(points) == len(every) and set(read) == every
    for p, at in zip(points, read, strict=True):
        back = [lo for lo, _ in box.ranges]
        for i, (axis, far) in zip(at, steps, strict=True):
            back[axis] += i * far
        assert tuple(back) == p


def value_at(e: Any, at: dict[str, int]) -> int:
    found = affine.simplify(E.substitute(e, {v: Const(n) for v, n in at.items()}), {})
    assert isinstance(found, Const)
    return int(found.value)


@pytest.mark.parametrize(
    ("place", "joined"),
    [
        (lambda j: j, True),
        (lambda j: 2 * j + 1, False),
        (lambda j: j % 8 * 4 + j // 8, False),
        (lambda j: 3, True),
    ],
)
def test_half_may_be_copied_where_it_lies_side_by_side(place: Any, joined: bool) -> None:
    b = cases.Builder()
    x = b.input("x", 3, 5)
    y, z = (cases.matmul(x, b.constant(n, 5, k, least=-1, most=1)) for n, k in (("v", 64), ("w", 32)))
    part = cases.stage((3, 32), lambda i, j: y[i, place(j)], "part")
    graph = b.graph(cases.dense(b, concat(part, z), 4, "d"), cases.relu(y))
    assert bool(outline_of(graph)[1].joins) == joined


def test_few_bytes_are_not_worth_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not outline_of(shuffled())[1].joins
    assert outline_of(fire())[1].joins, "a call less, and no bytes copied"


def test_graphs_without_joins_stay_as_they_are() -> None:
    graph = cases.residual_net()
    after = optimize(graph)
    assert joins.join_in_place(after) is after and not after.views and not after.joins


def test_views_that_lie_are_refused() -> None:
    _, ol = outline_of(fire())
    (whole,) = ol.joins
    part = ol.joins[whole][0]
    n = ol.views[part].start

    def refused(message: str, **changes: Any) -> None:
        with pytest.raises(ValueError, match=message):
            replace(ol, **changes)

    refused("does not lie inside of", views=ol.views | {part: Argument(whole, n + 33)})
    refused("does not lie inside of", views=ol.views | {part: Argument(whole, -1)})
    refused("is no tensor of the model", views=ol.views | {part: Argument("nothing", 0)})
    refused("is not joined of tensors that lie in it", joins={whole: ()})
    refused("is not joined of tensors that lie in it", joins={whole: (whole,)})
    refused("is no part of", joins={})
    refused("is written, and joined of others", joins=ol.joins | {part: ol.joins[whole][1:]})
    refused("cannot lie in", views=ol.views | {ol.inputs[0]: Argument(whole, 0)})
    refused("cannot lie in", views=ol.views | {whole: Argument(whole, 0)})
    refused("is no part of", views=ol.views | {ol.outputs[0]: Argument(whole, 0)})

    def lies(name: str, strides: Any) -> Any:
        return dict(ol.tensors) | {name: replace(ol.tensors[name], strides=strides)}

    refused("stride -4 of dimension 2", tensors=lies(ol.inputs[0], (1, 1, -4, 1)))
    refused("stride 0 of dimension 3", tensors=lies(ol.inputs[0], (60, 20, 4, 0)))
    refused("is neither an input nor part of another", tensors=lies(ol.outputs[0], (200, 40, 8, 1)))
    refused("is neither an input nor part of another", tensors=lies(ol.constants[0], (9, 1, 1, 32)))

    def read_with(times: int) -> Any:
        """The tasks, of which the first one reads with other steps."""
        first, *others = ol.tasks
        steps = [tuple(times * s for s in strides_of(t)) for t in first.dag.inputs]
        read = tuple(replace(t, strides=s) for t, s in zip(first.dag.inputs, steps, strict=True))
        return replace(first, dag=replace(first.dag, inputs=read)), *others

    refused("is read backwards, before its first element", tasks=read_with(-1))
    refused("^elements 0 to", tasks=read_with(2))
    reader = Island("i", "Op", (part,), (), b"")
    refused("an island has .*, which lies in another tensor", steps=(*ol.steps, reader))


# --- random graphs of movements -------------------------------------------------------------------

MOVES = (
    "concat",
    "concat",
    "concat",
    "slice",
    "roll",
    "transpose",
    "reshape",
    "map",
    "product",
    "add",
    "sums",
)


@st.composite
def moved(draw: st.DrawFn) -> Graph:
    """A random graph of movements, maps and products of small tensors of two and three dimensions."""
    b = cases.Builder(draw(st.integers(0, 9)))
    shape = draw(st.lists(st.integers(1, 4), min_size=2, max_size=3))
    values = [b.input("x", *shape), b.input("y", *shape)]
    for n, step in enumerate(draw(st.lists(st.sampled_from(MOVES), min_size=2, max_size=9))):
        made = _step(draw, b, values, step, n)
        if made is not None and np.prod(made.shape) <= 2000:
            values.append(made)
    made = [*values[2:], cases.add(values[0], values[1])]  # which reads all inputs
    outputs = [*made[-2:], *draw(st.lists(st.sampled_from(made), max_size=2))]
    return b.graph(*dict.fromkeys(outputs))


def _step(draw: st.DrawFn, b: cases.Builder, values: list[Any], step: str, n: int) -> Any:
    x = values[draw(st.integers(0, len(values) - 1))]
    axis = draw(st.integers(0, len(x.shape) - 1))
    match step:
        case "concat":
            fits = [
                y
                for y in values
                if len(y.shape) == len(x.shape)
                and all(d == axis or p == q for d, (p, q) in enumerate(zip(x.shape, y.shape, strict=True)))
            ]
            return concat(x, *draw(st.lists(st.sampled_from(fits), min_size=1, max_size=3)), axis=axis)
        case "slice":
            first = draw(st.integers(0, x.shape[axis] - 1))
            return cut(x, axis, first, draw(st.integers(1, x.shape[axis] - first)))
        case "roll":
            return rolled(x, axis, draw(st.integers(0, x.shape[axis])))
        case "transpose":
            return cases.transpose(x, *draw(st.permutations(range(len(x.shape)))))
        case "reshape":
            size = int(np.prod(x.shape))
            rows = draw(st.sampled_from([k for k in range(1, size + 1) if size % k == 0]))
            return cases.reshape(x, rows, size // rows)
        case "map":
            return cases.relu(x)
        case "product":
            flat = x if len(x.shape) == 2 else cases.reshape(x, x.shape[0], int(np.prod(x.shape[1:])))
            w = b.constant(f"w{n}", flat.shape[1], draw(st.integers(1, 4)), least=-1, most=1)
            return cases.matmul(flat, w)
        case "sums":
            k = te.reduce_axis(x.shape[-1], "k")
            return (
                cases.stage(x.shape[:-1], lambda *i: te.sum(x[(*i, k)], axis=k), "sums")
                if len(x.shape) > 2
                else None
            )
    same = [y for y in values if y.shape == x.shape]
    return cases.add(x, draw(st.sampled_from(same)))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All that can be computed in its place is."""
    monkeypatch.setattr(joins, "LINE", 1)
    monkeypatch.setattr(joins, "LEFT", 100.0)
    yield


def check_moved(graph: Graph) -> None:
    inputs = cases.inputs_of(graph)
    want = evaluate(graph, inputs)
    after, ol = outline_of(graph)
    check_places(ol)
    for x, y in zip(want, evaluate(after, inputs), strict=True):
        np.testing.assert_array_equal(y, x)
    for x, y in zip(want, run_in_memory(ol, after.values, inputs), strict=True):
        np.testing.assert_array_equal(y, x)


@pytest.mark.usefixtures("eager")
@settings(max_examples=40, deadline=None)
@given(moved())
def test_random_movements_keep_their_meaning(graph: Graph) -> None:
    check_moved(graph)


@pytest.mark.fuzz
@pytest.mark.usefixtures("eager")
@settings(max_examples=1000, deadline=None)
@given(moved())
def test_many_random_movements_keep_their_meaning(graph: Graph) -> None:
    check_moved(graph)
