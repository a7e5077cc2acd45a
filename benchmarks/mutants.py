"""Would the tests notice? Small random changes of the product, each run with the tests nearest to it.

    nice python benchmarks/mutants.py --since HEAD~100 --count 40 --at-least 0.9
    nice python benchmarks/mutants.py --under schedules/te --seed 7 --json mutants.json

Draws changes (`mutations.py`) of the packages: in lines that a commit has not yet (``--since``), in files and
folders (``--under``), or anywhere. All happens in a copy of the tree. Tests are run nearest first, by folders
and by imports, until one fails or ``--seconds`` of tests are over. It counts if it fails again when it is run
alone, and passes without the change; else it is left out from then on, and told at the end. A survivor is a
change that no test noticed: it asks for a test, or for less code. A seed draws the same from the same code:
``--only 7,12`` runs some of the draw again.

Tools of others run one command for all changes (cosmic-ray), or all tests once with each function wrapped
(mutmut).
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import watched_tests
from mutations import Change, changes
from watched_tests import REPORT, UNTIL, WORDS


# -- which changes ---------------------------------------------------------------------------------
def git(root: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=root, check=True, capture_output=True, text=True).stdout


def packages(root: Path) -> list[str]:
    """The folders that the wheel has."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    return project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def listed(root: Path, *under: str) -> list[str]:
    """The files of a tree, those too that git does not know yet, without those that it ignores."""
    names = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *under)
    return sorted({f for f in names.split("\0") if f and (root / f).is_file()})


def new_lines(root: Path, commit: str) -> dict[str, set[int]]:
    """The lines of each file that are not as in ``commit``."""
    out: dict[str, set[int]] = {}
    for line in git(root, "diff", "--unified=0", "--find-renames", "--no-ext-diff", commit).splitlines():
        if line.startswith("+++ "):
            lines = out.setdefault(line[len("+++ b/") :], set())
        elif m := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            lines.update(range(int(m[1]), int(m[1]) + int(m[2] or 1)))
    return out


def drawn(root: Path, under: list[str], since: str | None, seed: int, count: int) -> list[tuple[str, Change]]:
    """So many changes, of different lines: (file, change). Lines are drawn, then a change of each."""
    new = new_lines(root, since) if since else None
    places: dict[tuple[str, int], list[Change]] = {}
    for file in (f for f in listed(root, *under) if f.endswith(".py")):
        for change in changes((root / file).read_bytes()):
            if new is None or change.line in new.get(file, ()):
                places.setdefault((file, change.line), []).append(change)
    order = sorted(places)
    rng = random.Random(seed)
    rng.shuffle(order)
    out = []
    for file, line in order:
        change = rng.choice(places[file, line])
        if len(out) < count and change.applied((root / file).read_bytes()) is not None:
            out.append((file, change))
    return out


# -- which tests -----------------------------------------------------------------------------------
def words(file: str, source: bytes, change: Change) -> list[str]:
    """Beginnings of the words of a changed line, its function and its file: names of tests tell of these."""
    around = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    names = [n.name for n in around if n.lineno <= change.line <= n.end_lineno]
    text = " ".join([Path(file).stem, *names[-1:], source.splitlines()[change.line - 1].decode()])
    return sorted({w[:4].lower() for w in re.findall("[A-Za-z]{4,}", text)})


class Imports:
    """Which Python files of a tree import which."""

    def __init__(self, root: Path, files: list[str]) -> None:
        self.root, self.files = root, files
        self.modules = {self.module(f): f for f in files}

    def module(self, file: str) -> str:
        """The name by which a file is imported: of one outside of packages, its own."""
        path = self.root / file
        parts = [] if path.stem == "__init__" else [path.stem]
        while (path.parent / "__init__.py").exists():
            path = path.parent
            parts.insert(0, path.name)
        return ".".join(parts)

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        out: dict[str, set[str]] = {f: set() for f in self.files}
        for file in self.files:
            for name in self.imported(file):
                if name in self.modules:
                    out[self.modules[name]].add(file)
        return out

    def imported(self, file: str) -> Iterator[str]:
        package = self.module(file).split(".")
        if not file.endswith("__init__.py"):
            package.pop()
        for node in ast.walk(ast.parse((self.root / file).read_bytes())):
            if isinstance(node, ast.Import):
                yield from (a.name for a in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) + 1 - node.level] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                for a in node.names:
                    yield full if (full := f"{base}.{a.name}") in self.modules else base

    def nearest_tests(self, file: str) -> list[str]:
        """Files of tests, first those that lie as the file does and import it in few steps."""
        steps, queue = {file: 0}, deque([file])
        while queue:
            for importer in self.importers[at := queue.popleft()]:
                if importer not in steps:
                    steps[importer] = steps[at] + 1
                    queue.append(importer)
        here = Path("tests", file).parent.parts
        ours = set(re.split("[_/.]", "/".join(Path(file).parts[-2:])))

        def distance(test: str) -> tuple[float, int, str]:
            there, same = Path(test).parent.parts, 0
            while same < min(len(here), len(there)) and here[same] == there[same]:
                same += 1
            alike = len(ours & set(Path(test).stem.split("_")))
            away = len(there) - same if there != here[: len(there)] else 0
            return steps.get(test, 4) + 2 * away + (len(here) - same) - 2 * alike, -alike, test

        return sorted((f for f in self.files if Path(f).name.startswith("test_")), key=distance)


