"""Whether a tuned model is ever slower than the same one untuned, on a quiet machine and on a busy one.

    python benchmarks/never_slower.py --each 1 3 10 --busy 0 4 12 --repeats 3 [NAME ...]

Each network is compiled untuned first, with no log and `fallback=True`, before other work begins. Then so
many processes that only count are started (``--busy``). Beside them it is tuned from an empty log, for so
many seconds a task (``--each``), and compiled, with `fallback=True`, as a task may have had no time. They
end, and both models are called in turns: a time is the median of the medians of rounds, of CPU time. A
row has the ratio tuned ÷ untuned, which should be at most 1.05, for how many tasks there was no time, and how
long tuning took beside its budget. Rows that the file has are kept, so that a run can be resumed.
``--markdown`` prints its table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from models import in_turns  # noqa: E402
from networks import NETWORKS, conv_bn, network  # noqa: E402
from suite import commit  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import autotune as at  # noqa: E402

NAMES = ("module", "squeezenet", "resnet18", "bert")
# Counts until its parent is gone.
BUSY = "import os\np = os.getppid()\nwhile os.getppid() == p:\n    for _ in range(1000000): pass\n"


class Module(nn.Module):
    """About twelve tasks of many kinds, small ones, as a user's first module has."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, 3, 2, act=nn.ReLU())
        self.depthwise = conv_bn(16, 16, 3, groups=16, act=nn.ReLU6())
        self.wide, self.down = nn.Conv2d(16, 64, 1), nn.Conv2d(64, 32, 3, 2, 1)
        self.norm = nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.wide(self.depthwise(self.stem(x))))
        y = F.max_pool2d(F.relu(self.down(y)), 2).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(y)).chunk(3, 2)
        y = y + self.out(torch.softmax(q @ k.transpose(1, 2) / 32**0.5, -1) @ v)
        return torch.softmax(self.head(y.mean(1)), -1)


def of(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network in evaluation mode, and example inputs."""
    if name in NETWORKS:
        return network(name)[:2]
    torch.manual_seed(0)
    return Module().eval(), (torch.randn(1, 3, 64, 64),)


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Beside so many processes that count."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for p in others:
            p.kill()
            p.wait()


def measured(name: str, folder: str, each_s: float, others: int, repeat: int) -> dict[str, Any]:
    """In this process: a row."""
    module, inputs = of(name)
    model = at.import_torch(torch.export.export(module, inputs))
    arrays = [x.numpy() for x in inputs]
    db = os.path.join(folder, f"{name}-{each_s:g}-{others}-{repeat}.db")
    warnings.simplefilter("ignore")  # that kernels are not tuned is the point
    untuned = at.compile_model(model, threads=1, db=os.path.join(folder, "none.db"), fallback=True)
    with busy(others):
        time.sleep(0.5 if others else 0.0)
        tasks = len(untuned.program.outline.tasks)
        budget_s = each_s * tasks
        result = at.tune_model(model, threads=1, db=db, budget_s=budget_s, progress=None)
        net = at.compile_model(model, threads=1, db=db, fallback=True)
    got, want = net(*arrays), untuned(*arrays)
    assert np.allclose(got, want, rtol=1e-3, atol=1e-4), "the two models differ"
    seconds = in_turns({"tuned": lambda: net(*arrays), "untuned": lambda: untuned(*arrays)}, 1)
    return {
        "model": name,
        "each_s": each_s,
        "busy": others,
        "repeat": repeat,
        "tasks": len(result.tasks),
        "late": len(result.late),
        "untuned": sum(k.chosen_by != "log" for k in net.program.kernels),
        "trials": result.measured,
        "seconds": seconds,
        "budget_s": budget_s,
        "tune_s": result.elapsed_s,
        "said": str(result),
        "arch": net.target.arch,
        "commit": commit(),
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    out = [
        "| model | s a task | busy | untuned | tuned | tuned ÷ untuned | no time for | time ÷ budget |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        s = r["seconds"]
        out.append(
            f"| {r['model']} | {r['each_s']:g} | {r['busy']} | {s['untuned'] * 1e3:.3f} ms | "
            f"{s['tuned'] * 1e3:.3f} ms | {s['tuned'] / s['untuned']:.2f} | {r['late']} of {r['tasks']} | "
            f"{r['tune_s'] / r['budget_s']:.2f} |"
        )
    worst = max((r["seconds"]["tuned"] / r["seconds"]["untuned"] for r in rows), default=0.0)
    return "\n".join([*out, f"\nThe largest ratio of {len(rows)} is {worst:.2f}."])


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(NAMES)}")
    parser.add_argument("--each", type=float, nargs="+", default=[1.0, 3.0, 10.0], help="seconds a task")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 4, 12], help="processes beside it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/never-slower.json")
    parser.add_argument("--markdown", action="store_true", help="print the table of the file and stop")
    parser.add_argument(
        "--one", nargs=5, metavar=("NAME", "FOLDER", "EACH", "BUSY", "REPEAT"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.one:
        name, folder, each, others, repeat = options.one
        print(json.dumps(measured(name, folder, float(each), int(others), int(repeat))))
        return
    rows: list[dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else []
    cells = [
        (name, each, others, repeat)
        for name in options.names or NAMES
        for each in options.each
        for others in options.busy
        for repeat in range(options.repeats)
    ]
    if not options.markdown:
        have = {(r["model"], r["each_s"], r["busy"], r["repeat"]) for r in rows}
        with tempfile.TemporaryDirectory() as folder:
            for cell in cells:
                if cell in have:
                    continue
                name, each, others, repeat = map(str, cell)
                words = [sys.executable, __file__, "--one", name, folder, each, others, repeat]
                own = os.environ | {"AUTOTUNE_CACHE_DIR": os.path.join(folder, "cache")}
                done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=own)
                if done.returncode:
                    print(f"{cell}: failed", file=sys.stderr)
                    continue
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
                s = rows[-1]["seconds"]
                print(f"{cell}: {s['tuned'] / s['untuned']:.2f}", file=sys.stderr, flush=True)
    print(markdown(rows))


if __name__ == "__main__":
    main()
