"""Gradients that `te.gradient` derives, tuned, beside torch's own backward operators.

    python benchmarks/gradients.py --budget 12 --out gradients.json
    python benchmarks/gradients.py --only conv --budget 12
    python benchmarks/gradients.py --markdown gradients.json

Each kind is derived, tuned for ``--budget`` seconds on one thread in a log of its own, compared with
torch's result and timed in turns with torch: rounds of CPU time, the median of the rounds' ratios. torch's
backward gets what its forward pass saves. Ours gets it where a row says kept, and for norms, attention, the
largest of a pool and cross entropy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from suite import commit  # noqa: E402

import autotune as at  # noqa: E402
from schedules import ops  # noqa: E402

te = at.te
aten = torch.ops.aten
ROUNDS = 7
# CPU seconds of a round of each contender.
ROUND_S = 0.1


@dataclass
class Case:
    """A gradient: stages of ours, in order, whose results later ones may read by name, and torch's."""

    name: str
    stages: list[Any]
    arrays: dict[str, np.ndarray]
    torch: Callable[[], torch.Tensor]
    back: Callable[[torch.Tensor], np.ndarray] = lambda r: r.detach().numpy()
    saved: tuple[str, ...] = field(default=())


def arrays_of(**tensors: torch.Tensor) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(t.numpy()) for name, t in tensors.items()}


def operator(name: str, **params: Any) -> list[Any]:
    op = ops.REGISTRY[name]
    return list(op.build(op.resolve(params), op.types("float32"), None))


def seeded(y: Any) -> Any:
    return te.placeholder(y.shape, "float32", "dy")


def matmul(m: int, n: int, k: int) -> Iterator[Case]:
    x, w, y = operator("matmul", m=m, n=n, k=k)
    dx, dw = te.gradient(y, [x, w], seeded(y))
    A, B, G = torch.randn(m, k), torch.randn(k, n), torch.randn(m, n)
    known = {x.name: A.numpy(), w.name: B.numpy(), "dy": G.numpy()}
    yield Case(f"matmul {m}x{n}x{k} data", [dx], known, lambda: G @ B.T)
    yield Case(f"matmul {m}x{n}x{k} weight", [dw], known, lambda: A.T @ G)


def conv(b: int, size: int, ci: int, co: int, k: int, stride: int) -> Iterator[Case]:
    p = k // 2
    x, w, y = operator("conv2d", b=b, h=size, w=size, ci=ci, co=co, kh=k, kw=k, stride=stride, padding=p)
    dx, dw = te.gradient(y, [x, w], seeded(y))
    last = torch.channels_last
    X = torch.randn(b, ci, size, size).to(memory_format=last)
    W = torch.randn(co, ci, k, k).to(memory_format=last)
    G = torch.randn(b, co, *y.shape[1:3]).to(memory_format=last)

    def nhwc(t: torch.Tensor) -> np.ndarray:
        return np.ascontiguousarray(t.permute(0, 2, 3, 1).numpy())

    def hwio(t: torch.Tensor) -> np.ndarray:
        return np.ascontiguousarray(t.permute(2, 3, 1, 0).numpy())

    def backward(n: int) -> torch.Tensor:
        mask = [n == 0, n == 1, False]
        both = [stride, stride], [p, p], [1, 1], False, [0, 0], 1
        return aten.convolution_backward(G, X, W, None, *both, mask)[n]

    known = {"x": nhwc(X), "w": hwio(W), "dy": nhwc(G)}
    name = f"conv {k}x{k}/{stride} {b}x{size}x{size} {ci}->{co}"
    yield Case(f"{name} data", [dx], known, lambda: backward(0), nhwc)
    if stride > 1:  # each phase is a kernel
        phases = dx.op.reads()
        (rest,) = te.cut(dx, phases)
        stages = [*((t, t.name) for t in phases), rest]
        yield Case(f"{name} data, in {len(stages)}", stages, known, lambda: backward(0), nhwc)
    yield Case(f"{name} weight", [dw], known, lambda: backward(1), hwio)


