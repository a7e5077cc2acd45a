"""Messages between client and worker: read as they were written, or refused."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleet_cases import A, facts

import autotune as at
from autotune.fleet import messages
from autotune.fleet.errors import MessageError
from autotune.fleet.messages import FleetRequest, FleetTask
from autotune.fleet.serving import Bench
from autotune.measure.inputs import Tolerance
from autotune.measure.results import Measurement
from autotune.search.decisions import DECISIONS
from autotune.search.llm import EXCHANGES, KEPT
from autotune.tuning.known_limits import LIMIT
from autotune.tuning.prediction_quality import PREDICTED
from autotune.tuning.run_records import new_record
from schedules import ops
from schedules.model import Step, Trace

TRACE = Trace((Step("split", (("factors", (None, 8)), ("loop", "i"), ("tail", "guard"))),))


def task(**more: Any) -> FleetTask:
    return FleetTask(ops.workload("matmul", {"m": 8, "n": 8, "k": 8}), A, 10.0, **more)


def request(**more: Any) -> FleetRequest:
    given = {
        "do": "measure",
        "batch": "autotune-x.1",
        "task": task(),
        "traces": (TRACE, Trace()),
        "generator": "g",
    }
    return FleetRequest(**given | more)


def test_a_request_is_read_as_it_was_written() -> None:
    sent = request(
        task=task(tolerance=Tolerance(1e-3, 1e-5), reference_s=0.5),
        best_s=1e-3,
        left_s=2.5,
        place=3,
        rounds=2,
        repeats=7,
        objects=((1, "0" * 32),),
    )
    got = messages.request(sent.text())
    assert got == sent
    assert got.task.key == sent.task.key != task().key
    assert got.task.workload.dag == sent.task.workload.dag  # with the user's names


@pytest.mark.parametrize(
    "m",
    [
        Measurement(
            "ok", "", (1e-3, 2e-3), 1e-3, 1e-7, 0.9, 0.1, 0.2, 0.3, {"registers": 32, "throttled": ["heat"]}
        ),
        Measurement("crash", "SIGSEGV: writes C 1 element past the end", run_s=1.0),
        Measurement("slow", "4 times the best", (1e-2,), 1e-2),
    ],
)
def test_a_measurement_is_read_as_it_was_written(m: Measurement) -> None:
    assert messages.measurement(json.loads(json.dumps(messages.of_measurement(m)))) == m


def test_an_infinite_error_is_left_out() -> None:
    m = Measurement("wrong_result", "nan", error=math.inf)
    assert messages.measurement(messages.of_measurement(m)).error is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "great"}, "status: expected one of ok"),
        ({"time_s": None}, "status ok and time None"),
        ({"status": "crash"}, "status crash and time 0.001"),
        ({"time_s": -1.0}, "time_s: expected a number of seconds"),
        ({"time_s": 0.0}, "time_s: expected a number of seconds"),
        ({"time_s": 1e9}, "time_s: expected a number of seconds"),
        ({"time_s": True}, "time_s: expected a number"),
        ({"times_s": ["1"]}, r"times_s\[0\]: expected a number"),
        ({"times_s": [1e-3] * (1 << 17)}, "times_s: expected a list of 0 to"),
        ({"reason": 7}, "reason: expected a text"),
        ({"reason": "x" * 5000}, "reason: expected a text"),
        ({"facts": []}, "facts.*: expected"),
        ({"time_s": 5e-324}, "time_s: expected a number of seconds"),
        ({"times_s": [0.0]}, r"times_s\[0\]: expected a number of seconds"),
        ({"error": -1.0}, "error: expected a number from 0"),
        ({"facts": {"x": "y" * 100_000}}, "facts: expected a small object"),
        ({"facts": {"x": math.inf}}, "facts: expected a small object"),
        ({"facts": {"x": [[]] * 300}}, "facts: expected a small object"),
        ({"facts": {"throttled": 5}}, "facts.*: expected"),
        ({"facts": {"throttled": {"heat": "x"}}}, "facts.*: expected"),
        ({"facts": {"throttled": [["heat"]]}}, "facts.*: expected"),
        ({"more": 1}, "'more' is not known"),
        ({"build_s": None}, "build_s: expected a number"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(change: dict[str, Any], reason: str) -> None:
    body = messages.of_measurement(Measurement("ok", "", (1e-3,), 1e-3)) | change
    with pytest.raises(MessageError, match=reason):
        messages.measurement(body)


def test_what_is_read_of_a_measurement_fits_into_a_log(tmp_path: Path) -> None:
    """With the largest facts, beside all else that a record may have: one that is too large would end the
    runs of all machines."""
    largest = {"x": "\\" * ((messages.MOST_FACTS - 10) // 2)}
    times = [1e-3] * messages.MOST_TIMES
    said = {"model": "m" * 200, "prompt": "p" * KEPT, "answer": "a" * KEPT, "error": "e" * 500}
    rates = messages.numbers_of({"r": {f"{i:080}": 1 / 3 for i in range(messages.MOST_NUMBERS)}}, "r")
    environment = {EXCHANGES: said, LIMIT: rates, DECISIONS: [1 << 40] * 100, PREDICTED: {"model": 1 / 3}}
    body = messages.of_measurement(Measurement("ok", "r" * 9999, (1e-3,), 1e-3)) | {"facts": largest}
    with at.Log(tmp_path / "t.db") as log:
        run = log.start_run(task().workload, A, facts("box"), seed=0)
        for many in (times, times[:1]):
            m = messages.measurement(body | {"times_s": many})
            log.add(new_record(run.uid, 0, "s", TRACE, m, environment))
            passes = 6  # of finalists, whose times one record has
            log.add(new_record(run.uid, 0, "s", TRACE, replace(m, times_s=m.times_s * passes), {}, "final"))


def test_numbers_that_are_infinite_are_no_message() -> None:
    text = '{"version":1,"x":1e999}'
    with pytest.raises(MessageError, match="no JSON"):
        messages.opened(messages.digest(text) + text)


def changed(sent: FleetRequest, **changes: Any) -> str:
    """A message with its parts changed, under a digest that fits. Dots go down."""
    body = messages.opened(sent.text())
    for path, value in changes.items():
        at = body
        *way, last = path.split("__")
        for name in way:
            at = at[name]
        at[last] = value
    return messages.sealed(body)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"do": "eval"}, "do: expected one of measure.*got 'eval'"),
        ({"do": None}, "do: expected one of measure.*got None"),
        ({"version": 2}, "its version is 2"),
        ({"more": 1}, "'more' is not known"),
        ({"batch": "x" * 300}, "batch: expected a name"),
        ({"batch": "a\nb"}, "batch: expected a name"),
        ({"traces": {}}, "traces: expected a list"),
        ({"traces": [7]}, r"traces\[0\]: (malformed trace|trace version 9)"),
        ({"traces": [{"version": 9, "steps": []}]}, r"traces\[0\]: (malformed trace|trace version 9)"),
        (
            {"traces": [{"version": 1, "steps": [["exec", "x"]]}]},
            r"traces\[0\]: malformed trace: steps\[0\]\[1\]: expected an object",
        ),
        ({"best_s": "fast"}, "best_s: expected a number"),
        ({"best_s": -1}, "best_s: expected a number of seconds"),
        ({"left_s": 1e12}, "left_s: expected a number of seconds"),
        ({"place": -1}, "place: expected a whole number"),
        ({"rounds": 10**9}, "rounds: expected a whole number"),
        ({"repeats": 0.5}, "repeats: expected a whole number"),
        ({"objects": [[5, "0" * 32]]}, "an object is of a trace that is not there"),
        ({"objects": [[0]]}, r"objects\[0\]: expected a list of 2"),
        ({"task": None}, "task: expected an object of workload"),
        ({"task__op": ["x"]}, "task.op: expected a text"),
        ({"task__flops": -1}, "task.flops: expected a whole number"),
        ({"task__patience_s": None}, "task.patience_s: expected a number"),
        ({"task__tolerance": [1]}, "task.tolerance: expected a list of 2"),
        ({"task__tolerance": [1, -1]}, r"task.tolerance\[1\]: expected a number"),
        ({"task__target": {}}, "task.*(malformed|workload version '99'|expected an object)"),
        ({"task__target__threads": 0}, "task.*(malformed|workload version '99'|expected an object)"),
        ({"task__workload": {"version": 99}}, "task.*(malformed|workload version '99'|expected an object)"),
        ({"task__workload__dag": "x"}, "task.*(malformed|workload version '99'|expected an object)"),
        ({"task__names": {"tensors": 1}}, "task.*(malformed|workload version '99'|expected an object)"),
    ],
)
def test_a_request_that_cannot_be_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        messages.request(changed(request(), **change))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (None, "no text"),
        (b"bytes", "no text"),
        ("", "no text"),
        ("0" * 32 + "{}", "digest does not fit"),
        (messages.digest("[1]") + "[1]", "it is no JSON object"),
        (messages.digest("{") + "{", "no JSON"),
        (messages.digest('{"version":NaN}') + '{"version":NaN}', "no JSON"),
        (messages.digest("[" * 100_000) + "[" * 100_000, "no JSON"),
        (messages.digest("{}") + "{}", "version is None"),
    ],
)
def test_what_is_no_message_is_refused(message: object, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        messages.request(message)


def test_a_thousand_changed_messages_are_refused() -> None:
    """Of which a part is cut off, or a character is another: none reaches a measurer."""
    bench = Bench([A], facts("here"), (), "g")
    bench.site = None  # type: ignore[assignment]  # nothing may ask it
    text, rng = request(objects=((0, "0" * 32),)).text(), random.Random(0)
    for _ in range(1000):
        at = rng.randrange(len(text))
        match rng.randrange(4):
            case 0:
                bad = text[:at]
            case 1:
                bad = text[:at] + chr(rng.randrange(1, 256)) + text[at + 1 :]
            case 2:
                bad = text[:at] + text[at + 1 :]
            case _:
                bad = text[:at] + text[rng.randrange(len(text)) :]
        if bad == text:
            continue
        error = messages.opened(bench.answer(bad))["error"]
        assert error["kind"] == "message" and "was refused" in error["text"]


@pytest.mark.slow
def test_changed_parts_under_a_digest_that_fits_are_refused_or_are_another_request() -> None:
    """Values of every place are replaced by others: a reader raises nothing but `MessageError`."""
    rng = random.Random(1)
    values = [None, True, -1, 10**30, 1e308, "", "x" * 1000, [], {}, [[]], {"a": 1}, "\ud800"]
    refused = 0
    for _ in range(1000):
        body = messages.opened(request(best_s=1.0).text())
        at: Any = body
        while True:
            keys = list(at) if isinstance(at, dict) else range(len(at))
            key = rng.choice(list(keys))
            if not isinstance(at[key], (dict, list)) or not at[key] or rng.random() < 0.2:
                break
            at = at[key]
        at[key] = rng.choice(values)
        try:
            got = messages.request(messages.sealed(body))
        except MessageError:
            refused += 1
        else:
            assert isinstance(got, FleetRequest)
    assert refused > 700
