"""How often somebody else runs on the other thread of this core, which no counter of a virtual machine tells.

    python benchmarks/neighbours.py [--seconds 10]

Two hardware threads of a core take turns at decoding. A loop of instructions that do nothing is bound by that
alone, so it runs at its full rate only while it has the core to itself; the FMA loop, which shares of the
peak are relative to, decodes little and hardly notices. Printed are, for every CPU, the share of the time at
the full rate, how long times alone last (a kernel that takes longer is never measured alone), and the rate in
the median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np

from autotune.backends.peaks.cpu_peaks import load_loop
from autotune.codegen.llvm.compile import LoadedObject
from autotune.targets import detect

NOPS = 48  # a turn of the loop
TURNS = 10_000  # a run: about 25 µs
ALONE = 0.97  # of the full rate


def nop_loop() -> LoadedObject:
    kernel = f"""
define void @kernel(ptr %args, ptr %scratch, i32 %nthreads) nounwind {{
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k1, %loop ]
  call void asm sideeffect "{"nop;" * NOPS}", ""()
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, {TURNS}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    return load_loop(kernel, [("C", (1,), "float32")], detect(threads=1))


def samples(loop: LoadedObject, seconds: float) -> tuple[list[float], list[float]]:
    """When each run began, and its rate in nops a second."""
    out = np.zeros(1, np.float32)  # never written
    began, rates = [], []
    until = time.perf_counter() + seconds
    while (now := time.perf_counter()) < until:
        began.append(now)
        rates.append(NOPS * TURNS / (loop.bench([out.ctypes.data], 1) * 1e-9))
    return began, rates


def spells(began: list[float], alone: list[bool]) -> list[float]:
    """Seconds of the times alone."""
    found, start = [], None
    for t, quiet in zip(began, alone, strict=True):
        if quiet and start is None:
            start = t
        elif not quiet and start is not None:
            found.append(t - start)
            start = None
    return found


def main() -> None:
    kept = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kept)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each CPU")
    seconds = parser.parse_args().seconds
    loop = nop_loop()
    usable = os.sched_getaffinity(0)
    for cpu in sorted(usable):
        os.sched_setaffinity(0, {cpu})
        began, rates = samples(loop, seconds)
        full = sorted(rates)[-max(1, len(rates) // 1000)]  # the highest few are timer's luck
        alone = [r > ALONE * full for r in rates]
        lasting = spells(began, alone)
        usual, longest = statistics.median(lasting or [0.0]) * 1e3, max(lasting, default=0.0) * 1e3
        print(
            f"cpu {cpu}: alone {sum(alone) / len(alone):.0%} of the time, {len(lasting)} times, "
            f"{usual:.2f} ms in the median, {longest:.1f} ms at most; "
            f"median rate {statistics.median(rates) / full:.0%} of {full / 1e9:.1f} G nops a second"
        )
    os.sched_setaffinity(0, usable)


if __name__ == "__main__":
    main()
