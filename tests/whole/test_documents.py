"""Every kind of document, with a part of it changed to something hostile: read, or refused with the error of
its reader, never with another. What was written is read."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.codegen import bundle
from autotune.codegen.grid_code import MAGIC, GridCode
from autotune.errors import CompileError
from autotune.fleet import messages
from autotune.fleet.errors import MessageError
from autotune.fleet.members import _member, slot
from autotune.measure.results import Measurement
from autotune.models import signature
from autotune.run import pickled, untuned
from cost_model import saved
from cost_model.base import CostModelError
from cost_model.features import COLUMNS, DERIVED
from cost_model.tree_ensemble import TreeEnsemble, leaf
from kernels_db import exchange
from schedules import ops
from schedules.documents import Malformed, parsed
from schedules.model import Step, Target, Trace, TraceError, Workload, canonical, digest
from schedules.te.compute_dag import ComputeDAG
from schedules.te.names import Names

W = ops.workload("matmul", {"m": 8, "n": 8, "k": 8})
T = Target("cpu", "x", "x86_64-a", ("avx2",), 2, (("cores", 4),))
TRACE = Trace((Step("split", (("factors", (None, 8)), ("loop", "i"), ("tail", "guard"))),))
RECORD = {
    "type": "record", "uid": "0" * 32, "run": "1" * 32, "trial": 3, "kind": "search", "workload": "2" * 32,
    "target": "3" * 32, "machine": "4" * 32, "sketch": "s", "trace": json.loads(TRACE.to_json()),
    "status": "ok", "reason": "", "times_s": [1.0], "time_s": 1.0, "error": 0.5, "environment": {"a": [1]},
    "created": "2026-01-01T00:00:00.000000Z",
}  # fmt: skip
RECORD["kind"] = exchange.KINDS[0]
RECORD["uid"] = exchange._uid("record", RECORD)
CALLED = {
    "arguments": [["tensor", 0], ["dict", [["fixed", {"float": "0x1p+0"}]], ["k"], ""]],
    "names": ["x", ""],
    "named": {"y": ["blank", [0, 2], "float32"]},
    "result": ["tuple", [["tensor", 0]], [], ""],
}
GRID = {
    "kind": "cuda", "params": [["x", "float32", [4], 4]], "outputs": ["x"], "scratch": [], "source": 0,
    "launches": [["k", [1, 1, 1], [4, 1, 1], ["x"]], ["j", [2, 1, 1], [4, 1, 1], ["m"], 65536, [2, 1, 1]]],
    "facts": {"k": {"registers": 3}}, "maps": [["m", "x", "float32", [8, 4], [4, 1], [8, 4], 0]],
}  # fmt: skip
TASK = messages.FleetTask(W, T, 1.0)
REQUEST = messages.opened(
    messages.FleetRequest("measure", "b", TASK, (TRACE,), objects=((0, "0" * 32),)).text()
)

MEMBER = {
    "machine": {"architecture": "x86_64", "cores": 2}, "key": "0123456789ab", "generator": "g",
    "targets": [{"asked": "x", "target": json.loads(T.json), "slot": slot("0123456789ab", T)}],
    "builds": True, "process": "p",
}  # fmt: skip
COSTS = {
    "kind": saved.KIND, "version": saved.VERSION, "learner": "xgb", "columns": COLUMNS,
    "derived": list(DERIVED), "feature_names": list(saved.FEATURES["cpus"]), "provenance": {},
    "bags": [saved._packed(TreeEnsemble.of([leaf(0.5)]))],
}  # fmt: skip

# {kind: (a document, what reads it, its error)}.
KINDS: dict[str, tuple[Any, Callable[[Any], Any], tuple[type[Exception], ...]]] = {
    "expression": (W.dag.to_json(), ComputeDAG.from_json, (ValueError,)),
    "names": (Names.of_dag(W.dag.to_json()).to_json(), Names.from_json, (ValueError,)),
    "workload": (json.loads(W.json), lambda v: Workload.from_json(json.dumps(v)), (ValueError,)),
    "target": (json.loads(T.json), lambda v: Target.from_json(json.dumps(v)), (ValueError,)),
    "trace": (json.loads(TRACE.to_json()), lambda v: Trace.from_json(json.dumps(v)), (TraceError,)),
    "kernel": (
        json.loads(pickled.text_of(W, T, TRACE, "log")),
        lambda v: pickled.read(json.dumps(v)),
        (CompileError, ValueError),
    ),
    "request": (REQUEST, lambda v: messages.request(sealed(v)), (MessageError,)),
    "measurement": (
        messages.of_measurement(Measurement("ok", "", (1e-3,), 1e-3, 0.5, 0.9, 0.1, 0.2, 0.3, {"a": 1})),
        messages.measurement,
        (MessageError,),
    ),
    "record of a log": (RECORD, lambda v: exchange.parse_line(line(v)), (exchange.Refused,)),
    "signature": (CALLED, lambda v: signature.read(v, 1, 1), (ValueError,)),
    "code for a device": (GRID, lambda v: GridCode.from_bytes(grid(v)), (CompileError,)),
    "what a worker says": (MEMBER, lambda v: _member("a", "n", json.dumps(v), 0), (MessageError,)),
    "cost model": (COSTS, lambda v: cost_model(v), (CostModelError,)),
    "first pick": (["t", "default", 3], lambda v: untuned._kept(json.dumps(v).encode(), 3), ()),
    "objects": ([[3, 0], [-1, 0]], lambda v: bundle.split(objects(v)), (CompileError,)),
}


def sealed(v: Any) -> str:
    text = json.dumps({"version": 1, **v} if isinstance(v, dict) else v)
    return digest(text) + text


def line(v: Any) -> bytes:
    return json.dumps(v).encode()


def grid(v: Any) -> bytes:
    return MAGIC + json.dumps(v).encode() + b"\n"


def objects(v: Any) -> bytes:
    return bundle.MAGIC + json.dumps(v).encode() + b"\n"


def cost_model(v: Any) -> saved.SavedModel:
    with tempfile.NamedTemporaryFile() as f:
        Path(f.name).write_text(json.dumps(v))
        return saved.read(f.name)


def nested(levels: int) -> Any:
    x: Any = []
    for _ in range(levels):
        x = [x]
    return x


HOSTILE: list[Callable[[], Any]] = [
    lambda: True, lambda: None, lambda: -1, lambda: 0, lambda: 1.5, lambda: 10**400,
    lambda: 2**63,
    lambda: float("nan"), lambda: float("inf"), lambda: "", lambda: "x" * 100_000, lambda: "\ud800\0", list,
    dict, lambda: nested(5), lambda: nested(400), lambda: [[]] * 500,
    lambda: {"version": 99}, lambda: ["x", 1],
]  # fmt: skip


def places(v: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all parts of a document."""
    yield way
    for k, x in v.items() if isinstance(v, dict) else enumerate(v) if isinstance(v, list) else ():
        yield from places(x, (*way, k))


