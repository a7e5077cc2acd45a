"""`ModelState`: what calls of a module keep from one to the next, such as a cache of keys and values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from autotune.codegen.runtime import aligned
from autotune.errors import ArgumentError, ModelError
from autotune.models.state_file import read, shown, write
from schedules.te.compute_dag import Tensor

Array = NDArray[Any]


class StateArrays(tuple[Array, ...]):
    """Arrays of a state in the order of a program, and where they begin in memory, which does not change."""

    addresses: tuple[int, ...]

    @staticmethod
    def of(arrays: Sequence[Array]) -> StateArrays:
        made = StateArrays(arrays)
        made.addresses = tuple(a.ctypes.data for a in made)
        return made


class ModelState(Mapping[str, Array]):
    """What calls of a module keep: ``{name: array}``, of the buffers that a torch program writes to.

    A call without ``state=`` uses ``net.state``. ``net.new_state()`` makes another state, as for a second
    sequence: ``net(x, pos, state=s)``. Kernels read and write these arrays without a copy. They stay the same
    objects, and you may change their elements between calls. ``torch.from_numpy(s["cache"])`` is a tensor of
    the same memory. Calls on one state wait for each other. Calls on different states do not.

    Two modules may share a state if their states have the same names, shapes and dtypes. One may read a
    prompt, and the other make one token after the other. A call that raises an error for its arguments has
    written nothing. A call that an interrupt ends may have written some rows.

    Example: ``s = net.new_state(); y = net(x, pos, state=s); s.save("talk.state")``.
    """

    def __init__(self, tensors: Sequence[Tensor], initial: Mapping[str, Array]) -> None:
        """``tensors``: by users' names, and in the order of these. ``initial``: values before the first call;
        zeros where there is none."""
        self.tensors = tuple(tensors)
        self.turn = Lock()
        self._initial = initial
        self._arrays = {t.name: aligned.zeros(t.shape, t.dtype) for t in self.tensors}
        self._fill()
        self._in_order: dict[tuple[str, ...], StateArrays] = {}

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def in_order(self, names: tuple[str, ...]) -> StateArrays:
        """The arrays of these names."""
        found = self._in_order.get(names)
        if found is None:
            found = self._in_order[names] = StateArrays.of([self._arrays[n] for n in names])
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(a.nbytes for a in self._arrays.values())

    def reset(self) -> None:
        """Set all to what it was before the first call."""
        with self.turn:
            self._fill()

    def _fill(self) -> None:
        for name, a in self._arrays.items():
            a[...] = self._initial[name] if name in self._initial else 0

    def copy(self) -> ModelState:
        """Another state with the same values, as to go on from here in two ways."""
        made = ModelState(self.tensors, self._initial)
        with self.turn:
            for name, a in self._arrays.items():
                made._arrays[name][...] = a
        return made

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelState:
        return self.copy()

    def __reduce__(self) -> Any:
        raise TypeError("a state is no part of a pickle: write it to a file with state.save(path)")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the values to a file, whole or not at all, which `load` reads. It has no code. Raises
        `ModelError` where it cannot be written."""
        with self.turn:
            write(self.tensors, self._arrays, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take the values that `save` wrote. Raises `ModelError` for a file that is none, is damaged, or is
        of another model: it says what both have. Then nothing is changed."""
        values = read(self.tensors, path)
        with self.turn:
            for name, a in self._arrays.items():
                a[...] = values[name]

    @staticmethod
    def of(given: Any, tensors: Sequence[Tensor], model: str, what: str) -> ModelState:
        """What is ``given`` as the state of a ``model`` that keeps these ``tensors``. ``what``: its name in a
        message. Raises ArgumentError for what is none, and as `check`."""
        if not isinstance(given, ModelState):
            raise ArgumentError(
                f"{what} is a {type(given).__name__}, and takes a state of this model: give net.new_state(), "
                "or leave it out"
            )
        given.check(tensors, model)
        return given

    def check(self, tensors: Sequence[Tensor], model: str) -> None:
        """Raise ModelError unless these are the tensors of a ``model``, in order of their names."""
        if self.tensors != tensors:
            raise ModelError(
                f"the state is of another model: it has {shown(self.tensors)}, and {model} keeps "
                f"{shown(tensors)}; make one: net.new_state()"
            )

    def __repr__(self) -> str:
        return f"<ModelState {shown(self.tensors)}: {self.nbytes / 2**20:.1f} MiB>"
