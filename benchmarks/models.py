"""Whole models beside ONNX Runtime, torch and torch.compile: outputs, time, memory, time in place over tuned.

    python benchmarks/models.py --threads 1 --each 10 --out benchmarks/results/models.json [NAME ...]

Each network of ``networks.py`` is exported to ONNX with random weights, imported, tuned for ``--each``
seconds a task, and compiled, in a process of its own. Its outputs are compared with ONNX Runtime's. Then all
run in turns: a time is the median of the rounds' medians. With one thread it is CPU time of that thread,
which other work on the machine hardly changes; with more it is time on the clock. torch.compile has mode max-
autotune and freezing. Rows that the file has are kept, so that a run can be resumed. ``--markdown`` prints
its table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from suite import commit  # noqa: E402

import autotune as at  # noqa: E402
from autotune.models.preparation import prepared  # noqa: E402
from autotune.models.tasks import tasks_of  # noqa: E402

NAMES = ("resnet18", "resnet50", "mobilenet_v2", "bert", "gpt2", "squeezenet", "vit")
ROUNDS, ROUND_S = 7, 0.5
PEERS = ("onnxruntime", "torch", "torch.compile")

Call = Callable[[], Any]


def once(call: Call, threads: int) -> float:
    """The median seconds of calls for `ROUND_S`."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: list[float] = []
    end = time.perf_counter() + ROUND_S
    while time.perf_counter() < end or len(times) < 3:
        begin = clock()
        call()
        times.append(clock() - begin)
    return statistics.median(times)


def in_turns(calls: dict[str, Call], threads: int) -> dict[str, float]:
    """{name: seconds}, of rounds in which each has its turn."""
    rounds = [{name: once(call, threads) for name, call in calls.items()} for _ in range(ROUNDS)]
    return {name: statistics.median(r[name] for r in rounds) for name in calls}


