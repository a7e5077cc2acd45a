"""Peer numpy.best: numpy with OpenBLAS set to the core type that is fastest here.

By itself OpenBLAS takes some CPUs for older ones. All types whose instructions this CPU has are tried, each
in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from autotune import targets
from autotune.measure.compare.peers import Arrays, PreparedPeer
from autotune.measure.compare.peers.apart import prepare_apart
from schedules.model import Workload

# {OpenBLAS's name of a core type of x86: instruction sets that it needs}.
CORE_TYPES = {
    "Haswell": {"avx2", "fma"},
    "Zen": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "Cooperlake": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16"},
    "SapphireRapids": {"avx512f", "avx512bf16", "amx-tile", "amx-bf16"},
}
# Time for which calls of each type are timed (seconds).
TRY_S = 0.1


@contextmanager
def prepare(workload: Workload, inputs: Arrays, outputs: Arrays, threads: int) -> Iterator[PreparedPeer]:
    """See `autotune.measure.compare`."""
    with ExitStack() as fastest:
        best, least = None, float("inf")
        for settings in environments(frozenset(targets.detect().features)):
            with ExitStack() as stack:
                p = stack.enter_context(prepare_apart("numpy", settings, workload, inputs, outputs, threads))
                assert p.sample is not None
                calls = max(1, round(TRY_S / p.sample(1)))
                took = min(p.sample(calls) for _ in range(3))
                if best is None or took < least:
                    fastest.close()  # the fastest so far
                    fastest.push(stack.pop_all())
                    best, least = p, took
        assert best is not None
        yield best


def environments(features: frozenset[str]) -> list[dict[str, str]]:
    """Environments to try: one for each core type that the CPU supports, and first the one without a
    setting."""
    return [{}, *({"OPENBLAS_CORETYPE": name} for name, needs in CORE_TYPES.items() if needs <= features)]
