"""Where results of graphs lie: values, strides and shared memory as torch has them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_cases import torch

from autotune.errors import ModelError
from autotune.models.torch_outputs import Fresh, laid_out, results_of

View = Callable[[Any], Any]


def overlapping(x: Any) -> Any:
    """Two rows that share all but one element, of a tensor of three or more elements in a row."""
    return x.as_strided((2, 2), (1, 1)) if x.is_contiguous() and x.numel() > 2 else x


VIEWS: dict[str, View] = {
    "itself": lambda x: x,
    "contiguous": lambda x: x.contiguous(),
    "detach": lambda x: x.detach(),
    "turned": lambda x: x.transpose(0, -1) if x.dim() else x,
    "expanded": lambda x: x[..., :1].expand(*x.shape[:-1], 3) if x.dim() and x.numel() else x,
    "before": lambda x: x.expand(2, *x.shape),
    "part": lambda x: x[1:] if x.dim() else x,
    "steps": lambda x: x[..., ::2] if x.dim() else x,
    "none": lambda x: x[:0] if x.dim() else x,
    "one": lambda x: x.reshape(-1)[:1].squeeze() if x.numel() else x,
    "flat": lambda x: x.reshape(-1),
    "unfolded": lambda x: x.unfold(-1, 2, 1) if x.dim() and x.shape[-1] > 2 else x,
    "overlapping": overlapping,
    "diagonal": lambda x: x.diagonal() if x.dim() == 2 else x,
    "axis": lambda x: x.unsqueeze(1) if x.dim() else x,
    "new": lambda x: x + 1,
}
SOURCES: dict[str, Callable[..., Any]] = {
    "a": lambda a, b: a,
    "b": lambda a, b: b,
    "product": lambda a, b: a * 2,
    "empty": lambda a, b: a[:0] * 2,
    "number": lambda a, b: 7,
}
CHAINS = st.tuples(
    st.sampled_from(sorted(SOURCES)), st.lists(st.sampled_from(sorted(VIEWS)), min_size=0, max_size=3)
)


def graph_of(chains: list[tuple[str, list[str]]]) -> Any:
    """A graph whose results are views of its arguments and of what it computes, which several may share."""

    def forward(a: Any, b: Any) -> Any:
        made = {s: SOURCES[s](a, b) for s in SOURCES}
        out = []
        for source, views in chains:
            x = made[source]
            for v in views if source != "number" else ():
                x = VIEWS[v](x)
            out.append(x)
        return tuple(out)

    return SimpleNamespace(forward=forward)


def shared(xs: list[Any]) -> list[list[Any]]:
    """Which are the same object, and which share memory."""
    tensors = [x for x in xs if isinstance(x, torch.Tensor)]
    at = [x.untyped_storage().data_ptr() if x.numel() else None for x in tensors]
    return [
        [(x is y, p is not None and p == q) for y, q in zip(tensors, at, strict=True)]
        for x, p in zip(tensors, at, strict=True)
    ]


def arguments(turned: bool, one: bool) -> list[Any]:
    """``one``: both in one memory. ``turned``: with columns before rows."""
    base = torch.arange(24.0)
    a, b = (base[:12], base[12:]) if one else (base[:12].clone(), base[12:].clone())
    return [x.reshape(4, 3).t() if turned else x.reshape(3, 4) for x in (a, b)]


@settings(max_examples=60)
@given(st.lists(CHAINS, min_size=1, max_size=5), st.booleans(), st.booleans())
def test_results_lie_where_torch_lays_them(chains: Any, turned: bool, one: bool) -> None:
    """Planned with arguments apart, and called with such that may share memory."""
    graph = graph_of(chains)
    results = results_of(graph, arguments(turned, False))
    ours, theirs = arguments(turned, one), arguments(turned, one)
    made = graph.forward(*arguments(turned, one))
    computed = {
        n: made[n].contiguous().clone() for n, r in enumerate(results) if isinstance(r, Fresh) and r.computed
    }
    got, want = list(laid_out(results, computed, ours)), list(graph.forward(*theirs))
    assert shared(got + ours) == shared(want + theirs)
    for number in (None, *range(len(got))):
        if number is not None and isinstance(got[number], torch.Tensor) and got[number].numel():
            for x in (got[number], want[number]):
                x.as_strided((1,), (1,), x.storage_offset()).fill_(100 + number)  # seen in all that share it
        for x, y in zip(got + ours, want + theirs, strict=True):
            if isinstance(y, torch.Tensor):
                assert torch.equal(x, y) and x.dtype == y.dtype
                assert x.stride() == y.stride() or not y.numel()  # of those torch's meta says others
            else:
                assert x == y


def test_a_result_that_fills_its_memory_is_that_memory() -> None:
    """What is computed is not copied for views of it."""
    graph = SimpleNamespace(forward=lambda a: ((y := a * 2).t(), y, y[1:]))
    (a,) = (torch.ones(3, 4),)
    results = results_of(graph, [a])
    values = {n: y.contiguous() for n, y in enumerate(graph.forward(a))}
    turned, whole, part = laid_out(results, values, [a])
    assert whole is values[1] and turned.data_ptr() == whole.data_ptr()
    assert part.data_ptr() == whole[1:].data_ptr()


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda a: (a.view(torch.int32),), "view of an input of another dtype"),
        (lambda a: ((y := a * 2), y.view(torch.int32)), "another output of another dtype"),
        (lambda a: (a.t_(),), "changes the shape or the strides of its argument 0"),
    ],
)
def test_memory_of_two_meanings_is_refused(forward: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        results_of(SimpleNamespace(forward=forward), [torch.ones(3, 4)])
