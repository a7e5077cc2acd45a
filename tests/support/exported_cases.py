"""Exported models: made, compared with their modules, and called by a program in C."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import needs
import numpy as np
from exported import ExportedLibrary, each
from model_cases import layers, model_of, packing_kernel

import autotune as at
from autotune.backends import parse
from autotune.codegen.runtime.entry import shape_of
from autotune.codegen.simt import cxx
from autotune.models.fallback import run_island
from autotune.models.module import Module
from autotune.models.preparation import prepared
from autotune.models.program import Program


def agree(net: Module, library: ExportedLibrary, instance: Any, given: Any, *sizes: int) -> None:
    expected = each(net(*given))
    for a, b in zip(library.call(instance, given, expected, *sizes), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def states_of(library: ExportedLibrary, instance: Any) -> dict[str, Any]:
    """The states of an instance, in its memory."""
    library.function("state").restype = ctypes.c_void_p
    found = {}
    for i, s in enumerate(library.contract["states"]):
        raw = (ctypes.c_char * s["bytes"]).from_address(library.function("state")(instance, i))
        found[s["name"]] = np.frombuffer(raw, s["dtype"]).reshape(s["shape"])
    assert library.function("state")(instance, len(found)) is None
    return found


def program(folder: Path, name: str, *more: str) -> str:
    """What the exported example prints. It is compiled without a warning."""
    strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", *more]
    command = [*compiler(), *strict, f"{name}_example.c", f"./{name}.so", "-Wl,-rpath,.", "-o", "program"]
    subprocess.run(command, cwd=folder, check=True)
    return subprocess.run(["./program"], cwd=folder, check=True, capture_output=True, text=True).stdout


def compiler() -> tuple[str, ...]:
    """The compiler of C; skips where there is none."""
    return cxx.command(("cc", "gcc", "clang"), "cc") or needs.missing("c++")


def packing(count: int = 3) -> Module:
    """Products whose weights the kernels read packed, in several panels."""
    graph, _ = layers(count, m=8, n=48)
    ready = prepared(model_of(graph))
    ol, target = ready.outline(lambda w: None), parse("cpu", 1)
    (task,) = ol.tasks
    each = (packing_kernel(task, target, skip) for skip in range(20))
    kernels = [next(k for k in each if shape_of(k.parameters[0][1])[0] > 1)]
    program = Program.of(ol, kernels, ready.graph.values.__getitem__, run_island)
    return Module(program, target, "net", [None] * len(kernels), None, None)


def parallel(model: Any) -> Module:
    """The plain loops, the outermost on two threads."""
    target = parse("cpu", 2)
    ready = prepared(model)
    ol = ready.outline(lambda w: None)
    kernels = []
    for w in ol.tasks:
        s = at.Schedule(w.dag)
        s.parallel(s.loops(w.dag.stages[-1].outputs[0].name)[0])
        kernels.append(at.build(s, threads=2))
    program = Program.of(ol, kernels, ready.graph.values.__getitem__, run_island)
    return Module(program, target, model.name, [None] * len(kernels), None, model.signature)
