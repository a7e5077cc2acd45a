"""Operators of ONNX, as their rows state them: forms and versions that its own cases leave out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_models as nets
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import imported

import autotune as at
from autotune.models.operators import onnx_op
from autotune.models.operators.axes import segments
from autotune.models.operators.resize import quotient_form
from schedules.graph.optimize import optimize

onnx = imported("onnx")
from onnx import TensorProto  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

RNG = np.random.default_rng(0)


def check(net: Any, exact: bool = True) -> Any:
    """Import a model and compare it with onnx's reference evaluator. Returns it."""
    model = at.import_onnx(net)
    given = nets.arrays(net)
    got = evaluate(model.graph, [given[p.name] for p in model.inputs])
    for have, want in zip(got, ReferenceEvaluator(net).run(None, given), strict=True):
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        if exact:
            np.testing.assert_array_equal(have, want)
        else:
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)
    return model


def weights(*shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {f"w{i}": nets.whole(RNG, *s) for i, s in enumerate(shapes)}


# --- convolutions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 3, 7), (4, 3, 3), {"strides": [2], "pads": [1, 0]}),
        ((2, 3, 6, 5), (4, 3, 3, 2), {"pads": [0, 1, 2, 1], "strides": [2, 1]}),
        ((1, 4, 7, 7), (6, 2, 3, 3), {"group": 2, "dilations": [2, 1]}),
        ((1, 4, 6, 6), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
        ((1, 3, 6, 6), (6, 1, 2, 2), {"group": 3}),  # two outputs a channel
        ((1, 2, 4, 5, 6), (3, 2, 2, 1, 3), {"strides": [1, 2, 2], "pads": [1, 0, 1, 0, 0, 1]}),
        ((1, 3, 5, 5), (2, 3, 1, 1), {}),
        ((1, 1, 5, 5), (1, 1, 1, 1), {"strides": [2, 2]}),
        ((1, 2, 7, 8), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
        ((1, 2, 7, 8), (3, 2, 2, 2), {"auto_pad": "SAME_LOWER"}),
        ((1, 2, 7, 8), (3, 2, 3, 2), {"auto_pad": "VALID", "strides": [2, 2]}),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions(x: Any, w: Any, attributes: dict[str, Any], bias: bool) -> None:
    known = weights(w, *([w[:1]] if bias else []))
    model = check(nets.one("Conv", [nets.value("x", x)], known, **attributes))
    names = [s.name for s in model.graph.dag.stages]
    assert names[-1] == ("bias_add" if bias else "conv")


def test_a_depthwise_convolution_reduces_over_taps_only() -> None:
    net = nets.one("Conv", [nets.value("x", [1, 4, 6, 6])], weights((4, 1, 3, 3)), group=4)
    (stage,) = check(net).graph.dag.stages
    assert [a.extent for a in stage.reduce_axes] == [3, 3]


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 2, 4), (2, 3, 3), {"strides": [2]}),
        ((1, 2, 4, 4), (2, 3, 3, 3), {"strides": [2, 3], "pads": [1, 0, 0, 1]}),
        ((1, 4, 3, 4), (4, 2, 2, 3), {"group": 2, "strides": [2, 1], "output_padding": [1, 0]}),
        ((1, 2, 4, 4), (2, 1, 3, 2), {"dilations": [2, 3], "strides": [3, 2]}),
        ((1, 2, 4, 4), (2, 1, 3, 3), {"dilations": [2, 2], "strides": [2, 4]}),  # a common divisor
        ((1, 2, 4, 4), (2, 1, 1, 1), {"strides": [2, 2]}),
    ],
)
def test_transposed_convolutions(x: Any, w: Any, attributes: dict[str, Any]) -> None:
    """Beside a scatter: onnx's reference evaluator has none of groups."""
    net = nets.one("ConvTranspose", [nets.value("x", x)], weights(w), **attributes)
    (given,), kernel = nets.arrays(net).values(), onnx.numpy_helper.to_array(net.graph.initializer[0])
    (got,) = evaluate(at.import_onnx(net).graph, [given])
    rank = len(x) - 2
    groups, pads = attributes.get("group", 1), attributes.get("pads", [0] * 2 * rank)
    stride, dilation = (attributes.get(n, [1] * rank) for n in ("strides", "dilations"))
    want = np.zeros_like(got)
    each, depth = w[1], x[1] // groups
    for c, *tap in np.ndindex(x[1], *w[2:]):
        for place in np.ndindex(*x[2:]):
            at_ = tuple(
                i * s + t * d - p for i, s, t, d, p in zip(place, stride, tap, dilation, pads, strict=False)
            )
            if all(0 <= i < n for i, n in zip(at_, got.shape[2:], strict=True)):
                first = c // depth * each
                value = given[(slice(None), c, *place)][:, None] * kernel[(c, slice(None), *tap)]
                want[(slice(None), slice(first, first + each), *at_)] += value
    np.testing.assert_array_equal(got, want)


