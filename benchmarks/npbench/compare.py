"""A program beside numpy, numba and gcc: results compared, then times taken in turns."""

from __future__ import annotations

import inspect
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from benchmarks.npbench import in_c
from benchmarks.npbench.program import Program, arguments, distance, made, refer
from benchmarks.npbench.timed import Timed

ROUNDS = 25


class Contender(Protocol):
    """What is timed in turns. ``result``: what the first call returned."""

    result: Any

    def seconds(self) -> float: ...


class NumbaPeer:
    """The loops in a process of an environment that has numba."""

    def __init__(
        self, program: Program, p: Any, arrays: Mapping[str, np.ndarray], python: str, folder: Path
    ) -> None:
        given, results = folder / "given.npz", folder / "results.npz"
        names = list(inspect.signature(program.loops).parameters)
        numbers = {n: np.asarray(getattr(p, n)) for n in names if n not in arrays}
        np.savez(given, **arrays, **numbers)
        file = inspect.getsourcefile(program.loops)
        worker = str(Path(__file__).with_name("numba_worker.py"))
        words = [
            python,
            worker,
            str(file),
            program.loops.__name__,
            str(given),
            str(results),
            json.dumps(names),
        ]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            _, said = self.process.communicate()
            raise RuntimeError(f"numba: {said[-800:]}")
        with np.load(results) as found:
            self.result = tuple(found[n] for n in program.outputs)

    def seconds(self) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def numpy_peer(program: Program, p: Any, arrays: Mapping[str, np.ndarray]) -> Timed:
    def call(a: Any) -> Any:
        own = {n: x if x.ndim else x[()] for n, x in vars(a).items()}
        with np.errstate(all="ignore"):
            return program.reference(SimpleNamespace(**own), p)

    return Timed(arrays, call)


def gcc_peer(program: Program, p: Any, arrays: Mapping[str, np.ndarray], dtype: str, folder: Path) -> Timed:
    own = SimpleNamespace(**arrays)
    function = in_c.compiled(program.loops, arguments(program.loops, p, own), dtype, folder)

    def call(a: Any) -> Any:
        function(*arguments(program.loops, p, a))
        return tuple(getattr(a, n) for n in program.outputs)

    return Timed(arrays, call)


def in_turns(contenders: Mapping[str, Contender], limit_s: float, rounds: int = ROUNDS) -> dict[str, float]:
    """Median CPU seconds of a call. In rounds, in which each has its turn, for about ``limit_s``; what takes
    long has three turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    begin = time.perf_counter()
    for n in range(rounds):
        for name, one in contenders.items():
            if n < 3 or sum(times[name]) / n < limit_s / rounds:
                times[name].append(one.seconds())
        if n >= 2 and time.perf_counter() - begin > limit_s:
            break
    return {name: statistics.median(found) for name, found in times.items()}


def compared(
    program: Program, p: Any, dtype: str, kernels: Any, against: tuple[str, ...], python: str, limit_s: float
) -> dict[str, Any]:
    """Seconds and errors of this project ("autotune") and of peers."""
    real = dtype if dtype.startswith("float") else "float64"
    arrays = made(program, p, real)
    want = refer(program, p, arrays)
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        make: dict[str, Callable[[], Contender]] = {
            "autotune": lambda: Timed(arrays, lambda a: program.run(kernels, a, p)),
            "numpy": lambda: numpy_peer(program, p, arrays),
            "numba": lambda: NumbaPeer(program, p, arrays, python, folder),
            "gcc": lambda: gcc_peer(program, p, arrays, real, folder),
        }
        found: dict[str, Contender] = {}
        failed: dict[str, str] = {}
        for name in ("autotune", *against):
            try:
                found[name] = make[name]()
            except Exception as err:
                if name == "autotune":
                    raise
                failed[name] = f"{type(err).__name__}: {err}"
        errors = {name: distance(one.result, want) for name, one in found.items()}
        seconds = in_turns(found, limit_s)
        for one in found.values():
            if isinstance(one, NumbaPeer):
                one.close()
    return {"seconds": seconds, "errors": errors, "failed": failed}
