"""Scan and Loop of ONNX: one scan however many steps, equal to onnxruntime, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_models as nets
import pytest
from graph_meaning import evaluate
from needs import imported

import autotune as at

onnx = imported("onnx")
from onnx import TensorProto, helper  # noqa: E402

RNG = np.random.default_rng(0)
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
TRUE = np.array(True)


def compared(net: Any, given: dict[str, np.ndarray]) -> Any:
    """The imported model of a net, whose results were compared with those of onnxruntime."""
    runtime = imported("onnxruntime")
    model = at.import_onnx(net)
    got = evaluate(model.graph, [given[p.name] for p in model.inputs])
    session = runtime.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"])
    for a, b in zip(got, session.run(None, given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return model


def refused(net: Any) -> str:
    with pytest.raises(at.ModelError) as err:
        at.import_onnx(net)
    return str(err.value)


def loop(
    nodes: list[Any], states: list[Any], outs: list[str], steps: int | None = 5, cond: str = "again",
    keep: Any = None, **weights: Any,
) -> Any:  # fmt: skip
    """A model of one Loop. ``nodes``: of the body, which reads ``i``, ``again``, and each state NAME as
    NAME_in; its outputs are the states NAME, then ``outs``. Without ``steps`` they are an input."""
    body = helper.make_graph(
        [*nodes, nets.node("Identity", cond, "next")],
        "body",
        [nets.value("i", [], INT64), nets.value("again", [], BOOL)]
        + [nets.value(f"{s.name}_in", _shape(s)) for s in states],
        [nets.value("next", [], BOOL)] + [nets.value(s.name, None) for s in states]
        + [nets.value(o, None) for o in outs],
    )  # fmt: skip
    names = [f"first_{s.name}" for s in states]
    inputs = [nets.value(n, _shape(s)) for n, s in zip(names, states, strict=True)]
    given = {"true": TRUE, **weights} | ({} if steps is None else {"steps": np.array(steps)})
    inputs += [nets.value("steps", [], INT64)] if steps is None else []
    made = [f"last_{s.name}" for s in states] + [f"all_{o}" for o in outs]
    node = helper.make_node("Loop", ["steps", "true", *names], made, name="turns", body=body)
    return nets.model([node], inputs + list(keep or ()), made, given)


def _shape(v: Any) -> list[int]:
    return [d.dim_value for d in v.type.tensor_type.shape.dim]


def test_a_loop_of_known_steps_is_one_scan() -> None:
    """What it carries, what it shows of each step, and the number of the step."""
    nodes = [
        nets.node("Cast", "i", "n", to=TensorProto.FLOAT),
        nets.node("MatMul", "h_in w", "m"),
        nets.node("Add", "m n", "a"),
        nets.node("Tanh", "a", "h"),
        nets.node("Mul", "h h", "o"),
    ]
    w = RNG.standard_normal((3, 3)).astype(np.float32)
    net = loop(nodes, [nets.value("h", [2, 3])], ["o"], w=w)
    model = compared(net, {"first_h": RNG.standard_normal((2, 3)).astype(np.float32)})
    scans = [s for s in model.graph.dag.stages if s.scan]
    assert {s.axes[0].extent for s in scans} == {5} and len(model.graph.dag.stages) < 12


def test_the_stages_of_a_loop_do_not_grow_with_its_steps() -> None:
    nodes = [nets.node("Mul", "h_in h_in", "s"), nets.node("Sin", "s", "h")]
    few, many = (at.import_onnx(loop(nodes, [nets.value("h", [3])], [], n)) for n in (3, 20_000))
    assert len(few.graph.dag.stages) == len(many.graph.dag.stages)


def test_a_loop_reads_rows_at_its_step_and_carries_several_states() -> None:
    nodes = [
        nets.node("Gather", "x i", "row", axis=0),
        nets.node("Add", "s_in row", "s"),
        nets.node("Max", "m_in row", "m"),
        nets.node("Softmax", "s", "p", axis=-1),
    ]
    states = [nets.value("s", [4]), nets.value("m", [4])]
    x = RNG.standard_normal((6, 4)).astype(np.float32)
    compared(
        loop(nodes, states, ["p"], 6, x=x),
        {"first_s": np.zeros(4, np.float32), "first_m": np.full(4, -9, np.float32)},
    )


def test_a_state_of_no_dimensions_and_one_that_nothing_changes() -> None:
    nodes = [nets.node("Add", "a_in b_in", "a"), nets.node("Identity", "b_in", "b")]
    states = [nets.value("a", []), nets.value("b", [])]
    given = {"first_a": np.array(2, np.float32), "first_b": np.array(3, np.float32)}
    compared(loop(nodes, states, []), given)


def test_loops_that_are_no_scans_are_refused_by_name() -> None:
    h = [nets.value("h", [3])]
    step = [nets.node("Neg", "h_in", "h")]
    assert "turns: control flow is not supported: its number of steps is not known" in refused(
        loop(step, h, [], None)
    )
    ends = [*step, nets.node("ReduceSum", "h_in", "t", keepdims=0), nets.node("Cast", "t", "c", to=BOOL)]
    assert "each step says whether there is a next" in refused(loop(ends, h, [], cond="c"))
    grows = [nets.node("Concat", "h_in h_in", "h", axis=0)]
    assert "a state must keep its shape and its type" in refused(loop(grows, h, []))
    assert "it has 0 steps" in refused(loop(step, h, [], 0))
    assert f"it has {2**40} steps" in refused(loop(step, h, [], 2**40))
    odd = [nets.node("Unique", "h_in", "h")]
    assert "Unique in the function that defines it, or in the body of a loop" in refused(loop(odd, h, []))
    inner = helper.make_node(
        "Loop", ["steps", "true", "h_in"], ["h"], name="inner", body=helper.make_graph(
            [nets.node("Identity", "c", "d"), nets.node("Neg", "a", "b")], "inside",
            [nets.value("j", [], INT64), nets.value("c", [], BOOL), nets.value("a", [3])],
            [nets.value("d", [], BOOL), nets.value("b", [3])]),
    )  # fmt: skip
    assert "it has a loop, or a scatter, inside" in refused(loop([inner], h, []))


def test_what_a_loop_reads_from_outside() -> None:
    """A loop whose body reads an input of the model, which is the same at every step."""
    nodes = [nets.node("Mul", "h_in w", "m"), nets.node("Add", "m h_in", "h")]
    net = loop(nodes, [nets.value("h", [3])], [], 4, keep=[nets.value("w", [3])])
    compared(net, {"first_h": nets.whole(RNG, 3), "w": np.array([0.5, 0, -1], np.float32)})


# --- Scan -------------------------------------------------------------------------------------


def scan(
    nodes: list[Any], states: list[Any], xs: list[Any], outs: list[str], inputs: list[Any], **how: Any
) -> Any:
    """A model of one Scan. ``states``, ``xs``: what its body is given at a step; ``inputs``: of the model."""
    ends = [nets.value(n, None) for n in [*(s.name.removesuffix("_in") for s in states), *outs]]
    body = helper.make_graph(nodes, "body", [*states, *xs], ends)
    made = [f"out_{e.name}" for e in ends]
    names = [i.name for i in inputs]
    node = helper.make_node("Scan", names, made, name="steps", body=body, num_scan_inputs=len(xs), **how)
    return nets.model([node], inputs, made, opset=17)


CELL = [nets.node("Add", "h_in x", "a"), nets.node("Tanh", "a", "h"), nets.node("Mul", "h y", "o")]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"scan_input_directions": [1, 0]},
        {"scan_input_axes": [1, 0], "scan_output_axes": [1]},
        {"scan_input_axes": [-1, 0], "scan_input_directions": [1, 1], "scan_output_directions": [1]},
    ],
)
def test_scans_of_any_axes_and_directions(how: dict[str, Any]) -> None:
    axis = how.get("scan_input_axes", [0, 0])[0] % 2
    x = [4, 3] if axis == 0 else [3, 4]
    inputs = [nets.value("h0", [3]), nets.value("xs", x), nets.value("ys", [4, 3])]
    net = scan(
        CELL, [nets.value("h_in", [3])], [nets.value("x", [3]), nets.value("y", [3])], ["o"], inputs, **how
    )
    compared(net, {v.name: RNG.standard_normal(_shape(v)).astype(np.float32) for v in inputs})


def test_a_scan_without_states_maps_its_rows() -> None:
    nodes = [nets.node("ReduceSum", "x", "s", keepdims=0), nets.node("Mul", "x s", "o")]
    inputs = [nets.value("xs", [4, 3])]
    compared(scan(nodes, [], [nets.value("x", [3])], ["o"], inputs), {"xs": nets.whole(RNG, 4, 3)})


def test_scans_whose_inputs_differ_in_steps_are_refused() -> None:
    inputs = [nets.value("h0", [3]), nets.value("xs", [4, 3]), nets.value("ys", [5, 3])]
    net = scan(CELL, [nets.value("h_in", [3])], [nets.value("x", [3]), nets.value("y", [3])], ["o"], inputs)
    assert "its inputs have [4, 5] steps" in refused(net)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*not tuned")
def test_a_scan_with_a_recurrent_layer_runs(tmp_path: Any) -> None:
    """As one kernel, beside the copies of what is shown."""
    inputs = [nets.value("h0", [5]), nets.value("xs", [7, 5]), nets.value("ys", [7, 5])]
    net = scan(CELL, [nets.value("h_in", [5])], [nets.value("x", [5]), nets.value("y", [5])], ["o"], inputs)
    given = {v.name: RNG.standard_normal(_shape(v)).astype(np.float32) for v in inputs}
    model = compared(net, given)
    run = at.compile_model(model, threads=1, db=tmp_path / "t.db", fallback=True)
    want = evaluate(model.graph, [given[p.name] for p in model.inputs])
    for a, b in zip(run(*(given[p.name] for p in model.inputs)), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
