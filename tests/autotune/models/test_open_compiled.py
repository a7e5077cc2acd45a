"""torch.compile with sizes that vary: one compilation for a range of sizes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from default_kernels import default_kernels
from needs import imported
from torch_cases import Of

from autotune.models import compiling, torch_backend

torch = imported("torch")
nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A log and a cache of the test's own, no graphs of other tests, and default kernels in the place of
    first picks, which take seconds. The inputs of each model that is compiled."""
    made: list[Any] = []

    def compiled(model: Any, *args: Any) -> Any:
        made.append([p.shape for p in model.inputs])
        return compiling.compiled(model, *args)

    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "log.db"))
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "untuned_kernels", default_kernels)
    monkeypatch.setattr(torch_backend, "compiled", compiled)
    torch.compiler.reset()
    torch_backend._graphs.clear()
    yield made
    torch.compiler.reset()


def agrees(
    module: Any, inputs: Sequence[Sequence[Any]], mark: dict[str, int] | None = None, **how: Any
) -> None:
    """Without a warning, what torch computes of each of the inputs."""
    f = torch.compile(
        module.eval(), backend=torch_backend.backend, options={"threads": 1, "strict": True}, **how
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for xs in inputs:
            if mark is not None:
                torch._dynamo.mark_dynamic(xs[0], 0, **mark)
            torch.testing.assert_close(f(*xs), module(*xs), rtol=1e-5, atol=1e-5)


def rows(*counts: int) -> list[tuple[Any]]:
    return [(torch.randn(n, 4),) for n in counts]


MLP = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def test_ten_batch_sizes_are_one_compilation(apart: list[Any]) -> None:
    agrees(MLP, rows(7, 2, 64, 33, 9, 8, 50, 17, 5, 63), dynamic=True)
    assert apart == [[(64, 4)]]


def test_a_range_that_is_marked_is_that_of_the_model(apart: list[Any]) -> None:
    agrees(MLP, rows(5, 77, 2), mark={"min": 2, "max": 77})
    assert apart == [[(77, 4)]]


@pytest.mark.slow
def test_a_second_size_opens_a_size_and_one_beyond_makes_room(apart: list[Any]) -> None:
    """torch itself keeps the first size, and a size of 1, apart."""
    agrees(MLP, rows(5, 6, 64, 65, 66, 260, 1, 65))
    assert apart == [[(5, 4)], [(64, 4)], [(512, 4)], [(1, 4)]]


@pytest.mark.slow
def test_weights_that_change_are_packed_anew_and_not_compiled(apart: list[Any]) -> None:
    module = nn.Linear(4, 3)
    f = torch.compile(module.eval(), backend=torch_backend.backend, dynamic=True, options={"threads": 1})
    with torch.no_grad():
        for n in (5, 6):
            x = torch.randn(n, 4)
            torch.testing.assert_close(f(x), module(x))
            module.weight.mul_(2.0)
    assert len(apart) == 1


@pytest.mark.slow
def test_results_lie_as_torch_has_them_at_each_size(apart: list[Any]) -> None:
    def fn(x: Any) -> Any:
        y = torch.relu(x) + 1
        return y.t(), x[1:], y[:, 1:3], x.shape[0]

    f = torch.compile(fn, backend=torch_backend.backend, dynamic=True, options={"threads": 1, "strict": True})
    with torch.no_grad():
        for n in (5, 6, 9):
            x = torch.randn(n, 4)
            for a, b in zip(f(x), fn(x), strict=True):
                if isinstance(a, int):
                    assert a == b
                else:
                    assert torch.equal(a, b) and a.stride() == b.stride()
            assert f(x)[1].data_ptr() == x[1:].data_ptr()
    assert len(apart) == 1


@pytest.mark.slow
def test_a_number_that_is_no_size_is_a_model_each(apart: list[Any]) -> None:
    f = torch.compile(
        lambda x, k: x * k,
        backend=torch_backend.backend,
        dynamic=True,
        options={"threads": 1, "strict": True},
    )
    with torch.no_grad():
        for n, k in ((5, 3), (7, 3), (7, 4), (9, 3), (9, 4)):
            x = torch.randn(n, 4)
            torch.testing.assert_close(f(x, k), x * k)
    assert len(apart) == 2


def test_what_cannot_be_open_is_told_by_node_and_stays_fixed(apart: list[Any]) -> None:
    f = torch.compile(
        Of(lambda x: x.median(0)[0]), backend=torch_backend.backend, dynamic=True, options={"threads": 1}
    )
    with torch.no_grad():
        with pytest.warns(UserWarning, match=r"keeps each of its sizes apart[^:]*: (.|\n)*node \S*median"):
            f(torch.ones(5, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(f(torch.ones(6, 4)), torch.ones(4))
    assert [s for ((s, _),) in apart] == [5, 6]


@pytest.mark.slow
def test_a_sequence_varies(apart: list[Any]) -> None:
    class Causal(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(20, 8), nn.Embedding(64, 8)
            self.qkv, self.out, self.norm = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, ids: Any) -> Any:
            b, n = ids.shape
            x = self.tokens(ids) + self.places(torch.arange(n))
            q, k, v = self.qkv(x).view(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.norm(x + self.out(y.transpose(1, 2).reshape(b, n, 8)))[:, -1]

    ids = [torch.randint(0, 20, (2, n)) for n in (7, 5, 33, 64)]
    for x in ids:
        torch._dynamo.mark_dynamic(x, 1, min=2, max=64)
    agrees(Causal(), [(x,) for x in ids])
    assert apart == [[(2, 64)]]


def test_room_is_a_power_of_two() -> None:
    from autotune.models.torch_open import with_room

    assert [with_room(n) for n in (1, 16, 17, 32, 33)] == [64, 64, 128, 128, 256]
    assert with_room(1000) == 4096


@pytest.mark.slow
def test_numbers_alone_and_operators_without_an_expression_are_as_before(apart: list[Any]) -> None:
    """Of a graph that no model is made of, one thing is told: that torch runs it."""

    def scaled(x: Any, k: Any) -> Any:
        return x * k

    f = torch.compile(scaled, backend=torch_backend.backend, options={"threads": 1, "strict": True})
    x = torch.randn(5, 4)
    with torch.no_grad():
        for k in (2, 3, 4, 3):
            torch.testing.assert_close(f(x, k), x * k)
    assert len(apart) == 3
    g = torch.compile(torch.linalg.det, backend=torch_backend.backend, dynamic=True, options={"threads": 1})
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in (5, 6):
            x = torch.randn(n, 3, 3)
            torch.testing.assert_close(g(x), torch.linalg.det(x))
    told = [w for w in told if "a graph of torch.compile" in str(w.message)]
    assert len(told) == 1 and "runs as torch runs it" in str(told[0].message)
