"""Where progress is shown, and that silence is silence."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
import types
from typing import Any

import pytest

import autotune as at
from autotune.progress import display as displays
from autotune.progress.display import State, bar, display
from autotune.settings import SettingsError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_pipe_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock, asked = Clock(), []
    with display(clock=clock) as show:
        for number in range(12):
            clock.now = float(number)
            show(lambda n=number: asked.append(n) or State(f"trial {n}", 0.5))  # type: ignore[misc,func-returns-value]
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == ["trial 0", "trial 5", "trial 10"]
    assert asked == [0, 5, 10]  # what is not shown is not made


def test_quiet_shows_nothing_and_asks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with display(quiet=True) as show:
        show(lambda: pytest.fail("asked"))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("lost", ["none", "closed"])
def test_without_stderr_nothing_is_shown(
    lost: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    closed = open(os.devnull, "w", encoding="utf-8")
    closed.close()
    monkeypatch.setattr(sys, "stderr", None if lost == "none" else closed)
    with display() as show:
        show(lambda: pytest.fail("asked"))
    displays.say("the result")
    assert capfd.readouterr().out == ""


def test_a_stderr_that_cannot_be_written_stops_nothing() -> None:
    code = (
        "from autotune.progress.display import State, display, say\n"
        "with display() as show:\n"
        "    show(lambda: State('measuring', 0.5))\n"
        "say('the result')\n"
        "print('done')\n"
    )
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, text=True)
    assert done.stdout == "done\n"


def test_a_terminal_gets_one_line_that_goes() -> None:
    """In a process of its own whose stderr is a terminal."""
    pid, master = pty.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = (
            "import time\n"
            "from autotune.progress.display import State, display\n"
            "with display() as show:\n"
            "    show(lambda: State('measuring | best 1 GFLOP/s', 0.5)); time.sleep(0.4)\n"
        )
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-c", code])
    seen = b""
    try:
        while chunk := os.read(master, 4096):
            seen += chunk
    except OSError:  # the terminal is closed at its end
        pass
    assert os.waitpid(pid, 0)[1] == 0, seen
    assert b"measuring | best 1 GFLOP/s" in seen
    assert b"\x1b[2K" in seen and b"\x1b[?25h" in seen  # the line is erased, the cursor is shown


class Handle:
    def __init__(self, shown: list[str]) -> None:
        self.shown = shown

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(data["text/html"])


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a notebook's cell is made to show."""
    shown: list[str] = []

    def cell(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw and display_id
        shown.append(data["text/html"])
        return Handle(shown)

    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    inner = types.ModuleType("IPython.display")
    inner.display = cell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    return shown


def test_a_notebook_gets_a_bar_that_stays(notebook: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with display(clock=clock) as show:
        for number in range(5):
            clock.now += 0.1
            show(lambda n=number: State(f"<script>{n}", n / 10))  # type: ignore[misc]
    displays.say("the result")
    assert capsys.readouterr() == ("", "")
    assert len(notebook) == 3, notebook  # the start, one after 0.25 s, the end
    assert "value='20'" in notebook[1] and "&lt;script&gt;2" in notebook[1]
    assert "value='100'" in notebook[-1] and "&lt;script&gt;4" in notebook[-1]


def test_ipython_in_a_terminal_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert displays.notebook() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert displays.notebook() is None and "IPython" not in sys.modules


def test_one_display_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    def other() -> None:
        with display() as show:
            show(lambda: State("other", 0.0))

    with display() as show:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        show(lambda: State("first", 0.0))
    with display() as show:
        show(lambda: State("second", 0.0))
    assert capsys.readouterr().err.splitlines() == ["first", "second"]


def test_an_error_inside_frees_the_display(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), display():
        raise KeyboardInterrupt
    with display() as show:
        show(lambda: State("again", 0.0))
    assert capsys.readouterr().err == "again\n"


def test_a_bar_escapes_its_text() -> None:
    assert bar(State("a & b <b>", 0.256)).endswith("<br><code>a &amp; b &lt;b&gt;</code>")
    assert "value='26'" in bar(State("", 0.256))


def tune(tmp_path: Any, trials: int, **more: Any) -> at.TuneResult:
    sizes = {"m": 8, "n": 8, "k": 8}
    return at.tune("matmul", **sizes, threads=1, trials=trials, budget_s=4, db=tmp_path / "t.db", **more)


def test_tune_shows_its_progress_unless_told_otherwise(
    tmp_path: Any, capfd: pytest.CaptureFixture[str], notebook: list[str]
) -> None:
    """One real run; the others find what it left."""
    suite = [at.ops.workload("matmul", {"m": 8, "n": 8, "k": 8})]
    of_suite = {"threads": 1, "trials": 0, "budget_s": 4, "db": tmp_path / "t.db"}
    tune(tmp_path, 2, progress=None)
    at.tune_suite(suite, **of_suite, progress=None)  # type: ignore[arg-type]
    assert capfd.readouterr() == ("", "") and notebook == []
    tune(tmp_path, 0)
    assert "<code>done | best " in notebook[-1] and " resumed" in notebook[-1]
    at.tune_suite(suite, **of_suite)  # type: ignore[arg-type]
    assert " of 1 tasks ready" in notebook[-1] and capfd.readouterr() == ("", "")
    sys.modules.pop("IPython")
    tune(tmp_path, 0)
    out, err = capfd.readouterr()
    first, last = err.splitlines()
    assert out == "" and "s left" in first and last.startswith("matmul m=8 n=8 k=8 float32, 1 thread: ")
    seen: list[Any] = []
    tune(tmp_path, 0, progress=seen.append)
    assert capfd.readouterr() == ("", "") and seen


def test_what_is_no_progress_is_refused(tmp_path: Any) -> None:
    with pytest.raises(SettingsError, match="progress is 'loud'; it must be a function of one"):
        tune(tmp_path, 0, progress="loud")
