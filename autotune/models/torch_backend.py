"""``torch.compile(module, backend="autotune")``: graphs of torch run as compiled models.

torch gives a graph, and calls what it gets for it with the graph's inputs, weights among them. At the first
call the graph is exported and imported as `import_torch` does it, so that what was tuned for the exported
module is found. Nothing is tuned here.
"""

from __future__ import annotations

import logging
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import RLock, Thread
from typing import Any

from autotune.errors import ArgumentError, ModelError, one_line
from autotune.models.compiling import NotPicked, Picking, compiled
from autotune.models.model import Model
from autotune.models.module import Module
from autotune.models.open_import import open_model
from autotune.models.signature import TensorSlot
from autotune.models.torch_import import Imported, class_name, decomposed, read_program
from autotune.models.torch_open import FIXED, OpenGraph
from autotune.models.torch_outputs import Fresh, Result, laid_out, results_of
from autotune.models.torch_sizes import Symbol, at_numbers, numbers_in
from autotune.models.torch_threads import alone
from autotune.run.asked import Asked
from autotune.run.warned import warn
from autotune.targets import usable_cpus
from schedules.errors import AutotuneError, suggest

# Most sets of sizes and weights of one graph that are kept as compiled models.
MOST = 64
# Most sets of sizes of one graph of which is kept where results lie.
MOST_LAYOUTS = 1024
OPTIONS = ("threads", "strict", "limit_s", "background", "progress")
# Seconds in which kernels of a graph that are not tuned are chosen, where no limit is given.
LIMIT_S = 30.0
# What a user's module is as a model.
EXPORTED = "autotune.import_torch(torch.export.export(module, inputs))"
EXPORTED_OPEN = "autotune.import_torch(torch.export.export(module, inputs, dynamic_shapes=...))"
NEEDS_GRADIENT = "its call needs gradients, and kernels compute none: call it under torch.no_grad()"

log = logging.getLogger(__name__)

_graphs: list[weakref.ref[TorchGraph]] = []


def backend(graph: Any, example_inputs: Sequence[Any], **how: Any) -> Callable[..., Any]:
    """What torch.compile asks for a graph.

    A call takes the kernels that the log of ``AUTOTUNE_DB`` has, first picks otherwise. A graph with
    operators that have no expression, or a call that needs gradients, runs as torch does, with one warning
    that tells why. ``options``:

    - "threads": take kernels of that number of threads alone. By default the fastest with at most
      torch.get_num_threads().
    - "strict": True raises where a graph cannot be compiled, in place of running it as torch does.
    - "limit_s": seconds in which first picks of a graph are made, at its first call or at the first of other
      sizes (default: 30; with "strict" no limit). What is not ready by then runs as torch runs it, with one
      warning. What was picked is kept for the next process.
    - "background": True makes first picks in a thread beside. Until they are made the graph runs as torch
      runs it.
    - "progress": False shows nothing while picks are made. Else a terminal or a notebook shows it.

    Weights are packed at the first call. Where one was changed in place since, or is another tensor, the
    model is packed anew at the next call; a change through ``.data`` is not seen: torch.compiler.reset()
    starts afresh. Results lie in memory as torch's do: those that are an input, or a view of one or of each
    other, share its memory. Inputs that the graph writes to are written.

    Raises ArgumentError for options that there are not.

        f = torch.compile(module.eval(), backend="autotune", options={"threads": 1})
        with torch.no_grad():
            y = f(x)
    """
    if how.pop("mode", None) not in (None, "default"):
        raise ArgumentError("backend 'autotune' has no modes: leave out mode=; tune with autotune.tune_model")
    options = dict(how.pop("options", None) or {})
    for name in (*how, *options):
        if name not in OPTIONS:
            raise ArgumentError(
                f"backend 'autotune' has no option {name!r}{suggest(name, OPTIONS)}; "
                f"it has {', '.join(OPTIONS)}"
            )
    made = TorchGraph(graph, example_inputs, How.of(options))
    _graphs[:] = [r for r in _graphs if r() is not None] + [weakref.ref(made)]
    return made