def softmax(m: int, n: int) -> Iterator[Case]:
    x, y = operator("softmax", m=m, n=n)
    (dx,) = te.gradient(y, x, seeded(y))
    X, G = torch.randn(m, n), torch.randn(m, n)
    known = arrays_of(x=X, dy=G)

    def whole() -> torch.Tensor:
        return aten._softmax_backward_data(G, torch.softmax(X, 1), 1, torch.float32)

    yield Case(f"softmax {m}x{n}", [dx], known, whole)
    # What is kept is the result: dx = y (dy - the sum of y dy). The gradient of exp(x - m) / sum is that.
    e, inv = (t for t in stages_of(y) if t.name in ("e", "inv_sum"))
    (kept,) = te.gradient(y, x, seeded(y), saved=[e, inv])
    E = torch.exp(X - X.max(1, keepdim=True).values)
    known = known | arrays_of(e=E, inv_sum=1 / E.sum(1))
    Y = torch.softmax(X, 1)
    yield Case(
        f"softmax {m}x{n}, kept", [kept], known, lambda: aten._softmax_backward_data(G, Y, 1, torch.float32)
    )


def stages_of(y: Any) -> list[Any]:
    """All stages behind a tensor, as tensors."""
    found: dict[Any, Any] = {}

    def visit(t: Any) -> None:
        if t.op is not None and t not in found:
            for s in t.op.reads():
                visit(s)
            found[t] = t

    visit(y)
    return list(found)


def layer_norm(m: int, n: int) -> Iterator[Case]:
    x, gamma, _, y = operator("layer_norm", m=m, n=n)
    kept = [t for t in stages_of(y) if t.name in ("mean", "mean_off", "var", "inv_std")]
    dx, dgamma = te.gradient(y, [x, gamma], seeded(y), saved=kept)
    X, W, B, G = torch.randn(m, n), torch.randn(n), torch.randn(n), torch.randn(m, n)
    _, mean, rstd = aten.native_layer_norm(X, [n], W, B, 1e-5)
    var = X.double().var(1, unbiased=False).float()
    known = arrays_of(x=X, gamma=W, dy=G, mean=mean[:, 0], inv_std=rstd[:, 0], var=var)
    known["mean_off"] = np.zeros(m, np.float32)

    def backward(n_: int) -> torch.Tensor:
        mask = [n_ == 0, n_ == 1, False]
        return aten.native_layer_norm_backward(G, X, [n], mean, rstd, W, B, mask)[n_]

    yield Case(f"layer_norm {m}x{n} data", [dx], known, lambda: backward(0))
    yield Case(f"layer_norm {m}x{n} gamma", [dgamma], known, lambda: backward(1))


def gelu_matmul(m: int, n: int, k: int) -> Iterator[Case]:
    x, w, b = (te.placeholder(s, "float32", t) for s, t in (((m, k), "x"), ((k, n), "w"), ((n,), "b")))
    r = te.reduce_axis(k, "r")
    z = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "z")
    v = te.compute((m, n), lambda i, j: z[i, j] + b[j], "v")
    y = te.compute((m, n), lambda i, j: 0.5 * v[i, j] * (1.0 + te.erf(v[i, j] * math.sqrt(0.5))), "y")
    X, W, B, G = torch.randn(m, k), torch.randn(k, n) * 0.05, torch.randn(n), torch.randn(m, n)
    V = torch.addmm(B, X, W)
    known = arrays_of(x=X, w=W, b=B, v=V, dy=G)
    (again,) = te.gradient(y, x, seeded(y))
    yield Case(
        f"gelu(matmul {m}x{n}x{k}), computed again",
        [again],
        known,
        lambda: aten.gelu_backward(G, torch.addmm(B, X, W)) @ W.T,
    )
    (kept,) = te.gradient(y, x, seeded(y), saved=[v])
    yield Case(f"gelu(matmul {m}x{n}x{k}), kept", [kept], known, lambda: aten.gelu_backward(G, V) @ W.T)


