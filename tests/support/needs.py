"""What a test does where a tool or library that it needs is missing."""

from __future__ import annotations

import importlib
import os
from typing import Any, NoReturn

import pytest


def missing(tool: str) -> NoReturn:
    """Skip the test, or the module that is being imported. Fail where ``AUTOTUNE_TESTS_NEED``, a list of
    names, has the tool."""
    if tool in os.environ.get("AUTOTUNE_TESTS_NEED", "").split():
        pytest.fail(f"{tool} is not usable here, and AUTOTUNE_TESTS_NEED names it")
    pytest.skip(f"{tool} is not usable here", allow_module_level=True)


def imported(library: str) -> Any:
    """The module of that name, or `missing`."""
    try:
        return importlib.import_module(library)
    except ImportError:
        missing(library)