@dataclass(frozen=True)
class How:
    """The options of a graph: see `backend`."""

    threads: int | None = None
    strict: bool = False
    limit_s: float | None = LIMIT_S
    background: bool = False
    progress: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> How:
        """Raises ArgumentError."""
        threads, strict = options.get("threads"), bool(options.get("strict"))
        if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
            raise ArgumentError(f"option threads is a number from 1 on, not {threads!r}")
        limit_s = options.get("limit_s", None if strict else LIMIT_S)
        if limit_s is not None and not (
            isinstance(limit_s, (int, float)) and not isinstance(limit_s, bool) and limit_s >= 0
        ):
            raise ArgumentError(
                f"option limit_s is a number of seconds from 0 on, or None for no limit, not {limit_s!r}"
            )
        background = bool(options.get("background"))
        if background and strict:
            raise ArgumentError("options strict and background exclude each other: leave one out")
        return cls(threads, strict, limit_s, background, bool(options.get("progress", True)))


def modules() -> list[Module]:
    """The compiled models behind graphs that torch.compile got from this backend and has still, oldest
    first."""
    alive = [g for r in _graphs if (g := r()) is not None]
    return [e.module for g in alive for e in g.entries.values() if e.module is not None]


@dataclass(frozen=True)
class Entry:
    """A graph as a model, for one set of weights, of sizes and of threads. ``module``: None where there is
    nothing to compute. ``seen``: each weight with the count of its changes in place, None where torch counts
    none. ``inputs``: places of the model's inputs among the arguments. ``results``: what the graph returns;
    None where that depends on sizes that vary. Then ``room`` is {extent of an argument: its least and its
    largest number}, and ``numbers`` are the arguments that are numbers, which it is for.
    ``computed``: {result: number of the model's output}. ``written``: {argument that the graph writes to:
    number of the output that is its new value}."""

    module: Module | None
    seen: tuple[tuple[Callable[[], Any], int | None], ...]
    inputs: tuple[int, ...]
    results: tuple[Result, ...] | None
    computed: Mapping[int, int]
    written: Mapping[int, int]
    room: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    numbers: tuple[Any, ...] = ()

    def has_room(self, args: Sequence[Any]) -> bool:
        """Whether it is for arguments of these sizes, of one that is for more than one."""
        return self.results is None and all(
            least <= args[i].shape[d] <= most for (i, d), (least, most) in self.room.items()
        )

    def fits(self, weights: Sequence[Any]) -> bool:
        """Whether the weights are those that were packed, and as they were."""
        for (kept, version), w in zip(self.seen, weights, strict=True):
            if kept() is not w or (version is not None and version != w._version):
                return False
        return True

    @property
    def alive(self) -> bool:
        return all(kept() is not None for kept, _ in self.seen)


