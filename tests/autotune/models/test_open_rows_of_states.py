"""Calls write an open number of rows to a state in place, and read the rows that are valid then."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from graph_memory import run_in_memory
from needs import imported
from open_graphs import size
from saved_mutants import closed, opened
from state_models import StateBuilder, new_states, put, untuned
from test_open_models import module_of
from test_valid_rows_of_models import LENGTH, decoder, outline_of

import autotune as at
from autotune.errors import ArgumentError, ModelError
from autotune.models.saved import load_model
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimize
from schedules.graph.valid_rows import read_whole
from schedules.te.open_sizes import at as at_sizes

te = at.te
MOST = 4


def inputs_at(graph: Graph, n: int, pos: int) -> list[Any]:
    rng = np.random.default_rng(n + pos)
    t = graph.dag.tensors["x"]
    return [rng.normal(size=(n, *t.shape[1:])).astype(t.dtype), np.array([pos])]


def writer(how: str, axis: int, most: int = MOST) -> Graph:
    """Writes rows along an axis of a state, and adds the whole up along it."""
    b = StateBuilder()
    n = size(1, most)
    x, pos = b.input("x", n, 3), b.input("pos", 1, dtype="int64")
    old = b.state("s", *((9, 3) if axis == 0 else (3, 9)))
    rows = x if axis == 0 else cases.transpose(x, 1, 0)
    new = put(old, rows, pos[0], axis, how)
    b.becomes("s", new)
    k = te.reduce_axis(9, "k")
    at_ = (lambda i: (k, i)) if axis == 0 else (lambda i: (i, k))
    return b.model(te.compute((3,), lambda i: te.sum(new[at_(i)], axis=k), "total"))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("how", ["range", "closed", "latest"])
def test_rows_are_written_where_they_belong_and_nothing_else(how: str, axis: int) -> None:
    graph = writer(how, axis)
    after, ol = outline_of(graph)
    assert all(ol.root(s.new) == s.tensor for s in ol.states.values()), "it is replaced whole"
    want, got = new_states(graph), new_states(graph)
    written: dict[str, int] = {}
    total = 0
    for n, pos in ((1, 0), (4, 1), (2, 7), (3, 0), (4, 5), (1, 8)):
        x = [a.round() for a in inputs_at(graph, n, pos)]
        y = run_in_memory(ol, after.values, x, {"n": n}, got, written)
        at_n = at_sizes_of(graph, n)
        np.testing.assert_array_equal(y[0], evaluate(at_n, x, want)[0])
        np.testing.assert_array_equal(got["s"], want["s"])
        total += n * 3 * 4
        assert written == {"s": total}
    for n, pos in ((4, 6), (1, 9), (2, -1)):
        before = got["s"].copy()
        with pytest.raises(ArgumentError, match=f"give a position from 0 to {9 - n}"):
            run_in_memory(ol, after.values, inputs_at(graph, n, pos), {"n": n}, got)
        np.testing.assert_array_equal(got["s"], before)


def adding(n: Any, rows: Any) -> Graph:
    """Adds ``rows`` of ``x`` to those of a state."""
    b = StateBuilder()
    x, pos = b.input("x", n, 3), b.input("pos", 1, dtype="int64")
    old = b.state("s", 9, 3)

    def value(t: Any, d: Any) -> Any:
        own = te.cast(t, "int64") - pos[0]
        return te.select(te.all(0 <= own, own < te.cast(rows(n), "int64")), old[t, d] + x[own, d], old[t, d])

    new = cases.stage((9, 3), value, "added")
    b.becomes("s", new)
    k = te.reduce_axis(9, "k")
    return b.model(te.compute((3,), lambda i: te.sum(new[k, i], axis=k), "total"))


def test_rows_are_made_of_those_that_were_there() -> None:
    graph = adding(size(1, MOST), lambda n: n)
    after, ol = outline_of(graph)
    assert all(ol.root(s.new) == s.tensor for s in ol.states.values()), "it is replaced whole"
    want, got = new_states(graph), new_states(graph)
    for n, pos in ((1, 0), (4, 1), (2, 7), (3, 0), (4, 5), (1, 8)):
        x = [a.round() for a in inputs_at(graph, n, pos)]
        y = run_in_memory(ol, after.values, x, {"n": n}, got)
        np.testing.assert_array_equal(y[0], evaluate(at_sizes_of(graph, n), x, want)[0])
        np.testing.assert_array_equal(got["s"], want["s"])


def test_a_write_of_no_row_leaves_a_state() -> None:
    graph = adding(1, lambda n: n - 1)
    after, ol = outline_of(graph)
    got = new_states(graph)
    got["s"][...] = np.arange(27).reshape(9, 3)
    y = run_in_memory(ol, after.values, inputs_at(graph, 1, 2), {}, got)
    np.testing.assert_array_equal(y[0], got["s"].sum(0))
    np.testing.assert_array_equal(got["s"], np.arange(27).reshape(9, 3))


def at_sizes_of(graph: Graph, n: int) -> Graph:
    from dataclasses import replace

    from schedules.te.marks import unmarked

    return replace(graph, dag=at_sizes(unmarked(graph.dag), {"n": n}))


@pytest.mark.parametrize("outer", [False, True])
def test_rows_of_nan_behind_the_last_valid_one_change_nothing(outer: bool) -> None:
    graph = decoder(size(1, MOST), outer=outer)
    after, ol = outline_of(graph)
    assert read_whole(after) == {} and [(c.least, c.most) for c in ol.counts] == [(1, LENGTH)]
    assert all(ol.root(s.new) == s.tensor for s in ol.states.values())
    want, got = new_states(graph), new_states(graph)
    pos = 0
    for n in (3, 1, 4, 2, 1):
        for a in got.values():
            (a if outer else a.swapaxes(0, 1))[pos:] = np.nan
        x = inputs_at(graph, n, pos)
        y = run_in_memory(ol, after.values, x, {"n": n}, got)
        np.testing.assert_allclose(y[0], evaluate(at_sizes_of(graph, n), x, want)[0], rtol=1e-5, atol=1e-6)
        pos += n


def masked(hidden: Callable[[Any, Any, Any, Any], Any]) -> Graph:
    """A weighted mean of the rows of a state, of which ``hidden(t, i, pos, n)`` are left out."""
    b = StateBuilder()
    n = size(1, MOST)
    x, pos = b.input("x", n, 2), b.input("pos", 1, dtype="int64")
    new = put(b.state("s", 9, 2), x, pos[0], 0, "latest")
    b.becomes("s", new)
    wide = te.cast(n, "int64")
    r, s, k = te.reduce_axis(9), te.reduce_axis(9), te.reduce_axis(9)

    def score(i: Any, t: Any) -> Any:
        own = te.cast(t, "int64"), te.cast(i, "int64")
        return te.select(hidden(*own, pos[0], wide), -math.inf, new[t, 0])

    scores = te.compute((n, 9), score, "scores")
    top = te.compute((n,), lambda i: te.max(scores[i, r], axis=r), "top")
    e = te.compute((n, 9), lambda i, t: te.exp(scores[i, t] - top[i]), "e")
    total = te.compute((n,), lambda i: te.sum(e[i, s], axis=s), "total")
    return b.model(te.compute((n,), lambda i: te.sum(e[i, k] / total[i] * new[k, 1], axis=k), "y"))


PROVED: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "behind its own": lambda t, i, pos, n: t > pos + i,
    "behind the last": lambda t, i, pos, n: t >= pos + n,
    "all but its own": lambda t, i, pos, n: te.all(t >= pos + i + 1, t >= pos),
}
NOT_PROVED: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "one more": lambda t, i, pos, n: t > pos + i + 1,
    "behind the largest": lambda t, i, pos, n: t >= pos + MOST,
    "one behind the last": lambda t, i, pos, n: t > pos + n,
    "before its own": lambda t, i, pos, n: t < pos + i,
}


@pytest.mark.parametrize("name", [*PROVED, *NOT_PROVED])
def test_a_mask_must_hide_all_that_is_behind_the_rows_of_each_size(name: str) -> None:
    after = optimize(masked((PROVED | NOT_PROVED)[name]))
    assert bool(after.short) == (name in PROVED) and bool(read_whole(after)) == (name in NOT_PROVED)


def test_the_number_of_valid_rows_has_a_name_of_its_own() -> None:
    b = StateBuilder()
    x, pos = b.input("x", size(1, MOST, "rows0"), 2), b.input("pos", 1, dtype="int64")
    new = put(b.state("s", 9, 2), x, pos[0], 0, "latest")
    b.becomes("s", new)
    k = te.reduce_axis(9)
    seen = te.compute((9,), lambda t: te.cast(t, "int64") < pos[0] + te.cast(x.shape[0], "int64"), "seen")
    total = te.compute((2,), lambda j: te.sum(te.select(seen[k], new[k, j], 0.0), axis=k), "total")
    _, ol = outline_of(b.model(total))
    assert [s.name for s in ol.told] == ["rows0", "rows0_1"]


def test_a_start_that_depends_on_the_size_is_refused() -> None:
    b = StateBuilder()
    n = size(1, 8)
    x, pos = b.input("x", n, 4), b.input("pos", 1, dtype="int64")
    new = put(b.state("s", 8192, 4), x, pos[0] + te.cast(n, "int64"), 0, "range")
    b.becomes("s", new)
    k = te.reduce_axis(8192)
    with pytest.raises(ValueError, match="state 's' of 131072 bytes is replaced by"):
        optimize(b.model(te.compute((4,), lambda j: te.sum(new[k, j], axis=k), "total")))


# -- compiled --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_saved_model_writes_an_open_number_of_rows(tmp_path: Path) -> None:
    graph = decoder(size(1, MOST), 1)
    net = module_of(graph)
    net.save(tmp_path / "net.at")
    back = load_model(tmp_path / "net.at")
    assert back.program.outline == net.program.outline
    want, pos = new_states(graph), 0
    for n in (4, 1, 2, 3):
        x = inputs_at(graph, n, pos)
        y = evaluate(at_sizes_of(graph, n), x, want)[0]
        np.testing.assert_allclose(net(*x), y, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(back(*x), y, rtol=1e-5, atol=1e-6)
        pos += n
    with pytest.raises(ArgumentError, match="2 rows from position 10 on are not inside its 11"):
        net(*inputs_at(graph, 2, 10))


N = ["var", "n.size"]
LIES: dict[str, tuple[Any, str | None]] = {
    "fewer than are written": (["max", 1, ["-", ["*", 2, N], MOST]], "may go beyond the end"),
    "more than there are": (["*", 2, N], "is not from 1 to 4"),
    "none": (["-", N, 1], "is not from 1 to 4"),
    "of nothing": (["var", "m"], "is no number that a call tells"),
    "always the largest": (MOST, None),
}


@pytest.mark.parametrize("name", LIES)
def test_a_file_that_lies_about_its_rows_is_refused(name: str, tmp_path: Path) -> None:
    module_of(writer("range", 0)).save(tmp_path / "net.at")
    v, members = opened(tmp_path / "net.at")
    (moved,) = [m for _, *place in v["views"] for m in (place[2] if len(place) > 2 else [])]
    told, why = LIES[name]
    moved[4] = told
    closed(v, members, tmp_path / "lie.at")
    if why is None:
        load_model(tmp_path / "lie.at")
        return
    with pytest.raises(ModelError, match=why):
        load_model(tmp_path / "lie.at")


@pytest.mark.slow
@pytest.mark.parametrize("write", ["index_copy_", "index_put_"])
def test_a_large_cache_of_torch_takes_a_prompt_of_any_length(write: str) -> None:
    torch = imported("torch")

    class Cached(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 1024, 16))

        def forward(self, x: Any, pos: Any) -> Any:
            place = pos + torch.arange(x.shape[1])
            if write == "index_copy_":
                self.keys.index_copy_(1, place, x)
            else:
                self.keys[:, place] = x
            hidden = torch.arange(1024) > place[:, None]
            scores = (x @ self.keys.transpose(1, 2)).masked_fill(hidden, float("-inf"))
            return torch.softmax(scores, -1) @ self.keys

    module, dims = Cached().eval(), ({1: torch.export.Dim("rows", min=1, max=8)}, None)
    example = torch.zeros(2, 5, 16), torch.tensor([0])
    model = at.import_torch(torch.export.export(module, example, dynamic_shapes=dims, strict=True))
    after = optimize(model.graph)
    assert read_whole(after) == {} and len(after.short) == 1
    net, pos = untuned(model), 0
    for n in (5, 1, 8, 2):
        x = torch.randn(2, n, 16)
        torch.testing.assert_close(net(x, torch.tensor([pos])), module(x, torch.tensor([pos])))
        pos += n
