"""TVM MetaSchedule beside this tuner: same machine, threads and seconds; and again same number of trials.

    python -m venv tvm && tvm/bin/pip install -e '.[tvm]'
    tvm/bin/python benchmarks/metaschedule.py --out benchmarks/results/metaschedule.json

Each row: TVM tunes in a process of its own, by batches of 64 trials, until a batch ends after ``--budget``
seconds (its results come only with a batch, so it gets more time than it was given); then ours tunes for
``--budget`` seconds, again for 64 trials, and for a tenth of TVM's trials. The best kernels of both
are then timed interleaved in one process, and checked against each other. Rows that the file has are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from autotune.measure.compare.peers.with_tvm import BUILD_S  # noqa: E402
from autotune.measure.compare.peers.with_tvm import TRIALS as BATCH  # noqa: E402
from autotune.measure.compare.peers.with_tvm import target as tvm_target  # noqa: E402

SETTLE_S = 0.5  # TVM's threads go on spinning for a quarter of a second
RATIOS = ("ratio_same_seconds", "ratio_same_trials", "ratio_tenth_of_trials")
CONV56 = {"h": 56, "w": 56, "ci": 64, "co": 64, "k": 3, "padding": 1}
ROWS: list[tuple[str, dict[str, int], int]] = [
    ("conv2d", CONV56, 1),
    ("depthwise_conv2d", {"h": 112, "w": 112, "c": 32, "k": 3, "padding": 1}, 1),
    ("matmul", {"m": 1024, "n": 1024, "k": 1024}, 1),
    ("softmax", {"m": 4096, "n": 1024}, 1),
    ("batch_matmul", {"b": 12, "m": 128, "n": 128, "k": 64}, 2),
    ("conv2d", {"h": 7, "w": 7, "ci": 512, "co": 512, "k": 3, "padding": 1}, 2),
    ("conv2d_bias_relu", CONV56, 2),
    ("matmul", {"m": 512, "n": 512, "k": 512}, 2),
]


def tvm_tensors(op: str, p: dict[str, int]) -> list[Any]:
    """The operator as TVM's own test workloads state it: inputs, then the output."""
    from tvm import te
    from tvm.s_tir.meta_schedule.testing import te_workload as w

    if op == "matmul":
        a, b = te.placeholder((p["m"], p["k"]), name="A"), te.placeholder((p["k"], p["n"]), name="B")
        r = te.reduce_axis((0, p["k"]), "k")
        c = te.compute((p["m"], p["n"]), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
        tensors = [a, b, c]
    elif op == "batch_matmul":
        tensors = w.batch_matmul_nkkm(p["b"], p["m"], p["n"], p["k"])
    elif op == "softmax":
        tensors = w.softmax_mn(p["m"], p["n"])
    elif op == "depthwise_conv2d":
        tensors = w.depthwise_conv2d_nhwc(1, p["h"], p["w"], p["c"], p["k"], 1, p["padding"])
    else:
        tensors = w.conv2d_nhwc(1, p["h"], p["w"], p["ci"], p["co"], p["k"], 1, p["padding"])
        if op == "conv2d_bias_relu":
            x, weights, out = tensors
            bias = te.placeholder((p["co"],), name="bias")
            plus = te.compute(out.shape, lambda *i: out[i] + bias[i[-1]], name="plus")
            tensors = [x, weights, bias, te.compute(out.shape, lambda *i: te.max(plus[i], 0.0), name="relu")]
    return list(tensors)


def tvm_function(op: str, p: dict[str, int]) -> Any:
    from tvm import te

    return te.create_prim_func(tvm_tensors(op, p)).with_attr("global_symbol", "main")


def tvm_tune(op: str, p: dict[str, int], threads: int, budget: float, out: Path) -> None:
    """Writes ``{"curve": [[trial, seconds, best_s]], "first": module, "all": module}``; runs in a process
    that ends inside a callback, since MetaSchedule has no budget in seconds."""
    import tvm
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    start = time.perf_counter()
    best, curve, modules, seen = math.inf, [], {}, 0

    @derived_object
    class Watch(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        def apply(self, scheduler, task_id, candidates, builds, runs):  # type: ignore[no-untyped-def]
            nonlocal best, seen
            for candidate, run in zip(candidates, runs, strict=True):
                seen += 1
                if run is not None and run.error_msg is None and run.run_secs:
                    took = float(np.median([float(x) for x in run.run_secs]))
                    if took < best:
                        best = took
                        modules["all"] = tvm.ir.save_json(candidate.sch.mod)
            took = time.perf_counter() - start
            curve.append([seen, took, best])
            modules.setdefault("first", modules.get("all"))
            if took > budget:
                out.write_text(json.dumps({"curve": curve, **modules}))
                os._exit(0)

    ms.tune_tir(
        tvm_function(op, p), tvm_target(threads), tempfile.mkdtemp(), max_trials_global=1 << 16,
        num_trials_per_iter=BATCH, seed=0, builder=ms.builder.LocalBuilder(timeout_sec=BUILD_S),
        measure_callbacks=[ms.measure_callback.AddToDatabase(), ms.measure_callback.RemoveBuildArtifact(),
                           ms.measure_callback.UpdateCostModel(), Watch()],
    )  # fmt: skip


def compare(
    op: str, p: dict[str, int], threads: int, budget: float, theirs: dict[str, Any]
) -> dict[str, Any]:
    import tvm

    import autotune as at
    from autotune.measure.compare.bench import Contender, arrays_for
    from autotune.measure.compare.bench import compare as interleave

    kernels, tuned = {}, {}
    limits: dict[str, dict[str, Any]] = {
        "seconds": {"budget_s": budget},
        "trials": {"trials": BATCH, "budget_s": 600},
        "tenth": {"trials": theirs["curve"][-1][0] // 10, "budget_s": 600},
    }
    with tempfile.TemporaryDirectory() as tmp:
        for name, limit in limits.items():
            tuned[name] = at.tune(op, threads=threads, db=f"{tmp}/{name}.db", **limit, **p)
            kernels[name] = at.load(op, threads=threads, db=f"{tmp}/{name}.db", **p)
    inputs, outputs = arrays_for(kernels["trials"].workload, 0)
    shapes = [[int(n) for n in t.shape] for t in tvm_tensors(op, p)]
    contenders = []
    for name, kernel in kernels.items():
        contenders.append(Contender(name, lambda kernel=kernel: kernel(*inputs, out=outputs[0])))
    for name in ("first", "all"):
        built = tvm.compile(tvm.ir.load_json(theirs[name]), tvm_target(threads))["main"]
        arrays = [
            tvm.runtime.tensor(a.reshape(shape))
            for a, shape in zip([*inputs, np.zeros_like(outputs[0])], shapes, strict=True)
        ]
        contenders.append(Contender(f"tvm {name}", lambda f=built, a=arrays: f(*a)))
        built(*arrays)
        kernels["seconds"](*inputs, out=outputs[0])
        np.testing.assert_allclose(arrays[-1].numpy().reshape(outputs[0].shape), outputs[0], 1e-3, 1e-3)
    found = interleave(contenders, seconds=20, settle_s=SETTLE_S if threads > 1 else 0.0)
    return {
        "op": op, "params": p, "threads": threads,
        "times_s": {c.name: found.time_s(c.name) for c in contenders},
        "trials": {n: t.measured for n, t in tuned.items()},
        "elapsed_s": {n: t.elapsed_s for n, t in tuned.items()},
        "tvm_curve": theirs["curve"],
        "ratio_same_seconds": found.ratio("seconds", "tvm all"),
        "ratio_same_trials": found.ratio("trials", "tvm first"),
        "ratio_tenth_of_trials": found.ratio("tenth", "tvm all"),
    }  # fmt: skip


def report(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| operator | threads | same seconds | same trials | tenth of its trials "
        "| seconds of those | TVM's seconds (trials) |",
        "|---" * 7 + "|",
    ]
    for r in rows:
        shape = " ".join(f"{k}={v}" for k, v in r["params"].items())
        trials, seconds, _ = r["tvm_curve"][-1]
        lines.append(
            f"| {r['op']} {shape} | {r['threads']} | "
            + "".join(f"{r[key]:.2f}× | " for key in RATIOS)
            + f"{r['elapsed_s']['tenth']:.1f} | {seconds:.0f} ({trials}) |"
        )
    for key in RATIOS:
        mean = math.exp(sum(math.log(r[key]) for r in rows) / len(rows))
        lines.append(
            f"\n{key.replace('_', ' ')}: geometric mean {mean:.2f}, least {min(r[key] for r in rows):.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tuning for each")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/metaschedule.json"))
    parser.add_argument("--tvm-only", action="store_true", help="only TVM's part, kept beside the file")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    kept = options.out.with_suffix(".tvm")
    if options.worker is not None:
        op, p, threads = ROWS[options.worker]
        tvm_tune(op, p, threads, options.budget, kept / f"{options.worker}.json")
        return
    kept.mkdir(exist_ok=True)
    done: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    have = {(r["op"], json.dumps(r["params"]), r["threads"]) for r in done["rows"]}
    for number, (op, p, threads) in enumerate(ROWS):
        if (op, json.dumps(p), threads) in have:
            continue
        theirs = kept / f"{number}.json"
        if not theirs.exists():
            subprocess.run(
                [sys.executable, __file__, "--worker", str(number), "--budget", str(options.budget),
                 "--out", str(options.out)],
                env={**os.environ, "TVM_NUM_THREADS": str(threads)}, stdout=subprocess.DEVNULL, check=True,
            )  # fmt: skip
        if options.tvm_only:
            continue
        os.environ["TVM_NUM_THREADS"] = str(threads)
        os.environ["TVM_BIND_THREADS"] = "0"  # else it binds the caller, and whom that one starts
        done["rows"].append(compare(op, p, threads, options.budget, json.loads(theirs.read_text())))
        from autotune.backends.building.generator_version import this_machine

        command = f"benchmarks/metaschedule.py --budget {options.budget:g}"
        done |= {"machine": this_machine(), "command": command}
        options.out.write_text(json.dumps(done, indent=1) + "\n")
    print(report(done["rows"]))


if __name__ == "__main__":
    main()