def numpy_windows(x: np.ndarray, kernel: Any, stride: Any, pads: Any, fill: float, out: Any) -> np.ndarray:
    """All windows of the last two axes, as (..., out, kernel), where more than the pads is filled too."""
    rank = len(kernel)
    sides = [(0, 0)] * (x.ndim - rank) + [(pads[d], pads[d + rank] + 64) for d in range(rank)]
    z = np.pad(x, sides, constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(z, kernel, axis=tuple(range(x.ndim - rank, x.ndim)))
    for d in range(rank):
        view = view[(slice(None),) * (x.ndim - rank + d) + (slice(0, out[d] * stride[d], stride[d]),)]
    return view


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads", "ceil", "out"),
    [
        ((7, 8), (3, 3), (2, 2), (0, 0, 0, 0), 0, (3, 3)),
        ((7, 8), (3, 3), (2, 2), (0, 0, 0, 0), 1, (3, 4)),
        ((6, 6), (3, 2), (2, 3), (1, 0, 1, 1), 0, (3, 2)),
        ((6, 6), (3, 2), (2, 3), (1, 0, 1, 1), 1, (4, 2)),  # likewise
        ((2, 2), (3, 3), (3, 3), (1, 1, 1, 1), 1, (1, 1)),  # a second window would hold padding alone
        ((5, 4), (5, 4), (1, 1), (0, 0, 0, 0), 0, (1, 1)),
    ],
)
def test_pools(size: Any, kernel: Any, stride: Any, pads: Any, ceil: int, out: Any) -> None:
    """Beside numpy: onnx's reference evaluator has other rules for last windows."""
    how = {"kernel_shape": kernel, "strides": stride, "pads": pads, "ceil_mode": ceil}
    x = nets.whole(RNG, 1, 2, *size)
    windows = numpy_windows(x, kernel, stride, pads, -np.inf, out)
    model = at.import_onnx(nets.one("MaxPool", [nets.value("x", x.shape)], **how))
    np.testing.assert_array_equal(evaluate(model.graph, [x])[0], windows.max((-1, -2)))
    inside = np.pad(np.ones(size), [(pads[d], pads[d + 2]) for d in range(2)])
    for count, ones in ((0, np.ones(size)), (1, np.ones_like(inside))):
        # What counts: elements of the input, or of the padded input, but never what lies beyond.
        begin = (0, 0, 0, 0) if count else pads
        counted = numpy_windows(ones, kernel, stride, begin, 0, out).sum((-1, -2))
        total = np.where(np.isinf(windows), 0, windows).sum((-1, -2))
        net = nets.one("AveragePool", [nets.value("x", x.shape)], opset=19, count_include_pad=count, **how)
        got = evaluate(at.import_onnx(net).graph, [x])[0]
        np.testing.assert_allclose(got, total / counted, rtol=1e-6)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("size", [(4,), (2, 4), (2, 2, 2)])
