"""Writes ``docs/walkthrough.md``: one matmul through every stage, each printed by the code that makes it.

``python docs/walkthrough.py`` writes the file; ``tests/whole/test_docs.py`` fails when it is out of date.
Code is for a described target, so that the text is the same on every machine; only measuring, at the end,
takes place on the host, and what it finds is printed without digests and times.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import sys
import tempfile
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import autotune as at
from autotune.backends.building.generator_version import this_machine
from autotune.codegen.llvm.compile import assembly
from autotune.codegen.llvm.emit import emit
from autotune.measure import Measurer
from autotune.targets import detect, from_name
from kernels_db.records import NewRecord
from schedules import ops, te
from schedules.ir import printer
from schedules.model import Step, Target, Trace
from schedules.passes.lower import lower, stages
from schedules.primitives import PRIMITIVES
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.space.holes import words
from schedules.trace_names import to_canonical, to_named

PAGE = Path(__file__).with_suffix(".md")
COMMAND = "python docs/walkthrough.py"
TARGET = "x86-64-v3"
WIDTH, LONGEST = 108, 180
M, N, K = 64, 48, 32
# The sketch that is followed and the number that fills each of its holes: a register tile of 6 x 16.
SKETCH = "c.pack=root c.unroll=no"
DECISIONS = {"c.vec": 16, "c.x0": 6, "c.x0.mid": 11, "c.x1.mid": 1, "c.steps": 1}


class Page:
    """Markdown in the making."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def say(self, text: str) -> None:
        """A heading, a paragraph, or several, filled to the width."""
        for part in re.split(r"\n\s*\n", text.strip()):
            words = " ".join(part.split())
            self.parts.append(textwrap.fill(words, WIDTH, break_on_hyphens=False) + "\n")

    def show(self, language: str, text: str) -> None:
        """A block of code, its longest lines broken (JSON) or cut."""
        lines: list[str] = []
        for x in text.rstrip().splitlines():
            if language == "json":
                lines += textwrap.wrap(x, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
            else:
                lines.append(x if len(x) <= LONGEST else x[: LONGEST - 2] + " …")
        self.parts.append("\n".join([f"```{language}", *lines, "```"]) + "\n")

    def text(self) -> str:
        return "\n".join(self.parts)


def render() -> str:
    """The whole page."""
    page = Page()
    page.say(f"""
        # One matmul, from its expression to a loaded kernel

        Written by `{COMMAND}`; do not edit it by hand. The shape is small, so that the text is short:
        c = a·b with a of {M}×{K} and b of {K}×{N}, float32. The target is `{TARGET}`, a CPU with AVX2 as
        `configs/targets/{TARGET}.json` describes it.
        """)
    target = from_name(TARGET)
    _expression(page)
    space = _space(page, target)
    trace = _decide(page, space)
    _nest(page, trace, target)
    _tails(page)
    _code(page, trace, target)
    _measure(page, trace)
    return page.text()


def _expression(page: Page) -> None:
    page.say("""
        ## 1. Tensor expression

        The library's `matmul` (`schedules/ops/matmul.py`) states what is computed, and nothing about how. A
        user's own expression is the same thing and needs no registration.
        """)
    page.show(
        "python",
        f"""
A = te.placeholder(({M}, {K}), "float32", name="a")
B = te.placeholder(({K}, {N}), "float32", name="b")
k = te.reduce_axis({K}, name="k")
C = te.compute(({M}, {N}), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="c")
""".strip(),
    )
    a = te.placeholder((M, K), "float32", name="a")
    b = te.placeholder((K, N), "float32", name="b")
    k = te.reduce_axis(K, name="k")
    c = te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    workload = ops.workload("matmul", {"m": M, "n": N, "k": K})
    assert te.dag([a, b, c]) == workload.dag, "the page must show what the library states"
    page.say("""
        ## 2. Compute DAG and digest

        The tensors become a `ComputeDAG` (`schedules/te/compute_dag.py`): inputs and stages, each with its
        axes, its value and its reducer. The digest of its canonical JSON is the identity of the workload, the
        same on every platform, and the key under which the log keeps what is found out about it. In it
        tensors are `T0`, `T1`, … and axes `i0`, `k0`, … by their places (`schedules/te/names.py`), so that
        the same product under other names is the same workload.
        """)
    definition = json.loads(workload.json)
    stage = definition["dag"]["stages"][0]
    page.show("json", "\n".join([json.dumps({"inputs": definition["dag"]["inputs"]}), _flat(stage)]))
    page.say(f"digest `{workload.digest}`, {workload.flops:,} floating-point operations.")


def _flat(stage: dict[str, Any]) -> str:
    lines = (f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in stage.items())
    return "{" + ",\n ".join(lines) + "}"


def _space(page: Page, target: Target) -> DerivedSpace:
    page.say("""
        ## 3. Target

        `autotune.targets.detect` describes the host once as a frozen `Target`; files of `configs/targets`
        describe others. Its digest is the other half of the log's key. What the space asks of it:
        """)
    limits = dict(target.limits)
    page.show("json", json.dumps({"arch": target.arch, "threads": target.threads, **limits}))
    space = derive(ops.workload("matmul", {"m": M, "n": N, "k": K}).dag, target)
    page.say("""
        ## 4. Sketches

        The rules of `schedules/space/rules` read the DAG and draw *sketches*: traces of primitives with holes
        where a number is open. What is structural (pack `b` at the root, inside the tiles, or not at all;
        write the reduction loop out or not) makes different sketches; what is numeric makes holes.
        """)
    page.show("text", "\n".join(f"{n}  {name}" for n, name in enumerate(space.sketches)))
    chosen = space.sketches.index(SKETCH)
    page.say(f"""
        The loops of sketch {chosen}, *{SKETCH}*, without indices. `?` marks a hole:
        """)
    page.show("text", printer.outline(space.sketch(chosen).nest))
    page.say("What each of its holes allows:")
    lines = []
    for hole in space.sketch(chosen).holes:
        lines.append(f"{hole.name:9} {words(hole)}")
    page.show("text", "\n".join(lines))
    return space


def _decide(page: Page, space: DerivedSpace) -> Trace:
    n = space.sketches.index(SKETCH)
    row = np.array([DECISIONS[h] for h in space.holes(n)], dtype=np.int64)
    assert space.valid(n, row[None])[0], "the row must keep the limits"
    page.say("""
        ## 5. A row of decisions

        A candidate is one row of integers, one a hole. Sampling, mutation, the static limits and the features
        of the cost model are numpy on a matrix of such rows; only the few candidates that are chosen for
        measuring become schedules. The row that is followed here:
        """)
    page.show("text", "\n".join(f"{h:9} {v}" for h, v in zip(space.holes(n), row, strict=True)))
    page.say(f"and some of its {len(space.feature_names)} features:")
    features = dict(zip(space.feature_names, space.features(n, row[None])[0], strict=True))
    shown = [f for f in features if f.startswith(("block0.", "total."))][:8]
    page.show("text", "\n".join(f"{f:22} {features[f]:.6g}" for f in shown))
    trace = space.trace(n, row)
    page.say("""
        ## 6. Trace

        Sketch and row give a concrete `Trace`, the schedule as data. As calls of `at.Schedule` (the
        hand-written schedules in `examples/` are of the same kind) it is
        """)
    page.show("python", "\n".join(map(_call, trace.steps)))
    page.say("""
        and in the log, under the canonical names, it is versioned JSON, which replays through every legality
        check:
        """)
    workload = ops.workload("matmul", {"m": M, "n": N, "k": K})
    stored, _ = to_canonical(workload, trace)
    page.show("json", stored.to_json().replace('}],["', '}],\n["'))
    assert Schedule.replay(workload.canonical, Trace.from_json(stored.to_json())).trace == stored
    assert to_named(workload, stored) == trace
    return trace


def _call(step: Step) -> str:
    """A step as a call of the façade."""
    given = dict(step.args)
    values = [given[f.name] for f in dataclasses.fields(PRIMITIVES[step.primitive])]
    if step.primitive in ("fuse", "reorder"):
        values = list(values[0])
    words = [repr(list(v) if isinstance(v, tuple) else v) for v in values]
    return f"s.{step.primitive}({', '.join(words)})".replace("'", '"')


def _nest(page: Page, trace: Trace, target: Target) -> None:
    s = Schedule.replay(ops.workload("matmul", {"m": M, "n": N, "k": K}).dag, trace, target)
    page.say("""
        ## 7. Scheduled nest

        Every step rewrites an immutable nest of loops around *blocks* (`schedules/ir.py`). A block keeps
        its own iteration variables, and loops only bind them; an instance whose variables leave their
        domain does not run, which is what tails are. The rows of `c` are cut into tiles of 6, which do not
        divide 64: the split has `tail="shift"`, so that the last tile starts at `min(…, 58)` and computes
        two rows again.
        """)
    page.show("text", str(s))
    page.say("""
        ## 8. Lowering

        `schedules/passes/pipeline.py` lists the passes; the interpreter gives the same result before and
        after each, which the tests check. *expand_blocks* writes blocks out as stores under the guards of
        their domain (here the block of the reduction):
        """)
    found = stages(s.nest)
    before = expanded = printer.show(found[0][1])
    page.show("text", textwrap.dedent("\n".join(_around(expanded.splitlines(), "c_local[", "a["))))
    for name, func in found[1:]:
        text = printer.show(func)
        what = f"*{name}*. {_purpose(name)}"
        if text == before:
            page.say(f"{what} It changes nothing here.")
        elif before == expanded:
            page.say(what)
            page.show("text", text)
        else:
            page.say(what)
            page.show("diff", _changes(before, text))
        before = text
    page.say("So the lowered function is")
    page.show("text", before)


def _changes(before: str, after: str) -> str:
    """The lines that differ, without their indentation."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(f"{x[0]} {x[1:].strip()}" for x in [*lines][2:] if x[0] in "+-")


def _purpose(name: str) -> str:
    """What a pass says that it is for."""
    text = import_module(f"schedules.passes.{name}").__doc__ or ""
    return " ".join(text.split("\n\n")[0].split())


def _around(lines: list[str], *words: str) -> list[str]:
    """The line with all the words, and the loops and guards around it."""
    at_ = next(n for n, x in enumerate(lines) if all(w in x for w in words))
    out, depth = [lines[at_]], len(lines[at_]) - len(lines[at_].lstrip())
    for x in reversed(lines[:at_]):
        indent = len(x) - len(x.lstrip())
        if indent < depth and indent > 0:
            out.append(x)
            depth = indent
    return out[::-1]


def _tails(page: Page) -> None:
    page.say("""
        ### The same passes where a tail is left

        Ten elements in vectors of four, `tail="guard"`. Without a mark the guard stays, as the mask of the
        vector; with `partition` the last iteration is peeled, and the loop before it needs none:
        """)
    x = te.placeholder((10,), "float32", name="x")
    y = te.compute((10,), lambda i: x[i] * 2.0, name="y")
    for mark in (False, True):
        s = at.Schedule([x, y])
        outer, inner = s.split("y_i", [None, 4])
        if mark:
            s.partition(outer)
        s.vectorize(inner)
        page.show("text", "\n".join(printer.show(lower(s.nest)).splitlines()[1:]))


def _code(page: Page, trace: Trace, target: Target) -> None:
    s = Schedule.replay(ops.workload("matmul", {"m": M, "n": N, "k": K}).dag, trace, target)
    module = emit(lower(s.nest), target)
    page.say("""
        ## 9. LLVM IR

        `autotune/codegen/llvm/emit.py` writes text with explicit vectors: unrolled loops are written out, a
        small local buffer with constant indices ends up in registers. The reduction loop begins and ends
        so:
        """)
    loop = max(re.split(r"\n(?=\w+:)", module.text), key=lambda x: x.count("@llvm.fmuladd"))
    lines = loop.splitlines()
    page.show("llvm", "\n".join([*lines[:17], "  ; …", *lines[-3:]]))
    page.say(f"""
        ## 10. Machine code

        LLVM only cleans up and selects instructions. The reduction loop for `{TARGET}`: 12 accumulators
        (6 rows × 2 vectors of 8) in registers; two loads of packed `b` and six broadcasts of `a` feed 12
        multiply-adds:
        """)
    text = inner_loop(assembly(module.text, target))
    assert text.count("vfmadd") == 12, "the page says 12"
    page.show("asm", text)


def inner_loop(text: str) -> str:
    """Of assembly text, the loop with the most multiply-adds: from its label to its jump back."""
    blocks = re.split(r"\n(?=\.LBB)", text)
    block = max(blocks, key=lambda x: x.count("vfmadd"))
    lines = block.splitlines()
    end = max(n for n, x in enumerate(lines) if lines[0].rstrip(":") in x)
    return "\n".join(x.expandtabs(8) for x in lines[: end + 1])


def _measure(page: Page, trace: Trace) -> None:
    workload = ops.workload("matmul", {"m": M, "n": N, "k": K})
    host = detect(threads=1)
    page.say("""
        ## 11. Check, then measure

        A builder process compiles the trace for the host, and a worker process loads it. The output is
        filled with NaN, the arrays end at an inaccessible page (in a second run they begin at one), and the
        result is compared with the reference; only what is right is timed, each repeat between two runs of
        a reference loop, or of a good candidate once there is one. A crash costs one candidate and one
        process.
        """)
    stored, sketch = to_canonical(workload, trace, SKETCH)
    with Measurer(workload, host) as measurer:
        (m,) = measurer.measure([stored])
    assert m.ok, f"{m.status}: {m.reason}"
    page.show("text", f'Measurement(status="{m.status}", reason="{m.reason}", time_s=…, error=…, …)')
    page.say("""
        ## 12. Log

        The trial is one row of the log, committed before the next one begins; failures are too, with their
        reason. As a line of an export (digests, times and the machine left out here):
        """)
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "tuning.db"
        with at.Log(db) as log:
            run = log.start_run(workload, host, this_machine(), seed=0)
            found = {"times_s": m.times_s, "time_s": m.time_s, "error": m.error}
            log.add(NewRecord(run.uid, 0, sketch, stored, m.status, **found))
            log.finish_run(run)
            record = json.loads(next(x for x in log.export_lines() if '"type":"record"' in x))
        hidden = ("uid", "run", "workload", "target", "machine", "created", "time_s", "error")
        record |= dict.fromkeys(hidden, "…") | {"times_s": ["…"], "trace": "…"}
        page.show("json", _flat(record))
        page.say("""
            ## 13. Load

            Another process asks the log for the best record of (workload, target), maps the compiled object
            from the cache, or replays the trace and compiles it, and gets a function on numpy arrays:
            """)
        call = f'kernel = at.load("matmul", m={M}, n={N}, k={K}, db="tuning.db")'
        page.show("python", f"{call}\nc = kernel(a, b)")
        kernel = at.load("matmul", m=M, n=N, k=K, db=db, threads=1)
        assert kernel.trace == trace
        rng = np.random.default_rng(0)
        a = rng.standard_normal((M, K), dtype=np.float32)
        b = rng.standard_normal((K, N), dtype=np.float32)
        np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-5, atol=1e-5)
        page.say("The kernel that this page's script loaded agrees with `a @ b`; the script fails otherwise.")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.name}\n")
