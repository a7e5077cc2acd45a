"""Draws the pictures of the pages on concepts: ``python docs/pictures.py`` writes ``docs/images/*.svg``.

Each picture is one function. Coordinates are in pixels of the picture, from its left upper corner. Every
picture has a light ground of its own, so that it reads the same on a light and on a dark page.
"""

# ruff: noqa: E501
# Long lines are text of the pictures.

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).parent / "images"
COMMAND = "python docs/pictures.py"

GROUND, INK, FAINT, LINE = "#fbfbfd", "#1f2430", "#596173", "#8b93a5"
# of boxes and of what they stand for: (fill, border)
BLUE, GREEN, ORANGE = ("#e3edfb", "#2f6fc4"), ("#e2f3e6", "#2c8a47"), ("#fdeedd", "#c8701c")
GREY, RED, WHITE = ("#eef0f4", "#596173"), ("#fbe4e4", "#bf3a3a"), ("#ffffff", "#8b93a5")
MONO, SANS = "ui-monospace, 'DejaVu Sans Mono', monospace", "system-ui, 'DejaVu Sans', sans-serif"
Colours = tuple[str, str]


class Picture:
    """An SVG of ``width`` times ``height`` pixels. ``says``: what it shows, for those who cannot see it."""

    def __init__(self, width: int, height: int, says: str) -> None:
        self.width, self.height, self.says = width, height, says
        self.parts: list[str] = []

    def rect(self, x: float, y: float, w: float, h: float, colours: Colours, radius: float = 8) -> None:
        fill, border = colours
        place = f'x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius:g}"'
        self.parts.append(f'<rect {place} fill="{fill}" stroke="{border}" stroke-width="1.5"/>')

    def text(
        self, x: float, y: float, text: str, size: float = 14, *, mono: bool = False, bold: bool = False,
        colour: str = INK, anchor: str = "start",
    ) -> None:  # fmt: skip
        """One line; ``y``: of its base. ``anchor``: which part of it is at ``x`` (start, middle or end)."""
        style = f'font-family="{MONO if mono else SANS}" font-size="{size:g}"'
        style += ' font-weight="600"' if bold else ""
        where = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" xml:space="preserve"'
        self.parts.append(f'<text {where} {style} fill="{colour}">{escape(text, quote=False)}</text>')

    def lines(self, x: float, y: float, lines: Iterable[str], step: float = 18, size: float = 12.5) -> None:
        """Lines of code, one below the other."""
        for i, line in enumerate(lines):
            self.text(x, y + i * step, line, size, mono=True)

    def path(self, *points: tuple[float, float], colour: str = LINE, arrow: bool = True) -> None:
        """A line through points, with a head at the last one. Corners are right angles."""
        way = " L ".join(f"{x:g} {y:g}" for x, y in points)
        head = ' marker-end="url(#head)"' if arrow else ""
        self.parts.append(f'<path d="M {way}" fill="none" stroke="{colour}" stroke-width="2"{head}/>')

    def box(self, x: float, y: float, w: float, h: float, title: str, under: str, colours: Colours) -> None:
        """A box with a title and one line under it."""
        self.rect(x, y, w, h, colours)
        self.text(x + 14, y + 26, title, 16, bold=True, colour=colours[1])
        self.text(x + 14, y + 46, under, 13, colour=FAINT)

    def svg(self) -> str:
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M 0 0 L 10 5 L 0 10 z" fill="{LINE}"/></marker></defs>'
        )
        ground = f'<rect width="{self.width}" height="{self.height}" rx="14" fill="{GROUND}"/>'
        title = f"<title>{escape(self.says, quote=False)}</title>"
        body = "\n".join((title, head, ground, *self.parts))
        return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>\n{body}\n</svg>\n'


