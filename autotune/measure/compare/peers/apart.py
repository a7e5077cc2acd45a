"""Runs a peer in a process of its own, for settings that a library reads only when it is loaded.

The process keeps the arrays and times its own calls, so that no sample contains communication.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from autotune import settings
from autotune.measure.compare.bench import Contender, copied, sample
from autotune.measure.compare.peers import Arrays, PeerError, PreparedPeer, peer
from schedules.model import Workload
from schedules.space.gc_paused import gc_paused

# The last request to a process.
STOP = -1
# A request beside numbers of calls.
_RESULT = 0
# The GNU allocator starts with a threshold of 128 KB and raises it up to this in a process that has run for a
# while.
# Below it, freed memory goes back to the system, and the next call waits for new pages.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}


@contextmanager
def answering(
    serve: Callable[..., None], args: Sequence[Any], name: str, environment: Mapping[str, str] | None = None
) -> Iterator[Callable[[Any], Any]]:
    """What asks a new process, which runs ``serve(pipe, *args)`` until `STOP`; of None it only waits for an
    answer. It raises the `PeerError` that it is answered, and one that has the ``name`` if the process dies.
    ``environment``: is added to ours."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs, *args), daemon=True)
    with settings.environment(environment or {}):
        process.start()
    theirs.close()

    def ask(what: Any) -> Any:
        try:
            if what is not None:
                ours.send(what)
            found = ours.recv()
        except (EOFError, OSError):
            raise PeerError(f"the process of {name} died; leave it out of --against") from None
        if isinstance(found, PeerError):
            raise found
        return found

    try:
        yield ask
    finally:
        try:
            ours.send(STOP)
        except OSError:
            process.kill()
        process.join(5)
        process.kill()
        ours.close()


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
    args = name, workload, list(inputs), list(outputs), threads
    with answering(_serve, args, f"peer {name!r}", {**_ALLOCATOR, **environment}) as ask:
        ask(1)
        yield PreparedPeer(lambda: ask(1), lambda: ask(_RESULT), sample=ask)


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
            while (what := pipe.recv()) != STOP:
                pipe.send(list(prepared.result()) if what == _RESULT else sample(contender, what))
    except PeerError as err:
        pipe.recv()
        pipe.send(err)
    except (EOFError, KeyboardInterrupt):
        pass
