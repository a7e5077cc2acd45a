"""Comparing with peers: rounds and ratios on a made-up clock, peers against references, the command."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import run
from log_filler import fill, host
from needs import imported
from small_shapes import SMALL

from autotune.measure.compare.bench import Contender, DisagreementError, agree, arrays_for, compare
from autotune.measure.compare.peers import PEERS, PeerError, peer
from autotune.measure.compare.peers.with_numpy import EXPRESSIONS
from autotune.run.workloads import as_workload
from autotune.targets import usable_cpu_set
from schedules import ops, te

QUICK_PEERS = sorted(set(PEERS) - {"tvm"})  # which tunes for minutes: test_peer_tvm.py
WITHOUT_PEER = {(library, "capsule_conv2d") for library in QUICK_PEERS if not library.startswith("numpy")}
WITHOUT_PEER |= {
    (library, name)
    for library in QUICK_PEERS
    if library.startswith("torch")
    for name in ("quantized_conv2d", "quantized_matmul")
}
FEW = ("matmul", "conv2d", "softmax")  # of peers that take seconds each: a C++ compiler, or new processes
SLOW_PEERS = ("torch.compile", "numpy.best", "torch.best")


class Clock:
    """A clock that only the contenders move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: Callable[[], float]) -> Callable[[], None]:
        def call() -> None:
            self.now += seconds()

        return call


def test_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    clock = Clock()
    load = iter([1.0] * 20 + [5.0] * 2000)  # the machine becomes five times slower
    slowdown = [1.0]

    def ours() -> float:
        slowdown[0] = next(load)
        return 0.05 * slowdown[0]

    ours_c = Contender("ours", clock.work(ours))
    theirs_c = Contender("theirs", clock.work(lambda: 0.1 * slowdown[0]))
    result = compare([ours_c, theirs_c], lambda: 0.04 * slowdown[0], seconds=20, clock=clock)
    assert result.ratio("ours", "theirs") == pytest.approx(2.0)
    assert result.share("ours") == pytest.approx(0.8)
    assert len(result.times_s["ours"]) == len(result.times_s["theirs"]) == len(result.limits_s) >= 5


def test_the_order_rotates_and_the_collector_is_off_meanwhile() -> None:
    import gc

    clock, order, states = Clock(), [], set()

    def contender(name: str) -> Contender:
        def call() -> None:
            order.append(name)
            states.add(gc.isenabled())
            clock.now += 1.0

        return Contender(name, call)

    compare([contender("a"), contender("b")], seconds=0, clock=clock)
    rounds = order[-20:]  # five rounds of two, each warmed up, after the calibration
    assert rounds[::2] == rounds[1::2] == ["a", "b", "b", "a", "a", "b", "b", "a", "a", "b"]
    assert gc.isenabled() and False in states


def test_arrays_are_warm_whoever_came_before() -> None:
    clock, last = Clock(), [""]
    cold = {"shared": 1, "own": 3}  # calls until its array is back in the caches, after another's

    def contender(name: str) -> Contender:
        left = [0]

        def seconds() -> float:
            if last[0] != name:
                left[0] = cold[name]
            last[0] = name
            left[0] -= 1
            return 2e-3 if left[0] < 0 else 3e-3

        return Contender(name, clock.work(seconds))

    result = compare([contender("shared"), contender("own")], seconds=0, clock=clock)
    assert result.ratio("own", "shared") == pytest.approx(1.0)


def test_quick_calls_are_timed_many_at_a_time() -> None:
    clock, calls = Clock(), [0]

    def quick() -> float:
        calls[0] += 1
        return 1e-5

    result = compare([Contender("quick", clock.work(quick))], seconds=0, clock=clock)
    assert result.time_s("quick") == pytest.approx(1e-5) and calls[0] > 5 * 1000
    assert result.share("quick") is None


