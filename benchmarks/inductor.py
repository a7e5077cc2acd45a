"""Kernels as choices of Inductor, against Inductor alone: ten modules on one thread.

    python benchmarks/inductor.py [--tune 20s] [--freezing] [--rounds 120] [--only NAME] [--out FILE]

Both sides are compiled by torch.compile, with the same settings. They are called in turn; a round is a few
milliseconds of calls by the clock of this thread's CPU time. What is told is the median of rounds of each
side, and of the ratios of neighbouring rounds. Then a second process compiles each module again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch.nn import functional as F

import autotune as at

ROUND_S = 0.005


class Block(nn.Module):
    """A block of ResNet-18."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Attention(nn.Module):
    """Attention with its projections, the products written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(made.transpose(1, 2).reshape(b, n, w))


class Batched(nn.Module):
    """A batched product with a scale, a bias and an activation."""

    def forward(self, a: Any, b: Any, c: Any) -> Any:
        return F.silu(torch.baddbmm(c, a, b, alpha=0.5))


class Product(nn.Module):
    """A product with a residual and an activation."""

    def forward(self, a: Any, b: Any, c: Any) -> Any:
        return F.relu(a @ b + c)


class Gated(nn.Module):
    """The feed-forward part of a layer of Llama."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def bert_layer() -> nn.Module:
    """A layer of BERT, small, of transformers."""
    from transformers import BertConfig
    from transformers.models.bert import modeling_bert

    config = BertConfig(hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    config._attn_implementation = "sdpa"
    layer: Any = modeling_bert.BertLayer  # which has no types
    made: nn.Module = layer(config)
    return made


def modules() -> dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]]:
    """{name: (what makes a module, shapes of its inputs)}."""
    linear = nn.Linear
    return {
        "linear": (lambda: linear(384, 384), ((128, 384),)),
        "linear_gelu": (lambda: nn.Sequential(linear(256, 1024), nn.GELU()), ((128, 256),)),
        "mlp": (lambda: nn.Sequential(linear(784, 256), nn.ReLU(), linear(256, 10)), ((64, 784),)),
        "product_relu": (Product, ((512, 256), (256, 512), (512, 512))),
        "batched_silu": (Batched, ((16, 64, 128), (16, 128, 96), (16, 64, 96))),
        "gated": (lambda: Gated(256, 688), ((64, 256),)),
        "attention": (lambda: Attention(256, 4), ((1, 128, 256),)),
        "conv_relu": (lambda: nn.Sequential(nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()), ((1, 32, 56, 56),)),
        "resnet_block": (lambda: Block(64), ((1, 64, 56, 56),)),
        "bert_layer": (bert_layer, ((1, 128, 256),)),
    }  # fmt: skip


def made(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """(A module, its inputs), always the same."""
    torch.manual_seed(0)
    make, shapes = modules()[name]
    return make().eval(), tuple(torch.randn(shape) for shape in shapes)


def first(x: Any) -> Any:
    """The tensor of a result."""
    return x[0] if isinstance(x, tuple) else x


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Both sides of one module."""
    module, inputs = made(name)
    expected = first(module(*inputs))
    torch._dynamo.reset()
    # torch takes what it compiled of the same code with equal settings. So one side has a setting more.
    alone = torch.compile(module, options={"verbose_progress": False})
    alone(*inputs)
    began = time.monotonic()
    with at.torch.inductor(db=options.db, tune=options.tune) as choices:
        ours = torch.compile(made(name)[0])
        got = first(ours(*inputs))
    took_s = time.monotonic() - began
    worst = float((got - expected).abs().max() / expected.abs().max())
    times = timed([lambda: ours(*inputs), lambda: alone(*inputs)], options.rounds)
    ours_us, alone_us = (1e6 * statistics.median(t) for t in times)
    return {
        "module": name, "ours_us": round(ours_us, 2), "inductor_us": round(alone_us, 2),
        "speedup": round(statistics.median(b / a for a, b in zip(*times, strict=True)), 3),
        "error": worst, "compile_s": round(took_s, 1),
        "taken": sum(c.taken for c in choices.choices), "parts": len(choices.choices),
        "choices": [str(c) for c in choices.choices],
    }  # fmt: skip


def timed(calls: list[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds of CPU time of each call, round by round, in turn."""
    counts = []
    for call in calls:
        call()
        began = time.thread_time()
        for _ in range(3):
            call()
        counts.append(max(1, round(ROUND_S / max((time.thread_time() - began) / 3, 1e-7))))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, count, every in zip(calls, counts, found, strict=True):
            began = time.thread_time()
            for _ in range(count):
                call()
            every.append((time.thread_time() - began) / count)
    return found


def second(name: str, options: argparse.Namespace) -> None:
    """What a second process does: compile with the choices, and say what that took."""
    from torch._dynamo.utils import counters
    from torch._inductor.runtime.benchmarking import benchmarker

    calls: list[object] = []
    times: Any = benchmarker
    times.benchmark = lambda *given, **named: calls.append(given)  # it must not be called
    module, inputs = made(name)
    began = time.monotonic()
    with at.torch.inductor(db=options.db, tune=options.tune) as choices, torch.no_grad():
        got = first(torch.compile(module)(*inputs))
        expected = first(module(*inputs))
    print(json.dumps({
        "second_s": round(time.monotonic() - began, 2), "hits": counters["inductor"]["fxgraph_cache_hit"],
        "misses": counters["inductor"]["fxgraph_cache_miss"], "benchmarks": len(calls),
        "chosen_anew": len(choices.choices),
        "second_error": float((got - expected).abs().max() / expected.abs().max()),
    }))  # fmt: skip


def main() -> None:
    """Compare all modules, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", default="20s")
    parser.add_argument("--db")
    parser.add_argument("--freezing", action="store_true")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--only")
    parser.add_argument("--second")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    inductor_config.max_autotune = inductor_config.freezing = options.freezing
    if options.second:
        second(options.second, options)
        return
    rows = []
    for name in [options.only] if options.only else modules():
        with torch.no_grad():
            row = compare(name, options)
        given = [*sys.argv[1:], "--second", name]
        again = subprocess.run([sys.executable, __file__, *given], capture_output=True, text=True, check=True)
        row |= json.loads(again.stdout.splitlines()[-1])
        print(json.dumps(row), flush=True)
        rows.append(row)
    mean = statistics.geometric_mean(row["speedup"] for row in rows)
    print(f"geometric mean {mean:.3f}, least {min(row['speedup'] for row in rows):.3f}")
    if options.out:
        result = {
            "torch": torch.__version__,
            "freezing": options.freezing,
            "mean": round(mean, 3),
            "rows": rows,
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