def attention(heads: int, seq: int, dim: int) -> Iterator[Case]:
    q, k, v = (te.placeholder((heads, seq, dim), "float32", t) for t in "qkv")
    d, j, a, b = (te.reduce_axis(n, t) for n, t in ((dim, "d"), (seq, "j"), (seq, "a"), (seq, "b")))
    s = te.compute(
        (heads, seq, seq), lambda h, i, j: te.sum(q[h, i, d] * k[h, j, d] * dim**-0.5, axis=d), "s"
    )
    top = te.compute((heads, seq), lambda h, i: te.max(s[h, i, a], axis=a), "top")
    e = te.compute(s.shape, lambda h, i, j: te.exp(s[h, i, j] - top[h, i]), "e")
    total = te.compute((heads, seq), lambda h, i: te.sum(e[h, i, b], axis=b), "total")
    p = te.compute(s.shape, lambda h, i, j: e[h, i, j] / total[h, i], "p")
    y = te.compute((heads, seq, dim), lambda h, i, c: te.sum(p[h, i, j] * v[h, j, c], axis=j), "y")
    dy = seeded(y)
    # By hand the chain rule is cut where stages are worth keeping: at the scores.
    ds = te.placeholder(s.shape, "float32", "ds")
    (of_s,) = te.gradient(y, s, dy, saved=[e, total, p])
    of_q, of_k = te.gradient(s, [q, k], ds)
    (of_v,) = te.gradient(y, v, dy, saved=[p])
    Q, K, V, G = (torch.randn(heads, seq, dim) for _ in range(4))
    S = Q @ K.transpose(1, 2) * dim**-0.5
    E = torch.exp(S - S.max(2, keepdim=True).values)
    known = arrays_of(q=Q, k=K, v=V, dy=G, e=E, total=E.sum(2), p=torch.softmax(S, 2), ds=torch.empty_like(S))
    leaves = [t.clone().requires_grad_() for t in (Q, K, V)]
    out = torch.softmax(leaves[0] @ leaves[1].transpose(1, 2) * dim**-0.5, -1) @ leaves[2]

    def whole() -> torch.Tensor:
        return torch.autograd.grad(out, leaves, G, retain_graph=True)[1]

    stages = [(of_s, "ds"), of_q, of_v, of_k]
    yield Case(f"attention {heads}x{seq}x{dim} q, k, v, P kept", stages, known, whole)


def pool(kind: str, size: int, channels: int) -> Iterator[Case]:
    x, *_, y = operator(kind, b=1, h=size, w=size, c=channels, k=3, stride=2, padding=1)
    (dx,) = te.gradient(y, x, seeded(y), saved=[y] if kind == "max_pool2d" else [])
    X = torch.randn(1, channels, size, size).to(memory_format=torch.channels_last)
    Y, places = torch.nn.functional.max_pool2d(X, 3, 2, 1, return_indices=True)
    G = torch.randn_like(Y)
    known = {
        n: np.ascontiguousarray(t.permute(0, 2, 3, 1).numpy()) for n, t in (("x", X), ("y", Y), ("dy", G))
    }

    def backward() -> torch.Tensor:
        if kind == "max_pool2d":
            return aten.max_pool2d_with_indices_backward(G, X, [3, 3], [2, 2], [1, 1], [1, 1], False, places)
        return aten.avg_pool2d_backward(G, X, [3, 3], [2, 2], [1, 1], False, True, None)

    yield Case(
        f"{kind} {size}x{size}x{channels}", [dx], known, backward,
        lambda r: np.ascontiguousarray(r.permute(0, 2, 3, 1).numpy()),
    )  # fmt: skip


def cross_entropy(m: int, n: int) -> Iterator[Case]:
    x, t = te.placeholder((m, n), "float32", "x"), te.placeholder((m,), "int64", "t")
    a, b, c = (te.reduce_axis(n, s) for s in "abc")
    top = te.compute((m,), lambda i: te.max(x[i, a], axis=a), "top")
    total = te.compute((m,), lambda i: te.sum(te.exp(x[i, b] - top[i]), axis=b), "total")
    logs = te.compute((m, n), lambda i, j: x[i, j] - top[i] - te.log(total[i]), "logs")

    def picked(i: Any) -> Any:
        hit = te.equal(te.cast(c, "int64"), t[i])
        return te.sum(te.select(hit, logs[i, c] * (-1.0 / m), 0.0), axis=c)

    loss = te.compute((m,), picked, "loss")
    (dx,) = te.gradient(loss, x, saved=[top, total])
    X, T = torch.randn(m, n, requires_grad=True), torch.randint(0, n, (m,))
    out = torch.nn.functional.cross_entropy(X, T)
    E = X.detach()
    known = arrays_of(
        x=E, t=T, top=E.max(1).values, total=torch.exp(E - E.max(1, keepdim=True).values).sum(1)
    )
    yield Case(
        f"cross entropy {m}x{n}", [dx], known, lambda: torch.autograd.grad(out, X, retain_graph=True)[0]
    )


