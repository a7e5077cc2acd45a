"""A small decoder in torch whose cache lies in buffers, and modules of such programs without tuning."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from needs import imported
from state_models import untuned

import autotune as at
from autotune.models.model import Model
from autotune.models.module import Module

torch = imported("torch")


@dataclass(frozen=True)
class Sizes:
    """Of a decoder. ``length``: positions of its cache."""

    hidden: int = 32
    inner: int = 48
    layers: int = 2
    heads: int = 4
    kv: int = 2
    words: int = 64
    length: int = 160


class Norm(torch.nn.Module):  # type: ignore[name-defined,misc]
    def __init__(self, n: int) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(n))

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.w


class Layer(torch.nn.Module):  # type: ignore[name-defined,misc]
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s, d = s, s.hidden // s.heads

        def linear(n: int, m: int) -> Any:
            return torch.nn.Linear(n, m, bias=False)

        self.n1, self.n2 = Norm(s.hidden), Norm(s.hidden)
        self.q, self.o = linear(s.hidden, s.hidden), linear(s.hidden, s.hidden)
        self.k, self.v = linear(s.hidden, s.kv * d), linear(s.hidden, s.kv * d)
        self.gate, self.up = linear(s.hidden, s.inner), linear(s.hidden, s.inner)
        self.down = linear(s.inner, s.hidden)
        self.register_buffer("keys", torch.zeros(s.kv, s.length, d))
        self.register_buffer("values", torch.zeros(s.kv, s.length, d))

    def forward(self, x: Any, place: Any, cos: Any, sin: Any) -> Any:
        s, n = self.s, x.shape[0]
        d, group = s.hidden // s.heads, s.heads // s.kv
        y = self.n1(x)
        q = _turned(self.q(y).view(n, s.heads, d).transpose(0, 1), cos, sin)
        self.keys.index_copy_(1, place, _turned(self.k(y).view(n, s.kv, d).transpose(0, 1), cos, sin))
        self.values.index_copy_(1, place, self.v(y).view(n, s.kv, d).transpose(0, 1))
        scores = (q.reshape(s.kv, group * n, d) @ self.keys.transpose(1, 2)) * (1.0 / math.sqrt(d))
        seen = torch.arange(s.length)[None, :] <= place[:, None]
        scores = scores.view(s.kv, group, n, s.length).masked_fill(~seen, float("-inf"))
        mixed = torch.softmax(scores.view(s.kv, group * n, s.length), -1) @ self.values
        x = x + self.o(mixed.view(s.heads, n, d).transpose(0, 1).reshape(n, s.hidden))
        y = self.n2(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Decoder(torch.nn.Module):  # type: ignore[name-defined,misc]
    """``decoder(ids, pos)``: logits of the last of some tokens, of which the first stands at ``pos``."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        self.words = torch.nn.Embedding(s.words, s.hidden)
        self.layers = torch.nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm, self.head = Norm(s.hidden), torch.nn.Linear(s.hidden, s.words, bias=False)
        d = s.hidden // s.heads
        angles = torch.arange(s.length).float()[:, None] * 10000.0 ** (-torch.arange(0, d, 2).float() / d)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: Any, pos: Any) -> Any:
        x = self.words(ids[0])
        place = pos + torch.arange(x.shape[0])
        cos, sin = self.cos[place], self.sin[place]
        for layer in self.layers:
            x = layer(x, place, cos, sin)
        return self.head(self.norm(x[-1:]))


def decoder(s: Sizes = Sizes(), seed: int = 0, scale: float = 0.3) -> Any:
    """A decoder with random weights of a deviation of ``scale``, whose tokens differ."""
    torch.manual_seed(seed)
    made = Decoder(s).eval().requires_grad_(False)
    for p in made.parameters():
        if p.dim() == 2:
            p.normal_(0, scale if p.shape[0] != s.words else 1.0)
    return made


def imported_of(module: Any, *example: Any, **how: Any) -> Model:
    """The model of a copy of a module, which keeps what its buffers are."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return at.import_torch(torch.export.export(copy.deepcopy(module), example, **how))


def step_of(module: Any, rows: int) -> Module:
    """The compiled program of a decoder for so many tokens."""
    ids = torch.zeros(1, rows, dtype=torch.int64)
    return untuned(imported_of(module, ids, torch.tensor([0])))


def greedy(run: Any, prompt: Sequence[int], n: int, parts: Sequence[int] = ()) -> list[int]:
    """The next ``n`` tokens after a prompt that is read in ``parts`` (numbers of tokens). ``run(ids, pos)``
    gives logits."""
    at_, todo, found = 0, list(prompt), list[int]()
    for size in [*(parts or [1]), *[1] * (n - 1)]:
        ids = torch.tensor([todo[:size]])
        logits = run(ids, torch.tensor([at_]))
        at_, todo = at_ + size, todo[size:]
        if not todo:
            found.append(int(logits[-1].argmax()))
            todo = [found[-1]]
    return found
