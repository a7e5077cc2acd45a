"""Comparing with peers: rounds and ratios on a made-up clock, peers against references, the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli_runner import run
from log_filler import fill

from autotune.bench import Contender, DisagreementError, agree, arrays_for, compare
from autotune.peers import PEERS, PeerError, peer
from autotune.peers.with_numpy import EXPRESSIONS
from schedules import ops

SMALL: dict[str, dict[str, object]] = {
    "matmul": {"m": 5, "n": 7, "k": 3},
    "batch_matmul": {"b": 2, "m": 5, "n": 7, "k": 3},
    "matmul_bias_relu": {"m": 5, "n": 7, "k": 3},
    "conv2d": {"h": 6, "w": 5, "ci": 2, "co": 3, "k": 3, "padding": 1},
    "conv2d_bias_relu": {"h": 6, "w": 5, "ci": 2, "co": 3, "k": 3, "stride": 2},
    "depthwise_conv2d": {"h": 6, "w": 5, "c": 3, "k": 3},
    "max_pool2d": {"h": 6, "w": 6, "c": 3, "k": 2, "stride": 2},
    "softmax": {"m": 5, "n": 9},
    "layer_norm": {"m": 5, "n": 9},
    "norm2": {"b": 2, "m": 5, "n": 9},
    "reduce_sum": {"m": 5, "n": 9},
    "permute": {"shape": (2, 3, 4), "axes": (2, 0, 1)},
    "add": {"n": 11},
    "fused_multiply_add": {"n": 11},
}


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
    rounds = order[-10:]  # five rounds of two, after the calibration
    assert rounds == ["a", "b", "b", "a", "a", "b", "b", "a", "a", "b"]
    assert gc.isenabled() and False in states


def test_quick_calls_are_timed_many_at_a_time() -> None:
    clock, calls = Clock(), [0]

    def quick() -> float:
        calls[0] += 1
        return 1e-5

    result = compare([Contender("quick", clock.work(quick))], seconds=0, clock=clock)
    assert result.time_s("quick") == pytest.approx(1e-5) and calls[0] > 5 * 1000
    assert result.share("quick") is None


@pytest.mark.parametrize("name", sorted(ops.REGISTRY))
@pytest.mark.parametrize("library", sorted(PEERS))
def test_peers_compute_what_the_operator_means(library: str, name: str) -> None:
    if library != "numpy":
        pytest.importorskip(library)
    workload = ops.workload(name, SMALL[name])
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
    monkeypatch.setitem(PEERS, "absent", ("autotune.peers.absent", "no_such_library"))
    with pytest.raises(PeerError, match="not installed"):
        peer("absent")
    with pytest.raises(PeerError, match="known peers: numpy"):
        peer("nothing")


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


@pytest.mark.parametrize(("factor", "status"), [(0.5, 1), (2.0, 0)])
def test_must_beat_decides_the_status(
    factor: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.bench import Comparison

    db = tmp_path / "t.db"
    fill(db, [("add", {"n": 64}, 1e-4)])
    fixed = Comparison({"autotune": [1.0], "numpy": [factor]}, [0.5])
    monkeypatch.setattr("autotune.bench.compare", lambda *a, **k: fixed)
    ran = run("bench", "add", "--shape", "n=64", "--threads", "1", "--must-beat", "numpy", "--db", db)
    assert ran.status == status and "2.00 times as fast as" in ran.out
