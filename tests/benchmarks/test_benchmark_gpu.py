"""benchmarks/gpu.py, tried on emulation: steps that are cut off, skipped, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gpu_fakes as fakes
import pytest
from device_cases import program_on
from emulated_device import EmulatedDevice
from grid_cases import need_cxx
from model_cases import layers
from needs import imported

import autotune as at
from autotune.backends.drivers import cuda
from autotune.codegen.simt import nvrtc
from autotune.measure import random_inputs
from autotune.tuning.suites import read
from schedules.te.evaluator import evaluate

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu_steps  # noqa: E402

SUITE = """
[[group]]
suite = "tiny"
name = "softmax"
op = "softmax"
fields = ["m", "n"]
shapes = [[5, 40]]
"""


def run(
    folder: Path, *args: str, target: str = "cuda-emulator", env: dict[str, str] | None = None
) -> tuple[int, str, dict[str, Any]]:
    out = folder / "out.json"
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu.py", str(folder / "tiny.toml"), "--target", target,
         "--trials", "2", "--budget", "30", "--out", str(out), *args],
        cwd=ROOT, capture_output=True, text=True, check=False, env=env,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text()) if out.exists() else {}


@pytest.mark.soak
def test_steps_go_on_where_they_were_cut_off(tmp_path: Path) -> None:
    need_cxx()
    (tmp_path / "tiny.toml").write_text(SUITE)
    only = ("--steps", "install,suite 00,suite 01,half rows,half elementwise")
    status, said, found = run(tmp_path, *only, "--limit", "0.6")
    by_name = {s["step"]: s for s in found["steps"]}
    assert status == 1 and by_name["suite 00"]["reason"] == "took longer than 0.6 s", said
    assert by_name["install"]["status"] == "skipped"

    status, said, found = run(tmp_path, *only)
    by_name = {s["step"]: s for s in found["steps"]}
    assert status == 0 and len(found["steps"]) == 5, said
    (row,) = by_name["suite 00"]["rows"]
    assert row["measured"] == 2 and row["times_s"]["autotune"] > 0 and row["params"] == {"m": 5, "n": 40}
    assert row["skipped"]["torch"] == "needs an NVIDIA GPU, not cuda-emulator"
    assert "fewer than 2 tasks" in by_name["suite 01"]["reason"]
    (halves,) = by_name["half rows"]["rows"]
    assert halves["dtype"] == "float16" and halves["measured"] == 2 and halves["times_s"]["autotune"] > 0
    assert halves["bytes"] * 2 == row["bytes"] and row["dtype"] == "float32"
    assert "the suite has none of add" in by_name["half elementwise"]["reason"]
    assert found["environment"]["commit"] and "benchmarks/gpu.py" in found["environment"]["command"]

    kept = found
    status, said, found = run(tmp_path, *only)
    assert status == 0 and found == kept and "5 of 37 steps tried: 3 done, 2 skipped" in said
    status, said, _ = run(tmp_path, "--for", "60")
    assert status == 0 and "instructions: no time left" in said


# What a process imports when it starts: kernels for the fake driver instead of machine code for sm_90.
COMPILER = """
import dataclasses
from autotune.backends.building import from_trace
from autotune.codegen.simt import cuda, emulator
from autotune.codegen.grid_code import grid_code

def build_object(dag, trace, target):
    if target.kind == "cpu":
        return real(dag, trace, target)
    program = from_trace.grid_program(dag, trace, target)
    code = grid_code(program, "cuda", cuda.generate(program))
    told = {"registers": 40, "shared_bytes": 0, "stack_bytes": 0, "spill_bytes": 0}
    facts = {k.name: told for k in program.kernels}
    return dataclasses.replace(code, binary=emulator.driver(code, shared=True), facts=facts).to_bytes()

