"""torch, eager, whose MKL was told that this CPU is Intel's: on others it keeps to AVX2 or less.

MKL asks itself by a function, ``mkl_serv_intel_cpu_true``; a library loaded before it may answer instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from autotune.codegen.simt import cxx
from autotune.compare.peers import Arrays, PeerError, Prepared
from autotune.compare.peers.apart import prepare_apart
from autotune.errors import CompileError
from schedules.model import Workload

ANSWER = 'extern "C" int mkl_serv_intel_cpu_true() { return 1; }\n'


@contextmanager
def prepare(workload: Workload, inputs: Arrays, outputs: Arrays, threads: int) -> Iterator[Prepared]:
    """See `autotune.compare.peers`. Raises `PeerError` as torch's does, and where there is no C++
    compiler."""
    with TemporaryDirectory() as folder:
        settings = {"LD_PRELOAD": str(library(Path(folder)))}
        with prepare_apart("torch", settings, workload, inputs, outputs, threads) as prepared:
            yield prepared


def library(folder: Path) -> Path:
    """The library with the answer, made in ``folder``."""
    made = folder / "answer.so"
    try:
        made.write_bytes(cxx.build(ANSWER, "-shared", "-fPIC"))
    except CompileError as err:
        raise PeerError(f"peer 'torch.best': {err}; leave it out of --against") from None
    return made
