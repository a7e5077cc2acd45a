"""``torch.compile(backend="autotune")``: kernels of an import, weights that change, what torch runs."""

from __future__ import annotations

import copy
import gc
import pickle
import tomllib
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from default_kernels import default_kernels
from torch_cases import F, exported, torch
from torch_cases import Of as Function

import autotune as at
from autotune.errors import ArgumentError, ModelError
from autotune.models import compiling, torch_backend

nn = torch.nn


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A log and a cache of the test's own, and no graphs of other tests."""
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "log.db"))
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    torch_backend._graphs.clear()
    yield
    torch.compiler.reset()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Default kernels in the place of first picks, which take seconds."""

    monkeypatch.setattr(compiling, "untuned_kernels", default_kernels)


class Net(nn.Module):  # type: ignore[misc,name-defined]
    """A product with its activation, and a normalised sum of rows."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner = nn.Linear(4, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        return self.norm(F.relu(self.inner(x)))


def compiled(module: Any, **options: Any) -> Callable[..., Any]:
    """A module that torch compiles with one thread; torch warns of its own ways."""

    def backend(graph: Any, inputs: Any, **how: Any) -> Any:
        return torch_backend.backend(graph, inputs, **how)

    return torch.compile(module.eval(), backend=backend, options={"threads": 1, **options})  # type: ignore[no-any-return]