real, from_trace.build_object = from_trace.build_object, build_object
"""


@pytest.mark.soak
def test_steps_for_nvidia_run_on_a_driver_of_our_own(tmp_path: Path) -> None:
    """From the device's attributes to the record that its kernel is loaded with, all but NVRTC and peers."""
    need_cxx()
    if cuda.available() or not nvrtc.available():  # the bindings are in the same wheels
        pytest.skip("there is a driver already, or there are no bindings")
    (tmp_path / "tiny.toml").write_text(SUITE)
    (tmp_path / "sitecustomize.py").write_text(COMPILER)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "data")}
    env = fakes.fake_driver(tmp_path) | cache | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    steps = "suite 00,half rows,copies"
    status, said, found = run(tmp_path, "--steps", steps, target="cuda", env=env)
    by_name = {s["step"]: s for s in found["steps"]}
    assert status == 0, said
    assert found["environment"]["device"] == fakes.FAKE and found["environment"]["arch"] == "sm_90"
    for name in ("suite 00", "half rows"):
        (row,) = by_name[name]["rows"]
        assert row["measured"] == 2 and not set(row["failed"]) - {"slow"} and row["times_s"]["autotune"] > 0
        assert row["device"]["registers"] == 40  # of the final, which is what is loaded
        assert set(row["skipped"]) == {"torch", "torch.compile", "triton"}
    assert by_name["copies"]["status"] == "skipped"


@pytest.mark.slow
def test_captured_launches_are_timed_beside_single_ones() -> None:
    need_cxx()
    graph, _ = layers(2)
    found = gpu_steps.launched(program_on(EmulatedDevice(), graph), rounds=3)
    assert found["launches"] == 4 and found["captures"] is False  # emulation launches one by one
    assert set(found["calls_s"]) == {"captured", "one by one"} and min(found["calls_s"].values()) > 0


def test_what_a_step_that_was_cut_off_left_is_read_if_it_is_whole(tmp_path: Path) -> None:
    out, rows = tmp_path / "gpu.json", [{"op": "add"}, {"op": "softmax"}]
    assert gpu_steps.so_far(out, "half rows") == {}
    place = gpu_steps.outcome(out, "half rows")
    gpu_steps.save(place, {"rows": rows})
    assert gpu_steps.so_far(out, "half rows") == {"rows": rows} and gpu_steps.so_far(out, "tests") == {}
    place.write_text(json.dumps({"rows": rows})[:-4])
    assert gpu_steps.so_far(out, "half rows") == {}
    place.write_text("[1, 2]")
    assert gpu_steps.so_far(out, "half rows") == {}


@pytest.mark.soak
def test_tasks_of_a_step_that_was_cut_off_are_not_tuned_again(tmp_path: Path) -> None:
    need_cxx()
    (tmp_path / "tiny.toml").write_text(SUITE)
    status, said, found = run(tmp_path, "--steps", "suite 00")
    assert status == 0, said
    (step,) = found["steps"]
    marked = {**step["rows"][0], "measured": 77}
    cut_off = {**step, "status": "failed", "reason": "took longer", "rows": [marked]}
    (tmp_path / "out.json").write_text(json.dumps({**found, "steps": [cut_off]}))
    status, said, found = run(tmp_path, "--steps", "suite 00")
    (step,) = found["steps"]
    assert status == 0 and step["rows"] == [marked] and step["status"] == "done", said


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(SUITE)
    status, said, _ = run(tmp_path, "--steps", "suite 99")
    assert status == 2 and "no step 'suite 99'; the steps are install, instructions, half products" in said


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("cuda-emulator", marks=pytest.mark.soak),
        pytest.param("h100-emulator", marks=pytest.mark.slow),
    ],
)
def test_a_dry_run_does_or_skips_every_step_also_after_a_kill(tmp_path: Path, target: str) -> None:
    """As a stranger calls it, but for budgets: no suite is named. It is killed in its sixth step."""
    need_cxx()
    few = ("--trials", "1", "--budget", "100", "--parts", "1", "--out", str(tmp_path / "gpu.json"))
    command = [sys.executable, "benchmarks/gpu.py", "--target", target, *few]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    left = tmp_path / "gpu.steps/float-products.json"
    while not left.exists():
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()  # ends when the step has ended too, which held the pipe
    before = {s["step"]: s for s in json.loads((tmp_path / "gpu.json").read_text())["steps"]}
    assert set(before) == {"install", "instructions", "half products", "model", "tiles"}

    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads((tmp_path / "gpu.json").read_text())
    steps = {s["step"]: s for s in found["steps"]}
    assert second.returncode == 0 and "18 of 18 steps tried" in second.stdout, second.stdout + second.stderr
    assert {s["status"] for s in steps.values()} == {"done", "skipped"}
    assert all(s["reason"] for s in steps.values() if s["status"] == "skipped")
    assert all(steps[name] == step for name, step in before.items())  # nothing is done twice
    rows = [r for s in steps.values() for r in s.get("rows", [])]
    assert len(rows) == 14 and all(r["times_s"]["autotune"] > 0 and r["flops"] for r in rows)
    assert {r["dtype"] for r in rows} == {"float16", "bfloat16", "float32", "int8"}
    assert not list((tmp_path / "gpu.steps").iterdir())
    if target == "h100-emulator":
        assert all(t["time_s"] > 0 and t["shared_bytes"] for t in steps["tiles"]["tiles"])
    with at.Log(tmp_path / "gpu.db") as log:
        trials = [r for r in log.records() if r.kind == "trial"]
    assert len(trials) >= sum(r["measured"] for r in rows) >= len(rows)


