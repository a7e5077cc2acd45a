"""The house: layers, what an import costs, and what the wheel holds."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
import tarfile
import textwrap
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import grimp
import pytest
from syntax import tree

import autotune
from schedules import distribution

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/whole/every_public_name.py"
PACKAGES = ("autotune", "schedules", "cost_model", "kernels_db")
HEAVY = ("numpy", "xgboost", "sklearn", "sqlalchemy", "alembic", "llvmlite", "typer", "rich", "pydantic")

# Third-party packages that each package may import (docs/adr/0003).
MAY_IMPORT = {
    "schedules": {"numpy", "schedules"},
    "cost_model": {"numpy", "xgboost", "schedules", "cost_model"},
    "kernels_db": {"sqlalchemy", "alembic", "psycopg", "schedules", "kernels_db"},
}


def run(code: str, *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def sources(package: str) -> Iterator[tuple[Path, str]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        yield path, path.read_text(encoding="utf-8")


def test_import_contracts_hold() -> None:
    run("from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))")


def test_every_folder_of_modules_is_a_package() -> None:
    """Import contracts do not see the modules of a folder without ``__init__.py``."""
    folders = {path.parent for package in PACKAGES for path, _ in sources(package)}
    folders.remove(ROOT / "kernels_db/migrations/versions")  # scripts, which Alembic runs
    assert not [f.relative_to(ROOT) for f in folders if not (f / "__init__.py").exists()]


def imports() -> dict[str, set[str]]:
    """Every module of the four packages, with those of them that it imports, at its top or within a function;
    what only a type checker imports does not count."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    return {m: set(graph.find_modules_directly_imported_by(m)) for m in graph.modules}


def circles(graph: dict[str, set[str]]) -> list[str]:
    """A module of each circle: what is left when all that import nothing left, and all that nothing left
    imports, are taken away again and again."""
    left = {m: set(used) for m, used in graph.items()}
    while True:
        imported = set().union(*left.values()) if left else set()
        ends = {m for m, used in left.items() if not used or m not in imported}
        if not ends:
            return sorted(left)
        left = {m: used - ends for m, used in left.items() if m not in ends}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]
    assert circles(imports()) == []


def test_the_package_is_seen_at_a_glance() -> None:
    entries = {p.name for p in (ROOT / "autotune").iterdir()} - {"__pycache__", "py.typed"}
    assert len(entries) <= 24, sorted(entries)


@pytest.mark.slow
def test_no_module_hides_a_public_name() -> None:
    """Importing ``autotune.x`` makes ``x`` an attribute of the package: a function of that name would be
    lost."""
    names = {n for n in autotune.__all__ if not isinstance(getattr(autotune, n), ModuleType)}
    assert not names & {p.stem for p in (ROOT / "autotune").iterdir()}
    code = """
        import importlib, pkgutil, types, autotune
        for m in pkgutil.walk_packages(autotune.__path__, "autotune."):
            try:
                importlib.import_module(m.name)
            except ImportError:
                pass  # of a library that is not here
        print(*[n for n in autotune.__all__ if isinstance(getattr(autotune, n), types.ModuleType)])
    """
    assert sorted(run(textwrap.dedent(code)).split()) == ["ops", "te", "torch"]


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_it_may(package: str) -> None:
    for path, text in sources(package):
        for node in ast.walk(tree(text)):
            names = []
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names or top in MAY_IMPORT[package], f"{path} imports {name}"


def test_only_settings_reads_the_environment() -> None:
    # `os.environ[x] = y` is no reading: it prepares a child process.
    reads = re.compile(
        r"\bos\.(environb?(?!\[[^]]*\] = )|getenvb?)\b|\bfrom os import[^\n]*\b(environ|getenv)"
    )
    found = {
        str(p.relative_to(ROOT)) for package in PACKAGES for p, text in sources(package) if reads.search(text)
    }
    assert found == {"autotune/settings/__init__.py"}


