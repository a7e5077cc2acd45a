"""A second load of the same kernel takes microseconds, and never gives what is out of date."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from log_cases import add
from log_filler import fill

import autotune as at
from autotune.run import recent, warned
from autotune.run.kernel import Kernel
from kernels_db.pins import Pin
from kernels_db.place import locate

SIZES = {"m": 8, "n": 8, "k": 8}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    db = tmp_path_factory.mktemp("log") / "t.db"
    at.tune("matmul", **SIZES, threads=1, trials=3, budget_s=120, db=db, progress=None)
    fill(db, [("matmul", SIZES, 1.0)])  # one more schedule, however few were tried
    return db


def load(db: Path, **more: object) -> Kernel:
    return at.load("matmul", **{**SIZES, "threads": 1, "db": db, **more})  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_next_load_is_quick(tuned: Path) -> None:
    load(tuned), load(tuned)
    begin = time.process_time()
    kernels = [load(tuned) for _ in range(100)]
    each_s = (time.process_time() - begin) / 100
    assert all(k is kernels[0] for k in kernels)
    assert each_s < 1e-3, each_s  # some 30 us; 9 ms when it is looked up
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    assert np.array_equal(kernels[0](a, a), a @ a)


def test_other_arguments_are_other_kernels(tuned: Path) -> None:
    load(tuned), load(tuned)
    with pytest.raises(at.KernelNotFound):
        load(tuned, n=16)
    with pytest.raises(at.KernelNotFound):
        load(tuned, dtype="float64")
    with pytest.raises(at.KernelNotFound):
        load(tuned.with_name("other.db"))


@pytest.mark.parametrize("m", [8.0, True])
def test_numbers_that_are_equal_to_others_are_answered_as_before_any_load(tuned: Path, m: object) -> None:
    def answer() -> object:
        try:
            return load(tuned, **{**SIZES, "m": m}).workload
        except at.AutotuneError as err:
            return str(err)

    recent.clear()
    cold = answer()
    for size in (8, 1):
        for _ in range(3):
            with contextlib.suppress(at.KernelNotFound):
                load(tuned, m=size)
    assert answer() == cold


@pytest.mark.slow
def test_names_of_an_iterator_are_read_once(tmp_path: Path) -> None:
    """As constants for the key of what is kept, for the kernel and for each size of a range."""
    db = tmp_path / "t.db"
    found = at.tune(
        "matmul", **SIZES, constant_weights=iter("b"), threads=1, trials=0, budget_s=120, db=db, progress=None
    )
    assert found.workload.dag.constants == ("b",)
    for _ in range(3):
        assert load(db, constant_weights=iter("b")).workload.dag.constants == ("b",)
    recent.clear()
    sizes = {"m": at.dim(1, 8), "constant_weights": iter("b")}
    dynamic = load(db, **sizes).dynamic  # type: ignore[attr-defined]
    assert [dynamic.at((n,)).dag.constants for n in (3, 8)] == [("b",), ("b",)]


@pytest.mark.parametrize("nothing", [None, (), ""])
def test_no_constants_are_none(tuned: Path, nothing: object) -> None:
    assert load(tuned, constant_weights=nothing) is load(tuned)


@pytest.mark.parametrize("use", [at.load, at.best])
def test_what_names_no_constants_is_refused(tuned: Path, use: Callable[..., object]) -> None:
    with pytest.raises(at.WorkloadError, match="constant_weights: 1 is no name of an input, True or False"):
        use("matmul", **SIZES, constant_weights=1, db=tuned)


def test_what_is_written_meanwhile_is_seen(tuned: Path) -> None:
    before = [load(tuned) for _ in range(3)][-1]
    with at.Log(tuned) as log:
        assert before.record is not None
        others = [r for r in log.records(status="ok") if r.trace_digest != before.record.trace_digest]
        log.pin([Pin(others[0].workload, others[0].target, others[0].uid)])
    pinned = load(tuned)
    assert pinned.record is not None and pinned.record.uid == others[0].uid
    with at.Log(tuned) as log:
        log.unpin()
    assert load(tuned).record == before.record


@pytest.mark.slow
def test_a_warning_comes_each_time(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes with a warning is not kept: here, what nobody tuned."""
    for _ in range(2):
        with pytest.warns(UserWarning, match="no tuned kernel") as caught:
            load(tuned, n=24, fallback=True)
        assert caught[0].filename == __file__  # the user's line


def test_a_removed_log_is_seen(tuned: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with at.Log(tuned) as log:
        log.export(tmp_path / "all.jsonl")
    with at.Log(copy) as log:
        log.merge(tmp_path / "all.jsonl")
    for _ in range(3):
        load(copy)
    for path in tmp_path.glob("copy.db*"):
        path.unlink()
    with pytest.raises(at.KernelNotFound):
        load(copy)


def test_a_link_to_a_log_changes_with_it(tuned: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tuned)
    with at.Log(tuned) as log:
        before = locate(link).version()
        add(log, at.ops.workload("add", {"n": 3}))
        assert locate(link).version() != before


def test_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recent, "MOST", 2)
    monkeypatch.setattr(recent, "_entries", type(recent._entries)())
    for key in range(5):
        recent.load((key,), str(tmp_path / "t.db"), lambda: (object(), True))  # type: ignore[arg-type,return-value]
    assert list(recent._entries) == [(3,), (4,)]
    recent.load(([],), str(tmp_path / "t.db"), lambda: (object(), True))  # type: ignore[arg-type,return-value]
    assert len(recent._entries) == 2  # lists cannot be compared


def test_a_server_tells_no_version() -> None:
    assert locate("postgresql://somebody@nowhere/db").version() is None


def test_warnings_name_the_line_of_the_caller() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warned.warn("look")
    assert caught[0].filename == __file__
