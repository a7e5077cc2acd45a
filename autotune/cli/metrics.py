"""The quality of predictions, and where the time went, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from schedules.units import percent

# {what a model had learnt from: words for it}.
NAMES = {
    "within_task": "trials of the same task known",
    "by_task": "other tasks only",
    "analytic": "estimate, nothing measured",
}


def search_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines about the result of `autotune.tuning.prediction_quality.of_log`; none for a log without
    searches."""
    predictions = found["predictions"]
    for meaning, name in NAMES.items():
        if meaning in predictions:
            m = predictions[meaning]
            yield (
                f"model, {name}: {percent(m['pairwise'])} of pairs in order "
                f"(worst task {percent(m['worst_pairwise'])}), best of 1 pick {percent(m['top1'])}, of 5 "
                f"{percent(m['top5'])}, recall of the best 30 {percent(m['recall30'])}; "
                f"{m['tasks']} tasks, {m['candidates']} trials"
            )
    total = sum(found["seconds"].values())
    if total:
        shares = ", ".join(f"{k} {s:.1f} s ({s / total:.0%})" for k, s in found["seconds"].items())
        yield f"time of trials: {shares}"
