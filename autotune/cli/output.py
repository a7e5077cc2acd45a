"""The output of commands: one JSON document for programs, or text for people.

Results go to stdout, progress and complaints to stderr. Rich leaves out colours and box characters in a pipe.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from schedules.units import visible, visible_lines

if TYPE_CHECKING:
    from rich.text import Text

    from schedules.model import Target, Trace, Workload

# Width of text in a pipe (characters), for what is laid out in columns.
PLAIN_WIDTH = 200
# Of a table: the least width of a column of text, and the space between two columns, of which a narrow
# terminal gets one less (characters).
LEAST_WIDTH, GAP = 12, 2
# The least room for text that hangs below its beginning (characters).
LEAST_TEXT = 24
# {character: its spelling in ASCII}.
_PLAIN = str.maketrans(
    {
        "\N{MULTIPLICATION SIGN}": "x",
        "\N{MIDDLE DOT}": "*",
        "\N{DOT OPERATOR}": "*",
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
        "\N{NON-BREAKING HYPHEN}": "-",
        "\N{RIGHTWARDS ARROW}": "->",
        "\N{MICRO SIGN}": "u",
        "\N{GREEK SMALL LETTER MU}": "u",
        "\N{GREEK SMALL LETTER EPSILON}": "epsilon",
        "\N{LESS-THAN OR EQUAL TO}": "<=",
        "\N{GREATER-THAN OR EQUAL TO}": ">=",
        "\N{NOT EQUAL TO}": "!=",
        "\N{ALMOST EQUAL TO}": "~",
        "\N{SQUARE ROOT}": "sqrt ",
        "\N{N-ARY SUMMATION}": "sum ",
        "\N{GREEK CAPITAL LETTER SIGMA}": "sum ",
        "\N{SUPERSCRIPT TWO}": "^2",
        "\N{SUPERSCRIPT THREE}": "^3",
        "\N{INFINITY}": "inf",
        "\N{LEFT SINGLE QUOTATION MARK}": "'",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{LEFT DOUBLE QUOTATION MARK}": '"',
        "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
        "\N{HORIZONTAL ELLIPSIS}": "...",
    }
)


def plain(text: str) -> str:
    """A text in ASCII: signs as they are typed, letters without accents, ``?`` for the rest."""
    letters = unicodedata.normalize("NFKD", text.translate(_PLAIN))
    known = "".join(c for c in letters if not unicodedata.combining(c))
    return known.encode("ascii", "replace").decode("ascii")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return plain(error.object[error.start : error.end]), error.end


codecs.register_error("autotune.plain", _in_ascii)


def print_whatever_the_encoding() -> None:
    """Print characters that the encoding of stdout or stderr lacks as `plain` spells them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="autotune.plain")


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout. Numbers that JSON cannot write become null."""
    print(json.dumps(_writable(document), indent=2, allow_nan=False))


def error_document(message: str, status: int) -> str:
    """The JSON text of a failed command."""
    return json.dumps({"error": {"message": message, "exit_status": status}}, indent=2)


class _Console(Console):
    """A console for text that may be a stranger's: it can only be read."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible_lines(text), **how)


def console(stderr: bool = False) -> Console:
    """A console on stdout or stderr. In a pipe lines are not wrapped. Brackets are not markup, and control
    characters are spelled, because text may come from a log or a file."""
    made = partial(_Console, stderr=stderr, highlight=False, markup=False)
    found = made(soft_wrap=True)
    return found if found.is_terminal else made(soft_wrap=True, width=PLAIN_WIDTH)


@contextmanager
def warnings_told(worded: Callable[[str], str] = str) -> Iterator[None]:
    """Print warnings of the block as messages, in the command's words (``worded``)."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for w in said:
                console(stderr=True).print(f"autotune: {worded(str(w.message))}", highlight=False)


def table(out: Console, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table; columns whose header starts with ``>`` are aligned right. Nothing is cut. In a terminal
    that is too narrow, a text goes on below, in its column, and a number stays whole. In a pipe a row is a
    line."""
    names = [h.removeprefix(">") for h in headers]
    right = [h.startswith(">") for h in headers]
    cells = [[*map(visible, row)] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    least = [w if r else min(w, LEAST_WIDTH) for w, r in zip(widths, right, strict=True)]
    shown, columns = out.width, len(names) - 1
    gap = GAP if not out.is_terminal or sum(least) + GAP * columns <= shown else GAP - 1
    drawn = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for name, numbers, width in zip(names, right, least, strict=True):
        if numbers:
            drawn.add_column(name, justify="right", no_wrap=True, min_width=width)
        else:
            drawn.add_column(name, overflow="fold", min_width=width)
    for row in cells:
        drawn.add_row(*row)
    out.width = max(shown, sum(least if out.is_terminal else widths) + gap * columns)
    try:
        with out.capture() as held:
            out.print(drawn, soft_wrap=False)
    finally:
        out.width = shown
    for line in held.get().splitlines():
        print(line.rstrip(), file=out.file)


def hanging(out: Console, lead: str, text: str) -> list[str]:
    """The lines of a text after ``lead``. In a terminal it is wrapped between words, and goes on below its
    beginning where that leaves room."""
    indent = len(lead) if len(lead) + LEAST_TEXT <= out.width else 2
    lines = textwrap.wrap(
        visible(text),
        out.width if out.is_terminal else len(lead + text) + 1,
        initial_indent=lead,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [lead]


def hang(out: Console, lead: str, text: str, style: str | None = None) -> None:
    """Prints `hanging`."""
    for line in hanging(out, lead, text):
        out.print(line, style=style, soft_wrap=True)


def say_ratio(out: Console, kind: str, peer: str, factor: float) -> None:
    """Print how many times as fast as a peer the tuned kernel or model is, a ``kind``."""
    if factor > 1:
        out.print(f"The tuned {kind} is {factor:.2f} times as fast as {peer}.", style="green")
    else:
        out.print(f"{peer} is {1 / factor:.2f} times as fast as the tuned {kind}.", style="yellow")


def task_text(workload: Workload, threads: int | None = None) -> str:
    """``matmul m=512 n=512 k=512 float32, 2 threads``."""
    from autotune.run.describing import describe

    return describe(workload, threads)


def _writable(v: Any) -> Any:
    if isinstance(v, float):
        return v if math.isfinite(v) else None
    if isinstance(v, Mapping):
        return {str(k): _writable(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [_writable(x) for x in v]
    return v if v is None or isinstance(v, (str, int, bool)) else str(v)


def target_summary(target: Target) -> dict[str, Any]:
    """A target for JSON documents."""
    return {"kind": target.kind, "arch": target.arch, "threads": target.threads, "digest": target.digest}


def trace_value(trace: Trace) -> Any:
    """A trace as a JSON value."""
    return json.loads(trace.to_json())


def input_path(path: Path) -> Path:
    """A file to read. ``-`` is stdin."""
    return Path("/dev/stdin") if str(path) == "-" else path


def output_place(path: Path, documented: bool) -> Path | IO[str]:
    """Where to write. ``-`` is stdout, on which nothing else is printed then, a document of ``--json`` least.
    Raises `typer.BadParameter`."""
    if str(path) != "-":
        return path
    if documented:
        raise typer.BadParameter("- and --json both print on stdout; give a file")
    return sys.stdout
