"""One command for whatever GPU is at hand: tests, then every task of a suite, tuned and timed beside cuBLAS
and cuDNN (torch), torch.compile (max-autotune) and Triton, in the same rounds; those that memory bounds in
float16 too.

    pip download -d wheels '.[cuda,dev]' hatchling editables torch triton   # where there is a network
    python benchmarks/gpu.py ops.toml:quick --wheels wheels   # where there is a GPU, and no network

26 steps, of which the suite has --parts, each a process of its own of at most --limit seconds. Their results
are kept in --out as they are made, also those of a step that is cut off: the same command goes on from there,
and --for SECONDS ends it before a step that would not fit. ``--target cuda-emulator`` or ``opencl`` try the
steps without an NVIDIA GPU; what needs one is skipped, with the reason. ``--markdown`` prints the table of a
file.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PEERS = ("torch", "torch.compile", "triton")
HALF = {  # what memory bounds, by step
    "half elementwise": (
        "add",
        "fused_multiply_add",
        "permute",
        "depthwise_conv2d",
        "max_pool2d",
        "avg_pool2d",
    ),
    "half rows": ("softmax", "layer_norm", "rms_norm", "reduce_sum", "norm2"),
}
OVERHEAD_S = 60.0  # of a step: imports, the first compilation, torch.compile's own tuning
Result = dict[str, Any]


def steps(o: argparse.Namespace) -> list[str]:
    return ["install", "tests", *(f"suite {n:02}" for n in range(o.parts)), *HALF, "copies", "model"]


class Skip(Exception):
    """A step that cannot run here, and why."""


# -- steps: what a child process does -------------------------------------------------------------------


def install(o: argparse.Namespace) -> Result:
    """A virtual environment from a folder of wheels, and nothing else."""
    if o.wheels is None:
        raise Skip("no --wheels: the present environment is used")
    subprocess.run([sys.executable, "-m", "venv", str(o.venv)], check=True)
    pip = [
        str(o.venv / "bin/python"),
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--find-links",
        str(o.wheels),
    ]
    subprocess.run([*pip, "hatchling", "editables"], check=True)
    subprocess.run([*pip, "--no-build-isolation", "-e", f"{ROOT}[cuda,dev]"], check=True)
    missing = [x for x in ("torch", "triton") if subprocess.run([*pip, x], check=False).returncode]
    return {"without": missing}


def tests(o: argparse.Namespace) -> Result:
    """The tests that need a GPU, or those that emulate one."""
    files = {
        "cuda": [
            "tests/autotune/backends/drivers/test_cuda.py",
            "tests/autotune/backends/drivers/test_devices.py",
            "tests/autotune/backends/drivers/test_cuda_graphs.py",
            "tests/autotune/models/test_device_program.py",
            "tests/autotune/run/test_device_kernel.py",
        ],
        "opencl": ["tests/autotune/codegen/test_opencl.py"],
    }.get(o.target, ["tests/autotune/tuning/test_emulated_tuning.py"])
    done = subprocess.run(
        [sys.executable, *"-m pytest -q -p no:cacheprovider -m".split(), "not soak and not fuzz", *files],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1:]
    return {
        "passed": done.returncode == 0,
        "summary": last,
        "output": done.stdout[-4000:] if done.returncode else "",
    }


def suite(o: argparse.Namespace, number: int) -> Result:
    """A share of the suite's tasks: each tuned for its part of the limit, then compared."""
    from autotune.tuning.suites import read

    tasks = read(o.suite)[number :: o.parts]
    if not tasks:
        raise Skip(f"the suite has fewer than {number + 1} tasks")
    return compared(tasks, o)


def half(o: argparse.Namespace, name: str) -> Result:
    """The suite's tasks that memory bounds, in float16."""
    from autotune.tuning.suites import read

    tasks = [t for t in read(o.suite) if t.workload.op in HALF[name]]
    if not tasks:
        raise Skip(f"the suite has none of {', '.join(HALF[name])}")
    return compared(tasks, o, "float16")


