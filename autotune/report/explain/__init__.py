"""Why a kernel is as fast as it is: `explain`, with the source of every number.

``asking.py`` finds what is to be explained; ``kernel.py`` puts the sections together, which
``definition.py``, ``cpu.py``, ``gpu.py``, ``warps.py`` and ``counters.py`` write; ``model.py`` is about whole
models.
"""

from __future__ import annotations

from autotune.report.explain.asking import explain as explain
from autotune.results.explanation import Explanation as Explanation
from autotune.results.explanation import Row as Row
from autotune.results.explanation import Section as Section
