"""A scheduler for the tests of a file, whose workers are new in each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fleet_cases import Rack, rack

from autotune.fleet import serving


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    with rack(tmp_path_factory.mktemp("locks")) as made:
        yield made


@pytest.fixture
def there(scheduler: Rack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rack]:
    monkeypatch.setattr(serving, "TELL_S", 0.0)  # these candidates take no time
    yield scheduler
    scheduler.stop()
