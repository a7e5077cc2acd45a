"""Exported models in a C program beside the same models in Python: time of a call, results, size, libraries.

    python benchmarks/exported.py --out benchmarks/results/exported.json [NAME ...]

Each network of ``networks.py`` is exported to ONNX, imported and compiled with first picks for one thread,
and exported with its weights inside and beside. A C program, which gcc compiles here, loads each shared
object and makes calls when it is told to. Python's calls and those of the programs take turns, and a time is
the least median of a round: CPU time of the thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from suite import commit  # noqa: E402

import autotune as at  # noqa: E402
from autotune.backends import parse  # noqa: E402

NAMES = ("resnet18", "bert")
ROUNDS, ROUND_S = 15, 0.5
# Makes so many calls as it reads, and prints the median nanoseconds of one, until its input ends.
PROGRAM = """\
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "{name}.h"

static int less(const void *a, const void *b) {{
    return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b);
}}
static void *memory(size_t n) {{ return aligned_alloc(64, (n + 63) / 64 * 64); }}
static double now(void) {{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}}

int main(int argc, char **argv) {{
    {name}_instance *instance = NULL;
    double begin = now();
    if ({name}_make(&instance, argc > 2 ? argv[2] : NULL)) return 1;
    double made = now() - begin;
    FILE *given = fopen(argv[1], "rb");
{arrays}
    for (int n; scanf("%d", &n) == 1;) {{
        double *took = malloc(sizeof *took * n);
        for (int i = 0; i < n; i++) {{
            double start = now();
            if ({name}_run(instance, {words})) return 1;
            took[i] = now() - start;
        }}
        qsort(took, n, sizeof *took, less);
        printf("%.0f %.0f %.9g\\n", took[n / 2], made, (double){output}[0]);
        fflush(stdout);
        free(took);
    }}
    {name}_free(instance);
    return 0;
}}
"""


def program(files: Any, name: str, given: list[np.ndarray], folder: Path) -> subprocess.Popen[str]:
    """A process that calls an exported model with these inputs."""
    contract = json.loads(files.contract.read_text())
    arguments = contract["arguments"]
    (folder / "inputs").write_bytes(b"".join(a.tobytes() for a in given))
    arrays = []
    for a in arguments:
        arrays.append(f"    {a['c_type']} *{a['c_name']} = memory({a['bytes']});")
        if a["role"] == "input":
            arrays.append(f"    if (!fread({a['c_name']}, {a['bytes']}, 1, given)) return 1;")
    words = [a["c_name"] for a in arguments]
    text = PROGRAM.format(name=name, arrays="\n".join(arrays), words=", ".join(words), output=words[-1])
    (folder / "timed.c").write_text(text)
    command = ["gcc", "-O2", "timed.c", f"./{name}.so", "-Wl,-rpath,.", "-o", "timed"]
    subprocess.run(command, cwd=folder, check=True)
    told = ["inputs", *([] if files.weights is None else [files.weights.name])]
    pipe = subprocess.PIPE
    return subprocess.Popen(["./timed", *told], cwd=folder, stdin=pipe, stdout=pipe, text=True)


def libraries(library: Path) -> list[str]:
    """What a shared object needs."""
    told = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True).stdout
    return [line.split()[1] for line in told.splitlines() if line.split()[:1] == ["NEEDED"]]


def row(name: str, folder: Path) -> dict[str, Any]:
    """What is measured of a network."""
    import networks

    saved, path = folder / f"{name}.at", folder / f"{name}.onnx"
    if not saved.exists():
        networks.export(name, str(path))
        net = at.compile_model(at.import_onnx(str(path)), threads=1, fallback=True, db=str(folder / "log.db"))
        net.save(saved)
    net = at.load_model(saved)
    rng = np.random.default_rng(0)
    given = [
        (rng.standard_normal(t.shape) if t.dtype == "float32" else rng.integers(0, 2, t.shape)).astype(
            t.dtype
        )
        for t in net.inputs
    ]
    found: dict[str, Any] = {"model": name, "weights_bytes": net.weights_bytes}
    running = {}
    for weights in ("inside", "beside"):
        where = folder / f"{name}-{weights}"
        begin = time.perf_counter()
        files = net.export(where, name, weights=weights)
        found[weights] = {
            "export_s": time.perf_counter() - begin,
            "library_bytes": files.library.stat().st_size,
            "file_bytes": 0 if files.weights is None else files.weights.stat().st_size,
            "needs": libraries(files.library),
        }
        running[weights] = program(files, name, given, where)
    out = net(*given)
    first = float((out[0] if isinstance(out, tuple) else out).reshape(-1)[0])
    calls = max(3, int(ROUND_S / timed(net, given, 3)))
    times: dict[str, list[float]] = {"python": [], **{w: [] for w in running}}
    for _ in range(ROUNDS):
        times["python"].append(timed(net, given, calls))
        for weights, child in running.items():
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(f"{calls}\n")
            child.stdin.flush()
            took, made, result = map(float, child.stdout.readline().split())
            assert np.float32(result) == np.float32(first), (result, first)
            times[weights].append(took / 1e9)
            found[weights]["make_s"] = made / 1e9
    for child in running.values():
        child.communicate()
    found["python_s"] = min(times["python"])
    for w in running:
        found[w]["call_s"] = min(times[w])
        found[w]["over_python"] = min(times[w]) / min(times["python"])
        found[w]["median_over_python"] = statistics.median(
            c / p for c, p in zip(times[w], times["python"], strict=True)
        )
    return found


def timed(net: Any, given: list[np.ndarray], calls: int) -> float:
    """The median seconds of a call."""
    took = []
    for _ in range(calls):
        begin = time.thread_time()
        net(*given)
        took.append(time.thread_time() - begin)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help="keeps models between runs")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        folder = o.folder or Path(tmp)
        rows = [row(name, folder) for name in o.names]
    document = {"commit": commit(), "target": parse("cpu", 1).arch, "rows": rows}
    print(json.dumps(document, indent=1))
    if o.out is not None:
        o.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
