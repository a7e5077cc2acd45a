"""Compiled models of torch are called as the exported program is, also after they were saved; results that
are inputs, weights, or known."""

from __future__ import annotations

import copy
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from default_kernels import default_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import each_stage
from onnx_cases import onnx
from torch_cases import Of, exported, torch

import autotune as at
from autotune.errors import ArgumentError, ModelError
from autotune.models import compiling, preparation
from autotune.models.assembling import assemble
from autotune.models.module import Module
from schedules import te


@pytest.fixture(autouse=True, scope="module")
def plain() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "untuned_kernels", default_kernels)
        patch.setattr(preparation, "cut", each_stage)
        yield


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class State:
    x: Any
    y: Any = None


torch.export.register_dataclass(State)

X = torch.arange(6.0).reshape(2, 3)


class Takes(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, d: Any, n: Any, *, flag: Any = True, k: Any) -> Any:
        (b, none), p = d["b"], d["p"]
        y = d["a"] * n + b + k + p.b
        return {"y": y if flag else -y, "p": Pair(p.a, none), "l": [y + 1, (p.a - k,)], 3: n, "e": k[:0]}


class Objects(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, s: State, e: Any, *xs: Any, **named: Any) -> Any:
        return State(s.x + xs[0] + e.sum()), OrderedDict(m=torch.max(named["z"], 1), x=xs[1])


CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "containers": (
        Takes, ({"a": X, "b": (X + 1, None), "p": Pair(X * 2, X)}, 3), {"k": X * 3, "flag": False}
    ),
    "objects": (Objects, (State(X), torch.empty(0), X, X + 1), {"z": X * 5}),
    "one in a tuple": (lambda: Of(lambda x: (x * 2,)), (X,), {}),
}  # fmt: skip


def leaves(x: Any) -> list[Any]:
    """What is in containers, one after the other, with their kinds."""
    if isinstance(x, dict):
        return [dict, *x, *(z for y in x.values() for z in leaves(y))]
    if isinstance(x, State):
        return leaves({k: v for k, v in vars(x).items() if v is not None})
    if isinstance(x, (list, tuple)):
        kind = list if isinstance(x, list) else tuple
        return [kind, getattr(x, "_fields", None), *(z for y in x for z in leaves(y))]
    return [x]


def same(got: Any, want: Any) -> None:
    have, should = leaves(got), leaves(want)
    assert len(have) == len(should)
    for a, b in zip(have, should, strict=True):
        if isinstance(b, torch.Tensor):
            np.testing.assert_array_equal(np.asarray(a), b.numpy())
            assert tuple(a.shape) == tuple(b.shape)
        else:
            assert a == b or (b is not None and a is None)  # fields of structs of torch are not in a file


def as_numpy(x: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda t: t.numpy() if isinstance(t, torch.Tensor) else t, x)


@pytest.mark.fast("one in a tuple")
@pytest.mark.parametrize("case", CASES)
def test_a_model_is_called_as_its_program_is(case: str, tmp_path: Path) -> None:
    made, args, named = CASES[case]
    program = exported(made(), *args, kwargs=named)
    want = program.module()(*args, **named)
    net = at.compile_model(at.import_torch(program), threads=1, fallback=True)
    got = net(*args, **dict(reversed(named.items())))
    same(got, want)
    assert type(got) is type(want)
    same(net(*as_numpy(args), **as_numpy(named)), want)
    net.save(tmp_path / "net.at")
    back = at.load_model(tmp_path / "net.at")
    same(back(*args, **named), want)
    back.save(tmp_path / "again.at")
    assert (tmp_path / "again.at").read_bytes() == (tmp_path / "net.at").read_bytes()
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), pickle.loads(pickle.dumps(back))):
        same(copied(*args, **named), want)
    assert net.profile(*args, **named).rows and back.profile().rows


def test_classes_are_torchs_in_the_process_and_plain_in_a_file(tmp_path: Path) -> None:
    made, args, named = CASES["objects"]
    net = at.compile_model(at.import_torch(exported(made(), *args, kwargs=named)), threads=1, fallback=True)
    state, rest = net(*args, **named)
    assert type(state) is State and type(rest) is OrderedDict and type(rest["m"]) is torch.return_types.max
    net.save(tmp_path / "net.at")
    state, rest = at.load_model(tmp_path / "net.at")(*args, **named)
    assert type(state) is dict and type(rest) is dict and type(rest["m"]) is tuple


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_copies_and_pickles_before_it_is_compiled_are_called_so(case: str) -> None:
    made, args, named = CASES[case]
    program = exported(made(), *args, kwargs=named)
    want = program.module()(*args, **named)
    model = at.import_torch(program)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.signature == model.signature
        net = at.compile_model(other, threads=1, fallback=True)
        for one in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            same(one(*args, **named), want)
    kept = at.compile_model(copy.deepcopy(model), threads=1, fallback=True)(*args, **named)
    assert [type(x) for x in flat(kept)] == [type(x) for x in flat(want)]  # classes too, in this process


