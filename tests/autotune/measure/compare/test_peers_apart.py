"""Peers in processes of their own, which see other settings of their library."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from autotune.measure.compare.bench import Contender, agree, arrays_for, compare
from autotune.measure.compare.peers import PEERS, PeerError, PreparedPeer
from autotune.measure.compare.peers.apart import _RESULT, STOP, _serve, prepare_apart
from autotune.measure.compare.peers.with_numpy_best import environments
from schedules import ops

WORKLOAD = ops.workload("matmul", {"m": 5, "n": 7, "k": 3})
SETTING = "OPENBLAS_CORETYPE"


@pytest.mark.slow
def test_the_process_has_the_setting_computes_and_times_itself() -> None:
    inputs, outputs = arrays_for(WORKLOAD, 0)
    before = os.environ.get(SETTING)
    with prepare_apart("numpy", {SETTING: "Haswell"}, WORKLOAD, inputs, outputs, 1) as prepared:
        (child,) = multiprocessing.active_children()
        seen = Path(f"/proc/{child.pid}/environ")
        if seen.exists():
            variables = seen.read_bytes().split(b"\0")
            assert f"{SETTING}=Haswell".encode() in variables
            assert any(v.startswith(b"MALLOC_TRIM_THRESHOLD_=") for v in variables)
        assert os.environ.get(SETTING) == before
        agree(WORKLOAD, "numpy", prepared.result(), ops.reference(WORKLOAD, inputs))
        assert prepared.sample is not None
        apart = Contender("apart", prepared.call, prepared.sample)
        found = compare([apart, Contender("here", lambda: None)], seconds=0.0)
        assert 0 < found.time_s("here") < found.time_s("apart") < 1.0
    assert not child.is_alive()


def test_what_the_peer_refuses_there_is_raised_here() -> None:
    with pytest.raises(PeerError, match="unknown peer 'nothing'"):
        prepare_apart("nothing", {}, WORKLOAD, *arrays_for(WORKLOAD, 0), 1).__enter__()


def test_a_process_that_dies_is_said_to_have_died() -> None:
    with prepare_apart("numpy", {}, WORKLOAD, *arrays_for(WORKLOAD, 0), 1) as prepared:
        multiprocessing.active_children()[0].kill()
        with pytest.raises(PeerError, match="process of peer 'numpy' died"):
            for _ in range(2):  # the first may be sent before it is gone
                prepared.call()
    assert not multiprocessing.active_children()


def test_what_needs_a_process_of_its_own_is_prepared_there(monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[str] = []

    @contextmanager
    def prepare_here(*_: object) -> Iterator[PreparedPeer]:
        here.append("prepared")
        yield PreparedPeer(lambda: here.append("called"), lambda: [np.ones(3)])

    def prepare(*_: object) -> None:
        raise AssertionError("would start another process")

    module = SimpleNamespace(prepare=prepare, prepare_here=prepare_here)
    monkeypatch.setitem(PEERS, "alone", ("peer_alone", "numpy"))
    monkeypatch.setitem(sys.modules, "peer_alone", module)
    ours, theirs = multiprocessing.Pipe()
    for what in (2, _RESULT, STOP):
        ours.send(what)
    _serve(theirs, "alone", WORKLOAD, [], [], 1)
    assert here == ["prepared", "called", "called"]
    assert ours.recv() > 0 and [list(x) for x in ours.recv()] == [[1, 1, 1]]


def test_core_types_are_those_whose_instructions_the_cpu_has() -> None:
    def types(*features: str) -> list[str]:
        return [e.get(SETTING, "as installed") for e in environments(frozenset(features))]

    assert types("sse2") == ["as installed"]
    assert types("avx2", "fma") == ["as installed", "Haswell", "Zen"]
    wide = ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16")
    assert types(*wide) == ["as installed", "Haswell", "Zen", "SkylakeX", "Cooperlake"]
