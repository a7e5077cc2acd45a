"""The contract of an exported model: what a caller in another language must know, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from autotune.backends import confined
from autotune.codegen.runtime.model_tables import STATUSES, NativeModel
from autotune.models.export_text import ExportedCall
from autotune.models.program import Program
from autotune.models.saving import ModuleContents
from autotune.run.export import CONTRACT_VERSION, described
from autotune.targets import features
from schedules.distribution import VERSION


def contract_of(module: ModuleContents, name: str, call: ExportedCall, model: NativeModel) -> dict[str, Any]:
    """``model``: what was compiled."""
    target, threads = confined(module.target), threads_of(module.program)
    own = [dict(p.sizes) for p in module.own]
    sizes = [{"name": s.name, "c_name": s.word, "least": s.least, "most": s.most} for s in call.sizes]
    return {
        "contract": CONTRACT_VERSION,
        "autotune": VERSION,
        "name": name,
        "model": module.name,
        "library": f"{name}.so",
        "header": f"{name}.h",
        "weights": {
            "file": None if model.inside else f"{name}.weights",
            "bytes": model.weights_bytes,
            "crc32": model.crc,
        },
        "functions": {f: f"{name}_{f}" for f in call.functions},
        "arguments": [described(a) for a in call.arguments],
        "sizes": sizes,
        "own_sizes": own,
        "states": [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "bytes": t.nbytes}
            for t in module.program.kept
        ],
        "returns": {str(s): {"name": f"{name}_{word}", "means": told} for s, (word, told) in STATUSES.items()},
        "threads": threads,
        "instance_bytes": model.memory_bytes,
        "cpu": {"triple": target.triple, "arch": target.arch, "features": list(features.known(target))},
        "kernels": _kernels(module.program, module.tuned_s),
    }


def threads_of(program: Program) -> int:
    """The most threads of a kernel."""
    return max([1, *(k.target.threads for k in program.kernels)])


def _kernels(program: Program, tuned_s: Sequence[float | None]) -> list[dict[str, Any]]:
    return [
        {
            "workload": k.workload.digest,
            "calls": program.outline.count(i),
            "nodes": list(program.outline.nodes(i)),
            "threads": k.target.threads,
            "tuned_s": s,
            "record_id": getattr(k.record, "uid", None),
            "schedule": None if k.trace is None else json.loads(k.trace.to_json()),
        }
        for i, (k, s) in enumerate(zip(program.kernels, tuned_s, strict=True))
    ]
