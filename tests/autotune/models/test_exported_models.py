"""Models exported for C: the shared object computes what the module does, at all sizes, with its states."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import graph_cases as cases
import needs
import numpy as np
import pytest
import state_models as states
from children import python_path
from default_kernels import default_kernels
from exported import ExportedLibrary, each
from exported_cases import agree, parallel, program, states_of
from kernel_cases import AROUND_A_FORK
from model_cases import islanded, layers, model_of
from open_graphs import MODELS, inputs_at, size
from random_models import call_inputs, random_model
from test_module_states import beginning
from test_open_models import module_of
from test_own_programs import keeping

import autotune as at
from autotune.backends.building import shared_library
from autotune.codegen.simt import cxx
from autotune.errors import ArgumentError, CompileError, ModelError
from autotune.models import compiling, export
from autotune.models.module import Module

if cxx.command() is None:
    needs.missing("c++")
COMPILER = cxx.command(("cc", "gcc", "clang"), "cc")
te = at.te


SMALL = layers(2)[0]


@pytest.mark.fast("inside")
@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_the_shared_object_computes_what_the_module_does(weights, tmp_path) -> None:
    graph = cases.residual_net()
    net = states.untuned(model_of(graph))
    files = net.export(tmp_path / "new" / "folder", weights=weights)
    assert files.library.name == "net.so" and (files.weights is None) == (weights == "inside")
    library = ExportedLibrary(files)
    one, other = library.make(), library.make()
    for seed in range(3):
        given = cases.inputs_of(graph, seed)
        for instance in (one, other):
            agree(net, library, instance, given)
    library.free(one)
    agree(net, library, other, cases.inputs_of(graph, 9))
    library.free(other)
    library.free(ctypes.c_void_p())


@pytest.mark.fast("columns", "doubled", "positions", "scaled")
@pytest.mark.parametrize("name", sorted(MODELS))
def test_open_sizes_are_told_behind_the_arrays(name, tmp_path) -> None:
    model = MODELS[name]
    graph = model.graph()
    net = states.untuned(model_of(graph))
    library = ExportedLibrary(net.export(tmp_path))
    instance = library.make()
    for told in (*model.sizes, model.sizes[0]):
        agree(net, library, instance, inputs_at(graph, {"n": told}), told)
    library.free(instance)


@pytest.mark.fast("counter", "twice", "average", "decayed")
@pytest.mark.parametrize("name", sorted(states.STATE_MODELS))
def test_calls_keep_states(name, tmp_path) -> None:
    graph = states.STATE_MODELS[name]()
    net = states.untuned(model_of(graph))
    library = ExportedLibrary(net.export(tmp_path))
    instance = library.make()
    for begun in range(2):
        state, kept = net.new_state(), states_of(library, instance)
        for call in range(3):
            given = cases.inputs_of(graph, call)
            for x in given:
                if x.dtype == np.int64:
                    x[...] = call
            expected = each(net(*given, state=state))
            for a, b in zip(library.call(instance, given, expected), expected, strict=True):
                np.testing.assert_array_equal(a, b)
            for s, a in kept.items():
                np.testing.assert_array_equal(a, state[s])
        assert library.function("reset")(instance) == 0, begun
    library.free(instance)


def test_rows_outside_of_a_state_are_refused_before_anything_is_written(tmp_path) -> None:
    net = states.untuned(model_of(states.cache()))
    library = ExportedLibrary(net.export(tmp_path))
    instance = library.make()
    x = np.ones((2, 6), np.float32)
    like = each(net(x, np.array([0])))
    library.call(instance, [x, np.array([3])], like)
    before = {n: a.copy() for n, a in states_of(library, instance).items()}
    for outside in (-1, 7, 8, 2**40, -(2**63), 2**63 - 1):
        status = library.run(instance, [x, np.array([outside])], like)
        assert status == library.code("NO_ROWS"), outside
        with pytest.raises(ArgumentError):
            net(x, np.array([outside]))
    for n, a in states_of(library, instance).items():
        np.testing.assert_array_equal(a, before[n])
    library.call(instance, [x, np.array([6])], like)


@pytest.mark.slow
def test_states_begin_as_the_model_says(tmp_path) -> None:
    net = states.untuned(model_of(beginning()))
    for weights in ("inside", "beside"):
        library = ExportedLibrary(net.export(tmp_path, weights=weights, name=weights))
        instance = library.make()
        (a,) = states_of(library, instance).values()
        np.testing.assert_array_equal(a, np.arange(20).reshape(5, 4))
        a[...] = 0
        assert library.function("reset")(instance) == 0 and a[4, 3] == 19


@pytest.fixture
def plain(monkeypatch, tmp_path) -> None:
    """A log of the test's own, and default kernels in the place of first picks."""
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "log.db"))
    monkeypatch.setattr(compiling, "untuned_kernels", default_kernels)


