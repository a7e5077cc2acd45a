"""A kernel beside what Inductor makes of the same part of a graph: measured by Inductor, taken where it wins.

Inductor lowers all as it does alone. Where a cluster ends, a node is added that gets what Inductor made,
and the cluster's inputs. Its lowering here returns either that or the call of a kernel. Where Inductor's
wins, nothing has changed. Where the kernel wins, nobody reads what Inductor made, and it is left out.
"""

from __future__ import annotations

import hashlib
import logging
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import fx
from torch._inductor import config, ir
from torch._inductor.codegen.subgraph import SubgraphChoiceCaller
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.select_algorithm import (
    NoValidChoicesError,
    autotune_select_algorithm,
    get_algorithm_selector_cache,
)
from torch._inductor.virtualized import V

from autotune.codegen.runtime.entry import layout_of
from autotune.errors import ModelError
from autotune.models.inductor_clusters import Cluster
from autotune.models.inductor_kernels import ClusterTask, order_of, task_of
from autotune.run.kernel import Kernel
from schedules.errors import AutotuneError
from schedules.strides import MemoryLayout

log = logging.getLogger(__name__)

ROUNDS = 9  # in which both are timed in turn
ROUND_MS = 12  # of each of the two in a round
CALLS = "from autotune.run.inductor_calls import kernel as autotune_kernel"
# What is patched away while parts are compiled; these keep the values that the graph is compiled with.
KEPT = ("max_autotune", "max_autotune_gemm", "max_autotune_gemm_backends")


class Choosing(Protocol):
    """What the lowering asks, and what it tells."""

    @property
    def margin(self) -> float:
        """The share of Inductor's time that a kernel must save."""

    def kernel(self, task: ClusterTask) -> Kernel | None:
        """The kernel of a task; None where there is none."""

    def measured(self, cluster: Cluster, ours_ms: float, theirs_ms: float, taken: bool) -> None:
        """What was measured of a cluster."""

    def left(self, cluster: Cluster, why: str) -> None:
        """A cluster that has no kernel."""

    def no_python(self) -> None:
        """Code without Python is made, which calls no kernel."""

    def failed(self, err: Exception) -> None:
        """An error that is none of the user's, after which Inductor chooses alone."""


def lowering_of(cluster: Cluster, choosing: Choosing) -> Callable[..., Any]:
    """What Inductor calls in place of an operator, with what it made and the inputs of a cluster."""

    def autotune_choice(theirs: Any, *inputs: Any) -> Any:
        try:
            return _chosen(cluster, choosing, theirs, inputs)
        except (AutotuneError, NoValidChoicesError) as err:
            choosing.left(cluster, str(err) or "Inductor could not time it")
        except Exception as err:  # a choice must not break the user's compilation
            choosing.failed(err)
            choosing.left(cluster, f"autotune failed: {type(err).__name__}: {err}")
        return theirs

    return _as_lowering(autotune_choice)


def _as_lowering(lower: Callable[..., Any]) -> Callable[..., Any]:
    """A function as a target of nodes that Inductor calls with what it made of their arguments."""
    lower._inductor_lowering_function = True  # type: ignore[attr-defined]
    return lower


def _chosen(cluster: Cluster, choosing: Choosing, theirs: Any, inputs: Sequence[Any]) -> Any:
    """What Inductor made, or the call of a kernel. Raises AutotuneError where there is no kernel."""
    boxes = [ir.ExternKernel.realize_input(x) for x in inputs]
    orders = []
    for x in boxes:
        layout = ir.as_storage_and_layout(x)[1]
        lies = order_of(_numbers(layout.size), _numbers(layout.stride))
        if lies is None:
            raise ModelError(f"an input of {cluster.shown} is a part of a larger tensor")
        orders.append(lies)
    val = cluster.last.meta["val"]
    strides = _wanted_strides(val)
    order = order_of(tuple(val.shape), strides)
    if order is None:
        raise ModelError(f"the output of {cluster.shown} has elements apart from each other")
    task = task_of(cluster, orders, order)
    kernel = choosing.kernel(task)
    if kernel is None:
        raise ModelError("the log has no kernel of it")
    layout = ir.FixedLayout(theirs.get_device(), val.dtype, list(val.shape), list(strides))
    call = ChosenCall(task, kernel, layout)
    ours_ms, alone_ms = _timed(cluster, call, boxes)
    taken = ours_ms < (1 - choosing.margin) * alone_ms
    choosing.measured(cluster, ours_ms, alone_ms, taken)
    return call.box(boxes) if taken else theirs


