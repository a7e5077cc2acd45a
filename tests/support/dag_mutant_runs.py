"""Runs changed expressions (`dag_mutants`) that the door lets through, each in a process of its own between
inaccessible pages. ``python dag_mutant_runs.py FIRST LAST`` prints a JSON object: {outcome: [seed, ...]}."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from math import prod
from typing import Any

from dag_mutants import documents, mutated
from helpers import checker, host, inputs, run_object

from autotune.backends.building.from_trace import build_object
from autotune.errors import CompileError
from schedules.errors import AutotuneError
from schedules.model import Trace
from schedules.te.compute_dag import ComputeDAG

LIMIT_S = 60  # of one mutant, on a busy machine
MOST = 1 << 20  # points and bytes of what is run


def outcome(v: Any, reducers: list[Any]) -> str:
    """What becomes of a document: refused, too large to run here, refused when it is compiled, or run."""
    try:
        dag = ComputeDAG.from_json(v)
    except ValueError:
        return "refused"
    points = sum(prod(a.extent for a in (*s.axes, *s.reduce_axes)) for s in dag.stages)
    if points + sum(t.nbytes for t in dag.tensors.values()) > MOST:
        return "large"
    try:
        obj = build_object(dag, Trace(), host())
    except CompileError as err:
        return f"not compiled: {err}"  # refused by LLVM, which is for the door to do
    except AutotuneError:
        return "refused later"
    data = inputs(dag)
    check = checker(dag, data)
    for n, arrays in enumerate(run_object(obj, dag, host(), data).values()):
        wrong = check.check(arrays, n).reason
        # a reducer that was changed may have no one meaning: its terms come in any order
        if wrong and all(s["reducer"] is None or s["reducer"] in reducers for s in dag.to_json()["stages"]):
            return f"wrong: {wrong}"
    return "right"


def apart(outcome: Callable[[], str]) -> str:
    """The outcome in a child: the signal that ended it, if one did."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        try:
            text = outcome()
        except BaseException as err:  # told, not raised: the parent asks
            text = f"{type(err).__name__}: {err}"
        os.write(send, text[:4000].encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as f:
        text = f.read()
    _, status = os.waitpid(child, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text


def main(first: int, last: int) -> None:
    warnings.simplefilter("ignore")
    dags = documents()
    reducers = [s["reducer"] for d in dags for s in d["stages"] if s["reducer"]]
    found: dict[str, list[int]] = {}
    for seed in range(first, last):
        v = mutated(dags, seed)
        found.setdefault(apart(lambda v=v: outcome(v, reducers)), []).append(seed)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
