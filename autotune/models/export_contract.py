"""The contract of an exported model: what a caller in another language must know, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from autotune.codegen.runtime.model_tables import STATUSES, NativeModel
from autotune.models.export_codes import CodeSet
from autotune.models.export_text import ExportedCall
from autotune.models.program import Program
from autotune.models.saving import ModuleContents
from autotune.run.export import (
    CONTRACT_VERSION,
    described,
    described_codes,
    described_cpu,
    described_sizes,
)
from autotune.run.export_codes import ChosenCode
from autotune.targets.askable import baseline
from schedules.distribution import VERSION


def contract_of(
    module: ModuleContents,
    name: str,
    call: ExportedCall,
    codes: Sequence[CodeSet],
    models: Sequence[NativeModel],
) -> dict[str, Any]:
    """``models``: what was compiled of each of the ``codes``."""
    target, model, several = codes[0].target, models[0], {}
    if codes[0].packs:
        target = baseline([c.target for c in codes])
        kernels = [{"kernels": _kernels(c.programs[-1], module.tuned_s)} for c in codes]
        several = described_codes(name, codes, kernels)
    own = [dict(p.sizes) for p in module.own]
    return several | {
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
        "sizes": described_sizes(call.sizes),
        "own_sizes": own,
        "states": [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "bytes": t.nbytes}
            for t in module.program.kept
        ],
        "returns": {
            str(s): {"name": f"{name}_{word}", "means": told} for s, (word, told) in STATUSES.items()
        },
        "threads": max(threads_of(p) for c in codes for p in c.programs),
        "instance_bytes": max(m.memory_bytes for m in models),
        "cpu": described_cpu(target),
        **({} if several else {"kernels": _kernels(module.program, module.tuned_s)}),
    }


def threads_of(program: Program) -> int:
    """The most threads of a kernel."""
    return max([1, *(k.target.threads for k in program.kernels)])


def _kernels(program: Program, tuned_s: Sequence[float | None]) -> list[dict[str, Any]]:
    """What runs each task of a program, in whatever set of code."""
    found = []
    for i, (k, s) in enumerate(zip(program.kernels, tuned_s, strict=True)):
        chosen: ChosenCode | None = getattr(k, "chosen", None)
        if chosen is None:
            schedule_from, tuned, record_id = k.chosen_by, s, getattr(k.record, "uid", None)
        else:
            schedule_from, tuned, record_id = chosen.chosen_by, chosen.time_s, chosen.record_id
        found.append(
            {
                "workload": k.workload.digest,
                "calls": program.outline.count(i),
                "nodes": list(program.outline.nodes(i)),
                "threads": k.target.threads,
                "schedule_from": schedule_from,
                "tuned_s": tuned,
                "record_id": record_id,
                "schedule": None if k.trace is None else json.loads(k.trace.to_json()),
            }
        )
    return found
