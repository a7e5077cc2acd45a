"""Tokens of a language model: a prompt is read in pieces, then one token is made after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ArgumentError, ModelError
from autotune.models.module import Module
from autotune.models.state import ModelState
from autotune.models.token_calls import TokenCalls

Choose = Callable[[NDArray[np.float32]], int]


def generate(
    net: Module,
    tokens: Sequence[int] | NDArray[np.integer[Any]],
    n: int,
    *,
    choose: Choose | None = None,
    stop: Collection[int] = (),
    state: ModelState | None = None,
    position: int = 0,
    tokens_input: str | None = None,
) -> NDArray[np.int64]:
    """The next ``n`` tokens of a language model after some, int64.

    ``net`` is a compiled model that keeps its keys and values (`Module.state`), takes tokens and their
    position, and returns logits: of `import_gguf`, or of `import_torch`. Tokens are numbers, as a tokenizer
    has them. They are read in pieces of as many as the model takes in a call. Then one is made after the
    other.

    - ``tokens``: the whole sequence so far, one at least.
    - ``n``: how many to make at most, from 1 on.
    - ``choose``: picks a token. It is given the logits, a float32 array of an element for each token of the
      vocabulary that it may change, and returns a number. None: the largest, the first of equal ones.
    - ``stop``: tokens after which it ends, such as that of the end of a text. The one that ended it is the
      last of the result.
    - ``state``: what to read and write (`Module.new_state`). None: ``net.state``.
    - ``position``: how many of ``tokens`` the state has already. They are not read again. 0 is always right.
      After a call, the state has all of its tokens but the last that was made.
    - ``tokens_input``: the name of the input that takes the tokens, where it cannot be told.

    Raises `ArgumentError` for tokens outside of the vocabulary, for an ``n`` that is 0 or for which the state
    has no room, and for a position that is none; `ModelError` for a module that is no language model, and for
    a state of another model. Ctrl-C ends it between two calls: the state has all tokens that were read.

    Example, which goes on after more tokens::

        new = at.generate(net, prompt, 20, stop={2})
        more = [*prompt, *new, *question]
        at.generate(net, more, 20, position=len(prompt) + len(new) - 1)
    """
    made = stream_tokens(
        net, tokens, n, choose=choose, stop=stop, state=state, position=position, tokens_input=tokens_input
    )
    return np.fromiter(made, np.int64)


def stream_tokens(
    net: Module,
    tokens: Sequence[int] | NDArray[np.integer[Any]],
    n: int | None = None,
    *,
    choose: Choose | None = None,
    stop: Collection[int] = (),
    state: ModelState | None = None,
    position: int = 0,
    tokens_input: str | None = None,
) -> Iterator[int]:
    """The tokens of `generate`, each when it is made: an iterator of integers.

    ``n=None``: until ``stop``, or the end of the state. The rest is as of `generate`; arguments are checked
    at once. The next token is computed when it is asked for, so that who stops asking has nothing to undo.

    Example: ``for token in at.stream_tokens(net, prompt, 100): print(decoded(token), end="", flush=True)``.
    """
    calls = TokenCalls(net, tokens_input)
    given = calls.check_tokens(tokens, "tokens")
    if not given.size:
        raise ArgumentError("tokens is empty: give one token at least, such as that of the begin of a text")
    if not isinstance(position, (int, np.integer)) or not 0 <= position < len(given):
        raise ArgumentError(
            f"position is {position}, and {len(given)} tokens are given: the state may have 0 to "
            f"{len(given) - 1} of them, as the last one is read to make the next: give such a number"
        )
    state = net.state if state is None else ModelState.of(state, net.program.kept, net.name, "state")
    n = room_for(n, len(given), calls.context, calls.name)
    if choose is not None and not callable(choose):
        raise ArgumentError(f"choose is {choose!r}: give a function that takes logits and returns a token")
    return _stream(calls, given, n, choose or _greedy(calls.name), _ends(stop), state, int(position))


def _ends(stop: Collection[int]) -> frozenset[int]:
    """The tokens of ``stop``. Raises ArgumentError for what are none."""
    try:
        return frozenset(index(t) for t in stop)
    except TypeError as err:
        raise ArgumentError(
            f"stop is {stop!r}: give a collection of the tokens after which it ends, such as {{2}}"
        ) from err


def room_for(n: int | None, given: int, context: int | None, name: str) -> int | None:
    """How many tokens to make at most, of ``n`` that are asked for; None: as many as one likes. ``context``:
    how many tokens the state of the model ``name`` has room for. Raises ArgumentError."""
    room = None if context is None else context - given + 1  # the last one made is not read
    if n is not None and (not isinstance(n, (int, np.integer)) or n < 1):
        raise ArgumentError(f"n is {n}: give the number of tokens to make, 1 at least")
    if room is not None and (room < 1 or (n is not None and n > room)):
        wanted = "" if n is None else f", and {n} to make"
        raise ArgumentError(
            f"{given} token{'s are' if given > 1 else ' is'} given{wanted}; the state of {name} has room for "
            f"{context}, so that {max(room, 0)} can be made: give fewer, or import the model with a larger "
            "context"
        )
    return room if n is None else int(n)


def _greedy(name: str) -> Choose:
    def largest(logits: NDArray[np.float32]) -> int:
        found = int(logits.argmax())
        if np.isnan(logits[found]):  # which argmax takes for the largest
            raise ModelError(f"{name} gives NaN for logits: weights, or rows of its state, are no numbers")
        return found

    return largest


def _picked(token: Any) -> int:
    """What ``choose`` returned. Raises ArgumentError for what is no integer."""
    try:
        return index(token)
    except TypeError:
        raise ArgumentError(
            f"choose returned a {type(token).__name__}: return one integer, the number of a token"
        ) from None


def _stream(
    calls: TokenCalls,
    tokens: NDArray[np.int64],
    n: int | None,
    choose: Choose,
    stop: frozenset[int],
    state: ModelState,
    position: int,
) -> Iterator[int]:
    calls.begin(state, position)
    todo, made = tokens[position:], 0
    while n is None or made < n:
        logits = calls.logits(todo, position, state)
        position += len(todo)
        todo = calls.check_tokens([_picked(choose(logits))], "what choose returned")
        made += 1
        yield int(todo[0])
        if int(todo[0]) in stop:
            return