def agrees(f: Callable[..., Any], module: Any, *args: Any) -> None:
    """Without a warning, what torch computes."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        made = f(*args)
        torch.testing.assert_close(made, module(*args), rtol=1e-5, atol=1e-5)


def test_the_package_enters_it_under_its_name() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["autotune"].partition(":")
    assert getattr(import_module(module), name) is torch_backend.backend


@pytest.mark.slow
def test_what_was_tuned_for_an_exported_module_is_found() -> None:
    """No group of the compiled module runs a first pick."""
    module, x = Net(), torch.randn(6, 4)
    model = at.import_torch(exported(module, x))
    tuned = at.tune_model(model, threads=1, trials=1, budget_s=60)
    assert len(tuned.tasks) >= 2 and tuned.weighted_s is not None
    net = at.compile_model(model, threads=1)
    agrees(compiled(module), module, x)  # without a warning of kernels that are not tuned
    (same,) = at.torch.modules()
    assert [t.digest for t in same.program.outline.tasks] == [t.digest for t in net.program.outline.tasks]
    assert [k.chosen_by for k in same.program.kernels] == ["log"] * len(tuned.tasks)
    assert [r.chosen_by for r in same.profile(x, repeat=1).rows] == ["log"] * len(same.program.outline.calls)


def test_nothing_is_tuned_in_a_call_and_the_warning_names_what_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*args: Any, **how: Any) -> Any:
        raise AssertionError("a call tunes")

    monkeypatch.setattr("autotune.tuning.tuner.tune_jobs", never)
    monkeypatch.setattr("autotune.tuning.first_pick.first_pick", lambda *args, **how: None)
    module, x = nn.Linear(4, 3), torch.randn(2, 4)
    with torch.no_grad(), pytest.warns(UserWarning, match="1 of 1 tasks run kernels that are not tuned"):
        y = compiled(module)(x)
    torch.testing.assert_close(y, module(x).detach())
    assert {k.chosen_by for k in at.torch.modules()[0].program.kernels} == {"default"}


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_weights_that_change_are_packed_anew() -> None:
    module, x = Net(), torch.randn(6, 4)
    f = compiled(module)
    agrees(f, module, x)
    (before,) = at.torch.modules()
    with torch.no_grad():
        module.inner.weight.mul_(-2)  # in place
    agrees(f, module, x)
    assert at.torch.modules() == [before]  # which took the new weights
    module.inner.bias = nn.Parameter(torch.randn(8))  # another tensor
    agrees(f, module, x)
    module.load_state_dict(Net().state_dict())
    agrees(f, module, x)


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_modules_that_share_a_graph_have_their_own_weights() -> None:
    class Layers(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Net(4) for _ in range(2))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    module, x = Layers().eval(), torch.randn(6, 4)
    with torch.no_grad():
        want = module(x)
    for layer in module.layers:
        layer.compile(backend=torch_backend.backend, options={"threads": 1})
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(module(x), want, rtol=1e-5, atol=1e-5)
    assert len(at.torch.modules()) == 2
    del module, layer
    torch.compiler.reset()
    gc.collect()
    assert at.torch.modules() == []


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_inputs_are_read_as_the_first_call_has_them_and_other_copies_are_told() -> None:
    module, x = Net(), torch.randn(4, 6).T
    f = compiled(module)
    agrees(f, module, x)
    (net,) = at.torch.modules()
    assert net.profile(x, repeat=1).copies == ()
    assert net.profile(x.contiguous(), repeat=1).copies == (net.inputs[0].name,)
    agrees(f, module, x.contiguous())


@pytest.mark.usefixtures("plain")
def test_outputs_lie_as_torch_lays_them() -> None:
    class Turned(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return (x + 1).transpose(0, 1), x * 2

    module, x = Turned(), torch.randn(3, 5)
    f = compiled(module)
    agrees(f, module, x)
    with torch.no_grad():
        assert [y.stride() for y in f(x)] == [y.stride() for y in module(x)]
    assert len(at.torch.modules()) == 1


@pytest.mark.usefixtures("plain")
def test_inference_mode() -> None:
    with torch.inference_mode():
        module, x = Net().eval(), torch.randn(6, 4)
        f = compiled(module)
        torch.testing.assert_close(f(x), module(x), rtol=1e-5, atol=1e-5)
    assert len(at.torch.modules()) == 1


class Of(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *xs: Any) -> Any:
        return self.fn(*xs)


# --- memory that is shared --------------------------------------------------------------------


def shares(x: Any) -> Any:
    """Views of an input, of one result, and what is alone."""
    y = torch.relu(x) + 1
    a, b = y.chunk(2, 1)
    return x.t(), a, b.t(), x[1:, ::2], x + 1, (x * 2).t(), y


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*tasks run kernels that are not tuned")
def test_results_share_memory_where_they_do_in_torch() -> None:
    """A write to one is seen in all that share its memory, and in no other."""
    base = torch.randn(5, 6)
    views = []
    for fn in (shares, compiled(Of(shares), strict=True)):
        x = base.clone()[1:]  # begins inside its memory
        with torch.no_grad():
            made = fn(x)
            fn(x)
            made[0][0, 0] = 7.0
            made[1][2, 1] = 8.0
            made[6][0, 5] = 9.0
            made[4][1, 1] = 10.0
        views.append((x, *made))
    for have, want in zip(*views, strict=True):
        torch.testing.assert_close(have, want)
        assert have.stride() == want.stride()
    assert len(at.torch.modules()) == 1


def spread(a: Any, b: Any) -> Any:
    """Elements at one place: of what is computed, of inputs, of nothing; and results without elements."""
    y = a * 2
    rows = (b + 1)[:, :1]
    return (
        rows.expand(4, 6), rows.expand(4, 3), *torch.meshgrid(y[0], b[0] * 3, indexing="ij"),
        *torch.broadcast_tensors(a[:1], b, (a > 1)[:, :1]), y.as_strided((3, 3), (2, 1)), y.sum().expand(2),
        y.sum(), y.contiguous(), y, a.contiguous(), b.unfold(1, 2, 1), torch.arange(3),
        torch.ones(2).expand(3, 2), y[:0], a[:0].t(), b.new_empty(0, 3).sum(),
    )  # fmt: skip


def writes(a: Any, b: Any) -> Any:
    """To inputs, of which views are returned too."""
    a.add_(1)
    b[:, 1] = a.sum()
    return a.t(), a * b, b


def nothing_to_compute(a: Any, b: Any) -> Any:
    return a.contiguous(), b.t().contiguous().t()[:0], a.detach()


@pytest.mark.fast("nothing_to_compute")
@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("fn", [spread, writes, nothing_to_compute])
def test_results_and_written_inputs_are_those_of_torch(fn: Callable[..., Any]) -> None:
    """Values, strides, identity, and what is shared, at the first call and later."""
    f = compiled(Of(fn), strict=True)
    for first in (0.0, 1.0):
        ours = [torch.arange(12.0).reshape(4, 3) + first for _ in "ab"]
        theirs = [x.clone() for x in ours]
        with torch.no_grad():
            got, want = [*f(*ours), *ours], [*fn(*theirs), *theirs]
        for x, y in zip(got, want, strict=True):
            assert torch.equal(x, y) and (x.dtype, x.stride()) == (y.dtype, y.stride())
        same = [[[x is y for y in xs] for x in xs] for xs in (got, want)]
        at = [[x.untyped_storage().data_ptr() if x.numel() else None for x in xs] for xs in (got, want)]
        assert same[0] == same[1]
        assert [[p == q for q in at[0]] for p in at[0]] == [[p == q for q in at[1]] for p in at[1]]


@pytest.mark.usefixtures("plain")
def test_a_graph_without_tensors_returns_tensors() -> None:
    f = compiled(Of(lambda: (torch.arange(3) * 2, torch.ones(2))), strict=True)
    for y, want in zip(f(), (torch.tensor([0, 2, 4]), torch.ones(2)), strict=True):
        assert torch.equal(y, want)


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_views_of_inputs_of_open_sizes_and_any_strides() -> None:
    def fn(a: Any, b: Any) -> Any:
        return a[1:].t(), a + b

    f = torch.compile(fn, backend=torch_backend.backend, dynamic=True, options={"strict": True, "threads": 1})
    base = torch.arange(40.0)
    for x in (base[:12].reshape(3, 4), base[:20].reshape(4, 5), base[:20].reshape(5, 4).t()):
        with torch.no_grad():
            y, _ = f(x, x * 2)
        assert torch.equal(y, x[1:].t()) and y.stride() == x[1:].t().stride()
        assert y.data_ptr() == x[1:].data_ptr()


@pytest.mark.usefixtures("plain")
def test_what_an_overlap_makes_depend_on_the_order_runs_as_torch_runs_it() -> None:
    def fn(a: Any, b: Any) -> Any:
        a.mul_(2)
        return b + 1

    f = compiled(Of(fn), strict=True)
    with torch.no_grad():
        assert torch.equal(f(torch.ones(3, 4), torch.ones(3, 4)), torch.full((3, 4), 2.0))
        base = torch.ones(4, 4)
        assert torch.equal(f(base[:3], base[1:])[:, 0], torch.tensor([3.0, 3.0, 2.0]))


@pytest.mark.usefixtures("plain")
def test_a_module_that_writes_to_its_buffer_runs_as_torch_runs_it() -> None:
    class Counts(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(2))

        def forward(self, x: Any) -> Any:
            self.n.add_(x)
            return self.n * 2

    f = compiled(Counts())
    with torch.no_grad(), pytest.warns(UserWarning, match="as torch runs it: .*writes to buffer"):
        assert [f(torch.ones(2)).tolist(), f(torch.ones(2)).tolist()] == [[2, 2], [4, 4]]


# --- what torch runs --------------------------------------------------------------------------


def special(x: Any) -> Any:
    return torch.special.i0(x) * 2


CASES = {
    "operators": (special, r"aten\.i0\.default \(1\)"),
    "views": (lambda x: x.view(torch.int32), r"its output 0 is a view of an input of another dtype"),
    "views of both": (
        lambda x: ((y := x * 2), y.view(torch.int32)),
        r"its output 0 shares memory with .* another dtype",
    ),
    "dtypes": (lambda x: x.to(torch.uint64), r"uint64, which is not supported"),
    "complex": (lambda x: x.to(torch.complex64) * 2, r"is complex, which is not supported"),
    "random": (lambda x: F.dropout(x, 0.5), r"it makes random numbers"),
}


@pytest.mark.fast("views", "views of both")
@pytest.mark.parametrize("case", CASES)
def test_what_has_no_expression_runs_as_torch_runs_it_with_one_warning(case: str) -> None:
    fn, why = CASES[case]
    module, x = Of(fn), torch.randn(3, 4)
    f = compiled(module)
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.manual_seed(1)
        made = f(x.clone()), f(x.clone())
        torch.manual_seed(1)
        want = module(x.clone()), module(x.clone())
    torch.testing.assert_close(made, want)
    ours = [str(w.message) for w in told if "as torch runs it" in str(w.message)]
    assert len(ours) == 1
    with torch.no_grad(), pytest.raises(ModelError, match=why):
        compiled(Of(fn), strict=True)(x.clone())


@pytest.mark.slow
def test_what_is_not_tuned_is_told_with_the_call_that_tunes() -> None:
    module, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    with torch.no_grad(), pytest.warns(UserWarning, match="1 of 1 tasks run kernels") as told:
        compiled(module)(x)
    (warning,) = [w for w in told if "not tuned" in str(w.message)]
    call = "autotune.tune_model(autotune.import_torch(torch.export.export(module, inputs)), threads=1)"
    assert str(warning.message).endswith(f": not tuned\ntune them: {call}") and warning.filename == __file__
    at.tune_model(at.import_torch(exported(module, x)), threads=1, trials=0, progress=None)
    torch.compiler.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", ".*not tuned")
        compiled(module)(x)


def test_a_graph_that_torch_cannot_export_runs_as_torch_runs_it() -> None:
    graph, x = torch.fx.symbolic_trace(lambda x: (x * x.sum().item(),)), torch.ones(3)
    f = torch_backend.backend(graph, [x])
    with pytest.warns(UserWarning, match=r"torch cannot export it: .*data-dependent|scalar_dense"):
        torch.testing.assert_close(f(x)[0], torch.full((3,), 3.0))


def test_a_call_that_needs_gradients_runs_as_torch_runs_it() -> None:
    module, x = Net(), torch.randn(6, 4)
    f = compiled(module)
    with pytest.warns(UserWarning, match=r"needs gradients.*torch\.no_grad\(\)") as told:
        f(x).sum().backward()
    assert {w.filename for w in told if "needs gradients" in str(w.message)} == {__file__}
    assert module.inner.weight.grad is not None and at.torch.modules() == []
    with pytest.raises(ModelError, match=r"torch\.no_grad\(\)"):
        compiled(Net(), strict=True)(x)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"options": {"thread": 1}}, r"no option 'thread'.*did you mean.*threads, strict"),
        ({"options": {"threads": 0}}, r"threads is a number from 1 on, not 0"),
        ({"options": {"threads": True}}, r"threads is a number from 1 on, not True"),
        ({"options": {"limit_s": -1}}, r"limit_s is a number of seconds from 0 on, or None .*, not -1"),
        ({"options": {"limit_s": "30"}}, r"limit_s is a number of seconds"),
        ({"options": {"limit_s": float("nan")}}, r"limit_s is a number of seconds"),
        ({"options": {"strict": True, "background": True}}, r"strict and background exclude each other"),
        ({"mode": "max-autotune"}, r"has no modes"),
    ],
)
def test_options_that_there_are_not(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        torch_backend.backend(torch.fx.symbolic_trace(Net()), [], **how)


@pytest.mark.slow
def test_a_copy_of_a_compiled_module_has_weights_of_its_own(plain: None) -> None:
    x = torch.randn(3, 4)
    f = compiled(Net())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = f(x)
        for way in (copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))):
            module = Net().eval()
            module.compile(backend="autotune", options={"threads": 1})
            was = module(x)
            other = way(module)
            torch.testing.assert_close(other(x), was)
            other.norm.bias.add_(1)
            torch.testing.assert_close(other(x), was + 1)
            torch.testing.assert_close(module(x), was)
        other = copy.deepcopy(f)
        other.norm.bias.add_(1)
        torch.testing.assert_close(other(x), before + 1)
        torch.testing.assert_close(f(x), before)


@pytest.mark.slow
def test_tensors_without_axes_and_numbers_that_are_data(plain: None) -> None:
    """An index that is data is seen anew in every call."""
    f = compiled(
        Function(lambda s, t: (s.sum(0) + 1, t.softmax(-1), (s > 0).any(0), torch.fmax(s, t.amax(0))))
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = f(torch.tensor(2.5), torch.tensor(3.0))
        assert [y.item() for y in made] == [3.5, 1.0, True, 3.0] and at.torch.modules()
        g, x = compiled(Function(lambda x, i: x[i] * 2)), torch.randn(4, 3)
        for i in (2, 0, -1):
            torch.testing.assert_close(g(x, torch.tensor(i)), x[i] * 2)