def test_global_pools(op: str, size: Any) -> None:
    x = nets.whole(RNG, 2, 3, *size)
    (got,) = evaluate(at.import_onnx(nets.one(op, [nets.value("x", x.shape)])).graph, [x])
    fold = np.max if op == "GlobalMaxPool" else np.mean
    np.testing.assert_array_equal(got, fold(x, axis=tuple(range(2, x.ndim)), keepdims=True))


# --- movement ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((2, 3, 4), (6, 4)), ((6, 4), (2, 3, 2, 2)), ((6, 4), (8, 3)), ((4, 1, 6), (1, 24)), ((1, 1), (1,)),
        ((24,), (2, 1, 3, 4, 1)), ((1,), ()), ((), (1, 1)), ((2, 3, 5), (5, 3, 2)), ((12, 10), (3, 8, 5)),
    ],
)  # fmt: skip
def test_reshape(old: Any, new: Any) -> None:
    check(nets.one("Reshape", [nets.value("x", old)], {"s": np.array(new, np.int64)}))


def test_reshape_reads_what_it_can_without_division() -> None:
    """(heads, dim) from hidden: the axes that stay are read as they are."""
    net = nets.one("Reshape", [nets.value("x", [2, 7, 12])], {"s": np.array([2, 7, 3, 4])})
    (stage,) = check(net).graph.dag.stages
    assert "//" not in str(stage.values) and "%" not in str(stage.values)


def test_segments_cut_shapes_where_they_agree() -> None:
    assert segments((2, 3, 4), (6, 4)) == [(range(2), range(1)), (range(2, 3), range(1, 2))]
    for _ in range(200):
        sizes = RNG.integers(1, 4, RNG.integers(1, 6))
        cuts = sorted(RNG.integers(0, len(sizes) + 1, 3))
        other = [int(np.prod(p)) for p in np.split(sizes, cuts)]
        pairs = segments([int(n) for n in sizes], other)
        assert [i for a, _ in pairs for i in a] == list(range(len(sizes)))
        assert [j for _, b in pairs for j in b] == list(range(len(other)))
        for a, b in pairs:
            assert np.prod([sizes[i] for i in a]) == np.prod([other[j] for j in b])


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([1], [3], [0], None), ([-3], [-1], [1], [1]), ([5], [-9], [1], [-2]),
        ([0, 1], [99, 99], [0, 1], [2, 3]), ([-1], [-(2**62)], [-1], [-1]), ([1, 1], [2, 2], None, None),
    ],
)  # fmt: skip
def test_slice(starts: Any, ends: Any, axes: Any, steps: Any) -> None:
    given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    known = {n: np.array(v) for n, v in given.items() if v is not None}
    check(nets.one("Slice", [nets.value("x", [4, 6])], known))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [[1, 2, 0, 3], [0, 0, 2, 0], [3, 3, 3, 3]])
def test_pad(mode: str, pads: list[int]) -> None:
    check(nets.one("Pad", [nets.value("x", [4, 5])], {"p": np.array(pads)}, opset=19, mode=mode))


def test_pad_takes_away_and_adds() -> None:
    known = {"p": np.array([-1, 2, 0, -2]), "v": np.array(7, np.float32)}
    net = nets.one("Pad", [nets.value("x", [4, 5])], known)
    x = nets.arrays(net)["x"]
    (got,) = evaluate(at.import_onnx(net).graph, [x])
    np.testing.assert_array_equal(got, np.pad(x, [(0, 0), (2, 0)], constant_values=7)[1:, :-2])


def test_a_long_concat_is_cut_into_stages() -> None:
    ports = [nets.value(f"x{i}", [2, i % 3 + 1]) for i in range(40)]
    model = check(nets.one("Concat", ports, axis=1))
    assert len(model.graph.dag.stages) == 4


