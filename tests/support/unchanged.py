"""What stays as it is where no size is open: digests, spaces, features and code, as hashes.

``data/unchanged.json`` has them. A change that is meant to move some renews the file:

    PYTHONPATH=tests/support:benchmarks python tests/support/unchanged.py          # what differs
    PYTHONPATH=tests/support:benchmarks python tests/support/unchanged.py --renew  # writes the file anew

Code is the text that LLVM, or a compiler of a GPU, is given. So versions of compilers do not show. Features
are compared to nine digits, because the logarithms of numpy differ in the last bit from machine to machine.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from small_shapes import FORMS, SMALL

from autotune import backends
from autotune.backends.building import shared_library
from autotune.codegen.runtime import entry
from autotune.run import export, export_text
from autotune.run.kernel import packed_params
from autotune.run.workloads import param_text
from autotune.targets import from_name
from kernels_db import Log
from schedules import ops
from schedules.errors import AutotuneError, ScheduleError
from schedules.ir.nest import tensor_buffer
from schedules.model import Target, Trace, Workload
from schedules.space import DerivedSpace, derive
from schedules.te.compute_dag import ComputeDAG

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("data") / "unchanged.json"
# Files of measured candidates, and how many tasks each has, of which one in `EVERY` is looked at.
MEASURED = {"cpu-graniterapids": 181, "cpu-znver4": 544, "cpu-znver5": 181}
EVERY = 5
EXPORTS = ("log-export-1-names", "log-export-1", "log-export-2")
RENEW = (
    "where that is meant, run: PYTHONPATH=tests/support:benchmarks python tests/support/unchanged.py --renew"
)
# Instructions of CPUs that no described target has.
MATRICES = ("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512vnni")

Hashes = dict[str, str]
Group = Callable[[], Hashes]


@cache
def targets() -> tuple[Target, ...]:
    """Described ones, so that no fact of this machine counts."""
    v4 = from_name("x86-64-v4")
    return (
        v4,
        replace(from_name("x86-64-v3"), threads=2),
        from_name("neoverse-v1"),
        replace(v4, arch="sapphirerapids", features=tuple(sorted((*v4.features, *MATRICES)))),
        from_name("h100"),
    )


def hashed(lines: Iterable[str]) -> str:
    found = hashlib.sha256()
    for line in lines:
        found.update(line.encode() + b"\n")
    return found.hexdigest()[:16]


# -- operators ---------------------------------------------------------------------------------


def digests_of(op: str) -> Hashes:
    """Those of an operator's forms, in every dtype and layout."""
    forms = [SMALL[op], *(p for name, p in FORMS if name == op)]
    found = ops.get(op)
    lines = []
    for params in forms:
        for dtype in found.dtypes:
            for layout in found.layouts or (None,):
                try:
                    w = ops.workload(op, dict(params), dtype, layout)
                except AutotuneError as err:
                    lines.append(f"{params} {dtype} {layout} {type(err).__name__}")
                    continue
                lines.append(f"{params} {dtype} {layout} {w.digest} {json.dumps(w.dag.to_json())}")
    return {"digests": hashed(lines)}


def space_of(w: Workload, every: Sequence[Target], each: int = 1) -> Hashes:
    """The spaces of a workload on targets, the features of some of their schedules, and their code; those of
    CPUs and those of GPUs by themselves."""
    out: Hashes = {}
    for grid in sorted({t.grid for t in every}):
        lines: dict[str, list[str]] = {"space": [], "features": [], "code": []}
        for target in (t for t in every if t.grid == grid):
            space = derive(w.dag, target)
            for k, name in enumerate(space.sketches):
                lines["space"].append(f"{target.arch} {name} {space.holes(k)}")
                add_rows(lines, w.dag, space, k, drawn(space, k, each))
        out |= {f"{what} of GPUs" if grid else what: hashed(found) for what, found in lines.items()}
    return out


def drawn(space: DerivedSpace, sketch: int, most: int) -> np.ndarray:
    """Rows of decisions that are valid, the same in each run."""
    rows = space.sample(sketch, 8, np.random.default_rng(sketch))
    return rows[space.valid(sketch, rows)][:most]


def add_rows(
    lines: dict[str, list[str]], dag: ComputeDAG, space: DerivedSpace, sketch: int, rows: np.ndarray
) -> None:
    """Traces, features and code of rows of decisions."""
    for row in rows:
        trace = space.trace(sketch, row)
        lines["space"].append(trace.to_json())
        lines["code"].append(code_of(dag, trace, space.target))
    lines["features"] += features_of(space, sketch, rows)


def features_of(space: DerivedSpace, sketch: int, rows: np.ndarray) -> Iterator[str]:
    if len(rows):
        yield from (" ".join(f"{x:.9g}" for x in row) for row in space.features(sketch, rows).tolist())


def code_of(dag: ComputeDAG, trace: Trace, target: Target) -> str:
    """The text that is compiled, with a kernel's header."""
    try:
        return backends.of(target).source(dag, trace, target)
    except ScheduleError as err:
        return f"refused: {err}"


