"""Every command on a stdout that has few characters: no traceback, and signs as one types them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.output import plain
from schedules.ops import OPERATORS

ENVIRONMENTS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "strict C": {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


def autotune(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHONIO"))}
    return subprocess.run(
        [sys.executable, "-m", "autotune", *words], env=env | environment, capture_output=True, timeout=60
    )


@pytest.mark.fast("latin-1")
@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_operators_are_listed(environment: dict[str, str]) -> None:
    ran = autotune(["ops", "capsule_conv2d"], environment)
    assert ran.returncode == 0 and b"Traceback" not in ran.stderr
    ran.stdout.decode(environment.get("PYTHONIOENCODING", "ascii"))
    assert not ran.stderr


@pytest.mark.fast("words4")
@pytest.mark.parametrize("words", [["ops"], ["ops", "--json"], ["doctor"], ["--help"], ["tune", "--help"]])
def test_output_in_ascii_is_not_a_traceback(words: list[str], tmp_path: Path) -> None:
    ran = autotune(words, {"PYTHONIOENCODING": "ascii", "AUTOTUNE_DB": str(tmp_path / "t.db")})
    assert b"Traceback" not in ran.stderr and ran.stdout.decode("ascii")


@pytest.mark.fast("json1")
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_errors_name_what_the_user_wrote(json: list[str]) -> None:
    ran = autotune(["ops", "conv\N{MULTIPLICATION SIGN}\N{SNOWMAN}", *json], {"PYTHONIOENCODING": "ascii"})
    assert ran.returncode == 2 and b"Traceback" not in ran.stderr
    assert (b"conv\\u00d7\\u2603" if json else b"convx?") in (ran.stdout if json else ran.stderr)


def test_signs_are_typed() -> None:
    assert plain("2×3 − 1 → µs · μ ≤ é…") == "2x3 - 1 -> us * u <= e..."
    for op in OPERATORS:
        assert "?" not in plain(op.doc + "".join(p.doc for p in op.params)), op.name


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_becomes_ascii(text: str) -> None:
    assert plain(text).isascii()
    assert text.encode("ascii", "autotune.plain") == plain_pieces(text)


def plain_pieces(text: str) -> bytes:
    return "".join(c if c.isascii() else plain(c) for c in text).encode("ascii")
