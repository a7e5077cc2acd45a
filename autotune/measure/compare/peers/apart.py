"""Runs a peer in a process of its own, for settings that a library reads only when it is loaded.

The process keeps the arrays and times its own calls, so that no sample contains communication.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from autotune import settings
from autotune.measure.compare.bench import Contender, copied, sample
from autotune.measure.compare.peers import Arrays, PeerError, PreparedPeer, peer
from schedules.model import Workload
from schedules.space.gc_paused import gc_paused

# Requests to the process beside numbers of calls.
_STOP, _RESULT = -1, 0
# The GNU allocator starts with a threshold of 128 KB and raises it up to this in a process that has run for a
# while.
# Below it, freed memory goes back to the system, and the next call waits for new pages.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}


@contextmanager
def prepare_apart(
    name: str,
    environment: Mapping[str, str],
    workload: Workload,
    inputs: Arrays,
    outputs: Arrays,
    threads: int,
) -> Iterator[PreparedPeer]:
    """The peer ``name`` (see `autotune.measure.compare`) in a new process with ``environment`` added to ours.
    Raises `PeerError` for errors there, and if the process dies."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(
        target=_serve, args=(theirs, name, workload, list(inputs), list(outputs), threads), daemon=True
    )
    with settings.environment({**_ALLOCATOR, **environment}):
        process.start()
    theirs.close()

    def ask(what: int) -> Any:
        try:
            ours.send(what)
            found = ours.recv()
        except (EOFError, OSError):
            raise PeerError(f"the process of peer {name!r} died; leave it out of --against") from None
        if isinstance(found, PeerError):
            raise found
        return found

    try:
        ask(1)
        yield PreparedPeer(lambda: ask(1), lambda: ask(_RESULT), sample=ask)
    finally:
        try:
            ours.send(_STOP)
        except OSError:
            process.kill()
        process.join(5)
        process.kill()
        ours.close()


def _serve(
    pipe: Connection, name: str, workload: Workload, inputs: Arrays, outputs: Arrays, threads: int
) -> None:
    """Serve in the other process until it is told to stop or the parent has gone."""
    try:
        # Copied, because numpy asks for huge pages only for memory that it allocates itself.
        dag = workload.dag
        inputs = copied(dag.inputs, inputs)
        outputs = copied([dag.tensors[n] for n in dag.outputs], outputs)
        module = peer(name)
        prepare = getattr(module, "prepare_here", module.prepare)
        with prepare(workload, inputs, outputs, threads) as prepared, gc_paused():
            gc.collect()
            contender = Contender(name, prepared.call)
            while (what := pipe.recv()) != _STOP:
                pipe.send(list(prepared.result()) if what == _RESULT else sample(contender, what))
    except PeerError as err:
        pipe.recv()
        pipe.send(err)
    except (EOFError, KeyboardInterrupt):
        pass
