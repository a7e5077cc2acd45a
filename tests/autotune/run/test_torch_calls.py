"""Kernels on torch tensors: tensors come back, no gradient is lost unseen, mistakes are explained."""

from __future__ import annotations

import gc
import sys

import needs
import numpy as np
import pytest
from kernel_cases import TWO_TEXT, add_kernel, buffer, target, workload

from autotune.codegen.llvm.compile import compile_module, load_object
from autotune.codegen.runtime.entry import entry
from autotune.errors import ArgumentError
from autotune.run import torch_calls
from autotune.run.kernel import Kernel

torch = needs.imported("torch")


def tensors(shape=(7, 5), dtype="float32"):
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randint(-9, 9, shape, generator=generator).to(getattr(torch, dtype)) for _ in range(2))
    return a, b, torch.full(shape, -77, dtype=a.dtype)


@pytest.fixture(params=["fast", "slow"])
def kernel(request, monkeypatch) -> Kernel:
    """The same calls must do the same without the fast paths, as with a torch from before their API."""
    k = add_kernel()
    if request.param == "slow":
        k._fast = torch_calls.refuse
        monkeypatch.setattr(type(k._loaded), "python_function", lambda self, others=False: None)
    return k


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "float16"])
@pytest.mark.parametrize("shape", [(), (1,), (7, 5), (3, 1, 4)])
def test_tensors_in_tensors_out(shape, dtype) -> None:
    k = add_kernel(shape, dtype)
    a, b, c = tensors(shape, dtype)
    made = k(a, b)
    assert type(made) is torch.Tensor and made.dtype == a.dtype and made.is_contiguous()
    assert torch.equal(made, a + b) and torch.equal(k(a, b=b), made)
    assert k(a, b, out=c) is c and torch.equal(c, a + b)
    assert k._torch.fast(a, b, c) == 0, "by the fast path"
    x = k(a.numpy(), b.numpy())
    assert type(x) is np.ndarray and np.array_equal(x, (a + b).numpy())


def test_results_cross_between_numpy_and_torch_without_a_copy() -> None:
    k = add_kernel((7, 5))
    a, b, _ = tensors()
    of_numpy, of_torch = k(a.numpy(), b.numpy()), k(a, b)
    assert torch.from_dlpack(of_numpy).data_ptr() == of_numpy.ctypes.data
    assert np.from_dlpack(of_torch).ctypes.data == of_torch.data_ptr()
    assert torch.equal(k(torch.from_dlpack(of_numpy), b), of_torch + b)


def test_outputs_are_made_like_those_of_torch_empty() -> None:
    k = add_kernel((7, 5))
    a, b, _ = tensors()
    first, second = k(a, b), k(a, b)
    assert first.data_ptr() != second.data_ptr()
    assert first.untyped_storage().nbytes() == 7 * 5 * 4 and not first.requires_grad
    with torch.device("meta"):
        assert k(a, b).device.type == "cpu"
    with torch.inference_mode():
        inside = k(a, b)
        assert k(a, b, out=inside) is inside and torch.equal(inside, a + b)


def test_several_outputs() -> None:
    params = (buffer("a", (6,)), buffer("p", (6,)), buffer("q", (6,), "float64"))
    loaded = load_object(compile_module(TWO_TEXT + entry(params, ("p", "q"), 0, 1), target()))
    k = Kernel(loaded, params, ("p", "q"), workload((6,)), target())
    a = torch.arange(6.0)
    p, q = k(a)
    assert torch.equal(p, -a) and torch.equal(q, a.double())
    outs = (torch.zeros(6), torch.zeros(6, dtype=torch.float64))
    assert k(a, out=outs) is outs and torch.equal(outs[0], -a)
    with pytest.raises(ArgumentError, match="tuple of 2 arrays"):
        k(a, out=outs[0])


def test_tensors_and_arrays_mixed(kernel) -> None:
    a, b, c = tensors()
    assert torch.equal(kernel(a, b.numpy()), a + b)
    out = c.numpy()
    assert kernel(a, b, out=out) is out and torch.equal(c, a + b)
    with pytest.raises(ArgumentError, match=r"input 'a' is a ndarray, and others are torch tensors.*out="):
        kernel(a.numpy(), b)
    c.fill_(-77)
    assert kernel(a.numpy(), b, out=c) is c and torch.equal(c, a + b)