def compared(tasks: list[Any], o: argparse.Namespace, dtype: str | None = None) -> Result:
    """A row for each task, as it is or in another dtype."""
    budget = o.budget or max(5.0, (o.limit - OVERHEAD_S) / len(tasks) * 0.6)
    made = {key(r): r for r in kept(o.out).get(o.child, {}).get("rows", [])}  # before it was cut off
    rows = []
    for task in tasks:
        wanted = identity(task, dtype)
        rows.append(made.get(key(wanted)) or row(task, wanted, o, budget))
        print(json.dumps({"rows": rows}), flush=True)
    return {"rows": rows}


def identity(task: Any, dtype: str | None) -> Result:
    """What tells a row from others."""
    from autotune.run.workloads import dtype_of

    w = task.workload
    return {"group": task.group, "op": w.op, "params": dict(w.params), "dtype": dtype or dtype_of(w)}


def key(row: Result) -> str:
    return json.dumps([row["group"], row["op"], row["params"], row["dtype"]], sort_keys=True)


def kept(path: Path) -> dict[str, Result]:
    """The steps of a file of results, by name."""
    return {s["step"]: s for s in json.loads(path.read_text())["steps"]} if path.exists() else {}


def row(task: Any, wanted: Result, o: argparse.Namespace, budget: float) -> Result:
    import autotune as at
    from autotune.run.asked import Asked
    from autotune.run.loading import load_workload
    from schedules import ops
    from schedules.ops import compulsory_bytes

    params = dict(wanted["params"])
    op, dtype, layout = wanted["op"], wanted["dtype"], params.pop("layout", None)
    w = ops.workload(op, params, dtype, layout)
    with tempfile.TemporaryDirectory() as folder:
        db = str(o.db or f"{folder}/tuning.db")
        start = time.monotonic()
        limits = {"budget_s": budget, "trials": o.trials}
        tuned = at.tune(op, dtype=dtype, layout=layout, target=o.target, db=db, **limits, **params)
        took = time.monotonic() - start
        found: Result = wanted | {
            "flops": w.flops, "bytes": compulsory_bytes(w.dag), "measured": tuned.measured,
            "failed": dict(tuned.failed), "throttled": dict(tuned.throttled),
            "candidates_per_s": tuned.measured / took,
        }  # fmt: skip
        if tuned.best is None:
            return found | {"times_s": {}, "skipped": {"autotune": "nothing valid was found"}}
        kernel = load_workload(w, Asked.of(o.target, None, db))
        found["device"] = getattr(kernel.record, "environment", {}).get("device", {})
        peers, reason = peers_of(o.target)
        if peers is None:
            skipped = dict.fromkeys(PEERS, reason)
            return found | {"times_s": {"autotune": kernel.time(repeat=3)}, "skipped": skipped}
        times, skipped = peers.compare(kernel, w, o.peers)
        return found | {"times_s": times, "skipped": skipped}


def peers_of(target: str) -> tuple[Any, str]:
    """The module that compares with other libraries, or None and why there is nothing to compare with."""
    if target != "cuda":
        return None, f"needs an NVIDIA GPU, not {target}"
    try:
        import gpu_peers
        import torch
    except ImportError as err:
        return None, str(err)
    return (gpu_peers, "") if torch.cuda.is_available() else (None, "this torch finds no GPU")


def copies(o: argparse.Namespace) -> Result:
    """The bandwidth of a copy, the ceiling of all that is bound by memory, and what a call costs."""
    peers, reason = peers_of(o.target)
    if peers is None:
        raise Skip(reason)
    return {"copy_bytes_per_s": peers.copy_bandwidth(), "call_s": peers.call_seconds()}