@pytest.mark.fast(but=["*best-*", "torch.compile-*"])
@pytest.mark.filterwarnings("ignore")  # what other libraries warn of among themselves
@pytest.mark.parametrize("name", sorted(ops.REGISTRY))
@pytest.mark.parametrize("library", QUICK_PEERS)
def test_peers_compute_what_the_operator_means(library: str, name: str) -> None:
    if library != "numpy":
        imported(library.partition(".")[0])
    few = FEW[:1] if library.endswith(".best") else FEW
    if library in SLOW_PEERS and name not in few and (library, name) not in WITHOUT_PEER:
        pytest.skip("prepared as a few others are, and each takes seconds")
    workload = ops.workload(name, SMALL[name])
    inputs, outputs = arrays_for(workload, 0)
    if (library, name) in WITHOUT_PEER:
        with pytest.raises(PeerError, match=f"no peer for '{name}'"):
            peer(library).prepare(workload, [], [], 1).__enter__()
        return
    with peer(library).prepare(workload, inputs, outputs, 1) as prepared:
        prepared.call()
        agree(workload, library, prepared.result(), ops.reference(workload, inputs))


@pytest.mark.fast(but=["torch.compile-*"])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n for n, op in sorted(ops.REGISTRY.items()) if op.weights])
@pytest.mark.parametrize("library", ["onnxruntime", "torch.compile"])
def test_peers_may_know_weights_ahead(library: str, name: str) -> None:
    imported(library.partition(".")[0])
    if (library, name) in WITHOUT_PEER or (library == "torch.compile" and name not in FEW):
        pytest.skip("no peer, or compiled as a few others are")
    dtype = ops.workload(name, SMALL[name]).dag.inputs[0].dtype
    workload = as_workload(name, SMALL[name], dtype, constant_weights=True)
    inputs, outputs = arrays_for(workload, 0)
    with peer(library).prepare(workload, inputs, outputs, 1) as prepared:
        prepared.call()
        agree(workload, library, prepared.result(), ops.reference(workload, inputs))


def test_expressions_are_of_operators_that_exist() -> None:
    assert set(EXPRESSIONS) <= set(ops.REGISTRY) and set(SMALL) == set(ops.REGISTRY)


def test_a_peer_that_computes_something_else_is_refused() -> None:
    workload = ops.workload("add", {"n": 4})
    ones = np.ones(4, np.float32)
    with pytest.raises(DisagreementError, match="numpy"):
        agree(workload, "numpy", [ones], [ones * 2])
    with pytest.raises(DisagreementError, match="numpy gives"):
        agree(workload, "numpy", [np.ones(5, np.float32)], [ones])


def test_a_peer_that_is_not_installed_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "absent", ("autotune.measure.compare.peers.absent", "no_such_library"))
    with pytest.raises(PeerError, match="not installed"):
        peer("absent")
    with pytest.raises(PeerError, match="known peers: numpy"):
        peer("nothing")


