"""The site: its reference names all that is public, and pages that are made of the code have all of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
from needs import imported

import autotune as at
from schedules import ops, te
from schedules.primitives import PRIMITIVES
from schedules.primitives.annotate import HINTS

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = "".join(p.read_text("utf-8") for p in (ROOT / "docs" / "reference").glob("*.md"))
# Modules, whose contents are named, and what is a number.
ELSEWHERE = {"__version__", "te", "torch", "ops"}


@pytest.fixture(scope="module")
def generate():
    """The module that makes pages."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import generate

        return generate
    finally:
        sys.path.remove(str(ROOT / "docs"))


def test_the_reference_names_all_that_is_public() -> None:
    named = set(re.findall(r"auto\w+:: autotune\.(\S+)", REFERENCE))
    assert set(at.__all__) - ELSEWHERE <= named
    types = {"Expr", "Reduction", "Tensor", "inf"}
    assert {f"te.{n}" for n in set(te.__all__) - types} <= named


def test_all_that_the_reference_names_is_documented() -> None:
    for name in re.findall(r"auto(?:function|class|exception):: (autotune\.\S+)", REFERENCE):
        assert (resolve_name(name).__doc__ or "").strip(), name


def test_made_pages_have_every_operator_command_primitive_and_version(generate) -> None:
    assert set(re.findall(r"^## (\S+)$", generate.operators(), re.MULTILINE)) == set(ops.REGISTRY)
    assert set(re.findall(r"^## (\S+)$", generate.primitives(), re.MULTILINE)) == set(PRIMITIVES)
    assert set(re.findall(r"^\| `(\w+)` \|", generate.primitives(), re.MULTILINE)) == set(HINTS)
    commands = generate.command_line()
    for name in ("tune", "best", "bench", "export", "ops", "doctor", "log stats", "log merge", "cache clear"):
        assert f"## autotune {name}\n" in commands
    assert "| `--budget` `TIME` |" in commands and "$ autotune tune matmul --shape m=512" in commands
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert {f"changes/{v.lower()}.md" for v in versions} < set(generate.changes())


def test_primitives_are_shown_with_all_their_arguments(generate) -> None:
    """autodoc took the first one for ``self`` and left it out."""
    page = generate.primitives()
    assert (
        ".. automethod:: autotune.Schedule.split(loop: str, factors: Factor | Sequence[Factor | None]" in page
    )
    assert ".. automethod:: autotune.Schedule.reorder(*loops: str)\n" in page


@pytest.mark.parametrize(
    "inside, written, shown",
    [
        ("autotune.tune", "see `load`", "see :py:obj:`load <autotune.load>`"),
        ("autotune.tune", "`Kernel.time`", ":py:obj:`Kernel.time <autotune.Kernel.time>`"),
        ("autotune.tune", "`Progress`", ":py:obj:`Progress <autotune.results.tuned.Progress>`"),
        ("autotune.te.prod", "as in `sum`", "as in :py:obj:`sum <autotune.te.sum>`"),
        ("autotune.Schedule.split", "`ComputeAt`", ":py:obj:`compute_at <autotune.Schedule.compute_at>`"),
        ("autotune.Kernel", "Raises LogError.", "Raises :py:obj:`LogError <autotune.LogError>`."),
        ("autotune.tune", "`sum` and `tune` and ``load``", "``sum`` and ``tune`` and ``load``"),
        ("autotune.dim", "Example:\n\n    m = 1", "Example::\n\n    m = 1"),
        ("autotune.export", "a\n\n    >>> b\n    c", "a\n\n>>> b\nc"),
    ],
)
def test_names_in_docstrings_become_links_and_examples_code(generate, inside, written, shown) -> None:
    lines = written.split("\n")
    generate.plain_names(None, "function", inside, None, None, lines)
    assert "\n".join(lines) == shown


def test_links_out_of_the_site_become_paths(generate) -> None:
    zen4, kept = "benchmarks/zen4.md", "[guide](index.md#x), [a](https://b.c), ![p](images/search.svg)"
    text = [f"[figures](../benchmarks/README.md), [zen4.md](../{zen4}), {kept}"]
    generate.outside(None, "index", text)
    assert text == [f"figures (`benchmarks/README.md`), `{zen4}`, {kept}"]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    imported("sphinx")
    made, trees = tmp_path / "site", str(tmp_path / "trees")
    build = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", trees]
    done = subprocess.run([*build, str(ROOT / "docs"), str(made)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list(made.rglob("*.html"))
    assert len(pages) > 100, len(pages)
    for page in pages:
        text = page.read_text("utf-8")
        asked = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+", text)
        assert not asked, (page, asked)