# -- running them ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Verdict:
    """What became of a change: ``caught`` names the test, None where all passed."""

    number: int
    file: str
    line: int
    kind: str
    before: str
    after: str
    caught: str | None
    seconds: float


@dataclass(frozen=True)
class Limits:
    """Seconds of tests for a change, seconds of a test that are a hang, how many files of tests, and which
    tests of these by their marks."""

    seconds: float
    hang: float
    files: int
    marks: str = "not soak and not fuzz"


class Tree:
    """A copy of the working tree, and tests run in it."""

    def __init__(self, root: Path, place: Path, limits: Limits) -> None:
        self.root, self.place, self.limits = place / "tree", place, limits
        files = listed(root)
        for f in files:
            (self.root / f).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / f, self.root / f)
        shutil.copy2(watched_tests.__file__, place)
        self.imports = Imports(self.root, [f for f in files if f.endswith(".py")])
        self.passing: set[str] = set()
        self.unfit: set[str] = set()
        self.clock = int(time.time())

    def write(self, file: str, source: bytes) -> None:
        """At a time of its own, so that no byte code of another version is taken."""
        (self.root / file).write_bytes(source)
        self.clock += 2
        os.utime(self.root / file, (self.clock, self.clock))

    @contextmanager
    def changed(self, file: str, change: Change) -> Iterator[None]:
        source = (self.root / file).read_bytes()
        self.write(file, change.applied(source))
        try:
            yield
        finally:
            self.write(file, source)

    def environment(self) -> dict[str, str]:
        paths = [str(self.root), str(self.place)]
        return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(self.place)}

    def check(self, file: str) -> None:
        """Raise unless the tests would import the copy."""
        module = self.imports.module(file)
        say = f"import importlib.util as u; print(u.find_spec({module!r}).origin)"
        command = [sys.executable, "-c", say]
        found = subprocess.run(command, cwd=self.root, env=self.environment(), capture_output=True, text=True)
        if Path(found.stdout.strip()) != self.root / file:
            raise SystemExit(
                f"{module}: imported from {found.stdout.strip() or found.stderr}, not from the copy"
            )

    def run(self, tests: list[str], seconds: float, words: list[str]) -> str | None:
        """The first test that fails or hangs, or None. First come those whose names have the words."""
        report, until = self.place / "report", time.time() + seconds
        report.write_text("")
        options = f"-m pytest -x -q -p no:cacheprovider -p {watched_tests.__name__}".split()
        options += ["-m", self.limits.marks]
        left_out = (f"--deselect={t}" for t in sorted(self.unfit))
        command = [sys.executable, *options, f"--basetemp={self.place / 'base'}", *left_out, *tests]
        environment = self.environment() | {REPORT: str(report), UNTIL: str(until), WORDS: " ".join(words)}
        with open(self.place / "output", "wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_less_memory,
            )
        try:
            while process.poll() is None and time.time() - report.stat().st_mtime < self.limits.hang:
                time.sleep(0.05)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        events = [line.partition(" ") for line in report.read_text().splitlines()]
        for event, _, test in events:
            if event == "failed":
                return test
        if process.returncode in (0, 5) and events and events[-1][0] == "finished":  # 5: no test
            return None
        return events[-1][2] if events else tests[-1]  # the process died in it, or before

    def fails_alone(self, test: str) -> bool:
        """Whether a test, or the collection of a file, fails when it is run alone."""
        only = [] if "::" in test else ["--collect-only"]
        return self.run([*only, test], self.limits.seconds, []) is not None

    def holds(self, test: str) -> bool:
        """Whether a test passes without a change."""
        if test not in self.passing and not self.fails_alone(test):
            self.passing.add(test)
        return test in self.passing

    def verdict(self, number: int, file: str, change: Change) -> Verdict:
        """Run the nearest tests with a change, some files at a time."""
        source = (self.root / file).read_bytes()
        begin, caught = time.monotonic(), None
        tests, some = self.imports.nearest_tests(file)[: self.limits.files], 8
        while tests and caught is None and (left := self.limits.seconds - (time.monotonic() - begin)) > 0:
            with self.changed(file, change):
                failed = self.run(tests[:some], left, words(file, source, change))
                again = failed is not None and self.fails_alone(failed)
            if failed is None:
                tests, some = tests[some:], 2 * some
            elif again and self.holds(failed):
                caught = failed
            else:
                self.unfit.add(failed)
                tests = [t for t in tests if t != failed]
        before, after = source.splitlines(), change.applied(source).splitlines()
        at = next(i for i, (a, b) in enumerate(zip(before, [*after, b""])) if a != b)
        shown = [lines[at].decode().strip() if at < len(lines) else "" for lines in (before, after)]
        return Verdict(number, file, at + 1, change.kind, *shown, caught, round(time.monotonic() - begin, 1))


