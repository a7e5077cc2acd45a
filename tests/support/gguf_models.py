"""Small language models of random weights as GGUF files, and what they compute, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from needs import imported

gguf = imported("gguf")


@dataclass(frozen=True)
class Sizes:
    """Of a small decoder. ``tied``: the table of embeddings is the last product too. ``neighbours``: pairs
    that rotate are neighbours in the file."""

    hidden: int = 64
    feed_forward: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    vocabulary: int = 48
    bias: bool = False
    tied: bool = False
    neighbours: bool = True
    divisors: bool = False
    base: float = 10000.0
    context: int = 64

    @property
    def head(self) -> int:
        return self.hidden // self.heads


LLAMA = Sizes()
QWEN2 = Sizes(bias=True, tied=True, neighbours=False, base=1e6)


def weights(of: Sizes, seed: int = 0) -> dict[str, Any]:
    """{name of a tensor of a file: float32}, with rows of q and k as they are computed with: pairs are half a
    head apart."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int, around: float = 0.0, by: float = 0.15) -> Any:
        return (around + by * rng.standard_normal(shape)).astype(np.float32)

    h, q, kv = of.hidden, of.heads * of.head, of.kv_heads * of.head
    found = {
        "token_embd.weight": drawn(of.vocabulary, h, by=1.0),
        "output_norm.weight": drawn(h, around=1.0),
    }
    if not of.tied:
        found["output.weight"] = drawn(of.vocabulary, h)
    if of.divisors:
        found["rope_freqs.weight"] = np.linspace(1, 4, of.head // 2).astype(np.float32)
    for i in range(of.layers):
        shapes = {
            "attn_q": (q, h), "attn_k": (kv, h), "attn_v": (kv, h), "attn_output": (h, q),
            "ffn_gate": (of.feed_forward, h), "ffn_up": (of.feed_forward, h),
            "ffn_down": (h, of.feed_forward),
        }  # fmt: skip
        for name, shape in shapes.items():
            found[f"blk.{i}.{name}.weight"] = drawn(*shape)
            if of.bias and name in ("attn_q", "attn_k", "attn_v"):
                found[f"blk.{i}.{name}.bias"] = drawn(shape[0])
        for name in ("attn_norm", "ffn_norm"):
            found[f"blk.{i}.{name}.weight"] = drawn(h, around=1.0)
    return found


def write(
    path: Path,
    of: Sizes,
    tensors: Mapping[str, Any] | None = None,
    kind: str | Callable[[str], str] = "F32",
    architecture: str = "",
    keys: Mapping[str, Any] | None = None,
    whole_keys: Mapping[str, int] | None = None,
    alignment: int = 0,
) -> Path:
    """A file of a model. ``kind``: the type of its matrices, or of that of a name. ``keys``: more of them, or
    others. ``whole_keys``: more, by their whole names."""
    arch = architecture or ("llama" if of.neighbours else "qwen2")
    w = gguf.GGUFWriter(path, arch)
    if alignment:
        w.add_custom_alignment(alignment)
    sizes = {
        "context_length": of.context, "embedding_length": of.hidden, "block_count": of.layers,
        "feed_forward_length": of.feed_forward, "attention.head_count": of.heads,
        "attention.head_count_kv": of.kv_heads,
    }  # fmt: skip
    numbers = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": of.base}
    for name, value in {**sizes, **numbers, **(keys or {})}.items():
        if isinstance(value, str):
            w.add_string(f"{arch}.{name}", value)
        else:
            (w.add_float32 if isinstance(value, float) else w.add_uint32)(f"{arch}.{name}", value)
    for name, number in (whole_keys or {}).items():
        w.add_uint32(name, number)
    w.add_array("tokenizer.ggml.tokens", [f"word {n}" for n in range(of.vocabulary)])
    for name, a in (weights(of) if tensors is None else tensors).items():
        x = neighbours(of, name, a) if of.neighbours else a
        own = kind if isinstance(kind, str) else kind(name)
        if x.ndim == 1 or own == "F32":
            w.add_tensor(name, np.ascontiguousarray(x))
        else:
            type_ = gguf.GGMLQuantizationType[own]
            w.add_tensor(name, coded(np.ascontiguousarray(x), own), raw_dtype=type_)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


# {type that the package does not write: (where blocks have floats of 16 bits, what they are for numbers that
# deviate by about 1)}
RANDOM = {"Q4_K": ((0, 2), (0.006, 0.045)), "Q5_K": ((0, 2), (0.003, 0.045)), "Q6_K": ((208,), (0.0007,))}


def coded(x: Any, kind: str) -> Any:
    """A matrix as blocks of a type: rounded, or random ones that deviate as it does, where the package gguf
    does not write the type."""
    if kind not in RANDOM:
        return gguf.quants.quantize(x, gguf.GGMLQuantizationType[kind])
    blocks = random_blocks(kind, (len(x), x.shape[1] // 256), np.random.default_rng(x.size), x.std())
    return blocks.reshape(len(x), -1)


def random_blocks(kind: str, shape: Sequence[int], rng: np.random.Generator, deviation: float = 1.0) -> Any:
    """Blocks (…, bytes of one) of any bits, but for scales that are numbers."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    blocks = rng.integers(0, 256, (*shape, size), dtype=np.uint8)
    places, scales = RANDOM.get(kind, ((0, 2) if kind in ("Q4_1", "Q5_1") else (0,), (0.1, 0.1)))
    for place, scale in zip(places, scales, strict=False):
        d = (scale * deviation * rng.uniform(0.5, 1.5, (*shape, 1))).astype(np.float16)
        blocks[..., place : place + 2] = d.view(np.uint8)
    return blocks


def neighbours(of: Sizes, name: str, a: Any) -> Any:
    """Rows of q and k as llama.cpp's converter puts them: what was half a head apart is side by side."""
    heads = of.heads if ".attn_q." in name else of.kv_heads if ".attn_k." in name else 0
    return a.reshape(heads, 2, of.head // 2, -1).swapaxes(1, 2).reshape(a.shape) if heads else a


def rounded(of: Sizes, path: Path) -> dict[str, Any]:
    """The weights of a file in float64, as the package gguf reads them, with rows of q and k put back."""
    found = {}
    for t in gguf.GGUFReader(path).tensors:
        a = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)
        heads = of.heads if ".attn_q." in t.name else of.kv_heads if ".attn_k." in t.name else 0
        if heads and of.neighbours:
            a = a.reshape(heads, of.head // 2, 2, -1).swapaxes(1, 2).reshape(a.shape)
        found[t.name] = a
    return found


def logits(of: Sizes, w: Mapping[str, Any], tokens: Sequence[int], factor: float = 1.0) -> Any:
    """(tokens, vocabulary): the logits after each token, in float64."""
    half, group = of.head // 2, of.heads // of.kv_heads
    speed = of.base ** (-np.arange(0, of.head, 2) / of.head) / factor / w.get("rope_freqs.weight", 1.0)
    angle = np.arange(len(tokens))[:, None, None] * speed

    def normed(x: Any, name: str) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[name]

    def made(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def rotated(x: Any) -> Any:
        a, b = x[..., :half], x[..., half:]
        return np.concatenate(
            [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1
        )

    x = np.asarray(w["token_embd.weight"], np.float64)[list(tokens)]
    hidden = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for i in range(of.layers):
        at = f"blk.{i}."
        y = normed(x, f"{at}attn_norm.weight")
        q, k, v = (made(y, f"{at}attn_{n}").reshape(len(tokens), -1, of.head) for n in "qkv")
        q, k, v = rotated(q), np.repeat(rotated(k), group, 1), np.repeat(v, group, 1)
        s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(of.head) + hidden
        e = np.exp(s - s.max(-1, keepdims=True))
        o = np.einsum("hij,jhd->ihd", e / e.sum(-1, keepdims=True), v).reshape(len(tokens), -1)
        x = x + made(o, f"{at}attn_output")
        y = normed(x, f"{at}ffn_norm.weight")
        gate = made(y, f"{at}ffn_gate")
        x = x + made(gate / (1 + np.exp(-gate)) * made(y, f"{at}ffn_up"), f"{at}ffn_down")
    last = w["token_embd.weight" if of.tied else "output.weight"]
    return normed(x, "output_norm.weight") @ last.T