def compiled(model: Any, **how: Any) -> Module:
    return at.compile_model(model, threads=1, fallback=True, progress=None, **how)


@pytest.mark.usefixtures("plain")
@pytest.mark.fast("columns")
@pytest.mark.parametrize("name", ["columns", "images", "transformer"])
def test_sizes_run_programs_of_their_own(name, tmp_path) -> None:
    graph = MODELS[name].graph()
    least, *_, most = MODELS[name].sizes
    net = compiled(model_of(graph).with_own_sizes(n=(least, most)))
    files = net.export(tmp_path)
    library = ExportedLibrary(files)
    assert library.contract["own_sizes"] == [{"n": least}, {"n": most}]
    instance = library.make()
    for told in (*MODELS[name].sizes, least):
        agree(net, library, instance, inputs_at(graph, {"n": told}), told)
    for outside in (least - 1, most + 1, -(2**63), 2**63 - 1):
        given = library.inputs(inputs_at(graph, {"n": most}))
        like = each(net(*inputs_at(graph, {"n": most})))
        assert library.run(instance, given, like, outside) == library.code("OUTSIDE")


@pytest.mark.usefixtures("plain")
def test_the_program_of_the_most_sizes_is_taken(tmp_path) -> None:
    """Each has other weights, which no module has, so that results tell which ran."""
    b = cases.Builder()
    x = b.input("x", size(1, 4, "b"), size(1, 9), 4)
    graph = b.graph(cases.relu(cases.dense(b, x, 8, "fc")))
    net = compiled(model_of(graph).with_own_sizes(n=2).with_own_sizes(n=2, b=3))
    own = []
    for k, p in enumerate(net._own, 2):
        others = {n: p.program.weight(n) * k for n in p.program.outline.constants}
        own.append(replace(p, program=p.program.with_weights(others)))
    told = Module(net.program, net.target, "net", net.tuned_s, None, None, own)
    library = ExportedLibrary(told.export(tmp_path))
    instance = library.make()
    results = set()
    for batch, n in ((1, 2), (3, 2), (3, 3), (4, 9)):
        sizes = {"n": n, "b": batch}
        given = inputs_at(graph, sizes)
        agree(told, library, instance, given, *(sizes[s["name"]] for s in library.contract["sizes"]))
        results.add(np.array_equal(told(*given), net(*given)))
    assert results == {True, False}


@pytest.mark.usefixtures("plain")
def test_own_sizes_and_all_sizes_share_states(tmp_path) -> None:
    graph = keeping(size(1, 5))
    net = compiled(model_of(graph).with_own_sizes(n=1))
    library = ExportedLibrary(net.export(tmp_path))
    instance, at_row = library.make(), 0
    rng = np.random.default_rng(0)
    for n in (1, 3, 1, 5, 1):
        agree(net, library, instance, [rng.integers(0, 3, (n, 4)).astype("float32"), np.array([at_row])], n)
        at_row += n
    for s, a in states_of(library, instance).items():
        np.testing.assert_array_equal(a, net.state[s])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3, 10, 11, 17, 18, 54])
