"""Files of ONNX Runtime's quantiser beside ONNX Runtime: outputs, time, and how much is done in integers.

    python benchmarks/quantised.py --each 5 --folder /tmp/files            # all files
    python benchmarks/quantised.py --each 5 resnet-QDQ-us bert-dynamic-us  # some

A ResNet-18 (112 by 112) and two layers of BERT (256 wide, 64 words) with random weights, which
`onnxruntime.quantization` makes files of: QDQ, QOperator and dynamic; activations and weights as uint8 and
int8 ("us") or int8 and int8 ("ss"); one scale for a tensor of weights or one a channel ("-channel"). Each
file is imported, tuned for ``--each`` seconds a task, and compiled, in a process of its own. Then it and ONNX
Runtime, with all its optimisations, run in turns on one thread. Times are CPU time, the median of the rounds.

``outputs``: of the numbers that the model gives, the share that is further than 1e-4 of their size (root of
the mean square) from those of ONNX Runtime without optimisations, which runs the file as it says, and how far
the furthest one is. An integer inside that is one step off goes on through all later layers, so ``ORT
itself`` has the same of ONNX Runtime with its optimisations. ``--steps`` compares all integers inside.

Rows that ``--out`` has are kept, so that a run can be resumed. ``--markdown`` prints its table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from models import in_turns  # noqa: E402
from suite import commit  # noqa: E402

import autotune as at  # noqa: E402
from autotune.models.preparation import prepared  # noqa: E402
from autotune.models.tasks import tasks_of  # noqa: E402
from schedules.graph.optimize import optimize  # noqa: E402
from schedules.te.evaluator import evaluate  # noqa: E402

# {network: (its name in networks.py, sizes)}.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet": ("resnet18", {"size": 112}),
    "bert": ("bert", {"layers": 2, "hidden": 256, "heads": 4, "sequence": 64}),
}
TYPES = {"us": ("QUInt8", "QInt8"), "ss": ("QInt8", "QInt8")}  # activations, weights
NAMES = [
    f"{net}-{how}-{types}{channel}"
    for net in NETWORKS
    for how in ("QDQ", "QOperator", "dynamic")
    for types in (TYPES if how != "dynamic" else ("us",))
    for channel in ("", "-channel")
]

Feeds = dict[str, np.ndarray]


# --- files ------------------------------------------------------------------------------------


def inputs_of(net: str, seed: int) -> Feeds:
    """Inputs of a network: standard normal; or words, of which none is masked: what is added to masked scores
    would be the range of all scores that calibration sees."""
    import networks

    name, sizes = NETWORKS[net]
    _, example, names = networks.network(name, **sizes)
    rng = np.random.default_rng(seed)
    feeds = {n: x.numpy() for n, x in zip(names, example, strict=True)}
    if "x" in feeds:
        return {"x": rng.standard_normal(feeds["x"].shape).astype(np.float32)}
    return {"ids": rng.integers(0, 2000, feeds["ids"].shape), "mask": np.ones_like(feeds["mask"])}


def quantise(name: str, folder: Path) -> Path:
    """The file of a name of `NAMES`, which is made where ``folder`` has none."""
    import networks
    from onnxruntime import quantization as q

    target = folder / f"{name}.onnx"
    if target.exists():
        return target
    net, how, types, *channel = name.split("-")
    source, ready = folder / f"{net}.onnx", folder / f"{net}.ready.onnx"
    if not ready.exists():
        networks.export(NETWORKS[net][0], source, **NETWORKS[net][1])
        q.quant_pre_process(source, ready, skip_symbolic_shape=True)
    data, weights = (getattr(q.QuantType, t) for t in TYPES[types])
    if how == "dynamic":
        q.quantize_dynamic(ready, target, per_channel=bool(channel), weight_type=weights)
        return target

    class Reader(q.CalibrationDataReader):  # type: ignore[misc]
        left: Iterator[Feeds] = iter([inputs_of(net, seed) for seed in range(4)])

        def get_next(self) -> Feeds | None:
            return next(self.left, None)

    q.quantize_static(
        ready,
        target,
        Reader(),
        quant_format=getattr(q.QuantFormat, how),
        per_channel=bool(channel),
        activation_type=data,
        weight_type=weights,
    )
    return target


# --- one file ---------------------------------------------------------------------------------


def session(model: Any, optimised: bool = True) -> Any:
    """ONNX Runtime's, on one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def far(have: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    """(the share of numbers that are further apart than rounding, how far the furthest are)."""
    apart = np.abs(have - want) / np.sqrt(np.mean(want**2))
    return float(np.mean(apart > 1e-4)), float(apart.max())


