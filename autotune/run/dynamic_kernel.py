"""`DynamicKernel`: the kernels of a program whose sizes vary, behind one that looks at the size of a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from autotune.errors import ArgumentError
from autotune.run.dynamic_workload import DynamicWorkload, Sizes
from autotune.run.host_arrays import extents_at, is_number
from autotune.run.kernel import Kernel
from autotune.run.torch_operator import traced_as, traced_of_size
from schedules.errors import NotPicklable
from schedules.model import Workload


class DynamicKernel(Kernel):
    """A kernel for every size in a range. ``kernel(*inputs, out=None)`` runs that of the inputs' size. `load`
    gives it for sizes with ``open=False``, and where no kernel can be for all sizes, or the log has none.

    `at` gives the kernel of one size; ``sizes`` are those that the log has, as tuples in the order of
    ``dims``. Another size gets, at its first call, the fastest of the schedules of near sizes, checked and
    timed here. That takes up to three seconds, once on a machine; `prepare` does it before the calls.
    ``workload``, ``target``, ``record``, ``chosen_by``, ``trace`` and all else are those of the kernel of the
    largest size.

        >>> kernel = at.load("matmul", m=at.dim(1, 512, open=False), n=4096, k=4096)
        >>> kernel.prepare(m=37)
        >>> c = kernel(a, b)  # a has 37 rows
    """

    __signature__ = None  # it has no shapes to tell
    __slots__ = ("_constants", "_kernels", "_key", "_largest", "_load", "_lock", "dynamic", "sizes")

    def __init__(
        self, dynamic: DynamicWorkload, load: Callable[[Workload], Kernel], sizes: Sequence[Sizes]
    ) -> None:
        """``load``: gives the kernel of one workload. ``sizes``: those that are tuned."""
        self.dynamic, self._load, self.sizes = dynamic, load, tuple(sizes)
        self._lock = threading.Lock()
        self._kernels: dict[Any, Kernel] = {}  # by the extents that tell the sizes
        self._key = extents_at([(s.input, s.axis) for s in dynamic.seen])
        largest = dynamic.at(dynamic.largest)
        self._constants = bool(largest.dag.constants)
        self._largest = self._of(dynamic.largest)
        for name in Kernel.__slots__:  # it is the kernel of the largest size in all but what is written here
            setattr(self, name, getattr(self._largest, name))

    @traced_as(traced_of_size)
    def __call__(self, /, *inputs: Any, out: Any = None, **named: Any) -> Any:
        if named:
            inputs = self.placed(inputs, named)
        try:
            kernel = self._kernels[self._key(inputs)]
        except (LookupError, AttributeError, TypeError):
            kernel = self._of(self._sizes(inputs))
        if self._constants:
            inputs = tuple(x.packed(kernel) if isinstance(x, _Weight) else x for x in inputs)
        return kernel(*inputs, out=out)

    def of_shapes(self, shapes: Sequence[tuple[int, ...]]) -> Kernel:
        """The kernel for inputs of these shapes. Raises `ArgumentError`."""
        return self._of(self._sizes_of(shapes))

    def at(self, **sizes: int) -> Kernel:
        """The kernel of one size: ``kernel.at(m=37)``. Raises `WorkloadError` for sizes outside the range."""
        return self._of(self.dynamic.given(sizes))

    def prepare(self, **sizes: int) -> None:
        """Make sure that calls of a size find their kernel: ``kernel.prepare(m=37)``. Raises `WorkloadError`
        for sizes outside the range."""
        self.at(**sizes)

    def _of(self, sizes: Sizes) -> Kernel:
        key = self._key_of(sizes)
        with self._lock:
            if key not in self._kernels:
                self._kernels[key] = self._load(self.dynamic.at(sizes))
            return self._kernels[key]

    def _key_of(self, sizes: Sizes) -> Any:
        extents = tuple(s.extent(n) for s, n in zip(self.dynamic.seen, sizes, strict=True))
        return extents if len(extents) > 1 else extents[0]

    def _sizes(self, inputs: Sequence[Any]) -> Sizes:
        """The sizes of a call. Raises `ArgumentError`."""
        return self._sizes_of([_shape(x) for x in inputs])

    def _sizes_of(self, shapes: Sequence[tuple[int, ...]]) -> Sizes:
        tensors = self.workload.dag.inputs
        if len(shapes) != len(tensors):
            names = ", ".join(t.name for t in tensors)
            raise ArgumentError(
                f"{self.workload.op} takes {len(tensors)} inputs ({names}), got {len(shapes)}"
            )
        sizes = self.dynamic.sizes_of(shapes)
        if sizes is not None:
            return sizes
        which = sorted({s.input for s in self.dynamic.seen})
        for i in which:
            if len(shapes[i]) != len(tensors[i].shape):
                raise ArgumentError(
                    f"input {tensors[i].name!r} has shape {shapes[i]}, but the kernel takes "
                    f"{len(tensors[i].shape)} dimensions: give those of the expression"
                )
        got = ", ".join(f"{tensors[i].name}{list(shapes[i])}" for i in which)
        raise ArgumentError(
            f"the inputs {got} do not fit {self.dynamic}; give sizes in its range, or tune a wider range"
        )

    def pack_weights(self, *weights: Any) -> Any:
        """As of `Kernel`. The weights are kept, and packed for each size at its first call: kernels of two
        sizes may read them in two layouts."""
        self._largest.pack_weights(*weights)  # which checks them
        packed: dict[int, tuple[Any, ...]] = {}
        out = tuple(_Weight(weights, i, packed) for i in range(len(weights)))
        return out[0] if len(out) == 1 else out

    def packed_inputs(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return self._of(self._sizes(inputs)).packed_inputs(inputs)

    def time(self, *inputs: Any, repeat: int = 10) -> float:
        """As of `Kernel`, for the size of the inputs; without inputs, the largest."""
        kernel = self._of(self._sizes(inputs)) if inputs else self._largest
        return kernel.time(*inputs, repeat=repeat)

    @property
    def parameters(self) -> Any:
        """Raises `ArgumentError`: they differ from size to size; `at` gives a kernel of one size."""
        raise ArgumentError(self._one_size("its parameters differ from size to size"))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotPicklable(self._one_size("it cannot be pickled, as it looks for them in a log"))

    def _one_size(self, why: str) -> str:
        """The message for what a kernel of one size does."""
        sizes = ", ".join(f"{d.name}={d.hi}" for d in self.dynamic.dims)
        return f"a kernel of {self.dynamic} is many kernels; {why}. Take that of one size: kernel.at({sizes})"

    def __repr__(self) -> str:
        where = f"on {self.target.arch} x{self.target.threads}"
        return f"<DynamicKernel {self.dynamic}, {len(self.sizes)} sizes tuned, {where}>"


class _Weight:
    """A weight for kernels of any size. ``packed``: of all weights, by the code that reads them."""

    __slots__ = ("_all", "_index", "_packed")

    def __init__(self, weights: tuple[Any, ...], index: int, packed: dict[int, tuple[Any, ...]]) -> None:
        self._all, self._index, self._packed = weights, index, packed

    @property
    def shape(self) -> tuple[int, ...]:
        return _shape(self._all[self._index])

    def packed(self, kernel: Kernel) -> Any:
        """What a kernel takes. Its code stays loaded, so that the id stays its own."""
        code = id(getattr(kernel.code, "shared", kernel.code))
        if code not in self._packed:
            made = kernel.pack_weights(*self._all)
            self._packed[code] = made if len(self._all) > 1 else (made,)
        return self._packed[code][self._index]


def _shape(x: Any) -> tuple[int, ...]:
    """The shape of an array or a buffer. Raises `ArgumentError`."""
    try:
        if hasattr(x, "shape"):
            return tuple(x.shape)
        return () if is_number(x) else tuple(memoryview(x).shape or ())
    except TypeError:
        raise ArgumentError(f"a {type(x).__name__} has no shape; give an array") from None
