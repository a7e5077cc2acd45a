"""Convolutions of networks in Winograd's tiles beside the direct ones, both tuned, one thread.

    python benchmarks/winograd.py --budget 40s --out /tmp/winograd.json [LAYER ...]

A layer is a convolution with padding, a bias and a ReLU, channels last, with random weights. Each way is a
model of its own: tuned, compiled, called in turns. Times are CPU time of the thread, medians of rounds. An
error is the largest distance from float64, in root mean squares of the output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import autotune as at
from autotune.models import preparation
from autotune.models.model import Model, Port
from autotune.models.outline import Part
from schedules.graph.fold import fold_constants
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.graph.winograd import Winograd

te = at.te
ROUNDS, ROUND_S = 9, 0.2


@dataclass(frozen=True)
class Layer:
    """Pixels along each axis, channels in and out, taps along each axis."""

    size: int
    ci: int
    co: int
    taps: int = 3


LAYERS = {
    "resnet56": Layer(56, 64, 64),
    "resnet28": Layer(28, 128, 128),
    "resnet14": Layer(14, 256, 256),
    "resnet7": Layer(7, 512, 512),
    "vgg112": Layer(112, 64, 128),
    "vgg56": Layer(56, 256, 256),
    "vgg28": Layer(28, 512, 512),
    "five28": Layer(28, 64, 64, 5),
}
# {way: outputs of a tile along each axis; 0: direct}
WAYS = {"direct": 0, "tile2": 2, "tile4": 4}


def graph_of(layer: Layer, seed: int = 0) -> Graph:
    """The layer as a graph."""
    h, k, pad = layer.size, layer.taps, layer.taps // 2
    rng = np.random.default_rng(seed)
    x = te.placeholder((h, h, layer.ci), name="x")
    w = te.placeholder((k, k, layer.ci, layer.co), name="w")
    b = te.placeholder((layer.co,), name="b")
    padded = te.compute(
        (h + 2 * pad, h + 2 * pad, layer.ci),
        lambda i, j, c: te.select(
            te.all(i >= pad, i < h + pad, j >= pad, j < h + pad), x[i - pad, j - pad, c], 0.0
        ),
        name="padded",
    )
    r, s, c = te.reduce_axis(k, "r"), te.reduce_axis(k, "s"), te.reduce_axis(layer.ci, "c")
    y = te.compute(
        (h, h, layer.co), lambda i, j, o: te.sum(padded[i + r, j + s, c] * w[r, s, c, o], axis=(r, s, c)), "y"
    )
    z = te.compute((h, h, layer.co), lambda i, j, o: te.maximum(y[i, j, o] + b[o], 0.0), name="z")
    dag = at.te.dag([x, w, b, z])
    size = np.sqrt(2 / (k * k * layer.ci))
    values = {
        "w": rng.standard_normal(w.shape).astype("float32") * np.float32(size),
        "b": rng.standard_normal(b.shape).astype("float32"),
    }
    return Graph(replace(dag, constants=("w", "b")), values, ("x",), ("z",))


def in_tiles(graph: Graph, tile: int) -> Graph:
    """A graph with every convolution that can be in tiles so."""
    rewrite = Winograd(tile)
    for place in rewrite.places(graph):
        graph = rewrite.apply(graph, place)
    return fold_constants(graph)


def cut_with(tile: int) -> Callable[[Graph], tuple[Graph, tuple[Part, ...]]]:
    """`preparation.cut` with a rewrite more."""

    def cut(graph: Graph) -> tuple[Graph, tuple[Part, ...]]:
        graph = optimize(graph)
        graph = in_tiles(graph, tile) if tile else graph
        return graph, partition(graph)

    return cut


def once(call: Callable[[], Any]) -> float:
    times: list[float] = []
    end = time.perf_counter() + ROUND_S
    while time.perf_counter() < end or len(times) < 3:
        begin = time.thread_time()
        call()
        times.append(time.thread_time() - begin)
    return statistics.median(times)


def measured(name: str, budget_s: float, ways: list[str], db: str) -> dict[str, Any]:
    layer = LAYERS[name]
    graph = graph_of(layer)
    x = np.random.default_rng(1).standard_normal((layer.size, layer.size, layer.ci)).astype("float32")
    ports = tuple(Port(n, n, graph.dag.tensors[n].shape, "float32") for n in ("x", "z"))
    model = Model(graph, ports[:1], ports[1:], name, name)
    row: dict[str, Any] = {"layer": name, "budget_s": budget_s}
    calls: dict[str, Callable[[], Any]] = {}
    was = preparation.cut
    for way in ways:
        preparation.cut = cut_with(WAYS[way])
        try:
            at.tune_model(model, threads=1, db=db, budget_s=budget_s, progress=None)
            net = at.compile_model(model, threads=1, db=db, fallback=True)
        finally:
            preparation.cut = was
        calls[way] = lambda net=net: net(x)
        rows = net.profile(x, repeat=30).rows
        us = [(round(1e6 * r.in_place_s, 1), round(1e6 * (r.tuned_s or 0), 1)) for r in rows]
        row[way] = {"in_place_and_tuned_us": us}
    wide = np.pad(x.astype("float64"), ((layer.taps // 2,) * 2,) * 2 + ((0, 0),))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (layer.taps, layer.taps), (0, 1))
    want = np.einsum("ijcrs,rsco->ijo", windows, graph.values["w"].astype("float64"), optimize=True)
    want = np.maximum(want + graph.values["b"], 0)
    rms = np.sqrt(np.mean(want**2))
    rounds = [{way: once(call) for way, call in calls.items()} for _ in range(ROUNDS)]
    for way, call in calls.items():
        row[way]["us"] = 1e6 * statistics.median(r[way] for r in rounds)
        row[way]["error"] = float(np.abs(call() - want).max() / rms)
        if way != "direct":
            row[way]["direct_over_this"] = statistics.median(r["direct"] / r[way] for r in rounds)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"default: {', '.join(LAYERS)}")
    parser.add_argument("--budget", default="40s", help="tuning time of each way")
    parser.add_argument("--ways", default=",".join(WAYS), help="of " + ", ".join(WAYS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--db")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.layers or LAYERS:
            budget_s = float(options.budget.removesuffix("s"))
            rows.append(measured(name, budget_s, options.ways.split(","), options.db or f"{folder}/log.db"))
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
