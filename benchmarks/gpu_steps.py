"""The steps of gpu.py: what each does in a process of its own. Nothing but Python's library is imported
before a step begins, so that what is missing can be said."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
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
OVERHEAD_S = 30.0  # of a step: imports, the device
PEERS_S = 45.0  # of a task: what torch.compile and Triton tune for themselves
MOST_S = 150.0  # of tuning a task, whatever the limit leaves
ROUNDS = 3  # of about a millisecond each, of kernels that nothing is compared with
WORST = 2  # rows that the step profile looks at
PRODUCTS_S, SHORT_S, LONG_S = 420.0, 180.0, 480.0
Options = argparse.Namespace
Result = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """``seconds``: that it takes at most."""

    name: str
    do: Callable[[Options], Result]
    seconds: float = LONG_S


class Skip(Exception):
    """A step that cannot run here, and why."""


def steps(o: Options) -> list[Step]:
    """All steps, those that are worth most first."""
    first = [
        Step("install", install),
        Step("instructions", instructions, SHORT_S),
        *(
            Step(n, partial(matrix, suite=n.replace(" ", "_")), s)
            for n, s in (("half products", PRODUCTS_S),)
        ),
        Step("model", model, PRODUCTS_S),
        Step("tiles", tiles, SHORT_S),
        *(
            Step(name, partial(matrix, suite=name.replace(" ", "_")))
            for name in ("float products", "transformer", "convolutions", "attention", "integer products")
        ),
        Step("half convolutions", partial(matrix, suite="half_convolutions")),
        Step("races", races, SHORT_S),
        Step("profile", profile, SHORT_S),
    ]
    shares = [Step(f"suite {n:02}", partial(share, number=n)) for n in range(o.parts)]
    rows = [Step(name, partial(half, name=name)) for name in HALF]
    return [*first, Step("tests", tests), *shares, *rows, Step("copies", copies)]


# -- results of a step, kept while it runs --------------------------------------------------------------


def outcome(out: Path, step: str) -> Path:
    """Where a step that runs leaves what it has: the parent may be killed, and the step with it."""
    return out.with_suffix(".steps") / f"{step.replace(' ', '-')}.json"


def save(path: Path, content: Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content, indent=1) + "\n")
    fresh.replace(path)


def so_far(out: Path, step: str) -> Result:
    """What a step has left. Nothing of what was never written whole."""
    try:
        found: Result = json.loads(outcome(out, step).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def leave(o: Options) -> int:
    """In the process of a step: do it, and leave its answer."""
    end_with(os.getppid())
    answer = {k: v for k, v in so_far(o.out, o.child).items() if k in ("rows", "tiles")}
    save(outcome(o.out, o.child), answer)
    named = {s.name: s for s in (*steps(o), Step("here", here))}
    try:
        answer = {"status": "done"} | named[o.child].do(o)
    except Skip as why:
        answer = {"status": "skipped", "reason": str(why)}
    save(outcome(o.out, o.child), answer)
    return 0


def end_with(parent: int) -> None:
    """Have this process killed when its parent is. On Linux; elsewhere it goes on to its end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def called(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command that ends with this process."""
    return subprocess.run(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        preexec_fn=partial(end_with, os.getpid()), **more,
    )  # fmt: skip


# -- what is here ---------------------------------------------------------------------------------------


def here(o: Options) -> Result:
    """Where and what this is: device, driver, clocks, commit; and what is missing. Skips where nothing can
    run."""
    try:
        from autotune import backends
        from autotune.backends.building.generator_version import this_machine
        from autotune.backends.drivers import nvml
    except ImportError as err:
        raise Skip(
            f"{err.name} is not installed: python -m pip install '.[cuda,dev]' torch triton; where there is "
            "no network, --wheels FOLDER"
        ) from None
    from autotune.errors import AutotuneError

    try:
        backend = backends.of(backends.parse(o.target))
    except AutotuneError as err:
        raise Skip(str(err)) from None
    if not backend.available():
        raise Skip(f"{o.target}: {backend.missing}")
    found: Result = {
        "commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain")),
        "machine": this_machine(), "driver": nvml.driver(),
    }  # fmt: skip
    if backend.measuring.on_device:
        device = backend.device()
        found |= {"device": device.name(), "arch": device.arch(), "attributes": dict(device.attributes())}
    return {"environment": found, "missing": missing(o)}


def git(*args: str) -> str:
    if shutil.which("git") is None:
        return ""
    return subprocess.run(
        ["git", *args], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


def missing(o: Options) -> dict[str, str]:
    """What steps do without, and why."""
    reasons = {
        "other libraries": peers_of(o.target)[1],
        "triton": "" if o.emulated or find_spec("triton") else "it is not installed",
        "tests": "" if find_spec("pytest") else "pytest is not installed (extra dev)",
        "compute-sanitizer": "" if o.emulated or tool("compute-sanitizer") else TOOLKIT,
        "ncu": "" if o.emulated or tool("ncu") else TOOLKIT,
    }
    return {what: why for what, why in reasons.items() if why}


TOOLKIT = "it is not installed; NVIDIA's CUDA toolkit has it"


def tool(name: str) -> str | None:
    """Where a program of NVIDIA's toolkit lies."""
    places = [os.environ.get("PATH", ""), f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin"]
    return shutil.which(name, path=os.pathsep.join(places))


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


# -- steps ----------------------------------------------------------------------------------------------


def install(o: Options) -> Result:
    """A virtual environment from a folder of wheels, and nothing else."""
    if o.wheels is None:
        raise Skip("no --wheels: the present environment is used")
    subprocess.run([sys.executable, "-m", "venv", str(o.venv)], check=True)
    pip = [str(o.venv / "bin/python"), *"-m pip install -q --no-index --find-links".split(), str(o.wheels)]
    subprocess.run([*pip, "hatchling", "editables"], check=True)
    subprocess.run([*pip, "--no-build-isolation", "-e", f"{ROOT}[cuda,dev]"], check=True)
    absent = [x for x in ("torch", "triton") if subprocess.run([*pip, x], check=False).returncode]
    return {"without": absent}


def tests(o: Options) -> Result:
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
    return tested(files, "not soak and not fuzz")


def instructions(o: Options) -> Result:
    """Every instruction of matrix units that there is, on the device or emulated."""
    if o.target == "opencl":
        raise Skip("OpenCL has no instructions of matrix units")
    return tested(["tests/autotune/backends/drivers/test_device_instructions.py"], "not soak and not fuzz")


def tiles(o: Options) -> Result:
    import gpu_tiles

    return gpu_tiles.step(o)


def tested(files: list[str], which: str) -> Result:
    if find_spec("pytest") is None:
        raise Skip("pytest is not installed (extra dev)")
    done = called([sys.executable, *"-m pytest -q -p no:cacheprovider -m".split(), which, *files])
    summary = done.stdout.strip().splitlines()[-1:]
    if done.returncode:
        return {"status": "failed", "reason": " ".join(summary), "output": done.stdout[-4000:]}
    return {"summary": summary}


def matrix(o: Options, suite: str) -> Result:
    """A suite of what matrix units do, or of products and convolutions in float32."""
    from autotune.tuning.suites import read

    return compared(read(shapes(o, suite)), o)


def shapes(o: Options, suite: str) -> str:
    """Where a suite of these steps stands: emulated GPUs take small shapes."""
    file = "gpu_small.toml" if o.emulated else "gpu_matrix.toml"
    return f"{ROOT / 'benchmarks' / file}:{suite}"


def share(o: Options, number: int) -> Result:
    """A share of the suite's tasks: each tuned for its part of the limit, then compared."""
    from autotune.tuning.suites import read

    tasks = read(o.suite)[number :: o.parts]
    if not tasks:
        raise Skip(f"the suite has fewer than {number + 1} tasks")
    return compared(tasks, o)


def half(o: Options, name: str) -> Result:
    """The suite's tasks that memory bounds, in float16."""
    from autotune.tuning.suites import read

    tasks = [t for t in read(o.suite) if t.workload.op in HALF[name]]
    if not tasks:
        raise Skip(f"the suite has none of {', '.join(HALF[name])}")
    return compared(tasks, o, "float16")


def copies(o: Options) -> Result:
    """The bandwidth of a copy, the ceiling of all that is bound by memory, and what a call costs."""
    peers, reason = peers_of(o.target)
    if peers is None:
        raise Skip(reason)
    return {"copy_bytes_per_s": peers.copy_bandwidth(), "call_s": peers.call_seconds()}


# -- tasks that are tuned and compared ------------------------------------------------------------------


def compared(tasks: list[Any], o: Options, dtype: str | None = None) -> Result:
    """A row for each task, as it is or in another dtype. Rows that an earlier try left whole are kept; one
    that was tuned is compared."""
    made = {key(r): r for r in [*kept(o.out).get(o.child, []), *so_far(o.out, o.child).get("rows", [])]}
    rows: list[Result] = []
    for task in tasks:
        wanted = identity(task, dtype)
        w = workload(wanted)
        row = made.get(key(wanted)) or tuned(w, wanted, o, budget(o, len(tasks)))
        if row.get("unfinished"):
            save(outcome(o.out, o.child), {"rows": [*rows, row]})
            row = finished(row, w, o)
        rows.append(row)
        save(outcome(o.out, o.child), {"rows": rows})
    return {"rows": rows}


def budget(o: Options, tasks: int) -> float:
    """Seconds of tuning for each of a step's tasks: what is asked for, or what the limit leaves."""
    left = (o.limit - OVERHEAD_S) / tasks - (PEERS_S if o.target == "cuda" else 0)
    return float(o.budget or min(MOST_S, max(5.0, left)))


def identity(task: Any, dtype: str | None) -> Result:
    """What tells a row from others."""
    from autotune.run.workloads import dtype_of

    w = task.workload
    return {"group": task.group, "op": w.op, "params": dict(w.params), "dtype": dtype or dtype_of(w)}


def key(row: Result) -> str:
    return json.dumps([row["group"], row["op"], row["params"], row["dtype"]], sort_keys=True)


def kept(path: Path) -> dict[str, list[Result]]:
    """The rows of a file of results, by step."""
    if not path.exists():
        return {}
    return {s["step"]: s.get("rows", []) for s in json.loads(path.read_text())["steps"]}


def workload(row: Result) -> Any:
    from schedules import ops

    params = dict(row["params"])
    return ops.workload(row["op"], params, row["dtype"], params.pop("layout", None))


def tuned(w: Any, wanted: Result, o: Options, seconds: float) -> Result:
    """The row of a task that was tuned, and waits for its comparison."""
    import autotune as at
    from schedules.ops import compulsory_bytes

    params = dict(wanted["params"])
    layout = params.pop("layout", None)
    start = time.monotonic()
    found = at.tune(
        wanted["op"], dtype=wanted["dtype"], layout=layout, target=o.target, db=str(o.db),
        budget_s=seconds, trials=o.trials, **params,
    )  # fmt: skip
    took = time.monotonic() - start
    row: Result = wanted | {
        "flops": w.flops, "bytes": compulsory_bytes(w.dag), "measured": found.measured,
        "failed": dict(found.failed), "throttled": dict(found.throttled),
        "candidates_per_s": found.measured / took,
    }  # fmt: skip
    if found.best is None:
        return row | {"times_s": {}, "skipped": {"autotune": "nothing valid was found"}}
    return row | {"times_s": {}, "skipped": {}, "unfinished": True}


def finished(row: Result, w: Any, o: Options) -> Result:
    """The row with times of our kernel and of what others have."""
    kernel = loaded(w, o)
    done = {k: v for k, v in row.items() if k != "unfinished"}
    done["device"] = getattr(kernel.record, "environment", {}).get("device", {})
    peers, reason = peers_of(o.target)
    if peers is None:
        skipped = dict.fromkeys(PEERS, reason)
        return done | {"times_s": {"autotune": kernel.time(repeat=ROUNDS)}, "skipped": skipped}
    times, skipped = peers.compare(kernel, w, o.peers)
    return done | {"times_s": times, "skipped": skipped}


def loaded(w: Any, o: Options) -> Any:
    """The best kernel of the log."""
    from autotune.run.asked import Asked
    from autotune.run.loading import load_workload

    return load_workload(w, Asked.of(o.target, None, str(o.db)))


# -- tools of NVIDIA's toolkit, on one call of a kernel -------------------------------------------------


def needed(name: str, o: Options, besides: str = "") -> str:
    """The path of a tool that runs kernels of an NVIDIA GPU. Raises Skip where one of these is not here."""
    if o.target != "cuda":
        raise Skip(f"needs an NVIDIA GPU, not {o.target}{besides}")
    program = tool(name)
    if program is None:
        raise Skip(f"{name}: {TOOLKIT}")
    return program


def races(o: Options) -> Result:
    """compute-sanitizer's racecheck on a call of kernels with small shapes."""
    from autotune.tuning.suites import read

    program = needed("compute-sanitizer", o, "; the emulator looks for races in every run")
    found = compared(read(shapes(o, "races")), o)
    check = [program, "--tool", "racecheck", "--error-exitcode", "9"]
    return found | {"racecheck": under(check, found["rows"], o)}


def profile(o: Options) -> Result:
    """ncu on a call of the products that are furthest behind the best of other libraries."""
    program = needed("ncu", o)
    chosen = worst(row for rows in kept(o.out).values() for row in rows)
    if not chosen:
        raise Skip("no step before has compared anything")
    return {"ncu": under([program, "--set", "full"], chosen, o)}


def worst(rows: Iterable[Result], n: int = WORST) -> list[Result]:
    """The rows that are furthest behind the fastest other library."""

    def behind(row: Result) -> float:
        times = dict(row["times_s"])
        ours = times.pop("autotune")
        return float(ours / min(times.values()))

    comparable = [r for r in rows if len(r["times_s"]) > 1 and "autotune" in r["times_s"]]
    return sorted(comparable, key=behind, reverse=True)[:n]


def under(program: list[str], rows: list[Result], o: Options) -> list[Result]:
    """What a tool says of one call of each row's kernel."""
    said = []
    for row in rows:
        asked = json.dumps({k: row[k] for k in ("group", "op", "params", "dtype")})
        script = str(Path(__file__).with_name("gpu_call.py"))
        done = called([*program, sys.executable, script, o.target, str(o.db), asked])
        said.append({"row": asked, "status": done.returncode, "output": done.stdout[-6000:]})
    return said


# -- a model --------------------------------------------------------------------------------------------


def model(o: Options) -> Result:
    """A network, tuned; its calls with launches that were captured, and with launches one by one."""
    if o.emulated:
        raise Skip("emulated kernels run in this process, and are not launched")
    try:
        import networks
        import torch
    except ImportError as err:
        raise Skip(str(err)) from None
    import autotune as at

    module, inputs, _ = networks.network(o.network)
    imported = at.import_torch(torch.export.export(module, inputs))
    where = {"target": o.target, "db": str(o.db)}
    found = at.tune_model(imported, budget_s=budget(o, 1), trials=o.trials, **where)
    net = at.compile_model(imported, fallback=True, **where)
    return {"network": o.network, "measured": found.measured, "kernels_s": found.weighted_s} | launched(
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
