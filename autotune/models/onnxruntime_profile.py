"""How long ONNX Runtime takes for each operator of a model, by its own profile."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import one_line
from autotune.measure.compare.peers import PeerError
from autotune.models.module import Module
from autotune.models.onnxruntime_peer import inputs_for
from schedules.distribution import install

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
    try:
        import onnxruntime as ort
    except ImportError:
        raise PeerError(f"onnxruntime is not installed: {install('onnxruntime')}") from None
    inputs = inputs_for(module.inputs, 0)
    feeds = {t.name: x for t, x in zip(module.inputs, inputs, strict=True)}
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = module.target.threads, 1
        options.log_severity_level = 3
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        try:
            session = ort.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
            for _ in range(WARM + RUNS):
                session.run(None, feeds)
            written = session.end_profiling()
        except Exception as err:  # onnxruntime has no error class of its own
            raise PeerError(f"onnxruntime does not run {path}: {one_line(err, 300)}") from None
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
