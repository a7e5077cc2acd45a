"""Random cases for the tests of spaces: operators of the library and expressions of users' own, at odd
shapes, with inputs and the result by numpy. A case follows from its seed and number alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np
from helpers import checker
from random_stages import EXTENTS, random_stages, whole_inputs
from space_expressions import OWN, REAL, Arrays, Draw

from autotune.codegen.llvm.compile import host_arch
from autotune.run.workloads import param_text
from schedules import ops, te
from schedules.dtypes import DTYPES, FLOATS, computed
from schedules.model import Target
from schedules.ops.axes import each
from schedules.space import DerivedSpace, derive
from schedules.te.compute_dag import ComputeDAG

Rng = np.random.Generator
Params = dict[str, Any]

LIMITS = {
    "cores": 2,
    "l1_bytes": 32 << 10,
    "l2_bytes": 512 << 10,
    "l3_bytes": 16 << 20,
    "vector_registers": 16,
}

# One workload of each library operator at a size worth tuning.
BIG = {
    "matmul": {"m": 1024, "n": 1024, "k": 1024},
    "batch_matmul": {"b": 12, "m": 384, "n": 384, "k": 64},
    "matmul_bias_relu": {"m": 1024, "n": 4096, "k": 1024},
    "conv2d": {"h": 56, "w": 56, "ci": 64, "co": 64, "k": 3, "padding": 1},
    "quantized_matmul": {"m": 512, "n": 512, "k": 512},
    "quantized_conv2d": {"h": 56, "w": 56, "ci": 64, "co": 64, "k": 1, "weight_zeros": 1},
    "conv2d_bias_relu": {"h": 14, "w": 14, "ci": 256, "co": 256, "k": 3, "padding": 1},
    "depthwise_conv2d": {"h": 112, "w": 112, "c": 96, "k": 3, "padding": 1, "stride": 2},
    "max_pool2d": {"h": 112, "w": 112, "c": 64, "k": 3, "padding": 1, "stride": 2},
    "softmax": {"m": 4096, "n": 1024},
    "layer_norm": {"m": 4096, "n": 1024},
    "norm2": {"b": 16, "m": 512, "n": 512},
    "reduce_sum": {"m": 4096, "n": 4096},
    "argmax": {"m": 4096, "n": 4096},
    "argmin": {"m": 1, "n": 1 << 20},
    "permute": {"shape": (64, 256, 512), "axes": (2, 0, 1)},
    "matmul_bias_gelu": {"m": 128, "n": 3072, "k": 768},
    "conv1d": {"l": 256, "ci": 64, "co": 128, "k": 3, "stride": 2, "padding": 1},
    "conv3d": {"d": 16, "h": 56, "w": 56, "ci": 64, "co": 64, "k": 1},
    "conv2d_bn_relu": {"h": 56, "w": 56, "ci": 64, "co": 128, "k": 3, "stride": 2, "padding": 1},
    "conv2d_transpose": {"h": 4, "w": 4, "ci": 512, "co": 256, "k": 4, "stride": 2, "padding": 1},
    "capsule_conv2d": {"h": 16, "w": 16, "ci": 32, "co": 32, "k": 3, "stride": 2, "padding": 1},
    "avg_pool2d": {"h": 7, "w": 7, "c": 2048, "k": 7},
    "rms_norm": {"m": 4096, "n": 1024},
    "attention": {"heads": 12, "seq": 128, "dim": 64},
    "transpose_batch_matmul_softmax": {"seq": 128, "heads": 12, "dim": 64},
    "add": {"n": 1 << 24},
    "fused_multiply_add": {"n": 1 << 24},
}


def target(threads: int = 1, vector_bytes: int = 32) -> Target:
    """This machine's code generator with fixed caches, so that spaces are the same everywhere."""
    arch, features, triple = host_arch()
    limits = tuple(sorted({**LIMITS, "vector_bytes": vector_bytes}.items()))
    return Target("cpu", arch, triple, features, threads, limits)


@dataclass(frozen=True)
class Case:
    """A workload with data. ``exact``: every order of its operations gives the same bits."""

    label: str
    dag: ComputeDAG
    inputs: Arrays
    want: Arrays
    exact: bool

    def compare(self, got: Sequence[np.ndarray]) -> str:
        """What is wrong with outputs, or nothing."""
        if not self.exact:
            return checker(self.dag, self.inputs).check(got, 0).reason
        for name, g, w in zip(self.dag.outputs, got, self.want, strict=True):
            if not np.array_equal(g, w):
                at = tuple(int(i) for i in np.argwhere(g != w)[0])
                return (
                    f"{name}: {int((g != w).sum())} of {w.size} wrong, first {list(at)}: {g[at]} for {w[at]}"
                )
        return ""


@cache
def big_space(name: str, threads: int = 1) -> DerivedSpace:
    """The space of a library operator at its size in `BIG`."""
    return derive(ops.workload(name, BIG[name]).dag, target(threads))


