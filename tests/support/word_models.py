"""A language model small enough to be computed by hand: its logits are a product of a sum over all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import graph_cases as cases
import numpy as np
from model_cases import model_of
from state_models import StateBuilder, put, untuned

import autotune as at
from autotune.models.model import Model
from autotune.models.module import Module
from schedules.te.extent import Extent

te = at.te
WORDS, WIDTH, LENGTH = 11, 4, 12


def word_model(rows: Any = 1, shape: str = "flat", places: int = 1) -> Model:
    """``net(tokens, pos)``: logits after ``rows`` tokens (a number, or an `at.dim`), of which the first
    stands at ``pos``. ``shape``: of the tokens, "flat" or "batch". ``places``: elements of ``pos``; 0 is a
    scalar."""
    b = StateBuilder(15)
    n = rows if isinstance(rows, int) else Extent(rows)
    tokens = b.input("tokens", *((1, n) if shape == "batch" else (n,)), dtype="int64")
    pos = b.input("pos", *((places,) if places else ()), dtype="int64")
    first = pos[0] if places else pos[()]
    words = b.constant("words", WORDS, WIDTH, least=-3, most=3)
    out = b.constant("out", WORDS, WIDTH, least=-3, most=3)
    old = b.state("kept", LENGTH, WIDTH)
    found = cases.stage((n, WIDTH), lambda s, j: words[tokens[(0, s) if shape == "batch" else s], j], "found")
    new = put(old, found, first, 0)
    b.becomes("kept", new)
    t = te.reduce_axis(LENGTH, "t")
    seen = te.cast(t, "int64") < first + n
    weight = te.cast(t * 2 % 7, "float32")
    total = te.compute((WIDTH,), lambda j: te.sum(te.select(seen, new[t, j] * weight, 0.0), axis=t), "total")
    k = te.reduce_axis(WIDTH, "k")
    logits = te.compute((WORDS,), lambda v: te.sum(total[k] * out[v, k], axis=k), "logits")
    return model_of(b.model(logits), "words")


@cache
def word_net(rows: int = 1, most: int = 0, shape: str = "flat", places: int = 1) -> Module:
    """The compiled model for so many tokens, or for a range up to ``most``."""
    return untuned(word_model(at.dim(rows, most, "rows") if most else rows, shape, places))


def logits_after(tokens: Sequence[int]) -> Any:
    """What the model gives after tokens, by numpy."""
    values = word_model().graph.values
    weight = (np.arange(len(tokens)) * 2 % 7)[:, None]
    return values["out"] @ (values["words"][np.asarray(tokens)] * weight).sum(0)


def greedy_after(tokens: Sequence[int], n: int) -> list[int]:
    """The next tokens, by numpy."""
    found = list(tokens)
    for _ in range(n):
        found.append(int(logits_after(found).argmax()))
    return found[len(tokens) :]