def search() -> Picture:
    """From an expression to a kernel."""
    p = Picture(980, 640, "An expression becomes sketches; numbers for their holes make candidates; each "
                "candidate is a schedule, which is tried; the log keeps every trial, and kernels come from it.")  # fmt: skip
    w, top, low = 290, 24, 282
    left, middle, right = 24, 345, 666

    p.box(left, top, w, 200, "Expression", "what is computed", BLUE)
    p.lines(left + 14, top + 82, ["c = te.compute((512, 512),", "  lambda i, j: te.sum(", "    a[i, k] * b[k, j],",
                                  "    axis=k))"])  # fmt: skip
    p.text(left + 14, top + 182, "you write it", 13, colour=FAINT)

    p.box(middle, top, w, 200, "Sketch", "a schedule with holes", GREEN)
    p.lines(middle + 14, top + 76, ["split(i, [None, ?rows])", "split(j, [None, ?lanes])",
                                    "reorder(i0, j0, k, i1, j1)", "unroll(i1)", "vectorize(j1)"])  # fmt: skip
    p.text(middle + 14, top + 182, "rules derive some of them", 13, colour=FAINT)

    p.box(right, top, w, 200, "Candidates", "numbers for the holes", ORANGE)
    p.lines(right + 14, top + 76, ["?rows   ?lanes", "    4       16", "    6       16", "    8       32",
                                   "    …        …"])  # fmt: skip
    p.text(right + 14, top + 182, "the search proposes the next", 13, colour=FAINT)

    p.box(right, low, w, 200, "Schedule", "no hole is left: a loop nest", GREEN)
    p.lines(right + 14, low + 74, ["for i0 in range(86):", "  for j0 in range(32):", "    for k in range(512):",
                                   "      unroll i1 in range(6):", "        vectorize j1 in range(16):",
                                   "          c[…] += a[…] * b[…]"], step=19)  # fmt: skip

    p.box(middle, low, w, 200, "Trial", "one candidate is measured", RED)
    for i, (name, what) in enumerate(
        (("compile", "by LLVM"), ("check", "is its result right?"), ("time", "beside a control"))
    ):
        y = low + 62 + i * 36
        p.rect(middle + 14, y, 92, 26, WHITE, 5)
        p.text(middle + 60, y + 18, name, 13.5, bold=True, anchor="middle")
        p.text(middle + 118, y + 18, what, 13.5)
    p.text(middle + 14, low + 186, "a failure is a trial too, with its reason", 13, colour=FAINT)

    p.box(left, low, w, 200, "Log", "every trial is kept", BLUE)
    p.lines(left + 14, low + 80, ["rows lanes  status   time", "   4    16  ok         ▇▇▇▇▇", "   6    16  ok         ▇▇▇",
                                  "   8    32  crash", "   …     …  …"], step=21)  # fmt: skip

    p.box(left, 530, w, 86, "Kernel", "the best schedule, compiled", GREY)
    p.text(left + 14, 600, "c = kernel(a, b)", 13, mono=True)
    p.text(middle, 566, "Any program loads it from the log:", 14)
    p.text(middle, 592, 'kernel = at.load("matmul", m=512, n=512, k=512)', 13, mono=True)

    p.path((left + w, top + 100), (middle - 3, top + 100))
    p.path((middle + w, top + 100), (right - 3, top + 100))
    p.path((right + 200, top + 200), (right + 200, low - 3))
    p.path((right, low + 100), (middle + w + 3, low + 100))
    p.path((middle, low + 100), (left + w + 3, low + 100))
    p.path((left + 145, low + 200), (left + 145, 527))
    p.path((middle + 145, low), (middle + 145, 256), (right + 60, 256), (right + 60, top + 203))
    p.text(middle + 155, 250, "the search learns from each trial", 13, colour=FAINT)
    return p


