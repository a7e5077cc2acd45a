"""What only some systems have is asked for in one room, `autotune/platform`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax import tree

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("autotune", "schedules", "cost_model", "kernels_db")
# Who may name them. Texts of LLVM are of the target's system, not of this one.
ROOM, TEXTS = "autotune/platform/", "autotune/codegen/runtime/"
# {file: what it may name}, with the reason.
BESIDE = {
    "kernels_db/refusals.py": {"resource"},  # may import nothing of autotune, and does without it
}
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "pty", "winreg", "msvcrt", "posix", "syslog"}
NAMES = re.compile(
    r"os\.(fork\w*|sched_\w+|memfd_create|getuid|geteuid|getgid|setpgid|killpg|waitid|waitpid|nice|setpriority"
    r"|statvfs|uname|getloadavg|sysconf|name|posix_spawn|pidfd_open|setsid)"
    r"|sys\.platform|platform\.uname|signal\.(SIGKILL|pthread_kill|setitimer|alarm|SIGUSR1)"
    r"|mmap\.(MADV_\w+|MAP_ANONYMOUS|MAP_NORESERVE|MAP_PRIVATE)|multiprocessing\.shared_memory"
    r"|select\.(epoll|kqueue)"
)
# What a file has, as text, that is worth a closer look.
HINT = re.compile(
    rf"{NAMES.pattern}|CDLL|/(proc|sys|dev/shm|etc)|\b({'|'.join(MODULES)})\b|from (os|sys|mmap)\b"
)
FILES = re.compile(r"/(proc|sys|dev/shm|etc)(/|$)")


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def named(text: str) -> Iterator[str]:
    """What a file names of one system: modules, functions, paths. Documentation is no use of it."""
    parsed = tree(text)
    told = {id(n.value) for n in ast.walk(parsed) if isinstance(n, ast.Expr)}
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from {a.name for a in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            yield from {node.module} & MODULES
            full = [f"{node.module}.{a.name}" for a in node.names]
            yield from (name for name in full if NAMES.fullmatch(name))
        elif isinstance(node, ast.Attribute) and NAMES.fullmatch(dotted(node)):
            yield dotted(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield from (m[0] for m in FILES.finditer(node.value) if m.start() == 0)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("CDLL") and node.args:
            if isinstance(node.args[0], ast.Constant) and node.args[0].value is None:
                yield "CDLL(None)"


def test_what_one_system_has_is_seen() -> None:
    for line, found in {
        "import fcntl": "fcntl",
        "def f():\n    from resource import RLIMIT_AS": "resource",
        "import os\nos.fork()": "os.fork",
        "from os import sched_getaffinity as a": "os.sched_getaffinity",
        "if sys.platform == 'linux': pass": "sys.platform",
        "p = Path('/proc/cpuinfo')": "/proc/",
        "p = f'/proc/{pid}'": "/proc/",
        "x = '/dev/shm'": "/dev/shm",
        "ctypes.CDLL(None).prctl(1)": "CDLL(None)",
        "size = mmap.MADV_FREE": "mmap.MADV_FREE",
    }.items():
        assert [*named(line)] == [found], line
    assert not [*named('"""Reads /proc/cpuinfo."""\nos.path.join("a", "/process")\nmmap.PAGESIZE')]


def test_only_the_room_of_the_platform_names_what_one_system_has() -> None:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            text = path.read_text(encoding="utf-8")
            names = set(named(text)) if HINT.search(text) else set()
            if not file.startswith((ROOM, TEXTS)) and names - BESIDE.get(file, set()):
                found[file] = names - BESIDE.get(file, set())
    assert found == {}, "ask autotune.platform instead, or move it there"


def test_the_page_of_other_systems_names_files_that_exist_and_each_of_the_room() -> None:
    page = (ROOT / "docs/development/platforms.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|h))`", page)
    assert not [n for n in named if not any((ROOT / p / n).exists() for p in ("", "autotune"))]
    room = {f"platform/{p.name}" for p in (ROOT / ROOM).glob("[!_]*.py")}
    assert room == {n for n in named if n.startswith("platform/")}
    beside = {f.removeprefix("autotune/") for f in USES if "llvm/compile" not in f}
    assert beside <= set(named)


def test_the_platform_room_stands_on_nothing() -> None:
    for path in (ROOT / ROOM).glob("*.py"):
        modules = re.findall(r"^(?:from|import) ([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        for module in modules:
            assert module.split(".")[0] in sys.stdlib_module_names or module.startswith("autotune.platform")


# Files of which a type checker says that they use what Windows lacks, and with it macOS. Measuring starts no
# process on a system without forks (`processes.check_measuring`), `resource` is missing as a whole, no folder
# is opened (`FOLDERS_OPEN`), a pipe is waited for (`WAITS_NOT`), and there is no pool of threads.
USES = (
    "autotune/measure/process.py", "autotune/measure/wire.py", "autotune/measure/zygote.py",
    "autotune/backends/building/object_cache.py", "autotune/codegen/llvm/compile.py",
    "kernels_db/refusals.py", "kernels_db/spool.py",
)  # fmt: skip


@pytest.mark.slow
def test_a_type_checker_finds_nothing_that_another_system_lacks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--platform", "win32", "--cache-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    lacks = r"^(\S+?):\d+: error: .*(?:has no attribute|Unexpected keyword)"
    found = {f for f in re.findall(lacks, done.stdout, re.MULTILINE) if not f.startswith(ROOM)}
    assert found == set(USES), done.stderr
