"""Kernels as operators of torch: results, gradients, tracing, and what is refused."""

from __future__ import annotations

from functools import cache

import needs
import pytest

import autotune as at
from autotune.backends import parse
from autotune.run.dynamic_kernel import DynamicKernel
from autotune.run.dynamic_workload import as_dynamic
from autotune.run.kernels import default_kernel

torch = needs.imported("torch")
N = (5, 3)
# torch's own remarks on the way to a traced program.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:.torch.jit.script")


@cache
def built(name: str) -> at.Kernel:
    """z = x y over n elements, gradients of it, and others. Whole numbers stay exact."""
    te = at.te
    g, x, y = (te.placeholder(N, "float32", n) for n in "gxy")
    i = te.placeholder(N, "int32", "i")
    dx = te.compute(N, lambda i, j: g[i, j] * y[i, j], "dx")
    dy = te.compute(N, lambda i, j: g[i, j] * x[i, j], "dy")
    z = te.compute(N, lambda i, j: x[i, j] * y[i, j], "z")
    picked = te.compute(N, lambda p, q: te.cast(i[p, q] + 1, "int32"), "picked")
    cast = te.compute(N, lambda p, q: x[p, q] * te.cast(i[p, q], "float32"), "self")
    tensors = {
        "product": [x, y, z],
        "both": [g, x, y, dx, dy],
        "fewer": [g, y, dx],
        "mixed": [x, i, cast, picked],
    }[name]
    return at.build(at.Schedule(tensors), threads=1)


def given(grad: bool = False):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(-9, 9, N, generator=generator).float().requires_grad_(grad) for _ in "xy"]


def by_fewer(g, x, y):
    op = at.torch.op(built("fewer"))
    return op(g, y), op(g, x)


BACKWARDS = {
    "kernel": lambda: built("both"),
    "function": lambda: by_fewer,
    "list": lambda: [at.build(at.Schedule(_one(which)), threads=1) for which in "xy"],
}


def _one(which: str):
    te = at.te
    g, x, y = (te.placeholder(N, "float32", n) for n in "gxy")
    # Each takes all inputs: a gradient's kernel does, whether it reads them or not.
    of, unread = (y, x) if which == "x" else (x, y)
    return [g, x, y, te.compute(N, lambda i, j: g[i, j] * of[i, j] + 0.0 * unread[i, j], f"d{which}")]


@cache
def with_backward(kind: str):
    return at.torch.op(built("product"), backward=BACKWARDS[kind](), name=f"product_by_{kind}")


def test_an_operator_gives_new_tensors() -> None:
    product = at.torch.op(built("product"))
    x, y = given()
    z = product(x, y)
    assert torch.equal(z, x * y) and z.data_ptr() != product(x, y).data_ptr()
    assert str(product) == f"autotune.custom_{built('product').workload.digest[:12]}.default"
    assert at.torch.op(built("product")) is product, "a kernel has one"


def test_outputs_of_several_dtypes_and_odd_names() -> None:
    mixed = at.torch.op(built("mixed"))
    x, _ = given()
    i = torch.arange(15, dtype=torch.int32).reshape(N)
    z, picked = mixed(x, i)
    assert torch.equal(z, x * i) and torch.equal(picked, i + 1) and picked.dtype == torch.int32
    # A gradient for the float output alone, and none for the integers.
    op = at.torch.op(built("mixed"), backward=lambda g, x, i: (g * i, None))
    w = x.clone().requires_grad_()
    z, picked = op(w, i)
    assert not picked.requires_grad
    z.backward(torch.ones(N))
    assert torch.equal(w.grad, i.float())


@pytest.mark.parametrize("kind", sorted(BACKWARDS))
def test_gradients(kind) -> None:
    op = with_backward(kind)
    x, y = given(True)
    g = torch.arange(15.0).reshape(N)
    z = op(x, y)
    z.backward(g.t().contiguous().t())
    assert torch.equal(z, x * y) and torch.equal(x.grad, g * y) and torch.equal(y.grad, g * x)
    with torch.no_grad():
        assert torch.equal(op(x, y), x * y)
    # Of one input alone, and of none.
    w = x.detach().requires_grad_()
    op(w, y.detach()).sum().backward()
    assert torch.equal(w.grad, y)
    assert not op(x.detach(), y.detach()).requires_grad


def test_a_function_of_operators_with_gradients_has_gradients() -> None:
    product = with_backward("kernel")
    twice = at.torch.op(
        built("product"), backward=lambda g, x, y: (product(g, y), product(g, x)), name="product_twice"
    )
    x, y = given(True)
    (dx,) = torch.autograd.grad(twice(x, y).sum(), x, create_graph=True)
    (of_y,) = torch.autograd.grad(dx.sum(), y)
    assert torch.equal(of_y, torch.ones(N))