@pytest.mark.slow
def test_the_command_compares_the_stored_kernel(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    fill(db, [("matmul", {"m": 16, "n": 16, "k": 16}, 1e-4)])
    words = (
        "bench",
        "matmul",
        "--shape",
        "m=16,n=16,k=16",
        "--threads",
        "1",
        "--duration",
        "1ms",
        "--db",
        db,
    )
    ran = run(*words, "--json")
    assert ran.status == 0 and ran.err == ""
    rows = {r["impl"]: r for r in ran.json["rows"]}
    assert set(rows) == {"autotune", "numpy"} and set(ran.json["ratio"]) == {"numpy"}
    for r in rows.values():
        assert {"impl", "op", "params", "dtype", "threads", "time_s", "gflops", "share_of_peak"} <= set(r)
        assert r["gflops"] == pytest.approx(2 * 16**3 / r["time_s"] / 1e9)
        assert r["share_of_peak"] > 0 and r["threads"] == 1
    text = run(*words, "--against", "numpy")
    assert text.status == 0 and "times as fast as" in text.out and "GFLOP/s" in text.out
    assert "ratios are medians over the rounds" in text.out  # which need not be quotients of the times above


@pytest.mark.parametrize(("factor", "status"), [(0.5, 1), (2.0, 0)])
def test_must_beat_decides_the_status(
    factor: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.measure.compare.bench import Comparison

    db = tmp_path / "t.db"
    fill(db, [("add", {"n": 64}, 1e-4)])
    fixed = Comparison({"autotune": [1.0], "numpy": [factor]}, [0.5])
    monkeypatch.setattr("autotune.measure.compare.bench.compare", lambda *a, **k: fixed)
    ran = run("bench", "add", "--shape", "n=64", "--threads", "1", "--must-beat", "numpy", "--db", db)
    assert ran.status == status and "2.00 times as fast as" in ran.out


@pytest.mark.parametrize(
    ("peer_s", "said"),
    [
        ((2.0, 2.1, 2.2, 2.0, 2.1), None),
        ((1.4, 2.0, 2.5, 4.0, 15.6), "the middle half of the ratios to numpy goes from 2.00 to 4.00"),
    ],
)
def test_rounds_that_differ_are_said_to(
    peer_s: tuple[float, ...], said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.measure.compare.bench import Comparison

    db = tmp_path / "t.db"
    fill(db, [("add", {"n": 64}, 1e-4)])
    fixed = Comparison({"autotune": [1.0] * 5, "numpy": peer_s}, [0.5] * 5)
    monkeypatch.setattr("autotune.measure.compare.bench.compare", lambda *a, **k: fixed)
    command = ("bench", "add", "--shape", "n=64", "--threads", "1", "--db", db)
    text = run(*command).out
    assert "5 rounds" in text
    assert "Rounds differ" not in text if said is None else said in text
    middle = sorted(peer_s)[1::2]
    assert run(*command, "--json").json["quartiles"] == {"numpy": pytest.approx(middle)}


SUITE = """
[[group]]
suite = "one"
name = "sums"
op = "add"
fields = ["n"]
shapes = [[64], [65], [66]]
quick = [1]

[[group]]
suite = "two"
name = "capsules"
op = "capsule_conv2d"
fields = ["h", "w", "ci", "co", "k"]
fixed = { capsule = 1 }
shapes = [[2, 2, 1, 1, 1]]
"""


def test_a_suite_counts_every_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.measure.compare.bench import Comparison

    file, db = tmp_path / "ops.toml", tmp_path / "t.db"
    file.write_text(SUITE)
    capsule = {"h": 2, "w": 2, "ci": 1, "co": 1, "k": 1, "capsule": 1}
    fill(db, [("add", {"n": 64}, 1e-4), ("add", {"n": 65}, 1e-4), ("capsule_conv2d", capsule, 1e-4)])
    factors = iter([8.0, 2.0, 1.0])
    monkeypatch.setattr(
        "autotune.measure.compare.bench.compare",
        lambda *a, **k: Comparison({"autotune": [1.0], "numpy": [next(factors)]}, [0.5]),
    )
    ran = run("bench", "--suite", file, "--threads", "1", "--db", db, "--json")
    assert ran.status == 0 and ran.err == ""
    assert ran.json["ratio"] == {"numpy": pytest.approx(2.0)}  # the root of (the root of 8 x 2) x 1
    assert [(t["suite"], t["group"]) for t in ran.json["tasks"]] == [
        ("one", "sums"),
        ("one", "sums"),
        ("two", "capsules"),
    ]
    assert ran.json["missing"] == ["add n=66 float32"]


@pytest.mark.parametrize(
    ("name", "sizes"), [("quick", [65]), ("one", [64, 65, 66]), ("two", []), ("all", [64, 65, 66])]
)
def test_a_suite_is_picked_by_name(name: str, sizes: list[int], tmp_path: Path) -> None:
    from autotune.tuning.suites import read

    (tmp_path / "ops.toml").write_text(SUITE)
    tasks = [t.workload for t in read(f"{tmp_path / 'ops.toml'}:{name}")]
    assert [dict(w.params)["n"] for w in tasks if w.op == "add"] == sizes
    assert any(w.op == "capsule_conv2d" for w in tasks) == (name in ("two", "all"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read suite .*No such file"),
        ("[[group", "is not TOML"),
        ("a = 1", "group: Field required"),
        ('[[group]]\nname = "x"', "group.0.suite: Field required"),
        (SUITE.replace("shapes", "shape"), "group.0.shapes: Field required"),
        (SUITE.replace("[65]", '["65"]'), "group.0.shapes.1.0"),
        (SUITE.replace("[65]", "[65, 1]"), "row 1 has 2 numbers for 1 fields"),
        (SUITE.replace("quick = [1]", "quick = [7]"), "no row 7"),
        (SUITE.replace('"add"', '"addd"'), "did you mean 'add'"),
        (SUITE.replace('"w", "ci"', '"h", "ci"'), "group.1.fields: Value error, a name occurs twice"),
        (SUITE.replace("capsule = 1", "k = 3"), "group capsules: k is among its fields and fixed too"),
    ],
)
def test_a_bad_suite_gets_a_clear_error(text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "ops.toml"
    if text is not None:
        file.write_text(text)
    name = ":quick" if text and "7]" in text else ""
    ran = run("bench", "--suite", f"{file}{name}", "--db", tmp_path / "t.db")
    assert ran.status == 2 and re.search(message, ran.err) and "Traceback" not in ran.err


def test_an_operator_or_a_suite_not_both() -> None:
    for words in (("bench", "--threads", "1"), ("bench", "add", "--suite", "x.toml")):
        ran = run(*words)
        assert ran.status == 2 and "either an operator" in ran.err


@pytest.mark.parametrize("command", ["tune", "bench"])
@pytest.mark.parametrize("option", [("--shape", "n=8"), ("--dtype", "float32"), ("--layout", "NHWC")])
def test_what_the_file_of_a_suite_says_is_not_said_beside_it(command: str, option: tuple[str, ...]) -> None:
    ran = run(command, "--suite", "x.toml", *option)
    assert ran.status == 2 and f"{option[0]} does not go with --suite" in ran.err


@pytest.mark.slow
@pytest.mark.skipif(len(usable_cpu_set()) < 2, reason="needs two CPUs")
def test_a_library_that_binds_us_to_one_cpu_binds_nothing_of_the_next_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As importing torch does where OMP_PROC_BIND is set."""
    from autotune.backends.peaks import roofline
    from autotune.measure.compare import bench, peers

    file, db = tmp_path / "ops.toml", tmp_path / "t.db"
    file.write_text(SUITE)
    fill(db, [("add", {"n": n}, 1e-4) for n in (64, 65, 66)], host(2))
    cpus, seen = usable_cpu_set(), []
    real = peers.peer, bench.compare, roofline.limit_of

    def binding(name: str) -> peers.Peer:
        os.sched_setaffinity(0, {min(cpus)})
        return real[0](name)

    def compare(*args: Any, **kwargs: Any) -> bench.Comparison:
        seen.append(("compare", usable_cpu_set()))
        return real[1](*args, **kwargs | {"seconds": 0.0, "settle_s": 0.0})

    def limit_of(*args: Any, **kwargs: Any) -> Any:
        seen.append(("limit", usable_cpu_set()))
        return real[2](*args, **kwargs)

    monkeypatch.setattr(peers, "peer", binding)
    monkeypatch.setattr(bench, "compare", compare)
    monkeypatch.setattr(roofline, "limit_of", limit_of)
    try:
        ran = run("bench", "--suite", f"{file}:one", "--threads", "2", "--db", db, "--json")
    finally:
        os.sched_setaffinity(0, cpus)
    assert ran.status == 0, ran.err
    assert seen == [("limit", cpus), ("compare", {min(cpus)})] * 3


@pytest.mark.parametrize(
    "op", ["softmax", "norm2", "reduce_sum", "matmul", "transpose_batch_matmul_softmax", "fused_multiply_add"]
)
def test_torch_writes_the_output_that_it_is_given(op: str) -> None:
    imported("torch")
    workload = ops.workload(op, SMALL[op])
    inputs, outputs = arrays_for(workload, 0)
    with peer("torch").prepare(workload, inputs, outputs, 1) as prepared:
        prepared.call()
        agree(workload, "torch", outputs, prepared.result())


def test_rows_name_the_instruction_of_the_peak() -> None:
    from autotune.cli.bench import _row
    from autotune.measure.compare.bench import Comparison

    a, b = te.placeholder((64, 64), "uint8", "a"), te.placeholder((64, 64), "int8", "b")
    k = te.reduce_axis(64, "k")
    w = as_workload([a, b, te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")], {})
    needs = w.flops / 1e12
    rates = {"flops_a_second": 1e12, "vpdpbusd_a_second": 1e12, "bytes_a_second": 1e12}
    found = Comparison({"autotune": [2 * needs]}, [needs])
    assert found.instruction(w, rates) == "vpdpbusd"
    assert Comparison({"autotune": [2 * needs]}, []).instruction(w, rates) is None
    row = _row(w, 1, "autotune", 2 * needs, found.share("autotune"), "vpdpbusd")
    assert row["peak_of"] == "vpdpbusd" and row["share_of_peak"] == 0.5 and np.isclose(row["gflops"], 500)
    assert "peak_of" not in _row(w, 1, "autotune", 2 * needs, 0.5, None)