def test_empty_parts_vanish() -> None:
    """A slice without elements, joined with another."""
    nodes = [nets.node("Slice", "x zero zero", "none"), nets.node("Concat", "none x", "y", axis=0)]
    model = check(nets.model(nodes, [nets.value("x", [3])], ["y"], {"zero": np.array([0])}))
    assert [s.name for s in model.graph.dag.stages] == ["copy"]


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(mode: str) -> None:
    check(nets.one("DepthToSpace", [nets.value("x", [2, 8, 2, 3])], blocksize=2, mode=mode))
    check(nets.one("SpaceToDepth", [nets.value("x", [2, 3, 4, 6])], blocksize=2))


def test_gathers_of_known_places_are_slices() -> None:
    for ids, axis in (([1], 0), ([0, 2, 4], 1), ([-1, -2], 1), (2, 0), ([[0, 1], [2, 3]], 1)):
        net = nets.one("Gather", [nets.value("x", [3, 6])], {"i": np.array(ids)}, axis=axis)
        assert not check(net).graph.values
    with pytest.raises(at.ModelError, match="an index is outside -3..2"):
        at.import_onnx(nets.one("Gather", [nets.value("x", [3, 6])], {"i": np.array([3])}))


def test_gathers_of_places_that_are_data() -> None:
    """Places below 0 count from the end; those outside read the nearest element, not other memory."""
    x, far = nets.whole(RNG, 3, 5), 2**40
    ids = np.array([[0, -1, 4], [-5, far, -far]])
    net = nets.one(
        "Gather", [nets.value("x", x.shape), nets.value("i", ids.shape, TensorProto.INT64)], axis=1
    )
    (got,) = evaluate(at.import_onnx(net).graph, [x, ids])
    np.testing.assert_array_equal(got, x[:, [[0, 4, 4], [0, 4, 0]]])
    ports = [nets.value("x", x.shape), nets.value("i", (2, 3), TensorProto.INT64)]
    (got,) = evaluate(at.import_onnx(nets.one("GatherElements", ports, axis=1)).graph, [x, ids])
    np.testing.assert_array_equal(got, np.take_along_axis(x[:2], np.array([[0, 4, 4], [0, 4, 0]]), 1))
    pairs = np.array([[0, -1], [-3, 2]])
    ports = [nets.value("x", x.shape), nets.value("i", pairs.shape, TensorProto.INT64)]
    (got,) = evaluate(at.import_onnx(nets.one("GatherND", ports)).graph, [x, pairs])
    np.testing.assert_array_equal(got, x[[0, 0], [4, 2]])


def test_known_places_without_order_are_read_from_a_table() -> None:
    model = check(nets.one("Gather", [nets.value("x", [6, 2])], {"i": np.array([0, 5, 1, -2])}))
    assert [v.dtype.name for v in model.graph.values.values()] == ["int64"]


def test_one_hot() -> None:
    known = {"depth": np.array(4), "values": np.array([2.0, 5.0], np.float32)}
    for axis in (-1, 0, 1):
        check(nets.one("OneHot", [nets.value("x", [2, 3], TensorProto.INT64)], known, axis=axis))


# --- resize -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "transform"),
    [
        (m, t)
        for m in ("nearest", "linear", "cubic")
        for t in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
        if (m, t) != ("nearest", "pytorch_half_pixel")  # onnx's reference evaluator rounds it otherwise
    ],
)
@pytest.mark.parametrize("sizes", [(8, 10), (3, 7), (2, 2), (4, 5)])
def test_resize_to_sizes(mode: str, transform: str, sizes: Any) -> None:
    model = check(_resize(sizes, mode=mode, coordinate_transformation_mode=transform), exact=False)
    assert mode == "nearest" or all(v.dtype == np.float32 for v in model.graph.values.values())


