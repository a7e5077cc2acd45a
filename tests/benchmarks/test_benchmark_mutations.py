"""benchmarks/mutations.py: which changes are made of a source, and which are not."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import mutations  # noqa: E402


def changed(source: str) -> set[str]:
    """The sources that the changes make, where these are Python and mean something else."""
    before = source.encode()
    made = (c.applied(before) for c in mutations.changes(before))
    return {m.decode() for m in made if m is not None}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("a < b", {"a <= b"}),
        ("a < b >= c", {"a <= b >= c", "a < b > c"}),
        ("(a) == (b)", {"(a) != (b)"}),
        ("(a  # not a == b\n  == b)", {"(a  # not a == b\n  != b)"}),
        ("a not  in b", {"a in b"}),
        ("a is b", {"a is not b"}),
        ("a + b", {"a - b"}),
        ("a // b * c", {"a * b * c", "a // b // c"}),
        ("'é' < b + c", {"'é' <= b + c", "'é' < b - c"}),
        ("a and b and c", {"a or b and c", "a and b or c"}),
        ("not a", {"(a)"}),
        ("x = 3", {"x = 4"}),
        ("NAMES = ['a', f(2)]", {"NAMES = ['a', f(3)]", "NAMES = ['a',]", "NAMES = [f(2),]"}),
        ("min(a, b)", {"max(a, b)", "pass"}),
        ("x = np.minimum(a, b)", {"x = np.maximum(a, b)"}),
        ("x = f(a, k=b)", {"x = f(a)"}),
        ("x = f(k=a, l=b)", {"x = f(l=b)", "x = f(k=a)"}),
        ("x = a, b", {"x = a,", "x = b,"}),
        ("x = [a, b, c]", {"x = [b, c]", "x = [a, c]", "x = [a, b]"}),
        ("x += a", {"pass"}),
        ("x = a if b else c", {"x = a if True else c", "x = a if False else c"}),
        ("x = [a for a in b if c]", {"x = [a for a in b if True]"}),
        ("while a:\n    continue", {"while False:\n    continue", "while a:\n    pass"}),
        ("def f():\n    return a", {"def f():\n    return None"}),
        ("def f():\n    return True", {"def f():\n    return False"}),
        (
            "if a:\n    raise E(f(1), 2 < 3)",
            {f"if {x}:\n    raise E(f(1), 2 < 3)" for x in (True, False)} | {"if a:\n    pass"},
        ),
    ],
)
def test_changes_of_a_kind(source: str, wanted: set[str]) -> None:
    assert changed(source) == wanted


@pytest.mark.parametrize(
    "source",
    [
        '"""One < two."""',
        "x: Literal[1, 2] = y",
        "def f(x: tuple[1, 2]) -> a < b: ...",
        "@cache(maxsize=1 + 2)\ndef f(): ...",
        "if TYPE_CHECKING:\n    x = 1",
        "if __name__ == '__main__':\n    main(1)",
        "def __repr__(self):\n    return str(1 + 2)",
        "x = f'{a + 1} of {b < 2}'",
        "assert a < 1, 'one'",
        "log.warning('%d', a + 1)",
        "x = f(timeout=3)",
        "x = 'a' + b",
        "x = 1000",
        "BINS = 32",
        "_FIRST, _LAST = 4, -(1 << 5)",
        "class C:\n    LEAST_S: ClassVar[float] = 5.0 * 2",
        "__all__ = ['a', 'b']",
    ],
)
def test_what_is_left_out(source: str) -> None:
    assert changed(source) == set()


@pytest.mark.fast("autotune/cli/output.py")
@pytest.mark.parametrize(
    "file", ["schedules/affine.py", "autotune/fleet/messages.py", "autotune/cli/output.py"]
)
def test_changes_of_real_files_are_in_their_line_and_mostly_python(file: str) -> None:
    source = (ROOT / file).read_bytes()
    lines = source.decode().splitlines()
    found = mutations.changes(source)
    assert len(found) > 50
    for c in found:
        assert source.count(b"\n", 0, c.start) + 1 == c.line <= len(lines)
    some = found[:: len(found) // 25]
    made = [c.applied(source) for c in some]
    assert sum(m is not None for m in made) > 0.8 * len(some)
    for m in filter(None, made):
        assert ast.parse(m)
