"""Forms of operators beside the usual one: what differs by axis, and optional parameters."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from grid_cases import need_cxx, program, sampled
from helpers import checker, inputs, interpret, poisoned
from needs import imported
from small_shapes import FORMS, SMALL
from space_cases import library_case, random_params, target
from space_expressions import Draw

from autotune.codegen.simt import emulator
from autotune.measure.compare.bench import agree, arrays_for
from autotune.measure.compare.peers import peer
from autotune.run.workloads import param_text, shown_params
from schedules import ops, te
from schedules.errors import WorkloadError
from schedules.model import Workload, canonical
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive

FORM_IDS = [f"{op}-{n}" for n, (op, _) in enumerate(FORMS)]
DRAWS = 8  # of parameters of each operator
WITHOUT_PEER = {
    "torch": {"capsule_conv2d", "quantized_matmul", "quantized_conv2d"},
    "onnxruntime": {"capsule_conv2d"},
}


def layouts(op: str) -> Sequence[str | None]:
    return ops.get(op).layouts or (None,)


def rng(name: str, n: int) -> np.random.Generator:
    return np.random.default_rng([n, zlib.crc32(name.encode())])


@pytest.mark.fast("float32-*")
@pytest.mark.parametrize("op, params", FORMS, ids=FORM_IDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_the_expression_is_the_reference(op: str, params: dict[str, Any], dtype: str) -> None:
    if dtype not in ops.get(op).dtypes:
        return
    for layout in layouts(op):
        w = ops.workload(op, params, dtype, layout)
        data = inputs(w.dag)
        verdict = checker(w.dag, data).check(ops.reference(w, data), 0)
        assert not verdict.reason, f"{layout}: {verdict.reason}"
        stored = Workload.from_json(w.json, w.op, json.loads(canonical(dict(w.params))), w.flops)
        assert ops.makes(stored)


def interpreted(op: str, params: dict[str, Any], layout: str | None, some: bool) -> None:
    """A candidate of every sketch, or of ``some``, lowered and run by the interpreter."""
    dag = ops.workload(op, params, layout=layout).dag
    data, t = inputs(dag), target(vector_bytes=16 if layout == "NCHW" else 32)
    space, draw = derive(dag, t), rng(op, len(str(params)))
    every = range(len(space.sketches))
    for k in [draw.choice(every)] if some else every:
        rows = space.sample(k, 64, draw)
        row = rows[space.valid(k, rows)][0]
        made = lower(Schedule.replay(dag, space.trace(k, row), t).nest)
        verdict = checker(dag, data).check(interpret(made, dag, data), 0)
        assert not verdict.reason, f"{layout} {space.sketches[k]} {row.tolist()}: {verdict.reason}"


def emulated(forms: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """A candidate of every form, by the emulator of a GPU."""
    need_cxx()
    dags = [ops.workload(op, p, layout=layouts(op)[-1]).dag for op, p in forms]
    made = [program(dag, next(sampled(dag, 1, n))[1]) for n, dag in enumerate(dags)]
    obj = emulator.build(*made)
    for n, (dag, grid) in enumerate(zip(dags, made, strict=True)):
        data = inputs(dag)
        outputs = [poisoned(np.empty(t.shape, t.dtype)) for t in (dag.tensors[o] for o in dag.outputs)]
        assert emulator.run(obj, grid, [*data, *outputs], n) is None, forms[n]
        verdict = checker(dag, data).check(outputs, 0)
        assert not verdict.reason, f"{forms[n]}: {verdict.reason}"


@pytest.mark.fast("conv1d-0", "conv3d-4", "conv2d_transpose-9", "avg_pool2d-13", "softmax-18", "attention-22")
@pytest.mark.parametrize("op, params", FORMS, ids=FORM_IDS)
def test_a_sketch_of_each_form_is_right(op: str, params: dict[str, Any]) -> None:
    interpreted(op, params, layouts(op)[0], some=True)


@pytest.mark.slow
def test_grids_of_some_forms_are_right() -> None:
    emulated(FORMS[2::4])


@pytest.mark.fuzz
@pytest.mark.parametrize("op, params", FORMS, ids=FORM_IDS)
def test_every_sketch_of_each_form_is_right(op: str, params: dict[str, Any]) -> None:
    for layout in layouts(op):
        interpreted(op, params, layout, some=False)


@pytest.mark.fuzz
def test_grids_of_all_forms_are_right() -> None:
    emulated(FORMS)


@pytest.mark.parametrize("library", ["torch", "onnxruntime"])
def test_forms_mean_what_they_mean_elsewhere(library: str) -> None:
    imported(library)
    for op, params in FORMS:
        if op in WITHOUT_PEER[library]:
            continue
        for layout in layouts(op):
            same_as(library, ops.workload(op, params, layout=layout))


@pytest.mark.parametrize("name", sorted({*ops.REGISTRY} - WITHOUT_PEER["torch"]))
def test_drawn_parameters_mean_what_torchs_do(name: str) -> None:
    imported("torch")
    for n in range(DRAWS):
        draw = rng(name, n)
        layout = layouts(name)[n % len(layouts(name))]
        same_as("torch", ops.workload(name, random_params(name, Draw(draw, 12)), layout=layout))


def same_as(library: str, w: Workload) -> None:
    """The reference of a workload gives what another library does."""
    data, outputs = arrays_for(w, 0)
    with peer(library).prepare(w, data, outputs, 1) as prepared:
        prepared.call()
        agree(w, f"{library} of {dict(w.params)}", prepared.result(), ops.reference(w, data))


@pytest.mark.parametrize("name", sorted(ops.REGISTRY))
def test_drawn_parameters_make_what_the_reference_says(name: str) -> None:
    for n in range(DRAWS):
        case = library_case(name, rng(name, n), 12)
        assert not case.compare(te.evaluate(case.dag, case.inputs)), case.label


def test_references_by_hand() -> None:
    """The references themselves, against numbers written out by hand."""

    def run(name: str, p: dict[str, Any], *inputs: Any) -> Any:
        w = ops.workload(name, p, "float64")
        arrays = [np.array(x, "float64").reshape(t.shape) for x, t in zip(inputs, w.dag.inputs, strict=True)]
        return ops.reference(w, arrays)[0].ravel().tolist()

    row, four = {"h": 1, "w": 4, "c": 1, "k": (1, 3), "stride": (1, 2), "padding": (0, 1)}, [1, 2, 3, 4]
    assert run("avg_pool2d", row, four) == [1, 3]
    assert run("avg_pool2d", row | {"count_include_pad": 0}, four) == [1.5, 3]
    assert run("avg_pool2d", row | {"ceil_mode": 1}, four) == [1, 3, 2]
    assert run("avg_pool2d", row | {"ceil_mode": 1, "count_include_pad": 0}, four) == [1.5, 3, 4]
    far = row | {"k": (1, 2), "stride": (1, 3), "ceil_mode": 1}  # a third window would hold padding alone
    assert run("avg_pool2d", far, four) == [0.5, 3.5]
    assert run("max_pool2d", row | {"ceil_mode": 1}, four) == [2, 4, 4]
    assert run("max_pool2d", row | {"dilation": (1, 2)}, four) == [4]
    wide = {"h": 1, "w": 2, "ci": 1, "co": 1, "k": (1, 2), "stride": (1, 3), "output_padding": (0, 1)}
    assert run("conv2d_transpose", wide, [1, 2], [10, 20]) == [10, 20, 0, 20, 40, 0]
    grouped = {"h": 1, "w": 1, "ci": 2, "co": 2, "k": 1, "groups": 2}
    assert run("conv2d_transpose", grouped, [1, 2], [10, 100]) == [10, 200]
    steps = {"h": 2, "w": 4, "ci": 1, "co": 1, "k": 1, "stride": (2, 3), "padding": (0, 1)}
    assert run("conv2d", steps, range(1, 9), [10]) == [0, 30]
    np.testing.assert_allclose(run("softmax", {"m": 2, "n": 1, "axis": 0}, [0, math.log(3)]), [0.25, 0.75])
    assert run("layer_norm", {"m": 1, "n": 2, "eps": 3}, [-1, 1], [1, 1], [0, 0]) == [-0.5, 0.5]
    assert run("rms_norm", {"m": 1, "n": 2, "eps": 3}, [1, 1], [1, 2]) == [0.5, 1]
    few, v = {"heads": 1, "seq": 2, "dim": 1}, [3, 5]
    assert run("attention", few | {"is_causal": 1}, [0, 0], [0, 0], v) == [3, 4]
    assert run("attention", few | {"attn_mask": (1, 2)}, [0, 0], [0, 0], v, [-math.inf, 0]) == [5, 5]
    scaled = run("attention", few | {"scale": 2}, [1, 0], [0, math.log(3)], v)
    np.testing.assert_allclose(scaled, [4.8, 4])
    assert run("add", {"shape": (2, 1), "other": (2,)}, [1, 10], [1, 2]) == [2, 3, 11, 12]


ATTENTION = {"heads": 2, "seq": 5, "dim": 3}
POOL = {"h": 8, "w": 8, "c": 1}
CONV = {"h": 8, "w": 8, "ci": 4, "co": 4, "kh": 3, "kw": 3}
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("conv2d", CONV | {"stride": (1, 2, 3)}, "stride=1x2x3 has 3 numbers, but there are 2 axes.*stride=1x1"),
    ("conv2d", CONV | {"stride": ()}, "has 0 numbers, but there are 2 axes"),
    ("conv2d", CONV | {"stride": (2, 0)}, "stride=0 is outside 1"),
    ("conv2d", CONV | {"padding": (1, "1")}, "padding='1' is not an integer or 2 of them, such as 2x2"),
    ("conv2d", CONV | {"kh": (3, 3)}, r"kh=\(3, 3\) is not an integer"),
    ("conv2d", CONV | {"kernel_size": 3}, "kernel_size= sets kh and kw, but kh= is given too"),
    (
        "conv2d",
        {"h": 8, "w": 8, "ci": 1, "co": 1, "k": (3, 3, 3)},
        "k=3x3x3 has 3 numbers; give one for all of kh, kw",
    ),
    ("conv2d", CONV | {"dilation": (1, 4)}, "reaches over 9 elements, but w=8"),
    ("max_pool2d", POOL | {"k": (4, 2), "padding": 2}, "padding=2 is more than half of k=2"),
    ("max_pool2d", POOL | {"k": 2, "ceil_mode": 2}, "ceil_mode=2 is outside 0..1"),
    ("max_pool2d", POOL | {"k": 2, "count_include_pad": 0}, "no parameter 'count_include_pad'"),
    ("avg_pool2d", POOL | {"k": (3, 2), "stride": (1, 2, 2)}, "3 numbers, but there are 2"),
    (
        "conv2d_transpose",
        CONV | {"stride": (2, 3), "output_padding": 2},
        "output_padding=2 along h is not below its stride 2 nor its dilation 1; use a smaller one",
    ),
    ("conv2d_transpose", CONV | {"groups": 3}, "groups=3 does not divide ci=4"),
    ("conv2d_transpose", CONV | {"padding": (0, 9)}, "padding=9 leaves nothing of the output along w"),
    ("softmax", {"m": 2, "shape": (2, 3)}, "shape= replaces m=; drop one of the two"),
    ("softmax", {"m": 2}, r"needs the parameter n: \(m=…,n=… or shape=AxBx…\),axis=-1"),
    ("softmax", {"axis": 0}, "needs the parameters m, n"),
    ("softmax", {"shape": (2, 3), "axis": 2}, "axis=2 is outside -2..1, the axes of 2x3"),
    ("softmax", {"shape": (5,)}, "shape=5 has 1 axes, not 2 to 8; join some, or add one of 1"),
    ("layer_norm", {"m": 2, "n": 3, "eps": -1.0}, "eps=-1.0 is outside 0.*added below the root"),
    ("layer_norm", {"m": 2, "n": 3, "eps": math.nan}, "eps=nan is not a finite number"),
    ("rms_norm", {"m": 2, "n": 3, "eps": "1"}, "eps='1' is not a finite number"),
    (
        "attention",
        ATTENTION | {"attn_mask": 1},
        "attn_mask=1 does not broadcast to the scores, 1x2x5x5.*attn_mask=5x5",
    ),
    ("attention", ATTENTION | {"attn_mask": (2, 5, 4)}, "attn_mask=2x5x4 does not broadcast"),
    ("attention", ATTENTION | {"is_causal": 2}, "is_causal=2 is outside 0..1"),
    ("attention", ATTENTION | {"scale": True}, "scale=True is not a finite number"),
    ("add", {"shape": (3, 4), "other": 3}, "other=3 does not broadcast with 3x4: .* such as 4 and 3,"),
    ("add", {"n": 3, "shape": (3,)}, "shape= replaces n="),
    ("add", {"shape": (1,) * 9}, "shape has 9 axes; at most 8"),
]


@pytest.mark.parametrize("name, params, message", BAD)
def test_misuse_is_refused(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=f"^{name}.*{message}"):
        ops.workload(name, params)


@pytest.mark.parametrize(
    "name, shape, flops",
    [
        ("add", "shape=4x1x5,other=3x1", 60),
        ("softmax", "shape=3x5x2,axis=1", 5 * 30),
        ("conv2d", "h=8,w=8,ci=4,co=6,k=3x1,stride=2x1,padding=1x0", 2 * 4 * 8 * 6 * 4 * 3),
        (
            "conv2d_transpose",
            "h=3,w=4,ci=4,co=6,k=3x2,stride=2,output_padding=1,groups=2",
            2 * 12 * 4 * 3 * 6,
        ),
        (
            "avg_pool2d",
            "h=7,w=8,c=4,k=3x2,stride=3,padding=1x0,ceil_mode=1,count_include_pad=0",
            3 * 3 * 4 * 6,
        ),
        ("attention", "heads=2,seq=5,dim=3,is_causal=1", 2 * 2 * 2 * 25 * 3),
    ],
)
def test_flops(name: str, shape: str, flops: int) -> None:
    assert ops.workload(name, ops.parse_shape(shape)).flops == flops


def test_one_form_of_equal_parameters() -> None:
    """A number for all axes and the same number for each are one workload, and so are torch's names."""
    w = ops.workload("conv2d", CONV | {"stride": 2})
    assert (
        w
        == ops.workload("conv2d", CONV | {"stride": (2, 2)})
        == ops.workload("conv2d", CONV | {"stride": [2, 2]})
    )
    sizes = dict.fromkeys(("h", "w", "ci", "co"), 8)
    for k in ({"k": 3}, {"k": (3, 3)}, {"kernel_size": 3}, {"kernel_size": (3, 3)}):
        assert ops.workload("conv2d", sizes | k | {"dilation": 1}) == ops.workload(
            "conv2d", sizes | {"kh": 3, "kw": 3}
        )
    causal = ops.workload("attention", ATTENTION | {"is_causal": 1})
    assert ops.workload("attention", ATTENTION | {"causal": True}) == causal
    plain = ops.workload("attention", ATTENTION)
    assert (
        ops.workload("attention", ATTENTION | {"is_causal": False, "attn_mask": None, "scale": None}) == plain
    )
    assert dict(plain.params) == ATTENTION | {"b": 1}


