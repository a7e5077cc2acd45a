"""Other implementations of library operators, to compare with: one file for each library.

A peer has ``prepare(workload, inputs, outputs, threads)``, a context manager. It yields a `PreparedPeer` call
that writes its result into ``outputs`` (or keeps it), with the library limited to ``threads`` threads. A peer
that needs a process of its own (`autotune.measure.compare.peers.apart`) also has ``prepare_here``, for use in
that process. Only this package and `schedules.ops` know operators by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

import numpy as np

from schedules.distribution import install
from schedules.errors import AutotuneError
from schedules.model import Workload
from schedules.te.strided import strides_given

Arrays = Sequence[np.ndarray]


class PeerError(AutotuneError):
    """A peer is unknown or not installed, or it has no such operator."""


def check_row_major(workload: Workload, name: str) -> None:
    """Raises `PeerError` for arguments with strides, of which the library would make copies."""
    lying = strides_given(workload.dag)
    if lying:
        raise PeerError(
            f"{name} takes row-major arrays only, and there are strides for {', '.join(lying)}; leave {name} "
            "out of --against"
        )


@dataclass(frozen=True)
class PreparedPeer:
    """``call()``: computes once. ``result()``: the outputs of the last call, to be checked. ``sample(n)``:
    seconds a call over ``n`` calls, for a peer that must be timed in another process."""

    call: Callable[[], object]
    result: Callable[[], Sequence[np.ndarray]]
    sample: Callable[[int], float] | None = None


class Peer(Protocol):
    """The functions of every module of this package."""

    def prepare(
        self, workload: Workload, inputs: Arrays, outputs: Arrays, threads: int
    ) -> AbstractContextManager[PreparedPeer]: ...


# {name on the command line: (module here, module that must be installed)}.
PEERS = {
    "numpy": ("autotune.measure.compare.peers.with_numpy", "numpy"),
    "numpy.best": ("autotune.measure.compare.peers.with_numpy_best", "numpy"),
    "torch": ("autotune.measure.compare.peers.with_torch", "torch"),
    "torch.best": ("autotune.measure.compare.peers.with_torch_best", "torch"),
    "torch.compile": ("autotune.measure.compare.peers.with_torch_compile", "torch"),
    "onnxruntime": ("autotune.measure.compare.peers.with_onnxruntime", "onnxruntime"),
    "tvm": ("autotune.measure.compare.peers.with_tvm", "tvm"),
}


def peer(name: str) -> Peer:
    """The peer called ``name``. Raises `PeerError` if it is unknown or not installed."""
    if name not in PEERS:
        raise PeerError(f"unknown peer {name!r}; known peers: {', '.join(PEERS)}")
    module, needs = PEERS[name]
    if find_spec(needs) is None:
        raise PeerError(f"peer {name!r} is not installed; {install(needs)}, or leave it out of --against")
    return cast(Peer, import_module(module))
