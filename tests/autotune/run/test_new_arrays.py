"""New arrays for results: memory is used again, and never while somebody sees it."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import each_stage, graph_of
from needs import missing

import autotune as at
from autotune.models.module import Module
from autotune.models.outline import outline
from autotune.models.program import Program
from autotune.run import new_arrays
from autotune.run.kernels import default_kernel
from schedules import te
from schedules.schedule import Schedule

pytestmark = pytest.mark.skipif(not new_arrays.KEEPS_IDLE, reason="this system keeps no memory for results")

N = new_arrays.LARGE // 4  # float32 elements of the smallest large result
FLOAT = np.dtype("float32")


@pytest.fixture(autouse=True)
def nothing_idle() -> Iterator[None]:
    new_arrays._idle.clear()
    yield
    new_arrays._idle.clear()


def address(x: Any) -> int:
    return x.data_ptr() if hasattr(x, "data_ptr") else x.ctypes.data


def torch_or_skip() -> Any:
    try:
        import torch
    except ImportError:
        missing("torch")
    return torch


def twice(n: int, dtype: str = "float32") -> at.Kernel:
    x = te.placeholder((n,), dtype, "x")
    s = Schedule([x, te.compute((n,), lambda i: x[i] + x[i], "y")])
    s.vectorize(s.split("y_i", (None, 16))[1])
    return at.build(s)


def by_slice(x: np.ndarray) -> Any:
    return x[1::2]


def by_dlpack(x: np.ndarray) -> Any:
    return np.from_dlpack(x)


def by_torch(x: np.ndarray) -> Any:
    return torch_or_skip().from_numpy(x)[2:]


def by_base(x: np.ndarray) -> Any:
    return memoryview(x.base)


def by_address_of_base(x: np.ndarray) -> Any:
    return np.frombuffer(x.base, np.uint8)


VIEWS: list[Callable[[np.ndarray], Any]] = [
    *(by_slice, by_dlpack, by_torch, by_base, by_address_of_base, memoryview, np.transpose),
    lambda x: x.view(np.int32),
    lambda x: x.reshape(-1, 4)[:, 1].T,
    lambda x: np.ma.array(x, copy=False),
    lambda x: np.lib.stride_tricks.as_strided(x, (4,), (8,)),
    lambda x: iter(x),
    lambda x: x.flat,
    lambda x: [[x]],
]


@pytest.mark.parametrize("view", VIEWS)
def test_memory_is_used_again_once_the_last_view_is_gone(view: Callable[[np.ndarray], Any]) -> None:
    make = new_arrays.maker((N,), FLOAT)
    x = make()
    x[:] = 7
    first = address(x)
    kept = view(x)
    del x
    others = [make() for _ in range(3)]
    assert first not in map(address, others)
    for other in others:
        other[:] = 0
    del kept, others, other
    assert first in map(address, [make() for _ in range(4)])


def test_a_kernel_writes_where_its_last_result_lay() -> None:
    kernel, x = twice(N), np.arange(N, dtype="f4")
    y = kernel(x)
    first = address(y)
    np.testing.assert_array_equal(y, 2 * x)
    del y
    again = kernel(x + 1)
    assert address(again) == first and address(again) % new_arrays.HUGE_PAGE == 0
    other = kernel(x)
    assert address(other) != first
    np.testing.assert_array_equal(again, 2 * (x + 1))
    np.testing.assert_array_equal(other, 2 * x)
    assert pickle.loads(pickle.dumps(other))[3] == 6 and copy.copy(other).base is None


def test_tensors_of_torch_lie_there_too() -> None:
    torch = torch_or_skip()
    kernel, x = twice(N), torch.arange(N, dtype=torch.float32)
    y = kernel(x)
    first, storage = address(y), y.untyped_storage()
    del y
    y = kernel(x)
    assert address(y) != first  # somebody has the storage
    del storage
    assert address(kernel(x)) == first
    seen = y.view(4, -1)[1:].numpy()
    second = address(y)
    del y
    made = [kernel(x + n) for n in range(3)]
    assert second not in map(address, made)
    np.testing.assert_array_equal(seen, 2 * x.view(4, -1)[1:].numpy())
    for n, t in enumerate(made):
        assert torch.equal(t, 2 * (x + n)) and t.is_contiguous() and not t.requires_grad
    del made, t, seen
    assert new_arrays.idle_bytes() == 4 * new_arrays.LARGE  # of the call and of three beside a view


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16", "float64", "int64"])
def test_every_dtype_has_both(dtype: str) -> None:
    torch = torch_or_skip()
    from schedules.dtypes import DTYPES

    row = DTYPES[dtype]
    n = new_arrays.LARGE // row.itemsize // 8
    x = new_arrays.maker((2, n, 4), row.numpy)()
    assert (x.shape, x.dtype, x.flags.c_contiguous) == ((2, n, 4), row.numpy, True)
    x[...] = 1
    t = new_arrays.tensor_maker(torch, (2, n, 4), getattr(torch, dtype))()
    assert (tuple(t.shape), t.dtype, t.is_contiguous()) == ((2, n, 4), getattr(torch, dtype), True)
    t.fill_(1)
    assert (x == 1).all() and bool((t == 1).all())


def test_small_results_are_numpys_own() -> None:
    assert new_arrays.maker((N - 1,), FLOAT)().flags.owndata
    assert twice(64)(np.ones(64, "f4")).flags.owndata
    torch = torch_or_skip()
    assert new_arrays.tensor_maker(torch, (N - 1,), torch.float32) is None


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_arrays, "MOST_IDLE", 12 << 20)
    makers = [new_arrays.maker((k * N,), FLOAT) for k in (1, 2, 3, 4)]
    for make in makers:
        alive = [make() for _ in range(5)]
        del alive
        assert new_arrays.idle_bytes() <= 12 << 20
    assert new_arrays.idle_bytes() == 12 << 20  # of three times the smallest: the largest does not fit
    assert {size for size, blocks in new_arrays._idle.items() if blocks} == {12 << 20}


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_no_two_results_that_somebody_sees_share_memory(data: st.DataObject) -> None:
    """Results and views of them are made and dropped in any order; what is seen never changes."""
    makers = [new_arrays.maker((k * N,), FLOAT) for k in (1, 2)]
    alive: dict[int, Any] = {}
    for number in range(1, data.draw(st.integers(2, 12))):
        x = data.draw(st.sampled_from(makers))()
        x[::512] = number  # an element of each page
        view = data.draw(st.sampled_from(VIEWS[:2] + VIEWS[9:10] + [lambda x: x]))
        alive[number] = x.reshape(-1, 512)[:, 0] if data.draw(st.booleans()) else view(x)[..., ::512]
        alive[number] = (alive[number], np.array(alive[number]))
        del x
        for other in data.draw(st.lists(st.sampled_from([*alive]), unique=True, max_size=2)):
            del alive[other]
        for seen, was in alive.values():
            assert np.array_equal(seen, was)
    whole = [x for x, _ in alive.values()]
    assert not any(np.may_share_memory(a, b) for i, a in enumerate(whole) for b in whole[:i])


def test_threads_have_memory_of_their_own() -> None:
    make = new_arrays.maker((N,), FLOAT)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(40):
            x = make()
            x[::512] = number
            y = x[::512]
            del x
            if not (y == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and new_arrays.idle_bytes() <= 8 * new_arrays.LARGE  # two at a time each


def test_a_forked_process_has_its_own() -> None:
    make = new_arrays.maker((N,), FLOAT)
    idle, kept = make(), make()
    kept[:] = 5
    del idle
    child = os.fork()
    if not child:
        try:
            kept[:] = 6
            mine = make()
            mine[:] = 7
            del kept
            os._exit(int(make()[0] not in (0, 6)))  # what it had before
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (kept == 5).all() and (make() != 7).all()


def test_where_the_system_gives_no_memory_numpy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise OSError("no memory")

    monkeypatch.setattr(new_arrays.pages, "block", none)
    assert new_arrays.maker((N,), FLOAT)().flags.owndata
    with pytest.raises(MemoryError):
        new_arrays.maker((1 << 60,), FLOAT)()


def test_a_model_uses_its_results_again() -> None:
    torch = torch_or_skip()
    here = at.targets.detect(1)
    x = te.placeholder((N,), "float32", "x")
    y = te.compute((N,), lambda i: te.maximum(x[i], 0.0) * 2.0, "y")
    graph = graph_of([x, y, te.compute((N,), lambda i: y[i] + x[i], "z")], {}, ("y", "z"))
    ol = outline(graph, each_stage(graph)[1])
    kernels = [default_kernel(w, here) for w in ol.tasks]
    program = Program.of(ol, kernels, graph.values.__getitem__, lambda i, a: a)
    net = Module(program, here, "net", [1e-6] * len(kernels))
    data = torch.arange(N).float() - 100
    right = [(data.relu() * 2).numpy(), (data.relu() * 2 + data).numpy()]
    places = []
    for call in (net, net, lambda x: net(x.numpy()), lambda x: net(x.numpy()), lambda x: net.tensors((x,))):
        got = call(data)
        assert all(np.array_equal(np.asarray(a), b) for a, b in zip(got, right, strict=True))
        places.append({*map(address, got)})
        del got
    assert all(p == places[0] for p in places)


@pytest.mark.slow
def test_a_model_of_torch_holds_its_results_in_no_circle() -> None:
    """A circle would end when garbage is collected, and each call until then would take new memory."""
    torch = torch_or_skip()

    class Two(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"a": torch.relu(x), "b": [x * 2.0, x[:0]]}

    x = torch.ones(N)
    with pytest.warns(UserWarning, match="not tuned"):
        net = at.compile_model(at.import_torch(torch.export.export(Two(), (x,))), threads=1, fallback=True)
    gc.collect()
    gc.disable()
    try:
        first = {address(t) for t in (net(x)["a"], net(x)["b"][0])}
        for _ in range(3):
            got = net(x)
            assert {address(got["a"]), address(got["b"][0])} == first
            del got
    finally:
        gc.enable()
