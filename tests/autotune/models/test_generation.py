"""Tokens of language models: the same whatever way a prompt is read, and a reason where there are none."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
import pytest
from needs import imported
from state_models import STATE_MODELS, untuned
from word_models import LENGTH, WORDS, greedy_after, logits_after, word_model, word_net

import autotune as at
from autotune.errors import ArgumentError, ModelError
from autotune.models import generation
from autotune.models.token_calls import TokenCalls

PROMPT = [5, 3, 2, 8, 9]


@pytest.mark.parametrize(("rows", "most"), [(1, 0), (1, 2), (1, 4), (1, 7)])
def test_tokens_are_the_same_in_whatever_pieces_a_prompt_is_read(rows: int, most: int) -> None:
    wanted = greedy_after(PROMPT, 8)
    assert len(set(wanted)) > 3, "tokens that differ"
    found = at.generate(word_net(rows, most), PROMPT, 8)
    assert found.dtype == np.int64 and found.tolist() == wanted


@pytest.mark.parametrize("prompt", [PROMPT, np.array(PROMPT, np.int32), np.array([PROMPT])])
@pytest.mark.parametrize(("shape", "places"), [("flat", 1), ("batch", 1), ("flat", 0)])
def test_inputs_are_of_whatever_shape_the_model_has(prompt: Any, shape: str, places: int) -> None:
    found = at.generate(word_net(1, 4, shape, places), prompt, 3)
    assert found.tolist() == greedy_after(PROMPT, 3)


def test_a_state_goes_on_where_it_was() -> None:
    net, calls = word_net(1, 4), []
    state = net.new_state()
    new = at.generate(net, PROMPT, 3, state=state).tolist()
    more = [*PROMPT, *new, 7]
    other, kept = state.copy(), state["kept"].copy()
    state["kept"][len(more) - 2 :] = np.nan  # what is behind the tokens that it has is not read
    found = at.generate(net, more, 3, state=state, position=len(more) - 2, choose=_noting(calls))
    assert found.tolist() == greedy_after(more, 3) and len(calls) == 3
    np.testing.assert_array_equal(state["kept"][: len(more) - 2], kept[: len(more) - 2])
    assert at.generate(net, more, 3, state=other).tolist() == found.tolist(), "position 0 is always right"
    assert at.generate(net, more[:3], 4, state=state, position=2).tolist() == greedy_after(more[:3], 4)
    assert at.generate(net, more, 2).tolist() == found.tolist()[:2]
    assert net.state["kept"][: len(more)].any(), "without a state, that of the module"


def _noting(calls: list[Any]) -> Any:
    def choose(logits: Any) -> int:
        calls.append(logits)
        return int(logits.argmax())

    return choose


def test_a_callback_is_given_logits_and_chooses() -> None:
    seen: list[Any] = []

    def least(logits: Any) -> Any:
        seen.append(logits.copy())
        logits[:] = 0  # it may change them
        return np.int32(seen[-1].argmin())

    found = at.generate(word_net(1, 4), PROMPT, 3, choose=least).tolist()
    for n, logits in enumerate(seen):
        assert logits.dtype == np.float32
        np.testing.assert_array_equal(logits, logits_after([*PROMPT, *found[:n]]))
    assert found == [int(x.argmin()) for x in seen]
    for wrong in (WORDS, -1):
        with pytest.raises(ArgumentError, match=f"choose returned: token {wrong} .*: give .* 0 to 10"):
            at.generate(word_net(1, 4), PROMPT, 3, choose=lambda logits, wrong=wrong: wrong)
    with pytest.raises(ArgumentError, match="choose returned a float32: return one integer"):
        at.generate(word_net(1, 4), PROMPT, 3, choose=lambda logits: logits.max() * 1.0 + 0.5)


def test_it_ends_with_a_token_of_stop() -> None:
    wanted = greedy_after(PROMPT, 8)
    stop = wanted[3]
    end = wanted.index(stop) + 1
    assert at.generate(word_net(1, 4), PROMPT, 8, stop={stop, WORDS + 5}).tolist() == wanted[:end]


def test_a_stream_computes_a_token_when_it_is_asked_for() -> None:
    net, calls = word_net(1, 4), []
    made = at.stream_tokens(net, PROMPT, choose=_noting(calls), state=net.new_state())
    assert calls == []
    assert [*islice(made, 2)] == greedy_after(PROMPT, 2) and len(calls) == 2
    rest = [*made]
    assert len(rest) + 2 == LENGTH - len(PROMPT) + 1, "to the end of the state"
    assert rest == greedy_after(PROMPT, len(rest) + 2)[2:]


def test_two_states_in_two_threads_are_each_as_alone() -> None:
    net = word_net(1, 4)
    prompts = [PROMPT, [1, 0, 7]]

    def made(prompt: list[int]) -> list[list[int]]:
        state = net.new_state()
        return [at.generate(net, prompt, 7, state=state).tolist() for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        for prompt, found in zip(prompts, pool.map(made, prompts), strict=True):
            assert found == [greedy_after(prompt, 7)] * 20


def test_an_interrupt_leaves_a_state_that_goes_on() -> None:
    net = word_net(1, 4)
    state, made = net.new_state(), []

    def interrupted(logits: Any) -> int:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(int(logits.argmax()))
        return made[-1]

    with pytest.raises(KeyboardInterrupt):
        at.generate(net, PROMPT, 6, choose=interrupted, state=state)
    found = at.generate(net, [*PROMPT, *made], 4, state=state, position=len(PROMPT))
    assert [*made, *found] == greedy_after(PROMPT, 6)


@pytest.mark.parametrize(
    ("tokens", "n", "how", "said"),
    [
        ([], 1, {}, "tokens is empty"),
        ([1.5], 1, {}, "tokens is float64"),
        ([[1], [2]], 1, {}, r"tokens is int64\[2, 1\]"),
        ([1, WORDS], 1, {}, "token 11 at place 1 is outside of the vocabulary of words, which has 11 tokens"),
        ([-1], 1, {}, "token -1 at place 0"),
        ([1], 0, {}, "n is 0: .* 1 at least"),
        ([1], -3, {}, "n is -3"),
        ([1] * 5, 9, {}, "5 tokens are given, and 9 to make; .* has room for 12, so that 8 can be made"),
        ([1] * 13, 1, {}, "13 tokens are given, and 1 to make; .* room for 12, so that 0 can be made"),
        ([1] * 3, 1, {"position": 3}, "position is 3, and 3 tokens are given: the state may have 0 to 2"),
        ([1] * 3, 1, {"position": -1}, "position is -1"),
        ([1], 1, {"state": {}}, "state is a dict"),
        ([[1], [1, 2]], 1, {}, "tokens is no sequence of integers"),
        (np.array([2**64 - 1], np.uint64), 1, {}, "token 18446744073709551615 at place 0"),
        ([1], 1, {"stop": 2}, "stop is 2: give a collection of the tokens"),
        ([1], 1, {"stop": "2"}, "stop is '2': give a collection of the tokens"),
        ([1], 1, {"choose": 3}, "choose is 3: give a function"),
    ],
)
def test_what_is_no_argument_is_refused_with_its_numbers(tokens: Any, n: int, how: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        at.stream_tokens(word_net(1, 4), tokens, n, **how)  # at once, not with the first token


def test_a_callback_that_chooses_two_tokens_is_refused() -> None:
    with pytest.raises(ArgumentError, match="choose returned a list: return one integer"):
        at.generate(word_net(1, 4), PROMPT, 2, choose=lambda logits: [1, 2])  # type: ignore[arg-type,return-value]


def test_as_many_as_there_is_room_for_are_made() -> None:
    assert len(at.generate(word_net(1, 4), [1] * 5, 8)) == 8
    assert len(at.generate(word_net(1, 4), [1] * LENGTH, 1)) == 1
    with pytest.raises(ArgumentError, match="13 tokens are given; .* room for 12, so that 0"):
        at.stream_tokens(word_net(1, 4), [1] * 13)


def test_what_is_not_compiled_is_refused() -> None:
    for net, said in ((word_model(), "net is a Model"), ("x.gguf", "net is a str")):
        with pytest.raises(
            ArgumentError, match=f"{said}, and takes a compiled model: give what .*load_model"
        ):
            at.generate(net, [1], 1)  # type: ignore[arg-type]


def test_a_state_of_another_model_is_refused() -> None:
    other = untuned_model("counter")
    with pytest.raises(ModelError, match="the state is of another model"):
        at.generate(word_net(1, 4), [1], 1, state=other.new_state())


def untuned_model(name: str) -> Any:
    from model_cases import model_of

    return untuned(model_of(STATE_MODELS[name](), name))


def test_what_is_no_language_model_is_refused_with_the_input() -> None:
    with pytest.raises(ModelError, match="counter has 0 inputs that may be the tokens, of in.x"):
        at.generate(untuned_model("counter"), [1], 1)
    with pytest.raises(ModelError, match=r"takes 3 tokens at least .* one after the other is made"):
        at.generate(word_net(3), [1, 2, 3], 1)
    with pytest.raises(ModelError, match="takes 2 tokens at least"):
        at.generate(word_net(2, 4), [1, 2, 3], 1)
    with pytest.raises(ModelError, match="words has no input 'ids'; its inputs are in.tokens, in.pos"):
        at.generate(word_net(1), [1], 1, tokens_input="ids")
    assert at.generate(word_net(1), [1], 2, tokens_input="in.tokens").tolist() == greedy_after([1], 2)


def test_logits_that_are_no_numbers_are_told() -> None:
    net = word_net(1, 4)
    state = net.new_state()
    state["kept"][0] = np.nan
    with pytest.raises(ModelError, match="words gives NaN for logits"):
        at.generate(net, [1, 2], 1, state=state, position=1)


def test_logits_are_found_in_whatever_a_call_returns() -> None:
    calls = TokenCalls(word_net(1))
    logits = np.arange(WORDS, dtype=np.float32)
    rows = np.stack([logits + 1, logits])[None]
    for made in (logits, rows, (np.zeros(3), rows), {"past": np.zeros((2, 3)), "logits": rows}):
        np.testing.assert_array_equal(calls._of(made), logits)
    half = calls._of(rows.astype(np.float16))
    assert half.dtype == np.float32 and half.shape == (WORDS,)


@pytest.mark.slow
def test_programs_of_torch_with_a_static_cache() -> None:
    torch = imported("torch")
    from state_models import static_cache

    module, how = static_cache()
    prompt, ids = [5, 9, 200, 31], []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of its own ways
        exported = torch.export.export(module, (), how, strict=True)
        net = untuned(at.import_torch(exported))
        todo = list(prompt)
        for place in range(len(prompt) + 9):
            out = module(input_ids=torch.tensor([[todo.pop(0)]]), cache_position=torch.tensor([place]))
            if not todo:
                ids.append(int(out[0, -1].argmax()))
                todo.append(ids[-1])
    assert generation.generate(net, prompt, 10).tolist() == ids
    assert generation.generate(net, prompt, 10).tolist() == ids, "its counters begin again"
    more = [*prompt, *ids[:3]]
    assert generation.generate(net, more, 5, position=5).tolist() == ids[3:8]
    with pytest.raises(ArgumentError, match="has room for 32"):
        generation.generate(net, prompt, 30)