def test_a_gradient_is_not_lost_unseen() -> None:
    x, y = given(True)
    lost = "input 'x' requires a gradient, which would be lost.*backward="
    with pytest.raises(at.ArgumentError, match=lost):
        at.torch.op(built("product"))(x, y)
    kernel = built("product")
    with pytest.raises(Exception, match=lost):
        torch.compile(lambda x, y: kernel(x, y), backend="eager", fullgraph=True)(x, y)


def test_what_torch_asks_of_operators_holds() -> None:
    """Its own checks: schema, autograd's registration, fake tensors."""
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(at.torch.op(built("product")), tuple(given()), test_utils=checks)
    torch.library.opcheck(with_backward("kernel"), tuple(given(True)), test_utils=checks)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.soak)])
def test_compiled_with_a_gradient(backend) -> None:
    op = with_backward("kernel")

    def f(x, y):
        return torch.relu(op(x + 1, y)) * 2

    x, y = given(True)
    torch.compile(f, backend=backend, fullgraph=True)(x, y).sum().backward()
    found, x.grad = x.grad, None
    f(x, y).sum().backward()
    assert torch.equal(found, x.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.soak)])
def test_a_plain_call_of_a_kernel_is_compiled_too(backend) -> None:
    kernel = built("product")
    out = torch.zeros(N)

    def f(x, y, out):
        return kernel(x + 1, y=y) + kernel(y=y, x=x, out=out)

    x, y = given()
    z = torch.compile(f, backend=backend, fullgraph=True)(x, y, out)
    assert torch.equal(z, (x + 1) * y + x * y) and torch.equal(out, x * y)


def test_each_size_of_one_that_varies_is_traced() -> None:
    target = parse("cpu", 1)
    dynamic = as_dynamic("matmul", {"m": at.dim(3, 9), "n": 4, "k": 5})
    kernel = DynamicKernel(dynamic, lambda w: default_kernel(w, target), ())
    f = torch.compile(lambda a, b: kernel(a, b=b) + 1, backend="eager", fullgraph=True)
    b = torch.arange(20.0).reshape(5, 4)
    for m in (4, 7, 9, 4):
        a = torch.arange(5.0 * m).reshape(m, 5)
        assert torch.equal(kernel(a, b), a @ b) and torch.equal(f(a, b), a @ b + 1)
    with pytest.raises(Exception, match=r"the inputs a\[2, 5\] do not fit matmul m=3..9"):
        f(torch.zeros(2, 5), b)
    with pytest.raises(at.ArgumentError, match="many kernels; .* that of one size: kernel.at"):
        at.torch.op(kernel)


def test_an_exported_program_names_the_operator() -> None:
    kernel = built("product")

    class Net(torch.nn.Module):
        def forward(self, x, y):
            return kernel(x, y) + 1

    x, y = given()
    program = torch.export.export(Net(), (x, y))
    assert f"autotune.{str(at.torch.op(kernel)).split('.')[1]}.default" in str(program.graph)
    assert torch.equal(program.module()(x, y), x * y + 1)


NOT_TRACED = {
    "shape": (lambda x, y: (x.reshape(15), y), r"'x' is torch.float32 of shape \(15,\), but .*\(5, 3\)"),
    "dtype": (lambda x, y: (x.double(), y), "input 'x' is torch.float64"),
    "transposed": (lambda x, y: (x, y.t().contiguous().t()), "is not C-contiguous: .* give its"),
}


@pytest.mark.parametrize("case", sorted(NOT_TRACED))
def test_what_is_traced_is_checked(case) -> None:
    change, says = NOT_TRACED[case]
    kernel = built("product")
    f = torch.compile(lambda x, y: kernel(*change(x, y)), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=says):
        f(*given())


REFUSED = {
    "not a kernel": (lambda k: at.torch.op(lambda x: x), "takes a kernel, as .*, not a function"),
    "backward": (lambda k: at.torch.op(k, backward=3), "backward is a int: give a kernel, a list"),
    "too few": (lambda k: at.torch.op(k, backward=[None]), "has 1 kernels for 2 inputs: give one for each"),
    "other kernel": (
        lambda k: at.torch.op(k, backward=built("product")),
        r"must take the gradients of the outputs, then all inputs, float32\[5,3\], float32\[5,3\], float32",
    ),
    "no identifier": (lambda k: at.torch.op(k, name="a b"), "can be named 'a b', as it is no ident"),
    "name taken": (
        lambda k: [at.torch.op(k, name="taken_twice") for _ in range(2)],
        "'taken_twice', as there is one already: give another name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_does_not_fit_is_refused(case) -> None:
    call, says = REFUSED[case]
    with pytest.raises(at.ArgumentError, match=says):
        call(built("product"))


def test_a_backward_that_gives_too_few_is_explained() -> None:
    op = at.torch.op(built("product"), backward=lambda g, x, y: g * y)
    with pytest.raises(at.ArgumentError, match="gave 1 gradients for 2 inputs: give one for each, or None"):
        op(*given(True)).sum().backward()
