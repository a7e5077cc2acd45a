"""Threads that call one kernel of several steps: what these pass on is each call's own."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import gpu_fakes as fakes
import pytest
from grid_cases import case, need_cxx
from test_device_kernel import EmulatedGpu, arrays, kernel_of, launches


@pytest.mark.slow
def test_the_stream_of_each_thread_has_its_own_memory_between_steps() -> None:
    need_cxx()
    c, device = case("attention"), EmulatedGpu()
    k, space = kernel_of(c, device), fakes.Space(device)
    given, out = arrays(c, space), fakes.FakeArray(space, c.poisoned()[0])
    seen = launches(k)
    k(*given, out=out, stream=2)
    for streams in ((2, 0x70), (2,)):  # the second thread may get the first one's ident
        thread = threading.Thread(
            target=lambda at=streams: [k(*given, out=out, stream=s) for s in at], daemon=True
        )
        thread.start()
        thread.join(60)
    k(*given, out=out, stream=2)
    k(*given, out=out, stream=0x70)
    mine, other, shared, later, again, shared_again = (args[4:-1] for args in seen)
    assert mine == again and shared == shared_again
    assert len({*mine, *other, *later}) == 3 * len(mine)


@pytest.mark.slow
def test_memory_that_two_threads_make_for_one_stream_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    need_cxx()
    c, device = case("attention"), EmulatedGpu()
    k, space = kernel_of(c, device), fakes.Space(device)
    given, out = arrays(c, space), fakes.FakeArray(space, c.poisoned()[0])
    before = len(device._held)
    allocate = device.allocate

    def meanwhile(n: int) -> object:
        monkeypatch.undo()
        thread = threading.Thread(target=k, args=given, kwargs={"out": out, "stream": 0x70}, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "it waits for us"
        return allocate(n)

    monkeypatch.setattr(device, "allocate", meanwhile)
    k(*given, out=out, stream=0x70)
    assert len(device._held) - before == len(k._loaded.code.scratch)
    c.check([out.get()], "attention")


@pytest.mark.slow
def test_steps_of_two_threads_do_not_mix_on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    need_cxx()
    c, device, both = case("attention"), EmulatedGpu(), threading.Barrier(2)

    def launch(*args: int) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.3)
            pytest.fail("the other thread is launching too")
        return 0

    monkeypatch.setattr(device, "launcher", lambda program: launch)
    k, space = kernel_of(c, device), fakes.Space(device)
    given, out = arrays(c, space), fakes.FakeArray(space, c.poisoned()[0])
    with ThreadPoolExecutor(2) as pool:
        for call in [pool.submit(k, *given, out=out, stream=0x70) for _ in range(2)]:
            call.result()