class TorchGraph:
    """A graph of torch that is called with tensors, as torch calls it."""

    def __init__(self, graph: Any, examples: Sequence[Any], how: How) -> None:
        self.graph, self.how = graph, how
        placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self.names = [n.name for n in placeholders]
        self.weights = [i for i, (n, x) in enumerate(zip(placeholders, examples)) if _is_weight(n, x)]
        self.varying = [i for i, n in enumerate(placeholders) if _is_open(n)]
        self.open = OpenGraph.of(graph)
        self.layouts: dict[Any, tuple[Result, ...]] = {}  # of sizes, where results lie
        self.entries: dict[Any, Entry] = {}
        self.programs: dict[Any, Any] = {}
        self.last: Entry | None = None
        self.warned: set[str] = set()
        self.eager: set[Any] = set()  # sizes for which the graph runs as torch runs it
        self.picking: dict[Any, Thread] = {}  # of sizes, what makes their first picks in the background
        self.turn = RLock()  # one thread makes an entry; others wait for it

    def __call__(self, *args: Any) -> Any:
        import torch

        if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in args):
            return self._as_torch(NEEDS_GRADIENT, args)
        weights = [args[i] for i in self.weights]
        entry = self.last
        if entry is None or not (self._holds(entry, args) and entry.fits(weights)):
            with self.turn:
                entry = self._entry(args, weights)
        if entry is None or not _apart(args, entry.written):
            return self.graph.forward(*args)
        made = () if entry.module is None else entry.module.tensors([args[i] for i in entry.inputs])
        for i, n in entry.written.items():
            args[i].copy_(made[n])
        results = self._layout(args) if entry.results is None else entry.results
        return laid_out(results, {r: made[n] for r, n in entry.computed.items()}, args)

    def _holds(self, entry: Entry, args: Sequence[Any]) -> bool:
        """Whether an entry is for the sizes of a call."""
        varies = self.open
        if varies is None:
            return not self.varying
        return entry.has_room(args) and entry.numbers == varies.values(args)

    def _layout(self, args: Sequence[Any]) -> tuple[Result, ...]:
        """What the graph returns for arguments of these sizes. Raises ModelError."""
        sizes = self._sizes(args)
        found = self.layouts.get(sizes)
        if found is None:
            while len(self.layouts) >= MOST_LAYOUTS:
                self.layouts.pop(next(iter(self.layouts)), None)
            with _inside_torch():
                found = self.layouts[sizes] = results_of(self.graph, args)
        return found

    def _entry(self, args: Sequence[Any], weights: Sequence[Any]) -> Entry | None:
        """The model for arguments, made where there is none yet; None where torch runs the graph."""
        sizes = self._key(args)
        if sizes in self.eager or (sizes in self.picking and self.picking[sizes].is_alive()):
            return None
        key = (sizes, *map(id, weights))
        found = self.entries.get(key)
        if found is not None and self.open is not None and not found.has_room(args):
            found = None
        if found is None or not found.fits(weights):
            try:
                found = self._made(args, weights, sizes, found)
            except NotPicked as err:
                self._not_picked(err, sizes)
                return None
            except AutotuneError as err:
                if self.open is not None:
                    return self._each_apart(args, weights, err)
                self._as_torch(str(err), None)
                self.eager.add(sizes)
                return None
            for old in [k for k, e in self.entries.items() if not e.alive or k == key]:
                del self.entries[old]
            while len(self.entries) >= MOST:
                del self.entries[next(iter(self.entries))]
            self.entries[key] = found
        self.last = found
        return found

    def _each_apart(self, args: Sequence[Any], weights: Sequence[Any], why: AutotuneError) -> Entry | None:
        """The model for these sizes alone, from now on of each size. One warning tells why."""
        self.open = None
        self.programs.clear()
        found = self._entry(args, weights)
        if found is not None:
            self._told(f"keeps each of its sizes apart, so that every size is compiled: {why}")
        return found

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Equal for calls that one model is for, as far as its sizes have room."""
        if self.open is not None:
            return self.open.values(args)
        return self._sizes(args)

    def _sizes(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What varies of arguments: shapes, strides (a result that is a view has those of its argument), and
        numbers."""
        every = (args[i] for i in self.varying)
        return tuple((tuple(x.shape), x.stride()) if hasattr(x, "shape") else x for x in every)

    def _told(self, what: str) -> None:
        """Warn once."""
        if what not in self.warned:
            self.warned.add(what)
            warn(f"a graph of torch.compile {what}")

    def _as_torch(self, why: str, args: Sequence[Any] | None) -> Any:
        """Run the graph as torch does, with one warning that tells why; refuse where that was asked for."""
        if self.how.strict:
            raise ModelError(f"a graph of torch.compile is not compiled: {why}")
        self._told(f"runs as torch runs it: {why}")
        return None if args is None else self.graph.forward(*args)

    def _not_picked(self, err: NotPicked, sizes: Any) -> None:
        """Have torch run the graph: until its picks are made in the background, or for good."""
        if self.how.background and sizes not in self.picking:
            self.picking[sizes] = Thread(target=_pick, args=(err,), name="autotune-picks", daemon=True)
            self.picking[sizes].start()
            self._as_torch(f"{len(err.left)} kernels are chosen in the background\n{err.remedy}", None)
        else:
            self._as_torch(
                f"{err}, which took {self.how.limit_s:g} s\n{err.remedy}; or give more time: "
                'options={"limit_s": 300}, or options={"background": True}',
                None,
            )
            self.eager.add(sizes)

    def _picks(self, sizes: Any) -> Picking:
        """How first picks are made here and now."""
        limit_s = self.how.limit_s
        if self.how.background and sizes not in self.picking:
            limit_s = 0.0
        return Picking(None if limit_s is None else time.monotonic() + limit_s, self.how.progress)

    def _made(self, args: Sequence[Any], weights: Sequence[Any], sizes: Any, old: Entry | None) -> Entry:
        """Export, import and compile. ``old``: what there is for other values of the weights, which takes
        these. Raises AutotuneError."""
        import torch

        seen = tuple((weakref.ref(w), None if w.is_inference() else w._version) for w in weights)
        results = self._layout(args)
        if sizes not in self.programs:
            self.programs[sizes] = self._exported(args)
        program = self.programs[sizes]
        # An export names inputs anew, and keeps their order.
        given = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
        held = {given[i]: w for i, w in zip(self.weights, weights, strict=True)}
        wanted = {n for n, r in enumerate(results) if isinstance(r, Fresh) and r.computed}
        label = class_name(self.graph, "graph")
        symbols: list[Symbol] = []
        if self.open is None:
            found = read_program(program, held, label, wanted)
        else:
            symbols, found = self._open(program, args, lambda at: read_program(at, held, label, wanted))
        computed = {n: x.number for n, x in enumerate(found.results) if isinstance(x, TensorSlot)}
        written = {given.index(name): n for name, n in found.written.items()}
        room = {(s.of, s.at): s.size.range for s in symbols}
        made = Entry(None, seen, (), None if room else results, computed, written, room, sizes)
        if found.model is None:
            return made
        inputs = tuple(given.index(p.name) for p in found.model.inputs)
        module = None if old is None or old.module is None else _with_weights(old.module, found.model)
        if module is None:
            most = min(torch.get_num_threads(), usable_cpus())
            asked = Asked.of("cpu", self.how.threads or most, None, fallback=True)
            asked = replace(asked, threads=self.how.threads, exactly=self.how.threads)
            named = EXPORTED_OPEN if symbols else EXPORTED
            module = compiled(found.model, asked, named, self._picks(sizes))
        return replace(made, module=module, inputs=inputs)

    def _open(
        self, program: Any, args: Sequence[Any], read: Callable[[Any], Imported]
    ) -> tuple[list[Symbol], Imported]:
        """(The sizes of a program that vary, the program as a model). ``read``: makes one of a program of
        numbers. Raises AutotuneError where it is none for all sizes."""
        assert self.open is not None
        symbols = self.open.open_symbols(program, args)
        numbers = {s.symbol: int(args[s.of].shape[s.at]) for s in symbols}
        found = read(at_numbers(program, numbers))
        if found.model is None:
            return symbols, found

        def at_sizes(sizes: Mapping[str, int]) -> Model:
            model = read(at_numbers(program, {s.symbol: sizes[s.size.name] for s in symbols})).model
            assert model is not None
            return model

        taken = numbers_in(program)
        model = open_model(at_sizes, [s.size for s in symbols], taken.__contains__, FIXED)
        return symbols, replace(found, model=model)

    def _exported(self, args: Sequence[Any]) -> Any:
        """The decomposed program. Raises ModelError."""
        import torch

        plain = [x.clone() if isinstance(x, torch.Tensor) and x.is_inference() else x for x in args]
        with _inside_torch():
            varies = self.open
            exported = varies.exported(plain) if varies else torch.export.export(self.graph, tuple(plain))
            program = decomposed(exported)
        program.example_inputs = None  # which would keep the arguments
        return program


