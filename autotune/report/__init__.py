"""One self-contained page of HTML about a tuning log, or about a model: `of_log`, `of_results`.

``data.py`` reads the log, ``sections/`` has a file for each section, ``page.py`` makes one text of them, and
``writing.py`` puts it in its place. Nothing of a log is trusted: all text is escaped, and no code of it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autotune.errors import ReportError
from autotune.results.written import Written

if TYPE_CHECKING:
    from autotune.models.model import Model
    from autotune.report.model_data import ModelData
    from autotune.results.tuned import TuneResult
    from kernels_db.place import LogPlace
    from schedules.model import Target

__all__ = ["ReportError", "Written", "of_log", "of_model", "of_results"]


def of_log(
    path: str | os.PathLike[str],
    db: str | os.PathLike[str] | LogPlace,
    workloads: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
) -> Written:
    """Write the report of a log. ``workloads``, ``targets``: digests of those that it is about (None: all).

    Raises `LogError` for a log that cannot be read, and `ReportError` for a file that cannot be written.

    Example: ``autotune.report.of_log("report.html", "tuning.db")``."""
    return _written(path, db, workloads, targets)


def of_shown(result: Any, path: str | os.PathLike[str]) -> Written:
    """Write the report of a result, as `rendering.Shown` knows it."""
    if result.shown_as in ("tasks", "model"):
        return of_results(path, [t.result for t in result.tasks], getattr(result, "model", None))
    return of_results(path, result.parts)


def of_results(
    path: str | os.PathLike[str], results: Sequence[TuneResult], model: Model | None = None
) -> Written:
    """Write the report of what was tuned, from the log that has it. ``model``: what the tasks are of."""
    place = next((r.place for r in results if r.place is not None), None)
    if place is None:
        raise ReportError(
            "the result does not say which log it is of; use `autotune report --db LOG -o FILE`"
        )
    if model is not None:
        return of_model(path, model, place, results[0].target)
    return _written(path, place, [r.workload.digest for r in results], [r.target.digest for r in results])


def of_model(
    path: str | os.PathLike[str],
    model: Model,
    db: str | os.PathLike[str] | LogPlace,
    target: Target,
    *,
    profiled: bool = False,
    onnx: str | os.PathLike[str] | None = None,
) -> Written:
    """Write the report of a model and of its tasks. ``profiled``: run it here, to show the time of each step.
    ``onnx``: its file, to show ONNX Runtime's profile too, which must be installed. Raises as `of_log`, and
    `ModelError` for a model that cannot be compiled."""

    def about() -> ModelData:
        from autotune.report.model_data import read_model

        return read_model(model, target, db, profiled, onnx)

    return _written(path, db, None, [target.digest], about)


def _written(
    path: str | os.PathLike[str],
    db: str | os.PathLike[str] | LogPlace,
    workloads: Sequence[str] | None,
    targets: Sequence[str] | None,
    about: Callable[[], ModelData] | None = None,
) -> Written:
    """``about``: what reads the model whose tasks are shown."""
    from autotune.report.data import read
    from autotune.report.page import page
    from autotune.report.writing import check, write

    check(path)
    model = None if about is None else about()
    log = read(db, workloads if model is None else model.digests, targets)
    return write(path, page(log, model), len(log.tasks), log.trials)