def cases() -> Iterator[Case]:
    yield from matmul(512, 768, 3072)
    yield from conv(8, 28, 128, 128, 3, 1)
    yield from conv(8, 56, 64, 128, 3, 2)
    yield from conv(8, 28, 128, 256, 1, 2)
    yield from softmax(512, 1024)
    yield from layer_norm(512, 768)
    yield from gelu_matmul(128, 3072, 768)
    yield from attention(12, 128, 64)
    yield from pool("max_pool2d", 112, 64)
    yield from pool("avg_pool2d", 112, 64)
    yield from cross_entropy(512, 1024)


def row(c: Case, budget_s: float) -> dict[str, Any]:
    """Tune and time one gradient."""
    calls: list[Callable[[], Any]] = []
    arrays, trials, failed, kernels = dict(c.arrays), 0, 0, []
    with tempfile.TemporaryDirectory() as tmp:
        db = os.path.join(tmp, "log.db")
        for given in c.stages:
            g, name = given if isinstance(given, tuple) else (given, None)
            tensors = [*te.inputs(g), g]
            for more in (1, 2, 4):  # a busy machine may time nothing at first
                found = at.tune(tensors, threads=1, budget_s=more * budget_s, db=db)
                trials, failed = trials + found.measured, failed + sum(dict(found.failed).values())
                if found.best is not None:
                    break
            kernel = at.load(tensors, threads=1, db=db)
            kernels.append(kernel)
            out = (
                arrays.setdefault(name, np.empty(g.shape, np.float32))
                if name
                else np.empty(g.shape, np.float32)
            )
            args = [arrays[t.name] for t in te.inputs(g)]
            calls.append(lambda kernel=kernel, args=args, out=out: kernel(*args, out=out))

        def ours() -> Any:
            for call in calls:
                last = call()
            return last

        want, got = c.back(c.torch()), ours()
        error = float(np.abs(got - want).max() / np.sqrt((want**2).mean()))
        times: dict[str, list[float]] = {"ours": [], "torch": []}
        with torch.no_grad() if not c.name.startswith(("attention", "cross")) else torch.enable_grad():
            for _ in range(ROUNDS):
                for who, f in (("torch", c.torch), ("ours", ours)):
                    times[who].append(round_s(f))
    ratios = [t / o for t, o in zip(times["torch"], times["ours"], strict=True)]
    return {
        "case": c.name,
        "ours_s": statistics.median(times["ours"]),
        "torch_s": statistics.median(times["torch"]),
        "ratio": statistics.median(ratios),
        "error": error,
        "stages": [len(k.workload.dag.stages) for k in kernels],
        "trials": trials,
        "failed": failed,
    }


def round_s(f: Callable[[], Any]) -> float:
    """The median CPU seconds of a call."""
    f()
    samples: list[float] = []
    while len(samples) < 3 or (sum(samples) < ROUND_S and len(samples) < 500):
        begun = time.thread_time()
        f()
        samples.append(time.thread_time() - begun)
    return statistics.median(samples)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| gradient | ours, ms | torch, ms | torch ÷ ours | largest error ÷ RMS |",
        "|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r['case']} | {r['ours_s'] * 1e3:.3f} | {r['torch_s'] * 1e3:.3f} | {r['ratio']:.2f} "
            f"| {r['error']:.0e} |"
        )
    mean = math.exp(statistics.mean(math.log(r["ratio"]) for r in rows))
    return "\n".join([*lines, f"| geometric mean | | | {mean:.2f} | |"])


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--budget", type=float, default=12, help="seconds of tuning for each kernel")
    p.add_argument("--only", default="", help="kinds whose names hold this")
    p.add_argument("--out", help="write the rows as JSON")
    p.add_argument("--markdown", metavar="FILE", help="print the table of a file")
    args = p.parse_args()
    if args.markdown:
        print(table(json.loads(Path(args.markdown).read_text("utf-8"))["rows"]))
        return
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = []
    for c in cases():
        if args.only and args.only not in c.name:
            continue
        rows.append(row(c, args.budget))
        r = rows[-1]
        print(
            f"{r['case']:48s} ours {r['ours_s'] * 1e3:8.3f} ms, torch {r['torch_s'] * 1e3:8.3f} ms, "
            f"torch / ours {r['ratio']:.2f}, error {r['error']:.0e}, {r['trials']} trials, "
            f"{r['failed']} failed",
            flush=True,
        )
    if rows:
        print(table(rows))
    if args.out:
        meta = {"commit": commit(), "torch": torch.__version__, "budget_s": args.budget, "threads": 1}
        Path(args.out).write_text(json.dumps(meta | {"rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
