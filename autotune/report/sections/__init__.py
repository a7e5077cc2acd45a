"""The sections of a report, a file each. A new one is a file here and its place in `SECTIONS`."""

from __future__ import annotations

from autotune.report.parts import ReportSection
from autotune.report.sections import convergence, predictions, roofline, tasks, time, winner

# In the order of the page: first all of the log, then those of each task.
SECTIONS: tuple[ReportSection, ...] = (
    tasks.SECTION,
    convergence.SECTION,
    roofline.SECTION,
    predictions.SECTION,
    time.SECTION,
    winner.SECTION,
)
