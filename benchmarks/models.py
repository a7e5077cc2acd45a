"""Whole models beside ONNX Runtime and torch.compile: outputs, time, memory, and time in place over tuned.

    python benchmarks/models.py --threads 1 --each 10 --out benchmarks/results/models.json [NAME ...]

Each network of ``networks.py`` is exported to ONNX with random weights, imported, tuned with ``--each`` seconds
a unique task, and compiled. Its outputs are compared with ONNX Runtime's. Then all peers run in turns, in
rounds; a time is the median of the rounds' medians. With one thread it is CPU time of that thread, which other
work on the machine does not lengthen much; with more it is time on the clock. Rows that the file has are kept,
so that a run can be resumed; ``--again`` times them once more. ``--markdown`` prints its table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from suite import commit  # noqa: E402

NAMES = ("resnet18", "resnet50", "mobilenet_v2", "bert", "gpt2")
ROUNDS = 7
ROUND_S = 0.4
PEERS = ("onnxruntime", "torch", "torch.compile")


def clock(threads: int) -> Callable[[], float]:
    return time.thread_time if threads == 1 else time.perf_counter


def once(call: Callable[[], Any], threads: int) -> float:
    """The median seconds of calls for `ROUND_S`."""
    now, times, end = clock(threads), [], time.perf_counter() + ROUND_S
    while time.perf_counter() < end or len(times) < 3:
        begin = now()
        call()
        times.append(now() - begin)
    return statistics.median(times)


def peers(name: str, path: str, threads: int) -> tuple[dict[str, Callable[[], Any]], list[Any]]:
    """{peer: a call}, and the inputs as arrays."""
    import networks
    import onnxruntime
    import torch
    import torch._inductor.config as inductor

    torch.set_num_threads(threads)
    module, inputs, names = networks.network(name)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    arrays = [x.numpy() for x in inputs]
    feeds = dict(zip(names, arrays, strict=True))
    last = torch.channels_last
    image = inputs[0].ndim == 4
    eager = module.to(memory_format=last) if image else module
    given = [x.contiguous(memory_format=last) if image else x for x in inputs]
    calls: dict[str, Callable[[], Any]] = {"onnxruntime": lambda: session.run(None, feeds)}
    with torch.no_grad(), inductor.patch(freezing=True):
        compiled = torch.compile(eager, mode="max-autotune")
        compiled(*given)

    def without_gradients(call: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return call(*given)

        return run

    calls |= {"torch": without_gradients(eager), "torch.compile": without_gradients(compiled)}
    return calls, arrays


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tuned(path: str, threads: int, each_s: float, db: str) -> dict[str, Any]:
    """In this process: tune and compile a model. Twice, to see what the second run costs."""
    import autotune as at

    model = at.import_onnx(path)
    result = at.tune_model(model, threads=threads, budget_s=0.1, trials=0, db=db) if each_s == 0 else None
    tasks = len(at.models_tasks(model)) if result is None and hasattr(at, "models_tasks") else None
    result = at.tune_model(model, threads=threads, db=db, **({} if each_s == 0 else {"budget_s": None}))
    return {"tasks": tasks or len(result.tasks), "trials": result.measured, "tune_s": result.elapsed_s}


def memory_of(path: str) -> dict[str, Any]:
    """In this process: load a saved model and run it. How much memory it takes beside its weights and arena."""
    import autotune as at

    before = resident()
    begin = time.perf_counter()
    net = at.load_model(path)
    took = time.perf_counter() - begin
    net(*[np.zeros(t.shape, t.dtype) for t in net.inputs])
    known = net.program.weights_bytes + net.program.arena_bytes
    return {"load_s": took, "resident": resident() - before, "weights_and_arena": known}
