"""How long ONNX Runtime takes for each operator of a model, by its own profile."""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from autotune.measure.compare.onnx_session import refusals, session
from autotune.models.module import Module
from autotune.models.onnxruntime_peer import inputs_for
from kernels_db.temporary import temporary_folder

# Runs before those that count, and those.
WARM, RUNS = 3, 10


@dataclass(frozen=True)
class OperatorTime:
    """An operator that ONNX Runtime runs, after its own rewrites. ``count``: nodes in a call. ``seconds``: of
    all of them together, a call."""

    op: str
    count: int
    seconds: float


def operator_times(path: str | os.PathLike[str], module: Module) -> list[OperatorTime]:
    """Run a model's file in ONNX Runtime, with the module's number of threads and random inputs. Medians of
    `RUNS` runs, the longest operator first. Raises `PeerError`."""
    inputs = inputs_for(module.inputs, 0)
    feeds = {t.name: x for t, x in zip(module.inputs, inputs, strict=True)}
    with temporary_folder() as folder:
        with refusals(os.fspath(path)):
            made = session(os.fspath(path), module.target.threads, str(folder / "profile"))
            for _ in range(WARM + RUNS):
                made.run(None, feeds)
            written = made.end_profiling()
        events = json.loads(Path(written).read_text("utf-8"))
    return _summed(events)


def _summed(events: object) -> list[OperatorTime]:
    """From the events of a profile. Of each node, the first `WARM` runs do not count."""
    nodes: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for e in events if isinstance(events, list) else ():
        if e.get("cat") == "Node" and str(e.get("name", "")).endswith("_kernel_time"):
            nodes[str(e.get("args", {}).get("op_name", "?")), str(e["name"])].append(float(e["dur"]) * 1e-6)
    by_op: defaultdict[str, list[float]] = defaultdict(list)
    for (op, _), times in nodes.items():
        by_op[op].append(statistics.median(times[WARM:] or times))
    found = [OperatorTime(op, len(times), sum(times)) for op, times in by_op.items()]
    return sorted(found, key=lambda o: -o.seconds)