class ChosenCall:
    """The call of a kernel in a graph of Inductor. Inputs and output lie in memory as the kernel wants them,
    and are viewed in its shapes. ``layout``: that of the output in the graph."""

    def __init__(self, task: ClusterTask, kernel: Kernel, layout: Any) -> None:
        self.text = kernel.as_text()
        self.name = f"autotune_{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"
        self.shown, self.layout = repr(kernel), layout
        ins, (out,) = kernel.parameters
        self.places = [(i, layout_of(b)) for i, b in zip(task.reads, ins, strict=True)]
        self.lies = layout_of(out)
        packed = (
            (name, kernel.pack(i, task.weights[name]))
            for i, name in enumerate(task.reads)
            if isinstance(name, str)
        )
        self.weights = {name: torch.from_numpy(x) for name, x in packed}

    def box(self, boxes: Sequence[Any]) -> Any:
        """What it makes of these inputs."""
        device, dtype = self.layout.device, self.layout.dtype
        made = KernelCallNode(
            layout=ir.FixedLayout(device, dtype, [*self.lies.shape], [*self.lies.steps]),
            inputs=[self._weight(i) if isinstance(i, str) else _viewed(boxes[i], m) for i, m in self.places],
            python_kernel_name=self.name,
        )
        made.text = self.text
        box = ir.TensorBox.create(made)
        if _same(self.layout, self.lies):
            return box
        return ir.TensorBox(ir.ReinterpretView(data=box.data, layout=self.layout))

    def _weight(self, name: str) -> Any:
        """A weight as the kernel reads it, which is kept with the code."""
        return V.graph.add_tensor_constant(self.weights[name], f"{self.name}_{name}")


class KernelCallNode(ir.ExternKernelOut):
    """The call of a kernel in generated code, which has the kernel's text, and loads it when it is
    imported."""

    text = ""

    def codegen(self, wrapper: Any) -> None:
        wrapper.add_import_once(CALLS)
        wrapper.add_import_once(f"{self.python_kernel_name} = autotune_kernel({self.text!r})")
        super().codegen(wrapper)


class TimedPart(SubgraphChoiceCaller):
    """A part of a graph as a choice: a module of torch.fx, compiled as Inductor compiles the graph. So both
    sides have the same code around them."""

    def __init__(self, name: str, shown: str, module: Any, boxes: list[Any], layout: Any) -> None:
        super().__init__(name, boxes, layout, shown, lambda *inputs: module)
        self.config_patches = {option: getattr(config, option) for option in KEPT}
        self.duel: Duel | None = None

    def benchmark(self, *args: Any, out: Any) -> float:
        assert self.duel is not None
        return self.duel.times(args)[self]

    def function(self, args: Sequence[Any]) -> Callable[[], Any]:
        """The compiled part on these arrays."""
        self._ensure_compiled()
        call = self._compiled_module.call
        return lambda: call([*args])

    def hash_key(self) -> str:
        return f"{self.name} {super().hash_key()}"

    def output_node(self) -> Any:
        """Nothing: whoever asked for the choice makes it."""


class Duel:
    """The two choices, timed in turn in short rounds, so that a busy moment hits both."""

    def __init__(self, ours: TimedPart, alone: TimedPart) -> None:
        self.ours, self.alone = ours, alone
        ours.duel = alone.duel = self
        self.found: dict[TimedPart, float] = {}

    def times(self, args: Sequence[Any]) -> dict[TimedPart, float]:
        """Milliseconds of both by Inductor's benchmark. Inductor's are the least of all rounds, the kernel's
        are these times the median of the rounds' ratios. Infinite for a kernel whose result is another."""
        if not self.found:
            mine, theirs = self.ours.function(args), self.alone.function(args)
            if not _agree(mine()[0], theirs()[0]):
                log.warning("%s gave another result than Inductor, and is not used", self.ours.description)
                self.found = {self.ours: float("inf"), self.alone: 0.0}
                return self.found
            rounds = [
                [benchmarker.benchmark(f, device="cpu", warmup=2, rep=ROUND_MS) for f in (mine, theirs)]
                for _ in range(ROUNDS)
            ]
            least = min(alone_ms for _, alone_ms in rounds)
            ratio = statistics.median(ours_ms / alone_ms for ours_ms, alone_ms in rounds)
            self.found = {self.ours: least * ratio, self.alone: least}
        return self.found


