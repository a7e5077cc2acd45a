"""The operator library: expression = numpy reference, and every misuse gets a clear error."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import ops, te
from schedules.dtypes import is_float
from schedules.errors import WorkloadError
from schedules.model import Workload, canonical

CASES: dict[str, list[dict[str, Any]]] = {
    "matmul": [{"m": 5, "n": 7, "k": 3, "transpose_a": a, "transpose_b": b} for a in (0, 1) for b in (0, 1)]
    + [{"m": 1, "n": 9, "k": 4}, {"m": 9, "n": 1, "k": 1}],
    "quantized_matmul": [
        {"m": 5, "n": 7, "k": 3, "transpose_a": a, "transpose_b": 1 - a, "weight_zeros": a, "per_channel": b}
        for a in (0, 1)
        for b in (0, 1)
    ],
    "quantized_conv2d": [
        {"b": 2, "h": 5, "w": 4, "ci": 4, "co": 6, "k": 3, "padding": 1, "weight_zeros": z, "groups": g}
        for z in (0, 1)
        for g in (1, 2)
    ],
    "batch_matmul": [
        {"b": 2, "m": 3, "n": 4, "k": 5, "transpose_a": a, "transpose_b": b} for a in (0, 1) for b in (0, 1)
    ],
    "matmul_bias_relu": [
        {"m": 5, "n": 7, "k": 3},
        {"m": 2, "n": 3, "k": 4, "transpose_a": 1, "transpose_b": 1},
    ],
    "conv2d": [
        {"h": 5, "w": 6, "ci": 3, "co": 4, "k": 3},
        {"b": 2, "h": 5, "w": 7, "ci": 4, "co": 6, "kh": 3, "kw": 2, "padding": 1, "stride": 2},
        {"h": 9, "w": 8, "ci": 2, "co": 3, "kh": 2, "kw": 3, "dilation": 2, "padding": 2},
        {"h": 5, "w": 5, "ci": 4, "co": 6, "k": 3, "padding": 1, "groups": 2},
        {"h": 4, "w": 4, "ci": 3, "co": 6, "k": 2, "groups": 3, "stride": 3},
        {"h": 3, "w": 2, "ci": 5, "co": 1, "k": 1},
    ],
    "conv2d_bias_relu": [
        {"h": 5, "w": 6, "ci": 3, "co": 4, "k": 3, "padding": 1},
        {"b": 2, "h": 5, "w": 5, "ci": 2, "co": 4, "k": 2, "groups": 2},
    ],
    "depthwise_conv2d": [
        {"h": 5, "w": 6, "c": 3, "k": 3},
        {"b": 2, "h": 7, "w": 5, "c": 4, "kh": 3, "kw": 2, "padding": 1, "stride": 2, "dilation": 2},
    ],
    "max_pool2d": [
        {"h": 5, "w": 6, "c": 3, "k": 2},
        {"b": 2, "h": 7, "w": 6, "c": 3, "k": 3, "stride": 2, "padding": 1},
        {"h": 2, "w": 2, "c": 1, "k": 2, "stride": 2},
    ],
    "softmax": [{"m": 5, "n": 7}, {"m": 1, "n": 1}, {"m": 3, "n": 131}],
    "layer_norm": [{"m": 5, "n": 7}, {"m": 3, "n": 1}, {"m": 2, "n": 131}],
    "norm2": [{"m": 5, "n": 7}, {"b": 3, "m": 2, "n": 9}],
    "reduce_sum": [{"m": 5, "n": 7}, {"m": 1, "n": 101}],
    "argmax": [{"m": 5, "n": 7}, {"m": 1, "n": 101}, {"m": 3, "n": 1}],
    "argmin": [{"m": 5, "n": 7}, {"m": 1, "n": 101}, {"m": 3, "n": 1}],
    "permute": [
        {"shape": (3, 5), "axes": (1, 0)},
        {"shape": (2, 3, 4), "axes": (2, 0, 1)},
        {"shape": (7,), "axes": (0,)},
    ],
    "matmul_bias_gelu": [{"m": 5, "n": 7, "k": 3}, {"m": 2, "n": 3, "k": 4, "transpose_a": 1}],
    "conv1d": [
        {"l": 9, "ci": 3, "co": 4, "k": 3},
        {"b": 2, "l": 12, "ci": 4, "co": 6, "k": 3, "stride": 2, "padding": 2, "dilation": 2, "groups": 2},
    ],
    "conv3d": [
        {"d": 3, "h": 4, "w": 5, "ci": 2, "co": 3, "k": 3, "padding": 1},
        {
            "b": 2,
            "d": 4,
            "h": 5,
            "w": 3,
            "ci": 2,
            "co": 4,
            "kd": 1,
            "kh": 3,
            "kw": 2,
            "stride": 2,
            "groups": 2,
        },
    ],
    "conv2d_bn_relu": [{"h": 5, "w": 6, "ci": 3, "co": 4, "k": 3, "padding": 1, "stride": 2}],
    "conv2d_transpose": [
        {"h": 3, "w": 4, "ci": 2, "co": 3, "k": 4, "stride": 2, "padding": 1},
        {"b": 2, "h": 4, "w": 3, "ci": 3, "co": 2, "kh": 3, "kw": 2, "stride": 2},
        {"h": 3, "w": 2, "ci": 2, "co": 3, "kh": 2, "kw": 5, "stride": 3, "padding": 2},
        {"h": 5, "w": 4, "ci": 1, "co": 2, "k": 3, "padding": 2},
        {"h": 1, "w": 1, "ci": 2, "co": 1, "k": 1, "stride": 3},
        {"h": 3, "w": 4, "ci": 2, "co": 2, "k": 6, "padding": 1},
    ],
    "capsule_conv2d": [
        {"h": 4, "w": 5, "ci": 2, "co": 3, "k": 3, "padding": 1, "stride": 2},
        {"b": 2, "h": 3, "w": 3, "ci": 1, "co": 2, "kh": 2, "kw": 1, "capsule": 2},
    ],
    "avg_pool2d": [
        {"h": 5, "w": 6, "c": 3, "k": 2},
        {"b": 2, "h": 7, "w": 6, "c": 3, "k": 3, "stride": 2, "padding": 1},
    ],
    "rms_norm": [{"m": 5, "n": 7}, {"m": 2, "n": 131}],
    "attention": [{"heads": 2, "seq": 5, "dim": 3}, {"b": 2, "heads": 1, "seq": 7, "dim": 4}],
    "transpose_batch_matmul_softmax": [
        {"seq": 5, "heads": 2, "dim": 3},
        {"b": 2, "seq": 4, "heads": 3, "dim": 1},
    ],
    "add": [{"n": 13}],
    "fused_multiply_add": [{"n": 13}],
}
PLACES = ("argmax", "argmin")  # int32 of whatever dtype
ALL = [
    (name, params, dtype, layout)
    for name, rows in CASES.items()
    for params in rows
    for dtype in ops.REGISTRY[name].dtypes
    for layout in ops.REGISTRY[name].layouts or (None,)
]


def data(w: Workload) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    if not is_float(w.dag.inputs[0].dtype):
        return [rng.integers(-9, 10, t.shape).astype(t.dtype) for t in w.dag.inputs]
    return [rng.standard_normal(t.shape).astype(t.dtype) for t in w.dag.inputs]


def check(w: Workload) -> None:
    inputs = data(w)
    kept = [x.copy() for x in inputs]
    got, want = te.evaluate(w.dag, inputs), ops.reference(w, inputs)
    dtype = w.dag.inputs[0].dtype
    assert len(got) == len(want) == len(w.dag.outputs)
    for g, r in zip(got, want, strict=True):
        assert g.shape == r.shape and g.dtype == r.dtype and r.flags.c_contiguous
        assert g.dtype == ("int32" if w.op in PLACES else ops.get(w.op).types(dtype).output)
        tol = {"float32": 3e-6, "float64": 1e-13}.get(dtype, 0)
        if dtype == "bfloat16":  # numpy's own, which can be compared
            g, r = g.astype("float32"), r.astype("float32")
        np.testing.assert_allclose(g, r, rtol=tol, atol=tol)
    for x, k in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(x, k)


def test_every_operator_has_cases() -> None:
    assert CASES.keys() == ops.REGISTRY.keys()


@pytest.mark.parametrize("name, params, dtype, layout", ALL)
def test_expression_is_the_reference(
    name: str, params: dict[str, Any], dtype: str, layout: str | None
) -> None:
    check(ops.workload(name, params, dtype, layout))


@settings(max_examples=40, deadline=None)
@given(
    h=st.integers(1, 8),
    w=st.integers(1, 8),
    kh=st.integers(1, 3),
    kw=st.integers(1, 3),
    per=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
    layout=st.sampled_from(["NHWC", "NCHW"]),
)
def test_conv2d_of_any_geometry(per: tuple[int, int], layout: str, **p: int) -> None:
    p |= {"ci": per[0] * p["groups"], "co": per[1] * p["groups"]}
    fits = all(p["dilation"] * (p[k] - 1) < p[n] + 2 * p["padding"] for n, k in (("h", "kh"), ("w", "kw")))
    if not fits:
        with pytest.raises(WorkloadError, match="smaller kernel or more padding"):
            ops.workload("conv2d", p, "int32", layout)
        return
    check(ops.workload("conv2d", p, "int32", layout))


def test_references_by_hand() -> None:
    """The references themselves, against sums written out by hand."""

    def run(name: str, p: dict[str, Any], *inputs: Any, dtype: str = "float64", layout: Any = None) -> Any:
        w = ops.workload(name, p, dtype, layout)
        arrays = [np.asarray(x, dtype).reshape(t.shape) for x, t in zip(inputs, w.dag.inputs, strict=True)]
        return ops.reference(w, arrays)[0].tolist()

    a, b = [[1, 2], [3, 4]], [[5, 6], [7, 8]]
    assert run("matmul", {"m": 2, "n": 2, "k": 2}, a, b) == [[19, 22], [43, 50]]
    assert run("matmul", {"m": 2, "n": 2, "k": 2, "transpose_a": 1}, a, b) == [[26, 30], [38, 44]]
    assert run("matmul", {"m": 2, "n": 2, "k": 2, "transpose_b": 1}, a, b) == [[17, 23], [39, 53]]
    assert run("matmul_bias_relu", {"m": 2, "n": 2, "k": 2}, a, b, [-20, 1]) == [[0, 23], [23, 51]]
    x = list(range(1, 10))
    assert run("conv2d", {"h": 3, "w": 3, "ci": 1, "co": 1, "k": 2}, x, [1, 2, 3, 4]) == [
        [[[37], [47]], [[67], [77]]]
    ]
    assert run(
        "conv2d", {"h": 3, "w": 3, "ci": 1, "co": 1, "k": 3, "padding": 1, "stride": 2}, x, [1] * 9
    ) == [[[[12], [16]], [[24], [28]]]]
    # two groups of two channels each: output 0 sees channels 0 and 1, output 1 sees 2 and 3
    p = {"h": 1, "w": 1, "ci": 4, "co": 2, "k": 1, "groups": 2}
    assert run("conv2d", p, [1, 2, 3, 4], [[10, 100], [20, 200]]) == [[[[50, 1100]]]]
    assert run("conv2d", p, [1, 2, 3, 4], [[10, 20], [100, 200]], layout="NCHW") == [[[[50]], [[1100]]]]
    assert run(
        "depthwise_conv2d", {"h": 1, "w": 2, "c": 2, "kh": 1, "kw": 2}, [1, 2, 3, 4], [1, 10, 100, 1000]
    ) == [[[[301, 4020]]]]
    assert run("max_pool2d", {"h": 2, "w": 2, "c": 1, "k": 2, "padding": 1}, [-1, -2, -3, -4]) == [
        [[[-1], [-1], [-2]], [[-1], [-1], [-2]], [[-3], [-3], [-4]]]
    ]
    e = math.e
    np.testing.assert_allclose(run("softmax", {"m": 1, "n": 2}, [700, 701]), [[1 / (1 + e), e / (1 + e)]])
    ln = run("layer_norm", {"m": 1, "n": 2}, [1e4 - 1, 1e4 + 1], [1, 2], [0, 5])
    np.testing.assert_allclose(ln, [[-1 / math.sqrt(1 + 1e-5), 2 / math.sqrt(1 + 1e-5) + 5]], rtol=1e-12)
    assert run("norm2", {"m": 1, "n": 2}, [3, 4]) == [5]
    assert run("reduce_sum", {"m": 2, "n": 2}, a) == [3, 7]
    assert run("permute", {"shape": (1, 2, 3), "axes": (2, 0, 1)}, range(6)) == [[[0, 3]], [[1, 4]], [[2, 5]]]
    assert run("fused_multiply_add", {"n": 1}, [1], [2], [3], [4]) == [13]


@pytest.mark.parametrize(
    "name, shape, flops",
    [
        ("matmul", "m=512,n=256,k=128", 2 * 512 * 256 * 128),
        ("batch_matmul", "b=3,m=4,n=5,k=6", 2 * 3 * 4 * 5 * 6),
        ("matmul_bias_relu", "m=4,n=5,k=6", 240),
        ("conv2d", "h=56,w=56,ci=64,co=64,k=3,padding=1", 231_211_008),
        ("conv2d", "b=2,h=8,w=8,ci=4,co=6,k=3,stride=2,groups=2", 2 * 2 * 3 * 3 * 6 * 9 * 2),
        ("depthwise_conv2d", "h=8,w=8,c=4,k=3", 2 * 36 * 4 * 9),
        ("max_pool2d", "h=8,w=8,c=4,k=2,stride=2", 16 * 4 * 4),
        ("softmax", "m=3,n=5", 75),
        ("norm2", "b=2,m=3,n=5", 60),
        ("reduce_sum", "m=3,n=5", 15),
        ("argmax", "m=3,n=5", 15),
        ("add", "n=7", 7),
        ("fused_multiply_add", "n=7", 21),
        ("permute", "shape=2x3,axes=1x0", 0),
    ],
)
def test_flops(name: str, shape: str, flops: int) -> None:
    assert ops.workload(name, ops.parse_shape(shape)).flops == flops


def test_workloads_hold_every_parameter() -> None:
    w = ops.workload("conv2d", {"h": 8, "w": 8, "ci": 4, "co": 4, "k": 3}, layout="NCHW")
    assert w.op == "conv2d" and dict(w.params) == {
        "b": 1,
        "h": 8,
        "w": 8,
        "ci": 4,
        "co": 4,
        "kh": 3,
        "kw": 3,
        "stride": 1,
        "padding": 0,
        "dilation": 1,
        "groups": 1,
        "layout": "NCHW",
    }
    assert list(w.params) == sorted(w.params)
    canonical(dict(w.params))
    back = Workload.from_json(w.json, w.op, dict(w.params), w.flops, w.names)
    assert back == w and back.digest == w.digest
    p = ops.workload("permute", {"shape": [2, 3], "axes": [1, 0]})
    again = Workload.from_json(p.json, p.op, {k: list(v) for k, v in p.params})
    assert ops.reference(again, data(p))[0].shape == (3, 2)
    # the same stages whichever way the parameters were given
    assert (
        ops.workload("conv2d", {"h": 8, "w": 8, "ci": 4, "co": 4, "kh": 3, "kw": 3}, layout="NCHW").digest
        == w.digest
    )
    assert ops.workload("matmul", {"m": np.int64(4), "n": 5, "k": 6, "transpose_a": False}).digest == (
        ops.workload("matmul", {"m": 4, "n": 5, "k": 6}).digest
    )


def test_stages_are_shaped_for_schedules() -> None:
    def stages(name: str, text: str, layout: str | None = None) -> list[str]:
        return [s.name for s in ops.workload(name, ops.parse_shape(text), layout=layout).dag.stages]

    assert stages("conv2d", "h=8,w=8,ci=4,co=4,k=3") == ["y"]
    assert stages("conv2d_bias_relu", "h=8,w=8,ci=4,co=4,k=3,padding=1") == ["pad", "y", "bias_add", "relu"]
    assert stages("max_pool2d", "h=8,w=8,c=4,k=3,padding=1", "NCHW") == ["pad", "y"]
    assert stages("softmax", "m=2,n=3") == ["row_max", "e", "row_sum", "inv_sum", "y"]
    conv = ops.workload(
        "conv2d", {"h": 8, "w": 8, "ci": 4, "co": 6, "k": 3, "groups": 2}, layout="NCHW"
    ).dag.stage("y")
    assert [a.extent for a in conv.axes] == [1, 6, 6, 6]
    assert [(a.var, a.extent) for a in conv.reduce_axes] == [("r", 3), ("s", 3), ("c", 2)]


def test_bytes() -> None:
    assert ops.get("add").bytes({"n": 10}) == 120
    w = ops.workload("matmul", {"m": 2, "n": 3, "k": 4}, "float64")
    assert ops.compulsory_bytes(w.dag) == 8 * (8 + 12 + 6)


CONV = {"h": 8, "w": 8, "ci": 4, "co": 4, "kh": 3, "kw": 3}
BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("matmull", {}, {}, r"unknown operator 'matmull' \(did you mean 'matmul'\?\)"),
    ("", {}, {}, "unknown operator"),
    ("matmul", {"m": 1, "n": 1}, {}, r"needs the parameter k: m=…,n=…,k=…"),
    ("matmul", {}, {}, "needs the parameters m, n, k"),
    ("matmul", {"m": 1, "n": 1, "k": 1, "tranpose_a": 1}, {}, r"did you mean 'transpose_a'\?"),
    ("matmul", {"m": 0, "n": 1, "k": 1}, {}, "m=0 is outside 1"),
    ("matmul", {"m": -4, "n": 1, "k": 1}, {}, "m=-4 is outside"),
    ("matmul", {"m": 2.0, "n": 1, "k": 1}, {}, "m=2.0 is not an integer"),
    ("matmul", {"m": "2", "n": 1, "k": 1}, {}, "m='2' is not an integer"),
    ("matmul", ops.parse_shape("m=1e3,n=1,k=1"), {}, "m=1000.0 is not an integer"),
    ("matmul", ops.parse_shape("m=true,n=1,k=1"), {}, "m=True is not an integer"),
    ("matmul", {"m": True, "n": 1, "k": 1}, {}, "m=True is not an integer"),
    ("matmul", {"m": None, "n": 1, "k": 1}, {}, "is not an integer"),
    ("matmul", {"m": 10**30, "n": 1, "k": 1}, {}, "is outside 1"),
    (
        "matmul",
        {"m": 10**6, "n": 10**6, "k": 1},
        {},
        r"tensor c\[1000000, 1000000\] has 1000000000000 elements",
    ),
    ("matmul", {"m": 1, "n": 1, "k": 1, "transpose_a": 2}, {}, "transpose_a=2 is outside 0..1"),
    ("matmul", {"m": 1, "n": 1, "k": 1}, {"dtype": "float8"}, "dtype 'float8' is not one of"),
    ("matmul", {"m": 1, "n": 1, "k": 1}, {"layout": "NHWC"}, "has no layouts"),
    ("softmax", {"m": 1, "n": 1}, {"dtype": "int32"}, "dtype int32 is not supported"),
    ("conv2d", CONV, {"layout": "NHCW"}, "layout 'NHCW' is not one of NHWC, NCHW"),
    ("conv2d", CONV | {"groups": 3}, {}, "groups=3 does not divide ci=4"),
    ("conv2d", CONV | {"co": 6, "groups": 4}, {}, "groups=4 does not divide co=6"),
    ("conv2d", CONV | {"kh": 9}, {}, "reaches over 9 elements, but h=8"),
    ("conv2d", CONV | {"dilation": 4}, {}, "reaches over 9 elements"),
    ("conv2d", CONV | {"stride": 0}, {}, "stride=0 is outside 1"),
    ("conv2d", CONV | {"padding": -1}, {}, "padding=-1 is outside 0"),
    ("conv2d", CONV | {"k": 3}, {}, "k= sets kh and kw, but kh= is given too"),
    ("conv2d_bias_relu", CONV | {"groups": 3}, {}, "^conv2d_bias_relu: groups"),
    ("max_pool2d", {"h": 8, "w": 8, "c": 1, "k": 2, "padding": 2}, {}, "more than half of k=2"),
    ("permute", {"shape": (2, 3), "axes": (0, 0)}, {}, "axes=0x0 is not a permutation of 0..1"),
    ("permute", {"shape": (2, 3), "axes": (0,)}, {}, "is not a permutation"),
    ("permute", {"shape": "5", "axes": (0,)}, {}, "is not a list of integers"),
    ("permute", {"shape": (2, 0), "axes": (0, 1)}, {}, "shape=0 is outside"),
    ("add", {"n": 2**35}, {}, "outside 1"),
]


@pytest.mark.parametrize("name, params, options, message", BAD)
def test_misuse_is_refused(name: str, params: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        ops.workload(name, params, **options)


def test_reference_of_a_custom_workload_is_refused() -> None:
    x = te.placeholder((2,))
    w = Workload(te.dag([x, te.compute((2,), lambda i: x[i])]))
    with pytest.raises(WorkloadError, match="unknown operator 'custom'"):
        ops.reference(w, [np.zeros(2, np.float32)])


def test_shapes_are_parsed() -> None:
    assert ops.parse_shape("m=512, n = 32,k=7") == {"m": 512, "n": 32, "k": 7}
    for text in ("shape=2x3x4,axes=2x0x1", "shape=(2,3,4),axes=(2,0,1)", "axes=[2, 0, 1], shape=[2,3,4]"):
        assert ops.parse_shape(text) == {"shape": (2, 3, 4), "axes": (2, 0, 1)}
    assert ops.parse_shape("shape=(7,),axes=(0,)") == {"shape": (7,), "axes": (0,)}
    assert ops.parse_shape("m=-3") == {"m": -3}
    assert ops.parse_shape(" ") == {}
    assert ops.parse_shape("stride=2x1,padding=(1, 0),eps=1e-3,scale=.5,ceil_mode=true,other=False") == {
        "stride": (2, 1),
        "padding": (1, 0),
        "eps": 1e-3,
        "scale": 0.5,
        "ceil_mode": True,
        "other": False,
    }


@pytest.mark.parametrize(
    "text", [",", "m", "m=", "m=a", "m=1.5.", "m=1,m=2", "512", "m=1;n=2", "=3", "m=1,,n=2", "s=(1,2",
             "s=()", "s=1x", "s=1.5x2", "m=1e", "m=e3", "m=.", "m==1", "m=" + "9" * 50]
)  # fmt: skip
def test_bad_shapes_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError):
        ops.parse_shape(text)


def test_a_bare_integer_is_a_list_of_one() -> None:
    assert ops.workload("permute", ops.parse_shape("shape=7,axes=0")).dag.inputs[0].shape == (7,)


def test_describe_is_json_and_complete() -> None:
    rows = ops.describe()
    canonical(rows)
    assert [r["name"] for r in rows] == list(ops.REGISTRY)
    conv = next(r for r in rows if r["name"] == "conv2d")
    assert conv["layouts"] == ["NHWC", "NCHW"]
    assert conv["shorthands"] == {"k": ["kh", "kw"], "kernel_size": ["kh", "kw"]}
    assert {p["name"]: p["default"] for p in conv["params"] if not p["required"]} == {
        "b": 1,
        "stride": 1,
        "padding": 0,
        "dilation": 1,
        "groups": 1,
    }


@pytest.mark.fast("*-float32-*")
@pytest.mark.parametrize("name, params, dtype, layout", ALL)
def test_an_operator_vouches_for_what_it_makes_and_for_nothing_else(
    name: str, params: dict[str, Any], dtype: str, layout: str | None
) -> None:
    w = ops.workload(name, params, dtype, layout)
    given = json.loads(canonical(dict(w.params)))  # as a log gives them
    stored = Workload.from_json(w.json, w.op, given, w.flops)
    assert ops.makes(stored)
    assert ops.makes(replace(stored, dag=replace(w.dag, constants=(w.dag.inputs[-1].name,))))
    assert not ops.makes(replace(stored, flops=w.flops + 1))
    assert not ops.makes(replace(stored, op="custom"))
    assert not ops.makes(replace(stored, op="add" if name != "add" else "softmax"))
    changed = {**dict(stored.params), stored.params[0][0]: None}
    assert not ops.makes(replace(stored, params=tuple(sorted(changed.items()))))