def _resize(sizes: Any, **how: Any) -> Any:
    """A model that resizes the last two axes of (1, 2, 4, 5)."""
    known = {"r": np.zeros(0, np.float32), "f": np.zeros(0, np.float32), "n": np.array([1, 2, *sizes])}
    return nets.one("Resize", [nets.value("x", [1, 2, 4, 5])], known, opset=18, **how)


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("sizes", [(8, 15), (12, 5), (2, 5)])
def test_nearest_resizes_read_no_table(rounding: str, sizes: Any) -> None:
    """Where sizes are multiples, places are quotients of the axes."""
    net = _resize(sizes, nearest_mode=rounding, coordinate_transformation_mode="asymmetric")
    assert not check(net).graph.values


@pytest.mark.parametrize(
    "how", [{"antialias": 1}, {"antialias": 1, "mode": "cubic"}, {"exclude_outside": 1, "mode": "cubic"}]
)
def test_filters(how: dict[str, Any]) -> None:
    check(_resize((3, 2), **{"mode": "linear", **how}), exact=False)


def test_quotient_forms_are_exact() -> None:
    """Of random tables of floor((i p + q) / r) one is found, and no wrong one."""
    from fractions import Fraction

    for _ in range(300):
        size, out = (int(n) for n in RNG.integers(1, 40, 2))
        i = np.arange(out)
        table = np.clip((i * size + int(RNG.integers(-9, 9))) // out, 0, size - 1)
        form = quotient_form(table, size, [Fraction(size, out)])
        assert form is not None
        p, q, r = form
        np.testing.assert_array_equal(np.clip((i * p + q) // r, 0, size - 1), table)
    assert quotient_form(np.array([0, 2, 1]), 3, [Fraction(1)]) is None


# --- arithmetic -------------------------------------------------------------------------------


@pytest.mark.parametrize("elem", [TensorProto.INT32, TensorProto.INT64, TensorProto.INT8, TensorProto.UINT8])
def test_quotients_of_integers_are_cut_off(elem: int) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(elem)
    low = 0 if dtype.kind == "u" else -7
    a, b = np.arange(low, 8, dtype=dtype), np.array([3], dtype)
    net = nets.one("Div", [nets.value("x", a.shape, elem), nets.value("d", [1], elem)])
    (got,) = evaluate(at.import_onnx(net).graph, [a, b])
    np.testing.assert_array_equal(got, np.trunc(a / b[0]).astype(dtype))
    for fmod, want in ((0, np.mod), (1, np.fmod)):
        net = nets.one("Mod", [nets.value("x", a.shape, elem), nets.value("d", [1], elem)], fmod=fmod)
        (got,) = evaluate(at.import_onnx(net).graph, [a, b])
        np.testing.assert_array_equal(got, want(a, b))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 2)]), ("ii->i", [(3, 3)]),
        ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]), ("...ij,...jk->...ik", [(2, 1, 3, 2), (4, 2, 3)]),
        ("i,j->ij", [(2,), (3,)]), ("bhqd,bhkd->bhqk", [(1, 2, 3, 4), (1, 2, 5, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]), ("i,i,i->", [(4,), (4,), (4,)]),
    ],
)  # fmt: skip
def test_einsum(equation: str, shapes: Any) -> None:
    ports = [nets.value(f"x{i}", s) for i, s in enumerate(shapes)]
    net = nets.one("Einsum", ports, equation=equation)
    given = nets.arrays(net)
    (got,) = evaluate(at.import_onnx(net).graph, list(given.values()))
    np.testing.assert_array_equal(got, np.einsum(equation, *given.values()))


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_einsums_of_many_tensors(data: st.DataObject) -> None:
    """They are multiplied two at a time; whole numbers are exact in any order."""
    sizes = {n: data.draw(st.integers(1, 3)) for n in "abcde"}
    terms = data.draw(st.lists(st.text("abcde", min_size=0, max_size=3), min_size=1, max_size=6))
    used = sorted({n for t in terms for n in t})
    out = "".join(data.draw(st.permutations(used))[: data.draw(st.integers(0, len(used)))])
    equation = ",".join(terms) + "->" + out
    rng = np.random.default_rng(0)
    given = [rng.integers(-2, 3, [sizes[n] for n in t]).astype(np.float32) for t in terms]
    ports = [nets.value(f"x{i}", x.shape) for i, x in enumerate(given)]
    (got,) = evaluate(at.import_onnx(nets.one("Einsum", ports, equation=equation)).graph, given)
    np.testing.assert_array_equal(got, np.einsum(equation, *given))