def exported(op: str) -> Hashes:
    """What callers of C are given: the functions, and the header without the version of the project."""
    w = ops.workload(op, dict(SMALL[op]))
    params, outputs = tuple(map(tensor_buffer, w.dag.params)), w.dag.outputs
    target = targets()[0]
    kernel: Any = _Exported(w, target, params[: len(w.dag.inputs)], params[len(w.dag.inputs) :])
    functions = export._functions(kernel, op)
    (text,) = (
        shared_library._text(func, target, f"{op}_run")
        for func in [shared_library.programs(w.dag, Trace(), target)[0]]
    )
    contract = export._contract(kernel, op, functions) | {"autotune": "1"}
    return {
        "signature": hashed([entry.signature(packed_params(params, {}), outputs)]),
        "library": hashed([text]),
        "header": hashed([export_text.header(op, functions, contract), json.dumps(contract)]),
        "example": hashed([export_text.example(op, functions)]),
    }


class _Exported:
    """As much of a kernel as export asks for; nothing is compiled."""

    packed: tuple[int, ...] = ()
    record, trace = None, Trace()

    def __init__(self, workload: Workload, target: Target, ins: Any, outs: Any) -> None:
        self.workload, self.target, self.parameters = workload, target, (ins, outs)


# -- stored logs -------------------------------------------------------------------------------


@cache
def measured_tasks(file: str) -> list[Any]:
    from measured import read

    return read(ROOT / "benchmarks" / "data" / f"{file}.jsonl.xz")[1]


def measured_task(file: str, number: int) -> Hashes:
    """A task of a file of `benchmarks/measured.py`: features of all its candidates, and code of the best of
    each sketch, or of one that is drawn where its sketch has none."""
    t = measured_tasks(file)[number]
    lines: dict[str, list[str]] = {"space": [], "features": [], "code": []}
    space = derive(t.workload.dag, t.target)
    known = {(s.name, s.holes): s for s in t.sketches}
    for k, name in enumerate(space.sketches):
        holes = tuple(space.holes(k))
        lines["space"].append(f"{name} {holes}")
        s = known.get((name, holes))
        if s is None or not np.isfinite(s.time_s).any():
            add_rows(lines, t.workload.dag, space, k, drawn(space, k, 1))
            continue
        lines["features"] += features_of(space, k, s.rows)
        add_rows(lines, t.workload.dag, space, k, s.rows[[int(np.nanargmin(s.time_s))]])
    return {"digest": t.workload.digest[:16], **{what: hashed(found) for what, found in lines.items()}}


def stored_log(file: Path, best: bool) -> Hashes:
    """An exported log, merged into a new one: its workloads, and the code of its traces, or of the ``best``
    of each task."""
    lines: dict[str, list[str]] = {"digests": [], "code": []}
    with TemporaryDirectory() as folder, Log(Path(folder) / "new.db") as log:
        log.merge(file)
        for digest in log.workloads():
            lines["digests"].append(f"{digest} {json.dumps(log.workload(digest).canonical.to_json())}")
        for w, t in log.tasks():
            dag, target = log.workload(w).canonical, log.target(t)
            every = [log.best(w, t)] if best else list(log.records(workload=w, target=t))
            traces = {r.trace.to_json(): r.trace for r in every if r is not None and r.trace is not None}
            lines["code"] += [code_of(dag, x, target) for _, x in sorted(traces.items())]
    return {what: hashed(found) for what, found in lines.items()}


# -- all of them -------------------------------------------------------------------------------


def groups() -> dict[str, Group]:
    """{name: what makes its hashes}."""
    found: dict[str, Group] = {}
    for op in SMALL:
        found[f"digests of {op}"] = partial(digests_of, op)
        found[f"export of {op}"] = partial(exported, op)
    for op, params in [*SMALL.items(), *FORMS]:
        shown = ",".join(f"{k}={param_text(v)}" for k, v in params.items())
        dtypes = ops.get(op).dtypes
        main = "float32" if "float32" in dtypes else dtypes[0]
        for dtype in dtypes if params is SMALL[op] else [main]:
            of = targets() if dtype == main else targets()[3:4]
            found[f"space of {op} {shown} {dtype}"] = partial(operator_space, op, params, dtype, of)
    for file in EXPORTS:
        found[f"log {file}"] = partial(stored_log, ROOT / "tests/kernels_db/data" / f"{file}.jsonl", False)
    found["log cuda-h100"] = partial(stored_log, ROOT / "benchmarks/data/cuda-h100.jsonl.xz", True)
    for file, count in MEASURED.items():
        for n in range(0, count, EVERY):
            found[f"task {file} {n}"] = partial(measured_task, file, n)
    return found


def operator_space(op: str, params: Mapping[str, Any], dtype: str, of: Sequence[Target]) -> Hashes:
    return space_of(ops.workload(op, dict(params), dtype), of)


def stored() -> dict[str, Hashes]:
    """What ``data/unchanged.json`` holds."""
    found: dict[str, Hashes] = json.loads(DATA.read_text())
    return found


def renew(names: Sequence[str]) -> None:
    made = groups()
    kept = stored() if DATA.exists() else {}
    new = {n: made[n]() if n in names else kept[n] for n in made if n in names or n in kept}
    lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(x)}" for n, x in sorted(new.items()))
    DATA.write_text(f"{{\n{lines}\n}}\n")


def main(arguments: Sequence[str]) -> None:
    """What differs, a line each; ``--renew`` writes the file. Words: parts of names of groups."""
    words = [x for x in arguments if x != "--renew"]
    names = [n for n in groups() if not words or any(w in n for w in words)]
    if "--renew" in arguments:
        renew(names)
        return
    kept = stored()
    for n in names:
        found = groups()[n]()
        if found != kept.get(n):
            what = [k for k, v in found.items() if kept.get(n, {}).get(k) != v]
            print(f"{n}: {', '.join(what)}")


if __name__ == "__main__":
    main(sys.argv[1:])
