"""Where progress is shown, and that silence is silence."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import autotune as at
from autotune.results import display as displays
from autotune.results.display import State, bar, display
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
        "from autotune.results.display import State, display, say\n"
        "with display() as show:\n"
        "    show(lambda: State('measuring', 0.5))\n"
        "say('the result')\n"
        "print('done')\n"
    )
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, text=True)
    assert done.stdout == "done\n"


def in_terminal(code: str, stdout: Path | None = None, **environment: str) -> bytes:
    """What a program writes to its terminal: stderr, and stdout if no file is named for it."""
    pid, master = pty.fork()
    if pid == 0:
        if stdout is not None:
            os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT), 1)
        os.environ |= {"TERM": "xterm", **environment}
        os.execv(sys.executable, [sys.executable, "-c", code])
    seen = b""
    try:
        while chunk := os.read(master, 4096):
            seen += chunk
    except OSError:  # the terminal is closed at its end
        pass
    os.close(master)
    assert os.waitpid(pid, 0)[1] == 0, seen
    return seen


SHOWING = """
import os, sys, threading, time
from autotune.results.display import State, display, say
with display() as show:
    show(lambda: State({text!r}, 0.5))
    {inside}
    time.sleep(0.2)
{after}
"""


def showing(text: str = "measuring", inside: str = "pass", after: str = "pass") -> str:
    return SHOWING.format(text=text, inside=inside, after=after)


def test_a_terminal_gets_one_line_that_goes(tmp_path: Path) -> None:
    seen = in_terminal(showing("measuring | best 1 GFLOP/s"), tmp_path / "out")
    assert b"measuring | best 1 GFLOP/s" in seen
    assert b"\x1b[2K" in seen and b"\x1b[?25h" in seen  # the line is erased, the cursor is shown


def test_what_other_threads_print_goes_where_stdout_goes(tmp_path: Path) -> None:
    """Not into the terminal, where stdout is a file."""
    printing = "t = threading.Thread(target=print, args=('a result',)); t.start(); t.join()"
    seen = in_terminal(showing(inside=printing), tmp_path / "out")
    assert b"measuring" in seen and b"a result" not in seen
    assert (tmp_path / "out").read_text() == "a result\n"
    seen = in_terminal(showing(inside=printing))
    assert b"\x1b[2Ka result\r\n" in seen  # in the same terminal it stands above the line


def test_a_terminal_of_ascii_gets_ascii(tmp_path: Path) -> None:
    seen = in_terminal(showing("m\xd7n"), tmp_path / "out", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert b"m\\xd7n" in seen and b"\\u28" not in seen and seen.isascii()


def test_text_of_a_line_is_no_markup_and_moves_no_cursor(tmp_path: Path) -> None:
    hostile = "a[/x] [red]b[/red] \x1b]0;title\x07\x1b[5A\rnext\u202e"
    seen = in_terminal(showing(hostile), tmp_path / "out")
    plain = b"a[/x] [red]b[/red] \\x1b]0;title\\x07\\x1b[5A\\rnext\\u202e"
    assert plain in seen and b"\x1b]" not in seen and b"\x1b[5A" not in seen


@pytest.mark.parametrize("text", ["\x1b[31m", "a\rb", "\x9b2J"])
def test_lines_of_a_pipe_have_no_control_characters(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with display() as show:
        show(lambda: State(text, 0.5))
    displays.say(f"{text}\nsecond")
    shown, first, second = capsys.readouterr().err.split("\n")[:-1]
    assert shown == first == repr(text)[1:-1] and second == "second"


def test_colours_that_are_forced_make_no_terminal_of_a_pipe() -> None:
    asked = {**os.environ, "FORCE_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", showing()], capture_output=True, text=True, env=asked)
    assert done.stderr == "measuring\n"


def test_a_terminal_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    gone = "print('ready', flush=True); time.sleep(0.5)"
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    code += showing(inside=gone, after="say('the result')\nprint('done')")
    out = tmp_path / "out"
    pid, master = pty.fork()
    if pid == 0:
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-c", code])
    while not (out.exists() and out.read_text()):
        os.read(master, 4096)  # it writes some ten times a second
    os.close(master)
    assert os.waitpid(pid, 0)[1] == 0 and out.read_text() == "ready\ndone\n"


def test_a_child_of_a_fork_writes_without_the_line(tmp_path: Path) -> None:
    """The line has locks that another thread holds at the moment of the fork."""
    (tmp_path / "fork_beside.py").write_text(
        "import os, signal, sys, threading\n"
        "def fork(proxy):\n"
        "    lock = proxy._FileProxy__console._lock\n"
        "    held, over = threading.Event(), threading.Event()\n"
        "    def hold():\n"
        "        with lock:\n"
        "            held.set(); over.wait()\n"
        "    t = threading.Thread(target=hold); t.start(); held.wait()\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        signal.alarm(5)\n"
        "        print('of a child', file=sys.stderr, flush=True)\n"
        "        from autotune.results.display import State, display\n"
        "        with display() as show:\n"
        "            show(lambda: State('a second line', 0.5))\n"
        "        os._exit(0)\n"
        "    status = os.waitpid(pid, 0)[1]; over.set(); t.join()\n"
        "    assert status == 0, status\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + showing(
        inside="import fork_beside; fork_beside.fork(sys.stderr)"
    )
    seen = in_terminal(code, tmp_path / "out")
    assert b"of a child" in seen and b"a second line" not in seen


def test_a_stderr_that_only_writes_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writes:
        def __init__(self) -> None:
            self.text = ""

        def write(self, text: str) -> int:
            self.text += text
            return len(text)

    simple = Writes()
    monkeypatch.setattr(sys, "stderr", simple)
    with display() as show:
        show(lambda: State("measuring", 0.5))
    displays.say("the result")
    assert simple.text == "measuring\nthe result\n"


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


@pytest.mark.parametrize("handle", ["none", "gone"])
def test_a_notebook_that_is_gone_stops_nothing(
    notebook: list[str], monkeypatch: pytest.MonkeyPatch, handle: str
) -> None:
    def update(self: Handle, data: dict[str, str], raw: bool) -> None:
        raise OSError("no socket")

    monkeypatch.setattr(Handle, "update", update)
    if handle == "none":
        monkeypatch.setattr(sys.modules["IPython.display"], "display", lambda *_, **__: None)
    clock = Clock()
    with display(clock=clock) as show:
        clock.now = 1.0
        show(lambda: State("measuring", 0.5))


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
    return at.tune("matmul", **sizes, threads=1, trials=trials, budget_s=120, db=tmp_path / "t.db", **more)


@pytest.mark.slow
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


def test_several_lines_are_shown(tmp_path: Path) -> None:
    seen = in_terminal(showing("one: a\ntwo: b"), tmp_path / "out")
    assert b"one: a\r\ntwo: b" in seen
