"""Peer torch.best: eager torch whose MKL takes this CPU for Intel's. On other CPUs MKL keeps to AVX2 or less.

MKL asks its function ``mkl_serv_intel_cpu_true``. A library that is loaded before it can answer instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.codegen.simt import cxx
from autotune.errors import CompileError
from autotune.measure.compare.peers import Arrays, PeerError, PreparedPeer
from autotune.measure.compare.peers.apart import prepare_apart
from kernels_db.temporary import temporary_folder
from schedules.model import Workload

# Source of the library with the answer.
ANSWER = 'extern "C" int mkl_serv_intel_cpu_true() { return 1; }\n'


@contextmanager
def prepare(workload: Workload, inputs: Arrays, outputs: Arrays, threads: int) -> Iterator[PreparedPeer]:
    """See `autotune.measure.compare`. Raises `PeerError` as torch's does, and without a C++ compiler."""
    with temporary_folder() as folder:
        settings = {"LD_PRELOAD": str(library(folder))}
        with prepare_apart("torch", settings, workload, inputs, outputs, threads) as prepared:
            yield prepared


def library(folder: Path) -> Path:
    """Compile the library with the answer into ``folder``. Raises `PeerError`."""
    made = folder / "answer.so"
    try:
        made.write_bytes(cxx.build(ANSWER, "-shared", "-fPIC"))
    except CompileError as err:
        raise PeerError(f"peer 'torch.best': {err}; leave it out of --against") from None
    return made
