"""The substitutions that come with the project, from ``configs/substitutions.json``."""

from __future__ import annotations

from functools import lru_cache

from autotune.errors import ModelError
from autotune.settings import config_file
from schedules.documents import Malformed
from schedules.substitutions.document import from_json
from schedules.substitutions.rules import Substitution

FILE = "substitutions.json"


@lru_cache(maxsize=1)
def known() -> tuple[Substitution, ...]:
    """All of them, read once, when they are first asked for. Raises `ModelError` for a file that is damaged
    or missing."""
    try:
        return from_json(config_file(FILE).read_text(encoding="utf-8")).substitutions
    except (OSError, UnicodeDecodeError, Malformed) as err:
        raise ModelError(f"configs/{FILE} of the package cannot be read: {err}; install it again") from err
