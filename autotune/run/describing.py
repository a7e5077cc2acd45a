"""Words for a workload: what it is, and the command or the call that tunes it."""

from __future__ import annotations

import shlex

from autotune.run.workloads import dtype_of, is_custom, param_text, shown_params, strides_text
from schedules.model import Workload
from schedules.te.strided import strides_given
from schedules.units import visible


def describe(workload: Workload, threads: int | None = None) -> str:
    """``matmul m=512 n=512 k=512 float32, 2 threads``, or the outputs of a user's own expression. Control
    characters are spelled: names may be of a stranger's log."""
    if threads is not None:
        return f"{describe(workload)}, {threads} thread{'s' if threads != 1 else ''}"
    more = [f"constant {', '.join(workload.dag.constants)}"] if workload.dag.constants else []
    more += [f"strides {lie}"] if (lie := strides_text(workload)) else []
    if is_custom(workload):
        if workload.dag.open is not None:
            sizes = ", ".join(f"{s.name}={s.least}..{s.most}" for s in workload.dag.open.sizes)
            more = [f"with {sizes} open", *more]
        what = "the expression" if workload.op == "custom" else workload.op
        return visible(" ".join([f"{what} of {made(workload)} {dtype_of(workload)}", *more]))
    words = [f"{k}={param_text(v)}" for k, v in shown_params(workload).items()]
    return visible(" ".join([workload.op, *words, dtype_of(workload), *more]))


def made(workload: Workload) -> str:
    """What an expression computes: ``relu[16, 128]``."""
    return ", ".join(f"{n}{list(workload.dag.tensors[n].shape)}" for n in workload.dag.outputs)


def tune_command(workload: Workload, db: str, threads: int | None, target: str = "") -> str:
    """The command, or for a user's own expression the call, that would tune a workload. ``target``: its
    name; empty for this CPU."""
    if is_custom(workload):
        extra = "" if workload.op == "custom" else f", name={workload.op!r}"
        extra += f", strides={lie}" if (lie := strides_given(workload.dag)) else ""
        extra += f", target={target!r}" if target else ""
        extra += "" if threads is None else f", threads={threads}"
        return f"autotune.tune(the same tensors{extra}, db={db!r})"
    more = ["--target", target] if target else []
    return f"{command('tune', workload, threads)} {shlex.join([*more, '--db', db])}"


def command(verb: str, workload: Workload, threads: int | None) -> str:
    """``autotune <verb>`` for a workload of a library operator."""
    shown = shown_params(workload)
    layout = shown.pop("layout", None)
    shape = ",".join(f"{k}={param_text(v)}" for k, v in shown.items())
    words = ["autotune", verb, workload.op, "--shape", shape, "--dtype", dtype_of(workload)]
    words += ["--layout", str(layout)] if layout else []
    words += ["--constant-weights"] if workload.dag.constants else []
    words += ["--strides", lie] if (lie := strides_text(workload)) else []
    words += ["--threads", str(threads)] if threads is not None else []
    return shlex.join(words)
