"""A search for a model's graph that tries one rewrite, and has the time for it on a busy machine."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autotune.models import graph_tuning
from autotune.models.graph_search import alternatives


def looks_for(monkeypatch: pytest.MonkeyPatch, rewrite: str) -> None:
    """From now on, only alternatives of one rewrite are found, all of them, and all are tuned."""

    def found(base: Any, refused: Any, until: float) -> Any:
        return alternatives(base, lambda a: refused(a) or a.rewrite != rewrite, math.inf)

    monkeypatch.setattr(graph_tuning, "alternatives", found)
    monkeypatch.setattr(graph_tuning, "hopeful", lambda found, *others: list(found))