def onnx_session(path: str, threads: int) -> Any:
    """ONNX Runtime's of a model's file, on so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def error(got: Any, want: Any) -> float:
    """The largest distance of a result from the one that is wanted, in root mean squares of the latter."""
    got = got if isinstance(got, tuple) else (got,)
    return max(float(np.abs(a - b).max() / np.sqrt(np.mean(b**2))) for a, b in zip(got, want, strict=True))


def peers(name: str, path: str, threads: int) -> tuple[dict[str, Call], list[Any]]:
    """{peer: a call}, and the inputs as arrays."""
    import networks
    import torch
    import torch._inductor.config as inductor

    torch.set_num_threads(threads)
    module, inputs, names = networks.network(name)
    session = onnx_session(path, threads)
    feeds = {n: x.numpy() for n, x in zip(names, inputs, strict=True)}
    if inputs[0].ndim == 4:
        module = module.to(memory_format=torch.channels_last)
        inputs = tuple(x.contiguous(memory_format=torch.channels_last) for x in inputs)
    with torch.no_grad(), inductor.patch(freezing=True):
        compiled = torch.compile(module, mode="max-autotune")
        compiled(*inputs)

    def quiet(call: Callable[..., Any]) -> Call:
        def run() -> Any:
            with torch.no_grad():
                return call(*inputs)

        return run

    return {
        "onnxruntime": lambda: session.run(None, feeds),
        "torch": quiet(module),
        "torch.compile": quiet(compiled),
    }, list(feeds.values())


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def loaded(path: str) -> dict[str, Any]:
    """In this process: what loading a saved model takes, beside its weights and its arena."""
    x = at.te.placeholder((4,), name="x")
    at.build(at.Schedule([x, at.te.compute((4,), lambda i: x[i] + 1.0)]))  # what any kernel loads: LLVM
    before, begin = resident(), time.perf_counter()
    net = at.load_model(path)
    took = time.perf_counter() - begin
    net(*[np.zeros(t.shape, t.dtype) for t in net.inputs])
    own = net.program.weights_bytes + net.program.arena_bytes
    return {"load_s": took, "memory": (resident() - before) / own, "own_bytes": own}


def measured(name: str, folder: str, threads: int, each_s: float) -> dict[str, Any]:
    """In this process: a network's row."""
    import networks

    path, db = os.path.join(folder, f"{name}.onnx"), os.path.join(folder, "models.db")
    if not os.path.exists(path):
        networks.export(name, path)
    begin = time.perf_counter()
    model = at.import_onnx(path)
    import_s = time.perf_counter() - begin
    budget_s = each_s * len(tasks_of(prepared(model).parts))
    tuned = at.tune_model(model, threads=threads, db=db, budget_s=budget_s)
    again = at.tune_model(model, threads=threads, db=db, budget_s=budget_s)
    begin = time.perf_counter()
    net = at.compile_model(model, threads=threads, db=db)
    compile_s = time.perf_counter() - begin
    calls, inputs = peers(name, path, threads)
    apart = error(net(*inputs), calls["onnxruntime"]())
    seconds = in_turns({"autotune": lambda: net(*inputs), **calls}, threads)
    profile = net.profile(*inputs, repeat=30)
    saved = os.path.join(folder, f"{name}.at")
    net.save(saved)
    words = [sys.executable, __file__, "--loaded", saved]
    after = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return {
        "model": name,
        "threads": threads,
        "groups": len(profile.rows),
        "tasks": len(tuned.tasks),
        "trials": tuned.measured,
        "trials_again": again.measured,
        "tune_s": tuned.elapsed_s,
        "import_s": import_s,
        "compile_s": compile_s,
        "error": apart,
        "seconds": seconds,
        "in_place_over_tuned": profile.in_place_over_tuned,
        "islands": len(profile.islands),
        "untuned": sum(r.chosen_by != "log" for r in profile.rows),
        **after,
        "arch": net.target.arch,
        "commit": commit(),
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    out = [
        "| model, batch 1 | threads | kernels → tasks | tuned for | ONNX Runtime | torch | torch.compile "
        "| autotune | ORT ÷ autotune | compile ÷ autotune | in place ÷ tuned | error of RMS | memory ÷ own |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[tuple[int, str], list[float]] = {}
    for r in rows:
        s = r["seconds"]
        ms = " | ".join(f"{s[p] * 1e3:.2f} ms" for p in (*PEERS, "autotune"))
        quotients = [s[p] / s["autotune"] for p in ("onnxruntime", "torch.compile")]
        for p, q in zip(("onnxruntime", "torch.compile"), quotients, strict=True):
            ratios.setdefault((r["threads"], p), []).append(q)
        out.append(
            f"| {r['model']} | {r['threads']} | {r['groups']} → {r['tasks']} | {r['tune_s']:.0f} s | {ms} | "
            f"{quotients[0]:.2f} | {quotients[1]:.2f} | {r['in_place_over_tuned']:.2f} | {r['error']:.1e} | "
            f"{r['memory']:.2f} |"
        )
    for (threads, peer), found in ratios.items():
        mean = statistics.geometric_mean(found)
        out.append(f"\n{threads} threads, {peer} ÷ autotune: mean {mean:.3f}, least {min(found):.2f}.")
    return "\n".join(out)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(NAMES)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--each", type=float, default=10.0, help="seconds of tuning for each task")
    parser.add_argument("--folder", help="where files of models and the log are kept")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/models.json")
    parser.add_argument("--markdown", action="store_true", help="print the table of the file and stop")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--loaded", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loaded:
        print(json.dumps(loaded(options.loaded)))
        return
    if options.one:
        print(json.dumps(measured(options.one, options.folder, options.threads, options.each)))
        return
    rows: list[dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else []
    if not options.markdown:
        have = {(r["model"], r["threads"]) for r in rows}
        with tempfile.TemporaryDirectory() as tmp:
            folder = options.folder or tmp
            for name in options.names or NAMES:
                if (name, options.threads) in have:
                    continue
                words = [sys.executable, __file__, "--one", name, "--folder", folder]
                words += ["--threads", str(options.threads), "--each", str(options.each)]
                done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
                if done.returncode:
                    print(f"{name}: failed", file=sys.stderr)
                    continue
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
                s = rows[-1]["seconds"]
                print(f"{name}: {s['onnxruntime'] / s['autotune']:.2f}", file=sys.stderr, flush=True)
    print(markdown(rows))


if __name__ == "__main__":
    main()
