"""`import_gguf`: a language model of a GGUF file as a graph of tensor expressions."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from autotune.errors import ModelError
from autotune.models.assembling import Kept, assemble
from autotune.models.decoder import Cache, Decoder, DecoderLayer, decode
from autotune.models.gguf_file import GgufFile, read_gguf
from autotune.models.gguf_hyperparameters import Hyperparameters, hyperparameters
from autotune.models.gguf_weights import GgufWeights, check_types
from autotune.models.model import Model
from autotune.models.operators.base import Array
from schedules import te
from schedules.te.dims import dim
from schedules.te.tensors import Op

CACHES = ("float32", "float16", "bfloat16")
# Defaults: places of the cache, and rows of a call.
CONTEXT, ROWS = 4096, 512


def import_gguf(
    path: str | os.PathLike[str],
    context: int | None = None,
    rows: int | None = None,
    cache: str = "float32",
    activations: str | None = "int8",
) -> Model:
    """A language model of a GGUF file, the format of llama.cpp
    (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), as a graph of tensor expressions.

    A compiled model takes ``tokens`` (int64, 1 to ``rows`` of them) and the ``position`` of the first one, a
    number. It returns the logits after the last token: float32, a number for each token of the vocabulary.
    Keys and values of earlier tokens are its state (`Module.state`): ``keys_0``, ``values_0``, ..., each
    (context, heads of keys, numbers of a head). Calls of one token have a program of their own. `generate`
    makes tokens.

    - ``context``: tokens that the state has room for. The default is the longest text that the file names,
      at most 4096.
    - ``rows``: the most tokens of a call. The default is 512, at most ``context``.
    - ``cache``: the dtype of keys and values: "float32", "float16" or "bfloat16".
    - ``activations``: "int8" rounds the activations of products with weights of few bits, in groups of 32 (of
      Q6_K 16), as llama.cpp does for Q8_0 and Q4_0. None leaves them as float32.

    Architectures are llama and qwen2. Types of tensors are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1,
    Q4_K, Q5_K and Q6_K. Each weight is the number that the file says. Codes of 5 and 6 bits are kept in 8,
    scales of Q4_K, Q5_K and Q6_K in float32, so that these take 6, 10 and 10 bits a weight. The file is
    mapped into memory until `compile_model` has packed the weights: do not change it before. The tokenizer of
    the file is not read.

    Raises `ModelError` for a file that is no GGUF file, or is damaged; for another architecture; for tensors
    of other types, all at once; for what else is not supported, such as experts; and for ``context``,
    ``rows``, ``cache`` and ``activations`` that are none of these.

    Example:

        model = at.import_gguf("model.gguf", context=2048)
        at.tune_model(model, threads=1, budget="5m")
        net = at.compile_model(model, threads=1)
        logits = net(np.array([1, 2, 3]), 0)
    """
    file = read_gguf(path)
    of = hyperparameters(file)
    check_types(file)
    longest = "the longest text of the model"
    places = (
        min(of.context, CONTEXT) if context is None else _size("context", context, of.context, longest, file)
    )
    most = min(places, ROWS) if rows is None else _size("rows", rows, places, "the context", file)
    if cache not in CACHES:
        raise ModelError(f"{file.label}: cache={cache!r}; give one of {', '.join(CACHES)}")
    if activations not in ("int8", None):
        raise ModelError(f"{file.label}: activations={activations!r}; give 'int8' or None")
    weights = GgufWeights(file, activations is not None)
    decoder = _decoder(file, of, weights, places)
    weights.finish()
    model = _assembled(file, of, decoder, weights, places, most, cache)
    return model.with_own_sizes(rows=1) if most > 1 else model


def _size(what: str, given: Any, most: int, most_of: str, file: GgufFile) -> int:
    """A size that is given. ``most_of``: what has so many."""
    if isinstance(given, bool) or not hasattr(given, "__index__") or not 1 <= given.__index__() <= most:
        raise ModelError(f"{file.label}: {what}={given!r}; give an integer from 1 to {most}, {most_of}")
    return int(given)


def _assembled(
    file: GgufFile, of: Hyperparameters, decoder: Decoder, weights: GgufWeights, places: int, most: int,
    cache: str,
) -> Model:  # fmt: skip
    """The model of a decoder. ``places``: of its caches. ``most``: rows of a call."""
    n: Any = dim(1, most, "rows", open=True) if most > 1 else 1
    tokens, position = te.placeholder((n,), "int64", "tokens"), te.placeholder((), "int64", "position")
    caches = [
        Cache(
            te.placeholder((places, of.kv_heads, of.head), cache, f"keys_{i}"),
            te.placeholder((places, of.kv_heads, of.value), cache, f"values_{i}"),
        )
        for i in range(of.layers)
    ]
    origins: dict[Op, str] = {}
    logits, made = decode(decoder, tokens, position, caches, lambda t, name: _noted(t, name, origins))
    states: dict[str, Kept] = {}
    for i, (old, new) in enumerate(zip(caches, made, strict=True)):
        states |= {f"keys_{i}": Kept(old.keys, new.keys), f"values_{i}": Kept(old.values, new.values)}
    inputs = {"tokens": tokens, "position": position}
    return assemble(
        inputs, [("logits", logits)], weights.constants, origins, of.name, file.label, states=states
    )


def _decoder(file: GgufFile, of: Hyperparameters, weights: GgufWeights, places: int) -> Decoder:
    """The decoder of a file."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.label}: it has no matrix 'token_embd.weight': it is no language model")
    vocabulary = embedding.shape[0]
    divisors = None
    if "rope_freqs.weight" in file.tensors:
        divisors = weights.values("rope_freqs.weight", of.turned // 2)
    try:
        cos, sin = of.rotations(places, divisors)
    except ValueError as err:
        raise ModelError(f"{file.label}: of its rotations {err}: 'rope_freqs.weight' is damaged") from err
    return Decoder(
        of.heads, of.kv_heads, of.head, of.value, of.eps,
        weights.table("token_embd.weight", vocabulary, of.hidden),
        [_layer(of, weights, f"blk.{i}.") for i in range(of.layers)],
        weights.vector("output_norm.weight", of.hidden),
        weights.product(
            "output" if "output.weight" in file.tensors else "token_embd", vocabulary, of.hidden
        ),
        weights.known("cos", cos), weights.known("sin", sin),
    )  # fmt: skip


def _layer(of: Hyperparameters, weights: GgufWeights, at: str) -> DecoderLayer:
    q, k, v = of.heads * of.head, of.kv_heads * of.head, of.kv_heads * of.value
    return DecoderLayer(
        weights.vector(f"{at}attn_norm.weight", of.hidden),
        weights.product(f"{at}attn_q", q, of.hidden, _order(of, of.heads)),
        weights.product(f"{at}attn_k", k, of.hidden, _order(of, of.kv_heads)),
        weights.product(f"{at}attn_v", v, of.hidden),
        weights.product(f"{at}attn_output", of.hidden, of.heads * of.value),
        weights.vector(f"{at}ffn_norm.weight", of.hidden),
        weights.product(f"{at}ffn_gate", of.feed_forward, of.hidden),
        weights.product(f"{at}ffn_up", of.feed_forward, of.hidden),
        weights.product(f"{at}ffn_down", of.hidden, of.feed_forward),
    )


def _order(of: Hyperparameters, heads: int) -> Array | None:
    """The rows of q or k in an order in which what rotates together is as far apart as there are pairs."""
    if not of.neighbours:
        return None
    pairs = np.arange(of.turned).reshape(-1, 2).T.ravel()
    one = np.concatenate([pairs, np.arange(of.turned, of.head)])
    return (np.arange(heads)[:, None] * of.head + one).ravel()


def _noted(t: te.Tensor, name: str, origins: dict[Op, str]) -> te.Tensor:
    """A tensor, of which stages without a node yet are noted as those of ``name``."""
    left = [t.op]
    while left:
        op = left.pop()
        if op is not None and op not in origins:
            origins[op] = name
            left += [x.op for x in op.reads()]
    return t
