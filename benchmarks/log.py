"""The tuning log at scale: many writers at once, and one log of a million records.

    python benchmarks/log.py --out benchmarks/results/log.json
    python benchmarks/log.py --records 100000 --postgresql postgresql+psycopg://postgres@/bench

Writers: processes that each put records into one log, in transactions of a batch, which the log of every
database must then hold without loss. Merge: an export with that many records (20 steps a trace, tasks of a
thousand) into a new log in a process of its own; the peak of memory is that of it and of the processes that
decode for it; the same of the log that it made. Best: what loading asks, in that log and in one whose records
are all of one task.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing as mp
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from autotune.backends.building.generator_version import this_machine
from kernels_db import Log, NewRecord, exchange, lookup
from schedules import ops
from schedules.model import Step, Target, Trace, Workload

TARGET = Target("cpu", "znver3", "x86_64-unknown-linux-gnu", ("avx2", "fma"), 1, (("l1_bytes", 32768),))
MACHINE = {"cpu": "a benchmark", "cpus": 2}
A_TASK = 1000  # records of a task
STEPS = 20


def workload(i: int) -> Workload:
    return ops.workload("matmul", {"m": i + 1, "n": 64, "k": 64})


def trace(i: int) -> Trace:
    """About as long as that of a tuned matrix product."""
    factors = [("factors", (None, i + 1, n)) for n in range(STEPS)]
    steps = [Step("split", (f, ("loop", f"c_i_{n}_1"), ("tail", "guard"))) for n, f in enumerate(factors)]
    return Trace(tuple(steps))


def record(run: str, i: int) -> NewRecord:
    return NewRecord(
        run, i, "tile", trace(i), "ok", times_s=[1e-3 + 1e-9 * i] * 5,
        environment={"decisions": [i, 1, 2, 3, 4, 5, 6, 7], "seconds": {"build": 0.02, "run": 0.01}},
    )  # fmt: skip


def write(where: str, number: int, records: int, batch: int, ready: Any) -> None:
    with Log(where) as log:
        run = log.start_run(workload(number), TARGET, MACHINE, seed=number).uid
        ready.wait()
        for first in range(0, records, batch):
            log.add_all([record(run, i) for i in range(first, min(first + batch, records))])


def writers(where: str, processes: int, records: int, batch: int) -> dict[str, Any]:
    """Seconds for all of them, and what the log holds then."""
    Log(where).close()
    ready = mp.Barrier(processes + 1)  # what importing takes is not counted
    running = [mp.Process(target=write, args=(where, i, records, batch, ready)) for i in range(processes)]
    for p in running:
        p.start()
    ready.wait()
    started = time.monotonic()
    for p in running:
        p.join()
    took = time.monotonic() - started
    with Log(where, read_only=True) as log:
        held = log.stats()["records"]
        distinct = len({r.uid for r in log.records()})
    assert held == distinct == processes * records, f"{held} rows, {distinct} distinct"
    assert all(p.exitcode == 0 for p in running), [p.exitcode for p in running]
    return {
        "processes": processes, "records": held, "batch": batch, "seconds": round(took, 2),
        "records_a_second": round(held / took),
    }  # fmt: skip


def make_export(path: Path, records: int, a_task: int) -> None:
    """An export with this many records, made without a database."""
    with tempfile.TemporaryDirectory() as folder, Log(Path(folder) / "a.db") as log, path.open("w") as f:
        first = True
        for task in range(-(-records // a_task)):
            run = log.start_run(workload(task), TARGET, MACHINE, seed=0).uid
            log.add(record(run, 0))
        rows = list(log.export_lines())
        heads = [x for x in rows if '"type":"record"' not in x]
        f.writelines(heads)
        for template in (json.loads(x) for x in rows if '"type":"record"' in x):
            for i in range(a_task):
                if not first and records <= 0:
                    return
                template["trial"] = i
                template["trace"] = trace(i).document()
                template["times_s"] = [1e-3 + 1e-9 * ((i * 7919) % a_task)] * 5
                template["time_s"] = template["times_s"][0]
                f.write(exchange.line(exchange.seal("record", template)))
                records -= 1
                first = False


def merge(into: str, source: str, out: Any) -> None:
    peak = Peak()
    started, cpu = time.monotonic(), time.process_time()
    with Log(into) as log:
        result = log.merge(source)
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    out.put({
        "new": result.new, "refused": dict(result.refused),
        "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1),
        "peak_mb": peak.stop(),
    })  # fmt: skip


class Peak:
    """The most memory that this process and its children had at once, looked at ten times a second."""

    def __init__(self) -> None:
        self._most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        this = psutil.Process()
        while not self._done.wait(0.1):
            now = 0
            for process in (this, *this.children()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    now += process.memory_info().rss
            self._most = max(self._most, now)

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return self._most >> 20


def in_process(work: Callable[..., None], *args: Any) -> dict[str, Any]:
    context = mp.get_context("spawn")
    out = context.Queue()
    process = context.Process(target=work, args=(*args, out))
    process.start()
    result: dict[str, Any] = out.get()
    process.join()
    return result


def best_ms(where: str, n: int = 200) -> dict[str, float]:
    """Milliseconds of what loading asks, opening the log included, and of `Log.best` in an open one."""
    rng = random.Random(0)
    opened, asked = [], []
    with Log(where, read_only=True) as log:
        tasks = log.tasks()
        for _ in range(n):
            key, _ = rng.choice(tasks)
            began = time.perf_counter()
            assert lookup.best(where, key, lambda t: True) is not None
            opened.append(time.perf_counter() - began)
            began = time.perf_counter()
            assert log.best(key, TARGET) is not None
            asked.append(time.perf_counter() - began)
    return {
        "lookup_median_ms": round(statistics.median(opened) * 1e3, 2),
        "lookup_worst_ms": round(max(opened) * 1e3, 2),
        "log_best_median_ms": round(statistics.median(asked) * 1e3, 2),
    }


def main() -> None:
    kept = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kept)
    parser.add_argument("--records", type=int, default=1_000_000, help="of the large log")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--each", type=int, default=2000, help="records a process")
    parser.add_argument("--batch", type=int, default=100, help="records a transaction")
    parser.add_argument("--postgresql", help="URL of an empty database for the writers")
    parser.add_argument("--folder", type=Path, help="where the large log is made [default: a temporary one]")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    words = ["URL" if word == args.postgresql else word for word in sys.argv[1:]]
    result: dict[str, Any] = {"command": " ".join(["python benchmarks/log.py", *words])}
    machine = this_machine()
    result["machine"] = {k: machine[k] for k in ("cpu", "usable_cpus", "memory_gib", "kernel", "python")}
    result["load"] = round(os.getloadavg()[0], 1)

    def say(name: str, value: Any) -> None:
        result[name] = value
        print(name, json.dumps(value), flush=True)
        if args.out:  # at every step: the whole takes long
            args.out.write_text(json.dumps(result, indent=2) + "\n")

    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for batch in (args.batch, 1):
            for kind, where in (("sqlite", f"{folder}/writers{batch}.db"), ("postgresql", args.postgresql)):
                if where and (kind == "sqlite" or batch > 1):
                    say(f"writers_{kind}_batch_{batch}", writers(where, args.processes, args.each, batch))
        for name, a_task in (("tasks_of_1000", A_TASK), ("one_task", args.records)):
            export, log = Path(folder, f"{name}.jsonl"), f"{folder}/{name}.db"
            make_export(export, args.records, a_task)
            size = export.stat().st_size
            say(f"merge_{name}", {"export_mb": size >> 20, **in_process(merge, log, str(export))})
            say(f"best_{name}", best_ms(log))
            if name == "tasks_of_1000":
                say("merge_again", in_process(merge, log, str(export)))
                say("merge_of_the_log", in_process(merge, f"{folder}/copy.db", log))
            export.unlink()


if __name__ == "__main__":
    main()