def test_random_models_are_the_same_in_c(seed, tmp_path) -> None:
    graph = random_model(Random(seed))
    net = module_of(graph)
    library = ExportedLibrary(net.export(tmp_path))
    instance = library.make()
    ranges = graph.dag.open.ranges if graph.dag.open is not None else {}
    for n in range(4):
        sizes = {name: min(most, least + n * n) for name, (least, most) in ranges.items()}
        told = [sizes[s["name"]] for s in library.contract["sizes"]]
        agree(net, library, instance, call_inputs(graph, sizes, seed + n), *told)


def test_dtypes_scalars_and_odd_names(tmp_path) -> None:
    names = {
        "int": "int32", "INPUTS": "float64", "instance": "uint8", "a b": "float16", "i": "bool", "é": "int64",
        "lambda": "int8", "argv": "float32", "x": "uint16",
    }  # fmt: skip
    b = cases.Builder()
    ins = [b.input(f"x{k}", *((3, 5) if k else ()), dtype=dtype) for k, dtype in enumerate(names.values())]
    model = model_of(b.graph(*(cases.stage(x.shape, lambda *i, x=x: x[i]) for x in ins)), "int")
    ports = tuple(replace(p, name=name) for p, name in zip(model.inputs, names, strict=True))
    net = states.untuned(replace(model, inputs=ports))
    library = ExportedLibrary(net.export(tmp_path))
    assert library.contract["name"] == "kernel_int"
    instance = library.make()
    rng = np.random.default_rng(0)
    given = [np.asarray(rng.integers(0, 2, t.shape)).astype(t.dtype) for t in net.inputs]
    agree(net, library, instance, given)
    program(tmp_path, "kernel_int")
    subprocess.run([sys.executable, "-I", "kernel_int_example.py"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_the_examples_run(weights, tmp_path) -> None:
    net = states.untuned(model_of(SMALL))
    net.export(tmp_path, weights=weights)
    given = [np.arange(np.prod(t.shape)).reshape(t.shape).astype(t.dtype) % 7 for t in net.inputs]
    total = sum(float(v) for v in each(net(*given))[0].reshape(-1).astype(np.float64))
    said = f"done\nsum of {net.outputs[0].name.replace('.', '_')} {total:.9g}\n"
    assert program(tmp_path, "net") == said
    command = [sys.executable, "-I", "net_example.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == said, done.stderr


def test_what_the_page_shows_in_c_runs(tmp_path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "deployment.md"
    (shown,) = re.findall(r"```c\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    include, body = shown.split("\n", 1)
    net = states.untuned(model_of(SMALL))
    net.export(tmp_path / "build", "net", weights="beside")
    arrays = "float x[net_in_x_elements] = {0}, y[64];"
    text = f"#include <stdio.h>\n{include}\nint main(void) {{\n{arrays}\n{body}\nreturn status; }}\n"
    (tmp_path / "page.c").write_text(text)
    command = [*COMPILER, "-std=c99", "-Wall", "-Werror", "-Ibuild", "page.c", "build/net.so", "-o", "page"]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run(["./page"], cwd=tmp_path, check=True, env={"LD_LIBRARY_PATH": "build"})


def test_the_header_of_a_model_is_for_c_plus_plus_too(tmp_path) -> None:
    header = states.untuned(model_of(states.counter())).export(tmp_path).header
    source = tmp_path / "includes.cpp"
    twice = f'#include "{header.name}"\n' * 2
    source.write_text(f"{twice}int (*f)(net_instance *) = net_reset;\n")
    made = ["-c", source, "-o", tmp_path / "includes.o"]
    subprocess.run([*cxx.command(), "-Wall", "-Werror", *made], check=True)


ODD = 'a */ int evil; /* \\\n ??/ "x\u202e é'


def test_a_name_does_not_end_a_comment_of_the_header(tmp_path) -> None:
    """As whoever made a model's file may want."""
    model = model_of(states.counter(), ODD)
    graph = model.graph
    renamed = {f"{name}{ODD}": s for name, s in graph.states.items()}
    net = states.untuned(replace(model, graph=replace(graph, states=renamed)))
    files = net.export(tmp_path, "net")
    assert json.loads(files.contract.read_text())["model"] == ODD
    program(tmp_path, "net", "-pedantic")
    bare = [*COMPILER, "-E", "-P", files.header.name]
    read = subprocess.run(bare, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "net_reset" in read and "evil" not in read


def test_models_stand_beside_each_other_in_a_process(tmp_path) -> None:
    """Under names that differ in case alone, one of them twice, from a path of odd characters."""
    folder = tmp_path / "with, spaces é"
    one, other = states.untuned(model_of(SMALL)), states.untuned(model_of(states.counter()))
    files = [one.export(folder, "net"), other.export(folder, "NET"), one.export(folder, "net2")]
    shutil.copy(files[1].library, folder / "copy.so")
    files += [replace(files[1], library=folder / "copy.so"), files[1]]
    libraries = [ExportedLibrary(f) for f in files]
    instances = [x.make() for x in libraries]
    given = cases.inputs_of(SMALL)
    for k in (0, 2):
        agree(one, libraries[k], instances[k], given)
    for k, calls in ((1, 1), (3, 2), (4, 3)):  # each has states of its own
        x, state = np.ones((2, 5), np.float32), other.new_state()
        for _ in range(calls):
            expected = each(other(x, state=state))
            found = libraries[k].call(instances[k], [x], expected)
            assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    source = '#include "net.h"\n#include "NET.h"\nint main(void) { return !net_make + !NET_make; }\n'
    (folder / "both.c").write_text(source)
    strict = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-Wno-address")
    command = [*COMPILER, *strict, "both.c", "./net.so", "./NET.so", "-Wl,-rpath,.", "-o", "both"]
    subprocess.run(command, cwd=folder, check=True)
    subprocess.run(["./both"], cwd=folder, check=True)
    moved = folder.rename(tmp_path / "moved")
    assert program(moved, "net").startswith("done\n")


def test_a_directory_for_temporary_files_may_have_odd_characters(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "with, spaces é"))
    Path(tempfile.gettempdir()).mkdir()
    library = ExportedLibrary(states.untuned(model_of(SMALL)).export(tmp_path))
    library.free(library.make())


def test_what_runs_a_model_is_compiled_without_a_warning(tmp_path, monkeypatch) -> None:
    strict = (*COMPILER, "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror")
    monkeypatch.setattr(shared_library, "linker", lambda *_: strict)
    for graph, weights in ((states.counter(), "inside"), (MODELS["columns"].graph(), "beside")):
        states.untuned(model_of(graph)).export(tmp_path, weights=weights)


def test_weights_beside_are_checked(tmp_path) -> None:
    net = states.untuned(model_of(SMALL))
    files = net.export(tmp_path, weights="beside")
    good = files.weights.read_bytes()
    assert len(good) == json.loads(files.contract.read_text())["weights"]["bytes"]
    assert zlib.crc32(good) == json.loads(files.contract.read_text())["weights"]["crc32"]
    library = ExportedLibrary(files)
    made = ctypes.c_void_p(1)
    place = tmp_path / "other"

    def status(path: bytes | None) -> int:
        found = library.function("make")(ctypes.byref(made), path)
        assert made.value is None
        return int(found)

    assert status(None) == library.code("NO_POINTER")
    assert library.function("make")(None, None) == library.code("NO_POINTER")
    assert status(bytes(place)) == status(bytes(tmp_path)) == library.code("UNREADABLE")
    os.mkfifo(tmp_path / "pipe")
    assert status(bytes(tmp_path / "pipe")) == library.code("UNREADABLE")
    for other in (good[:-1], good + b"\0", b""):
        place.write_bytes(other)
        assert status(bytes(place)) == library.code("OTHER_LENGTH")
    for at_byte in (0, 8, len(good) - 1):
        place.write_bytes(good[:at_byte] + bytes([good[at_byte] ^ 1]) + good[at_byte + 1 :])
        assert status(bytes(place)) == library.code("DAMAGED")
    instance = library.make()
    agree(net, library, instance, cases.inputs_of(SMALL))
    place.unlink()
    second = library.make(bytes(place))  # the weights are there
    library.free(instance)
    agree(net, library, second, cases.inputs_of(SMALL))
    library.free(second)
    assert status(bytes(place)) == library.code("UNREADABLE")


def test_an_instance_that_is_in_a_call_says_so(tmp_path) -> None:
    net = states.untuned(model_of(states.counter()))
    library = ExportedLibrary(net.export(tmp_path))
    instance = library.make()
    given = [np.ones((2, 5), np.float32)]
    like = each(net(*given))
    busy = ctypes.c_int.from_address(instance.value + ctypes.sizeof(ctypes.c_void_p))
    busy.value = 1
    assert library.run(instance, given, like) == library.function("reset")(instance) == library.code("BUSY")
    busy.value = 0
    assert library.run(instance, given, like) == 0
    assert library.run(ctypes.c_void_p(), given, like) == library.code("NO_POINTER")
    missing = library.function("run")(instance, None, *(ctypes.c_void_p(a.ctypes.data) for a in like))
    assert missing == library.code("NO_POINTER")


def test_every_status_has_a_text(tmp_path) -> None:
    library = ExportedLibrary(states.untuned(model_of(states.counter())).export(tmp_path))
    for status, row in library.contract["returns"].items():
        assert library.function("error_text")(int(status)).decode() == row["means"]
    assert library.function("error_text")(99) == b"no status of this model"
    header = (tmp_path / "net.h").read_text()
    assert all(f"{row['name']} = {s}" in header for s, row in library.contract["returns"].items())
    for hidden in ("at_kernel_0", "at_inside", "at_parallel", "call"):
        assert not hasattr(library.library, hidden)


def calls_from_threads(graph: Any, folder: Path, threads: int, calls: int) -> None:
    net = states.untuned(model_of(graph))
    library = ExportedLibrary(net.export(folder, weights="beside"))
    given = [cases.inputs_of(graph, seed) for seed in range(threads)]
    expected = [each(net(*x)) for x in given]

    def each_calls(k: int) -> bool:
        right = True
        for _ in range(calls // 50):
            instance = library.make()
            for _ in range(50):
                found = library.call(instance, given[k], expected[k])
                right &= all(np.array_equal(a, b) for a, b in zip(found, expected[k], strict=True))
            library.free(instance)
        return right

    with ThreadPoolExecutor(threads) as pool:
        assert all(pool.map(each_calls, range(threads)))


def test_threads_call_instances_of_their_own(tmp_path) -> None:
    calls_from_threads(SMALL, tmp_path, 3, 50)


@pytest.mark.soak
def test_eight_threads_call_a_thousand_times(tmp_path) -> None:
    calls_from_threads(cases.residual_net(), tmp_path, 8, 1000)


AFTER_A_FORK = f"""
import os, sys, ctypes
from exported import ExportedLibrary
import numpy as np
from types import SimpleNamespace
library = ExportedLibrary(SimpleNamespace(contract=sys.argv[1], library=sys.argv[2], weights=None))
x, y = np.ones((64, 64), "f4"), np.zeros((64, 64), "f4")
instance = library.make()
def call():
    y[...] = 0
    assert library.run(instance, [x], [y]) == 0 and (y == 65).all()
{AROUND_A_FORK}assert "autotune" not in sys.modules
print("well")
"""


@pytest.mark.usefixtures("two_cpus")
def test_it_runs_without_autotune_and_with_threads_after_a_fork(tmp_path) -> None:
    b = cases.Builder()
    x = b.input("x", 64, 64)
    w = b.constant("w", 64, 64, least=1, most=1)
    product = cases.matmul(x, w)
    net = parallel(model_of(b.graph(cases.stage((64, 64), lambda i, j: product[i, j] + 1.0))))
    files = net.export(tmp_path)
    assert json.loads(files.contract.read_text())["threads"] == 2
    command = [sys.executable, "-W", "ignore", "-c", AFTER_A_FORK, str(files.contract), str(files.library)]
    env = {**os.environ, "PYTHONPATH": python_path(__file__)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "well\n", done.stderr


# -- what is refused ---------------------------------------------------------------------------------


def test_islands_are_refused_by_name(tmp_path) -> None:
    net = states.untuned(model_of(islanded()[0]))
    with pytest.raises(ModelError, match=r"net has operators that only Python runs: .*\(.*\); a model for C"):
        net.export(tmp_path)


@pytest.mark.usefixtures("plain")
def test_donated_inputs_are_refused(tmp_path) -> None:
    b = cases.Builder()
    x = b.input("x", 4, 4)
    net = compiled(model_of(b.graph(cases.relu(x))), donate=["in.x"])
    with pytest.raises(
        ModelError, match=r"takes the memory of inputs for outputs \(donate\).*without donate"
    ):
        net.export(tmp_path)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "2 b"}, "'2 b' is no identifier of C: .* such as 'net'"),
        ({"name": "double"}, "'double' is no identifier of C"),
        ({"weights": "outside"}, 'weights=\'outside\' is neither "auto", "inside" nor "beside"'),
    ],
)
def test_wrong_arguments_are_refused(given, says, tmp_path) -> None:
    with pytest.raises(ArgumentError, match=says):
        states.untuned(model_of(states.counter())).export(tmp_path / "none", **given)
    assert not (tmp_path / "none").exists()


def test_weights_that_no_object_has_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(export, "MOST_INSIDE", 100)
    net = states.untuned(model_of(SMALL))
    with pytest.raises(ArgumentError, match='a shared object has 0 at most: give weights="beside"'):
        net.export(tmp_path, weights="inside")
    monkeypatch.setattr(export, "BESIDE", 100)
    assert net.export(tmp_path).weights is not None


def test_a_directory_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    net = states.untuned(model_of(states.counter()))
    with pytest.raises(ArgumentError, match=r"cannot be exported to \S*/file/to: Not a directory; choose"):
        net.export(tmp_path / "file" / "to")


def test_a_missing_compiler_is_explained_and_leaves_old_files(tmp_path, monkeypatch) -> None:
    net = states.untuned(model_of(states.counter()))
    net.export(tmp_path, weights="beside")
    before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    monkeypatch.setattr(cxx, "command", lambda *names: None)
    with pytest.raises(CompileError, match="needs a linker.*install gcc, or pip install .*emulator"):
        net.export(tmp_path, weights="beside")
    assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_a_language_model_makes_tokens_in_c(tmp_path) -> None:
    """Of four bits, with a cache whose valid rows alone are read."""
    needs.imported("gguf")
    import gguf_models as files

    small = replace(files.LLAMA, layers=1, hidden=32, feed_forward=32, heads=2, kv_heads=1, vocabulary=24)
    path = files.write(tmp_path / "x.gguf", small)
    net = states.untuned(at.import_gguf(path, context=16, rows=4))
    library = ExportedLibrary(net.export(tmp_path, "x"))
    tokens, at_row, instance = np.array([5, 17, 3, 20, 11, 8, 1]), 0, library.make()
    for n in (4, 1, 1, 1):
        agree(net, library, instance, [tokens[at_row : at_row + n], np.array(at_row)], n)
        at_row += n
    status = library.run(instance, [tokens[:4], np.array(13)], [np.zeros(24, np.float32)], 4)
    assert status == library.code("NO_ROWS")