def _less_memory() -> None:
    """A change may ask for memory without end: the tests have half of the machine's."""
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    resource.setrlimit(resource.RLIMIT_DATA, (half, half))


def run(
    root: Path, draw: list[tuple[int, str, Change]], limits: Limits, say: Callable[[str], None]
) -> list[Verdict]:
    """What becomes of each change, (number, file, change), of the tree at ``root``, which stays as it is."""
    out = []
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as place:
        tree = Tree(root, Path(place).resolve(), limits)
        for number, file, change in draw:
            tree.check(file)
            v = tree.verdict(number, file, change)
            say(f"{v.number:3} {v.file}:{v.line} ({v.kind}, {v.seconds:.0f} s) {v.caught or 'SURVIVED'}")
            say(f"    - {v.before}\n    + {v.after}")
            out.append(v)
        for test in sorted(tree.unfit):
            say(f"left out, as it fails without a change, or not always: {test}")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; 1 where too few are caught, 2 where there is nothing to change."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=Path, default=Path.cwd(), help="a git tree (default: the current folder)"
    )
    parser.add_argument("--since", metavar="COMMIT", help="only lines that this commit has not")
    parser.add_argument(
        "--under", metavar="PATH", nargs="+", help="only these files and folders (default: packages)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--only", metavar="N,N", help="only these numbers of the draw")
    parser.add_argument("--seconds", type=float, default=180, help="of tests for a change (default: 180)")
    parser.add_argument("--hang", type=float, default=90, help="seconds that a test may take (default: 90)")
    parser.add_argument("--files", type=int, default=24, help="of tests for a change (default: 24)")
    parser.add_argument("--fast", action="store_true", help="only by tests that are not slow")
    parser.add_argument("--at-least", type=float, default=0.9, metavar="SHARE", help="caught (default: 0.9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what became of each change")
    parser.add_argument("--list", action="store_true", help="only say what is drawn")
    a = parser.parse_args(argv)
    root = a.root.resolve()
    draw = drawn(root, a.under or packages(root), a.since, a.seed, a.count)
    numbers = set(map(int, a.only.split(","))) if a.only else set(range(1, len(draw) + 1))
    chosen = [(i, *d) for i, d in enumerate(draw, 1) if i in numbers]
    if not chosen:
        print("nothing to change there", file=sys.stderr)
        return 2
    if a.list:
        for i, file, c in chosen:
            print(f"{i:3} {file}:{c.line} ({c.kind}) -> {c.text}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy is removed
    limits = Limits(a.seconds, a.hang, a.files)
    if a.fast:
        limits = replace(limits, marks=f"not slow and {limits.marks}")
    verdicts = run(root, chosen, limits, lambda line: print(line, flush=True))
    if a.json:
        a.json.write_text(json.dumps([asdict(v) for v in verdicts], indent=1) + "\n")
    survivors = ", ".join(str(v.number) for v in verdicts if not v.caught)
    caught = sum(v.caught is not None for v in verdicts)
    print(f"{caught} of {len(verdicts)} caught; survivors: {survivors or 'none'}")
    return int(caught < math.ceil(a.at_least * len(verdicts) - 1e-9))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
