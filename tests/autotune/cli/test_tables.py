"""Tables and wrapped text in terminals of any width, and in pipes: nothing is cut."""

from __future__ import annotations

import io
import re

import pytest

from autotune.cli import output

HEADERS = ("operator", "shape", ">records", ">best", "origin")
ROWS = [
    ("transpose_batch_matmul_softmax", "seq=16 heads=1 dim=8", "12", "1.23 ms", "here, imported"),
    ("matmul_bias_relu", "m=512 n=512 k=512", "1234567", "36.7 us", "here"),
    ("matmul_bias_gelu", "m=512 n=512 k=512", "12", "36.7 us", "here"),
]


def printed(width: int, terminal: bool = True) -> list[str]:
    out = output._Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
    output.table(out, HEADERS, ROWS)
    assert out.width == width
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [30, 60, 72, 80, 100, 200])
def test_a_narrow_terminal_loses_nothing(width: int) -> None:
    lines = printed(width)
    assert "…" not in "".join(lines)
    for number in ("1234567", "36.7 us", "1.23 ms"):
        assert any(number in line for line in lines)  # whole, on one line
    found = re.sub(r"\s", "", "".join(lines))
    for row in ROWS:
        for cell in row:
            assert all(part in found for part in re.findall(r"\w{1,6}", cell)), cell
    if width >= 60:
        assert max(map(len, lines)) <= width


def test_names_are_whole_where_other_text_can_be_folded() -> None:
    lines = printed(96)
    assert [line.split()[0] for line in lines if "_" in line] == [row[0] for row in ROWS]


def test_a_row_is_a_line_where_there_is_room_and_in_a_pipe() -> None:
    assert len(printed(200)) == 4
    assert printed(20, terminal=False) == printed(200)


def test_text_hangs_below_its_beginning() -> None:
    out = output._Console(file=io.StringIO(), force_terminal=True, width=40, color_system=None)
    output.hang(out, "  note: ", "the middle half of the ratios goes from 1.28 to 2.17")
    assert out.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "  note: the middle half of the ratios",
        "        goes from 1.28 to 2.17",
    ]
    pipe = output._Console(file=io.StringIO(), force_terminal=False, width=40)
    output.hang(pipe, "  ", "word " * 20)
    assert pipe.file.getvalue().count("\n") == 1  # type: ignore[attr-defined]


def test_names_with_hyphens_stay_whole() -> None:
    out = output._Console(file=io.StringIO(), force_terminal=True, width=24, color_system=None)
    assert output.hanging(out, "note: ", "measured by cuda-emulator") == [
        "note: measured by",
        "  cuda-emulator",
    ]
