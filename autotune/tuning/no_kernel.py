"""Why a run ended without a kernel, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

# Share of the budget after which the work before the first trial is named.
LONG_SHARE = 0.5


def why(
    failed: Mapping[str, int],
    reasons: Mapping[str, str],
    stopped: str,
    *,
    prepared_s: float,
    elapsed_s: float,
    budget_s: float,
    stopped_early: int = 0,
) -> str:
    """The reason. ``failed``: failed trials by status; ``reasons``: the last reason of each status;
    ``stopped``: as of `TuneResult`; ``prepared_s``: seconds before the search, in which references are
    computed; ``stopped_early``: trials that were too slow to be timed to the end."""
    more = "; give a larger budget" if stopped == "budget" else ""
    if failed:
        total = sum(failed.values())
        every = sorted(failed, key=lambda s: -failed[s])
        told = ", ".join(f"{failed[s]} {s}{f' ({reasons[s]})' if reasons.get(s) else ''}" for s in every)
        if "timeout" not in failed:
            more = ""
        return f"none of {total} trial{'s' if total != 1 else ''} gave a kernel: {told}{more}"
    if stopped_early:
        return (
            f"{stopped_early} trial{'s' if stopped_early != 1 else ''} stopped early, as much slower than a "
            "record of the log that was then found to be of no use; tune again, which goes on without it"
        )
    if stopped == "interrupted":
        return "the run was interrupted before its first trial ended"
    if stopped == "frozen":
        return "the log has no record that can be used, and nothing was measured; tune it first"
    if stopped == "exhausted":
        return "the space has no schedule that keeps the limits of the target"
    if stopped == "budget":
        took = ""
        if prepared_s > LONG_SHARE * budget_s:
            took = f", as deriving the space and the right outputs took {prepared_s:.1f} s of {budget_s:g} s"
        return f"the budget ended before the first trial did{took}{more}"
    return f"no trial was made in {elapsed_s:.1f} s ({stopped})"