@pytest.mark.slow
def test_nothing_is_unpickled_or_evaluated() -> None:
    for package in PACKAGES:
        for path, text in sources(package):
            for node in ast.walk(tree(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in ("eval", "exec"), f"{path}:{node.lineno}"
                if isinstance(node, ast.Import):
                    assert not {a.name for a in node.names} & {"pickle", "marshal", "shelve"}, (
                        f"{path}:{node.lineno}"
                    )


def test_files_stay_readable_in_one_sitting() -> None:
    lengths = {
        str(p.relative_to(ROOT)): text.count("\n") for package in PACKAGES for p, text in sources(package)
    }
    assert {p: n for p, n in lengths.items() if n > 600} == {}


def test_importing_autotune_imports_nothing_heavy() -> None:
    out = run(f"import sys, autotune; print(sorted(set({HEAVY!r}) & set(sys.modules)))")
    assert out.strip() == "[]"


def test_importing_autotune_touches_no_file_environment_database_or_device() -> None:
    out = run(
        "import os, sys\n"
        "seen = []\n"
        "def hook(event, args):\n"
        "    if event == 'open' and not str(args[0]).endswith(('.py', '.pyc')) or event in (\n"
        "        'sqlite3.connect', 'ctypes.dlopen', 'subprocess.Popen', 'socket.connect', 'os.putenv'):\n"
        "        seen.append((event, str(args[:1])))\n"
        "class Environment(dict):\n"
        "    def __getitem__(self, k): seen.append(('environ', k)); return super().__getitem__(k)\n"
        "    def get(self, k, d=None): seen.append(('environ', k)); return super().get(k, d)\n"
        "os.environ = Environment(os.environ)\n"
        "sys.addaudithook(hook)\n"
        "import autotune\n"
        "print(seen)\n"
    )
    assert out.strip() == "[]"


def test_looking_for_a_kernel_imports_no_search_model_or_orm() -> None:
    out = run(
        "import sys, autotune\n"
        "try:\n    autotune.load('matmul', m=8, n=8, k=8)\n"
        "except autotune.KernelNotFound as err:\n    print('not found')\n"
        "print(sorted({'xgboost', 'sklearn', 'sqlalchemy', 'alembic', 'typer'} & set(sys.modules)))"
    )
    assert out.split("\n")[:2] == ["not found", "[]"]


def test_every_public_name_can_be_had() -> None:
    for name in autotune.__all__:
        assert getattr(autotune, name) is not None, name
    assert set(autotune.__all__) <= set(dir(autotune))
    with pytest.raises(AttributeError, match="tun_"):
        autotune.tun_  # noqa: B018


def test_a_module_does_not_hide_the_function_of_its_name() -> None:
    run(
        "import importlib, pkgutil, autotune\n"
        "for m in pkgutil.iter_modules(autotune.__path__):\n"
        "    importlib.import_module('autotune.' + m.name)\n"
        "for name in ('tune', 'load', 'best', 'build'):\n"
        "    assert callable(getattr(autotune, name)), name\n"
    )


def test_hints_name_the_distribution_and_extras_that_there_are() -> None:
    """The name is written in pyproject.toml and in one module, from which hints take it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == distribution.NAME
    extras = set(project["optional-dependencies"])
    hints = 0
    for package in PACKAGES:
        for path, text in sources(package):
            for extra in re.findall(r"""\binstall\(["'](\w+)["']\)""", text):
                hints += 1
                assert extra in extras, f"{path}: {extra} is no extra"
            if path.name != "distribution.py":
                spelled = re.findall(r"pip install (?:--upgrade )?.?autotune\S*", text)
                assert not spelled, f"{path} spells out {spelled}; take it from schedules.distribution"
    assert hints > 5
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for name, extra in re.findall(r"pip install ['\"]?(autotune[\w-]*)\[?(\w*)", page.read_text("utf-8")):
            assert name == distribution.NAME and extra in {"", *extras}, f"{page.name}: {name}[{extra}]"


def built(kind: str, tree: Path, out: Path) -> Path:
    """The "wheel" or "sdist" of a tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_four_packages_and_their_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
    top = {n.split("/")[0] for n in names if ".dist-info/" not in n}
    assert top == set(PACKAGES)
    assert not [n for n in names if n.endswith((".pyc", ".db")) or "test" in n.split("/")[0]]
    on_disk = {str(p.relative_to(ROOT)) for package in PACKAGES for p, _ in sources(package)}
    on_disk |= {f"{package}/py.typed" for package in PACKAGES}  # a type checker reads the annotations of each
    assert on_disk <= set(names)
    configs = {f"autotune/{p.relative_to(ROOT)}" for p in (ROOT / "configs").rglob("*") if p.is_file()}
    assert configs and configs <= set(names)
    assert any(n.endswith("licenses/LICENSE") for n in names)
    told = f"{distribution.NAME.replace('-', '_')}-{autotune.__version__}.dist-info/METADATA"
    assert told in names and wheel.name.startswith(told.partition(".dist")[0])


@pytest.mark.slow
def test_the_source_archive_holds_what_tests_and_wheels_need(wheel: Path, tmp_path: Path) -> None:
    """Its tests run against an installed wheel, and the wheel that is built from it is the same."""
    archive = built("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.glob("autotune_compiler-*")
    assert tree.name == archive.name.removesuffix(".tar.gz") == "-".join(wheel.name.split("-")[:2])
    there = {p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file()}
    here = {
        p.relative_to(ROOT).as_posix()
        for folder in (".ci", "benchmarks", "configs", "docs", "examples", "tests", *PACKAGES)
        for p in (ROOT / folder).rglob("*")
        if p.is_file() and p.suffix in {"", ".py", ".md", ".json", ".toml", ".cpp", ".xz", ".png"}
    }
    ours = {p for p in here if "__pycache__" not in p and not p.startswith("docs/generated/")}
    assert ours <= there and {"README.md", "LICENSE", "Makefile", "CHANGELOG.md"} <= there
    databases = {p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").rglob("data/*.db")}
    assert databases and databases <= there
    again = built("wheel", tree, tmp_path / "again")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as two:
        assert {i.filename: i.CRC for i in one.infolist()} == {i.filename: i.CRC for i in two.infolist()}


def test_the_page_of_the_index_has_links_that_lead_somewhere() -> None:
    """Links of the README go to files; the classifiers are the Pythons that are supported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    told = [c.rpartition(" ")[2] for c in project["classifiers"] if " :: 3." in c]
    low, high = (m[1] for m in re.finditer(r"3\.(\d+)", project["requires-python"]))
    assert told == [f"3.{n}" for n in range(int(low), int(high))]
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / "README.md").read_text("utf-8")):
        assert link.startswith("http") or (ROOT / link).exists(), link


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has the wheel, and not the checkout."""
    with zipfile.ZipFile(wheel) as z:
        z.extractall(tmp_path / "site")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


@pytest.mark.slow
def test_the_types_of_every_public_name_are_told(installed: dict[str, str], tmp_path: Path) -> None:
    tree = ast.parse(PROGRAM.read_text("utf-8"))
    used = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    public = {f"at.{name}" for name in autotune.__all__} | {f"te.{name}" for name in autotune.te.__all__}
    assert public - used == {"at.te"}, "use them in every_public_name.py"  # it imports that one
    told = runpy.run_path(str(PROGRAM))["expressions"]()
    assert [len(array) for array in told] == [1, 1, 1, 1, 1]
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(PROGRAM)]
    checked = subprocess.run(
        command, cwd=tmp_path, env=installed, capture_output=True, text=True, timeout=1200
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_wheel_works_outside_the_checkout(installed: dict[str, str], tmp_path: Path) -> None:
    out = run(
        "import autotune\n"
        "from autotune.settings import config_file\n"
        "print(autotune.__file__)\n"
        "found = config_file('targets', 'x86-64-v3.json')\n"
        "print(found, found.is_file())\n",
        cwd=tmp_path,
        env=installed,
    )
    first, second = out.splitlines()
    assert first.startswith(str(tmp_path)) and second.startswith(str(tmp_path)) and second.endswith("True")
