"""`OpenKernel`: one compiled kernel for every size of a range, which each call tells (ADR 79)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from autotune.codegen.runtime.entry import signature
from autotune.codegen.runtime.open_signature import open_text_of
from autotune.run.dynamic_kernel import DynamicKernel
from autotune.run.dynamic_workload import DynamicWorkload, Seen, Sizes
from autotune.run.kernel import Kernel, packed_params
from schedules.ir import Buffer
from schedules.ir.nest import tensor_buffer
from schedules.model import Target, Trace, Workload
from schedules.te.dims import Dim
from schedules.te.flops import count_flops_per_point, flops_of_points
from schedules.te.open_sizes import at, untold

if TYPE_CHECKING:
    from autotune.codegen.llvm.compile import LoadedObject


class OpenKernel(DynamicKernel):
    """``kernel(*inputs, out=None)`` runs the same code for every size in its range. The first call of a size
    compiles nothing. A size that was tuned on its own has its own kernel, if `autotune.load` found one.

    ``kernel.at(m=37)`` gives the kernel of one size (`DynamicKernel.at`). ``workload``, ``trace`` and
    ``record`` are those of the range. Raises `ArgumentError` for a size outside of the range.

        >>> m = at.dim(1, 512)
        >>> kernel = at.load("matmul", m=m, n=4096, k=4096)
        >>> c = kernel(a, b)  # a has 37 rows
    """

    __slots__ = ("_given_packing", "_outputs", "_shared", "exact")

    def __init__(
        self,
        loaded: LoadedObject,
        workload: Workload,
        target: Target,
        record: Any = None,
        trace: Trace | None = None,
        packing: Mapping[int, LoadedObject] | None = None,
        chosen_by: str = "schedule",
    ) -> None:
        """As of `Kernel`."""
        params = tuple(map(tensor_buffer, workload.dag.params))
        outputs = workload.dag.outputs
        expected = signature(packed_params(params, packing or {}), outputs) + open_text_of(workload.dag)
        if loaded.signature != expected:
            raise ValueError(f"the object takes {loaded.signature}, not {expected}: compile it again")
        self.exact: Callable[[Workload], Kernel | None] | None = None
        self._shared, self._given_packing, self._outputs = loaded, packing, outputs
        self.target, self.record, self.chosen_by = target, record, chosen_by
        super().__init__(sizes_of_open(workload), self._sized, ())
        self.target, self.record, self.chosen_by = target, record, chosen_by
        self.workload, self._given = workload, trace
        self._called = loaded

    def take_exact(self, exact: Callable[[Workload], Kernel | None]) -> None:
        """Have sizes take kernels of their own: ``exact`` gives the kernel that was tuned for a workload of
        one size, or None. For a kernel that nobody calls yet."""
        self.exact = exact
        self._kernels.clear()  # the largest size has this code already

    def _sized(self, workload: Workload) -> Kernel:
        """The kernel of one size: its own, or this code at that size."""
        found = self.exact(workload) if self.exact is not None else None
        if found is not None:
            return found
        params = tuple(map(tensor_buffer, workload.dag.params))
        text = signature(packed_params(params, self._given_packing or {}), self._outputs)
        told = self.dynamic.sizes_of([t.shape for t in workload.dag.inputs])
        assert told is not None
        loaded = self._shared.sized(text, told)
        return Kernel(
            loaded, params, self._outputs, workload, self.target, self.record, None, self._given_packing,
            self.chosen_by,
        )  # fmt: skip

    @property
    def parameters(self) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
        """Those of the largest size."""
        return self._ins, self._outs

    def __reduce_ex__(self, protocol: Any) -> Any:
        return import_module("autotune.run.kernels").unpickled, (self.as_text(),)

    def __repr__(self) -> str:
        where = f"on {self.target.arch} x{self.target.threads}"
        return f"<OpenKernel {self.dynamic}, one for all sizes, {where}>"


def open_kernel(
    loaded: LoadedObject,
    workload: Workload,
    target: Target,
    record: Any,
    trace: Trace | None,
    packing: Mapping[int, LoadedObject],
    chosen_by: str,
) -> Kernel:
    """The `OpenKernel` of compiled code. Where no input tells a size, which only a program knows then: the
    kernel of its largest sizes."""
    if not untold(workload.dag):
        return OpenKernel(loaded, workload, target, record, trace, packing, chosen_by)
    params = tuple(map(tensor_buffer, workload.dag.params))
    opened = workload.dag.open
    assert opened is not None
    text = signature(packed_params(params, packing), workload.dag.outputs)
    largest = loaded.sized(text, [s.most for s in opened.sizes])
    return Kernel(largest, params, workload.dag.outputs, workload, target, record, trace, packing, chosen_by)


def sizes_of_open(workload: Workload) -> DynamicWorkload:
    """The workloads of each size of one with open sizes."""
    opened = workload.dag.open
    assert opened is not None
    each = count_flops_per_point(workload.dag)
    whole = flops_of_points(workload.dag, each)
    dims = tuple(Dim(s.name, s.least, s.most, open=True) for s in opened.sizes)

    def make(sizes: Sizes) -> Workload:
        one = dict(zip(opened.ranges, sizes, strict=True))
        own = tuple((k, one.get(k, v)) for k, v in workload.params)
        dag = at(workload.dag, one)
        flops = round(workload.flops * flops_of_points(dag, each) / max(whole, 1))
        return replace(workload, dag=dag, params=own, flops=flops)

    told = [opened.telling[name] for name in opened.ranges]
    seen = tuple(Seen(x.of, x.at, *x.linear) for x in told if x.linear is not None)
    return DynamicWorkload(dims, make, told=seen)
