"""benchmarks/mutants.py on a small project: survivors are found, the tree stays, a seed draws the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from needs import missing

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import mutants  # noqa: E402

PYPROJECT = '[tool.hatch.build.targets.wheel]\npackages = ["toy"]\n'
LIMIT = "def limited(x):\n    return min(x, 3)\n"
TEST = """from toy.limit import limited

def test_runs():
    {check}
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in git: a package of two modules, and tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than the tests
    if shutil.which("git") is None:
        missing("git")
    root = tmp_path / "toy project"
    put(root, "pyproject.toml", PYPROJECT)
    put(root, "toy/__init__.py", "")
    put(root, "toy/limit.py", LIMIT)
    put(root, "toy/other.py", "from toy.limit import limited\n\n\ndef other(x):\n    return limited(x) + 1\n")
    put(root, "tests/toy/test_limit.py", TEST.format(check="assert [limited(2), limited(4)] == [2, 3]"))
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


def put(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True, text=True).stdout


def run(root: Path, *options: str) -> tuple[int, list[dict]]:
    out = root.parent / "out.json"
    code = mutants.main(["--root", str(root), "--json", str(out), *options])
    return code, json.loads(out.read_text())


@pytest.mark.slow
def test_what_tests_hold_is_caught(toy: Path) -> None:
    code, found = run(toy, "--under", "toy/limit.py")
    assert code == 0
    assert [(v["file"], v["line"], v["before"]) for v in found] == [("toy/limit.py", 2, "return min(x, 3)")]
    assert found[0]["caught"] == "tests/toy/test_limit.py::test_runs"
    assert found[0]["after"] in (
        "return max(x, 3)",
        "return min(x, 4)",
        "return None",
    )


