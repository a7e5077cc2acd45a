"""The reference is made of docstrings: each public name has an example, and the examples run."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import autotune as at
from autotune import te
from schedules.primitives import PRIMITIVES

ROOT = Path(__file__).resolve().parents[2]
NAMED = sorted(
    {
        found
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for found in re.findall(r"auto(?:function|class|exception):: (\S+)", page.read_text("utf-8"))
    }
)
INLINE = re.compile(r"Example: ``(.+?)``")
# They need no example: nobody makes them. They are what other calls return or raise.
GIVEN = {
    "autotune.Compiled",
    "autotune.CompileError",
    "autotune.Exported",
    "autotune.ExportedModel",
    "autotune.MissingExtraError",
    "autotune.models.profile.Profile",
    "autotune.results.tuned.Best",
    "autotune.results.tuned.Progress",
    "autotune.results.tuned.SuiteProgress",
    "autotune.results.tuned.TaskResult",
    "autotune.torch.InductorChoice",
    "autotune.torch.InductorChoices",
    "kernels_db.records.Record",
}
# Their examples are not run here: they need torch, a linker, or many seconds.
ELSEWHERE = {
    "autotune.DynamicKernel",
    "autotune.OpenKernel",
    "autotune.export",
    "autotune.torch.inductor",
    "autotune.torch.op",
}


def _doc(name: str) -> str:
    return resolve_name(name).__doc__ or ""


def _has_example(doc: str) -> bool:
    return ">>> " in doc or "Example" in doc


def _run(doc: str, name: str, names: dict[str, Any]) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(doc, names, name, None, None)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=flags).run(test, out=said.append)
    assert result.attempted and not result.failed, "".join(said)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The module that makes pages."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of one small matrix product."""
    path = tmp_path_factory.mktemp("examples") / "log.db"
    monkeypatch = pytest.MonkeyPatch()  # one of a test is not there yet
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(path.parent / "cache"))
    at.tune("matmul", m=64, n=64, k=64, threads=1, trials=0, db=path, progress=None)
    monkeypatch.undo()
    return path


def test_every_public_name_has_an_example() -> None:
    assert len(NAMED) > 90
    missing = [name for name in NAMED if name not in GIVEN and not _has_example(_doc(name))]
    assert not missing
    assert not [name for name in GIVEN | ELSEWHERE if name not in NAMED]


@pytest.mark.parametrize("name", [n for n in NAMED if n not in ELSEWHERE and ">>> " in _doc(n)])
def test_examples_run(name: str, log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOTUNE_DB", str(log))
    monkeypatch.chdir(tmp_path)
    _run(_doc(name), name, {"at": at, "np": np, "te": te, "Path": Path})


@pytest.mark.parametrize("name", sorted(set(PRIMITIVES) - {"tensorize"}))
def test_examples_of_primitives_run(name: str, generate: ModuleType) -> None:
    """In their docstrings ``s`` is a schedule of the expression that the page of primitives begins with."""
    names: dict[str, Any] = {"at": at, "np": np, "te": te}
    exec(generate.EXAMPLE, names)
    _run(getattr(at.Schedule, name).__doc__ or "", name, names)


@pytest.mark.parametrize("name", [n for n in NAMED if ".te." in n and INLINE.search(_doc(n))])
def test_examples_within_sentences_are_stages(name: str) -> None:
    """An example such as ``te.exp(x[i])``: ``x`` and its like are inputs of eight elements."""
    floats = {key: te.placeholder((8,), name=key) for key in ("x", "y", "scale", "shift")}
    integers = {key: te.placeholder((8,), "int32", name=key) for key in ("n", "m")}
    for text in INLINE.findall(" ".join(_doc(name).split())):

        def value(i: te.Expr, text: str = text) -> Any:
            return eval(text, {"te": te, "i": i, **floats, **integers})

        stage = te.compute((8,), value, name="stage")
        inputs = te.inputs(stage)
        arrays = [np.ones(t.shape, t.dtype) for t in inputs]
        (out,) = te.evaluate(te.dag([*inputs, stage]), arrays)
        assert out.shape == (8,) and not np.isnan(out).any()
