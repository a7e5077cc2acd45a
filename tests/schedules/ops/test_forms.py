"""Forms of operators beside the usual one: what differs by axis, and optional parameters."""

from __future__ import annotations

import json
import zlib
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
from autotune.compare.bench import agree, arrays_for
from autotune.compare.peers import peer
from autotune.workloads import shown_params
from schedules import ops, te
from schedules.model import Workload, canonical
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive

FORM_IDS = [f"{op}-{n}" for n, (op, _) in enumerate(FORMS)]
DRAWS = 12  # of parameters of each operator


def rng(name: str, n: int) -> np.random.Generator:
    return np.random.default_rng([n, zlib.crc32(name.encode())])


@pytest.mark.parametrize("op, params", FORMS, ids=FORM_IDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_the_expression_is_the_reference(op: str, params: dict[str, Any], dtype: str) -> None:
    if dtype not in ops.get(op).dtypes:
        return
    for layout in ops.get(op).layouts or (None,):
        w = ops.workload(op, params, dtype, layout)
        data = inputs(w.dag)
        verdict = checker(w.dag, data).check(ops.reference(w, data), 0)
        assert not verdict.reason, f"{layout}: {verdict.reason}"
        stored = Workload.from_json(w.json, w.op, json.loads(canonical(dict(w.params))), w.flops)
        assert ops.makes(stored)


@pytest.mark.parametrize("op, params", FORMS, ids=FORM_IDS)
def test_every_sketch_is_right(op: str, params: dict[str, Any]) -> None:
    """Interpreted, as scheduled and as lowered."""
    for n, layout in enumerate(ops.get(op).layouts or (None,)):
        dag = ops.workload(op, params, layout=layout).dag
        data, t = inputs(dag), target(vector_bytes=(32, 16)[n])
        space, draw = derive(dag, t), np.random.default_rng(0)
        for k, sketch in enumerate(space.sketches):
            rows = space.sample(k, 64, draw)
            (row, *_) = rows[space.valid(k, rows)]
            nest = Schedule.replay(dag, space.trace(k, row), t).nest
            for made in (nest, lower(nest)):
                verdict = checker(dag, data).check(interpret(made, dag, data), 0)
                assert not verdict.reason, f"{layout} {sketch} {row.tolist()}: {verdict.reason}"


def test_grids_are_right() -> None:
    """A candidate of every form, by the emulator."""
    need_cxx()
    dags = [ops.workload(op, p, layout=(ops.get(op).layouts or (None,))[-1]).dag for op, p in FORMS]
    made = [program(dag, next(sampled(dag, 1, n))[1]) for n, dag in enumerate(dags)]
    obj = emulator.build(*made)
    for n, (dag, grid) in enumerate(zip(dags, made, strict=True)):
        data = inputs(dag)
        outputs = [poisoned(np.empty(t.shape, t.dtype)) for t in (dag.tensors[o] for o in dag.outputs)]
        assert emulator.run(obj, grid, [*data, *outputs], n) is None, FORMS[n]
        verdict = checker(dag, data).check(outputs, 0)
        assert not verdict.reason, f"{FORMS[n]}: {verdict.reason}"


@pytest.mark.parametrize("library", ["torch", "onnxruntime"])
def test_forms_mean_what_they_mean_elsewhere(library: str) -> None:
    imported(library)
    for op, params in FORMS:
        if op == "capsule_conv2d":
            continue
        for layout in ops.get(op).layouts or (None,):
            same_as(library, ops.workload(op, params, layout=layout))


@pytest.mark.parametrize("name", sorted({*ops.REGISTRY} - {"capsule_conv2d"}))
def test_drawn_parameters_mean_what_torchs_do(name: str) -> None:
    imported("torch")
    for n in range(DRAWS):
        draw = rng(name, n)
        layout = str(draw.choice(ops.get(name).layouts)) if ops.get(name).layouts else None
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