@pytest.mark.slow
def test_a_survivor_is_told_and_the_tree_stays(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(toy, "tests/toy/test_limit.py", TEST.format(check="limited(2)"))
    before = {f: f.stat().st_mtime_ns for f in toy.rglob("*")}
    status = git(toy, "status", "--porcelain")
    code, found = run(toy, "--under", "toy/limit.py")
    assert code == 1
    assert [v["caught"] for v in found] == [None]
    said = capsys.readouterr().out
    assert "toy/limit.py:2" in said and "SURVIVED" in said and "    - return min(x, 3)" in said
    assert said.endswith("0 of 1 caught; survivors: 1\n")
    assert {f: f.stat().st_mtime_ns for f in toy.rglob("*") if ".git" not in f.parts} == {
        f: t for f, t in before.items() if ".git" not in f.parts
    }
    assert git(toy, "status", "--porcelain") == status
    assert run(toy, "--under", "toy/limit.py", "--at-least", "0")[0] == 0


@pytest.mark.slow
def test_a_test_that_fails_without_the_change_does_not_count(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(
        toy,
        "tests/toy/test_limit.py",
        TEST.format(check="assert limited(4) == 7") + "\ndef test_more(): pass\n",
    )
    assert [v["caught"] for v in run(toy, "--under", "toy/limit.py")[1]] == [None]
    assert "or not always: tests/toy/test_limit.py::test_runs\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_test_that_fails_once_does_not_count(toy: Path) -> None:
    check = (
        f"m = __import__('pathlib').Path({str(toy.parent / 'm')!r}); was = m.exists(); m.touch(); assert was"
    )
    put(toy, "tests/toy/test_limit.py", TEST.format(check=check))
    assert [v["caught"] for v in run(toy, "--under", "toy/limit.py")[1]] == [None]


@pytest.mark.slow
def test_a_test_that_dies_with_the_change_has_caught_it(toy: Path) -> None:
    put(toy, "tests/toy/test_limit.py", TEST.format(check="limited(4) == 3 or __import__('os')._exit(0)"))
    assert [v["caught"] for v in run(toy, "--under", "toy/limit.py")[1]] == [
        "tests/toy/test_limit.py::test_runs"
    ]


@pytest.mark.soak
def test_a_test_that_hangs_with_the_change_has_caught_it(toy: Path) -> None:
    put(toy, "toy/limit.py", "def limited(x):\n    while x > 3:\n        x -= 1\n    return x\n")
    options = ["--under", "toy/limit.py", "--hang", "20"]
    seed, number = next(
        (seed, i)
        for seed in range(100)
        for i, (_, c) in enumerate(mutants.drawn(toy, ["toy/limit.py"], None, seed, 9), 1)
        if c.text == "pass"
    )
    code, found = run(toy, *options, "--seed", str(seed), "--only", str(number))
    assert code == 0
    assert found[0]["caught"] == "tests/toy/test_limit.py::test_runs"


def test_nothing_to_change(toy: Path) -> None:
    assert mutants.main(["--root", str(toy), "--since", "HEAD"]) == 2


def test_new_lines_are_drawn_and_by_the_seed(toy: Path) -> None:
    put(
        toy,
        "toy/limit.py",
        LIMIT + "\n\ndef more(x):\n    if x < 1:\n        return x + 2\n    return x * 3\n",
    )
    put(toy, "toy/new.py", "x = 1\n")
    new = mutants.drawn(toy, ["toy"], "HEAD", 0, 40)
    assert {(f, c.line) for f, c in new} == {("toy/limit.py", n) for n in (6, 7, 8)}  # git knows no new.py
    git(toy, "add", "toy/new.py")
    assert ("toy/new.py", 1) in {(f, c.line) for f, c in mutants.drawn(toy, ["toy"], "HEAD", 0, 40)}
    draws = [mutants.drawn(toy, ["toy"], None, seed, 3) for seed in (1, 1, *range(2, 12))]
    assert draws[0] == draws[1]
    assert all(len(d) == 3 for d in draws)
    assert len({tuple(d) for d in draws}) > 5


def test_the_nearest_tests_come_first(toy: Path) -> None:
    for file in ("toy/test_other", "toy/test_apart", "elsewhere/test_by_import", "elsewhere/test_nothing"):
        text = "import toy.other\n" if file.endswith(("other", "import")) else ""
        put(toy, f"tests/{file}.py", text)
    files = sorted(str(f.relative_to(toy)) for f in toy.rglob("*.py"))
    imports = mutants.Imports(toy, files)
    assert [Path(t).stem for t in imports.nearest_tests("toy/limit.py")] == [
        "test_limit", "test_other", "test_apart", "test_by_import", "test_nothing",
    ]  # fmt: skip
    assert Path(imports.nearest_tests("toy/other.py")[0]).stem == "test_other"


def test_words_of_a_change_are_of_its_line_and_function() -> None:
    source = b"class Site:\n    def weighted(self):\n        return self.longest + 1\n"
    change = next(c for c in mutants.changes(source) if c.kind == "arithmetic")
    assert set(mutants.words("fleet/pooling.py", source, change)) >= {"weig", "long", "pool"}


@pytest.mark.fast("2")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_leaves_nothing(toy: Path, how: signal.Signals) -> None:
    """Stopped in the middle of a test: the copy and the test's process are gone, the tree is as it was."""
    pid = toy.parent / "pid"
    wait = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    put(toy, "tests/toy/test_limit.py", TEST.format(check=wait))
    places = toy.parent / "places"
    places.mkdir()
    command = [sys.executable, ROOT / "benchmarks" / "mutants.py", "--root", toy, "--under", "toy/limit.py"]
    process = subprocess.Popen(
        command,
        env=os.environ | {"TMPDIR": str(places)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (pid.exists() and pid.read_text()):
        assert process.poll() is None
        time.sleep(0.02)
    assert len(list(places.iterdir())) == 1
    process.send_signal(how)
    assert process.wait() == {signal.SIGINT: 130, signal.SIGTERM: 143}[how]
    assert list(places.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert (toy / "toy/limit.py").read_text() == LIMIT
