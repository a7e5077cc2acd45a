"""Whole models with measured rewrites beside the same models with each rewrite that is usual.

    python benchmarks/rewrites.py --threads 1 --budget 240s --folder /tmp/models --out /tmp/rewrites.json

Each network of ``networks.py`` is tuned with ``rewrites="measured"`` for the budget, then with
``rewrites="always"`` for the same budget into the same log: tasks that both graphs have are tuned once, so
that the two differ by their graphs alone. Then both run in turns, in rounds. A ratio is time with "always"
over time with "measured", of one round; with one thread it is CPU time of that thread, with more it is time
on the clock. Errors are the largest distance from ONNX Runtime's results, in root mean squares of the output.
Rows that the file has are kept. ``--again`` runs the rounds of those in the file, without tuning.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from models import Call, error, once, onnx_session  # noqa: E402
from suite import commit  # noqa: E402

import autotune as at  # noqa: E402

NAMES = ("resnet18", "resnet50", "mobilenet_v2", "bert", "gpt2", "squeezenet", "vit", "vgg11")
ROUNDS = 5
WAYS = ("measured", "always")


def rounds_of(calls: dict[str, Call], threads: int) -> dict[str, list[float]]:
    """{name: seconds of each round}; the first of a round changes from round to round."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(ROUNDS):
        names = list(calls)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            found[name].append(once(calls[name], threads))
    return found


def peer(path: str, feeds: list[Any], threads: int) -> Call:
    session = onnx_session(path, threads)
    given = {i.name: x for i, x in zip(session.get_inputs(), feeds, strict=True)}
    return lambda: session.run(None, given)


def measured(name: str, folder: str, threads: int, budget: str | None) -> dict[str, Any]:
    """In this process: a network's row."""
    import networks

    path, db = os.path.join(folder, f"{name}.onnx"), os.path.join(folder, f"{name}-{threads}.db")
    _, inputs, _ = networks.network(name)
    if not os.path.exists(path):
        networks.export(name, path)
    feeds = [x.numpy() for x in inputs]
    model = at.import_onnx(path)
    row: dict[str, Any] = {"model": name, "threads": threads, "budget": budget}
    if budget is not None:
        runs = {w: at.tune_model(model, threads=threads, db=db, budget=budget, rewrites=w) for w in WAYS}
        row["tune_s"] = {w: r.elapsed_s for w, r in runs.items()}
        row["needed_s"] = {"rewrites": runs["measured"].rewrites_needed_s, "tasks": runs["measured"].needed_s}
        row["rewrites"] = [str(t) for t in runs["measured"].rewrites]
    nets = {w: at.compile_model(model, threads=threads, db=db, rewrites=w) for w in WAYS}
    want = peer(path, feeds, threads)
    row["error"] = {w: error(net(*feeds), want()) for w, net in nets.items()}
    row["arena"] = {w: net.program.arena_bytes for w, net in nets.items()}
    row["seconds"] = rounds_of(
        {w: lambda n=n: n(*feeds) for w, n in nets.items()} | {"onnxruntime": want}, threads
    )
    return row | {"arch": nets["measured"].target.arch, "commit": commit()}


def markdown(rows: list[dict[str, Any]]) -> str:
    out = [
        "| model, batch 1 | threads | always | measured | always ÷ measured, of 5 rounds "
        "| ONNX Runtime ÷ measured | error always → measured | arena always → measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    means: dict[int, list[float]] = {}
    for r in rows:
        s = r["seconds"]
        ratios = [a / m for a, m in zip(s["always"], s["measured"], strict=True)]
        middle = {k: statistics.median(v) for k, v in s.items()}
        means.setdefault(r["threads"], []).append(middle["always"] / middle["measured"])
        arena = " → ".join(f"{r['arena'][w] / 2**20:.1f} MB" for w in reversed(WAYS))
        errors = " → ".join(f"{r['error'][w]:.1e}" for w in reversed(WAYS))
        out.append(
            f"| {r['model']} | {r['threads']} | {middle['always'] * 1e3:.2f} ms "
            f"| {middle['measured'] * 1e3:.2f} ms "
            f"| {means[r['threads']][-1]:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) "
            f"| {middle['onnxruntime'] / middle['measured']:.2f} | {errors} | {arena} |"
        )
    for threads, found in means.items():
        out.append(f"\n{threads} threads, always ÷ measured: mean {statistics.geometric_mean(found):.3f}.")
    return "\n".join(out)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(NAMES)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", default="240s", help="of each of the two runs of a model")
    parser.add_argument("--folder", required=True, help="where files of models and logs are kept")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--again", action="store_true", help="run the rounds again, tune nothing")
    parser.add_argument("--markdown", action="store_true", help="print the table of the file and stop")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        budget = None if options.again else options.budget
        print(json.dumps(measured(options.one, options.folder, options.threads, budget)))
        return
    rows: list[dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else []
    for name in () if options.markdown else options.names or NAMES:
        old = next((r for r in rows if (r["model"], r["threads"]) == (name, options.threads)), None)
        if (old is None) == options.again:
            continue
        words = [
            sys.executable,
            __file__,
            "--one",
            name,
            "--folder",
            options.folder,
            "--out",
            str(options.out),
        ]
        words += ["--threads", str(options.threads), "--budget", options.budget]
        done = subprocess.run(words + ["--again"] * options.again, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{name}: failed", file=sys.stderr)
            continue
        row = (old or {}) | {
            k: v for k, v in json.loads(done.stdout.splitlines()[-1]).items() if v is not None
        }
        rows = [r for r in rows if r is not old] + [row]
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"{name}: {row['seconds']}", file=sys.stderr, flush=True)
    print(markdown(rows))


if __name__ == "__main__":
    main()