def test_an_einsum_of_many_axes_is_products_of_two() -> None:
    """All at once, its loops would have 16^26 points."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    ports = [nets.value(f"x{n}", [16]) for n in letters]
    model = at.import_onnx(nets.one("Einsum", ports, equation=",".join(letters) + "->"))
    most = max(math.prod(a.extent for a in (*s.axes, *s.reduce_axes)) for s in model.graph.dag.stages)
    assert most == 16**2
    given = [np.ones(16, np.float32)] * 5 + [np.eye(16, dtype=np.float32)[0]] * 21
    np.testing.assert_array_equal(evaluate(model.graph, given)[0], 16.0**5)


def test_einsums_with_too_large_loops_are_refused() -> None:
    ports = [nets.value(n, [2**13] * 2) for n in ("a", "b")]
    for equation in ("ab,cd->", "ab,cd->abcd"):
        with pytest.raises(at.ModelError, match=r"node n0 \(Einsum\): a product over 4 axes has loops of"):
            at.import_onnx(nets.one("Einsum", ports, equation=equation))


@pytest.mark.parametrize("equation", ["ij,jk->iz", "ij->ii", "ijk,jk->i", "ij,jk,kl->il", "->"])
def test_wrong_equations_are_refused(equation: str) -> None:
    ports = [nets.value("a", [2, 3]), nets.value("b", [3, 4])]
    with pytest.raises(at.ModelError, match="equation"):
        at.import_onnx(nets.one("Einsum", ports, equation=equation))


@pytest.mark.parametrize(
    ("a", "b"), [((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((5, 1, 2, 3), (4, 3, 2))]
)
def test_matrix_products_of_all_ranks(a: Any, b: Any) -> None:
    check(nets.one("MatMul", [nets.value("a", a), nets.value("b", b)]))


@pytest.mark.parametrize("c", [(), (1,), (4,), (2, 1), (2, 4), None])
def test_gemm_adds_what_broadcasts(c: Any) -> None:
    ports = [nets.value("a", [3, 2]), nets.value("b", [4, 3])]
    ports += [] if c is None else [nets.value("c", c)]
    check(nets.one("Gemm", ports, transA=1, transB=1, alpha=2.0, beta=-1.0))


def test_a_plain_gemm_has_no_scales() -> None:
    (dot, add) = check(
        nets.one("Gemm", [nets.value(n, s) for n, s in (("a", [2, 3]), ("b", [3, 4]), ("c", [4]))])
    ).graph.dag.stages
    assert "*" not in str(add.values).replace("Binary(op='*'", "*") and dot.reducer is not None


# --- rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1"]
)
@pytest.mark.parametrize("axes", [[0], [1, 2], [-1], [0, 1, 2]])
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions(op: str, axes: list[int], keep: int) -> None:
    check(nets.one(op, [nets.value("x", [2, 3, 2])], {"a": np.array(axes)}, opset=18, keepdims=keep))


def test_reductions_of_older_versions_have_axes_as_attributes() -> None:
    for op in ("ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"):
        check(nets.one(op, [nets.value("x", [2, 3, 4])], opset=13, axes=[1], keepdims=0), exact=False)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_places_of_extremes(op: str, last: int) -> None:
    for axis in (0, 1, -1):
        check(nets.one(op, [nets.value("x", [3, 4, 5])], axis=axis, select_last_index=last, keepdims=last))


def test_softmax_of_older_versions_joins_axes() -> None:
    x = nets.whole(RNG, 2, 3, 4)
    model = at.import_onnx(nets.one("Softmax", [nets.value("x", x.shape)], opset=11, axis=1))
    (got,) = evaluate(model.graph, [x])
    e = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(got, e / e.sum((1, 2), keepdims=True), rtol=1e-6)


def test_a_softmax_is_stated_as_rows() -> None:
    model = check(nets.one("Softmax", [nets.value("x", [2, 3, 4])]), exact=False)
    assert [s.name for s in model.graph.dag.stages] == ["row_max", "e", "row_sum", "inv_sum", "softmax"]


def test_a_batch_norm_has_its_factor_over_channels() -> None:
    known = weights((3,), (3,), (3,)) | {"var": np.full(3, 4.0, np.float32)}
    model = check(nets.one("BatchNormalization", [nets.value("x", [2, 3, 4, 4])], known), exact=False)
    factor, shift, y = model.graph.dag.stages
    assert [len(s.axes) for s in (factor, shift, y)] == [1, 1, 4]
    assert {r.buffer for r in shift.reads()} <= {*model.graph.values, factor.name}


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_layer_norm_over_trailing_axes(axis: int) -> None:
    shape = [2, 3, 4]
    known = weights(tuple(shape[axis:]), tuple(shape[axis:]))
    check(nets.one("LayerNormalization", [nets.value("x", shape)], known, axis=axis), exact=False)


def test_group_norm() -> None:
    x = RNG.standard_normal((2, 6, 4)).astype(np.float32)
    rows = x.reshape(2, 3, 2, 4).astype(np.float64)
    z = (rows - rows.mean((2, 3), keepdims=True)) / np.sqrt(rows.var((2, 3), keepdims=True) + 1e-5)
    scale, bias = np.arange(1, 7, dtype=np.float32), np.arange(6, dtype=np.float32)
    net = nets.one(
        "GroupNormalization", [nets.value("x", x.shape)], {"s": scale, "b": bias}, 21, num_groups=3
    )
    (got,) = evaluate(at.import_onnx(net).graph, [x])
    want = z.reshape(x.shape) * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    net.opset_import[0].version = 18  # where it had a scale a group, which ONNX gave up
    with pytest.raises(at.ModelError, match="GroupNormalization is deprecated"):
        at.import_onnx(net)


# --- versions and types -----------------------------------------------------------------------


@pytest.mark.parametrize("opset", [11, 12, 13, 18, 21, 24])
def test_squeeze_and_unsqueeze_of_all_versions(opset: int) -> None:
    old = opset < 13
    for op, shape, axes in (("Squeeze", [2, 1, 3, 1], [1, -1]), ("Unsqueeze", [2, 3], [0, 2])):
        how: dict[str, Any] = {"axes": axes} if old else {}
        model = at.import_onnx(
            nets.one(op, [nets.value("x", shape)], {} if old else {"a": np.array(axes)}, opset, **how)
        )
        assert model.outputs[0].shape == ((2, 3) if op == "Squeeze" else (1, 2, 1, 3))


def test_clip_of_old_and_new_versions() -> None:
    for net in (
        nets.one("Clip", [nets.value("x", [9])], opset=10, min=-1.0, max=2.0),
        nets.one(
            "Clip", [nets.value("x", [9])], {"a": np.array(-1, np.float32), "b": np.array(2, np.float32)}
        ),
    ):
        x = np.arange(-4, 5, dtype=np.float32)
        np.testing.assert_array_equal(evaluate(at.import_onnx(net).graph, [x])[0], np.clip(x, -1, 2))


def test_upsample_repeats() -> None:
    x = nets.whole(RNG, 1, 2, 3, 4)
    known = {"s": np.array([1, 1, 2, 3], np.float32)}
    model = at.import_onnx(nets.one("Upsample", [nets.value("x", x.shape)], known, opset=9))
    np.testing.assert_array_equal(evaluate(model.graph, [x])[0], x.repeat(2, 2).repeat(3, 3))


@pytest.mark.parametrize("elem", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_floats_of_other_sizes_keep_their_type(elem: int) -> None:
    """Products are added up in the dtype that is computed with, and rounded once."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(elem)
    w = nets.whole(RNG, 4, 2, 3, 3).astype(dtype)
    nodes = [nets.node("Conv", "x w", "c"), nets.node("Relu", "c", "r"), nets.node("GlobalMaxPool", "r", "y")]
    net = nets.model(nodes, [nets.value("x", [1, 2, 5, 5], elem)], ["y"], {"w": w})
    net.graph.output[0].type.tensor_type.elem_type = elem
    model = at.import_onnx(net)
    assert model.outputs[0].dtype == dtype.name
    x = nets.arrays(net)["x"]
    (got,) = evaluate(model.graph, [x])
    z = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    want = np.maximum(np.einsum("ncpqij,ocij->nopq", z, w.astype(np.float64)), 0).max((2, 3), keepdims=True)
    np.testing.assert_array_equal(got, want.astype(dtype))