# --- helpers ----------------------------------------------------------------------------------


@contextmanager
def _inside_torch() -> Iterator[None]:
    """Where torch looks at a graph. Raises ModelError for whatever it raises."""
    import torch

    try:
        with alone(), warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("ignore")  # torch warns of its own ways
            yield
    except AutotuneError:
        raise
    except Exception as err:
        raise ModelError(f"torch cannot export it: {one_line(err, 500)}") from err


def _pick(wanted: NotPicked) -> None:
    """Make first picks, which are kept for whoever asks next."""
    from autotune.measure.starting import shared_start
    from autotune.run.untuned import untuned

    with shared_start():
        for workload in wanted.left:
            try:
                untuned(workload, wanted.target, wanted.where)
            except AutotuneError as err:  # who asks next is told
                log.warning("no kernel of %s was chosen: %s", workload.op, err)


def _is_weight(node: Any, example: Any) -> bool:
    """Whether an input is a parameter or a buffer: torch marks what belongs to modules."""
    import torch

    marks = node.meta.get("tensor_dict") or {}
    return isinstance(example, torch.nn.Parameter) or "_dynamo_static_input_type" in marks


def _is_open(node: Any) -> bool:
    """Whether an input is a number, or a tensor with sizes that may be others at the next call."""
    value = node.meta.get("example_value")
    return not hasattr(value, "shape") or any(not isinstance(n, int) for n in (*value.shape, *value.stride()))


def _apart(args: Sequence[Any], written: Iterable[int]) -> bool:
    """Whether arguments that the graph writes to share memory with no other argument. If they do, what it
    reads depends on the order of its operators."""
    for i in written:
        memory = args[i].untyped_storage().data_ptr()
        for j, x in enumerate(args):
            if j != i and hasattr(x, "untyped_storage") and x.untyped_storage().data_ptr() == memory:
                return False
    return True


def _with_weights(module: Module, model: Model) -> Module | None:
    """A compiled model with the weights of another one; None where it cannot take them."""
    try:
        module.load_weights(model.graph.values)
    except ModelError:
        return None
    return module
