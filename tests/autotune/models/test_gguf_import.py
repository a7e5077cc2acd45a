"""Language models of GGUF files compute what they say, from any place, in pieces of any number of rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import gguf_models as files
import numpy as np
import pytest
from needs import imported
from state_models import untuned

import autotune as at
from autotune.errors import ArgumentError, ModelError
from autotune.models.gguf_file import read_gguf
from autotune.models.preparation import prepared
from schedules.graph.valid_rows import read_whole

CODES = ("Q8_0", "Q4_0")
TOKENS = [5, 17, 3, 40, 40, 8, 1, 29, 30, 2]
SMALL = replace(files.LLAMA, layers=1, hidden=32, feed_forward=32, heads=2, kv_heads=1, vocabulary=24)


def model_of(path: Path, rows: int = 4, **how: Any) -> Any:
    return at.import_gguf(path, context=16, rows=rows, **how)


def called(net: Any, pieces: list[int], tokens: list[int] = TOKENS, state: Any = None) -> list[Any]:
    """The logits after each piece of the tokens."""
    found, begin = [], 0
    for n in pieces:
        part = np.array(tokens[begin : begin + n])
        found.append(net(part, begin) if state is None else net(part, begin, state=state))
        begin += n
    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """(A module, the logits after each token.)"""
    path = files.write(tmp_path_factory.mktemp("gguf") / "small.gguf", SMALL)
    tokens = [t % 24 for t in TOKENS]
    return untuned(model_of(path)), files.logits(SMALL, files.rounded(SMALL, path), tokens)


def test_prompts_in_any_pieces_give_the_same(small: tuple[Any, Any]) -> None:
    net, want = small
    tokens = [t % 24 for t in TOKENS]
    for pieces in ([1] * 10, [4, 4, 2], [3, 1, 4, 2], [2, 3, 3, 2]):
        found = called(net, pieces, tokens, net.new_state())
        ends = np.cumsum(pieces) - 1
        np.testing.assert_allclose(np.array(found), want[ends], rtol=1e-3, atol=1e-4)


def test_going_back_gives_what_a_new_state_gives(small: tuple[Any, Any]) -> None:
    net, _ = small
    tokens = [t % 24 for t in TOKENS]
    state = net.new_state()
    called(net, [4, 4, 2], tokens, state)
    other = [*tokens[:5], 7, 7, 9]
    again = net(np.array(other[5:8]), 5, state=state)
    np.testing.assert_array_equal(again, called(net, [4, 1, 3], other, net.new_state())[-1])


def test_rows_that_are_not_valid_change_nothing(small: tuple[Any, Any]) -> None:
    net, _ = small
    tokens = [t % 24 for t in TOKENS]
    clean, dirty = net.new_state(), net.new_state()
    for a in dirty.values():
        a[...] = np.nan
    found = [called(net, [3, 1, 4], tokens, state) for state in (clean, dirty)]
    np.testing.assert_array_equal(np.array(found[0]), np.array(found[1]))


def test_two_states_in_two_threads_are_as_each_alone(small: tuple[Any, Any]) -> None:
    net, _ = small
    every = [[(t + k) % 24 for t in TOKENS] for k in range(2)]
    want = [called(net, [4, 3, 1, 1, 1], tokens, net.new_state()) for tokens in every]
    found: dict[int, list[Any]] = {}

    def run(k: int, state: Any) -> None:
        found[k] = called(net, [4, 3, 1, 1, 1], every[k], state)

    threads = [Thread(target=run, args=(k, net.new_state())) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k in range(2):
        np.testing.assert_array_equal(np.array(found[k]), np.array(want[k]))


@pytest.mark.parametrize("position", [-1, 15, 2**40])
def test_a_place_outside_of_the_context_is_refused(small: tuple[Any, Any], position: int) -> None:
    net, _ = small
    with pytest.raises(ArgumentError, match="2 rows from position .* not inside its 16"):
        net(np.array([1, 2]), position)


@pytest.mark.parametrize("n", [0, 5])
def test_too_many_rows_or_none_are_refused(small: tuple[Any, Any], n: int) -> None:
    net, _ = small
    with pytest.raises(ArgumentError, match=f"has {n} elements in dimension 0; the model takes 1 to 4"):
        net(np.zeros(n, np.int64), 0)


def evaluated(path: Path, tokens: list[int], **how: Any) -> Any:
    """The logits of a call of all tokens, by the evaluator."""
    model = at.import_gguf(path, context=len(tokens) + 2, rows=len(tokens), **how).at(rows=len(tokens))
    graph = model.graph
    states = {s.tensor: np.zeros(t.shape, np_dtype(t.dtype)) for s in graph.states.values()
              for t in [graph.dag.tensors[s.tensor]]}  # fmt: skip
    given = {"tokens": np.array(tokens), "position": np.array(0), **graph.values, **states}
    found = at.te.evaluate(graph.dag, [np.asarray(given[t.name]) for t in graph.dag.inputs])
    return dict(zip(graph.dag.outputs, found, strict=True))[graph.outputs[0]]


def np_dtype(name: str) -> Any:
    from schedules.dtypes import DTYPES

    return DTYPES[name].numpy


VARIANTS = {
    "llama": (files.LLAMA, {}, 1.0),
    "qwen2": (files.QWEN2, {}, 1.0),
    "divisors": (replace(files.LLAMA, divisors=True), {}, 1.0),
    "linear": (files.LLAMA, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
    "biases": (replace(files.LLAMA, bias=True, tied=True), {}, 1.0),
    "one head": (replace(files.LLAMA, kv_heads=1), {}, 1.0),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_compute_what_they_say(tmp_path: Path, name: str) -> None:
    of, keys, factor = VARIANTS[name]
    of = replace(of, layers=1)
    path = files.write(tmp_path / "x.gguf", of, keys=keys)
    found = evaluated(path, TOKENS[:5])
    want = files.logits(of, files.rounded(of, path), TOKENS[:5], factor)[-1]
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        ("F16", files.LLAMA),
        ("BF16", files.QWEN2),
        *(pytest.param(k, of, marks=pytest.mark.slow) for k in CODES for of in (files.LLAMA, files.QWEN2)),
    ],
)
def test_types_are_read_as_they_are(tmp_path: Path, kind: str, of: files.Sizes) -> None:
    of = replace(of, layers=1)
    path = files.write(tmp_path / "x.gguf", of, kind=kind)
    found = evaluated(path, TOKENS[:4], activations=None)
    want = files.logits(of, files.rounded(of, path), TOKENS[:4])[-1]
    np.testing.assert_allclose(found, want, rtol=2e-3, atol=2e-3)
    model = model_of(path)
    size = sum(v.nbytes for v in model.graph.values.values())
    assert size <= path.stat().st_size + 16 * of.head * 8 + 4096, "no weight is widened"


@pytest.mark.slow
@pytest.mark.parametrize("kind", CODES)
def test_rounded_activations_change_little(tmp_path: Path, kind: str) -> None:
    of = replace(files.LLAMA, layers=1)
    path = files.write(tmp_path / "x.gguf", of, kind=kind)
    found = evaluated(path, TOKENS[:4])
    want = files.logits(of, files.rounded(of, path), TOKENS[:4])[-1]
    assert 0 < np.sqrt(((found - want) ** 2).mean()) < 0.03 * want.std()


@pytest.mark.parametrize("cache", ["float16", "bfloat16"])
def test_caches_of_fewer_bits(tmp_path: Path, cache: str) -> None:
    of = replace(files.LLAMA, layers=1)
    path = files.write(tmp_path / "x.gguf", of)
    model = model_of(path, cache=cache)
    kept = {model.graph.dag.tensors[s.tensor].dtype for s in model.graph.states.values()}
    assert kept == {cache}
    found = evaluated(path, TOKENS[:4], cache=cache)
    want = files.logits(of, files.rounded(of, path), TOKENS[:4])[-1]
    np.testing.assert_allclose(found, want, rtol=5e-2, atol=5e-2)


def test_valid_rows_alone_are_read(tmp_path: Path) -> None:
    path = files.write(tmp_path / "x.gguf", SMALL)
    ready = prepared(at.import_gguf(path, context=32, rows=8))
    assert read_whole(ready.graph) == {} and [x.most for x in ready.graph.short] == [32]


@pytest.mark.slow
def test_layers_are_equal(tmp_path: Path) -> None:
    made = {}
    for layers in (2, 4):
        path = files.write(tmp_path / f"{layers}.gguf", replace(files.LLAMA, layers=layers))
        ready = prepared(at.import_gguf(path, context=32, rows=1))
        assert read_whole(ready.graph) == {}
        made[layers] = ready.outline(lambda w: None)
    assert {w.digest for w in made[2].tasks} == {w.digest for w in made[4].tasks}


def test_keys_and_tensors_are_those_that_the_package_reads(tmp_path: Path) -> None:
    path = files.write(tmp_path / "x.gguf", files.LLAMA, kind="Q4_0", alignment=64)
    ours, theirs = read_gguf(path), files.gguf.GGUFReader(path)
    assert {*ours.keys} == {n for n in theirs.fields if not n.startswith("GGUF.")}
    assert ours.keys["general.architecture"] == "llama" and ours.keys["general.alignment"] == 64
    for t in theirs.tensors:
        own = ours.tensors[t.name]
        assert own.shape == tuple(reversed(t.shape.tolist())) and own.type == t.tensor_type.name
        assert own.data.tobytes() == t.data.tobytes()


def transformers_logits(kind: str, of: files.Sizes, tokens: list[int]) -> tuple[Any, dict[str, Any]]:
    """(The logits of transformers' model of random weights, these by the names of GGUF.)"""
    torch, hf = imported("torch"), imported("transformers")
    config = getattr(hf, f"{kind}Config")(
        hidden_size=of.hidden, intermediate_size=of.feed_forward, num_hidden_layers=of.layers,
        num_attention_heads=of.heads, num_key_value_heads=of.kv_heads, vocab_size=of.vocabulary,
        max_position_embeddings=of.context, tie_word_embeddings=of.tied, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": of.base},
    )  # fmt: skip
    torch.manual_seed(1)
    module = getattr(hf, f"{kind}ForCausalLM")(config).eval().requires_grad_(False)
    for p in module.parameters():
        p.normal_(0, 0.2) if p.dim() > 1 else p.uniform_(0.5, 1.5)
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        "model.layers.": "blk.",
    }  # fmt: skip
    found = {}
    for name, a in module.state_dict().items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        if not (of.tied and name == "output.weight"):
            found[name] = a.numpy()
    return module(torch.tensor([tokens])).logits[0].numpy(), found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "of"), [("Llama", files.LLAMA), ("Qwen2", files.QWEN2)])
def test_models_of_transformers(tmp_path: Path, kind: str, of: files.Sizes) -> None:
    want, tensors = transformers_logits(kind, of, TOKENS[:6])
    path = files.write(tmp_path / "x.gguf", of, tensors)
    np.testing.assert_allclose(evaluated(path, TOKENS[:6]), want[-1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"context": 65}, "context=65; give an integer from 1 to 64"),
        ({"context": 0}, "context=0"),
        ({"rows": 17, "context": 16}, "rows=17; give an integer from 1 to 16"),
        ({"rows": True}, "rows=True"),
        ({"cache": "int8"}, "cache='int8'; give one of float32, float16, bfloat16"),
        ({"activations": "int4"}, "activations='int4'; give 'int8' or None"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, how: dict[str, Any], match: str) -> None:
    path = files.write(tmp_path / "x.gguf", replace(files.LLAMA, layers=1))
    with pytest.raises(ModelError, match=match):
        at.import_gguf(path, **how)