def test_parameters_and_gradients(kernel) -> None:
    a, b, c = tensors()
    weight = torch.nn.Parameter(b)
    lost = r"input 'b' requires a gradient.*torch\.no_grad\(\).*detach\(\).*autotune\.torch\.op"
    for needing in (weight, b.clone().requires_grad_(), torch.relu(weight)):
        with pytest.raises(ArgumentError, match=lost):
            kernel(a, needing)
        with torch.no_grad():
            assert torch.equal(kernel(a, needing), a + needing)
        assert torch.equal(kernel(a, needing.detach()), a + needing)
    with pytest.raises(ArgumentError, match="output 'c' requires a gradient"):
        kernel(a, b, out=torch.nn.Parameter(c))
    with torch.no_grad():
        kernel(a, b, out=weight.new_empty((7, 5)))


def test_autograd_is_told_what_was_written(kernel) -> None:
    a, b, c = tensors()
    x = torch.ones((7, 5), requires_grad=True)
    y = x * c  # saves c
    kernel(a, b, out=c)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


class Sub(torch.Tensor):
    pass


def freed(a):
    a.untyped_storage().resize_(0)
    return a


WRONG = {
    "transposed": (lambda a, b, c: ((a.t().contiguous().t(), b), c), r"not C-contig.*\.contiguous\(\)"),
    "slice": (lambda a, b, c: ((a, torch.zeros(7, 9)[:, :5]), c), r"\(9, 1\) in.*\(5, 1\): give its"),
    "slice out": (lambda a, b, c: ((a, b), torch.zeros(7, 9)[:, :5]), "output 'c' is not C-contiguous"),
    "dtype": (lambda a, b, c: ((a.double(), b), c), r"'a' is float64.*\.to\(torch\.float32\)"),
    "shape": (lambda a, b, c: ((a.reshape(5, 7), b), c), r"input 'a' has shape \(5, 7\)"),
    "overlap": (lambda a, b, c: ((a, b), a), "output 'c' shares memory with input 'a'"),
    "sparse": (lambda a, b, c: ((a.to_sparse(), b), c), "'a' could not be read.*torch.strided"),
    "meta": (lambda a, b, c: ((a.to("meta"), b), c), "'a' does not tell its device"),
    "negated": (lambda a, b, c: ((torch._neg_view(a), b), c), r"'a' is a negated view.*resolve_neg"),
    "freed": (lambda a, b, c: ((freed(a.clone()), b), c), "input 'a' has no memory"),
    "too few": (lambda a, b, c: ((a,), c), "add takes 2 inputs"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(WRONG))
def test_what_does_not_fit_is_explained(kernel, case) -> None:
    make, says = WRONG[case]
    a, b, c = tensors()
    inputs, out = make(a, b, c)
    with pytest.raises(ArgumentError, match=says):
        kernel(*inputs, out=out)
    assert (c == -77).all()
    assert torch.equal(kernel(a, b, out=c), a + b)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # forward-mode derivatives use it
def test_transformations_of_torch_are_refused(kernel) -> None:
    a, b, _ = tensors()
    with pytest.raises(ArgumentError, match="input 'a' does not tell its device"):
        torch.vmap(lambda x: kernel(x, b))(a[None])
    with pytest.raises(ArgumentError, match="input 'a' requires a gradient"):
        torch.func.grad(lambda x: kernel(x, b).sum())(a)
    with pytest.raises(ArgumentError, match="input 'a' has no memory"):
        torch.func.functionalize(lambda x: kernel(x, b))(a)
    forward = r"input 'a' has a forward-mode derivative.*reverse mode"
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(kernel(a, b), a + b)
        with pytest.raises(ArgumentError, match=forward):
            kernel(torch.autograd.forward_ad.make_dual(a, b), b)


def test_subclasses_are_read(kernel) -> None:
    a, b, _ = tensors()
    assert torch.equal(kernel(a.as_subclass(Sub), b), a + b)


@pytest.mark.slow
def test_a_call_leaks_nothing() -> None:
    k = add_kernel()
    a, b, c = tensors()
    k(a, b, out=c)
    k(a, b)
    counts = [sys.getrefcount(x) for x in (a, b, c, k)]
    for _ in range(5):
        k(a, b, out=c)
        k(a, b)
        with pytest.raises(ArgumentError):
            k(a.t(), b)
    gc.collect()
    assert [sys.getrefcount(x) for x in (a, b, c, k)] == counts
