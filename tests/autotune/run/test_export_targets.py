"""Shared objects with code for several processors: which code runs where, and what is refused."""

from __future__ import annotations

import ctypes
import json
import platform
import re
import subprocess
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import pytest
import qemu
from cli_runner import run

import autotune as at
from autotune import te
from autotune.backends import parse
from autotune.backends.building import shared_library
from autotune.backends.building.from_trace import check_legal
from autotune.codegen.runtime.by_cpu import NO_CODE
from autotune.codegen.simt import cxx
from autotune.run import export_codes, loading
from autotune.run.kernels import default_kernel, kernel_of
from autotune.run.workloads import as_workload
from autotune.targets.askable import askable
from autotune.targets.names import TargetError
from kernels_db import Log, NewRecord
from schedules.model import Target, Trace
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.trace_names import to_canonical

if cxx.command() is None:
    needs.missing("c++")
if platform.machine() not in ("x86_64", "AMD64"):
    pytest.skip("the code is for x86-64", allow_module_level=True)
COMPILER = cxx.command(("cc", "gcc", "clang"), "cc")
M, N, K = 24, 20, 9
# Processors as qemu knows them, and the code that is taken for each. Its emulation lacks AVX-512. Some tell
# less: one extension is missing, or the leaves of CPUID that have the others.
TAKEN = {
    "Haswell": "x86-64-v3", "EPYC-Rome": "x86-64-v3", "Nehalem": "x86-64-v2", "core2duo": None,
    "Haswell,-fma": "x86-64-v2", "Haswell,level=1": "x86-64-v2", "Haswell,xlevel=0x80000000": "x86-64-v2",
    "Haswell,-xsave": "x86-64-v2",
}  # fmt: skip
PROGRAM = """
#include <stdio.h>
#include "m.h"
int main(void) {
    float a[m_a_elements], b[m_b_elements], c[m_c_elements] = {99};
    for (size_t i = 0; i < m_a_elements; i++) a[i] = (float)(i % 7);
    for (size_t i = 0; i < m_b_elements; i++) b[i] = (float)(i % 5);
    int status = m_run(a, b, c);
    double sum = 0;
    for (size_t i = 0; i < m_c_elements; i++) sum += c[i];
    printf("%d %s %.9g\\n", status, m_target() ? m_target() : "none", sum);
    return m_runnable() == (status == 5);
}
"""


