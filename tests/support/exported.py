"""Calls exported models as a program without autotune would: by their contract, through ctypes."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided


class ExportedLibrary:
    """A shared object of `Module.export`. Its arrays lie in the order of the contract."""

    def __init__(self, files: Any) -> None:
        self.contract = json.loads(Path(files.contract).read_text())
        self.library = ctypes.CDLL(str(files.library))
        self.weights = None if files.weights is None else str(files.weights).encode()
        self.function("error_text").restype = ctypes.c_char_p
        self.function("free").argtypes = [ctypes.c_void_p]

    def function(self, what: str) -> Any:
        return getattr(self.library, f"{self.contract['name']}_{what}")

    def code(self, name: str) -> int:
        """The status of a name, such as BUSY."""
        (found,) = (s for s, x in self.contract["returns"].items() if x["name"].endswith(f"_{name}"))
        return int(found)

    def make(self, weights: bytes | None = None) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        status = self.function("make")(ctypes.byref(made), weights or self.weights)
        assert status == 0, self.function("error_text")(status)
        return made

    def free(self, instance: ctypes.c_void_p) -> None:
        self.function("free")(instance)

    def run(
        self, instance: ctypes.c_void_p, inputs: Iterable[Any], outputs: Iterable[Any], *sizes: int
    ) -> int:
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*inputs, *outputs)]
        return int(self.function("run")(instance, *pointers, *map(ctypes.c_int64, sizes)))

    def inputs(self, given: Iterable[Any]) -> list[Any]:
        """Arrays as a call takes them."""
        rows = [a for a in self.contract["arguments"] if a["role"] == "input"]
        return [lying(x, a) for x, a in zip(given, rows, strict=True)]

    def call(self, instance: ctypes.c_void_p, given: Iterable[Any], like: Iterable[Any], *sizes: int) -> Any:
        """Outputs of the shapes and dtypes ``like`` these, which are written over poison."""
        outputs = [np.full_like(x, 1 if x.dtype == bool else 99) for x in like]
        status = self.run(instance, self.inputs(given), outputs, *sizes)
        assert status == 0, self.function("error_text")(status)
        return outputs


def lying(x: Any, argument: Mapping[str, Any]) -> Any:
    """An array that lies as a contract says."""
    if argument["order"] == "row-major":
        return np.ascontiguousarray(x)
    item, steps = x.dtype.itemsize, argument["strides"]
    first = argument["bytes_before"] // item
    flat = np.zeros(argument["bytes"] // item + first, x.dtype)
    made = as_strided(flat[first:], x.shape, [s * item for s in steps])
    made[...] = x
    return made


def each(x: Any) -> list[Any]:
    """The results of a module as a list."""
    return [*x] if isinstance(x, tuple) else [x]