def model(o: argparse.Namespace) -> Result:
    """A network, tuned; its calls with launches that were captured, and with launches one by one."""
    if o.target == "cuda-emulator":
        raise Skip("emulated kernels run in this process, and are not launched")
    try:
        import networks
        import torch
    except ImportError as err:
        raise Skip(str(err)) from None
    import autotune as at

    module, inputs, _ = networks.network(o.network)
    imported = at.import_torch(torch.export.export(module, inputs))
    budget = o.budget or max(5.0, (o.limit - OVERHEAD_S) * 0.6)
    with tempfile.TemporaryDirectory() as folder:
        where = {"target": o.target, "db": str(o.db or f"{folder}/tuning.db")}
        tuned = at.tune_model(imported, budget_s=budget, trials=o.trials, **where)
        net = at.compile_model(imported, fallback=True, **where)
    return {"network": o.network, "measured": tuned.measured, "kernels_s": tuned.weighted_s} | launched(
        net.program
    )


def launched(program: Any, rounds: int = 30) -> Result:
    """Median seconds of a call of a program on a device, copies of inputs and outputs included: with what was
    captured, and with launches one by one, in turns."""
    from autotune.models.device_memory import DeviceMemory
    from autotune.models.in_place import random_arguments
    from autotune.models.program import Program

    inputs, outputs = random_arguments(program.outline)
    plain = DeviceMemory(program.memory.device, captures=False)
    one_by_one = Program(program.outline, program.kernels, program.weights, program.run_island, plain)
    variants = {"captured": program, "one by one": one_by_one}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for n in range(rounds + 2):  # the first ones capture, and warm up
        for name, one in variants.items():
            begin = time.perf_counter()
            one.run(inputs, outputs)
            if n > 1:
                times[name].append(time.perf_counter() - begin)
    return {
        "launches": len(program.outline.calls),
        "captures": program.memory.captures,
        "calls_s": {name: statistics.median(x) for name, x in times.items()},
    }


def run_step(name: str, o: argparse.Namespace) -> Result:
    if name.startswith("suite "):
        return suite(o, int(name.removeprefix("suite ")))
    if name in HALF:
        return half(o, name)
    return {"install": install, "tests": tests, "copies": copies, "model": model}[name](o)


# -- the parent -----------------------------------------------------------------------------------------


def environment(o: argparse.Namespace) -> Result:
    """Where and what: device, driver, clocks, command, commit."""
    from autotune import backends
    from autotune.backends.building.generator_version import this_machine
    from autotune.backends.drivers import nvml

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    found: Result = {
        "command": shlex.join(["python", "benchmarks/gpu.py", *sys.argv[1:]]),
        "commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain")),
        "machine": this_machine(), "driver": nvml.driver(),
    }  # fmt: skip
    backend = backends.asked_for(o.target)
    if backend is not None and backend.measuring.on_device and backend.available():
        device = backend.device()
        found |= {"device": device.name(), "arch": device.arch(), "attributes": dict(device.attributes())}
    return found