def tiles() -> Picture:
    """A tiled loop nest over a matrix."""
    p = Picture(980, 520, "A loop nest of a matrix product in tiles: two loops choose a tile of C, one runs along "
                "a panel of A and of B, and two stay inside the tile, unrolled and in vectors.")  # fmt: skip
    p.text(24, 38, "The loops", 16, bold=True)
    rows = [
        (0, "for i0 in range(86):", BLUE[1]),
        (1, "for j0 in range(32):", BLUE[1]),
        (2, "for k in range(512):", GREEN[1]),
        (3, "unroll i1 in range(6):", ORANGE[1]),
        (4, "vectorize j1 in range(16):", ORANGE[1]),
        (5, "C[i0·6 + i1, j0·16 + j1] +=", INK),
        (6, "A[i0·6 + i1, k] *", INK),
        (6, "B[k, j0·16 + j1]", INK),
    ]
    for n, (depth, line, colour) in enumerate(rows):
        p.text(24 + depth * 17, 72 + n * 26, line, 14, mono=True, colour=colour, bold=colour != INK)
    said = (
        ("i0 and j0 choose a tile of C.", BLUE),
        ("k runs along 6 rows of A and 16 columns of B.", GREEN),
        ("i1 and j1 stay inside the tile: 6 rows of", ORANGE),
        ("two vectors of 8. They lie in 12 registers.", None),
        ("The tile is read and written once, not 512 times.", None),
    )
    for n, (line, colours) in enumerate(said):
        if colours is not None:
            p.rect(24, 300 + n * 27 - 12, 13, 13, colours, 2)
        p.text(46, 300 + n * 27, line, 14)
    p.text(24, 470, "86 tiles of 6 rows are 516: the last one moves up", 13, colour=FAINT)
    p.text(24, 490, 'by 4 rows (tail="shift").', 13, colour=FAINT)

    x0, y0, cell, n_tiles = 640, 170, 36, 8
    side = cell * n_tiles
    p.text(x0 + side / 2, 36, "B", 16, bold=True, anchor="middle")
    p.rect(x0, 46, side, 96, WHITE, 2)
    p.text(x0 - 70, y0 - 12, "A", 16, bold=True, anchor="middle")
    p.rect(x0 - 120, y0, 96, side, WHITE, 2)
    p.text(x0 + side - 4, y0 + side + 22, "C", 16, bold=True, anchor="end")
    p.rect(x0, y0, side, side, WHITE, 2)
    column, row = 5, 3
    p.rect(x0 + column * cell, 46, cell, 96, GREEN, 0)
    p.rect(x0 - 120, y0 + row * cell, 96, cell, GREEN, 0)
    p.path((x0 + column * cell + cell / 2, 58), (x0 + column * cell + cell / 2, 130), colour=GREEN[1])
    p.text(x0 + column * cell + cell / 2 + 24, 98, "k", 15, mono=True, bold=True, colour=GREEN[1])
    p.path((x0 - 110, y0 + row * cell + cell / 2), (x0 - 36, y0 + row * cell + cell / 2), colour=GREEN[1])
    p.text(x0 - 74, y0 + row * cell - 8, "k", 15, mono=True, bold=True, colour=GREEN[1], anchor="middle")
    for i in range(1, n_tiles):
        for a, b in (
            ((x0 + i * cell, y0), (x0 + i * cell, y0 + side)),
            ((x0, y0 + i * cell), (x0 + side, y0 + i * cell)),
        ):
            p.path(a, b, colour="#d3d8e2", arrow=False)
    p.rect(x0 + column * cell, y0 + row * cell, cell, cell, ORANGE, 0)
    p.path((x0 + 8, y0 + side + 18), (x0 + 96, y0 + side + 18), colour=BLUE[1])
    p.text(x0 + 104, y0 + side + 23, "j0", 14, mono=True, bold=True, colour=BLUE[1])
    p.path((x0 + side + 16, y0 + 8), (x0 + side + 16, y0 + 88), colour=BLUE[1])
    p.text(x0 + side + 12, y0 + 110, "i0", 14, mono=True, bold=True, colour=BLUE[1], anchor="middle")
    return p


def control() -> Picture:
    """A candidate is timed beside a control."""
    p = Picture(980, 470, "A candidate and a control take turns. In a slow spell of the machine both take longer, "
                "so that their quotient stays; the candidate's time is that quotient times the control's usual time.")  # fmt: skip
    p.text(24, 38, "How long each run took", 16, bold=True)
    base, x = 300, 48
    p.rect(395, 62, 258, base - 62, ("#f3ecec", "#e3cfcf"), 6)
    p.text(524, 84, "the machine is slow for a while", 13.5, colour=RED[1], anchor="middle")
    for i in range(18):
        slow = 1.55 if 7 <= i <= 11 else 1.0
        is_control = i % 2 == 0
        height = (120 if is_control else 84) * slow
        p.rect(x, base - height, 34, height, BLUE if is_control else ORANGE, 3)
        x += 51
    p.path((34, base), (958, base), arrow=False)
    p.text(952, base + 22, "order of the runs", 13, colour=FAINT, anchor="end")
    p.rect(48, base + 24, 16, 16, BLUE, 3)
    p.text(72, base + 38, "control: a good candidate of the same task, timed all along", 14)
    p.rect(48, base + 52, 16, 16, ORANGE, 3)
    p.text(72, base + 66, "candidate: its turns come between those of the control", 14)
    p.rect(48, base + 92, 884, 60, GREY)
    p.text(490, base + 117, "time of the candidate  =  median of (candidate ÷ control beside it)  ×  usual time of the control",
           15, bold=True, anchor="middle")  # fmt: skip
    p.text(
        490,
        base + 140,
        "Both slow down together, so the quotient does not change.",
        13.5,
        colour=FAINT,
        anchor="middle",
    )
    return p


