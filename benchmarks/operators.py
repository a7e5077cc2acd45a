"""Tune a few operators and time the kernels beside numpy and torch, for a quick look.

    python benchmarks/operators.py --budget 40s --out benchmarks/results/operators.json

Each row tunes from nothing (a log of its own), then compares interleaved in one run (``autotune bench``):
median times, and the median over rounds of the ratio to each peer. Rows that are in the file already are
kept, so that a run can be resumed; ``--markdown`` prints the table of a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from suite import run

from schedules.units import peak_share

CASES: tuple[tuple[str, str, int], ...] = (
    ("matmul", "m=512,n=512,k=512", 1),
    ("matmul", "m=1024,n=1024,k=1024", 1),
    ("matmul", "m=997,n=991,k=983", 1),
    ("conv2d", "h=56,w=56,ci=64,co=64,k=3,padding=1", 1),
    ("conv2d", "h=14,w=14,ci=256,co=256,k=3,padding=1", 1),
    ("softmax", "m=4096,n=1024", 1),
    ("layer_norm", "m=4096,n=1024", 1),
    ("fused_multiply_add", "n=16777216", 1),
    ("depthwise_conv2d", "h=112,w=112,c=32,k=3,padding=1", 1),
    ("matmul_bias_relu", "m=512,n=512,k=512", 1),
    ("matmul", "m=1024,n=1024,k=1024", 2),
    ("conv2d", "h=56,w=56,ci=64,co=64,k=3,padding=1", 2),
    ("softmax", "m=4096,n=1024", 2),
)


def row(op: str, shape: str, threads: int, budget: str) -> dict[str, Any]:
    common = [op, "--shape", shape, "--threads", str(threads)]
    with tempfile.TemporaryDirectory() as tmp:
        db = ["--db", os.path.join(tmp, "tuning.db")]
        tuned = run("tune", *common, "--budget", budget, *db)
        compared = run("bench", *common, "--against", "numpy,torch", "--duration", "10s", *db)
    return {
        "op": op,
        "shape": shape,
        "threads": threads,
        "arch": tuned["task"]["target"]["arch"],
        "trials": tuned["trials"],
        "elapsed_s": tuned["elapsed_s"],
        "tuned_share_of_peak": tuned["best"]["share_of_peak"],
        "rows": compared["rows"],
        "ratio": compared["ratio"],
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    out = [
        "| operator | threads | time | rate | share of limit | ÷ numpy | ÷ torch | trials |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        ours = next(x for x in r["rows"] if x["impl"] == "autotune")
        share = peak_share(ours["share_of_peak"])
        ratio = {k: f"{v:.2f}×" for k, v in r["ratio"].items()}
        out.append(
            f"| {r['op']} {r['shape'].replace(',', ' ')} | {r['threads']} | {ours['time_s'] * 1e3:.3g} ms "
            f"| {ours['gflops']:.1f} GFLOP/s | {share} | {ratio.get('numpy', '–')} "
            f"| {ratio.get('torch', '–')} | {r['trials']['measured']} |"
        )
    return "\n".join(out)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--budget", default="40s", help="tuning time of each operator")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/operators.json"))
    parser.add_argument("--markdown", action="store_true", help="print the table of the file and stop")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else []
    if not options.markdown:
        have = {(r["op"], r["shape"], r["threads"]) for r in rows}
        for case in CASES:
            if case in have:
                continue
            rows.append(row(*case, options.budget))
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(f"{case}: {rows[-1]['ratio']}", file=sys.stderr, flush=True)
    print(markdown(rows))


if __name__ == "__main__":
    main()
