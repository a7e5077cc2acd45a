"""Tune every task of a suite and time it beside other libraries: the table of a whole suite.

    python benchmarks/suite.py ops.toml:quick --threads 1 --budget 60s --out benchmarks/results/suite.json

torch's threads are bound to CPUs (OMP_PROC_BIND): unbound, two of them may share one for tens of
milliseconds and spin against each other, and it seems a hundred times slower than it is. Each row tunes from
nothing, in a log of its own, then compares interleaved (``autotune bench``). Rows that the file has are kept,
so that a run can be resumed, and say what they were made with; a task of two groups is measured once. A group
counts once: the geometric mean of its shapes.
``--markdown`` prints the table of a file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from autotune.backends.building.generator_version import this_machine  # noqa: E402
from autotune.run.workloads import param_text  # noqa: E402
from autotune.tuning.suites import SuiteEntry, mean_over_groups, read  # noqa: E402
from schedules.units import peak_share  # noqa: E402

DEFAULTS = {"b=1", "dilation=1", "groups=1", "stride=1", "padding=0", "transpose_a=0", "transpose_b=0"}


def commit() -> str:
    """What is checked out, or "" where that is not known."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


def run(*args: str) -> dict[str, Any]:
    """One command of the command line, its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *args, "--json"], capture_output=True, text=True, check=False,
        env=os.environ | ({"OMP_PROC_BIND": "true"} if args[0] == "bench" else {}),
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"autotune {' '.join(args)} failed: {done.stdout or done.stderr}")
    out: dict[str, Any] = json.loads(done.stdout)
    return out


def words(task: SuiteEntry) -> list[str]:
    """The task as the command line takes it."""
    params = dict(task.workload.params)
    layout = params.pop("layout", None)
    shape = ",".join(f"{k}={param_text(v)}" for k, v in params.items())
    dtype = dtype_of(task)
    return [
        task.workload.op, "--shape", shape,
        *(["--layout", str(layout)] if layout else []),
        *(["--dtype", dtype] if dtype != "float32" else []),
    ]  # fmt: skip


def dtype_of(task: SuiteEntry) -> str:
    return task.workload.dag.inputs[0].dtype


def one_task_suite(task: SuiteEntry, path: Path) -> Path:
    """A suite of this task alone: of a suite, peers that lack an operator are left out."""
    params = dict(task.workload.params)
    layout = params.pop("layout", None)
    shape = [list(v) if isinstance(v, tuple | list) else v for v in params.values()]
    fixed = f'fixed = {{ layout = "{layout}" }}\n' if layout else ""
    path.write_text(
        f'[[group]]\nsuite = "one"\nname = "one"\nop = "{task.workload.op}"\n'
        f'dtype = "{dtype_of(task)}"\n'
        f"fields = {json.dumps(list(params))}\nshapes = [{json.dumps(shape)}]\n{fixed}"
    )
    return path


def settings(task: SuiteEntry, threads: int) -> list[str]:
    """What the command line is told beside a task."""
    known = ["--constant-weights"] if task.workload.dag.constants else []
    return [*known, "--threads", str(threads)]


def row(
    task: SuiteEntry, threads: int, budget: str, duration: str, peers: str, made: dict[str, Any]
) -> dict[str, Any]:
    common = [*words(task), *settings(task, threads)]
    with tempfile.TemporaryDirectory() as tmp:
        db = ["--db", f"{tmp}/tuning.db"]
        tuned = run("tune", *common, "--budget", budget, *db)
        alone = str(one_task_suite(task, Path(tmp) / "one.toml"))
        found = run(
            "bench", "--suite", alone, *settings(task, threads), "--against", peers,
            "--duration", duration, *db,
        )  # fmt: skip
        compared = {k: found["tasks"][0][k] for k in ("rows", "ratio")}
    return {
        "suite": task.suite,
        "group": task.group,
        "task": common,
        "threads": threads,
        "trials": tuned["trials"]["measured"],
        "failed": tuned["trials"]["failed"],
        "tuned_time_s": tuned["best"]["time_s"],
        "tuned_share_of_peak": tuned["best"]["share_of_peak"],
        **compared,
        **made,
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    peers = list(dict.fromkeys(p for r in rows for p in r["ratio"]))
    titles = " | ".join(f"÷ {p}" for p in peers)
    out = [
        f"| group | task | threads | time | share of limit | {titles} | trials |",
        "|---" * (6 + len(peers)) + "|",
    ]
    for r in rows:
        ratio = " | ".join(f"{r['ratio'][p]:.2f}×" if p in r["ratio"] else "–" for p in peers)
        shape = " ".join(x for x in r["task"][2].split(",") if x not in DEFAULTS)
        own = r["rows"][0]  # in the comparison's rounds, as its peers are and the limit is
        share = own["share_of_peak"]
        out.append(
            f"| {r['group']} | {r['task'][0]} {shape} | {r['threads']} | {own['time_s'] * 1e3:.3g} ms "
            f"| {peak_share(share)} | {ratio} | {r['trials']} |"
        )
    for p in peers:
        pairs = (((r["group"], r["threads"]), r["ratio"][p]) for r in rows if p in r["ratio"])
        mean, groups = mean_over_groups(pairs)
        out.append(f"\nOver {groups} groups: {mean:.2f} times as fast as {p}.")
    # where numpy alone has the operator, it is its reference, which is no peer
    known = [r for r in rows if any(not p.startswith("numpy") for p in r["ratio"])]
    best = [(r, *min((ratio, p) for p, ratio in r["ratio"].items())) for r in known]
    mean, groups = mean_over_groups(((r["group"], r["threads"]), ratio) for r, ratio, _ in best)
    out.append(f"\nOver {groups} groups: {mean:.2f} times as fast as the best of them for each shape.")
    out += [
        f"Behind: {r['task'][0]} {r['task'][2]}: {ratio:.2f} times as fast as {p}"
        for r, ratio, p in best
        if ratio < 1
    ]
    return "\n".join(out)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("suite", nargs="?", help="FILE[:NAME]")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", default="60s", help="tuning time of each operator")
    parser.add_argument("--duration", default="10s", help="how long each is compared; rounds on several "
                        "threads take seconds, with pauses until others' pools sleep")  # fmt: skip
    parser.add_argument("--against", default="numpy,numpy.best,torch,torch.best,torch.compile,onnxruntime")
    parser.add_argument("--constant-weights", action="store_true", help="weights are known ahead")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/suite.json"))
    parser.add_argument("--markdown", action="store_true", help="print the table of the file and stop")
    options = parser.parse_args()
    done: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    if not options.markdown:
        name = options.suite.rsplit("/", 1)[-1]
        command = f"{name} --threads {options.threads} --budget {options.budget} "
        command += f"--duration {options.duration} --against {options.against}"
        command += " --constant-weights" if options.constant_weights else ""
        made = {"command": command, "commit": commit()}
        done |= {"machine": this_machine(), **made}
        for task in read(options.suite, options.constant_weights):
            if options.constant_weights and not task.workload.dag.constants:
                continue  # nothing is known ahead: the other table has it
            words_of = [*words(task), *settings(task, options.threads)]
            same = {(r["suite"], r["group"]): r for r in done["rows"] if r["task"] == words_of}
            if (task.suite, task.group) in same:
                continue
            if same:
                new = next(iter(same.values())) | {"suite": task.suite, "group": task.group}
            else:
                limits = (options.threads, options.budget, options.duration)
                new = row(task, *limits, options.against, made)
            done["rows"].append(new)
            written = options.out.with_suffix(".part")
            written.write_text(json.dumps(done, indent=1) + "\n")
            written.replace(options.out)  # whole, or not at all
            last = done["rows"][-1]
            print(
                f"{last['task'][:3]}: {last['ratio']} {last['rows'][0]['share_of_peak']}",
                file=sys.stderr,
                flush=True,
            )
    print(markdown(done["rows"]))


if __name__ == "__main__":
    main()
