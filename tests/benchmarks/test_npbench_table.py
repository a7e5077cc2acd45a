"""The table of the programs: what a row says, what a resumed run keeps, and loops as C."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.npbench import __main__ as command  # noqa: E402
from benchmarks.npbench.compare import in_turns  # noqa: E402
from benchmarks.npbench.in_c import Translator  # noqa: E402


def row(name: str, own: float, gcc: float) -> dict:
    seconds = {"autotune": own, "gcc": gcc}
    return {"name": name, "sizes": "S", "way": "first", "seconds": seconds, "errors": {"autotune": 0.0}}


def test_the_table_has_means_and_reasons() -> None:
    failed = {"name": "lu", "sizes": "S", "way": "first", "reason": "took longer than 5 s"}
    lines = command.table([row("b", 1.0, 4.0), row("a", 2.0, 1.0), failed], ("gcc",)).splitlines()
    assert lines[2] == "| a | 2000000 | 0.50 | 0e+00 |"
    assert lines[4] == "| lu | took longer than 5 s | | |"
    assert lines[5:] == ["| geometric mean | | 1.41 | |", "| slower than it | | 1 of 2 | |"]


def test_a_resumed_run_does_what_is_missing_or_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    out, done = tmp_path / "found.json", []
    failed = {"name": "gemm", "sizes": "S", "way": "first", "reason": "killed"}
    out.write_text(json.dumps({"rows": [row("lu", 1.0, 1.0), failed]}))

    def made(options: object, name: str) -> dict:
        done.append(name)
        return row(name, 1.0, 2.0)

    monkeypatch.setattr(command, "row_of", made)
    words = ["npbench", "lu", "gemm", "atax", "--way", "first", "--against", "gcc", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    command.main()
    assert done == ["gemm", "atax"]
    assert {r["name"]: "reason" in r for r in json.loads(out.read_text())["rows"]} == dict.fromkeys(
        ("lu", "gemm", "atax"), False
    )
    assert "| geometric mean | | 1.59 | |" in capsys.readouterr().out


def test_an_unknown_program_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["npbench", "fft"])
    with pytest.raises(SystemExit):
        command.main()
    assert "no program fft; there are gemm" in capsys.readouterr().err


def test_what_takes_long_has_three_turns() -> None:
    class Takes:
        def __init__(self, seconds: float) -> None:
            self.of, self.turns, self.result = seconds, 0, ()

        def seconds(self) -> float:
            self.turns += 1
            return self.of

    quick, slow = Takes(0.001), Takes(9.0)
    assert in_turns({"quick": quick, "slow": slow}, 1.0, rounds=10) == {"quick": 0.001, "slow": 9.0}
    assert (quick.turns, slow.turns) == (10, 3)


def example(x, n, y):
    for i in range(x.shape[0] - 1, -1, -1):
        s = x[i, 0] / 2
        k = i // 2
        y[i] = max(s, 0.5) if k > 1 and n == 3 else abs(s) ** 2


def refused(x):
    x[0] = [1 for _ in x]


def test_loops_are_written_as_c() -> None:
    text = Translator(example, [np.zeros((4, 3)), 3, np.zeros(4)], "double").text()
    assert "double real;\nvoid example(real (*restrict x)[3], int64_t n, real *restrict y)" in text
    assert "  int64_t i;\n  int64_t k;\n  real s;\n" in text
    assert "for (i = (4 - 1); i > (-1); i--)" in text
    assert "s = ((real)x[i][0] / 2);" in text
    with pytest.raises(TypeError, match="loops have no"):
        Translator(refused, [np.zeros(3)], "double").text()
