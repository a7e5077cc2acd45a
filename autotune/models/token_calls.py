"""`TokenCalls`: calls of a module that is a language model, by tokens and their position.

Which input is what follows from the model: a position is an input of which a call computes where rows of a
state lie; tokens are the other input of integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ArgumentError, ModelError
from autotune.models.module import Module
from autotune.models.state import ModelState
from schedules import expr as E
from schedules.dtypes import DTYPES, is_float
from schedules.te.compute_dag import Tensor

Array = NDArray[Any]


class TokenCalls:
    """Calls of ``net``, which has one input of tokens, others of positions, and logits among its outputs.

    ``rows``: the most tokens of a call. ``vocabulary``: how many tokens there are. ``context``: how many
    tokens a state has room for; None where a state has no rows. ``name``: of the model. Raises `ModelError`
    for a module that is none: it names the input. Raises `ArgumentError` for what is no module.
    """

    def __init__(self, net: Module, tokens: str | None = None) -> None:
        """``tokens``: the name of the input of tokens; None finds it."""
        if not isinstance(net, Module):
            raise ArgumentError(
                f"net is a {type(net).__name__}, and takes a compiled model: give what "
                "autotune.compile_model or autotune.load_model returns"
            )
        self.net, self.name = net, net.name
        ol, moves = net.program.outline, net.program.told.moves
        told = {x.buffer for m in moves for x in E.loads(m.index)}
        places = {ol.label(n) for n in ol.inputs if n in told}
        self._counters = [n for n, s in ol.states.items() if s.tensor in told]
        most = [m.extent for m in moves] or [n.most for n in ol.counts]
        self.context = min(most, default=None)
        self._ins = net.inputs
        self._tokens = self._token_input(tokens, places)
        shape = self._ins[self._tokens].shape
        self._leading = shape[:-1]
        sized = [s for s in ol.sizes if ol.label(s.source.input) == self._ins[self._tokens].name]
        self.rows = int(shape[-1]) if shape else 1
        self._check_inputs([s.source.extent(s.least) for s in sized] or [self.rows])
        logits = [t for t in net.outputs if is_float(t.dtype) and t.shape]
        if not logits:
            raise ModelError(f"{self.name} returns no logits: a language model returns floats of each token")
        self.vocabulary = max(int(t.shape[-1]) for t in logits)

    def _token_input(self, name: str | None, places: set[str]) -> int:
        """Which input has the tokens."""
        names = [t.name for t in self._ins]
        if name is not None:
            if name not in names:
                raise ModelError(f"{self.name} has no input {name!r}; its inputs are {', '.join(names)}")
            return names.index(name)
        whole = [t.name for t in self._ins if t.dtype in ("int32", "int64") and t.name not in places]
        found = whole if len(whole) < 2 else [n for n in whole if "pos" not in n.lower()]
        if len(found) != 1:
            raise ModelError(
                f"{self.name} has {len(found)} inputs that may be the tokens, of {', '.join(names)}: name "
                f'the one that is, such as tokens_input="{(found or names or ["tokens"])[0]}"'
            )
        return names.index(found[0])

    def _check_inputs(self, least: Sequence[int]) -> None:
        """Raise `ModelError` for inputs that are neither tokens nor positions, and for a module that does not
        take one token. ``least``: of rows."""
        for t in self._ins:
            shown = f"input {t.name!r} of {self.name} is {t.dtype}{list(t.shape)}"
            if t.dtype not in ("int32", "int64") or _elements(t) not in (1, self.rows):
                raise ModelError(
                    f"{shown}, which is neither tokens nor their position: compile a model that takes these "
                    "alone, or call the module itself"
                )
            if _elements(t) != (t.shape[-1] if t.shape else 1):
                raise ModelError(f"{shown}: a sequence is one row of tokens; export it for a batch of 1")
        if min(least) > 1:
            raise ModelError(
                f"{self.name} takes {min(least)} tokens at least in a call, and one after the other is made: "
                "compile the model for 1 token, or for a range from 1 on"
            )

    def begin(self, state: ModelState, position: int) -> None:
        """Set what a state counts of itself, as transformers' StaticCache does, to a position."""
        with state.turn:
            for name in self._counters:
                state[name][...] = position

    def logits(self, tokens: Array, position: int, state: ModelState) -> Array:
        """Read tokens, of which the first stands at ``position``. Returns the logits of the next one, as
        float32, in an array of their own. Raises ArgumentError for rows outside of the state."""
        found: Array | None = None
        for begin in range(0, len(tokens), self.rows):
            part = tokens[begin : begin + self.rows]
            made = self.net(*self.inputs(part, position + begin), state=state)
            found = self._of(made)
        assert found is not None
        return found

    def inputs(self, tokens: Array, position: int) -> Iterator[Array]:
        """The inputs of one call, in order."""
        n = len(tokens)
        for i, t in enumerate(self._ins):
            dtype = DTYPES[t.dtype].numpy
            if i == self._tokens:
                yield tokens.astype(dtype).reshape((*self._leading, n) if t.shape else ())
            elif t.shape and t.shape[-1] == self.rows > 1:
                yield np.arange(position, position + n, dtype=dtype).reshape(*t.shape[:-1], n)
            else:
                yield np.full(t.shape, position, dtype)

    def _of(self, made: Any) -> Array:
        """The logits of the last token, in what a call returned."""
        for x in _leaves(made):
            if x.ndim and x.shape[-1] == self.vocabulary:
                last = x.reshape(-1, self.vocabulary)[-1]
                return np.array(last, np.float32) if last.dtype != np.float32 or x.size > last.size else last
        raise ModelError(f"{self.name} returned no logits of {self.vocabulary} tokens")

    def check_tokens(self, tokens: Any, what: str) -> Array:
        """`known_tokens` of this model."""
        return known_tokens(tokens, what, self.vocabulary, self.name)


def known_tokens(tokens: Any, what: str, vocabulary: int, name: str) -> Array:
    """Tokens as int64. ``vocabulary``: how many tokens the model ``name`` has. Raises ArgumentError for what
    are no tokens, or are outside of the vocabulary."""
    try:
        found = np.asarray(tokens)
    except ValueError as err:  # rows of different lengths
        raise ArgumentError(f"{what} is no sequence of integers: give the numbers of tokens") from err
    if found.ndim == 2 and found.shape[0] == 1:
        found = found[0]
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ArgumentError(
            f"{what} is {found.dtype}{list(found.shape)}: give one sequence of integers, the numbers of "
            "tokens as the tokenizer has them"
        )
    outside = np.flatnonzero((found < 0) | (found >= vocabulary))
    if outside.size:
        at = int(outside[0])
        raise ArgumentError(
            f"{what}: token {found[at]} at place {at} is outside of the vocabulary of {name}, which has "
            f"{vocabulary} tokens: give numbers from 0 to {vocabulary - 1}"
        )
    return found.astype(np.int64)


def _elements(t: Tensor) -> int:
    return int(np.prod(t.shape, dtype=np.int64))


def _leaves(made: Any) -> Iterator[Any]:
    """The arrays in what a call returned, which may be containers in each other."""
    if isinstance(made, Mapping):
        made = list(made.values())
    elif is_dataclass(made) and not isinstance(made, type):
        made = list(vars(made).values())
    if isinstance(made, (tuple, list)):
        for x in made:
            yield from _leaves(x)
    elif isinstance(made, np.ndarray):
        yield made
