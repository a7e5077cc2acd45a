"""The slots for builders and workers, and what the death of a process says about its candidate."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune import backends
from autotune.measure.arena import Span, locate
from autotune.measure.process import Death, Slot, Zygote
from autotune.measure.results import Control, Measurement, Options

# Addresses below it belong to the null page (bytes).
_FIRST_PAGE = 4096
# Time that a new process may take to open its device (seconds). It is not the candidate's.
DEVICE_S = 5.0
# Longest checks and timing of a candidate, as a multiple of the best time.
_FACTOR = 50


class Builder(Slot):
    """A process that turns traces into objects."""

    def __init__(self, zygote: Zygote) -> None:
        super().__init__(zygote, "builder")

    def submit(self, job: int, trace: str, options: Options) -> None:
        """Give the builder candidate ``job`` to build. Raises `MeasureError`."""
        self.start(job, {"trace": trace}, b"", options.build_timeout_s)


class Runner(Slot):
    """A process that checks and times objects."""

    def __init__(self, zygote: Zygote, control: Control | None = None) -> None:
        super().__init__(zygote, "worker")
        self.control = control

    def submit(self, job: int, obj: bytes, best_s: float | None, options: Options) -> None:
        """Give the worker candidate ``job`` to check and time. Raises `MeasureError`."""
        limit = time_limit(best_s, options)
        # a device's compiler works in that process, and takes a second or two
        if backends.of_code(obj).measuring.on_device:
            limit = options.timeout_s + (0.0 if self.ready().requests else DEVICE_S)
        self._request(job, {"do": "measure", "best_s": best_s}, obj, limit)

    def result(self) -> Measurement:
        """The measurement, once the socket is readable. The process is replaced unless the status is "ok" or
        "slow", because the candidate may have written anywhere."""
        answer = self.finish()
        if isinstance(answer, Death):
            return running_died(answer, self.zygote.spans)
        header = answer[0]
        measurement = Measurement(**{**header, "times_s": tuple(header["times_s"])})
        if measurement.status not in ("ok", "slow"):
            self.drop()
        return measurement

    def remeasure(
        self,
        objects: Sequence[bytes],
        rounds: int,
        repeats: int,
        timeout_s: float,
        *,
        at_sizes: bool = False,
    ) -> Any:
        """Send several checked objects to be timed in turns; `finish` gives the answer. ``at_sizes``: at the
        sizes of `open_checks.sizes_to_rank` too."""
        turns = {"rounds": rounds, "repeats": repeats, "at_sizes": at_sizes}
        header = {"do": "remeasure", "sizes": [len(x) for x in objects], **turns}
        self._request(0, header, b"".join(objects), timeout_s)

    def _request(self, job: int, header: dict[str, Any], payload: bytes, timeout_s: float) -> None:
        """Send the control before the payload, because the process may be new."""
        obj, seconds = self.control[:2] if self.control else (b"", 0.0)
        self.start(job, {**header, "control": [len(obj), seconds]}, obj + payload, timeout_s)


def time_limit(best_s: float | None, options: Options) -> float:
    """Longest time of a candidate (seconds): `Options.timeout_s`, or less once a best time is known."""
    if best_s is None:
        return options.timeout_s
    return min(options.timeout_s, options.patience_s + _FACTOR * best_s)


def building_died(death: Death) -> Measurement:
    """The measurement of a candidate whose builder ended without an answer."""
    if death.timeout_s is not None:
        return Measurement(
            "timeout", f"building took longer than {death.timeout_s:.1f} s", build_s=death.timeout_s
        )
    return Measurement("crash", f"the builder {_ending(death)}")


def running_died(death: Death, spans: Sequence[Span]) -> Measurement:
    """The measurement of a candidate whose worker ended without an answer."""
    if death.timeout_s is not None:
        reason = f"no result within {death.timeout_s:.1f} s"
        return Measurement("timeout", reason, run_s=death.timeout_s)
    fault = death.fault
    if fault is not None and death.signal == signal.SIGSEGV:
        if fault.address is None:
            reason = "SIGSEGV: an aligned access to an address that is not, or a wild pointer"
            return Measurement("crash", reason)
        if fault.address < _FIRST_PAGE:
            return Measurement(
                "crash", f"SIGSEGV: {_access(fault.write)} address {fault.address:#x} (null pointer)"
            )
        span = locate(spans, fault.address)
        if span is not None:
            return _in_span(span, fault.address, fault.write)
        return Measurement("crash", f"SIGSEGV: {_access(fault.write)} address outside of every array")
    return Measurement("crash", f"the kernel {_ending(death)}")


def _in_span(span: Span, address: int, write: bool | None) -> Measurement:
    if span.kind == "scratch":
        side = "before the beginning" if address < span.first else "past the end"
        return Measurement("out_of_bounds", f"{_access(write)} memory {side} of its scratch")
    size = np.dtype(span.dtype).itemsize
    if span.kind == "input" and span.first <= address < span.last:
        return Measurement(
            "wrong_result", f"writes to its input {span.name}, at element {(address - span.first) // size}"
        )
    if address < span.first:
        where = f"{_count(-(-(span.first - address) // size))} before the beginning"
    else:
        where = f"{_count((address - span.last) // size + 1)} past the end"
    return Measurement("out_of_bounds", f"{_access(write)} {span.name} {where}")


def _count(elements: int) -> str:
    return f"{elements} element{'s' if elements != 1 else ''}"


def _access(write: bool | None) -> str:
    return "accesses" if write is None else "writes" if write else "reads"


def _ending(death: Death) -> str:
    said = f": {death.stderr}" if death.stderr else ""
    if death.signal:
        try:
            name = signal.Signals(death.signal).name
        except ValueError:
            name = f"signal {death.signal}"
        return f"died of {name}{said}"
    return f"ended its process with exit status {death.exit}{said}"