def child(name: str, o: argparse.Namespace) -> Result:
    """Run a step in a process of its own, which ends at the limit with all it has started."""
    python = o.venv / "bin/python"
    command = [str(python if python.exists() and name != "install" else sys.executable), str(Path(__file__))]
    paths = [str(ROOT), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    begun = time.monotonic()
    p = subprocess.Popen(
        [*command, *sys.argv[1:], "--child", name],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    try:
        out, err = p.communicate(timeout=o.limit)
        lines = out.strip().splitlines()
        answer: Result = json.loads(lines[-1]) if p.returncode == 0 and lines else {
            "status": "failed", "reason": (err or out)[-2000:] or f"exit status {p.returncode}"
        }  # fmt: skip
        if answer["status"] == "failed":
            answer = so_far(out) | answer
    except subprocess.TimeoutExpired as late:
        answer = so_far(late.stdout) | {"status": "failed", "reason": f"took longer than {o.limit:g} s"}
    finally:
        if p.poll() is None:
            os.killpg(p.pid, signal.SIGKILL)
            p.communicate()
    return answer | {"step": name, "seconds": round(time.monotonic() - begun, 1), "at": now()}


def so_far(out: str | bytes | None) -> Result:
    """What a step that did not end had printed: a line of JSON for each row."""
    text = out.decode(errors="replace") if isinstance(out, bytes) else out or ""
    for line in reversed(text.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:  # cut off, or not of ours
            continue
        if isinstance(found, dict) and "rows" in found:
            return {"rows": found["rows"]}
    return {}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def save(path: Path, content: Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content, indent=1) + "\n")
    fresh.replace(path)


def markdown(content: Result) -> str:
    """A table of the rows: times of all, and how many times as fast as each we are."""
    rows = [r for s in content["steps"] for r in s.get("rows", [])]
    names = list(dict.fromkeys(n for r in rows for n in (*r["times_s"], *r["skipped"]) if n != "autotune"))
    out = [
        f"| task | time | {' | '.join(f'÷ {n}' for n in names)} | candidates/s |",
        "|---" * (3 + len(names)) + "|",
    ]
    for r in rows:
        ours = r["times_s"].get("autotune")
        task = " ".join([r["op"], *(f"{k}={v}" for k, v in r["params"].items()), r.get("dtype", "float32")])
        ratios = [f"{r['times_s'][n] / ours:.2f}×" if ours and n in r["times_s"] else "–" for n in names]
        shown = f"{ours * 1e6:.4g} µs" if ours else "–"
        out.append(f"| {task} | {shown} | {' | '.join(ratios)} | {r['candidates_per_s']:.1f} |")
    return "\n".join(out)


def options() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    p.add_argument("suite", help="FILE[:NAME]")
    p.add_argument("--target", default="cuda", choices=["cuda", "opencl", "cuda-emulator"])
    p.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu.json"))
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
    p.add_argument("--db", type=Path, help="keep what is tuned in this log")
    p.add_argument("--parts", type=int, default=20, help="of the suite, each a step")
    p.add_argument("--peers", type=lambda s: s.split(","), default=PEERS, help="only these, with commas")
    p.add_argument("--network", default="resnet18", help="what the step model runs (networks.py)")
    p.add_argument("--steps", help="only these, separated by commas")
    p.add_argument("--markdown", action="store_true", help="print the table of --out and stop")
    p.add_argument("--child", help=argparse.SUPPRESS)
    return p.parse_args()


def main() -> int:
    o = options()
    if o.child:
        try:
            answer = {"status": "done"} | run_step(o.child, o)
        except Skip as why:
            answer = {"status": "skipped", "reason": str(why)}
        print(json.dumps(answer))
        return 0
    content: Result = json.loads(o.out.read_text()) if o.out.exists() else {"environment": {}, "steps": []}
    if o.markdown:
        print(markdown(content))
        return 0
    if content.setdefault("parts", o.parts) != o.parts:
        n = content["parts"]
        print(f"{o.out} has the suite in {n} parts: give --parts {n}, or another --out", file=sys.stderr)
        return 2
    if strange := [p for p in o.peers if p not in PEERS]:
        print(f"no peer {strange[0]!r}; they are {', '.join(PEERS)}", file=sys.stderr)
        return 2
    wanted = [s.strip() for s in o.steps.split(",")] if o.steps else steps(o)
    unknown = [s for s in wanted if s not in steps(o)]
    if unknown:
        print(f"no step {unknown[0]!r}; the steps are {', '.join(steps(o))}", file=sys.stderr)
        return 2
    end = time.monotonic() + o.total
    for name in wanted:
        # a step that failed is tried again; one that was cut off has left nothing
        if any(s["step"] == name and s["status"] != "failed" for s in content["steps"]):
            continue
        if time.monotonic() + o.limit > end:
            print(f"{name}: no time left; the same command goes on from here")
            break
        answer = child(name, o)
        if not content["environment"] or name == "install":
            content["environment"] = environment(o)
        content["steps"] = [s for s in content["steps"] if s["step"] != name] + [answer]
        save(o.out, content)
        print(
            f"{name}: {answer['status']} in {answer['seconds']} s {answer.get('reason', '')[-300:]}",
            flush=True,
        )
    done = {s["step"] for s in content["steps"]}
    print(f"{len(done & set(steps(o)))} of {len(steps(o))} steps done")
    return int(any(s["status"] == "failed" for s in content["steps"]))


if __name__ == "__main__":
    raise SystemExit(main())
