"""NPBench's programs beside numpy, numba and gcc: a table, and a file of results.

    python -m benchmarks.npbench --sizes S --budget 20s --out benchmarks/results/npbench.json
    python -m benchmarks.npbench lu seidel_2d --way first --against gcc

Every program runs in a process of its own, on one thread, and has ``--limit`` seconds. It is tuned (``--way
tuned``), or takes its first picks or the plain loops. Then it takes turns with its peers. Times are CPU
times. Rows that the file of results has are kept, so that a run can be resumed; ``--again`` does those that
are named once more. numba is that of another environment: ``--numba-python``. A program that fails is a row
with its reason.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PEERS = ("numpy", "numba", "gcc")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def seconds_of(text: str) -> float:
    """20, 20s or 2m."""
    scale = {"s": 1.0, "m": 60.0}.get(text[-1:])
    return float(text) if scale is None else float(text[:-1]) * scale


def one(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """In this process: the row of a program."""
    from benchmarks.npbench import PROGRAMS
    from benchmarks.npbench.compare import compared
    from benchmarks.npbench.kernels import kernels, tune
    from benchmarks.npbench.program import sized

    program = PROGRAMS[name]
    p, dtype = sized(program, options.sizes), options.dtype or program.dtype
    begin, notes = time.perf_counter(), []
    if options.way == "tuned":
        for result in tune(program, p, dtype, seconds_of(options.budget), options.db):
            notes.append(f"{result.trials.measured} trials")
    ready = kernels(program, p, dtype, options.way, options.db)
    made_s = time.perf_counter() - begin
    against = tuple(x for x in options.against.split(",") if x)
    row = compared(program, p, dtype, ready, against, options.numba_python, options.compare)
    return {
        "name": name, "sizes": options.sizes, "dtype": dtype, "way": options.way, "uses": program.uses,
        "kernels": list(vars(ready)), "made_s": made_s, "notes": notes, **row,
    }  # fmt: skip


def row_of(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """The row of a program, made in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.npbench", name, "--one", "--sizes", options.sizes]
    for key in ("budget", "against", "way", "db", "dtype", "numba_python", "compare"):
        if getattr(options, key) is not None:
            words += [f"--{key.replace('_', '-')}", str(getattr(options, key))]
    failed = {"name": name, "sizes": options.sizes, "way": options.way}
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=options.limit,
            env=os.environ | ONE_THREAD,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**failed, "reason": f"took longer than {options.limit:g} s"}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {**failed, "reason": lines[-1][:500]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(rows: list[dict[str, Any]], against: tuple[str, ...]) -> str:
    """Times in microseconds, and how many times as fast as each peer."""
    out = [
        "| program | µs | " + " | ".join(f"÷ {x}" for x in against) + " | error |",
        "|---" * (len(against) + 3) + "|",
    ]
    ratios: dict[str, list[float]] = {x: [] for x in against}
    for row in sorted(rows, key=lambda r: r["name"]):
        if "reason" in row:
            out.append(f"| {row['name']} | {row['reason']} |" + " |" * (len(against) + 1))
            continue
        own, words = row["seconds"]["autotune"], []
        for x in against:
            if x in row["seconds"]:
                ratios[x].append(row["seconds"][x] / own)
                words.append(f"{ratios[x][-1]:.2f}")
            else:
                words.append("none")
        out.append(
            f"| {row['name']} | {own * 1e6:.0f} | {' | '.join(words)} | {row['errors']['autotune']:.0e} |"
        )
    for what, of in (
        ("geometric mean", _mean),
        ("slower than it", lambda v: f"{sum(x < 1 for x in v)} of {len(v)}"),
    ):
        out.append(f"| {what} | | " + " | ".join(of(ratios[x]) for x in against) + " | |")
    return "\n".join(out)


def _mean(values: list[float]) -> str:
    return f"{statistics.geometric_mean(values):.2f}" if values else ""


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("npbench", description=__doc__, formatter_class=raw)
    parser.add_argument("names", nargs="*", help="programs; all of them if none is named")
    parser.add_argument(
        "--sizes", default="S", help="S and M are the suite's; tiny and odd are those of tests"
    )
    parser.add_argument("--way", default="tuned", choices=("plain", "first", "tuned"))
    parser.add_argument("--budget", default="20s", help="of tuning a program, all its kernels together")
    parser.add_argument("--against", default=",".join(PEERS))
    parser.add_argument("--dtype", help="the suite's if left out")
    parser.add_argument("--compare", type=float, default=5.0, help="seconds of taking turns, about")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a program, at most")
    parser.add_argument("--db", help="the tuning log; one that is thrown away if left out")
    parser.add_argument("--numba-python", default=os.environ.get("NUMBA_PYTHON", sys.executable))
    parser.add_argument("--out", type=Path, help="the file of results")
    parser.add_argument("--again", action="store_true", help="measure rows that the file has once more")
    parser.add_argument("--markdown", action="store_true", help="print the table of the file and stop")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options, options.names[0])))
        return
    from benchmarks.npbench import PROGRAMS
    from benchmarks.suite import commit

    names, against = options.names or list(PROGRAMS), tuple(options.against.split(","))
    unknown = [n for n in names if n not in PROGRAMS]
    if unknown:
        parser.error(f"no program {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    rows: list[dict[str, Any]] = []
    if options.out and options.out.exists():
        rows = json.loads(options.out.read_text())["rows"]
    with tempfile.TemporaryDirectory() as tmp:
        options.db = options.db or os.path.join(tmp, "log.db")
        for name in [] if options.markdown else names:
            key = (name, options.sizes, options.way)
            same = [r for r in rows if (r["name"], r["sizes"], r["way"]) == key and "reason" not in r]
            if same and not options.again:
                continue
            rows = [r for r in rows if (r["name"], r["sizes"], r["way"]) != key]
            rows.append(row_of(options, name) | {"commit": commit()})
            if options.out:
                options.out.write_text(json.dumps({"command": sys.argv[1:], "rows": rows}, indent=1) + "\n")
            print(table(rows[-1:], against).splitlines()[2], file=sys.stderr, flush=True)
    print(table([r for r in rows if r["sizes"] == options.sizes and r["way"] == options.way], against))


if __name__ == "__main__":
    main()