@pytest.mark.parametrize("ids", [[2, 0, 5, -1], [[1, 1], [0, -6]], 3])
def test_a_known_list_of_a_reshaped_axis_keeps_its_places(ids: Any) -> None:
    """Places are sums too, of which none becomes a bias."""
    nodes = [
        nets.node("MatMul", "x w", "m"), nets.node("Add", "m c", "a"), nets.node("Reshape", "a shape", "r"),
        nets.node("Gather", "r ids", "y", axis=1),
    ]  # fmt: skip
    known = {
        "w": nets.whole(RNG, 12, 48),
        "c": nets.whole(RNG, 48),
        "shape": np.array([3, 6, 8]),
        "ids": np.array(ids),
    }
    net = nets.model(nodes, [nets.value("x", [3, 12])], ["y"], known)
    graph, given_ = optimize(at.import_onnx(net).graph), nets.arrays(net)
    (want,) = ReferenceEvaluator(net).run(None, given_)
    np.testing.assert_array_equal(evaluate(graph, list(given_.values()))[0], want)


def test_quantized_round_trip() -> None:
    known = {"s": np.array(0.5, np.float32), "z": np.array(3, np.int8)}
    nodes = [nets.node("QuantizeLinear", "x s z", "q"), nets.node("DequantizeLinear", "q s z", "y")]
    check(nets.model(nodes, [nets.value("x", [3, 5])], ["y"], known, opset=19))


