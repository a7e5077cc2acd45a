"""Programs of torch that write to buffers: what they keep, alone and from several programs, and what is
refused."""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from needs import imported

torch = imported("torch")

from decoders import Sizes, decoder, greedy, imported_of, step_of  # noqa: E402
from state_models import static_cache, untuned  # noqa: E402

import autotune as at  # noqa: E402
from autotune.errors import ArgumentError, ModelError  # noqa: E402
from autotune.models.module import Module  # noqa: E402

N = 64
PROMPT = [(7 * i * i + 3 * i) % 64 for i in range(64)]


@pytest.fixture(scope="module")
def module() -> Any:
    return decoder()


@pytest.fixture(scope="module")
def nets(module: Any) -> dict[int, Module]:
    """The decoder for one token, and for parts of a prompt."""
    return {n: step_of(module, n) for n in (1, 27, 37, 64)}


@pytest.fixture(scope="module")
def wanted(module: Any) -> tuple[list[int], list[int]]:
    """The tokens of torch, from nothing and after the prompt."""
    fresh = greedy(copy.deepcopy(module), [5], N)
    return fresh, greedy(copy.deepcopy(module), PROMPT, N, [64])


def running(nets: dict[int, Module], state: Any) -> Any:
    """What runs the program for so many tokens as it is given."""
    return lambda ids, pos: nets[ids.shape[1]](ids, pos, state=state)


@pytest.mark.slow
def test_the_same_tokens_as_torch_from_an_empty_state(nets: Any, wanted: Any) -> None:
    assert len(set(wanted[0])) > 8, "tokens that differ"
    assert greedy(running(nets, nets[1].new_state()), [5], N) == wanted[0]
    nets[1].state.reset()
    assert greedy(lambda ids, pos: nets[1](ids, pos), [5], N) == wanted[0]


@pytest.mark.slow
@pytest.mark.parametrize("parts", [[64], [37, 27], [1] * 64], ids=["one", "two", "each"])
def test_several_programs_read_a_prompt_into_one_state(nets: Any, wanted: Any, parts: list[int]) -> None:
    assert greedy(running(nets, nets[64].new_state()), PROMPT, N, parts) == wanted[1]


@pytest.mark.slow
def test_a_state_goes_on_from_an_earlier_row(nets: Any, wanted: Any) -> None:
    state = nets[1].new_state()
    greedy(running(nets, state), PROMPT, N, [64])
    for name in state:
        state[name][:, 37 + 27 :] = 99.0  # what comes after is of no account
    again = [int(nets[27](torch.tensor([PROMPT[37:]]), torch.tensor([37]), state=state)[-1].argmax())]
    for i in range(N - 1):
        logits = nets[1](torch.tensor([again[-1:]]), torch.tensor([64 + i]), state=state)
        again.append(int(logits[-1].argmax()))
    assert again == wanted[1]


