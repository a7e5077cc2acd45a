"""A torch module compiled once for all batch sizes beside a module of each size (ADR 87).

    AUTOTUNE_DB=some.db python benchmarks/open_modules.py [--nets MLP,convolutions] [--json FILE]

Needs torch. Both sides have first picks, made without a limit of time. Calls run in turns in one process, on
one thread: CPU time of a call from Python, the best of ``--rounds``. Results are compared with torch's own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from suite import commit  # noqa: E402
from torch import nn  # noqa: E402

import autotune as at  # noqa: E402

SIZES = (2, 3, 5, 8, 12, 17, 31, 32, 50, 64)
OPTIONS = {"threads": 1, "limit_s": None, "progress": False}
ROUND_S = 2e-3  # of CPU time that calls of one module run in a round


class Net(nn.Module):
    """Layers one after the other."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def mlp() -> tuple[Net, tuple[int, ...]]:
    return Net(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)), (512,)


def convolutions() -> tuple[Net, tuple[int, ...]]:
    first = (nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU())
    then = (nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())
    return Net(*first, *then, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), (3, 32, 32)


NETS: dict[str, Callable[[], tuple[Net, tuple[int, ...]]]] = {"MLP": mlp, "convolutions": convolutions}


def compiled(net: Net, name: str, dynamic: bool) -> Any:
    """The module by torch.compile, with code of its own, so that torch looks at no guards of others."""
    code = Net.forward.__code__.replace(co_name=name)
    own = type(name, (Net,), {"forward": types.FunctionType(code, globals(), name)})(*net.layers)
    own.eval()
    return torch.compile(own, backend="autotune", dynamic=dynamic, options=OPTIONS)


def best(first: Callable[[], Any], second: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The least CPU seconds of a call of two functions, in turns."""
    runs = [1, 1]
    for k, f in enumerate((first, second)):
        seconds(f, 3)
        runs[k] = max(round(ROUND_S / seconds(f, 3)), 1)
    pairs = [(seconds(first, runs[0]), seconds(second, runs[1])) for _ in range(rounds)]
    return min(a for a, _ in pairs), min(b for _, b in pairs)


def seconds(f: Callable[[], Any], runs: int) -> float:
    begun = time.process_time_ns()
    for _ in range(runs):
        f()
    return max(time.process_time_ns() - begun, 1) / runs * 1e-9


def rows(name: str, rounds: int) -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    net, shape = NETS[name]()
    net.eval().requires_grad_(False)
    every = compiled(net, "every", True)
    largest = torch.randn(SIZES[-1], *shape)
    torch._dynamo.mark_dynamic(largest, 0, min=2, max=SIZES[-1])  # else there is room for four times as many
    every(largest)
    graphs = len(at.torch.modules())
    for n in SIZES:
        x = torch.randn(n, *shape)
        alone = compiled(net, f"of_{n}", False)
        want, got = net(x), every(x)
        assert len(at.torch.modules()) == graphs, f"{n} was compiled again"
        apart = float((got - want).abs().max() / want.abs().max())
        assert apart < 1e-4
        assert torch.allclose(alone(x), want, atol=1e-4)
        graphs = len(at.torch.modules())
        open_s, own_s = best(lambda x=x: every(x), lambda x=x, f=alone: f(x), rounds)  # type: ignore[misc]
        yield {
            "net": name, "n": n, "open_s": open_s, "alone_s": own_s, "ratio": open_s / own_s, "apart": apart,
            "commit": commit(),
        }  # fmt: skip


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--nets", default=",".join(NETS), help="names, with commas between")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in options.nets.split(","):
            own = []
            for r in rows(name, options.rounds):
                own.append(r)
                print(name, r["n"], f"{r['ratio']:.3f}, {r['open_s'] * 1e6:.1f} µs", flush=True)
            found += own
            print(f"geometric mean {statistics.geometric_mean(r['ratio'] for r in own):.3f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
