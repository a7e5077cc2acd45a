"""Pickled kernels: text in the pickle, every check when it is read, the same kernel in another process."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from children import python_path
from kernel_cases import add_kernel

import autotune as at
from autotune import te
from autotune.backends import parse
from autotune.run.kernels import kernel_of, unpickled
from autotune.run.pickled import read, text_of
from schedules.model import Step, Trace, Workload


def scheduled() -> at.Schedule:
    """2 x + y over names that are not the canonical ones."""
    x, y = (te.placeholder((30,), "float32", n) for n in ("left", "right"))
    s = at.Schedule([x, y, te.compute((30,), lambda place: x[place] * 2.0 + y[place], "made")])
    s.vectorize(s.split("made_place", (None, 8))[1])
    return s


def by_hand() -> at.Kernel:
    return at.build(scheduled(), threads=1)


def of_a_log(chosen_by: str = "similar_shape") -> at.Kernel:
    """With a schedule in canonical names, as those of logs are."""
    workload = Workload(scheduled().dag)
    s = at.Schedule(workload.canonical)
    (loop,) = s.loops(workload.canonical.outputs[0])
    s.unroll(s.split(loop, (None, 3))[1])
    return kernel_of(workload, parse("cpu", 1), s.trace, chosen_by=chosen_by)


@pytest.mark.parametrize("make", [by_hand, of_a_log])
def test_it_comes_back_as_it_was(make) -> None:
    kernel = make()
    other = pickle.loads(pickle.dumps(kernel))
    assert other.trace == kernel.trace and other.target == kernel.target
    assert other.chosen_by == kernel.chosen_by
    assert other.workload == kernel.workload and other.source() == kernel.source()
    assert str(other) == str(kernel) and other.record is None
    x, y = (np.arange(30, dtype=np.float32) for _ in range(2))
    np.testing.assert_array_equal(other(x, y), kernel(x, y))


def test_the_pickle_holds_a_name_and_text() -> None:
    ops = [(op.name, arg) for op, arg, _ in pickletools.genops(pickle.dumps(by_hand()))]
    assert [a for name, a in ops if name.endswith("UNICODE")][:2] == ["autotune.run.kernels", "unpickled"]
    text = {"SHORT_BINUNICODE", "BINUNICODE", "TUPLE1"}
    assert {name for name, _ in ops} <= text | {"PROTO", "FRAME", "MEMOIZE", "STACK_GLOBAL", "REDUCE", "STOP"}
    assert len([name for name, _ in ops if name == "REDUCE"]) == 1


@pytest.mark.slow
def test_another_process_with_an_empty_cache_reads_it(tmp_path) -> None:
    code = "import pickle, sys; k = pickle.load(sys.stdin.buffer); print(k.chosen_by, k.trace.digest)"
    env = {**os.environ, "PYTHONPATH": python_path(__file__), "AUTOTUNE_CACHE_DIR": str(tmp_path)}
    kernel = of_a_log()
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(kernel), env=env, capture_output=True, check=True
    )
    assert done.stdout.decode() == f"similar_shape {kernel.trace.digest}\n"


def changed(**parts) -> str:
    """The text of a kernel, with parts of it replaced."""
    kernel = by_hand()
    text = text_of(kernel.workload, kernel.target, kernel.trace, "schedule")
    return json.dumps(json.loads(text) | parts)


def target_with(**parts) -> str:
    return replace(parse("cpu", 1), **parts).json


NOT_READ = {
    "illegal": (
        lambda: changed(trace=Trace((Step("vectorize", (("loop", "nowhere"),)),)).to_json()),
        at.ScheduleError,
        "nowhere",
    ),
    "too many threads": (
        lambda: changed(target=target_with(threads=4096)),
        at.TargetError,
        "threads=4096 is more than the",
    ),
    "another CPU": (
        lambda: changed(target=target_with(triple="riscv64-unknown-linux-gnu")),
        at.TargetError,
        "cannot run code",
    ),
    "newer": (lambda: changed(version=2), at.CompileError, "version 2, and this autotune reads 1"),
    "no JSON": (lambda: "}", at.CompileError, "it is no JSON"),
    "no object": (lambda: "[]", at.CompileError, "malformed text of a pickled kernel"),
    "no workload": (lambda: changed(workload="{}"), ValueError, "workload version"),
    "no params": (lambda: changed(params=3), at.CompileError, "malformed text"),
    "no number": (lambda: changed(flops=float("inf")), at.CompileError, "malformed text"),
    "no trace": (lambda: changed(trace="[]"), ValueError, "malformed trace"),
}


@pytest.mark.parametrize("case", sorted(NOT_READ))
def test_what_is_not_legal_here_is_refused(case) -> None:
    text, error, says = NOT_READ[case]
    with pytest.raises(error, match=says):
        unpickled(text())


def test_text_is_the_inverse_of_read() -> None:
    kernel = by_hand()
    found = read(text_of(kernel.workload, kernel.target, kernel.trace, "log"))
    assert found == (kernel.workload, kernel.target, kernel.trace, "log")


def test_a_kernel_without_a_schedule_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="kernel of add cannot be pickled: its schedule is not known"):
        pickle.dumps(add_kernel())