@pytest.mark.slow
def test_torch_computes_what_the_steps_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task of the first steps, by the calls that a GPU's comparison makes, on this CPU."""
    imported("torch")
    import gpu_peers

    for task in read(str(ROOT / "benchmarks/gpu_small.toml")):
        w = task.workload
        arrays = random_inputs(w.dag)
        expected = gpu_peers.tensor(evaluate(w.dag, arrays)[0]).double()
        inputs = [gpu_peers.tensor(x) for x in arrays]
        others = dict(gpu_peers._others(w))
        assert (gpu_peers.CUDNN in others) == (w.op == "attention")
        got = others["torch"](w, inputs)()
        gpu_peers._agree(w, got, expected)
        with pytest.raises(ValueError, match="it and the tuned kernel differ by"):
            gpu_peers._agree(w, got, expected + expected.abs().max())


def test_suites_of_the_steps_have_the_same_names() -> None:
    matrix, small = (
        {t.suite for t in read(str(ROOT / f"benchmarks/{f}.toml"))} for f in ("gpu_matrix", "gpu_small")
    )
    assert matrix - {"races"} == small - {"memory"}


def test_the_rows_furthest_behind_are_profiled() -> None:
    rows = [
        {"op": op, "times_s": {"autotune": ours, **others}}
        for op, ours, others in (
            ("a", 2.0, {"torch": 1.0, "triton": 4.0}), ("b", 1.0, {"torch": 1.0}), ("c", 3.0, {"torch": 1.0}),
            ("d", 9.0, {}),
        )
    ]  # fmt: skip
    assert [r["op"] for r in gpu_steps.worst([*rows, {"op": "e", "times_s": {"torch": 1.0}}])] == ["c", "a"]


def test_without_packages_the_command_says_what_to_install(tmp_path: Path) -> None:
    """As in a fresh clone where nothing was installed."""
    out = tmp_path / "gpu.json"
    bare = [sys.executable, "-S", "-E", "benchmarks/gpu.py", "--out", str(out), "--child", "here"]
    subprocess.run(bare, cwd=ROOT, capture_output=True, check=True)
    found = gpu_steps.so_far(out, "here")
    assert found["status"] == "skipped"
    assert "is not installed: python -m pip install '.[cuda,dev]' torch triton" in found["reason"]


@pytest.mark.slow
def test_without_a_gpu_the_command_says_so(tmp_path: Path) -> None:
    if cuda.available():
        pytest.skip("there is a GPU here")
    out = ("--out", str(tmp_path / "gpu.json"))
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu.py", *out], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("there is no NVIDIA GPU here") and "cuda-emulator" in done.stderr