def steps(path: str, feeds: Feeds) -> dict[str, Any]:
    """Of all integers that a file quantises inside: the share that differs from ONNX Runtime's in the first
    tensor in which any does, in all, and by how many steps at most."""
    import onnx

    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    stored = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
    inside = [v for v in model.graph.value_info if v.type.tensor_type.elem_type in stored]
    del model.graph.output[:]
    model.graph.output.extend(inside)
    if not inside:
        return {}
    want = session(model, optimised=False).run(None, feeds)
    graph = optimize(at.import_onnx(model).graph)
    known = {**graph.values, **dict(zip(graph.inputs, feeds.values(), strict=True))}
    made = evaluate(graph.dag, [known[t.name] for t in graph.dag.inputs])
    values = dict(zip(graph.dag.outputs, made, strict=True))
    have = [values[n] for n in graph.outputs]
    apart = [np.abs(a.astype(int) - b.astype(int)) for a, b in zip(have, want, strict=True)]
    return {
        "first": next((float(np.mean(a > 0)) for a in apart if a.any()), 0.0),
        "share": float(np.mean(np.concatenate([a.ravel() for a in apart]) > 0)),
        "most": int(max(a.max() for a in apart)),
    }


def measured(name: str, folder: Path, each_s: float) -> dict[str, Any]:
    """In this process: the row of a file."""
    warnings.simplefilter("ignore")
    path, db = str(quantise(name, folder)), str(folder / "tuning.db")
    model = at.import_onnx(path)
    tasks = tasks_of(prepared(model).parts)
    tuned = at.tune_model(model, threads=1, db=db, budget_s=each_s * len(tasks))
    net = at.compile_model(model, threads=1, db=db, fallback=True)  # on a busy machine some are not tuned
    feeds = inputs_of(name.split("-")[0], 9)
    theirs, plain = session(path), session(path, optimised=False)
    have, want = net(*feeds.values()), plain.run(None, feeds)[0]
    calls: dict[str, Callable[[], Any]] = {
        "autotune": lambda: net(*feeds.values()),
        "onnxruntime": lambda: theirs.run(None, feeds),
    }
    seconds = in_turns(calls, 1)
    profile = net.profile(*feeds.values(), repeat=30)
    return {
        "file": name,
        "tasks": len(tasks),
        "trials": tuned.measured,
        "tune_s": tuned.elapsed_s,
        "seconds": seconds,
        "outputs": far(have, want),
        "ORT itself": far(theirs.run(None, feeds)[0], want),
        "untuned": sum(r.chosen_by != "log" for r in profile.rows),
        "arch": net.target.arch,
        "commit": commit(),
    }


# --- all --------------------------------------------------------------------------------------


def markdown(rows: list[dict[str, Any]]) -> str:
    out = [
        "| file | tasks | tuned for | ONNX Runtime | autotune | ORT ÷ autotune | outputs that differ, most "
        "| of ORT, optimised |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for r in rows:
        s = r["seconds"]
        ratios.append(s["onnxruntime"] / s["autotune"])
        (share, most), (own, _) = r["outputs"], r["ORT itself"]
        out.append(
            f"| {r['file']} | {r['tasks']} | {r['tune_s']:.0f} s | {s['onnxruntime'] * 1e3:.3f} ms | "
            f"{s['autotune'] * 1e3:.3f} ms | {ratios[-1]:.2f} | {share:.2%}, {most:.1e} | {own:.2%} |"
        )
    if ratios:
        out.append(f"\nONNX Runtime ÷ autotune: mean {statistics.geometric_mean(ratios):.2f}, "
                   f"least {min(ratios):.2f}.")  # fmt: skip
    return "\n".join(out)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("names", nargs="*", metavar="FILE", help=f"default: {', '.join(NAMES)}")
    parser.add_argument("--each", type=float, default=5.0, help="seconds of tuning for each task")
    parser.add_argument("--folder", type=Path, help="where files of models and the log are kept")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/quantised.json")
    parser.add_argument("--steps", metavar="FILE", help="compare the integers inside of a file and stop")
    parser.add_argument("--markdown", action="store_true", help="print the table of --out and stop")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [n for n in (*options.names, options.steps or NAMES[0]) if n not in NAMES]:
        parser.error(f"no file {unknown[0]}; there are {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory() as tmp:
        folder = options.folder or Path(tmp)
        folder.mkdir(parents=True, exist_ok=True)
        if options.steps:
            path = str(quantise(options.steps, folder))
            print(json.dumps(steps(path, inputs_of(options.steps.split("-")[0], 9))))
            return
        if options.one:
            print(json.dumps(measured(options.one, folder, options.each)))
            return
        rows: list[dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else []
        have = {r["file"] for r in rows} if not options.markdown else set(NAMES)
        for name in (n for n in options.names or NAMES if n not in have):
            words = [sys.executable, __file__, "--one", name, "--folder", str(folder)]
            words += ["--each", str(options.each)]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                print(f"{name}: failed", file=sys.stderr)
                continue
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(markdown(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
        print(markdown(rows))


if __name__ == "__main__":
    main()
