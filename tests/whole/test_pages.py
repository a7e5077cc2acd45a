"""The pages for users: what they show runs and prints what they say, errors are quoted as they are raised,
pictures are what their script draws, sentences are short, and links lead to headings."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cli_runner import run
from grid_cases import need_cxx
from needs import imported

from autotune.models import torch_backend

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    DOCS / "installation.md",
    *(page for folder in ("tutorials", "how-to", "concepts", "help") for page in DOCS.glob(f"{folder}/*.md")),
]
MARKED = re.compile(r"<!-- runs(?: \(exit (\d)\))? -->\n```(python|console)\n(.*?)```", re.DOTALL)
SHORTER = (
    (re.compile(r'budget="\d+[sm]"'), "trials=1"),
    (re.compile(r"--budget \d+[sm]"), "--trials 0"),
    (re.compile(r"--duration \d+s"), "--duration 200ms"),
)
LONGEST = 40  # words of a sentence
WITH_TORCH = ("torch", "models", "sizes", "state", "views")
OF_TORCH = {"docs/tutorials/model.md", *(f"docs/how-to/{name}.md" for name in WITH_TORCH)}
OF_FLEET = {"docs/how-to/fleet.md"}
OF_GGUF = {"docs/tutorials/language-model.md"}
OF_EMULATOR = {"docs/how-to/matrix-units.md"}
OF_ONNX = {"docs/how-to/deployment.md"}  # of net.onnx
# Pages whose examples take many seconds.
LONG = {f"docs/how-to/{name}.md" for name in ("fleet", "sizes", "suites", "precision", "train", "weights")}
LONG |= OF_GGUF
RUN = sorted(str(page.relative_to(ROOT)) for page in PAGES if MARKED.search(page.read_text("utf-8")))


def _run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run what a page marks, in its order, in one folder with a log of its own. Returns the names."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AUTOTUNE_DB", str(folder / "tuning.db"))
    module = ModuleType("page")  # torch looks for the module of what it exports
    monkeypatch.setitem(sys.modules, "page", module)
    names = vars(module)
    text = (ROOT / page).read_text("utf-8")
    blocks = MARKED.findall(text)
    assert blocks
    for status, language, block in blocks:
        for long, short in SHORTER:
            block = long.sub(short, block)
        if language == "python":
            exec(compile(block, page, "exec"), names)
        else:
            _run_console(block, int(status or 0))
    return names


def _run_console(block: str, status: int) -> None:
    """Run commands of autotune; each line that the page shows begins as one that is printed."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        words = shlex.split(command.split("  #")[0])
        assert words[0] == "autotune", command
        done = run(*words[1:])
        assert done.status == status, f"{command}: exit status {done.status}: {done.out}{done.err}"
        said = {_label(line) for line in f"{done.out}\n{done.err}".splitlines()}
        missing = [line for line in shown if line.strip() not in ("", "…") and _label(line) not in said]
        assert not missing, f"{command} does not print {missing}, but {done.out}{done.err}"


def _label(line: str) -> str:
    """The first word of a line. After a number, the word behind it. What depends on times is left out: their
    units, which of two is faster, and whether a kernel that is right takes the time that was stored."""
    if "times as fast as" in line:
        return "N times as fast"
    words = [*line.replace(",", "").split(), ""]
    if not words[0][:1].isdigit():
        return "ok" if words[0] == "slower" else words[0]
    return "a time" if words[1] in ("ns", "us", "ms", "s") else f"N {words[1]}"


@pytest.mark.fast("docs/how-to/command-line.md", "docs/how-to/gradients.md")
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.soak) if p in LONG else p for p in RUN if p not in OF_TORCH],
)
def test_what_a_page_shows_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page in OF_FLEET:
        imported("distributed")
    if page in OF_GGUF:
        imported("gguf")
    if page in OF_EMULATOR:
        need_cxx()
    if page in OF_ONNX:
        imported("onnx")
        import_module("onnx_models").small_file(tmp_path / "net.onnx")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no tuned kernel of")  # of fallback=True, which some pages show
        warnings.filterwarnings("ignore", ".*the log has no schedule of")  # for another target
        _run(page, tmp_path, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("page", [p for p in RUN if p in OF_TORCH])
def test_what_a_page_shows_with_torch_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = imported("torch")
    if "autotune" not in torch._dynamo.list_backends(exclude_tags=()):  # installed before it had the entry
        torch._dynamo.register_backend(torch_backend.backend, name="autotune")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch|copyreg")  # of its own ways
        warnings.filterwarnings("ignore", "no tuned kernel of|.*run kernels that are not tuned")
        _run(page, tmp_path, monkeypatch)


def test_pictures_are_what_their_script_draws() -> None:
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    assert spec is not None and spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    drawn = {f"{name}.svg": draw().svg() for name, draw in pictures.PICTURES.items()}
    there = {p.name for p in pictures.FOLDER.glob("*.svg")}
    assert set(drawn) <= there
    for name, svg in drawn.items():
        assert (pictures.FOLDER / name).read_text("utf-8") == svg, f"out of date: run {pictures.COMMAND}"


def _literals() -> str:
    """All text of the packages, with strings that are split over lines put together."""
    files = (
        p
        for name in ("autotune", "kernels_db", "schedules", "cost_model")
        for p in (ROOT / name).rglob("*.py")
    )
    text = "\n".join(p.read_text("utf-8") for p in sorted(files))
    return re.sub(r"[\"']\s*\n\s*f?[\"']", "", text)


def test_messages_of_troubleshooting_are_in_the_code() -> None:
    """A message may have a comment before it, with … for each part that varies. What is between stands in the
    code, and what is shown is such a message."""
    page = (DOCS / "help" / "troubleshooting.md").read_text("utf-8")
    quoted = re.findall(r"(?:<!-- says: (.*?) -->\n)?```text\n(.*?)\n```", page, re.DOTALL)
    code = re.sub(r"\s+", " ", _literals())
    unknown = []
    for says, shown in quoted:
        parts = [re.sub(r"\s+", " ", part).strip() for part in re.split("…|\n", says or shown)]
        unknown += [words for words in parts if words not in code]
        fixed = ".*".join(re.escape(re.sub(r"\s+", " ", part)) for part in re.split("…|\n", says))
        assert re.search(fixed, re.sub(r"\s+", " ", shown)), f"{shown!r} is not {says!r}"
    assert len(quoted) > 40 and not unknown


def _sentences(text: str) -> list[str]:
    """Sentences of a page: of paragraphs, items of lists and cells of tables."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    found = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-|#]|\d+\. ))|\|", text):
        found += re.split(r"(?<=[.?!])\s+", " ".join(block.split()))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_sentences_are_short(page: Path) -> None:
    long = [s for s in _sentences(page.read_text("utf-8")) if len(s.split()) > LONGEST]
    assert not long


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_links_to_headings_lead_to_headings(page: Path) -> None:
    for file, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text("utf-8")):
        goal = (page.parent / file) if file else page
        headings = re.findall(r"^#+ (.*)$", goal.read_text("utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
        assert heading in slugs, f"{page.name} links to {file}#{heading}"
