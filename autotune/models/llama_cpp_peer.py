"""Language models beside llama.cpp, which reads the file that they were imported from.

The package ``llama-cpp-python`` runs in a process of its own, with as many threads as the model here. Each
call is timed there, so that no time contains communication. Without it the program ``llama-bench`` is taken.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import one_line
from autotune.measure.compare.peers import PeerError
from autotune.measure.compare.peers.apart import STOP, answering
from autotune.models.decoding import Calls, Spent, timed
from autotune.models.llama_bench_peer import PROGRAM, LlamaBench

PACKAGE = "llama_cpp"
INSTALL = "pip install llama-cpp-python"
# Numbers that llama.cpp has for dtypes of a cache.
CACHES = {"float32": 0, "float16": 1, "bfloat16": 30}


class LlamaCpp:
    """llama.cpp in another process, as a contender. ``logits``: of the last token of the last call."""

    name, tells_cpu = "llama.cpp", True

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        self._ask = ask
        self.logits = np.zeros(0, np.float32)

    def run(self, calls: Calls) -> list[Spent]:
        """What each call took. Raises `PeerError`."""
        given = [(list(map(int, tokens)), position) for tokens, position in calls]
        spent, self.logits = self._ask(given)
        return spent


@contextmanager
def llama_cpp(path: str, threads: int, context: int, cache: str) -> Iterator[LlamaCpp | LlamaBench]:
    """llama.cpp with a file, with room for ``context`` tokens in a cache of this dtype. Raises `PeerError`
    where it is not installed or does not read the file."""
    program = shutil.which(PROGRAM)
    if find_spec(PACKAGE) is None and program is not None:
        yield LlamaBench(program, os.path.abspath(path), threads, cache)
        return
    if find_spec(PACKAGE) is None:
        raise PeerError(
            f"llama.cpp is not installed: {INSTALL}, or put {PROGRAM} on PATH; or leave it out of --against"
        )
    with answering(serve, (os.path.abspath(path), threads, context, cache), "llama.cpp") as ask:
        ask(None)  # it has read the file
        yield LlamaCpp(ask)


def serve(pipe: Connection, path: str, threads: int, context: int, cache: str) -> None:
    """Serve in the other process until it is told to stop or the parent has gone."""
    try:
        run = _Session(path, threads, context, cache)
        pipe.send(None)
        while (given := pipe.recv()) != STOP:
            pipe.send(run.calls(given))
    except PeerError as err:
        pipe.send(err)
    except (EOFError, OSError, KeyboardInterrupt):
        pass


class _Session:
    """A model of llama.cpp with one sequence, by its functions of C."""

    def __init__(self, path: str, threads: int, context: int, cache: str) -> None:
        try:
            from llama_cpp import llama_cpp as c
        except Exception as err:
            raise PeerError(f"{PACKAGE} cannot be loaded: {one_line(err, 300)}; {INSTALL}") from None
        self._c = c
        self._quiet = c.llama_log_callback(lambda level, text, data: None)  # kept, as C has its address
        c.llama_log_set(self._quiet, None)
        _load_backends(c)
        c.llama_backend_init()
        how = c.llama_model_default_params()
        how.n_gpu_layers = 0
        model = c.llama_model_load_from_file(os.fsencode(path), how)
        if not model:
            raise PeerError(f"llama.cpp does not read {path}; leave it out of --against")
        told = c.llama_context_default_params()
        told.n_ctx, told.n_threads, told.n_threads_batch, told.no_perf = context, threads, threads, True
        told.type_k = told.type_v = CACHES[cache]
        self._context = c.llama_init_from_model(model, told)
        if not self._context:
            raise PeerError(f"llama.cpp has no context of {context} tokens with a {cache} cache for {path}")
        self._memory = c.llama_get_memory(self._context)
        self._words = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))

    def calls(self, calls: Sequence[tuple[list[int], int]]) -> tuple[list[Spent], NDArray[np.float32]]:
        """What each call took, and the logits of the last one."""
        spent = []
        for tokens, position in calls:
            self._c.llama_memory_seq_rm(self._memory, 0, position, -1)
            given = (self._c.llama_token * len(tokens))(*tokens)
            spent.append(timed(partial(self._read, given)))
        found = self._c.llama_get_logits_ith(self._context, -1)
        return spent, np.ctypeslib.as_array(found, (self._words,)).astype(np.float32)

    def _read(self, tokens: Any) -> None:
        """Read tokens behind those that are there."""
        status = self._c.llama_decode(self._context, self._c.llama_batch_get_one(tokens, len(tokens)))
        if status:
            raise PeerError(f"llama.cpp does not read {len(tokens)} tokens: llama_decode gives {status}")
        self._c.llama_get_logits_ith(self._context, -1)  # waits for them


def _load_backends(c: Any) -> None:
    """Some builds have a library for each kind of CPU, beside the others, and load none by themselves."""
    folder = str(c._base_path)
    load = getattr(c._lib, "ggml_backend_load_all_from_path", None)
    if load is not None and any(n.startswith("libggml-cpu-") for n in os.listdir(folder)):
        load.argtypes, load.restype = [ctypes.c_char_p], None
        load(os.fsencode(folder))
