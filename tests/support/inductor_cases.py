"""What tests of kernels among Inductor's choices have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_cases import torch

from autotune.models import inductor

TESTED = str(torch.__version__).startswith(tuple(f"{v}." for v in inductor.TESTED))
needs_tested = pytest.mark.skipif(not TESTED, reason=f"this torch is none of {inductor.TESTED}")


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A log and caches of the test's own, and one thread."""
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "log.db"))
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    torch.set_num_threads(threads)
