"""Text to object, object to code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from children import ROOT, python_path
from kernel_cases import PARALLEL_TEXT, add_text, buffer, target

from autotune.codegen.llvm import compile as compiler
from autotune.codegen.llvm.compile import _module, assembly, compile_module, host_arch, load_object
from autotune.codegen.runtime.entry import entry
from autotune.errors import AutotuneError, CompileError
from schedules.model import Target

PARAMS = tuple(buffer(n, (35,)) for n in "abc")
TEXT = add_text(35) + entry(PARAMS, ("c",), 0, 1)
OUT = (buffer("out", (64,), "int64"),)


def run(loaded, *arrays):
    loaded.run([x.ctypes.data for x in arrays])


def test_the_host_is_described():
    arch, features, triple = host_arch()
    assert arch and features == tuple(sorted(features))
    assert len(triple.split("-")) >= 3


@pytest.mark.parametrize("optimize", [True, False])
def test_an_object_runs(optimize):
    obj = compile_module(TEXT, target(), optimize=optimize)
    assert obj[:4] == b"\x7fELF"
    a, b, c = np.arange(35, dtype=np.float32), np.ones(35, np.float32), np.full(35, np.nan, np.float32)
    run(load_object(obj), a, b, c)
    np.testing.assert_array_equal(c, a + 1)


def test_compiling_is_deterministic():
    assert compile_module(TEXT, target()) == compile_module(TEXT, target())


def test_objects_do_not_see_each_other():
    loaded = [
        load_object(compile_module(add_text(n) + entry(PARAMS, ("c",), 0, 1), target())) for n in (3, 35)
    ]
    a = np.ones(35, np.float32)
    for one, n in zip(loaded, (3, 35)):
        c = np.zeros(35, np.float32)
        run(one, a, a, c)
        assert c.sum() == 2 * n


def test_what_the_kernel_does_not_define_is_found_in_libm():
    text = """declare double @cbrt(double)
    define void @kernel(ptr %args, ptr %scratch, i32 %n) {
      %c = load ptr, ptr %args
      %x = load double, ptr %c
      %y = call double @cbrt(double %x)
      store double %y, ptr %c
      ret void
    }"""
    params = (buffer("c", (1,), "float64"),)
    c = np.array([27.0])
    run(load_object(compile_module(text + entry(params, ("c",), 0, 1), target())), c)
    assert c[0] == pytest.approx(3.0)


def test_assembly_is_readable_and_passes_clean_up():
    assert "kernel:" in assembly(TEXT, target())
    slots = "define i32 @f(i32 %x) {\n  %p = alloca i32\n  store i32 %x, ptr %p\n"
    slots += "  %y = load i32, ptr %p\n  ret i32 %y\n}\n"
    with _module(slots, target(), optimize=True) as (_, module):
        assert "alloca" not in str(module)


def test_features_bound_the_instructions():
    if "avx2" not in host_arch()[1]:
        pytest.skip("needs a host with AVX2")
    text = """define void @kernel(ptr %p) {
      %x = load <8 x float>, ptr %p
      %y = fadd <8 x float> %x, %x
      store <8 x float> %y, ptr %p
      ret void
    }"""
    assert "ymm" in assembly(text, target())
    narrow = tuple(f for f in host_arch()[1] if not f.startswith(("avx", "fma", "f16c", "vaes", "vpclmul")))
    assert "ymm" not in assembly(text, replace(target(), features=narrow))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("define void @kernel( {", "expected type"),
        ("define i32 @kernel() {\n  ret i32 %x\n}", "undefined value '%x'"),
        ("define i32 @f() {\na:\n  %x = add i32 %y, 1\n  %y = add i32 %x, 1\n  ret i32 %y\n}", "dominate"),
    ],
)
def test_wrong_text_is_a_compile_error(text, says):
    with pytest.raises(CompileError, match=says) as caught:
        compile_module(text, target())
    assert isinstance(caught.value, AutotuneError)
    assert len(str(caught.value)) < 700 and "\n" not in str(caught.value)


def test_targets_that_cannot_be_compiled_for():
    with pytest.raises(CompileError, match="cuda"):
        compile_module(TEXT, Target("cuda", "sm_90"))
    with pytest.raises(CompileError, match="nonsense"):
        compile_module(TEXT, Target("cpu", "generic", "nonsense-none-none"))


def test_objects_that_cannot_be_loaded():
    with pytest.raises(CompileError, match="loaded"):
        load_object(b"not an object")
    with pytest.raises(CompileError, match="at_header"):
        load_object(compile_module(add_text(35), target()))
    missing = "declare void @no_such_function_anywhere()\n" + TEXT.replace(
        "entry:\n", "entry:\n  call void @no_such_function_anywhere()\n", 1
    )
    with pytest.raises(CompileError, match="materialize"):
        load_object(compile_module(missing, target()))


def test_an_object_of_another_abi_is_refused():
    text = TEXT.replace("i32 1, i32 1, i64 0, ptr @kernel", "i32 99, i32 1, i64 0, ptr @kernel")
    assert text != TEXT
    with pytest.raises(CompileError, match="99"):
        load_object(compile_module(text, target()))


def parallel_kernel():
    return load_object(compile_module(PARALLEL_TEXT + entry(OUT, ("out",), 0, 2), target(2)))


def test_parallel_kernels_share_one_pool():
    for loaded in (parallel_kernel(), parallel_kernel()):
        out = np.full(64, -1, np.int64)
        run(loaded, out)
        np.testing.assert_array_equal(out, np.arange(64))
    assert compiler.pool() is compiler.pool()


def test_threads_that_ask_at_once_get_one():
    made = []

    @compiler._once
    def slowly():
        time.sleep(0.05)
        made.append(object())
        return made[-1]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: slowly(), range(8)))
    assert len(made) == 1 and all(x is made[0] for x in found)


@pytest.mark.slow
def test_parallel_kernels_run_after_a_fork():
    """In a process of its own: forking a test process that other tests gave threads is their affair."""
    program = """
import os, sys
import numpy as np
from test_compile import parallel_kernel, run
loaded = parallel_kernel()
out = np.full(64, -1, np.int64)
run(loaded, out)
child = os.fork()
out[:] = -1
run(loaded, out)
ok = (out == np.arange(64)).all()
if child == 0:
    os._exit(0 if ok else 3)
_, status = os.waitpid(child, 0)
sys.exit(0 if ok and status == 0 else 4)
"""
    environment = os.environ | {"PYTHONPATH": python_path(__file__)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_importing_costs_no_compiler():
    modules = "autotune.codegen.llvm.compile, autotune.run.kernel, autotune.backends.building.object_cache"
    program = f"import sys, {modules}\n"
    program += "print(sorted({'llvmlite', 'xgboost', 'sklearn', 'sqlalchemy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True,
                          cwd=ROOT)  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr
