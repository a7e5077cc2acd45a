"""A decoder of language: layers of attention over a cache and of a gated product, as tensor expressions.

What llama and qwen2 have in common: norms by the root of the mean square (B. Zhang and R. Sennrich, 2019),
positions as rotations of pairs (J. Su et al., *RoFormer*, 2021), fewer heads of keys than of queries
(J. Ainslie et al., *GQA*, 2023), a product gated by SiLU (N. Shazeer, *GLU variants*, 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.models.operators.base import stage
from autotune.models.operators.normalization import softmax
from schedules import te
from schedules.expr import Expr, ExprLike

# What a table or a product makes of a tensor: rows for tokens, or x · weightsᵀ of (rows, depth).
Maker = Callable[[te.Tensor], te.Tensor]
# Tells which node of the model a tensor is from, and gives it back.
Note = Callable[[te.Tensor, str], te.Tensor]


@dataclass(frozen=True)
class DecoderLayer:
    """The weights of a layer. Norms are vectors of ``hidden`` numbers."""

    attention_norm: te.Tensor
    q: Maker
    k: Maker
    v: Maker
    o: Maker
    gate_norm: te.Tensor
    gate: Maker
    up: Maker
    down: Maker


@dataclass(frozen=True)
class Decoder:
    """``heads`` of queries read ``kv_heads`` of keys and values, with ``head`` and ``value`` numbers each.
    ``eps``: what norms add to the mean square. ``cos``, ``sin``: (places, pairs), of the rotations. Number
    ``d`` of a head is rotated with number ``d + pairs``; numbers from ``2 * pairs`` on are not."""

    heads: int
    kv_heads: int
    head: int
    value: int
    eps: float
    embedding: Maker
    layers: Sequence[DecoderLayer]
    norm: te.Tensor
    output: Maker
    cos: te.Tensor
    sin: te.Tensor


@dataclass(frozen=True)
class Cache:
    """Keys and values of earlier tokens of a layer: (context, kv_heads, numbers of a head)."""

    keys: te.Tensor
    values: te.Tensor


def decode(
    of: Decoder, tokens: te.Tensor, position: te.Tensor, caches: Sequence[Cache], note: Note
) -> tuple[te.Tensor, list[Cache]]:
    """(the logits after the last of the tokens, the caches with their rows). ``tokens``: (rows,), the first
    of which is at ``position``, a tensor without axes."""
    x = note(of.embedding(tokens), "token_embd")
    made = []
    for n, (layer, cache) in enumerate(zip(of.layers, caches, strict=True)):
        rows = tokens.shape[0]
        y = _normed(x, layer.attention_norm, of.eps)
        k = _rotated(of, layer.k(y), of.kv_heads, position)
        v = _heads(layer.v(y), of.kv_heads)
        new = Cache(_written(cache.keys, k, position), _written(cache.values, v, position))
        made.append(new)
        first = 0
        if n + 1 == len(of.layers):  # of the last layer only the last row is asked for
            x, y, first = _last(x), _last(y), rows - 1
        q = _rotated(of, layer.q(y), of.heads, position, first)
        x = _sum(x, layer.o(_attended(of, q, new, position, first)))
        x = note(x, f"blk.{n}.attention")
        y = _normed(x, layer.gate_norm, of.eps)
        gated = _map(lambda a, b: a * te.sigmoid(a) * b, layer.gate(y), layer.up(y), "gated")
        x = note(_sum(x, layer.down(gated)), f"blk.{n}.feed_forward")
    logits = of.output(_normed(x, of.norm, of.eps))
    return note(stage((logits.shape[1],), lambda i: logits[0, i], "logits"), "output"), made


def _normed(x: te.Tensor, w: te.Tensor, eps: float) -> te.Tensor:
    """Rows over the root of the mean of their squares, times ``w``."""
    rows, n = x.shape
    k = te.reduce_axis(n, "k")
    squares = te.compute((rows,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), "squares")
    scale = te.compute((rows,), lambda i: te.rsqrt(squares[i] * (1.0 / n) + eps), "inverse_root")
    return stage(x.shape, lambda i, j: x[i, j] * scale[i] * te.cast(w[j], "float32"), "normed")


def _sum(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    return _map(lambda p, q: p + q, a, b, "residual")


def _map(value: Callable[[Expr, Expr], Expr], a: te.Tensor, b: te.Tensor, name: str) -> te.Tensor:
    return stage(a.shape, lambda *at: value(a[at], b[at]), name)


def _last(x: te.Tensor) -> te.Tensor:
    """The last row."""
    rows = x.shape[0]
    return stage((1, *x.shape[1:]), lambda i, *at: x[(rows - 1 + i, *at)], "last")


def _heads(x: te.Tensor, heads: int) -> te.Tensor:
    size = x.shape[1] // heads
    return stage((x.shape[0], heads, size), lambda i, h, d: x[i, h * size + d], "heads")


def _rotated(of: Decoder, x: te.Tensor, heads: int, position: te.Tensor, first: ExprLike = 0) -> te.Tensor:
    """Heads of rows whose pairs are rotated by their place. ``first``: the number of the first row among the
    rows of the call."""
    pairs = of.cos.shape[1]

    def value(i: Expr, h: Expr, d: Expr) -> Expr:
        place = position[()] + te.cast(i + first, "int64")

        def turned(a: Expr, b: Expr, pair: Expr, sign: int) -> Expr:
            cos, sin = of.cos[place, pair], of.sin[place, pair]
            return x[i, h * of.head + a] * cos + sign * x[i, h * of.head + b] * sin

        low, high = turned(d, d + pairs, d, -1), turned(d, d - pairs, d - pairs, 1)
        both = te.select(d < pairs, low, high)
        return te.select(d < 2 * pairs, both, x[i, h * of.head + d]) if 2 * pairs < of.head else both

    return stage((x.shape[0], heads, of.head), value, "rotated")


def _written(old: te.Tensor, rows: te.Tensor, position: te.Tensor) -> te.Tensor:
    """A cache with rows from a position on."""
    n = rows.shape[0]

    def value(t: Expr, h: Expr, d: Expr) -> Expr:
        own = te.cast(t, "int64") - position[()]
        inside = te.all(0 <= own, own < te.cast(n, "int64"))
        return te.select(inside, te.cast(rows[own, h, d], old.dtype), old[t, h, d])

    return stage(old.shape, value, "cache")


def _attended(of: Decoder, q: te.Tensor, cache: Cache, position: te.Tensor, first: ExprLike) -> te.Tensor:
    """softmax(q · keysᵀ / √head) · values (A. Vaswani et al., 2017), over rows up to the place of a query."""
    rows, context, group = q.shape[0], cache.keys.shape[0], of.heads // of.kv_heads
    d, t = te.reduce_axis(of.head, "d"), te.reduce_axis(context, "t")
    every = (of.kv_heads, group, rows, context)

    def dot(h: Expr, g: Expr, i: Expr, t: Expr) -> te.Reduction:
        return te.sum(q[i, h * group + g, d] * te.cast(cache.keys[t, h, d], "float32"), axis=d)

    dots = stage(every, dot, "dot")
    scale = 1.0 / math.sqrt(of.head)

    def score(h: Expr, g: Expr, i: Expr, t: Expr) -> Expr:
        seen = te.cast(t, "int64") <= position[()] + te.cast(i + first, "int64")
        return te.select(seen, dots[h, g, i, t] * scale, -te.inf)

    weights = softmax(stage(every, score, "scores"), 3)

    def mixed(h: Expr, g: Expr, i: Expr, d: Expr) -> te.Reduction:
        return te.sum(weights[h, g, i, t] * te.cast(cache.values[t, h, d], "float32"), axis=t)

    sums = stage((*every[:3], of.value), mixed, "mixed")

    def joined(i: Expr, j: Expr) -> Expr:
        head = j // of.value
        at = (head // group, head % group, i)
        return sums[(*at, j % of.value)]

    return stage((rows, of.heads * of.value), joined, "attended")