def flat(x: Any) -> list[Any]:
    return [x, *x] if isinstance(x, tuple) else [x]


@pytest.mark.slow
def test_what_the_export_fixed_may_be_left_out_and_not_be_changed() -> None:
    made, args, named = CASES["containers"]
    net = at.compile_model(at.import_torch(exported(made(), *args, kwargs=named)), threads=1, fallback=True)
    want = net(*args, **named)
    same(net(d=args[0], k=named["k"]), want)
    d = args[0]
    same(net(d["a"], d["b"][0], d["p"].a, d["p"].b, named["k"]), want)  # one after the other
    with pytest.raises(ArgumentError, match="n is 4, and the export fixed it to 3"):
        net(args[0], 4, **named)
    with pytest.raises(ArgumentError, match=r"d\['p'\] is a tuple of 1; it takes a Pair of 2"):
        net({**d, "p": (X,)}, 3, **named)
    with pytest.raises(ArgumentError, match="input 'd_a' has shape"):
        net({**d, "a": X[:1]}, 3, **named)


def test_a_file_that_lies_of_its_signature_is_refused(tmp_path: Path) -> None:
    net = at.compile_model(at.import_torch(exported(Of(lambda x: (x,)), X)), threads=1, fallback=True)
    net.save(tmp_path / "net.at")
    with zipfile.ZipFile(tmp_path / "net.at") as z:
        text = z.read("model.json")
    assert text.count(b'["tensor",0]') == 2
    with zipfile.ZipFile(tmp_path / "odd.at", "w") as z:
        z.writestr("model.json", text.replace(b'["tensor",0]', b'["tensor",7]'))
    with pytest.raises(ModelError, match=r"odd.at is damaged: the arguments of a call are not the inputs"):
        at.load_model(tmp_path / "odd.at")


# --- results that are inputs ------------------------------------------------------------------

A, B, W = (np.arange(6, dtype=np.float32).reshape(2, 3) + n for n in (0, 10, 20))
WANT = {"a": A, "b": B, "w": W, "y": A + W, "turned": A.T}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(sorted(WANT)), min_size=1, max_size=5))
def test_any_result_may_be_an_input_a_weight_or_another_result(names: list[str]) -> None:
    a, b, w = (te.placeholder((2, 3), "float32", n) for n in "abw")
    tensors = {
        "a": a, "b": b, "w": w, "y": te.compute((2, 3), lambda i, j: a[i, j] + w[i, j], "y"),
        "turned": te.compute((3, 2), lambda i, j: a[j, i], "turned"),
    }  # fmt: skip
    model = assemble({"a": a, "b": b}, [(n, tensors[n]) for n in names], {w: W}, {}, "net", "a test")
    net = at.compile_model(model, threads=1, fallback=True)
    checked(net, names)


def checked(net: Module, names: list[str]) -> None:
    found = net(A, B)
    results = found if isinstance(found, tuple) else (found,)
    assert len(results) == len(names)
    for n, x in zip(names, results, strict=True):
        np.testing.assert_array_equal(x, WANT[n])
        assert not any(np.shares_memory(x, y) for y in (A, B, W, *(r for r in results if r is not x)))
    net.profile(A, B, repeat=1)
    assert [t.name for t in net.outputs] == names


@pytest.mark.parametrize("target", ["cpu", "cuda-emulator"])
def test_onnx_outputs_that_are_inputs_and_weights(target: str, tmp_path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper

    def port(name: str, *shape: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape or (2, 3))

    weights = [numpy_helper.from_array(W, "w"), *(numpy_helper.from_array(np.array([0]), n) for n in "se")]
    nodes = [helper.make_node("Identity", ["a"], ["c"]), helper.make_node("Slice", ["a", "s", "e"], ["none"])]
    outputs = [*(port(n) for n in "abwc"), port("none", 0, 3)]
    graph = helper.make_graph(nodes, "net", [port("a"), port("b")], outputs, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    threads = 1 if target == "cpu" else None
    net = at.compile_model(at.import_onnx(proto), threads=threads, target=target, fallback=True)
    net.save(tmp_path / "net.at")
    for one in (net, at.load_model(tmp_path / "net.at")):
        *whole, none = one(A, B)
        for x, want in zip(whole, (A, B, W, A), strict=True):
            np.testing.assert_array_equal(x, want)
        assert none.shape == (0, 3) and none.dtype == np.float32
        assert one.profile(A, B, repeat=1).rows


assert onnx
