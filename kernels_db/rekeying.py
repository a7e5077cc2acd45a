"""From workload version 1 to 2: what a log says, under canonical names.

Version 1 identified a workload with the names that it was written under, so that one expression was as many
tasks as it had namings. Here its rows get the keys of version 2: the workload that of its expression, traces
and sketches the canonical names of loops and blocks, runs and records the digests that follow from these. One
function does it for lines that are imported and for rows that are migrated, so that both give the same log.
What is not of version 1 is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from kernels_db import exchange
from kernels_db.exchange import Item, Refused
from kernels_db.records import MAX_SKETCH
from schedules.model import Trace, Workload, canonical, digest
from schedules.trace_names import to_canonical


class Rekeyer:
    """Brings items to version 2, in an order in which each comes after what it refers to. It remembers the
    workloads and runs that have got other keys."""

    def __init__(self) -> None:
        self._workloads: dict[str, Workload] = {}  # by former digest
        self._runs: dict[str, dict[str, str]] = {}  # run and workload of its records, by former uid

    def items(self, items: Iterable[Item | Refused]) -> Iterator[Item | Refused]:
        """Each item under its new key, with the former one beside it."""
        for item in items:
            try:
                yield item if isinstance(item, Refused) else self.item(item)
            except exchange.MALFORMED:
                yield Refused(f"{item.type}: cannot be brought to workload version 2")  # type: ignore[union-attr]

    def item(self, item: Item) -> Item:
        """One item. Raises an exception of `exchange.MALFORMED` where it is not as `exchange.decode` gives
        it."""
        kinds = {"workload": self._workload, "run": self._run, "record": self._record}
        columns = kinds[item.type](item.columns) if item.type in kinds else None  # None: it stays as it is
        return item if columns is None else replace(item, columns=columns, former=item.key)

    def _workload(self, columns: dict[str, Any]) -> dict[str, Any] | None:
        if exchange.parse(columns["json"].encode()).get("version") != 1:
            return None
        w = Workload.from_json(columns["json"])
        new = {**columns, "digest": w.digest, "json": w.json, "names": canonical(w.names)}
        self._workloads[columns["digest"]] = w
        return new

    def _run(self, columns: dict[str, Any]) -> dict[str, Any] | None:
        w = self._workloads.get(columns["workload"])
        if w is None:
            return None
        value = exchange.encode("run", {**columns, "workload": w.digest})
        uid = str(exchange.seal("run", value)["uid"])
        self._runs[columns["uid"]] = {"run": uid, "workload": w.digest}
        return {**columns, "uid": uid, "workload": w.digest}

    def _record(self, columns: dict[str, Any]) -> dict[str, Any] | None:
        w = self._workloads.get(columns["workload"])
        if w is None:
            return None
        trace, sketch = to_canonical(w, Trace.from_json(columns["trace"]), columns["sketch"])
        text = trace.to_json()
        if len(text) > exchange.MAX_TRACE or len(sketch) > MAX_SKETCH:
            raise ValueError("longer than a log takes")
        new = {
            **columns,
            # A record of a run that is not in the log is refused by whoever takes it in.
            **self._runs.get(columns["run"], {"workload": w.digest}),
            "sketch": sketch,
            "trace": text,
            "trace_digest": trace.digest,
        }
        return {**new, "uid": digest(exchange.record_text(new))}
