"""One command for the GPU at hand, in a fresh clone: the instructions of its matrix units, then products, a
model, convolutions and attention, each tuned and timed beside cuBLAS and cuDNN (torch), torch.compile
(max-autotune) and Triton in the same rounds; then the tests and a suite of what memory bounds.

    pip install '.[cuda,dev]' torch triton
    python benchmarks/gpu.py

Where there is a GPU and no network, bring wheels along:

    pip download -d wheels '.[cuda,dev]' hatchling editables torch triton   # where there is a network
    python benchmarks/gpu.py --wheels wheels                                # where there is a GPU

The steps that tell most come first. Each is a process of at most --limit seconds. What is missing here is
told at once, and a step that needs it is skipped, with the reason. Results are kept in --out as they come,
and all candidates in the log beside it. Whatever ended it, the same command goes on from there. --for SECONDS
ends it before a step that would not fit.

Without a GPU, --target h100-emulator tries on small shapes what an emulator can do. Times of it say
nothing. With --trials 4 it takes a few minutes. --markdown prints the table of a file.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import gpu_steps
from gpu_steps import PEERS, ROOT, Result, Step, leave, outcome, save, so_far, steps

LOOK_S = 120.0  # at most, until a device has answered
LEAST_SHARE = 0.5  # of a step's seconds: with less time left it does not begin


def child(step: Step, o: argparse.Namespace, limit: float) -> Result:
    """Run a step in a process of its own, which ends at the limit with all it has started, and with us."""
    python = o.venv / "bin/python"
    command = [str(python if python.exists() and step.name != "install" else sys.executable)]
    paths = [str(ROOT), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    begun = time.monotonic()
    p = subprocess.Popen(
        [*command, str(Path(__file__)), *sys.argv[1:], "--limit", f"{limit}", "--child", step.name],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    try:
        said, _ = p.communicate(timeout=limit)
        answer = so_far(o.out, step.name)
        if p.returncode or "status" not in answer:
            answer |= {"status": "failed", "reason": said[-2000:] or f"exit status {p.returncode}"}
    except subprocess.TimeoutExpired:
        answer = so_far(o.out, step.name) | {"status": "failed", "reason": f"took longer than {limit:g} s"}
    finally:
        if p.poll() is None:
            os.killpg(p.pid, signal.SIGKILL)
            p.communicate()
    return answer | {"step": step.name, "seconds": round(time.monotonic() - begun, 1), "at": now()}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def keep(o: argparse.Namespace, content: Result, answer: Result) -> None:
    """Put what a step gave among the results, in place of what an earlier try of it gave."""
    content["steps"] = [s for s in content["steps"] if s["step"] != answer["step"]] + [answer]
    save(o.out, content)
    outcome(o.out, answer["step"]).unlink(missing_ok=True)
    line = f"{answer['step']}: {answer['status']} in {answer['seconds']} s {answer.get('reason', '')[-300:]}"
    print(line.rstrip(), flush=True)


def look(o: argparse.Namespace, content: Result) -> str | None:
    """Note where this is, and say what is missing; why nothing can be done here, if so."""
    found = child(Step("here", gpu_steps.here), o, LOOK_S)
    outcome(o.out, "here").unlink(missing_ok=True)
    if found["status"] != "done":
        return str(found["reason"])
    for what, why in found["missing"].items():
        print(f"without {what}: {why}", flush=True)
    command = shlex.join(["python", "benchmarks/gpu.py", *sys.argv[1:]])
    content["environment"] = {"command": command} | found["environment"]
    return None


def markdown(content: Result) -> str:
    """A table of the rows: times of all, and how many times as fast as each we are."""
    rows = [r for s in content["steps"] for r in s.get("rows", [])]
    names = list(dict.fromkeys(n for r in rows for n in (*r["times_s"], *r["skipped"]) if n != "autotune"))
    titles = ["task", "time", "TFLOP/s", *(f"÷ {n}" for n in names), "candidates/s"]
    out = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for r in rows:
        ours = r["times_s"].get("autotune")
        task = " ".join([r["op"], *(f"{k}={v}" for k, v in r["params"].items()), r.get("dtype", "float32")])
        ratios = [f"{r['times_s'][n] / ours:.2f}×" if ours and n in r["times_s"] else "–" for n in names]
        shown = f"{ours * 1e6:.4g} µs" if ours else "–"
        rate = f"{r['flops'] / ours * 1e-12:.4g}" if ours and r.get("flops") else "–"
        out.append(f"| {' | '.join([task, shown, rate, *ratios])} | {r['candidates_per_s']:.1f} |")
    return "\n".join(out)


def options() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    p.add_argument("suite", nargs="?", help="FILE[:NAME] of the last steps; default: gpu.toml beside this")
    p.add_argument(
        "--target", default="cuda", help="cuda, opencl, or an emulated one: cuda-emulator, h100-emulator, …"
    )
    p.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu.json"), help="results, as JSON")
    p.add_argument("--wheels", type=Path, help="a folder to install from, offline")
    p.add_argument("--venv", type=Path, default=ROOT / ".gpu-venv", help="where --wheels are installed")
    p.add_argument("--limit", type=float, default=480.0, help="seconds of a step at most")
    p.add_argument(
        "--for", dest="total", type=float, default=float("inf"), help="begin no step that may not fit"
    )
    p.add_argument(
        "--budget", type=float, help="seconds of tuning for each task; default: what the limit leaves"
    )
    p.add_argument("--trials", type=int, help="end the tuning of a task earlier, after so many")
    p.add_argument("--db", type=Path, help="the log of all candidates; default: beside --out")
    p.add_argument("--parts", type=int, default=20, help="of the suite, each a step")
    p.add_argument("--peers", type=lambda s: s.split(","), default=PEERS, help="only these, with commas")
    p.add_argument("--network", default="resnet18", help="what the step model runs (networks.py)")
    p.add_argument("--steps", help="only these, separated by commas")
    p.add_argument("--markdown", action="store_true", help="print the table of --out and stop")
    p.add_argument("--child", help=argparse.SUPPRESS)
    o = p.parse_args()
    o.emulated = o.target.endswith("-emulator")
    o.suite = o.suite or str(ROOT / "benchmarks" / ("gpu_small.toml:memory" if o.emulated else "gpu.toml"))
    o.db = o.db or o.out.with_suffix(".db")
    return o


def wrong(o: argparse.Namespace, content: Result) -> str | None:
    """What is wrong with the options, in words."""
    if content.setdefault("parts", o.parts) != o.parts:
        n = content["parts"]
        return f"{o.out} has the suite in {n} parts: give --parts {n}, or another --out"
    if content.setdefault("target", o.target) != o.target:
        return (
            f"{o.out} is of target {content['target']}: give --target {content['target']}, or another --out"
        )
    if strange := [p for p in o.peers if p not in PEERS]:
        return f"no peer {strange[0]!r}; they are {', '.join(PEERS)}"
    known = [s.name for s in steps(o)]
    if unknown := [s for s in wanted(o) if s not in known]:
        return f"no step {unknown[0]!r}; the steps are {', '.join(known)}"
    return None


def wanted(o: argparse.Namespace) -> list[str]:
    return [s.strip() for s in o.steps.split(",")] if o.steps else [s.name for s in steps(o)]


def main() -> int:
    o = options()
    if o.child:
        return leave(o)
    content: Result = json.loads(o.out.read_text()) if o.out.exists() else {"environment": {}, "steps": []}
    if o.markdown:
        print(markdown(content))
        return 0
    if (reason := wrong(o, content)) is not None:
        print(reason, file=sys.stderr)
        return 2
    end = time.monotonic() + o.total
    looked = False
    tried = {s["step"]: s["status"] for s in content["steps"]}
    # a step that failed is tried again, after those that were not tried; one that was cut off goes on with
    # the rows that it left
    left = [s for s in steps(o) if s.name in wanted(o) and tried.get(s.name, "failed") == "failed"]
    for step in sorted(left, key=lambda s: s.name in tried):
        if step.name != "install" and not looked:
            looked = True
            if (reason := look(o, content)) is not None:
                print(reason, file=sys.stderr)
                return 2
        limit = min(o.limit, step.seconds, end - time.monotonic())
        if limit < min(o.limit, step.seconds) * LEAST_SHARE:
            print(f"{step.name}: no time left; the same command goes on from here")
            break
        keep(o, content, child(step, o, limit))
    done = {s["step"] for s in content["steps"]}
    counted = Counter(s["status"] for s in content["steps"])
    ends = ", ".join(f"{n} {status}" for status, n in sorted(counted.items()))
    print(f"{len(done & {s.name for s in steps(o)})} of {len(steps(o))} steps tried: {ends}")
    return int(any(s["status"] == "failed" for s in content["steps"]))


if __name__ == "__main__":
    raise SystemExit(main())