def dag() -> list[te.Tensor]:
    a, b = te.placeholder((M, K), "float32", "a"), te.placeholder((K, N), "float32", "b")
    r = te.reduce_axis(K, "r")
    return [a, b, te.compute((M, N), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")]


def scheduled(lanes: int) -> Schedule:
    """In vectors of so many lanes."""
    s = at.Schedule(dag())
    _, j, r = s.loops("c")
    outer, inner = s.split(j, (None, lanes), "guard")
    s.reorder(outer, r, inner)
    s.vectorize(inner)
    return s


def logged(kernel: at.Kernel, db: Path, *schedules: tuple[str | Target, Trace]) -> None:
    """A log that has a schedule of the kernel's workload for each target."""
    with Log(db) as log:
        for name, trace in schedules:
            target = name if isinstance(name, Target) else parse(name, kernel.target.threads)
            made = log.start_run(kernel.workload, target, {"cpu": "?"}, seed=0, options={})
            given, _ = to_canonical(kernel.workload, trace)
            log.add(NewRecord(made.uid, 0, "by hand", given, "ok", times_s=[1e-3]))
            log.finish_run(made.uid)


def plain(db: Path, *names: str | Target, threads: int = 1) -> at.Kernel:
    """A kernel of plain loops, and a log that has them for some targets."""
    kernel = at.build(at.Schedule(dag()), threads=threads)
    logged(kernel, db, *((n, Trace()) for n in names))
    return kernel


def compiled(folder: Path, compiler: Sequence[str] = COMPILER) -> Path:
    (folder / "program.c").write_text(PROGRAM)
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
    command = [*compiler, *strict, "program.c", "./m.so", "-Wl,-rpath,.", "-o", "program"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "program"


def ran(program: Path, cpu: str | None = None, qemu: Sequence[str] = (str(qemu.X86),)) -> list[str]:
    by = [] if cpu is None else [*qemu, "-cpu", cpu]
    done = subprocess.run([*by, program], cwd=program.parent, capture_output=True, text=True, check=True)
    return done.stdout.split()


def right() -> float:
    a, b = (np.arange(x * y, dtype=np.float32).reshape(x, y) for x, y in ((M, K), (K, N)))
    return float(((a % 7) @ (b % 5)).sum())


def named(files: at.Exported) -> list[str]:
    return [c["schedule_from"] for c in json.loads(files.contract.read_text())["targets"]]


@pytest.mark.slow
def test_each_processor_runs_the_best_code_that_it_can(tmp_path: Path) -> None:
    if qemu.X86 is None:
        needs.missing("qemu")
    names = ["x86-64-v4", "x86-64-v2", "sapphirerapids", "x86-64-v3"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        at.export(plain(tmp_path / "t.db", *names), tmp_path, "m", targets=names, db=tmp_path / "t.db")
    program = compiled(tmp_path)
    for cpu, name in TAKEN.items():
        status, chosen, total = ran(program, cpu)
        if name is None:
            assert (status, chosen) == (str(NO_CODE), "none"), cpu
        else:
            assert (status, chosen, float(total)) == ("0", name, right()), cpu
    status, chosen, total = ran(program)
    has = parse("cpu").features
    here = "x86-64-v4" if "avx512vl" in has else "x86-64-v3" if "avx2" in has else "x86-64-v2"
    assert (status, float(total)) == ("0", right()) and chosen in (here, "sapphirerapids")


@pytest.mark.slow
@pytest.mark.usefixtures("two_cpus")
def test_objects_for_arm_are_made_here_and_run_there(tmp_path: Path) -> None:
    """With threads and scratch memory, which come from the C library there."""
    driver = shared_library.linker(qemu.TARGET.triple)
    if driver is None or qemu.QEMU is None or qemu.SYSROOT is None:
        needs.missing("arm-libc")
    s = scheduled(4)
    s.cache_write("c", "local")
    s.parallel(s.loops("c_write")[0])
    kernel = at.build(s, threads=2)
    names = ["neoverse-n1", "neoverse-v1"]
    logged(kernel, tmp_path / "t.db", *((n, s.trace) for n in names))
    at.export(kernel, tmp_path, "m", targets=names, db=tmp_path / "t.db")
    program = compiled(tmp_path, driver)
    there = (qemu.QEMU, "-L", str(qemu.SYSROOT))
    for cpu, name in {"neoverse-n1": "neoverse-n1", "max": "neoverse-v1", "cortex-a57": None}.items():
        status, chosen, total = ran(program, cpu, there)
        expected = (str(NO_CODE), "none") if name is None else ("0", name)
        assert (status, chosen) == expected and (name is None or float(total) == right()), cpu


def test_a_linker_for_another_family_is_named(tmp_path: Path, monkeypatch) -> None:
    kernel = plain(tmp_path / "t.db", "neoverse-n1")
    found = shared_library.linker()
    monkeypatch.setattr(
        cxx, "command", lambda names, wheel: None if "aarch64-linux-gnu-gcc" in names else found
    )
    says = (
        "object for aarch64 needs a linker for it: install gcc-aarch64-linux-gnu, or pip install .*emulator"
    )
    with pytest.raises(at.CompileError, match=says):
        at.export(kernel, tmp_path / "to", targets=["neoverse-n1"], db=tmp_path / "t.db")


def test_the_schedule_of_each_is_that_of_the_kernel_or_the_best_of_the_log(tmp_path: Path) -> None:
    kernel = at.build(scheduled(4), threads=1)
    lanes = {n: scheduled(k).trace for n, k in (("x86-64-v2", 4), ("x86-64-v3", 8))}
    odd = replace(parse("x86-64-v3"), features=("avx", "avx2", "made-up"), limits=(("l1_bytes", 99),))
    logged(kernel, tmp_path / "t.db", ("x86-64-v2", lanes["x86-64-v2"]), (odd, lanes["x86-64-v3"]))
    names = ["x86-64-v2", "cpu", "x86-64-v3"]
    files = at.export(kernel, tmp_path, "m", targets=names, db=tmp_path / "t.db")
    contract = json.loads(files.contract.read_text())
    codes = {c["name"]: c for c in contract["targets"]}
    assert named(files) == ["log", "kernel", "log"]
    assert codes["x86-64-v3"]["features"] == ["avx", "avx2"]  # as it was tuned, and as can be asked
    for name, trace in {**lanes, "cpu": kernel.trace}.items():
        assert Trace.from_json(json.dumps(codes[name]["schedule"])) == trace
    assert contract["returns"][str(NO_CODE)].startswith("this processor runs none")
    assert contract["threads"] == 1 and contract["chosen_by"] == "m_target"
    library = ctypes.CDLL(files.library)
    library.m_target.restype = ctypes.c_char_p
    assert library.m_target().decode() in ("cpu", "x86-64-v3")
    for hidden in ("of0_m_run", "resolve", "kernel", "at_run"):
        assert not hasattr(library, hidden)


def test_one_target_alone_is_asked_for_too(tmp_path: Path) -> None:
    never = replace(parse("x86-64-v2"), arch="never", features=("avx512fp16", "fma4", "sse2"))
    kernel = plain(tmp_path / "t.db", never)
    library = ctypes.CDLL(at.export(kernel, tmp_path, "m", targets=[never], db=tmp_path / "t.db").library)
    library.m_target.restype = ctypes.c_char_p
    c = np.full((M, N), 99, np.float32)
    assert library.m_run(None, None, ctypes.c_void_p(c.ctypes.data)) == NO_CODE
    assert (c == 99).all() and library.m_target() is None
    library.m_run_release()


@pytest.mark.slow
def test_where_the_log_has_none_a_first_pick_is_exported_and_told(tmp_path: Path) -> None:
    kernel = plain(tmp_path / "t.db")
    never = replace(
        parse("sapphirerapids"), features=("amx-fp16", "avx512fp16", "fma4", "sse2"), arch="never"
    )
    with pytest.warns(UserWarning) as found:
        files = at.export(kernel, tmp_path, "m", targets=["x86-64-v2", never, "cpu"], db=tmp_path / "t.db")
    (text,) = {str(w.message) for w in found}
    assert re.fullmatch(
        "the log has no schedule of the expression of .*, 1 thread, for x86-64-v2, never: first picks "
        "are exported; those for never could not be timed here; tune on such processors and import their "
        "logs, or leave .*",
        text,
    )
    assert named(files)[1:] == ["model", "kernel"] and named(files)[0] in ("model", "default")
    schedule = json.loads(files.contract.read_text())["targets"][1]["schedule"]
    check_legal(kernel.workload.dag, Trace.from_json(json.dumps(schedule)), askable(never))
    status, chosen, total = ran(compiled(tmp_path))
    assert (status, chosen, float(total)) == ("0", "cpu", right())


def padded(kernel: at.Kernel) -> int:
    """Bytes of its weights."""
    return 4 * int(np.prod([e.value for e in kernel.parameters[0][1].shape]))


def packing(kernel_of_target: Target, packs: bool):
    """A trace that packs its weights ahead, or does not."""
    workload = as_workload("matmul", {"m": 5, "n": 37, "k": 7}, constant_weights=True)
    space = derive(workload.dag, kernel_of_target)
    for sketch in range(len(space.sketches)):
        rows = space.sample(sketch, 8, np.random.default_rng(0))
        for row in rows[space.valid(sketch, rows)]:
            kernel = kernel_of(workload, kernel_of_target, space.trace(sketch, row))
            if kernel.packed == ({1} if packs else frozenset()) and (
                not packs or padded(kernel) > 4 * 37 * 7
            ):
                return kernel
    raise AssertionError("no such sketch")


@pytest.mark.parametrize("here", [True, False], ids=["this packs", "the other packs"])
def test_codes_that_pack_differently_are_given_what_each_packs(here: bool, tmp_path: Path) -> None:
    """The same call is right with whichever code runs: weights are packed, or copied, by the chosen one."""
    mine, other = packing(parse("cpu", 1), here), packing(parse("x86-64-v2", 1), not here)
    logged(mine, tmp_path / "t.db", ("x86-64-v2", other.trace))
    a, b = (np.arange(x * y, dtype=np.float32).reshape(x, y) % 7 for x, y in ((5, 7), (7, 37)))
    for k, names in enumerate((["cpu", "x86-64-v2"], ["x86-64-v2"])):
        files = at.export(mine, tmp_path, f"p{k}", targets=names, db=tmp_path / "t.db")
        contract = json.loads(files.contract.read_text())
        if not contract["packing"]:  # one code alone that does not
            assert k == 1 and here
            continue
        (row,) = contract["packing"]
        codes = [mine, other][k:]
        assert row["arguments"][1]["bytes"] == max(map(padded, codes))
        library = ctypes.CDLL(files.library)
        packed = np.full(row["arguments"][1]["bytes"], 255, np.uint8)
        assert library[row["function"]](*pointers(b, packed)) == 0
        out = np.full((5, 37), 99, np.float32)
        assert library[contract["function"]](*pointers(a, packed, out)) == 0
        np.testing.assert_array_equal(out, a @ b)


def pointers(*arrays: np.ndarray) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(x.ctypes.data) for x in arrays]


def test_sizes_that_calls_tell_reach_the_chosen_code(tmp_path: Path) -> None:
    workload = as_workload("matmul", {"m": at.dim(1, 24, open=True), "n": N, "k": K})
    kernel = default_kernel(workload, parse("cpu", 1))
    logged(kernel, tmp_path / "t.db", ("x86-64-v2", Trace()))
    files = at.export(kernel, tmp_path, "m", targets=["x86-64-v2"], db=tmp_path / "t.db")
    run_it = ctypes.CDLL(files.library).m_run
    a, b = (np.arange(x * y, dtype=np.float32).reshape(x, y) % 7 for x, y in ((M, K), (K, N)))
    for m in (1, 5, 24):
        c = np.full((M, N), 99, np.float32)
        assert run_it(*pointers(a, b, c), ctypes.c_int64(m)) == 0
        assert np.array_equal(c[:m], a[:m] @ b) and (c[m:] == 99).all()
    assert run_it(*pointers(a, b, c), ctypes.c_int64(25)) == 1


def test_targets_are_named_after_processors_where_they_are_files(tmp_path: Path) -> None:
    path = tmp_path / "a * b.json"
    path.write_text(replace(parse("x86-64-v2"), arch="any*/one").json)
    kernel = plain(tmp_path / "t.db", str(path))
    files = at.export(kernel, tmp_path, "m", targets=[str(path)], db=tmp_path / "t.db")
    assert json.loads(files.contract.read_text())["targets"][0]["name"] == "any__one"
    assert compiled(tmp_path)


@pytest.mark.usefixtures("two_cpus")
def test_threads_are_those_of_the_kernel(tmp_path: Path) -> None:
    s = at.Schedule(dag())
    s.parallel(s.loops("c")[0])
    kernel = at.build(s, threads=2)
    logged(kernel, tmp_path / "t.db", ("x86-64-v2", s.trace))
    files = at.export(kernel, tmp_path, "m", targets=["x86-64-v2"], db=tmp_path / "t.db")
    assert json.loads(files.contract.read_text())["threads"] == 2
    assert named(files) == ["log"]
    status, chosen, total = ran(compiled(tmp_path))
    assert (status, chosen, float(total)) == ("0", "x86-64-v2", right())


def test_weights_of_several_dtypes_are_refused() -> None:
    kernel = at.build(scheduled(4), threads=1)
    code = export_codes.ChosenCode("a", parse("x86-64-v2"), Trace(), "log", {})
    first, _ = kernel.parameters
    other = replace(code, name="b", packed={1: replace(first[1], dtype="float64")})
    with pytest.raises(at.ArgumentError, match="weight b is read as float32 and float64 by the schedules of"):
        export_codes.codes_of(kernel, [code, other])


REFUSED: dict[str, tuple[Sequence[str], type[Exception], str]] = {
    "none": ([], at.ArgumentError, "targets is empty: name at least one"),
    "twice": (["x86-64-v2", "x86-64-v2"], at.ArgumentError, "targets names x86-64-v2 twice; give each once"),
    "families": (["x86-64-v2", "neoverse-n1"], at.ArgumentError, "are of two families"),
    "a GPU": (["h100"], at.ArgumentError, "target cuda .* leave it out"),
    "unknown": (["znver99"], TargetError, "unknown target 'znver99'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_targets_that_cannot_be_are_refused(case: str, tmp_path: Path) -> None:
    targets, error, says = REFUSED[case]
    with pytest.raises(error, match=says):
        at.export(plain(tmp_path / "t.db"), tmp_path / "to", targets=targets, db=tmp_path / "t.db")
    assert not (tmp_path / "to").exists()


def test_the_command_takes_targets(tmp_path: Path, monkeypatch) -> None:
    db = tmp_path / "t.db"
    kernel = plain(db, "x86-64-v2", "x86-64-v3")
    monkeypatch.setattr(loading, "load_workload", lambda *_, **__: kernel)
    done = run(
        "export", "matmul", tmp_path / "to", "--shape", "m=4,n=4,k=4", "--db", db, "--json",
        "--targets", "x86-64-v2,x86-64-v3",
    )  # fmt: skip
    assert done.status == 0, done.err
    targets = json.loads(Path(done.json["contract"]).read_text())["targets"]
    assert [t["name"] for t in targets] == ["x86-64-v2", "x86-64-v3"]
