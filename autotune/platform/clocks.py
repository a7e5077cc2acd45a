"""Numbers of the clocks of ``clock_gettime``, which differ from system to system."""

from __future__ import annotations

import sys

# Of monotonic time, and of a thread's CPU time.
MONOTONIC, THREAD_CPU = (6, 16) if sys.platform == "darwin" else (1, 3)