def put(v: Any, way: tuple[Any, ...], change: Callable[[Any, Any], None], whole: Any) -> Any:
    """The document with a change of one part; ``whole`` where that is all of it."""
    if not way:
        return whole
    made = at = copy.deepcopy(v)
    for step in way[:-1]:
        at = at[step]
    change(at, way[-1])
    return made


def held(kind: str, made: Any) -> None:
    _, read, errors = KINDS[kind]
    try:
        read(made)
    except errors as err:
        assert len(str(err)) < 2000


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_read(kind: str) -> None:
    document, read, _ = KINDS[kind]
    read(copy.deepcopy(document))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_hostile_part_is_refused_with_the_error_of_its_reader(kind: str, data: st.DataObject) -> None:
    document = KINDS[kind][0]
    way = data.draw(st.sampled_from(list(places(document))))
    value = data.draw(st.sampled_from(HOSTILE))()

    def replaced(at: Any, step: Any) -> None:
        at[step] = value

    def removed(at: Any, step: Any) -> None:
        del at[step]

    def added(at: Any, step: Any) -> None:
        at.update(more=value) if isinstance(at, dict) else at.append(value)

    held(kind, put(document, way, data.draw(st.sampled_from([replaced, removed, added])), value))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":1,"a":2}', "'a' stands twice"),
        ('{"a":NaN}', "NaN is no number"),
        ('{"a":1e999}', "too large for a number"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 10_000, "it is no JSON"),
        (b"\xff", "it is no JSON"),
        (3, "must be str"),
    ],
)
def test_text_that_readers_take_in_different_ways_is_refused(text: Any, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        parsed(text)


def test_an_error_names_the_place() -> None:
    v = W.dag.to_json()
    v["stages"][0]["axes"][1][1] = True
    wanted = r"stages\[0\].axes\[1\]\[1\]: expected an integer, got True"
    with pytest.raises(ValueError, match=wanted):
        ComputeDAG.from_json(v)
    assert canonical(v)