# -- random workloads --------------------------------------------------------------------------

INEXACT = (
    "softmax", "layer_norm", "norm2", "rms_norm", "matmul_bias_gelu", "attention",
    "transpose_batch_matmul_softmax", "avg_pool2d",
)  # fmt: skip


def _by_axis(d: Draw, axes: int, *xs: int) -> int | tuple[int, ...]:
    """One number for all axes, or one an axis."""
    return tuple(d.one_of(*xs) for _ in range(axes)) if axes > 1 and d.flag() else d.one_of(*xs)


def _window(d: Draw, size: Sequence[str], dilations: Sequence[int] = (1, 1, 2), pool: bool = False) -> Params:
    """How windows lie, and an input that holds one. Pools: with at most half of a window in padding."""
    axes = len(size)
    kernel = [d.one_of(1, 2, 3, 3, 5) if d.big > 12 and a == 0 else d.one_of(1, 2, 3, 3) for a in range(axes)]
    dilation = each(_by_axis(d, axes, *dilations), axes)
    reach = [(k - 1) * far + 1 for k, far in zip(kernel, dilation, strict=True)]
    padding = each(_by_axis(d, axes, 0, 1, 2), axes)
    if pool:
        padding = tuple(min(n, k // 2) for n, k in zip(padding, kernel, strict=True))
    least = [max(1, r - 2 * n) for r, n in zip(reach, padding, strict=True)]
    tops = {"d": 0.12, "h": 0.35, "w": 0.5, "l": 0.5}
    out: Params = {n: d.n(tops[n], low) for n, low in zip(size, least, strict=True)}
    out |= {"b": d.one_of(1, 1, 2, 3), "padding": padding, "stride": _by_axis(d, axes, 1, 1, 2, 3)}
    if len(dilations) > 1:
        out["dilation"] = dilation
    return out | {"k": tuple(kernel)}


def _transposed_window(d: Draw) -> Params:
    stride, dilation = each(_by_axis(d, 2, 1, 2, 2, 3), 2), each(_by_axis(d, 2, 1, 1, 2, 3), 2)
    k = (d.one_of(1, 2, 3, 4), d.one_of(1, 2, 3, 4))
    groups = d.one_of(1, 1, 2)
    return {
        "h": d.n(0.2), "w": d.n(0.3), "ci": groups * d.n(0.2), "co": groups * d.n(0.4), "groups": groups,
        "k": k, "stride": stride, "dilation": dilation,
        "padding": tuple(d.one_of(*range((n + 1) // 2)) for n in k),
        "output_padding": tuple(d.one_of(*range(max(x))) for x in zip(stride, dilation, strict=True)),
    }  # fmt: skip


def _broadcast(d: Draw, shape: Sequence[int], low: int = 1) -> tuple[int, ...]:
    """A shape that broadcasts to another, of at least ``low`` axes."""
    return tuple(1 if d.flag(0.3) else n for n in shape[d.one_of(*range(len(shape) - low + 1)) :])


def random_params(name: str, d: Draw) -> Params:
    """Parameters of a library operator."""
    if name in ("matmul", "matmul_bias_relu", "matmul_bias_gelu", "batch_matmul"):
        out = {"m": d.n(), "n": d.n(), "k": d.n(), "transpose_a": d.flag(), "transpose_b": d.flag()}
        return out | ({"b": d.one_of(1, 2, 3, 5)} if name == "batch_matmul" else {})
    if name.startswith("quantized_"):
        own = {"per_channel": d.flag(), "weight_zeros": d.flag()}
        return random_params(name.removeprefix("quantized_"), d) | own
    if name in ("conv2d", "conv2d_bias_relu", "conv2d_bn_relu", "conv1d", "conv3d"):
        groups = d.one_of(1, 1, 1, 2, 3)
        channels = {"ci": groups * d.n(0.2), "co": groups * d.n(0.4), "groups": groups}
        return _window(d, {"conv1d": "l", "conv3d": "dhw"}.get(name, "hw")) | channels
    if name == "conv2d_transpose":
        return _transposed_window(d)
    if name == "capsule_conv2d":
        size = {"h": 3, "w": d.one_of(3, 4), "ci": d.n(0.1), "co": d.n(0.4), "k": d.one_of(1, 3)}
        return size | {"padding": 1, "stride": _by_axis(d, 2, 1, 2), "capsule": d.one_of(2, 3)}
    if name == "attention":
        p: Params = {"heads": d.one_of(1, 2, 3), "seq": d.n(0.8), "dim": d.n(0.4), "is_causal": d.flag()}
        mask = _broadcast(d, (1, p["heads"], p["seq"], p["seq"]), 2) if d.flag() else None
        return p | {"attn_mask": mask, "scale": 0.25 if d.flag(0.3) else None}
    if name == "transpose_batch_matmul_softmax":
        return {"heads": d.one_of(1, 2, 3), "seq": d.n(0.8), "dim": d.n(0.4)}
    if name == "depthwise_conv2d":
        return {**_window(d, "hw"), "c": d.n(0.6)}
    if name == "max_pool2d":
        return {**_window(d, "hw", pool=True), "c": d.n(0.6), "ceil_mode": d.flag()}
    if name == "avg_pool2d":
        flags = {"ceil_mode": d.flag(), "count_include_pad": d.flag()}
        return {**_window(d, "hw", (1,), pool=True), "c": d.n(0.6), **flags}
    if name == "softmax" and d.flag():
        shape = tuple(d.n(0.4) for _ in range(d.one_of(2, 3, 4)))
        return {"shape": shape, "axis": d.one_of(*range(-len(shape), len(shape)))}
    if name in ("layer_norm", "rms_norm"):
        return {"m": d.n(0.4), "n": d.n(3.0), "eps": 0.01 if d.flag(0.3) else None}
    if name in ("softmax", "reduce_sum", "argmax", "argmin"):
        return {"m": d.n(0.4), "n": d.n(3.0)}
    if name == "norm2":
        return {"b": d.n(0.2), "m": d.n(0.5), "n": d.n(1.5)}
    if name == "permute":
        rank = d.one_of(1, 2, 2, 3, 3, 4)
        return {"shape": tuple(d.n(0.8 if rank < 3 else 0.4) for _ in range(rank)),
                "axes": tuple(int(x) for x in d.rng.permutation(rank))}  # fmt: skip
    if name == "add" and d.flag():
        full = [d.n(0.5) for _ in range(d.one_of(2, 3, 4))]
        return {"shape": _broadcast(d, full), "other": _broadcast(d, full)}
    return {"n": d.n(8.0)}


def library_case(name: str, rng: Rng, big: int) -> Case:
    """A library operator at a random shape, dtype and layout."""
    d = Draw(rng, big)
    op = ops.get(name)
    dtype = str(rng.choice([t for t in ("float32", *DTYPES) if t in op.dtypes]))
    layout = str(rng.choice(op.layouts)) if op.layouts else None
    params = {k: v for k, v in random_params(name, d).items() if v is not None}
    w = ops.workload(name, params, dtype, layout)
    exact = name not in INEXACT
    data = values(w.dag, rng, exact)
    shown = ",".join(f"{k}={param_text(v)}" for k, v in params.items())
    label = f"{name} {shown} {dtype} {layout or ''}".strip()
    return Case(label, w.dag, data, ops.reference(w, data), exact)


def values(dag: ComputeDAG, rng: Rng, exact: bool = True) -> Arrays:
    """Inputs: small integers where results are exact, else standard normal."""
    out: Arrays = []
    for t in dag.inputs:
        whole = exact or t.dtype.startswith("int")
        out.append((rng.integers(-4, 5, t.shape) if whole else rng.standard_normal(t.shape)).astype(t.dtype))
    return out


def own_case(name: str, rng: Rng, big: int) -> Case:
    """A user's own expression at a random shape and dtype."""
    dtype = str(rng.choice(FLOATS if name in REAL else ("float32", *DTYPES)))
    tensors, reference = OWN[name](Draw(rng, big), dtype)
    dag = te.dag(tensors)
    exact = name not in REAL
    data = values(dag, rng, exact)
    found = reference(*(x.astype(_computed_in(x.dtype, exact)) for x in data))
    assert len(found) == len(dag.outputs), f"{name}: outputs are {dag.outputs}"
    want = [np.asarray(x, dag.tensors[o].dtype) for o, x in zip(dag.outputs, found, strict=True)]
    shapes = " ".join(f"{t.name}{list(t.shape)}" for t in dag.params)
    return Case(f"{name} {shapes} {dtype}", dag, data, want, exact)


def _computed_in(dtype: np.dtype, exact: bool) -> str | np.dtype:
    """What numpy computes a reference in."""
    return "float64" if not exact else computed(dtype.name)


def stages_case(rng: Rng, big: int) -> Case:
    """A program of random stages."""
    draw = Random(int(rng.integers(1 << 62)))
    dtypes = draw.choice((("float32",), ("float64", "int32"), tuple(DTYPES)))
    dag = random_stages(draw, [n for n in EXTENTS if n <= big], dtypes, 8 * big)
    data = whole_inputs(dag, rng)
    shapes = " ".join(f"{t.name}{list(t.shape)}" for t in dag.params)
    return Case(f"stages {shapes}", dag, data, te.evaluate(dag, data), True)


def random_case(rng: Rng, big: int) -> Case:
    """A third of them operators of the library."""
    kind = rng.random()
    if kind < 0.3:
        return stages_case(rng, big)
    if kind < 0.65:
        return library_case(str(rng.choice(sorted(ops.REGISTRY))), rng, big)
    return own_case(str(rng.choice(list(OWN))), rng, big)
