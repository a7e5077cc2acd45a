"""Sizes that vary are open where the program and the target allow it; else each has a kernel of its own."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import run
from log_filler import fill, fill_workloads

import autotune as at
from autotune import backends
from autotune.run import loading
from autotune.run.dynamic_workload import DynamicWorkload
from autotune.run.open_kernel import OpenKernel
from autotune.run.varying import as_asked, undecided, varying
from autotune.run.wider import wider
from autotune.run.workloads import as_workload
from autotune.tuning import tuner
from schedules import ops, te
from schedules.errors import WorkloadError
from schedules.model import Target, Workload
from schedules.te.dims import Dim

NOTHING: tuple[Any, ...] = (None, None, False, None, None)


def asked(program: Any, grid: bool = False, **params: Any) -> Workload | DynamicWorkload:
    return as_asked(program, params, *NOTHING, grid)


def product(**params: Any) -> Workload | DynamicWorkload:
    return asked("matmul", **({"m": 8, "n": 16, "k": 4} | params))


def rows(m: Any) -> list[te.Tensor]:
    x = te.placeholder((m, 3), name="x")
    return [x, te.compute((m, 3), lambda i, j: x[i, j] * 2.0, "y")]


def opened(found: Workload | DynamicWorkload) -> list[str]:
    one = found if isinstance(found, Workload) else found.at(found.largest)
    return [] if one.dag.open is None else [s.name for s in one.dag.open.sizes]


# -- which of both -----------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["matmul", "tensors"])
def test_a_size_is_open_where_nothing_is_said(program: str) -> None:
    def made(m: Dim) -> Workload | DynamicWorkload:
        return product(m=m) if program == "matmul" else asked(rows(m))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        left, wanted, fixed = (made(at.dim(1, 9, "m", open=x)) for x in (None, True, False))
    assert isinstance(left, Workload) and isinstance(wanted, Workload) and left.dag == wanted.dag
    assert left.digest == wanted.digest and opened(left) == ["m"]
    assert isinstance(fixed, DynamicWorkload) and opened(fixed) == []


def test_what_was_said_of_each() -> None:
    assert not undecided("matmul", {"m": at.dim(1, 9, open=True), "n": at.dim(1, 9, open=False), "k": 4})
    assert undecided("matmul", {"m": at.dim(1, 9, open=True), "n": at.dim(1, 9), "k": 4})
    assert undecided("permute", {"shape": (3, at.dim(1, 6)), "axes": (1, 0)})
    assert undecided(rows(at.dim(1, 9)), {}) and not undecided(rows(9), {})
    assert not undecided(te.dag(rows(at.dim(1, 9))), {})


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ("matmul", {"m": 8, "n": 16, "k": at.dim(1, 9)}, "argument a has the open extent k in dimension 1"),
    ("matmul", {"m": 8, "n": at.dim(1, 9), "k": 4}, "argument b has the open extent n in dimension 1"),
    ("matmul", {"m": at.dim(1, 9), "n": 16, "k": at.dim(1, 9)}, "argument a has the open extent k"),
    ("max_pool2d", {"h": at.dim(8, 28), "w": 28, "c": 4, "k": 3}, "its expression needs numbers for h"),
    ("permute", {"shape": (3, at.dim(1, 6)), "axes": (1, 0)}, "shape"),
]


@pytest.mark.parametrize(("program", "params", "why"), REFUSED)
def test_where_open_sizes_are_refused_each_has_a_kernel(
    program: str, params: dict[str, Any], why: str
) -> None:
    with pytest.warns(UserWarning, match="each size gets a kernel of its own") as caught:
        found = asked(program, **params)
    assert isinstance(found, DynamicWorkload) and opened(found) == []
    (said,) = (str(w.message) for w in caught)
    assert why in said and ".." in said.partition(":")[0]
    assert caught[0].filename == __file__


def test_a_value_may_depend_on_an_open_size_that_an_input_tells() -> None:
    m = at.dim(1, 9, "m")
    x = te.placeholder((m, 3), name="x")
    mean = [x, te.compute((m, 3), lambda i, j: x[i, j] / te.cast(m, "float32"), "y")]
    assert opened(asked(mean)) == ["m"]


def test_a_gpu_gives_a_kernel_for_each() -> None:
    with pytest.warns(UserWarning, match="kernels for a GPU take no open sizes"):
        assert isinstance(asked("matmul", True, m=at.dim(1, 9), n=8, k=8), DynamicWorkload)
    with pytest.raises(WorkloadError, match="GPU take no open sizes; give open=False .*, or tune for a CPU"):
        asked("matmul", True, m=at.dim(1, 9, open=True), n=8, k=8)


def test_a_size_that_must_be_open_stays_so() -> None:
    with pytest.raises(WorkloadError, match="argument a has the open extent k .* or open=False"):
        product(k=at.dim(1, 9, open=True))
    with pytest.warns(UserWarning, match="open extent k"):
        both = product(m=at.dim(1, 9, "m", open=True), k=at.dim(1, 9))
    assert isinstance(both, DynamicWorkload) and opened(both) == ["m"]
    assert [d.name for d in both.dims] == ["k"]
    mixed = product(m=at.dim(1, 9), n=16, transpose_a=0)
    assert isinstance(mixed, Workload)


def test_strides_that_depend_on_a_size_give_a_kernel_for_each() -> None:
    m = at.dim(1, 9)
    told = (None, None, False, None, {"a": (1, m + 3)}, False)
    with pytest.warns(UserWarning, match="a stride of argument a depends on the open size"):
        found = as_asked("matmul", {"m": m, "n": 4, "k": 2}, *told)
    assert isinstance(found, DynamicWorkload)
    assert [found.at((n,)).dag.inputs[0].strides for n in (2, 5)] == [(1, 5), (1, 8)]


def test_what_is_no_program_either_way_is_refused_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for params, said in (
            ({"q": at.dim(1, 4)}, "has no parameter 'q'"),
            ({"m": at.dim(4, 4)}, "does not vary"),
        ):
            with pytest.raises(WorkloadError, match=said):
                product(**params)


def test_both_ways_are_known_of_what_a_log_may_have() -> None:
    found = varying("matmul", {"m": at.dim(1, 9), "n": 8, "k": 8}, *NOTHING, False)
    assert isinstance(found.opened, Workload) and not found.why
    assert found.fixed.at((9,)).dag == found.opened.dag.largest


@pytest.mark.parametrize(
    ("targets", "grid"),
    [
        (None, False),
        ("znver4, x86-64-v3", False),
        ("x86-64-v3,cuda", True),
        (["cuda-emulator"], True),
        ([Target("cuda", "sm_90")], True),
        (Target("cpu", "znver4"), False),
        ("a100", True),
        ("nobody knows", False),
    ],
)
def test_targets_that_are_named_for_a_fleet(targets: Any, grid: bool) -> None:
    assert backends.names_grid(targets) is grid


# -- tuned, and from the command line ------------------------------------------------------------


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is tuned, which nothing measures."""
    found: list[Any] = []

    def noted(maker: Any, *_: Any, **__: Any) -> Any:
        found.append(maker)
        raise WorkloadError("enough")

    monkeypatch.setattr(tuner, "tune_jobs", noted)
    return found


