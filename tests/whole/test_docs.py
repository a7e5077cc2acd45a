"""The documents say what the code does: the walkthrough is its script's output, and links lead somewhere."""

from __future__ import annotations

import importlib.util
import inspect
import platform
import re
import runpy
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from needs import imported

import autotune as at
from schedules import ops, te
from schedules.te import scalars

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "configs", "benchmarks")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/**/*.md"))]
ASSEMBLY = re.compile(r"```asm\n.*?```", re.DOTALL)  # LLVM's own text, which changes with its version


@pytest.fixture(scope="module")
def walkthrough() -> ModuleType:
    spec = importlib.util.spec_from_file_location("walkthrough", ROOT / "docs" / "walkthrough.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the page compiles for x86-64")
def test_the_walkthrough_is_what_its_script_writes(walkthrough: ModuleType) -> None:
    written = walkthrough.PAGE.read_text(encoding="utf-8")
    now = walkthrough.render()
    assert ASSEMBLY.sub("", written) == ASSEMBLY.sub("", now), f"out of date: run {walkthrough.COMMAND}"
    assert ASSEMBLY.search(written) is not None


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/operators.md"])
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    examples = re.findall(r"<!-- runs -->\n```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    script = tmp_path / "examples.py"
    script.write_text("\n".join(examples), encoding="utf-8")
    assert examples and runpy.run_path(str(script))


@pytest.mark.slow
def test_the_readme_is_short_and_its_python_runs(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    blocks = [b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "import_onnx" not in b]
    short, shortened = re.subn(r'budget="\d+s"', "trials=0", "\n".join(blocks))
    assert shortened == 2
    script = tmp_path / "examples.py"
    script.write_text(short, encoding="utf-8")
    names = runpy.run_path(str(script))
    assert (names["c"] == 512.0).all() and names["kernel"].chosen_by == "log"


@pytest.mark.slow
def test_the_readmes_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = imported("onnx")
    text = (ROOT / "README.md").read_text("utf-8")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "import_onnx" in b)
    short, shortened = re.subn(r'budget="\d+m"', "trials=1", block)
    assert shortened == 1
    graph = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
        net (float[2, 3] x) => (float[2, 3] y) { z = Relu(x)  y = Add(z, x) }""")
    onnx.save(graph, tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "log.db"))
    x = np.arange(-3, 3, dtype="float32").reshape(2, 3)
    names = runpy.run_path(_script(tmp_path, short), {"at": at, "x": x})
    np.testing.assert_array_equal(names["y"], np.maximum(x, 0) + x)
    assert (tmp_path / "net.at").exists()


def _script(folder: Path, text: str) -> str:
    script = folder / "examples.py"
    script.write_text(text, encoding="utf-8")
    return str(script)


def test_the_page_of_operators_names_what_they_take_and_what_expressions_may_call() -> None:
    text = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    words = {w for quoted in re.findall(r"`([^`]+)`", text) for w in re.findall(r"\w+", quoted)}
    taken = {p.name for op in ops.REGISTRY.values() for p in op.params if p.optional or p.axes > 1}
    functions = vars(scalars) | scalars.OF_ROWS
    called = {n for n, f in functions.items() if inspect.isfunction(f) and n in te.__all__}
    missing = (taken | called) - words - {"const", "max_value", "min_value", "if_then_else"}
    assert len(taken) > 10 and len(called) > 30 and not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_within_the_repository_lead_to_files(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        made = "generated/" in link  # when the site is built, which tells what is missing
        if "://" not in link and not made:
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_decisions_and_measurements_that_code_names_exist() -> None:
    """Comments name their sources by path (docs/measurements/x.md) or by number (ADR 22)."""
    numbers = {int(p.name[:4]) for p in (ROOT / "docs/adr").glob("*.md")}
    measured = 0
    for package in ("autotune", "cost_model", "kernels_db", "schedules"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            for page in re.findall(r"docs/measurements/[\w-]+\.md", text):
                measured += 1
                assert (ROOT / page).exists(), f"{file.relative_to(ROOT)} names {page}"
            for found in re.findall(r"\bADR (\d+(?:, \d+)*)", text):
                missing = {*map(int, found.split(", "))} - numbers
                assert not missing, f"{file.relative_to(ROOT)} names ADR {missing}"
    assert measured


def test_a_version_of_the_changelog_has_each_heading_once() -> None:
    for version in re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)[1:]:
        name, *lines = version.splitlines()
        heads = [line for line in lines if line.startswith("### ")]
        assert len(heads) == len(set(heads)), f"{name}: {heads}"
        if name.startswith("[0.3.0]"):
            assert lines.index("### Added") <= 50, "what is new for a user takes more than a page"
