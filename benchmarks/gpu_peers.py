"""Our kernel and other libraries' on one NVIDIA GPU, interleaved: rounds in which each has its turn, the
second cache written over before each, times by events on one stream.

Each contender is captured into a CUDA graph where that is possible, so that what Python costs is nobody's
time. float32 means float32: tf32 is off everywhere. float16 is what arrays hold: what is computed with it is
each library's choice, and all that we know of widen sums to float32. Products of torch are cuBLAS's, its
convolutions cuDNN's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch

from autotune.measure import random_inputs
from autotune.measure.compare.peers.with_torch import operator, tensor
from autotune.run.kernel import Kernel
from autotune.run.workloads import dtype_of
from schedules.model import Workload
from schedules.ops import parameters

ROUNDS = 60
WARM = 5
TOLERANCE = {  # of the RMS, by dtype of the inputs: peers may round to it at every step
    "float16": 2e-2,
    "bfloat16": 1.5e-1,
    "float32": 1e-3,
    "int8": 0.0,
    "uint8": 0.0,
}
CUDNN = "torch, cuDNN"  # attention alone: elsewhere torch chooses among cuDNN's by itself
FLUSH_BYTES = 256 << 20
Call = Callable[[], Any]


def compare(
    kernel: Kernel, workload: Workload, names: Collection[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """(median seconds by name, what was left out and why): a peer that is not among ``names``, cannot be had,
    fails, or disagrees with our kernel, which was checked against numpy when it was tuned."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    inputs = [tensor(x).cuda() for x in random_inputs(workload.dag)]
    outs = [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="cuda") for t in _outputs(workload)]
    out = outs[0] if len(outs) == 1 else tuple(outs)
    contenders: dict[str, Call] = {"autotune": lambda: kernel(*inputs, out=out)}
    contenders["autotune"]()
    expected = outs[0].double()
    skipped: dict[str, str] = {}
    with torch.inference_mode():
        for name, make in _others(workload):
            if name.split(",")[0] not in names:
                skipped[name] = "it was not asked for"
                continue
            try:
                call = make(workload, inputs)
                _agree(workload, call(), expected)
                contenders[name] = call
            except Exception as err:  # whatever a peer raises, our own row is kept
                skipped[name] = " ".join(f"{type(err).__name__}: {err}".split())[:300]
        return times({n: _captured(c) for n, c in contenders.items()}), skipped


def times(calls: Mapping[str, Call], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each over the rounds."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    pairs: dict[str, list[tuple[Any, Any]]] = {n: [] for n in calls}
    for number in range(WARM + rounds):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()  # while it runs, the host gets ahead
            start.record()
            call()
            end.record()
            if number >= WARM:
                pairs[name].append((start, end))
        torch.cuda.synchronize()
    return {n: statistics.median(a.elapsed_time(b) for a, b in p) * 1e-3 for n, p in pairs.items()}


def copy_bandwidth(nbytes: int = 1 << 30) -> float:
    """Bytes read and written in a second by a copy of this many bytes."""
    a, b = (torch.empty(nbytes, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * nbytes / times({"copy": lambda: b.copy_(a)})["copy"]


def call_seconds(calls: int = 2000) -> dict[str, float]:
    """What a call costs the host, best of a few rounds: of a kernel of ours that takes next to no time, and
    of torch's own addition, both into arrays that are there."""
    import autotune as at

    x, y, z = (torch.zeros(64, device="cuda") for _ in range(3))
    a, b = (at.te.placeholder((64,), "float32", name=n) for n in "ab")
    total = at.te.compute((64,), lambda i: a[i] + b[i], name="z")
    schedule = at.Schedule([a, b, total])
    schedule.bind(schedule.loops("z")[0], "threadIdx.x")
    kernel = at.build(schedule, target="cuda")
    found = {}
    for name, call in (
        ("autotune", lambda: kernel(x, y, out=z)),
        ("torch", lambda: torch.add(x, y, out=z)),
    ):
        rounds = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            rounds.append((time.perf_counter() - start) / calls)
        found[name] = min(rounds)
    torch.cuda.synchronize()
    return found


def _others(workload: Workload) -> list[tuple[str, Callable[[Workload, list[Any]], Call]]]:
    """Other libraries by name, each with what makes its call."""
    all_have = [("torch", _eager), ("torch.compile", _compiled), ("triton", _triton)]
    return [*all_have, (CUDNN, _cudnn)] if workload.op == "attention" else all_have


def _outputs(workload: Workload) -> list[Any]:
    return [workload.dag.tensors[n] for n in workload.dag.outputs]


def _captured(call: Call) -> Call:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return call
    return graph.replay


def _eager(workload: Workload, inputs: list[Any]) -> Call:
    return operator(workload.op)(parameters(workload), inputs, None)


def _cudnn(workload: Workload, inputs: list[Any]) -> Call:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    call = _eager(workload, inputs)

    def attention() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return call()

    return attention


def _compiled(workload: Workload, inputs: list[Any]) -> Call:
    torch._dynamo.reset()
    return torch.compile(_eager(workload, inputs), mode="max-autotune-no-cudagraphs")


def _triton(workload: Workload, inputs: list[Any]) -> Call:
    import triton_kernels

    return triton_kernels.operator(workload.op, parameters(workload), inputs)


def _agree(workload: Workload, got: Any, expected: Any) -> None:
    error = (got.double() - expected).abs().max().item()
    scale = expected.square().mean().sqrt().item() or 1.0
    if not np.isfinite(error) or error > TOLERANCE[dtype_of(workload)] * scale:
        raise ValueError(f"it and the tuned kernel differ by {error / scale:.2g} of the RMS")
