"""A real tune, killed or interrupted: nothing that was committed is lost, nothing is left running."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SHAPE = ["matmul", "--shape", "m=96,n=96,k=96", "--threads", "1"]
COMMAND = [sys.executable, "-c", "from autotune.cli import main; main()"]


def start(db: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "tune", *SHAPE, "--db", str(db), "--json", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def committed(db: Path) -> dict[str, tuple[object, ...]]:
    """Every record that another process sees now, by uid."""
    if not db.exists():
        return {}
    con = sqlite3.connect(f"{db.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
    try:
        tables = {name for (name,) in con.execute("SELECT name FROM sqlite_master")}
        if "record" not in tables:
            return {}
        return {
            row[0]: row[1:] for row in con.execute("SELECT uid, trace_digest, status, times_s FROM record")
        }
    except sqlite3.OperationalError:  # the file is being made this moment
        return {}
    finally:
        con.close()


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def gone(processes: list[psutil.Process], within_s: float = 10.0) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def wait_for_trials(db: Path, n: int, within_s: float = 90.0) -> None:
    end = time.monotonic() + within_s
    while len(committed(db)) < n:
        assert time.monotonic() < end, f"no {n} trials within {within_s} s"
        time.sleep(0.05)


@pytest.mark.soak
def test_twenty_kills_lose_no_committed_trial_and_leave_no_process(tmp_path: Path) -> None:
    random_s, db = random.Random(20), tmp_path / "kills.db"
    seen: dict[str, tuple[object, ...]] = {}
    for kill in range(20):
        process = start(db, "--budget", "60s", "--seed", str(kill))
        # One half dies anywhere on the way, the other soon after something was committed.
        end = time.monotonic() + (random_s.uniform(0.2, 4.0) if kill % 2 else 90.0)
        relatives: dict[int, psutil.Process] = {}
        known = len(seen)
        while time.monotonic() < end and process.poll() is None:
            relatives |= {p.pid: p for p in family(process)}
            seen |= committed(db)
            if len(seen) > known and not kill % 2:
                known, end = 1 << 60, time.monotonic() + random_s.uniform(0.0, 1.0)
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL, f"kill {kill}: it had ended with {process.returncode}"
        assert gone(list(relatives.values())), f"kill {kill} left processes"
        now = committed(db)
        assert seen.items() <= now.items(), f"kill {kill} lost records"
        seen = now
    assert len(seen) >= 10, "the kills came before anything was measured"
    con = sqlite3.connect(db)
    assert con.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    con.close()
    distinct = len({digest for digest, *_ in seen.values()})
    out, err = start(db, "--budget", "60s", "--trials", "3").communicate(timeout=120)
    document = json.loads(out)
    assert document["trials"]["resumed"] == distinct, err
    assert document["trials"]["measured"] == 3 and document["best"] is not None
    assert seen.items() <= committed(db).items()


@pytest.mark.soak
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_keeps_all_and_prints_the_best(tmp_path: Path, times: int) -> None:
    db = tmp_path / "c.db"
    process = start(db, "--budget", "120s")
    wait_for_trials(db, 20)
    relatives, before = family(process), committed(db)
    assert relatives
    for _ in range(times):  # a terminal sends it to the whole foreground group
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.05)
    out, err = process.communicate(timeout=20)
    assert gone(relatives)
    assert before.items() <= committed(db).items()
    assert "Traceback" not in err
    document = json.loads(out)
    assert process.returncode == 0 and document["stopped"] == "interrupted"
    assert document["best"]["time_s"] > 0 and document["trials"]["measured"] >= 20


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_a_run_does_as_ctrl_c(tmp_path: Path, number: signal.Signals) -> None:
    db = tmp_path / "t.db"
    process = start(db, "--budget", "120s")
    wait_for_trials(db, 5)
    relatives, before = family(process), committed(db)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    document = json.loads(out)
    assert document["stopped"] == "interrupted" and document["best"]["time_s"] > 0
    assert gone(relatives)
    assert before.items() <= committed(db).items()
    con = sqlite3.connect(db)
    assert con.execute("SELECT state FROM run").fetchall() == [("interrupted",)]
    con.close()
