"""Transposed convolutions beside torch: the modules of KernelBench that have one, by shape, shrunk for a CPU.

    python benchmarks/transposed.py --out benchmarks/results/transposed.json            # first picks
    python benchmarks/transposed.py --tune 10 --out benchmarks/results/transposed.json  # 10 s a task

Each module is compiled with first picks alone from an empty log, and with ``--tune`` after its tasks were
tuned for so long. Its results are compared with torch's. Then it and torch run in turns on one thread, in
CPU time. A row's ratio is the median of the rounds' ratios. Rows that the file has are kept, so that a run
can be resumed. ``--markdown`` prints its table.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import autotune as at  # noqa: E402

ROUNDS = 7
LEAST_S = 0.02  # of CPU time that a round times a module

Tensor = torch.Tensor
After = Callable[[Tensor], Tensor]


def _bias(y: Tensor) -> Tensor:
    return torch.linspace(-1, 1, y.shape[1]).view(-1, *(1,) * (y.dim() - 2))


def _norm(y: Tensor) -> Tensor:
    """A batch norm that was trained."""
    one = torch.linspace(0.5, 1.5, y.shape[1])
    return F.batch_norm(y, one - 1, one, one, one)


# (where it is in KernelBench, shape of the input, arguments of the layer, what comes after it)
CASES: tuple[tuple[str, tuple[int, ...], dict[str, Any], After | None], ...] = (
    ("1/57", (1, 64, 96, 96), {"o": 64, "k": 3}, None),
    ("1/58", (1, 32, 16, 32, 32), {"o": 16, "k": (3, 5, 7)}, None),
    ("1/61", (1, 48, 16, 24, 24), {"o": 48, "k": 3}, None),
    ("1/64", (2, 128, 1024), {"o": 128, "k": 3}, None),
    ("1/65", (1, 64, 64, 64), {"o": 64, "k": (3, 7)}, None),
    ("1/68", (1, 32, 16, 16, 16), {"o": 64, "k": (3, 5, 5)}, None),
    ("1/69", (1, 64, 32, 64), {"o": 128, "k": (3, 5)}, None),
    ("1/70", (1, 48, 24, 24, 24), {"o": 24, "k": 3}, None),
    ("1/71", (1, 32, 96, 192), {"o": 32, "k": 3}, None),
    ("1/72", (1, 32, 12, 24, 24),
     {"o": 32, "k": (3, 5, 7), "s": 2, "p": (1, 2, 3), "more": 1, "groups": 4}, None),
    ("1/73", (1, 32, 12, 24, 48), {"o": 32, "k": 3, "s": 2, "p": 1, "groups": 4}, None),
    ("1/74", (2, 32, 4096), {"o": 64, "k": 5, "d": 3}, None),
    ("1/75", (1, 32, 32, 64),
     {"o": 64, "k": (3, 5), "s": (2, 3), "p": (1, 2), "d": (2, 1), "groups": 4}, None),
    ("1/77", (1, 32, 8, 16, 16), {"o": 64, "k": 3, "s": 2, "p": 1, "d": 2}, None),
    ("1/78", (1, 32, 48, 96), {"o": 32, "k": (3, 7), "p": (1, 3)}, None),
    ("1/79", (2, 32, 4096), {"o": 64, "k": 3, "s": 2, "p": 1, "d": 2}, None),
    ("1/81", (1, 32, 24, 48), {"o": 64, "k": 3, "s": 5, "p": 1, "d": 2}, None),
    ("2/2", (1, 64, 32, 32), {"o": 64, "k": 3, "s": 2, "p": 1, "more": 1},
     lambda y: ((y + _bias(y)).clamp(0, 1) * 2).clamp(0, 1) / 2),
    ("2/3", (1, 32, 6, 12, 32), {"o": 64, "k": 3, "s": 2, "p": 1, "more": 1},
     lambda y: F.gelu(F.avg_pool3d(F.layer_norm(y + 1, (64,)), 2))),
    ("2/5", (1, 64, 32, 32),
     {"o": 64, "k": 4, "s": 2, "p": 1, "more": 1}, lambda y: torch.tanh(y - _bias(y))),
    ("2/10", (2, 64, 32, 32), {"o": 64, "k": 3, "p": 1},
     lambda y: torch.tanh(F.hardtanh(F.max_pool2d(y, 2)).mean((2, 3), keepdim=True))),
    ("2/11", (4, 64, 16, 16), {"o": 128, "k": 5, "p": 1},
     lambda y: F.group_norm(F.max_pool2d(torch.tanh(_norm(y)), 2), 8)),
    ("2/13", (1, 16, 8, 32, 32), {"o": 64, "k": 3, "p": 1},
     lambda y: torch.tanh(torch.softmax(y.mean(2, keepdim=True) + _bias(y), 1)) * 2),
    ("2/15", (2, 16, 8, 16, 16), {"o": 32, "k": 3, "s": 2, "p": 1},
     lambda y: (lambda z: z - z.mean((2, 3, 4), keepdim=True))(_norm(y))),
    ("2/16", (1, 64, 32, 32),
     {"o": 64, "k": 3, "s": 2, "p": 1, "more": 1}, lambda y: F.hardtanh(F.mish(y) + 0.5) * 2),
    ("2/19", (2, 64, 32, 32), {"o": 64, "k": 3}, lambda y: F.group_norm(F.gelu(y), 8)),
    ("2/20", (1, 32, 8, 16, 16), {"o": 64, "k": 3, "s": 2, "p": 1, "more": 1},
     lambda y: (y + _bias(y) + y) * y + y),
    ("2/26", (1, 32, 8, 16, 16), {"o": 64, "k": 3, "s": 2, "p": 1, "more": 1},
     lambda y: (lambda z: z * F.hardswish(z))(y + _bias(y))),
    ("2/34", (1, 32, 6, 12, 32), {"o": 64, "k": 4, "s": 2, "p": 1}, lambda y: F.gelu(F.layer_norm(y, (64,)))),
    ("2/36", (1, 64, 32, 32), {"o": 128, "k": 3, "s": 2, "p": 1, "more": 1},
     lambda y: F.gelu(y.min(1, keepdim=True)[0].sum(2, keepdim=True)) + 0.5),
    ("2/38", (1, 32, 8, 16, 16), {"o": 64, "k": 3, "s": 2, "p": 1, "more": 1},
     lambda y: torch.softmax(y.clamp(0, 1).flatten(2), 2).view(y.shape) * _bias(y)),
    ("2/42", (1, 64, 48, 48), {"o": 128, "k": 3},
     lambda y: torch.logsumexp(y.mean((2, 3), keepdim=True) + _bias(y), 1, keepdim=True).sum((2, 3)) * 10),
    ("2/44", (1, 64, 32, 32), {"o": 128, "k": 3, "s": 2, "p": 1, "more": 1},
     lambda y: (y * 0.5).mean((2, 3), keepdim=True).mean((2, 3), keepdim=True)),
    ("2/49", (1, 32, 8, 16, 16), {"o": 64, "k": 3, "s": 2, "p": 1, "more": 1},
     lambda y: torch.sigmoid(torch.softmax(y, 1))),
    ("2/50", (4, 3, 8, 16, 16), {"o": 16, "k": 3, "s": 2, "p": 1},
     lambda y: F.avg_pool3d(y * 0.5, 2) + _bias(y)),
    ("2/58", (4, 3, 8, 16, 16), {"o": 16, "k": 3, "s": 2, "p": 1},
     lambda y: (lambda z: (z * torch.sigmoid(z + 3) / 6 - 0.1).clamp(-1, 1))(
         torch.logsumexp(y, 1, keepdim=True))),
    ("2/60", (4, 3, 8, 16, 16), {"o": 16, "k": 3, "s": 2, "p": 1},
     lambda y: F.hardswish(F.group_norm(torch.sigmoid(y) * y, 4))),
    ("2/61", (1, 64, 8, 12, 12), {"o": 128, "k": 3, "bias": False}, lambda y: F.group_norm(F.relu(y), 8)),
    ("2/72", (2, 3, 16, 16, 16), {"o": 16, "k": 3, "s": 2, "p": 1},
     lambda y: F.avg_pool3d(F.avg_pool3d(_norm(y), 2), 2)),
    ("2/74", (2, 16, 8, 16, 16), {"o": 32, "k": 3, "s": 2, "p": 1, "more": 1},
     lambda y: F.max_pool3d(F.leaky_relu(F.leaky_relu(y, 0.2) * _bias(y), 0.2), 2)),
    ("2/77", (1, 64, 8, 16, 16), {"o": 128, "k": 5},
     lambda y: F.adaptive_avg_pool3d(_norm(y * 2), 1)),
    ("2/78", (1, 32, 8, 12, 12), {"o": 64, "k": 5, "s": 2, "p": 2},
     lambda y: F.max_pool3d(F.max_pool3d(y, 2), 3).sum(1, keepdim=True)),
    ("2/89", (4, 3, 8, 16, 16), {"o": 16, "k": 3, "s": 2, "p": 1, "more": 1},
     lambda y: (lambda z: (torch.sigmoid(z) * z).max(1)[0])(torch.softmax(F.max_pool3d(y, 2), 1) - _bias(y))),
    ("2/91", (1, 64, 24, 24), {"o": 128, "k": 4, "s": 2, "p": 1, "more": 1},
     lambda y: torch.sigmoid((torch.softmax(y, 1) + _bias(y)) * 2)),
    ("2/93", (1, 64, 24, 24), {"o": 128, "k": 4, "s": 2},
     lambda y: F.gelu(torch.min(y + 0.5, torch.tensor(0.0))) * 2),
    ("2/96", (4, 3, 8, 16, 16), {"o": 16, "k": 3, "s": 2, "p": 1},
     lambda y: F.adaptive_avg_pool3d(F.max_pool3d(y * 0.5, 2), 1).clamp(0, 1)),
    ("2/100", (1, 64, 6, 12, 12), {"o": 128, "k": 3, "s": 2, "p": 1}, lambda y: y.clamp(min=-1) / 2),
    ("3/45", (1, 128, 16, 64), {"o": 64, "k": 2, "s": 2}, None),
)  # fmt: skip


class Layer(nn.Module):
    """A transposed convolution and what comes after it."""

    def __init__(self, shape: tuple[int, ...], layer: dict[str, Any], after: After | None) -> None:
        super().__init__()
        kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        self.layer = kinds[len(shape) - 3](
            shape[1], layer["o"], layer["k"], layer.get("s", 1), layer.get("p", 0), layer.get("more", 0),
            layer.get("groups", 1), layer.get("bias", after is not None), layer.get("d", 1),
        )  # fmt: skip
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y if self.after is None else self.after(y)


def cpu_time(run: Callable[[], Any], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - start) / calls


def beside_torch(theirs: Callable[[], Any], ours: Callable[[], Any]) -> dict[str, float]:
    """Medians of rounds in turns."""
    pairs = []
    runs = (theirs, ours)
    calls = [max(1, math.ceil(LEAST_S / max(cpu_time(f, 2), 1e-6))) for f in runs]
    for _ in range(ROUNDS):
        pairs.append(tuple(cpu_time(f, n) for f, n in zip(runs, calls, strict=True)))
    return {
        "torch_ms": statistics.median(a for a, _ in pairs) * 1e3,
        "ms": statistics.median(b for _, b in pairs) * 1e3,
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def row(case: tuple[str, tuple[int, ...], dict[str, Any], After | None], tune_s: float) -> dict[str, Any]:
    """A module untuned, and tuned if so asked, beside torch."""
    name, shape, layer, after = case
    torch.manual_seed(0)
    module, x = Layer(shape, layer, after).eval(), torch.rand(shape)
    model = at.import_torch(torch.export.export(module, (x,)))
    made: dict[str, Any] = {"name": name}
    with tempfile.TemporaryDirectory() as tmp, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        db = f"{tmp}/log.db"
        want = module(x)
        for key in ("untuned", "tuned")[: 2 if tune_s else 1]:
            if key == "tuned":
                tasks = made["untuned"]["tasks"]
                at.tune_model(model, threads=1, budget_s=tune_s * tasks, db=db, progress=None)
            net = at.compile_model(model, threads=1, fallback=True, db=db)
            torch.testing.assert_close(net(x), want, rtol=1e-3, atol=1e-4)
            made[key] = beside_torch(lambda: module(x), lambda net=net: net(x))  # type: ignore[misc]
            made[key]["tasks"] = len(net.profile(x, repeat=1).rows)
    return made


def markdown(rows: list[dict[str, Any]]) -> str:
    keys = [k for k in ("untuned", "tuned") if any(k in r for r in rows)]
    lines = ["| KernelBench | kernels | torch | " + " | ".join(f"{k} | torch ÷ {k}" for k in keys) + " |"]
    lines.append("|---" * (3 + 2 * len(keys)) + "|")
    for r in rows:
        own = [f"{r[k]['ms']:.2f} ms | {r[k]['ratio']:.2f}" if k in r else "| " for k in keys]
        first = r[keys[0]]
        lines.append(f"| {r['name']} | {first['tasks']} | {first['torch_ms']:.2f} ms | {' | '.join(own)} |")
    for k in keys:
        ratios = [r[k]["ratio"] for r in rows if k in r]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        lines.append(f"\n{k}: geometric mean {mean:.2f} of {len(ratios)}, least {min(ratios):.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tune", type=float, default=0.0, help="seconds a kernel (default: first picks alone)"
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of modules, as 2/38")
    parser.add_argument("--out", type=Path, help="file of rows, which are kept")
    parser.add_argument("--markdown", action="store_true", help="print the file's table")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(args.out.read_text()) if args.out and args.out.exists() else []
    if args.markdown:
        print(markdown(rows))
        return
    key = "tuned" if args.tune else "untuned"
    for case in CASES:
        if (args.only and case[0] not in args.only) or any(r["name"] == case[0] and key in r for r in rows):
            continue
        made = row(case, args.tune)
        rows = [*(r for r in rows if r["name"] != case[0]), made]
        print(json.dumps(made), flush=True)
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(markdown(rows))


if __name__ == "__main__":
    main()