def model() -> Picture:
    """The life of a model."""
    p = Picture(980, 560, "A model is imported as a graph, rewritten, cut into groups; equal groups are one task; tasks are "
                "tuned into the log; compiled with packed weights it is one call, and can be saved.")  # fmt: skip
    w, top = 212, 24
    xs = [24, 264, 504, 744]

    p.box(xs[0], top, w, 220, "Import", "a graph of expressions", BLUE)
    p.text(xs[0] + 14, top + 74, "net.onnx", 13, mono=True)
    p.text(xs[0] + 14, top + 94, "or torch.export", 13, mono=True)
    p.box(xs[1], top, w, 220, "Rewrite", "fewer, larger steps", GREEN)
    p.box(xs[2], top, w, 220, "Groups", "each is one kernel", GREEN)
    p.box(xs[3], top, w, 220, "Tasks", "equal groups are one task", ORANGE)

    def node(x: float, y: float, text: str, colours: Colours = WHITE, wide: float = 60) -> None:
        p.rect(x, y, wide, 24, colours, 5)
        p.text(x + wide / 2, y + 17, text, 12.5, anchor="middle")

    for row in range(2):
        y = top + 112 + row * 52
        for i, name in enumerate(("conv", "norm", "relu")):
            node(xs[0] + 12 + i * 65, y, name, wide=54)
            if i:
                p.path((xs[0] + 1 + i * 65, y + 12), (xs[0] + 9 + i * 65, y + 12), arrow=False)
    p.path(
        (xs[0] + 175, top + 137), (xs[0] + 175, top + 150), (xs[0] + 39, top + 150), (xs[0] + 39, top + 161)
    )
    for row in range(2):
        y = top + 92 + row * 52
        node(xs[1] + 20, y, "conv", wide=76)
        p.path((xs[1] + 98, y + 12), (xs[1] + 114, y + 12), arrow=False)
        node(xs[1] + 116, y, "relu", wide=76)
    p.text(xs[1] + 14, top + 206, "norm is folded into conv", 13, colour=FAINT)
    for row in range(2):
        y = top + 92 + row * 52
        p.rect(xs[2] + 20, y - 6, 172, 36, ("#d8efdd", GREEN[1]), 8)
        node(xs[2] + 28, y, "conv", wide=72)
        node(xs[2] + 112, y, "relu", wide=72)
    p.text(xs[2] + 14, top + 206, "relu is done in conv's loops", 13, colour=FAINT)
    p.rect(xs[3] + 20, top + 110, 172, 36, ("#fbe0c4", ORANGE[1]), 8)
    p.text(xs[3] + 106, top + 133, "conv + relu   × 2", 14, bold=True, anchor="middle")
    p.text(xs[3] + 14, top + 186, "It is tuned once,", 13, colour=FAINT)
    p.text(xs[3] + 14, top + 206, "and counts twice.", 13, colour=FAINT)
    for a, b in pairwise(xs):
        p.path((a + w, top + 110), (b - 3, top + 110))

    low, h = 310, 110
    p.box(xs[3], low, w, h, "Tune", "one budget for all tasks", RED)
    p.text(xs[3] + 14, low + 80, "at.tune_model(model)", 13, mono=True)
    p.box(xs[2], low, w, h, "Log", "trials of every task", BLUE)
    p.text(xs[2] + 14, low + 76, "Another model with an", 13)
    p.text(xs[2] + 14, low + 95, "equal layer has them too.", 13)
    p.box(xs[1], low, w, h, "Compile", "weights are packed", GREEN)
    p.text(xs[1] + 14, low + 80, "at.compile_model(model)", 13, mono=True)
    p.box(xs[0], low, w, h, "Call", "one native call runs all", GREY)
    p.text(xs[0] + 14, low + 80, "y = net(x)", 13, mono=True)
    p.path((xs[3] + w / 2, top + 220), (xs[3] + w / 2, low - 3))
    for a, b in ((3, 2), (2, 1), (1, 0)):
        p.path((xs[a], low + h / 2), (xs[b] + w + 3, low + h / 2))
    p.path((xs[1] + w / 2, low + h), (xs[1] + w / 2, 487))
    p.rect(xs[1], 490, w, 46, WHITE)
    p.text(xs[1] + 14, 518, 'net.save("net.at")', 13, mono=True)
    p.path((xs[1], 513), (xs[0] + w / 2, 513), (xs[0] + w / 2, low + h + 3))
    p.text(xs[2], 509, "The file has schedules and weights, and no code.", 14)
    p.text(xs[2], 531, 'at.load_model("net.at") checks and compiles them.', 14)
    return p


PICTURES: dict[str, Callable[[], Picture]] = {
    "search": search, "tiles": tiles, "control": control, "model": model,
}  # fmt: skip


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
