"""Models whose outputs take the memory of inputs: the same numbers, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import each_stage, graph_of, whole
from needs import imported

from autotune import targets
from autotune.errors import ArgumentError, ModelError
from autotune.models.module import Module
from autotune.models.origin import ModelOrigin
from autotune.models.outline import outline
from autotune.models.program import Program
from autotune.run.kernels import default_kernel
from schedules import te
from schedules.graph.graph import Graph

HERE = targets.detect(1)
N = 13


def module_of(graph: Graph) -> Module:
    ol = outline(graph, each_stage(graph)[1])
    kernels = [default_kernel(w, HERE) for w in ol.tasks]
    program = Program.of(ol, kernels, graph.values.__getitem__, lambda i, a: a)
    return Module(program, HERE, "net", [1e-6] * len(kernels), ModelOrigin.of("net", graph, graph))


def net(tensors: Sequence[te.Tensor], outputs: Sequence[str], values: Any = None) -> Module:
    return module_of(graph_of(list(tensors), values or {}, tuple(outputs)))


def row(name: str, n: int = N) -> te.Tensor:
    return te.placeholder((n,), "float32", name)


def chain() -> Module:
    """p = w x + z; q = p + z[i + 1]."""
    x, w, z = row("x"), row("w"), row("z")
    p = te.compute((N,), lambda i: w[i] * x[i] + z[i], "p")
    q = te.compute((N,), lambda i: p[i] + z[te.minimum(i + 1, N - 1)], "q")
    return net([x, w, z, p, q], ["q"], {"w": whole(np.random.default_rng(0), (N,))})


def numbers(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 8, N).astype("float32")


@pytest.mark.parametrize("which", ["x", "z"])
def test_an_output_takes_an_input(which: str) -> None:
    """x is read before q is written; z in the same step, ahead of what is written."""
    plain = chain()
    made, x, z = plain.donating([which]), numbers(), numbers(1)
    assert made.donated == {which: "q"} and not plain.donated
    want = plain(x, z)
    for _ in range(2):
        a, b = x.copy(), z.copy()
        y = made(a, b)
        given_away, kept, before = (a, b, z) if which == "x" else (b, a, x)
        assert y is given_away and np.array_equal(y, want) and np.array_equal(kept, before)
    other = plain(x, z)
    assert not np.shares_memory(other, x) and np.array_equal(other, want)


def test_two_inputs_and_two_outputs_are_matched() -> None:
    """b may lie in either input's place, a in that of z alone: x moves to b."""
    x, z = row("x"), row("z")
    a = te.compute((N,), lambda i: z[i] + 1.0, "a")
    b = te.compute((N,), lambda i: x[i] * a[i], "b")
    made, u, v = net([x, z, a, b], ["b", "a"]).donating(["z", "x"]), numbers(), numbers(1)
    want = [(v + 1) * u, v + 1]
    got = made(u, v)
    assert all(map(np.array_equal, got, want)) and got[0] is u and got[1] is v
    assert made.donated == {"x": "b", "z": "a"}


def behind() -> Module:
    x = row("x")
    return net([x, te.compute((N,), lambda i: x[i] + x[te.maximum(i - 1, 0)], "y")], ["y"])


def read_later() -> Module:
    x = row("x")
    p = te.compute((N,), lambda i: 2.0 * x[i], "p")
    q = te.compute((N - 1,), lambda i: p[i] + x[i + 1], "q")
    return net([x, p, q], ["p", "q"])


@pytest.mark.parametrize(
    ("make", "names", "message"),
    [
        (behind, ["x"], r"input 'x' is donated, and no output can take its memory: output 'y': step 0 "
         r".*: .* is written before .* is read in a later iteration of loop .*; leave it out"),
        (read_later, ["x"], r"output 'p': step 0 \(.*\) writes it before step 1 \(.*\) reads the input"),
        (chain, ["x", "z"], "input 'z' is donated.*: input 'x' takes it"),
        (chain, ["w"], r"donate has 'w', which is no input of the model.*x, z"),
        (chain, "x", r"give names of inputs, as donate=\('x',\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_named(make: Any, names: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make().donating(names)


def test_an_input_like_no_output() -> None:
    x = row("x")
    y = te.compute((N - 1,), lambda i: x[i + 1], "y")
    with pytest.raises(ModelError, match=r"none is float32\[13\], row-major"):
        net([x, y], ["y"]).donating(["x"])


def test_arrays_that_cannot_be_taken() -> None:
    made, x, z = chain().donating(["x"]), numbers(), numbers(1)
    fixed = x.copy()
    fixed.flags.writeable = False
    for a, b, message in [
        (fixed, z, "input 'x' is donated, and cannot be written; give"),
        (x, x, "input 'x' is donated, and shares memory with input 'z'; give it memory of its own"),
        (np.zeros(2 * N, "float32")[::2], z, "'x' is donated, and lies otherwise than the model reads it"),
    ]:
        before = a.copy()
        with pytest.raises(ArgumentError, match=message):
            made(a, b)
        assert np.array_equal(a, before)


def test_pickles_and_copies_keep_it() -> None:
    made, x, z = chain().donating(["x"]), numbers(), numbers(1)
    want = chain()(x, z)
    for other in (made.__copy__(), pickle.loads(pickle.dumps(made))):
        a = x.copy()
        assert other(a, z) is a and np.array_equal(a, want)


def test_other_weights_keep_it() -> None:
    made, x, z = chain().donating(["z"]), numbers(), numbers(1)
    w = numbers(2)
    made.load_weights(dict.fromkeys(made.weights, w))
    want = w * x + z
    want += np.append(z[1:], z[-1])
    assert made(x, z) is z and np.array_equal(z, want)


def test_tensors_are_taken() -> None:
    torch = imported("torch")
    made, x, z = chain().donating(["x"]), numbers(), numbers(1)
    t = torch.from_numpy(x.copy())
    version = t._version
    assert made(t, torch.from_numpy(z)) is t and t._version > version
    assert np.array_equal(t.numpy(), chain()(x, z))


STEP = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(-1, 1))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=4), st.data())
def test_random_models(steps: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Each step adds an earlier tensor and a moved one. What is not refused gives the same numbers."""
    tensors = [row("x"), row("z")]
    for n, (i, j, d) in enumerate(steps):
        a, b = tensors[i % len(tensors)], tensors[j % len(tensors)]
        at = lambda i, d=d: te.minimum(te.maximum(i + d, 0), N - 1)  # noqa: E731
        tensors.append(te.compute((N,), lambda i, a=a, b=b, at=at: a[i] + 2.0 * b[at(i)], f"s{n}"))
    names = [t.name for t in tensors[2:]]
    outputs = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    if names[-1] not in outputs:
        outputs.append(names[-1])
    try:
        plain = net(tensors, outputs)
    except Exception:  # an input or a stage that nothing reads
        return
    x = [numbers(n) for n in range(len(plain.inputs))]
    want = plain(*x)
    for t in plain.inputs:
        try:
            made = plain.donating([t.name])
        except ModelError:
            continue
        got = made(*(a.copy() for a in x))
        one = [g if isinstance(g, tuple) else (g,) for g in (got, want)]
        assert all(map(np.array_equal, *one))