def test_the_command_line_says_which(tmp_path: Path, tuned: list[Any]) -> None:
    words = ("--budget", "1s", "--db", tmp_path / "t.db", "--threads", 1)
    for shape in ("m=1..9", "m=1..9,open", "m=1..9,fixed"):
        assert run("tune", "matmul", "--shape", f"{shape},n=8,k=8", *words).status
    left, wanted, fixed = tuned
    assert left.workload == wanted.workload and left.workload.dag.open is not None
    assert isinstance(fixed.dynamic, DynamicWorkload)
    ran = run("tune", "matmul", "--shape", "m=8,n=8,k=1..9", *words)
    assert isinstance(tuned[-1].dynamic, DynamicWorkload)
    assert "matmul m=8 n=8 k=1..9 float32: each size gets a kernel of its own" in ran.err
    assert "argument a has the open extent k in dimension 1" in ran.err and "UserWarning" not in ran.err


def test_with_another_kind_of_target_each_size_has_a_kernel(tmp_path: Path, tuned: list[Any]) -> None:
    with pytest.warns(UserWarning, match="GPU"), pytest.raises(WorkloadError, match="enough"):
        at.tune(
            "matmul", m=at.dim(1, 9), n=8, k=8, target=Target("cuda", "sm_90"), db=tmp_path / "t.db",
            progress=None,
        )  # fmt: skip
    assert isinstance(tuned[-1].dynamic, DynamicWorkload)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("m=0..5", "m=0..5: a range begins at 1 or above"),
        ("m=5..1", "m=5..1: a range begins at 1 or above and does not end below that"),
        (
            "m=1..5,opn",
            "cannot read 'opn'; behind a range stands open, fixed or nothing, such as m=1..512,open",
        ),
        ("m=1..5,fixed,opn", "cannot read 'opn'"),
        ("n=3,opn", "cannot read 'opn'; write name=integer"),
        ("m=1..", "m=1.. is not a number, nor a list .*, nor a range, as 1..512"),
    ],
)
def test_bad_ranges_are_told(shape: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said.replace("..", r"\.\.")):
        ops.parse_shape(shape)


# -- loaded ------------------------------------------------------------------------------------


def stored(db: Path, m: Any, n: int = 4) -> None:
    """A log with a kernel of a product whose rows are ``m``."""
    fill(db, [("matmul", {"m": m, "n": n, "k": 4}, 1e-6)])


def load(db: Path, lo: int, hi: int, open: bool | None = None, **more: Any) -> Any:
    return at.load("matmul", m=at.dim(lo, hi, open=open), n=4, k=4, threads=1, db=db, **more)


def right(kernel: Any, *sizes: int) -> None:
    for m in sizes:
        a = np.random.default_rng(m).integers(-4, 5, (m, 4)).astype("float32")
        b = np.ones((4, 4), "float32")
        assert np.array_equal(kernel(a, b), a @ b)


