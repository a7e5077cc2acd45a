"""The sizes of a range that a command looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from autotune.run.dynamic_workload import Sizes
    from schedules.te.compute_dag import ComputeDAG
    from schedules.te.dims import Dim


def chosen_sizes(text: str, dag: ComputeDAG, dims: Sequence[Dim]) -> list[Sizes]:
    """The sizes of ``--sizes``: ``1,37,512`` for one that varies, ``1x8,37x16`` for two. Without any, those
    at which finalists are ranked, and the largest. ``dims``: what varies in the open ``dag``. Raises
    `typer.BadParameter`."""
    from autotune.measure.open_checks import largest_of, sizes_to_rank

    if not text:
        return [*(tuple(s.values()) for s in sizes_to_rank(dag)), largest_of(dag)]
    ranges = ", ".join(map(repr, dims))
    found = []
    for word in text.split(","):
        numbers = [x.strip() for x in word.split("x")]
        if len(numbers) != len(dims) or not all(x.isdecimal() for x in numbers):
            form = "x".join(str(d.hi) for d in dims)
            raise typer.BadParameter(f"--sizes {text}: {word!r} is no size of {ranges}, such as {form}")
        sizes = tuple(map(int, numbers))
        for d, n in zip(dims, sizes, strict=True):
            if not d.lo <= n <= d.hi:
                raise typer.BadParameter(f"--sizes {text}: {n} is outside {d!r}")
        found.append(sizes)
    return list(dict.fromkeys(found))