def _timed(cluster: Cluster, call: ChosenCall, boxes: list[Any]) -> list[float]:
    """Milliseconds of a kernel and of Inductor alone, which Inductor times or has timed before."""
    ours = TimedPart(f"{call.name}_0", call.shown, _kernel_module(cluster, call), boxes, call.layout)
    alone = TimedPart("autotune_alone_0", "Inductor alone", _module(cluster, call.layout), boxes, call.layout)
    Duel(ours, alone)
    found: list[float] = []

    def tell(timings: Any, *rest: Any) -> None:
        if ours in timings:  # else they are of a choice inside of a part
            found.extend((timings[ours], timings[alone]))

    with _told(tell):
        select: Any = autotune_select_algorithm  # which has no types
        select(f"autotune {cluster.shown}", [ours, alone], boxes, call.layout)
    return found


@contextmanager
def _told(tell: Callable[..., None]) -> Iterator[None]:
    """Where Inductor tells what it timed."""
    savers = get_algorithm_selector_cache().feedback_saver_fns
    savers.append(tell)
    try:
        with config.patch(max_autotune_report_choices_stats=False):
            yield
    finally:
        savers.remove(tell)


def _agree(a: Any, b: Any) -> bool:
    """Whether two results are alike within rounding of long sums, relative to the largest element."""
    if not a.dtype.is_floating_point:
        return bool(torch.equal(a, b))
    size = max(float(b.abs().max()), 1e-30)
    near = 64 * torch.finfo(a.dtype).eps * (1 if a.element_size() < 4 else 16)
    return float((a.double() - b.double()).abs().max()) <= near * size


def _module(cluster: Cluster, layout: Any) -> Any:
    """The cluster as a module of torch.fx, with the result in a layout."""
    graph, copies = cluster.copied()
    return _returning(graph, copies[cluster.last], cluster, layout)


def _kernel_module(cluster: Cluster, call: ChosenCall) -> Any:
    """The same with the call of a kernel."""
    graph, copies = cluster.with_inputs()
    lower = _as_lowering(lambda *inputs: call.box([ir.ExternKernel.realize_input(x) for x in inputs]))
    lower.__name__ = call.name
    node = graph.call_function(lower, tuple(copies[n] for n in cluster.inputs))
    return _returning(graph, node, cluster, call.layout)


def _returning(graph: Any, node: Any, cluster: Cluster, layout: Any) -> Any:
    val = cluster.last.meta["val"]
    node.meta = {**cluster.last.meta, "val": val.new_empty_strided(val.shape, layout.stride)}
    graph.output((node,))
    return fx.GraphModule({n.target: x for n, x in cluster.constants.items()}, graph)


def _wanted_strides(val: Any) -> tuple[int, ...]:
    """Where the elements of a result are to lie: as torch has them where the graph returns it, else as
    Inductor prefers them."""
    returned = any(u.op == "output" for u in V.graph.current_node.users)
    if V.graph.layout_opt and val.dim() == 4 and not returned:
        likes = ir.FlexibleLayout.stride_ordered_for_memory_format(list(val.shape), torch.channels_last)
        return _numbers(likes)
    return tuple(val.stride())


def _viewed(x: Any, lies: MemoryLayout) -> Any:
    """The memory of an input in another shape."""
    storage, layout = ir.as_storage_and_layout(x)
    if _same(layout, lies):
        return x
    layout = ir.FixedLayout(layout.device, layout.dtype, [*lies.shape], [*lies.steps], layout.offset)
    return ir.ReinterpretView(data=storage, layout=layout)


def _same(layout: Any, lies: MemoryLayout) -> bool:
    return (_numbers(layout.size), _numbers(layout.stride)) == (tuple(lies.shape), tuple(lies.steps))


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    """Raises ModelError for sizes that vary."""
    try:
        return tuple(map(int, values))
    except TypeError:
        raise ModelError("its sizes vary") from None