@pytest.mark.parametrize("name", sorted(ops.REGISTRY))
def test_the_example_of_an_operator_makes_a_workload(name: str) -> None:
    op = ops.get(name)
    given = ops.parse_shape(op.example())
    assert ops.workload(name, given).op == name
    for p in given:  # nothing in it may be left out
        with pytest.raises(WorkloadError, match="needs the parameter"):
            op.resolve({k: v for k, v in given.items() if k != p})


# First digits of the digests of `SMALL`: parameters that operators have always had. Logs have these.
DIGESTS = {
    "matmul": "b184035e", "batch_matmul": "c787f330", "matmul_bias_relu": "c6774e98", "conv2d": "4c0671dd",
    "conv2d_bias_relu": "7b035c75", "depthwise_conv2d": "ceef7185", "max_pool2d": "d535fdbf",
    "matmul_bias_gelu": "2d733a73", "conv1d": "9be7831b", "conv3d": "c2450450",
    "conv2d_bn_relu": "a82cb291", "conv2d_transpose": "753b3ed9", "capsule_conv2d": "0cab9990",
    "avg_pool2d": "f01777fa", "rms_norm": "d6efaa6c", "attention": "f524d6f5",
    "transpose_batch_matmul_softmax": "2b542ff5", "softmax": "7cf1709b", "layer_norm": "d9b66366",
    "norm2": "329390f2", "argmax": "7e19486f", "argmin": "b419e265", "reduce_sum": "baac9124",
    "quantized_matmul": "04f53156", "quantized_conv2d": "6213dcb0",
    "permute": "1837dc94", "add": "d8d8776d", "fused_multiply_add": "4bc71603",
}  # fmt: skip


def test_stored_workloads_keep_their_digests() -> None:
    assert {op: ops.workload(op, p).digest[:8] for op, p in SMALL.items()} == DIGESTS
    pool = {"b", "h", "w", "c", "k", "stride", "padding", "layout"}
    for op, named in (("softmax", {"m", "n"}), ("avg_pool2d", pool), ("max_pool2d", pool)):
        assert {name for name, _ in ops.workload(op, SMALL[op]).params} == named


def test_tuples_are_read_back() -> None:
    """From what is shown of a workload, and from the lists of a log."""
    for op, params in FORMS:
        w = ops.workload(op, params)
        shape = ",".join(f"{k}={param_text(v)}" for k, v in shown_params(w).items())
        assert ops.workload(op, ops.parse_shape(shape)) == w
        stored = Workload.from_json(w.json, w.op, json.loads(canonical(dict(w.params))), w.flops)
        assert ops.parameters(stored) == ops.parameters(w)
