"""The loop of a builder process: a trace in, object bytes out, or the reason why not."""

from __future__ import annotations

import importlib
import socket
import time
import traceback
from collections.abc import Callable

from autotune.errors import CompileError
from autotune.measure import wire
from schedules.errors import ScheduleError
from schedules.model import Target, Trace, TraceError
from schedules.te.compute_dag import ComputeDAG

Build = Callable[[ComputeDAG, Trace, Target], bytes]


def find(name: str) -> Build:
    """The builder function that "module:function" names. Raises ImportError or AttributeError."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def serve(sock: socket.socket, build: Build, dag: ComputeDAG, target: Target) -> None:
    """Answer requests until the parent goes away."""
    while True:
        try:
            header, _, _ = wire.receive(sock)
        except wire.Closed:
            return
        start = time.perf_counter()
        status, reason, obj = attempt(build, dag, header["trace"], target)
        took = time.perf_counter() - start
        wire.send(sock, {"status": status, "reason": reason, "build_s": took}, obj)


def attempt(build: Build, dag: ComputeDAG, trace: str, target: Target) -> tuple[str, str, bytes]:
    """(status, reason, object) of one build; status "ok" comes with the object."""
    try:
        return "ok", "", build(dag, Trace.from_json(trace), target)
    except (ScheduleError, TraceError) as err:
        return "illegal", str(err), b""
    except CompileError as err:
        return "compile_error", str(err), b""
    except MemoryError:
        return "error", "building needs more memory than Options.memory_bytes allows", b""
    except Exception as err:
        last = traceback.extract_tb(err.__traceback__)[-1]
        file = last.filename.replace("\\", "/").rsplit("/", 1)[-1]
        return "error", f"{type(err).__name__}: {err} ({file}:{last.lineno} in {last.name})", b""