def test_every_row_is_an_operator_of_onnx() -> None:
    known = {s.name for s in onnx.defs.get_all_schemas_with_history()}
    own = {name for name in onnx_op if "." not in name}
    assert own <= known, own - known
    assert len(onnx_op) >= 130


@pytest.mark.parametrize("to", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
@pytest.mark.parametrize("saturate", [None, 0, 1])
def test_casts_to_floats_of_8_bits_end_at_the_largest_unless_told_otherwise(
    to: str, saturate: int | None
) -> None:
    kind, more = getattr(nets.TensorProto, to), {} if saturate is None else {"saturate": saturate}
    first = nets.helper.make_node("Cast", ["x"], ["h"], to=kind, **more)
    back = nets.helper.make_node("Cast", ["h"], ["y"], to=nets.FLOAT)
    net = nets.model([first, back], [nets.value("x", [8])], ["y"], opset=19)
    x = np.float32([1.0625, -0.0, 464, 465, -1e9, np.inf, -np.inf, np.nan])
    (got,) = evaluate(at.import_onnx(net).graph, [x])
    most = 448.0 if to == "FLOAT8E4M3FN" else 57344.0
    near = [1.0, -0.0, 448.0, 448.0 if to == "FLOAT8E5M2" or saturate != 0 else np.nan]
    end = np.inf if to == "FLOAT8E5M2" else np.nan
    beyond = [-most, most, -most] if saturate != 0 else [-end, end, -end]
    np.testing.assert_array_equal(got, np.float32([*near, *beyond, np.nan]))
