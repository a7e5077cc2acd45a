"""The library of boosted trees, which takes a second or two to import."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def xgboost() -> Any:
    """The module `xgboost`. Raises ImportError."""
    if sys.flags.optimize > 1:
        # Its part for scikit-learn edits docstrings as it is imported, and `python -OO` takes them away. It
        # goes without that part, as where scikit-learn is not installed.
        sys.modules.setdefault("xgboost.sklearn", None)  # type: ignore[arg-type]
    return importlib.import_module("xgboost")
