"""What is computed, and what fusing saves: sections from the expression alone."""

from __future__ import annotations

from fractions import Fraction

from autotune.report.data import Limit
from autotune.results.explanation import Row, Section
from autotune.run.describing import command
from autotune.run.workloads import is_custom
from schedules.model import Target, Workload
from schedules.ops import compulsory_bytes
from schedules.te.flops import evaluations
from schedules.te.fusion import Fusion, by_operation, by_stage, fused
from schedules.units import disturbed, peak, percent, seconds, size

FROM = "of the memory that holds the arrays"
# What a limit may be that of.
ARITHMETIC, BYTES, SPECIAL = "arithmetic", "bytes", "special functions"
ROUNDING = 1.01  # what a limit is longer than its parts at most, unless it is that of something else
LARGEST = 20  # denominator of an intensity that is shown as a fraction


def task(workload: Workload, target: Target, time_s: float | None, limit: Limit | None) -> Section:
    """Operations, bytes at least, the measured time, and its share of the machine's limit."""
    flops, least = workload.flops, compulsory_bytes(workload.dag)
    rows = [
        Row("operations", f"{flops:,}", "definition", {"operations": flops}),
        Row("bytes at least", f"{size(least)}: every input and output once", "definition", {"bytes": least}),
    ]
    if least:
        most = f"{flops / least:.4g} operations a byte at most"
        rows.append(Row("intensity", most, "definition", {"flops_per_byte": flops / least}))
    if time_s is not None:
        speed = f"{seconds(time_s)}: {flops / time_s / 1e9:.4g} GFLOP/s, {least / time_s / 1e9:.4g} GB/s"
        numbers = {"time_s": time_s, "gflops": flops / time_s / 1e9, "gbytes_per_s": least / time_s / 1e9}
        rows.append(Row("time", f"{speed} of the bytes at least", "log", numbers))
        rows += _share(workload, target, time_s, limit)
    return Section("Task", tuple(rows))


def _share(workload: Workload, target: Target, time_s: float, limit: Limit | None) -> list[Row]:
    if limit is None:
        unknown = "unknown: no run of the log kept what the machine can do"
        if not (is_custom(workload) or target.grid):  # a GPU's name on the command line is not known here
            unknown += f"; `{command('bench', workload, threads=target.threads)}` measures it"
        return [Row("limit", unknown, "log", {"share": None, "limit_s": None})]
    flops, moved = limit.flops_a_second, limit.bytes_a_second
    share = limit.seconds / time_s
    by = limit.instruction(workload)
    most = "what the machine can do" if by is None else peak(by)
    text = f"{percent(share)} of {most}: {seconds(limit.seconds)} at least"
    if disturbed(share):
        text = f"it was disturbed when measured, as {seconds(limit.seconds)} at least are more than the time"
    rates = [f"{flops / 1e9:.4g} GFLOP/s"] if flops else []
    rates += [f"{moved / 1e9:.4g} GB/s"] if moved else []
    text += f", by {' and '.join(rates)} {FROM}" if rates else ""
    rows = [Row("limit", text, "log", {
        "share": share, "limit_s": limit.seconds, "peak_disturbed": disturbed(share),
        "flops_a_second": flops, "bytes_a_second": moved, **({} if by is None else {"peak_of": by}),
    })]  # fmt: skip
    least = compulsory_bytes(workload.dag)
    if flops and moved and least and not disturbed(share):
        here, balance = limit.operations(workload) / least, flops / moved
        what = limited_by(workload, limit, time_s) or BYTES
        verb = "is" if what == ARITHMETIC else "are"
        text = f"its arithmetic needs {balance:.3g} operations a byte; here are at most {here:.3g}"
        text += f", {'but' if what == SPECIAL else 'so'} {what} {verb} the limit"
        rows.append(Row("balance", text, "log", {"balance": balance, "intensity": here, "limit": what}))
    return rows


def limited_by(workload: Workload, limit: Limit | None, time_s: float) -> str | None:
    """What the machine's limit is that of: `ARITHMETIC`, `BYTES` or `SPECIAL` functions. None: not known, or
    disturbed, as ``time_s`` seconds show."""
    if limit is None or not limit.bytes_a_second or disturbed(limit.seconds / time_s):
        return None  # seconds alone say nothing of what they are of
    took = {BYTES: compulsory_bytes(workload.dag) / limit.bytes_a_second}
    if limit.flops_a_second:
        took[ARITHMETIC] = limit.operations(workload) / limit.flops_a_second
    longest = max(took, key=lambda k: took[k])
    longer = limit.seconds > ROUNDING * took[longest]
    return SPECIAL if longer and evaluations(workload.dag) else longest


def fusion(workload: Workload) -> Section | None:
    """The program as kernels of one operation, of one stage, and as one. None where these are the same."""
    kinds = (
        ("one operation each", by_operation(workload.dag)),
        ("one stage each", by_stage(workload.dag)),
        ("fused", fused(workload.dag)),
    )
    if len({(f.kernels, f.transfers) for _, f in kinds}) == 1:
        return None
    last = {(f.kernels, f.transfers): name for name, f in kinds}  # of what is the same the last name
    rows = tuple(_row(name, f) for name, f in kinds if last[f.kernels, f.transfers] == name)
    return Section("Fused and unfused: elements that kernels read from and write to memory", rows)


def _row(name: str, f: Fusion) -> Row:
    kernels = f"{f.kernels} kernel{'s' if f.kernels != 1 else ''}"
    what = f"{kernels}: {f.operations:,} operations / {f.transfers:,} elements = {_fraction(f)}"
    numbers = {
        "kernels": f.kernels,
        "operations": f.operations,
        "transfers": f.transfers,
        "bytes": f.bytes,
        "operations_per_transfer": f.intensity,
    }
    return Row(name, f"{what}; {size(f.bytes)}", "definition", numbers)


def _fraction(f: Fusion) -> str:
    exact = Fraction(f.operations, f.transfers) if f.transfers else Fraction(0)
    return str(exact) if exact.denominator <= LARGEST else f"{f.intensity:.4g}"
