"""Search spaces: sketches derived from the compute DAG, decisions, limits, features."""

from __future__ import annotations

from schedules.space.base import Candidate, Space
from schedules.space.derive import DerivedSpace, derive

__all__ = ["Candidate", "DerivedSpace", "Space", "derive"]
