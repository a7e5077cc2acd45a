"""A kernel as text, so that it can be pickled: its workload, its schedule and its target, never its code
(ADR 49)."""

from __future__ import annotations

from autotune.errors import CompileError
from schedules.documents import Malformed, any_text, integer, mapping_of, parsed_object, record, short
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
        v = parsed_object(text)
        if v.get("version") != VERSION:
            raise CompileError(
                f"a pickled kernel of version {short(v.get('version'))}, and this autotune reads {VERSION}: "
                "use the same autotune in both processes"
            )
        v = _KERNEL(v)
    except Malformed as err:
        raise CompileError(f"malformed text of a pickled kernel: {err}") from None
    workload = Workload.from_json(v["workload"], v["op"], v["params"], v["flops"], v["names"])
    return workload, Target.from_json(v["target"]), Trace.from_json(v["trace"]), v["chosen_by"]


_ANY = mapping_of(lambda x: x)
_KERNEL = record(
    {
        "version": integer(VERSION, VERSION),
        "workload": any_text,
        "names": _ANY,
        "op": any_text,
        "params": _ANY,
        "flops": integer(0),
        "target": any_text,
        "trace": any_text,
        "chosen_by": any_text,
    }
)
