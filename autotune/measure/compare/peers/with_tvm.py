"""Peer tvm: TVM MetaSchedule, the best of the 64 trials that it measures at least.

They take one to fifteen minutes, so the schedule is kept in the cache directory, by workload, machine and
threads. TVM has a process of its own, because it reads the number and the CPUs of its threads only once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from autotune.backends.building.object_cache import ObjectCache
from autotune.measure.compare.peers import Arrays, PeerError, PreparedPeer, check_row_major
from autotune.measure.compare.peers.apart import prepare_apart
from autotune.settings import cache_dir
from kernels_db.temporary import temporary_folder
from schedules.model import Workload, canonical, digest

# Trials of MetaSchedule: it reports nothing before so many.
TRIALS = 64
# Longest build (seconds). TVM's own limit is 30, but importing it in a worker on two cores may take a minute.
BUILD_S = 300.0


@contextmanager
def prepare(workload: Workload, inputs: Arrays, outputs: Arrays, threads: int) -> Iterator[PreparedPeer]:
    """See `autotune.measure.compare`. Raises `PeerError` if MetaSchedule finds no kernel that runs."""
    check_row_major(workload, "tvm")
    # Not bound, because binding would also bind this process and all that it starts.
    settings = {"TVM_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0"}
    with prepare_apart("tvm", settings, workload, inputs, outputs, threads) as prepared:
        yield prepared


@contextmanager
def prepare_here(workload: Workload, inputs: Arrays, outputs: Arrays, threads: int) -> Iterator[PreparedPeer]:
    """Like `prepare`, in the process of its own. TVM's output is discarded."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.close(quiet)
    import tvm

    kept = ObjectCache(cache_dir() / "tvm")
    what = [workload.digest, target(threads).export(), TRIALS, version("apache-tvm")]
    name = digest(canonical([str(x) for x in what]))
    found = kept.get(name)
    if found is None:
        found = tune(workload, threads, TRIALS).encode()
        kept.put(name, found)
    kernel = tvm.compile(tvm.ir.load_json(found.decode()), target(threads))["main"]
    arrays = [tvm.runtime.tensor(a) for a in (*inputs, *outputs)]
    yield PreparedPeer(lambda: kernel(*arrays), lambda: [a.numpy() for a in arrays[len(inputs) :]])


def target(threads: int) -> Any:
    """This CPU as TVM names it."""
    import llvmlite.binding as llvm
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": llvm.get_host_cpu_name(), "num-cores": threads})


def tune(workload: Workload, threads: int, trials: int) -> str:
    """The best module of ``trials``, in TVM's JSON. Raises `PeerError` if none runs."""
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    from autotune.measure.compare.peers.tvm_expression import tensors

    function = te.create_prim_func(tensors(workload.dag)).with_attr("global_symbol", "main")
    with temporary_folder() as folder:
        database = ms.tune_tir(
            function, target(threads), str(folder), seed=0,
            builder=ms.builder.LocalBuilder(timeout_sec=BUILD_S),
            max_trials_global=trials, num_trials_per_iter=min(trials, TRIALS),
        )  # fmt: skip
        best = ms.tir_integration.compile_tir(database, function, target(threads))
    if best is None:
        raise PeerError(
            f"TVM found no kernel for {workload.op!r} in {trials} trials; leave tvm out of --against"
        )
    text: str = tvm.ir.save_json(best.mod)
    return text
