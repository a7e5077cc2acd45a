"""T4, the open auto-tuning results format of Kernel Tuner and others, version 1.0.0.

https://github.com/KernelTuner/kernel_tuner/tree/master/kernel_tuner/schema/T4: a JSON document whose results
each have a configuration, times, an invalidity and a correctness. Ours carry the record beside these, and
what it refers to in the metadata, so that nothing is lost on the way. Results of others name parameters of
a kernel that we do not have: as records they are refused; `autotune replay` searches such a table.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from kernels_db.errors import LogError
from kernels_db.exchange import Item, Refused, decode
from kernels_db.sqlite import explain
from schedules.model import canonical

SCHEMA_VERSION = "1.0.0"
OURS = "autotune"  # the key of what the schema does not know
MOST_BYTES = 256 << 20  # a document is read at once
INVALIDITY = {
    "ok": "correct",
    "illegal": "constraints",
    "compile_error": "compile",
    "wrong_result": "correctness",
    "out_of_bounds": "correctness",
    "crash": "runtime",
    "timeout": "timeout",
    "slow": "timeout",
    "error": "runtime",
}


def document(objects: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    """The text of a document, in pieces, of exchange objects in the order of an export."""
    referred: list[dict[str, Any]] = []
    separator = ""
    head = f'{{"schema_version":"{SCHEMA_VERSION}","metadata":'
    for kind, value in objects:
        if kind == "record":
            if not separator:
                yield f'{head}{canonical({OURS: referred})},"results":['
            yield separator + "\n" + canonical(_result(value))
            separator = ","
        elif kind != "header":
            referred.append(value)
    yield "\n]}\n" if separator else f'{head}{canonical({OURS: referred})},"results":[]}}\n'


def _result(record: dict[str, Any]) -> dict[str, Any]:
    decisions = record["environment"].get("decisions")
    seconds = record["environment"].get("seconds")
    holes = decisions if isinstance(decisions, list) else []
    spent = seconds if isinstance(seconds, dict) else {}
    seconds_a_run = [] if record["time_s"] is None else [record["time_s"]]
    return {
        "timestamp": record["created"],
        "configuration": {"sketch": record["sketch"], **{f"hole{i}": v for i, v in enumerate(holes)}},
        "objectives": ["time"],
        "times": {
            "compilation_time": _ms(spent.get("build")),
            "runtimes": [t * 1e3 for t in record["times_s"]],
            "framework": 0.0,
            "search_algorithm": 0.0,
            "validation": _ms(spent.get("check")),
        },
        "invalidity": INVALIDITY[record["status"]],
        "correctness": 1.0 if record["status"] == "ok" else 0.0,
        "measurements": [{"name": "time", "value": t * 1e3, "unit": "ms"} for t in seconds_a_run],
        OURS: record,
    }


def _ms(seconds: Any) -> float:
    return seconds * 1e3 if isinstance(seconds, (int, float)) else 0.0


def is_t4(path: Path) -> bool:
    """Whether a file looks like one document of this format. Raises `LogError`."""
    try:
        with path.open("rb") as f:
            head = f.read(4096).lstrip()
    except OSError as err:
        raise explain(err, path) from None
    first = head.split(b"\n", 1)[0]
    return head.startswith(b"{") and b'"format"' not in first and any(
        key in head for key in (b'"schema_version"', b'"results"')
    )


def read(path: Path) -> Generator[Item | Refused]:
    """The items of a document; each that is not a record of ours is a `Refused`. Raises `LogError`."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise LogError(
                f"{path} is larger than {MOST_BYTES >> 20} MB, and a T4 document is read at once; "
                f"exchange JSON Lines: autotune log export FILE"
            )
        found = json.loads(path.read_bytes())
    except OSError as err:
        raise explain(err, path) from None
    except (ValueError, RecursionError):
        found = None
    results = found.get("results") if isinstance(found, dict) else None
    if not isinstance(results, list):
        raise LogError(f"{path} is not a T4 document: it is not JSON with a list of results; write it again")
    metadata = found.get("metadata")
    referred = metadata.get(OURS) if isinstance(metadata, dict) else []
    for value in referred if isinstance(referred, list) else []:
        yield _item(value, "T4: metadata not valid")
    for result in results:
        value = result.get(OURS) if isinstance(result, dict) else None
        yield _item(value, "T4: a result without a schedule of autotune")


def _item(value: Any, otherwise: str) -> Item | Refused:
    if not isinstance(value, dict):
        return Refused(otherwise)
    try:
        return decode(value)
    except Refused as err:
        return err
