"""Blocks of GGUF files stand for the numbers that the package gguf reads from them, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_models as files
import numpy as np
import pytest
from needs import imported
from state_models import untuned

import autotune as at
from autotune.errors import ModelError
from autotune.models.gguf_blocks import BLOCKS
from autotune.models.gguf_file import TYPES, GgufFile, GgufTensor
from autotune.models.gguf_weights import GgufWeights
from autotune.models.preparation import prepared
from schedules import te

gguf = imported("gguf")
# Of one layer whose rows are blocks of 256.
WIDE = replace(files.LLAMA, layers=1, hidden=256, feed_forward=256, vocabulary=24)
TOKENS = [5, 17, 3, 20]
# {type: bits of a weight in memory}. Of a file: 8.5, 4.5, 5, 5.5, 6, 4.5, 5.5, 6.6.
BITS = {"Q8_0": 8.5, "Q4_0": 4.5, "Q4_1": 5, "Q5_0": 8.5, "Q5_1": 9, "Q4_K": 6, "Q5_K": 10, "Q6_K": 10}


def matrix(kind: str, rows: int = 6, columns: int = 768) -> tuple[GgufFile, Any]:
    """(A file with a matrix of random bits, its numbers as the package reads them.)"""
    rng = np.random.default_rng(len(kind) + rows)
    blocks = files.random_blocks(kind, (rows, columns // BLOCKS[kind].weights), rng).reshape(rows, -1)
    tensor = GgufTensor("a.weight", (rows, columns), kind, blocks.reshape(-1))
    want = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    return GgufFile("x.gguf", {}, {"a.weight": tensor}), want


def evaluated(output: te.Tensor, given: dict[te.Tensor, Any]) -> Any:
    return te.evaluate(te.dag([*given, output]), list(given.values()))[-1]


def test_blocks_are_those_of_the_file() -> None:
    assert {k: b.weights for k, b in BLOCKS.items()} == {n: b for n, b, _ in TYPES.values() if n in BLOCKS}


@pytest.mark.parametrize("piece", [1 << 20, 1, 500])
@pytest.mark.parametrize("kind", BLOCKS)
def test_parts_stand_for_the_numbers_of_the_file(
    kind: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schedules.ops.rounded_weights.PIECE", piece)
    file, want = matrix(kind)
    of, order = BLOCKS[kind], np.array([3, 1, 0, 2, 5, 4])
    raw = file.tensors["a.weight"].data.reshape(6, 768 // of.weights, -1)
    for rows, numbers in ((None, want), (order, want[order])):
        codes, scales, *offsets = of.unpacked(raw, rows)
        found = of.form.numbers(codes, of.group) * np.repeat(scales.astype(np.float64), of.group, axis=-1)
        if offsets:
            found = found + np.repeat(offsets[0].astype(np.float64), of.group, axis=-1)
        np.testing.assert_array_equal(found.astype(np.float32), numbers)
        nbytes = sum(p.nbytes for p in (codes, scales, *offsets))
        assert nbytes * 8 == BITS[kind] * want.size


@pytest.mark.parametrize("kind", BLOCKS)
def test_rows_of_a_table_are_the_numbers_of_the_file(kind: str) -> None:
    file, want = matrix(kind)
    weights = GgufWeights(file, rounds=True)
    ids = te.placeholder((3,), "int64", "ids")
    rows = weights.table("a.weight", *want.shape)(ids)
    found = evaluated(rows, {ids: np.array([4, 0, 5]), **weights.constants})
    np.testing.assert_array_equal(found, want[[4, 0, 5]])


@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize("kind", BLOCKS)
def test_products_are_those_of_the_numbers(kind: str, rounds: bool) -> None:
    file, want = matrix(kind)
    weights = GgufWeights(file, rounds)
    x = te.placeholder((2, want.shape[1]), "float32", "x")
    rng = np.random.default_rng(1)
    given = rng.integers(-127, 128, x.shape).astype(np.float32)
    given.reshape(2, -1, 16)[..., 0] = 127  # each group is its own codes
    y = weights.product("a", *want.shape)(x)
    found = evaluated(y, {x: given, **weights.constants})
    exact = given.astype(np.float64) @ want.astype(np.float64).T
    size = np.abs(given).astype(np.float64) @ np.abs(want).astype(np.float64).T
    assert (np.abs(found - exact) <= 2e-6 * size).all()


def test_a_table_that_is_a_product_too_is_kept_once() -> None:
    file, want = matrix("Q6_K")
    weights = GgufWeights(file, rounds=True)
    weights.table("a.weight", *want.shape)
    weights.product("a", *want.shape)
    assert [t.name for t in weights.constants] == ["a_weight_codes", "a_weight_scales"]


def test_scales_that_are_no_numbers_are_read(recwarn: pytest.WarningsRecorder) -> None:
    for kind, of in BLOCKS.items():
        size = next(n for name, _, n in TYPES.values() if name == kind)
        for bits in (0, 255):
            of.unpacked(np.full((2, 1, size), bits, np.uint8))
    blocks = np.zeros((1, 1, 210), np.uint8)
    blocks[..., 208:] = 0, 0x7C  # infinite, times 0
    assert np.isnan(BLOCKS["Q6_K"].unpacked(blocks)[1]).all()
    assert not recwarn.list


def q4_k_m(name: str) -> str:
    """The types of a file of Q4_K_M, of which some layers have more bits than others."""
    more = ("output.", "blk.0.attn_v", "blk.0.ffn_down")
    return "Q6_K" if name.startswith(more) else "Q4_K"


def q4_0_of_quantize(name: str) -> str:
    return "Q6_K" if name.startswith(("output.", "token_embd.")) else "Q4_0"


MIXED = {
    "Q4_K_M": (q4_k_m, replace(WIDE, layers=2)),
    "Q4_0": (q4_0_of_quantize, WIDE),
    "tied": (q4_0_of_quantize, replace(WIDE, tied=True, bias=True, neighbours=False)),
    "Q5_K": (lambda name: "Q5_K", WIDE),
    "Q4_1": (lambda name: "Q4_1", WIDE),
}


@pytest.mark.parametrize(
    "name", [n if n == "Q4_K_M" else pytest.param(n, marks=pytest.mark.slow) for n in MIXED]
)
def test_models_of_mixed_types_compute_what_they_say(tmp_path: Path, name: str) -> None:
    kind, of = MIXED[name]
    path = files.write(tmp_path / "x.gguf", of, kind=kind)
    want = files.logits(of, files.rounded(of, path), TOKENS)[-1]
    for activations, most in ((None, 1e-4), ("int8", 0.05)):
        model = at.import_gguf(path, context=8, rows=4, activations=activations).at(rows=4)
        graph = model.graph
        states = {s.tensor: np.zeros(graph.dag.tensors[s.tensor].shape, "float32")
                  for s in graph.states.values()}  # fmt: skip
        given = {"tokens": np.array(TOKENS), "position": np.array(0), **graph.values, **states}
        made = te.evaluate(graph.dag, [np.asarray(given[t.name]) for t in graph.dag.inputs])
        found = dict(zip(graph.dag.outputs, made, strict=True))[graph.outputs[0]]
        assert np.sqrt(((found - want) ** 2).mean()) < most * want.std(), activations


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_K_M", "tied"])
def test_compiled_models_of_mixed_types_compute_what_they_say(tmp_path: Path, name: str) -> None:
    kind, of = MIXED[name]
    path = files.write(tmp_path / "x.gguf", of, kind=kind)
    want = files.logits(of, files.rounded(of, path), TOKENS)
    for activations, most in ((None, 1e-4), ("int8", 0.05)):
        net = untuned(at.import_gguf(path, context=8, rows=2, activations=activations))
        for begin, n in ((0, 2), (2, 1), (3, 1)):
            found = net(np.array(TOKENS[begin : begin + n]), begin)
            of_end = want[begin + n - 1]
            assert np.sqrt(((found - of_end) ** 2).mean()) < most * of_end.std(), (activations, begin)


@pytest.mark.slow
def test_layers_of_other_types_are_other_tasks(tmp_path: Path) -> None:
    tasks = {}
    for name, kind in (("mixed", q4_k_m), ("equal", lambda name: "Q4_K")):
        path = files.write(tmp_path / f"{name}.gguf", replace(WIDE, layers=2), kind=kind)
        ready = prepared(at.import_gguf(path, context=8, rows=1))
        tasks[name] = {w.digest for w in ready.outline(lambda w: None).tasks}
    assert len(tasks["mixed"]) > len(tasks["equal"])


def test_a_shape_that_is_no_number_of_blocks_is_refused(tmp_path: Path) -> None:
    path = files.write(tmp_path / "x.gguf", WIDE, kind="Q6_K")
    data = path.read_bytes()
    name = b"blk.0.attn_q.weight"
    begin = data.index(name) + len(name) + 4
    damaged = data[:begin] + (255).to_bytes(8, "little") + data[begin + 8 :]
    path.write_bytes(damaged)
    with pytest.raises(ModelError, match=r"'blk.0.attn_q.weight' of type Q6_K has shape \[256, 255\]"):
        at.import_gguf(path)
