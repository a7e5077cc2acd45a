"""numpy whose OpenBLAS was told the core type that is fastest here: by itself it takes some CPUs for their
older relatives. Tried are the types whose instructions this CPU has, each in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from autotune import targets
from autotune.compare.peers import Arrays, Prepared
from autotune.compare.peers.apart import prepare_apart
from schedules.model import Workload

# OpenBLAS's names of core types of x86 -> what they need
CORE_TYPES = {
    "Haswell": {"avx2", "fma"},
    "Zen": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "Cooperlake": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16"},
    "SapphireRapids": {"avx512f", "avx512bf16", "amx-tile", "amx-bf16"},
}
TRY_S = 0.1  # calls of each type that are timed


@contextmanager
def prepare(workload: Workload, inputs: Arrays, outputs: Arrays, threads: int) -> Iterator[Prepared]:
    """See `autotune.compare.peers`."""
    with ExitStack() as fastest:
        best, least = None, float("inf")
        for settings in environments(frozenset(targets.detect().features)):
            with ExitStack() as stack:
                p = stack.enter_context(prepare_apart("numpy", settings, workload, inputs, outputs, threads))
                assert p.sample is not None
                calls = max(1, round(TRY_S / p.sample(1)))
                took = min(p.sample(calls) for _ in range(3))
                if best is None or took < least:
                    fastest.close()  # the one that was the fastest so far
                    fastest.push(stack.pop_all())
                    best, least = p, took
        assert best is not None
        yield best


def environments(features: frozenset[str]) -> list[dict[str, str]]:
    """What to set, one for each core type that such a CPU can be; as installed first."""
    return [{}, *({"OPENBLAS_CORETYPE": name} for name, needs in CORE_TYPES.items() if needs <= features)]
