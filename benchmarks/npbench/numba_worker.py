"""Loops compiled by numba, in a process of an environment that has it. Started by `numba_peer`.

    python numba_worker.py LOOPS.py FUNCTION ARRAYS.npz RESULTS.npz '["names of arguments"]'

Answers a line of JSON for each line of its input: the CPU seconds of a call.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def main() -> None:
    loops, function, given, results, words = sys.argv[1:]
    names = json.loads(words)
    compiled = njit(fastmath=True)(getattr(module(Path(loops)), function))
    with np.load(given) as file:
        arrays = {name: file[name] for name in file.files}

    def call(a: Any) -> None:
        compiled(*(x[()] if (x := getattr(a, n)).ndim == 0 else x for n in names))

    timed = module(Path(__file__).with_name("timed.py")).Timed(arrays, call)
    np.savez(results, **vars(timed.own))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(timed.seconds()), flush=True)


if __name__ == "__main__":
    main()
