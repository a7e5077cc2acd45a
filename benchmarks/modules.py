"""Public torch modules beside torch and Inductor: share that is at least as fast, not tuned and tuned.

    git clone https://github.com/ScalingIntelligence/KernelBench modules
    python benchmarks/modules.py modules/KernelBench --pick 60 --seed 0 --budget 15 \\
        --out benchmarks/results/modules.json
    python benchmarks/modules.py modules/KernelBench --out benchmarks/results/modules.json --markdown

A module is a file as KernelBench has them: a class ``Model``, ``get_init_inputs()``, ``get_inputs()``, and
sizes as names of the file. It is written for a large GPU, so its sizes are halved, the largest first, until a
call has at most ``FLOPS`` operations and ``BYTES`` of inputs, outputs and steps between. Channels, kernels
and strides stay as long as others can be halved. A file is run: name a folder that you trust.

Each module has a process of its own, with one thread. There it is exported, compiled without tuning
(`compile_model(fallback=True)` of an empty log), tuned for ``--budget`` seconds, and compiled again. The
results are compared with torch's. Then torch, Inductor (`torch.compile`) and both kernels run in turns. A
time is the median of the rounds' medians, in CPU time of the thread. A ratio above 1 says that this product
is faster. Rows that the file has are kept, so that a run can be resumed.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import operator
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from suite import commit  # noqa: E402

import autotune as at  # noqa: E402

LEVELS = ("level1", "level2")
# The largest module: operations, and bytes of all tensors of a call.
FLOPS, BYTES = 1e9, 48 * 2**20
ROUNDS, ROUND_S, LEAST = 5, 0.3, 3
LIMIT_S = 900.0
# Names of sizes that say what a module is, not how large its data are.
STRUCTURE = ("channel", "kernel", "stride", "padding", "dilation", "group", "head", "pool", "factor", "eps")

Call = Callable[[], Any]


class Folded(ast.NodeTransformer):
    """Products and powers of integers as numbers: ``1024 * 2`` as 2048."""

    OPERATIONS: ClassVar[dict[type, Callable[[int, int], int]]] = {
        ast.Mult: operator.mul,
        ast.Pow: operator.pow,
        ast.Add: operator.add,
        ast.FloorDiv: operator.floordiv,
    }

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if type(node.op) in self.OPERATIONS and _integer(node.left) and _integer(node.right):
            return ast.Constant(self.OPERATIONS[type(node.op)](node.left.value, node.right.value))
        return node


def _integer(e: ast.expr) -> bool:
    return isinstance(e, ast.Constant) and type(e.value) is int


def sizes_of(source: str) -> dict[str, int]:
    """{name: value} of the integers that ``source`` gives names to, those of tuples as ``name.0``."""
    found: dict[str, int] = {}
    for node in ast.parse(source).body:
        for name, value in _named(node):
            if _integer(value):
                found[name] = value.value
    return found


def _named(node: ast.stmt) -> list[tuple[str, ast.expr]]:
    """The names that a statement gives, each with its expression; of a tuple those of its parts."""
    if not isinstance(node, ast.Assign):
        return []
    named: list[tuple[str, ast.expr]] = []
    for target in node.targets:
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Tuple):
            named += [(f"{target.id}.{i}", e) for i, e in enumerate(node.value.elts)]
        elif isinstance(target, ast.Name):
            named.append((target.id, node.value))
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            named += [
                (t.id, e)
                for t, e in zip(target.elts, node.value.elts, strict=True)
                if isinstance(t, ast.Name)
            ]
    return named


def with_sizes(source: str, sizes: dict[str, int]) -> str:
    """``source`` with other integers for the names of ``sizes``."""
    tree = ast.parse(source)
    for node in tree.body:
        for name, value in _named(node):
            if name in sizes and isinstance(value, ast.Constant):
                value.value = sizes[name]
    return ast.unparse(tree)


def made(source: str) -> tuple[Any, list[Any]]:
    """The module of a file, ready for inference, and its inputs."""
    import torch

    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "module"}
    exec(compile(source, "module", "exec"), names)
    init = names["get_init_inputs"]()
    arguments, named = (init[0], init[1]) if _two(init) else (init, {})
    module = names["Model"](*arguments, **named).eval()
    return module, list(names["get_inputs"]())


def _two(init: Any) -> bool:
    return len(init) == 2 and isinstance(init[0], list) and isinstance(init[1], dict)


def work(source: str) -> tuple[float, float]:
    """Operations and bytes of a call, found without doing it."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    moved = 0.0

    class Bytes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal moved
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else [out]:
                if isinstance(x, torch.Tensor):
                    moved += x.numel() * x.element_size()
            return out

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        module, inputs = made(source)
        held = sum(
            x.numel() * x.element_size() for x in [*inputs, *module.parameters()] if torch.is_tensor(x)
        )
        with FlopCounterMode(display=False) as counter, Bytes():
            module(*inputs)
    return float(counter.get_total_flops()), moved + held


