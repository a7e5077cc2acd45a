"""Which arithmetic of a DAG an instruction may do, and how much there is of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import inf

from schedules.dtypes import is_float
from schedules.gpu_architectures import features
from schedules.instructions import INSTRUCTIONS
from schedules.instructions.match import fits
from schedules.ir.instruction import Instruction
from schedules.ir.nest import stage_block
from schedules.microarchitecture import instruction_costs
from schedules.model import Target
from schedules.te.compute_dag import ComputeDAG, Stage
from schedules.te.flops import flops_by_dtype, flops_of_stage

RATE = "_a_second"  # what the name of an instruction's rate ends with
ROUNDING = 1.01  # what a limit is longer than its parts at most, unless it is that of something else


def instructions_for(dag: ComputeDAG, features: Collection[str]) -> list[Instruction]:
    """The instructions of a target with such features that some stage of a DAG is, by its expression alone:
    how long axes are, and where operands lie, is not asked."""
    known = [i for i in INSTRUCTIONS.values() if i.features and i.offered(features)]
    found = {i.name for s in dag.stages for i in _ways(s, known)}
    return [i for i in known if i.name in found]


def times_as_fast(dag: ComputeDAG, target: Target) -> float:
    """How many times as fast as multiply-adds of float32 the fastest instruction is that some stage is,
    about; 1 where there is none."""
    usual, costs = 2 * target.limit("vector_bytes", 16) / 4, dict(instruction_costs(target))
    found = instructions_for(dag, features(target))
    return max([1.0, *(i.operations / costs.get(i.name, i.cost) / usual for i in found)])


def _ways(s: Stage, known: Sequence[Instruction]) -> list[Instruction]:
    """Those of ``known`` that a stage is. Its operands are changed for one that is faster than all that take
    them as they are, as the space offers it."""
    if s.reducer is None:
        return []
    block = stage_block(s)
    found = [(i, fits(block, i, changed=True)) for i in known]
    exact = {i.name: i.cost_each for i, ways in found if any(not x.changes for x in ways)}
    usual = min(exact.values(), default=inf)
    return [i for i, ways in found if i.name in exact or (ways and i.cost_each < usual)]


def work(dag: ComputeDAG, flops: int, instructions: Sequence[Instruction] = ()) -> dict[str, float]:
    """{what does it: those of ``flops`` operations}. A stage is done by the first of ``instructions`` that it
    is, by its name; else floats are done by the dtype that they are computed with. Other integers take no
    time here. An operator may count fewer or more operations than its expression has (`Workload.flops`): the
    parts are those of the expression.

    >>> dag = ops.workload("matmul", {"m": 4, "n": 4, "k": 4}, "bfloat16").dag
    >>> work(dag, 128, [INSTRUCTIONS["vdpbf16ps"]])
    {'vdpbf16ps': 128.0}
    """
    found: Counter[str] = Counter()
    for s in dag.stages:
        own = flops_of_stage(s)
        ins = next(iter(_ways(s, instructions)), None)
        if ins is not None:
            found[ins.name] += own.total()
        else:
            found.update({d: n for d, n in own.items() if is_float(d)})
    counted = flops_by_dtype(dag).total()
    return {d: n * flops / counted for d, n in found.items() if flops}


def arithmetic(dag: ComputeDAG, flops: int, rates: Mapping[str, float]) -> dict[str, float]:
    """`work` by the instructions whose rates were measured (``vpdpbusd_a_second``), the fastest first. Other
    names are left out."""
    names = [k.removesuffix(RATE) for k in sorted(rates, key=lambda k: -rates[k]) if k.endswith(RATE)]
    return work(dag, flops, [INSTRUCTIONS[n] for n in names if n in INSTRUCTIONS])


def limiting(dag: ComputeDAG, flops: int, seconds: float, rates: Mapping[str, float]) -> str | None:
    """The name of the instruction whose peak a limit of ``seconds`` is that of: it does most of the
    operations, and these take that long. None: the limit is that of something else, or it is not known.
    ``rates``: from which the limit was found, of all operations together as ``flops_a_second``."""
    found, rate = arithmetic(dag, flops, rates), rates.get("flops_a_second", 0.0)
    if not found or rate <= 0 or sum(found.values()) / rate * ROUNDING < seconds:
        return None
    most = max(found, key=lambda what: found[what] / rates.get(what + RATE, rate))
    return most if most in INSTRUCTIONS else None
