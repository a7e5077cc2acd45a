"""Compiled modules of programs of torch with open sizes: a batch, and rows that go into a state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from default_kernels import default_kernels
from needs import imported
from torch_cases import exported

import autotune as at
from autotune.errors import ArgumentError
from autotune.models import compiling

torch = imported("torch")
nn, Dim = torch.nn, torch.export.Dim


@pytest.fixture(autouse=True)
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log and a cache of the test's own, and default kernels in the place of first picks."""

    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "log.db"))
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "untuned_kernels", default_kernels)


def compiled(program: Any) -> Any:
    return at.compile_model(at.import_torch(program), threads=1, fallback=True, progress=None)


def test_a_module_is_called_at_every_size() -> None:
    mlp = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    net = compiled(exported(mlp, torch.randn(7, 4), dynamic_shapes=({0: Dim("b", max=20)},)))
    for n in (20, 1, 2, 13):
        x = torch.randn(n, 4)
        torch.testing.assert_close(net(x), mlp(x).detach(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ArgumentError, match="21"):
        net(torch.randn(21, 4))


class Decoder(nn.Module):  # type: ignore[misc,name-defined]
    """One layer of attention that keeps keys and values of 24 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.qkv, self.out = nn.Embedding(40, 16), nn.Linear(16, 48), nn.Linear(16, 40)
        for name in "kv":
            self.register_buffer(name, torch.zeros(24, 2, 8))

    def forward(self, ids: Any, first: Any) -> Any:
        n = ids.shape[0]
        q, k, v = self.qkv(self.tokens(ids)).view(n, 3, 2, 8).unbind(1)
        places = first + torch.arange(n)
        self.k.index_copy_(0, places, k)
        self.v.index_copy_(0, places, v)
        hidden = torch.arange(24)[None] > places[:, None]
        scores = torch.einsum("nhd,thd->hnt", q, self.k).masked_fill(hidden, float("-inf"))
        return self.out(torch.einsum("hnt,thd->nhd", scores.softmax(-1), self.v).reshape(n, 16))


@pytest.mark.slow
def test_a_prompt_of_any_length_goes_into_a_state() -> None:
    module = Decoder().eval()
    dims = ({0: Dim("n", max=24)}, None)
    example = torch.randint(0, 40, (7,)), torch.tensor(0)
    with torch.no_grad():
        net = compiled(exported(module, *example, dynamic_shapes=dims, strict=True))
        ids = torch.randint(0, 40, (20,))
        want = module(ids, torch.tensor(0))
        made, at_ = [], 0
        for n in (7, 1, 1, 11):
            made.append(net(ids[at_ : at_ + n], torch.tensor(at_)))
            at_ += n
    torch.testing.assert_close(torch.cat(made), want, rtol=1e-5, atol=1e-5)
