"""What a test needs is skipped for, or failed for where continuous integration names it."""

from __future__ import annotations

import math

import pytest
from needs import imported, missing


def test_a_missing_tool_skips_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_TESTS_NEED", "opencl nvrtc12")
    with pytest.raises(pytest.skip.Exception, match="nvrtc is not usable here"):
        missing("nvrtc")  # a name is a whole word
    with pytest.raises(pytest.fail.Exception, match="opencl is not usable here, and AUTOTUNE_TESTS_NEED"):
        missing("opencl")
    monkeypatch.delenv("AUTOTUNE_TESTS_NEED")
    with pytest.raises(pytest.skip.Exception, match="opencl"):
        missing("opencl")


def test_a_missing_library_is_a_missing_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_TESTS_NEED", "math no_such_library")
    assert imported("math") is math
    with pytest.raises(pytest.fail.Exception, match="no_such_library"):
        imported("no_such_library")
    monkeypatch.delenv("AUTOTUNE_TESTS_NEED")
    with pytest.raises(pytest.skip.Exception, match="no_such_library"):
        imported("no_such_library")