@pytest.mark.slow
def test_two_states_in_two_threads_are_each_as_alone(nets: Any, wanted: Any) -> None:
    states = [nets[1].new_state() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(greedy, running(nets, states[0]), [5], N)
        second = pool.submit(greedy, running(nets, states[1]), PROMPT, N, [64])
        assert (first.result(), second.result()) == wanted


@pytest.mark.slow
def test_no_call_takes_more_memory(nets: Any) -> None:
    net, state = nets[1], nets[1].new_state()
    arrays = {n: a.ctypes.data for n, a in state.items()}

    def held() -> tuple[int, int]:
        return len(net.program._idle), state.nbytes

    ids = torch.tensor([[5]])
    net(ids, torch.tensor([0]), state=state)
    before = held()
    for i in range(1000):
        net(ids, torch.tensor([i % 160]), state=state)
    assert held() == before
    assert {n: a.ctypes.data for n, a in state.items()} == arrays


# -- small programs --------------------------------------------------------------------------------


class Cache(torch.nn.Module):  # type: ignore[name-defined,misc]
    """Rows that are written ``how``, and their sums."""

    def __init__(self, how: str, rows: int = 2) -> None:
        super().__init__()
        self.how, self.rows = how, rows
        self.register_buffer("kept", torch.arange(24.0).reshape(8, 3))
        self.register_buffer("count", torch.tensor(0), persistent=False)

    def forward(self, x: Any, pos: Any) -> Any:
        n, places = x.shape[0], pos + torch.arange(x.shape[0])
        match self.how:
            case "index_copy":
                self.kept.index_copy_(0, places, x)
            case "index_put":
                self.kept[places] = x
            case "index_put by a counter":
                self.kept[self.count + torch.arange(n)] = x
                self.count += n
            case "slice":
                self.kept[2 : 2 + n] = x
            case "copy of a slice":
                self.kept[:, :2].copy_(x[:, :2].sum() + self.kept[:, :2])
            case "where":
                here = torch.arange(8)[:, None] == pos
                self.kept.copy_(torch.where(here, x[:1], self.kept))
            case "scatter":
                self.kept.scatter_(0, places[:, None].expand(n, 3), x)
            case "whole":
                self.kept.copy_(self.kept * 2 + x.sum())
            case "twice":
                self.kept.index_copy_(0, places, x)
                self.kept.index_copy_(0, pos + 3 + torch.arange(n), x * 2)
            case "before":
                old = self.kept.sum(0)
                self.kept.index_copy_(0, places, x)
                return old + self.kept.sum(0) * 2
        return self.kept.sum(0), self.count + 1


IN_PLACE = ["index_copy", "index_put", "index_put by a counter", "slice", "copy of a slice", "where"]
IN_PLACE += ["scatter", "twice", "before"]
WAYS = [*IN_PLACE, "whole"]


@pytest.mark.parametrize("how", WAYS)
def test_buffers_are_written_as_torch_does(how: str) -> None:
    module = Cache(how)
    net = untuned(imported_of(module, torch.zeros(2, 3), torch.tensor([0])))
    assert ("kept" in {net.program.outline.root(s.new) for s in net.program.outline.states.values()}) == (
        how in IN_PLACE
    )
    np.testing.assert_array_equal(net.state["kept"], module.kept.numpy())
    for n in range(3):
        x = torch.arange(6.0).reshape(2, 3) + n
        pos = torch.tensor([(3 * n) % 4])
        for a, b in zip(module(x, pos), net(x, pos), strict=True):
            np.testing.assert_array_equal(b.numpy(), a.numpy())
        np.testing.assert_array_equal(net.state["kept"], module.kept.numpy())
    net.state.reset()
    np.testing.assert_array_equal(net.state["kept"], np.arange(24.0).reshape(8, 3))


def test_a_view_of_torch_has_the_memory_of_a_state() -> None:
    net = untuned(imported_of(Cache("index_copy"), torch.zeros(2, 3), torch.tensor([0])))
    view = torch.from_numpy(net.state["kept"])
    net(torch.full((2, 3), 7.0), torch.tensor([6]))
    assert (view[6:] == 7).all() and (view[:6] != 7).any()
    view[0] = 50.0
    assert net(torch.full((2, 3), 7.0), torch.tensor([6]))[0][0] >= 50


@pytest.mark.soak
def test_a_decoder_of_eight_layers_makes_the_tokens_of_torch() -> None:
    """1,024 wide, with grouped queries; the prompt is read by another program than the one of one token."""
    module = decoder(Sizes(1024, 2816, 8, 16, 4, 4000, 192), scale=0.03)
    nets = {n: step_of(module, n) for n in (1, 64)}
    prompt = [(37 * i * i + 11 * i) % 4000 for i in range(64)]
    wanted = greedy(copy.deepcopy(module), [5], N), greedy(copy.deepcopy(module), prompt, N, [64])
    assert len(set(wanted[0])) > 8, "tokens that differ"
    assert greedy(running(nets, nets[1].new_state()), [5], N) == wanted[0]
    assert greedy(running(nets, nets[1].new_state()), prompt, N, [64]) == wanted[1]


# -- what else programs write to -------------------------------------------------------------------


class Given(torch.nn.Module):  # type: ignore[name-defined,misc]
    """Writes to a cache that it is given, in a dict."""

    def forward(self, x: Any, given: Any, pos: Any) -> Any:
        given["cache"].index_copy_(0, pos + torch.arange(x.shape[0]), x)
        return given["cache"].sum(0)


def test_an_input_that_is_written_is_kept_and_left_out_of_calls() -> None:
    model = imported_of(Given(), torch.zeros(2, 3), {"cache": torch.zeros(8, 3)}, torch.tensor([0]))
    assert [p.name for p in model.inputs] == ["x", "pos"] and len(model.graph.states) == 1
    net, cache, module = untuned(model), torch.zeros(8, 3), Given()
    (name,) = net.state
    for n in range(3):
        x = torch.arange(6.0).reshape(2, 3) - n
        want = module(x, {"cache": cache}, torch.tensor([2 * n]))
        np.testing.assert_array_equal(net(x, pos=torch.tensor([2 * n])).numpy(), want.numpy())
        np.testing.assert_array_equal(net.state[name], cache.numpy())
    with pytest.raises(ArgumentError, match="the export fixed it to None"):
        net(x, {"cache": cache}, torch.tensor([0]))


class Large(torch.nn.Module):  # type: ignore[name-defined,misc]
    """A large buffer that is written ``how``."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("kept", torch.zeros(4096, 8))

    def forward(self, x: Any, at_: Any) -> Any:
        match self.how:
            case "whole":
                self.kept.mul_(0.5).add_(x.sum())
            case "anywhere":
                self.kept[at_] = x
            case "added":
                self.kept.index_add_(0, at_, x)
            case "rolled":
                self.kept.copy_(torch.roll(self.kept, 1, 0))
        return self.kept.sum(0)


@pytest.mark.parametrize("how", ["whole", "anywhere", "added", "rolled"])
def test_other_writes_are_refused_by_the_names_of_buffer_and_node(how: str) -> None:
    with pytest.raises(ModelError, match=r"Large: state 'kept' of 131072 bytes is replaced by \w+, not by"):
        imported_of(Large(how), torch.zeros(2, 8), torch.tensor([5, 1]))


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
def test_a_static_cache_of_transformers_is_imported_as_it_is(strict: bool) -> None:
    module, how = static_cache()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, (), how, strict=strict)
        if not strict and torch.__version__ < "2.14":
            with pytest.raises(ModelError, match="torch cannot decompose it: .*strict=True"):
                at.import_torch(program)
            return
        net = untuned(at.import_torch(program))
    assert sorted(net.state)[:3] == ["cumulative_length_0", "cumulative_length_1", "key_cache_0"]
    roots = {n: net.program.outline.root(s.new) for n, s in net.program.outline.states.items()}
    assert all(n.startswith("cumul") or roots[n] == net.program.outline.states[n].tensor for n in roots)
    token = other = torch.tensor([[5]])
    for n in range(24):
        place = torch.tensor([n])
        a = module(input_ids=token, cache_position=place)
        b = net(input_ids=other, cache_position=place)
        token, other = a[:, -1].argmax(-1)[None], b[:, -1].argmax(-1)[None]
        assert int(token) == int(other)
    assert int(net.state["cumulative_length_0"]) == 24


@pytest.mark.parametrize("names", ["kv", "kvw"])
def test_states_that_take_rows_of_each_other(names: str) -> None:
    """Rows of each are read before they are written over, in whatever kernel they would be computed."""

    class Turning(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            for i, n in enumerate(names):
                self.register_buffer(n, torch.arange(12.0).reshape(6, 2) * (i + 1))

        def forward(self, x: Any, pos: Any) -> Any:
            states = [getattr(self, n) for n in names]
            rows = [s.index_select(0, pos) for s in states]
            for i, s in enumerate(states):
                s.index_copy_(0, pos, rows[i - 1] + x)
            return sum(s.sum(0) * (i + 2) for i, s in enumerate(states))

    module, given = Turning(), (torch.ones(1, 2), torch.tensor([0]))
    net = untuned(at.import_torch(torch.export.export(copy.deepcopy(module), given)))
    for pos in (0, 3, 5, 3):
        x = torch.full((1, 2), pos + 1.0), torch.tensor([pos])
        assert torch.equal(net(*x), module(*x))
        assert all(np.array_equal(net.state[n], getattr(module, n)) for n in names)