def test_a_log_with_single_sizes_serves_as_before(tmp_path: Path) -> None:
    """As one that an earlier version wrote for `at.dim(1, 9)`."""
    db = tmp_path / "t.db"
    for m in (1, 9):
        stored(db, m)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = load(db, 1, 9)
    assert isinstance(kernel, at.DynamicKernel) and not isinstance(kernel, OpenKernel)
    assert list(kernel.sizes) == [(1,), (9,)]
    right(kernel, 1, 9)
    assert isinstance(load(db, 1, 9, False), at.DynamicKernel)
    with pytest.raises(at.KernelNotFound, match="m=1..9,open"):
        load(db, 1, 9, True)


def test_one_for_all_sizes_comes_first_and_a_size_of_its_own_keeps_its_kernel(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    stored(db, 9)
    stored(db, at.dim(1, 9))
    kernel = load(db, 1, 9)
    assert isinstance(kernel, OpenKernel)
    right(kernel, 1, 5, 7, 9)
    assert kernel.at(m=9).code.shared is not kernel.at(m=6).code.shared is kernel.at(m=5).code.shared
    assert not isinstance(load(db, 1, 9, False), OpenKernel)


def test_a_wider_range_serves_too(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    stored(db, at.dim(1, 40))
    stored(db, at.dim(2, 20))
    stored(db, at.dim(1, 40), n=8)
    kernel = load(db, 3, 9)
    assert isinstance(kernel, OpenKernel) and "matmul m=2..20 n=4 k=4" in repr(kernel)
    right(kernel, 3, 9)
    assert "m=1..40" in repr(load(db, 1, 9, True))
    with pytest.raises(at.KernelNotFound, match="m=1..41,open"):
        load(db, 1, 41)


def test_a_range_serves_one_size_of_it(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    stored(db, at.dim(1, 40))
    stored(db, at.dim(2, 20))
    one = {"n": 4, "k": 4, "threads": 1, "db": db}
    kernel = at.load("matmul", m=7, **one)
    assert not isinstance(kernel, OpenKernel) and kernel.chosen_by == "log"
    assert " open 2..20 " in kernel.code.shared.signature
    right(kernel, 7)
    with pytest.raises(at.ArgumentError):
        right(kernel, 8)
    right(at.load("matmul", m=33, **one), 33)
    for other in ({"m": 41}, {"m": 7, "n": 8}):
        with pytest.raises(at.KernelNotFound):
            at.load("matmul", **(one | other))


def test_nothing_stored_is_told_with_the_command_for_all_sizes(tmp_path: Path) -> None:
    with pytest.raises(
        at.KernelNotFound, match="tune it first: autotune tune matmul --shape m=1..9,open,n=4,k=4"
    ):
        load(tmp_path / "t.db", 1, 9)


def test_single_sizes_for_other_machines_are_told(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    fill(db, [("matmul", {"m": 9, "n": 4, "k": 4}, 1e-6)], Target("cpu", "of another maker", "x86_64", (), 1))
    with pytest.raises(at.KernelNotFound, match="stored there: cpu of another maker"):
        load(db, 1, 9)


def test_a_kernel_for_a_range_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = tmp_path / "t.db"
    stored(db, m := at.dim(1, 9))
    given = {"m": m, "n": 4, "k": 4, "threads": 1, "db": db}
    _, kept = (at.load("matmul", **given) for _ in range(2))  # the first finds a log that was just written
    monkeypatch.setattr(loading, "varying", None)  # not asked again
    assert at.load("matmul", **given) is kept


@pytest.mark.parametrize("tied", [True, False])
def test_a_kernel_of_one_size_is_not_taken_for_two(tmp_path: Path, tied: bool) -> None:
    """At both ends of the ranges all sizes are equal."""

    def program(same: bool) -> Workload:
        m = at.dim(1, 16, "m", open=True)
        n = m if same else at.dim(1, 16, "n", open=True)
        x, y = te.placeholder((m, 4), name="x"), te.placeholder((n, 4), name="y")
        k = te.reduce_axis(n, "k")
        total = te.compute((4,), lambda q: te.sum(y[k, q], axis=k), "total")
        return as_workload([x, y, te.compute((m, 4), lambda i, q: x[i, q] + total[q], "z")], {})

    fill_workloads(tmp_path / "t.db", [(program(tied), 1e-6)])
    assert not wider(program(not tied), str(tmp_path / "t.db"))


def test_a_log_of_a_size_that_no_input_tells_is_searched(tmp_path: Path) -> None:
    """A model gives such a size to a kernel, which reads a table as far as that says."""
    n = at.dim(1, 16, "n", open=True)
    x, k = te.placeholder((n, 4), name="x"), te.reduce_axis(n, "k")
    dag = te.dag([x, te.compute((4,), lambda j: te.sum(x[k, j], axis=k), "total")])
    assert dag.open is not None
    dag = replace(dag, open=replace(dag.open, inputs=()))
    untold, db = Workload(dag, "sum", (), 128), tmp_path / "t.db"
    fill_workloads(db, [(untold, 1e-6)])
    stored(db, at.dim(1, 16))
    assert isinstance(load(db, 3, 9), OpenKernel)
    assert not wider(untold, str(db))