def shrunk(source: str) -> str:
    """``source`` with sizes for a CPU. Raises RuntimeError where no halving makes it small enough."""
    source = ast.unparse(Folded().visit(ast.parse(source)))
    sizes = sizes_of(source)
    fixed: set[str] = set()
    while True:
        flops, moved = work(with_sizes(source, sizes))
        if flops <= FLOPS and moved <= BYTES:
            return with_sizes(source, sizes)
        free = {n: v for n, v in sizes.items() if n not in fixed and v >= 2}
        data = {n: v for n, v in free.items() if not any(s in n.lower() for s in STRUCTURE) and v > 4}
        if not (data or free):
            raise RuntimeError(f"no sizes to halve at {flops:.2g} operations and {moved:.2g} bytes")
        largest = max((data or free).values())
        for names in _together(data or free, largest):
            halved = {**sizes, **dict.fromkeys(names, largest // 2)}
            try:
                less = work(with_sizes(source, halved))
            except Exception:  # sizes that depend on each other
                continue
            if less != (flops, moved):
                sizes = halved
                break
        else:
            fixed |= {n for n, v in free.items() if v == largest}


def _together(sizes: dict[str, int], value: int) -> list[list[str]]:
    """The names of sizes of a value, each alone, then all: sizes may have to be the same."""
    names = [n for n, v in sizes.items() if v == value]
    return [[n] for n in names] + [names] * (len(names) > 1)


def once(call: Call) -> float:
    """The median CPU seconds of calls for `ROUND_S`."""
    times: list[float] = []
    end = time.perf_counter() + ROUND_S
    while time.perf_counter() < end or len(times) < LEAST:
        begin = time.thread_time()
        call()
        times.append(time.thread_time() - begin)
    return statistics.median(times)


def in_turns(calls: dict[str, Call]) -> dict[str, float]:
    """{name: seconds}, of rounds in which each has its turn."""
    for call in calls.values():
        call()
    rounds = [{name: once(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    return {name: statistics.median(r[name] for r in rounds) for name in calls}


def one(path: str, budget: float, inductor: bool) -> dict[str, Any]:
    """In this process: the row of the module in a file."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    source = shrunk(Path(path).read_text())
    module, inputs = made(source)
    row: dict[str, Any] = {
        "sizes": {n: v for n, v in sizes_of(source).items() if v > 1},
        "shapes": [list(x.shape) for x in inputs if torch.is_tensor(x)],
    }
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        want = module(*inputs)
        calls: dict[str, Call] = {"eager": lambda: module(*inputs)}
        if inductor:
            compiled = torch.compile(module)
            calls["inductor"] = lambda: compiled(*inputs)
        begin = time.perf_counter()
        model = at.import_torch(torch.export.export(module, tuple(inputs)))
        row["import_s"] = time.perf_counter() - begin
        begin = time.perf_counter()
        plain = at.compile_model(model, threads=1, fallback=True, db=f"{folder}/none.db")
        row["untuned_s"] = time.perf_counter() - begin
        calls["untuned"] = lambda: plain(*inputs)
        if budget:
            at.tune_model(model, threads=1, budget_s=budget, db=f"{folder}/tuned.db", progress=None)
            tuned = at.compile_model(model, threads=1, fallback=True, db=f"{folder}/tuned.db")
            calls["tuned"] = lambda: tuned(*inputs)
        for name, call in calls.items():
            torch.testing.assert_close(call(), want, rtol=2e-3, atol=2e-3, msg=lambda m, n=name: f"{n}: {m}")
        row["times_s"] = in_turns(calls)
        profile = (tuned if budget else plain).profile(*inputs, repeat=3)
        row["kernels"] = [
            {"what": r.what[:80], "share": round(r.share, 3), "chosen_by": r.chosen_by}
            for r in sorted(profile.rows, key=lambda r: -r.share)[:4]
        ]
    return row


def picked(folder: Path, number: int | None, seed: int) -> list[Path]:
    """``number`` files of the levels, by a seed, in a fixed order."""
    files = sorted(p for level in LEVELS for p in (folder / level).glob("*.py"))
    if not files:
        raise SystemExit(f"{folder} has no {' or '.join(LEVELS)} with modules; name the folder that has them")
    return files if number is None else sorted(random.Random(seed).sample(files, min(number, len(files))))


def ratios(row: dict[str, Any], kernel: str) -> dict[str, float]:
    """{peer: how many times faster the kernel is}, with "better" for the better of all peers."""
    times = row.get("times_s", {})
    peers = {p: times[p] / times[kernel] for p in ("eager", "inductor") if p in times and kernel in times}
    return peers | ({"better": min(peers.values())} if peers else {})


def markdown(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| kernels | peer | modules | at least level | geometric mean | worst |",
        "|---|---|---|---|---|---|",
    ]
    for kernel in ("untuned", "tuned"):
        for peer in ("eager", "inductor", "better"):
            found = {n: r[peer] for n, row in rows.items() if peer in (r := ratios(row, kernel))}
            if found:
                mean = math.exp(statistics.fmean(map(math.log, found.values())))
                level = sum(v >= 1 for v in found.values()) / len(found)
                cells = (
                    kernel,
                    peer,
                    len(found),
                    f"{level:.0%}",
                    f"{mean:.2f}",
                    f"{min(found.values()):.2f}",
                )
                lines.append("| " + " | ".join(map(str, cells)) + " |")
    last = "tuned" if any("tuned" in r.get("times_s", {}) for r in rows.values()) else "untuned"
    known = {n: r for n, row in rows.items() if (r := ratios(row, last))}
    lines += ["", f"| the worst, {last} | eager | inductor | ms |", "|---|---|---|---|"]
    for name in sorted(known, key=lambda n: known[n]["better"])[:15]:
        r, ms = known[name], rows[name]["times_s"][last] * 1e3
        lines.append(f"| {name} | {r['eager']:.2f} | {r.get('inductor', math.nan):.2f} | {ms:.3g} |")
    failed = [f"- {n}: {row['error']}" for n, row in rows.items() if "error" in row]
    return "\n".join([*lines, "", *failed])


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path, help="the folder that has level1 and level2")
    p.add_argument("--pick", type=int, help="how many modules (default: all)")
    p.add_argument("--seed", type=int, default=0, help="which ones")
    p.add_argument("--only", help="modules whose path has this text")
    p.add_argument("--budget", type=float, default=15.0, help="seconds of tuning a module; 0: none")
    p.add_argument("--no-inductor", action="store_true", help="leave Inductor out (it needs a C++ compiler)")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--markdown", action="store_true", help="print the table of --out")
    p.add_argument("--one", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.one:
        print(json.dumps(one(args.one, args.budget, not args.no_inductor)))
        return
    known = json.loads(args.out.read_text()) if args.out.exists() else {}
    rows = known.get("rows", {})
    if args.markdown:
        print(markdown(rows))
        return
    for path in picked(args.folder, args.pick, args.seed):
        name = f"{path.parent.name}/{path.stem}"
        if name in rows or (args.only and args.only not in name):
            continue
        same = ["--budget", str(args.budget), "--out", str(args.out)] + ["--no-inductor"] * args.no_inductor
        begin = time.perf_counter()
        try:
            r = subprocess.run(
                [sys.executable, __file__, str(args.folder), "--one", str(path), *same],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            out, err = r.stdout.strip().splitlines(), r.stderr.strip().splitlines()
            row = {"error": (err or ["?"])[-1][:300]} if r.returncode else json.loads(out[-1])
        except subprocess.TimeoutExpired:
            row = {"error": f"not done in {LIMIT_S:.0f} s"}
        rows[name] = row
        found = {k: {p: round(v, 2) for p, v in ratios(row, k).items()} for k in ("untuned", "tuned")}
        print(name, row.get("error", found), f"{time.perf_counter() - begin:.0f} s", flush=True)
        document = {"commit": commit(), "budget_s": args.budget, "rows": rows}
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
