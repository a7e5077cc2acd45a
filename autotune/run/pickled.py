"""A kernel as text, so that it can be pickled: its workload, its schedule and its target, never its code
(ADR 49)."""

from __future__ import annotations

import json
from typing import Any

from autotune.errors import CompileError
from schedules.model import Target, Trace, Workload, canonical

VERSION = 1


def text_of(workload: Workload, target: Target, trace: Trace, chosen_by: str) -> str:
    """``trace``: in the names of the workload where the caller wrote it by hand (``chosen_by``: "schedule"),
    in canonical ones otherwise, as `autotune.run.kernels.kernel_of` takes it."""
    return canonical(
        {
            "version": VERSION,
            "workload": workload.json,
            "names": workload.names,
            "op": workload.op,
            "params": dict(workload.params),
            "flops": workload.flops,
            "target": target.json,
            "trace": trace.to_json(),
            "chosen_by": chosen_by,
        }
    )


def read(text: str) -> tuple[Workload, Target, Trace, str]:
    """Inverse of `text_of`. The text may come from anywhere. Raises CompileError for one that this version
    did not write, and ValueError for a workload, a target or a trace that is none."""
    try:
        v: Any = json.loads(text)
        if v["version"] != VERSION:
            raise CompileError(
                f"a pickled kernel of version {v['version']!r}, and this autotune reads {VERSION}: use the "
                "same autotune in both processes"
            )
        workload = Workload.from_json(v["workload"], str(v["op"]), v["params"], int(v["flops"]), v["names"])
        return workload, Target.from_json(v["target"]), Trace.from_json(v["trace"]), str(v["chosen_by"])
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as err:
        raise CompileError(f"malformed text of a pickled kernel: {err!r}") from None
