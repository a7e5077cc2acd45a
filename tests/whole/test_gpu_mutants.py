"""Every barrier and every guard of a kernel for GPUs is needed: without any one of them something is caught.
Those of the lowered program by the interpreter, those that the generator adds to reductions across threads by
emulation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from grid_cases import TARGET, Case, case, masked_add, need_cxx, program, sampled
from grid_changes import count, without

from autotune.codegen.grid_code import GridCode, Launch, grid_code
from autotune.codegen.llvm.compile import link
from autotune.codegen.runtime import launcher
from autotune.codegen.simt import cuda, emulator
from schedules import te
from schedules.ir import Barrier, Guard
from schedules.ir.grid import GridProgram
from schedules.ir.interp import InterpError
from schedules.ir.interp_grid import run_grid
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule


def rows_of_products() -> Case:
    """A product whose operands go through shared memory, with tails everywhere."""
    return case("matmul_bias_relu")


CASES = {
    "masked add": lambda: masked_add(203),
    "softmax": lambda: case("softmax"),
    "reduce_sum": lambda: case("reduce_sum"),
    "layer_norm": lambda: case("layer_norm"),
    "norm2": lambda: case("norm2"),
    "a product with an epilogue": rows_of_products,
}


def caught(c: Case, p: GridProgram) -> str:
    """What the interpreter says of a program; empty if all is well."""
    outputs = c.poisoned()
    arrays = dict(zip((t.name for t in c.dag.params), [*(x.copy() for x in c.inputs), *outputs], strict=True))
    try:
        run_grid(p, arrays)
        c.check(outputs, "result")
    except (InterpError, AssertionError) as err:
        return str(err) or "wrong"
    return ""


@pytest.mark.fast(but=["softmax", "a product with an epilogue"])
@pytest.mark.parametrize("name", CASES)
def test_every_barrier_and_guard_of_the_lowered_program_is_needed(name: str) -> None:
    c = CASES[name]()
    tried = 0
    for number, (what, trace) in enumerate(sampled(c.dag, 2, seed=6)):
        p = program(c.dag, trace)
        if number == 0:
            assert not caught(c, p), what
        for kind in (Guard, Barrier):
            for n in range(count(p, kind)):
                assert caught(c, without(p, kind, n)), f"{what}: {kind.__name__} {n} can be left out"
                tried += 1
        if tried > 12:
            return
    assert tried


def test_a_block_of_one_thread_waits_for_nobody() -> None:
    x = te.placeholder((4,), "float32", name="x")
    dag = te.dag([x, te.compute((4,), lambda i: x[i] + x[i], name="y")])
    for _, trace in sampled(dag, 1):
        assert count(program(dag, trace), Barrier) == 0


# What the generator writes for a reduction across threads: where threads wait, and which of them take part.
WRITTEN = (
    r"__syncthreads\(\);",
    r"if \(threadIdx\.x % \d+ == 0\) (?=t\d+\[)",
    r"if \(threadIdx\.x < \d+\)(?= \{)",
)


def mutants(text: str) -> Iterator[tuple[str, str]]:
    for pattern in WRITTEN:
        for found in re.finditer(pattern, text):
            instead = "if (true)" if found.group().endswith(")") and "<" in found.group() else ""
            yield found.group(), text[: found.start()] + instead + text[found.end() :]


def several_warps(c: Case) -> GridProgram:
    """A sampled schedule with a few threads a row."""
    for _, trace in sampled(c.dag, 30, seed=8):
        p = program(c.dag, trace)
        if len(p.kernels) == 1 and p.kernels[0].block[0] in (64, 128):
            return p
    raise AssertionError("none has several warps a row")


def reduced_again_and_again() -> tuple[Case, GridProgram]:
    """Threads reduce together in every turn of a loop, and nothing else keeps the turns apart."""
    x = te.placeholder((2, 3, 64), "float32", name="x")
    j, k = te.reduce_axis(3, name="j"), te.reduce_axis(64, name="k")
    s = Schedule([x, te.compute((2,), lambda i: te.sum(x[i, j, k], axis=(j, k)), name="y")], TARGET)
    block = s.loops(s.cache_write("y", "local"))[0]
    s.bind(block, "blockIdx.x")
    s.compute_at("y", block)
    *_, turn, thread = s.loops("y")
    s.decompose_reduction("y", turn)
    s.bind(thread, "threadIdx.x")
    data = np.random.default_rng(5).integers(-9, 9, (2, 3, 64)).astype("float32")
    return Case(s.dag, (data,), (data.sum((1, 2)),)), lower_simt(s.nest)


@pytest.mark.fast("in a loop", "reduce_sum")
@pytest.mark.parametrize("op", ["softmax", "reduce_sum", "rms_norm", "in a loop"])
def test_what_the_generator_adds_to_reductions_is_needed(op: str) -> None:
    need_cxx()
    c, p = reduced_again_and_again() if op == "in a loop" else (case(op), several_warps(case(op)))
    whole = cuda.source(p).removeprefix(cuda.PRELUDE)
    texts = [("nothing", whole), *mutants(whole)]
    barriers = sum("sync" in what for what, _ in texts)
    assert barriers == {"softmax": 2, "in a loop": 2}.get(op, 1), [w for w, _ in texts]
    assert any("%" in what for what, _ in texts)
    made = cuda.generate(p)
    base = grid_code(p, "cuda", made)
    (launch,) = base.launches
    names = [f"m{n}" for n in range(len(texts))]
    source = "\n".join([cuda.PRELUDE, *(t.replace("kernel0(", f"{n}(") for n, (_, t) in zip(names, texts))])
    code = replace(base, source=source, launches=tuple(replace(launch, kernel=n) for n in names))
    for n, (what, _) in enumerate(texts):
        said = emulated(c, code, code.launches[n])
        assert bool(said) == (n > 0), f"{op}: without {what}: {said or 'nothing is noticed'}"


_LINKED: dict[str, tuple[dict[str, int], object]] = {}


def emulated(c: Case, code: GridCode, x: Launch) -> str:
    """What emulation says of one launch; empty if all is well. Arrays end where nothing else begins."""
    import ctypes

    if code.source not in _LINKED:
        names = [emulator.launched(y.kernel) for y in code.launches]
        _LINKED[code.source] = link(emulator.driver(code), ("at_cuLaunchKernel", "at_fault_text", *names), {})
    at, _ = _LINKED[code.source]
    numbers = [[a.name for a in code.params].index(n) for n in x.arrays]
    handle = at[emulator.launched(x.kernel)]
    launch = launcher.bind(
        launcher.DriverFunctions(at["at_cuLaunchKernel"]), [(handle, x, numbers)], len(code.params)
    )
    held = []
    for a in (*c.inputs, *c.poisoned()):
        padded = np.full(a.nbytes + 8192, 0xFF, np.uint8)  # NaN around
        start = -(-padded.ctypes.data // 256) * 256 - padded.ctypes.data + 1024
        padded[start : start + a.nbytes] = np.frombuffer(np.ascontiguousarray(a).tobytes(), np.uint8)
        held.append((padded, start, a))
    if launch(*(p.ctypes.data + s for p, s, _ in held), 0):
        return (ctypes.CFUNCTYPE(ctypes.c_char_p)(at["at_fault_text"])() or b"").decode()
    outputs = []
    for padded, start, a in held:
        if not (np.all(padded[:start] == 0xFF) and np.all(padded[start + a.nbytes :] == 0xFF)):
            return "writes beside an array"
        outputs.append(np.frombuffer(padded[start : start + a.nbytes].tobytes(), a.dtype).reshape(a.shape))
    try:
        c.check(outputs[len(c.inputs) :], "result")
    except AssertionError as err:
        return str(err)
    return ""
