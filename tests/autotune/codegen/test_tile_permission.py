"""Code that uses tiles runs wherever a process loads it: in threads, in children, in exported objects."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from dot_products import product, tiled
from helpers import host

from autotune.backends.building.from_trace import emit_module
from autotune.backends.building.shared_library import linker, shared_library
from autotune.codegen.llvm.compile import LoadedObject, compile_module, load_object
from autotune.codegen.llvm.intrinsic import has
from autotune.codegen.runtime import c_entry
from schedules.instructions import INSTRUCTIONS
from schedules.model import Target

INS = INSTRUCTIONS["tdpbusd"]
SHAPE = (32, 32, 128)


def need() -> Target:
    here = host()
    if not has(INS, here.features):
        pytest.skip(f"this CPU has no {', '.join(INS.features)}")
    return here


def arrays() -> list[np.ndarray]:
    m, n, k = SHAPE
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (m, k)).astype("uint8"), rng.integers(-128, 128, (k, n)).astype("int8")
    return [a, b, np.zeros((m, n), "int32")]


def right(given: list[np.ndarray]) -> bool:
    a, b, c = (x.astype("int64") for x in given)
    return bool((c == a @ b).all())


def kernel(here: Target) -> LoadedObject:
    dag = product(INS, *SHAPE)
    return load_object(compile_module(emit_module(dag, tiled(dag, INS, 2, 2).trace, here).text, here))


def test_threads_and_children_may_use_what_the_process_was_granted() -> None:
    code = kernel(need())
    given = arrays()
    thread = threading.Thread(target=lambda: code.run([x.ctypes.data for x in given]))
    thread.start()
    thread.join()
    assert right(given)
    given = arrays()
    pid = os.fork()
    if pid == 0:
        code.run([x.ctypes.data for x in given])
        os._exit(0 if right(given) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


CHILD = """
import ctypes, sys
import numpy as np
f = ctypes.CDLL(sys.argv[1]).f
given = [np.load(x) for x in sys.argv[2:]]
assert f(*(ctypes.c_void_p(x.ctypes.data) for x in given)) == 0
a, b, c = (x.astype("int64") for x in given)
assert (c == a @ b).all()
"""


def test_an_exported_object_asks_by_itself(tmp_path: Path) -> None:
    """A process that has asked for nothing."""
    here = need()
    if linker() is None:
        pytest.skip("no linker is installed")
    dag = product(INS, *SHAPE)
    out = tmp_path / "f.so"
    out.write_bytes(shared_library(dag, tiled(dag, INS, 2, 2).trace, here, {"": "f"}, "f.so"))
    paths = [tmp_path / f"{n}.npy" for n in range(3)]
    for path, x in zip(paths, arrays(), strict=True):
        np.save(path, x)
    command = [sys.executable, "-c", CHILD, out, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_exported_object_says_that_it_was_refused() -> None:
    """With another number of the system call, which the system refuses."""
    from autotune.codegen.llvm.compile import host_target, link
    from autotune.platform import amx

    if not sys.platform.startswith("linux"):
        pytest.skip("the system call is of Linux")
    run = "define i32 @at_run(ptr %a, ptr %b) {\n  ret i32 0\n}\n"
    start = "define void @start() {\n  call void @ask()\n  ret void\n}\n"
    for number, status in ((amx.ARCH_PRCTL, 3), (-1, 3)):
        text = c_entry.tiles().replace(f"i64 {amx.ARCH_PRCTL}, i64 {amx.REQUEST}", f"i64 {number}, i64 -1")
        text = run + start + text.replace("declare i32 @at_run(ptr, ptr)\n", "")
        at, keep = link(compile_module(text, host_target(), optimize=False), ("start", "at_run_tiles"), {})
        ctypes.CFUNCTYPE(None)(at["start"])()
        call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(at["at_run_tiles"])
        assert call(0, 0) == status
        assert keep and c_entry.STATUS[status].startswith("the operating system refuses AMX")
