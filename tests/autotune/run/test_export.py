"""Kernels exported for C: the example runs, the library is the kernel, and mistakes are explained."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import needs
import numpy as np
import pytest
from children import python_path
from cli_runner import run
from kernel_cases import AROUND_A_FORK, K, M, N, add_kernel, product, that_packs

import autotune as at
from autotune import te
from autotune.backends import named
from autotune.cli import checks as doctor
from autotune.codegen.simt import cxx
from autotune.run import loading

pytestmark = pytest.mark.usefixtures("two_cpus")

if cxx.command() is None:
    needs.missing("c++")
COMPILER = cxx.command(("cc", "gcc", "clang"), "cc")


def arrays(kernel: at.Kernel):
    """Whole numbers for the inputs, and poison for the outputs."""
    rng = np.random.default_rng(5)
    ins, outs = ([np.zeros([e.value for e in b.shape], b.dtype) for b in bs] for bs in kernel.parameters)
    for x in ins:
        x[...] = rng.integers(0, 2 if x.dtype == bool else 9, x.shape)
    for x in outs:
        x[...] = 1 if x.dtype == bool else 99
    return ins, outs


def pointers(xs):
    return [ctypes.c_void_p(x.ctypes.data) for x in xs]


def compiled(folder: Path, name: str) -> str:
    """What the exported example prints. It is compiled without a warning."""
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
    command = [*COMPILER, *strict, f"{name}_example.c", f"./{name}.so", "-Wl,-rpath,.", "-o", "program"]
    subprocess.run(command, cwd=folder, check=True)
    return subprocess.run(["./program"], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_example_of_20_lines_runs(tmp_path) -> None:
    kernel = at.build(at.Schedule(at.ops.workload("matmul", {"m": M, "n": N, "k": K}).dag), threads=1)
    files = at.export(kernel, tmp_path / "new" / "folder", "product")
    assert len(files.example.read_text().splitlines()) <= 20
    a, b = (np.arange(x * y, dtype=np.float32).reshape(x, y) % 7 for x, y in ((M, K), (K, N)))
    assert compiled(files.example.parent, "product") == f"status 0, sum of c {(a @ b).sum():.9g}\n"
    assert sorted(x.name for x in files.library.parent.iterdir() if x.name != "program") == [
        "product.h", "product.json", "product.so", "product_example.c"
    ]  # fmt: skip


def test_the_library_agrees_with_the_kernel(tmp_path) -> None:
    kernel = product(2)
    assert kernel._loaded.scratch_bytes
    library = ctypes.CDLL(at.export(kernel, tmp_path, "m").library)
    ins, (out,) = arrays(kernel)
    expected = kernel(*ins)
    assert library.m_run(*pointers([*ins, out])) == 0
    np.testing.assert_array_equal(out, expected)

    def call(_):
        mine = np.full_like(out, 99)
        status = library.m_run(*pointers([*ins, mine]))
        return status == 0 and np.array_equal(mine, expected)

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(call, range(60)))
    library.m_run_release()
    assert call(0)
    for hidden in ("kernel", "at_run", "at_parallel", "at_pool_reset"):
        assert not hasattr(library, hidden)


AFTER_A_FORK = f"""
import ctypes, os, sys
import numpy as np
library = ctypes.CDLL(sys.argv[1])
a, b, d = np.ones((24, 9), "f4"), np.ones((9, 20), "f4"), np.zeros((24, 20), "f4")
def call():
    d[...] = 0
    for _ in range(9):
        assert library.m_run(*[ctypes.c_void_p(x.ctypes.data) for x in (a, b, d)]) == 0
    assert (d == 18).all()
{AROUND_A_FORK}assert "autotune" not in sys.modules
print("well")
"""


def test_it_runs_without_autotune_and_after_a_fork(tmp_path) -> None:
    path = at.export(product(2), tmp_path, "m").library
    command = [sys.executable, "-W", "ignore", "-c", AFTER_A_FORK, str(path)]
    env = {**os.environ, "PYTHONPATH": python_path(__file__)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "well\n", done.stderr


def test_outputs_dtypes_and_odd_names(tmp_path) -> None:
    n = (3, 5)
    # Words of C, and names that would meet one made of such a word, or one of the example's.
    names = {"int": "int32", "x0_int": "float64", "new": "uint8", "sum": "int64", "t": "float16", "i": "bool"}
    ins = [te.placeholder(n, dtype, name) for name, dtype in names.items()]
    outs = [te.compute(n, lambda i, j, x=x: x[i, j], f"copy{k}") for k, x in enumerate(ins)]
    kernel = at.build(at.Schedule([*ins, *outs]), threads=1)
    files = at.export(kernel, tmp_path)
    contract = json.loads(files.contract.read_text())
    words = [a["c_name"] for a in contract["arguments"]]
    assert words[:6] == ["x0_int", "x1_x0_int", "x2_new", "x3_sum", "t", "x5_i"]
    compiled(tmp_path, files.library.stem)
    given, written = arrays(kernel)
    library = ctypes.CDLL(files.library)
    assert library[contract["function"]](*pointers([*given, *written])) == 0
    for x, y in zip(given, written, strict=True):
        np.testing.assert_array_equal(x, y)


def test_weights_are_packed_by_functions_of_their_own(tmp_path) -> None:
    kernel = that_packs()
    files = at.export(kernel, tmp_path, "packing")
    a, b = (np.arange(x * y, dtype=np.float32).reshape(x, y) % 7 for x, y in ((5, 7), (7, 40)))
    assert compiled(tmp_path, "packing") == f"status 0, sum of c {(a @ b).sum():.9g}\n"
    (packing,) = json.loads(files.contract.read_text())["packing"]
    assert packing["weight"] == "b" and packing["function"] == "packing_pack_b"
    assert [x["role"] for x in packing["arguments"]] == ["input", "output"]


def test_the_contract_says_what_a_caller_must_know(tmp_path) -> None:
    kernel = product()
    contract = json.loads(at.export(kernel, tmp_path).contract.read_text())
    assert contract["function"] == "custom_run" and contract["library"] == "custom.so"
    assert [(x["name"], x["role"], x["shape"], x["dtype"]) for x in contract["arguments"]] == [
        ("a", "input", [M, K], "float32"),
        ("b", "input", [K, N], "float32"),
        ("d", "output", [M, N], "float32"),
    ]
    assert contract["arguments"][0]["bytes"] == 4 * M * K and contract["arguments"][0]["order"] == "row-major"
    assert contract["threads"] == 1 and contract["workload"] == kernel.workload.digest
    assert set(contract["cpu"]["features"]) <= set(kernel.target.features)
    assert at.Trace.from_json(json.dumps(contract["schedule"])) == kernel.trace


def test_the_header_is_for_c_plus_plus_too(tmp_path) -> None:
    header = at.export(product(), tmp_path).header
    source = tmp_path / "includes.cpp"
    twice = f'#include "{header.name}"\n' * 2
    source.write_text(f"{twice}int (*f)(void) = custom_runnable;\n")
    made = ["-c", source, "-o", tmp_path / "includes.o"]
    subprocess.run([*cxx.command(), "-Wall", "-Werror", *made], check=True)


def test_a_library_in_use_is_replaced_whole(tmp_path) -> None:
    kernel = product()
    library = ctypes.CDLL(at.export(kernel, tmp_path, "m").library)
    ins, (out,) = arrays(kernel)
    at.export(kernel, tmp_path, "m")
    assert library.m_run(*pointers([*ins, out])) == 0
    np.testing.assert_array_equal(out, kernel(*ins))
    assert not [x for x in tmp_path.iterdir() if x.name.startswith(".")]


REFUSED = {
    "not a kernel": (lambda to: at.export("matmul", to), "takes a kernel, as at.load gives it, not a str"),
    "name": (lambda to: at.export(product(), to, "2 b"), "'2 b' is no identifier of C: .* such as 'custom'"),
    "word of C": (lambda to: at.export(product(), to, "double"), "'double' is no identifier of C"),
    "no schedule": (lambda to: at.export(add_kernel(), to), "schedule of this kernel of add is not known"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_cannot_be_exported_is_refused(case, tmp_path) -> None:
    call, says = REFUSED[case]
    with pytest.raises(at.ArgumentError, match=says):
        call(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_missing_linker_is_explained(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cxx, "command", lambda *names: None)
    with pytest.raises(at.CompileError, match="needs a linker.*install gcc, or pip install .*emulator"):
        at.export(product(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(at.ArgumentError, match=r"cannot be exported to \S*/file/to: Not a directory; choose"):
        at.export(product(), tmp_path / "file" / "to")


def test_kernels_of_gpus_are_refused() -> None:
    kernel = product()
    with pytest.raises(at.CompileError, match="a kernel for cuda is no function of C.*compile_for"):
        named("cuda").shared_library(kernel.workload.dag, [], {}, "x.so")


def test_the_command(tmp_path, monkeypatch) -> None:
    asked = ("matmul", tmp_path / "to", "--shape", "m=4,n=4,k=4", "--threads", 1, "--db", tmp_path / "t.db")
    refused = run("export", *asked)
    assert refused.status == 1 and "no tuned kernel of matmul" in refused.err
    kernel = at.build(at.Schedule(at.ops.workload("matmul", {"m": 4, "n": 4, "k": 4}).dag), threads=1)
    monkeypatch.setattr(loading, "load_workload", lambda *_, **__: kernel)
    done = run("export", *asked, "--name", "small", "--json")
    assert done.status == 0
    assert {k: Path(v).name for k, v in done.json.items()} == {
        "library": "small.so", "header": "small.h", "contract": "small.json", "example": "small_example.c"
    }  # fmt: skip
    assert all(Path(v).is_file() for v in done.json.values())


def test_doctor_says_whether_there_is_a_linker(monkeypatch) -> None:
    assert doctor.export().status == "ok"
    monkeypatch.setattr(cxx, "command", lambda *names: None)
    found = doctor.export()
    assert found.status == "warn" and "no linker" in found.detail and "install gcc, or" in found.remedy
