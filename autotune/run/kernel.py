"""`Kernel`: compiled code that is called on arrays.

A call first tries the builtin of `entry.at_call`, which checks plain numpy arrays in machine code.
Whatever it refuses comes here: torch tensors go to another such builtin (`torch_calls`), other array types
are viewed without a copy, and what does not fit is explained by an `ArgumentError`.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune import backends
from autotune.codegen.runtime import aligned
from autotune.codegen.runtime.entry import layout_of, parse_signature, shape_of, signature
from autotune.codegen.runtime.laid import laid
from autotune.errors import ArgumentError
from autotune.run import c_address, in_place, new_arrays, torch_calls, torch_operator
from autotune.run.host_arrays import is_number, name_of, number, view
from autotune.run.pickled import text_of
from schedules.dtypes import DTYPES
from schedules.errors import NotPicklable, suggest
from schedules.expr import wrap
from schedules.ir import Buffer
from schedules.model import Target, Trace, Workload

if TYPE_CHECKING:
    from autotune.backends.drivers.object import DeviceObject
    from autotune.codegen.llvm.compile import LoadedObject

_ROUND_NS = 1_000_000  # a timed round lasts about this long, so that the clock's own cost vanishes


class CallSignature:
    """``__signature__`` of a kernel; the class itself has none, so that its constructor's shows."""

    def __get__(self, kernel: Kernel | None, owner: type) -> inspect.Signature:
        if kernel is None:
            raise AttributeError("__signature__")
        place, out = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        ins, outs = kernel.parameters
        params = [inspect.Parameter(identifier(b.name), place, annotation=_type(b)) for b in ins]
        params.append(inspect.Parameter("out", out, default=None))
        types = ", ".join(map(_type, outs))
        return inspect.Signature(params, return_annotation=types if len(outs) == 1 else f"({types})")


class Kernel:
    """``kernel(*inputs, out=None)`` runs compiled code on arrays, without a copy.

    Inputs: numpy arrays, or anything with DLPack, ``__array_interface__`` or the buffer protocol;
    C-contiguous, or with the strides that it was tuned for, element-aligned, of exactly the kernel's
    shapes and dtypes. An input without dimensions may be a number of Python or numpy: one in its range, and
    a whole one for an integer. They may be given by name: ``kernel(a=x, b=y)``. ``out``: an array to
    write, or a tuple or list of them when the kernel has several outputs. It may be an input, or lie in one,
    where the schedule reads each element before it overwrites it, and overlaps nothing else. Returns
    ``out``, as a tuple where it has several, or new numpy arrays, or new torch tensors where the first input
    is one. A tensor that requires a gradient is refused outside ``torch.no_grad()`` (`autotune.torch.op` has
    gradients). Raises `ArgumentError`, and MemoryError for want of scratch memory. The GIL is released;
    calls from several threads at once are independent. `pickle` takes a kernel as its workload, schedule and
    target.

    >>> kernel = at.load("matmul", m=64, n=64, k=64, threads=1)
    >>> a = np.ones((64, 64), "float32")
    >>> out = np.empty((64, 64), "float32")
    >>> kernel(a, b=a, out=out) is out
    True
    >>> [(p.name, p.shape, p.dtype) for p in kernel.parameters[1]]
    [('c', (64, 64), 'float32')]
    """

    __slots__ = (
        "_address",
        "_called",
        "_fast",
        "_given",
        "_in_place",
        "_ins",
        "_loaded",
        "_new",
        "_numbers",
        "_outs",
        "_packing",
        "_single",
        "_torch",
        "chosen_by",
        "record",
        "target",
        "workload",
    )
    __signature__: Any = CallSignature()

    def __init__(
        self,
        loaded: LoadedObject | DeviceObject,
        params: tuple[Buffer, ...],
        outputs: tuple[str, ...],
        workload: Workload,
        target: Target,
        record: Any = None,
        trace: Trace | None = None,
        packing: Mapping[int, LoadedObject] | None = None,
        chosen_by: str = "schedule",
    ) -> None:
        """``params``: inputs, then ``outputs``. ``record``: the log's record, if it came from one
        (its ``time_s`` is shown). ``trace``: the schedule, if it is known: in the names of the workload where
        the caller chose it, in canonical ones otherwise. ``packing``: what packs constant inputs, by their
        number. ``chosen_by``: what chose the schedule: "log", a tuned one; "similar_shape",
        "similar_machine", "model" or "default", where none was tuned (see `autotune.load`); "schedule", the
        caller, by hand. Raises ValueError when ``loaded`` was compiled for other parameters."""
        packing = packing or {}
        self._packing = {i: (params[i], pack) for i, pack in packing.items()}
        params = packed_params(params, packing)
        expected = signature(params, outputs)
        if loaded.signature != expected:
            raise ValueError(f"the object takes {loaded.signature}, not {expected}: compile it again")
        self._loaded = self._called = loaded
        self._address: c_address.CFunction | None = None
        self._ins = params[: len(params) - len(outputs)]
        self._outs = params[len(self._ins) :]
        # Inputs without dimensions, of which calls may give numbers.
        self._numbers = tuple(i for i, b in enumerate(self._ins) if not b.shape)
        self._new = tuple(new_arrays.maker_of(layout_of(b), DTYPES[b.dtype].numpy) for b in self._outs)
        self._single = self._new[0] if len(outputs) == 1 else None
        self._fast = loaded.python_function() or torch_calls.refuse
        self._torch: torch_calls.TorchCalls | None = None
        # Code for outputs in the memory of inputs, or why there is none, by their places.
        self._in_place: dict[tuple[in_place.SharedPlace, ...], in_place.InPlaceCode | ArgumentError] = {}
        self.workload = workload
        self.target = target
        self.record = record
        self.chosen_by = chosen_by
        self._given = trace

    @torch_operator.traced_as(torch_operator.traced)
    def __call__(self, /, *inputs: Any, out: Any = None, **named: Any) -> Any:
        if named:
            inputs = self.placed(inputs, named)
        if self._single is not None:
            result = self._single() if out is None else out
            status = self._fast(*inputs, result)
        else:
            if type(out) is list:
                out = tuple(out)
            result = self._made() if out is None else out
            right = type(result) is tuple and len(result) == len(self._outs)
            status = self._fast(*inputs, *result) if right else 1  # which only counts all arrays together
        if status == 0:
            return result
        if status == 1:
            result = out  # what was made is free for what is made in its place
            status, result = self._of_others(inputs, out)
        if status == 2:
            raise self._loaded.no_memory()
        return result

    def placed(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All inputs in order, those that were given by name after the others. Raises ArgumentError."""
        names = [identifier(b.name) for b in self._ins]
        wanted = names[len(inputs) :]
        what = f"{self.workload.op} takes {', '.join(names)}"
        for name in named:
            if name not in names:
                raise ArgumentError(f"{what}; there is no input {name!r}{suggest(name, names)}")
            if name not in wanted:
                raise ArgumentError(f"{what}; input {name!r} is given by its place and by its name")
        missing = [name for name in wanted if name not in named]
        if missing:
            raise ArgumentError(f"{what}; {', '.join(missing)} not given")
        return (*inputs, *(named[name] for name in wanted))

    def pack_weights(self, *weights: Any) -> Any:
        """What the kernel takes in the place of its constant weights: the given arrays, one for each of
        ``workload.dag.constants`` in that order, in the layout that this kernel reads. Call it once, and
        again whenever weights change. Returns an array, or a tuple of them for several, which begin where
        lines of the caches do; weights that the kernel reads as they are come back unchanged. Raises
        ArgumentError.

        Example: ``kernel(x, kernel.pack_weights(w))``.
        """
        names = self.workload.dag.constants
        if not names:
            raise ArgumentError(
                f"this {self.workload.op} was not tuned for weights known ahead: tune and load it with "
                "constant_weights=True (--constant-weights)"
            )
        if len(weights) != len(names):
            raise ArgumentError(f"pack_weights takes {', '.join(names)}; {len(weights)} arrays were given")
        places = {t.name: i for i, t in enumerate(self.workload.dag.inputs)}
        packed = tuple(self.pack(places[n], w) for n, w in zip(names, weights, strict=True))
        return packed[0] if len(packed) == 1 else packed

    def packed_inputs(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """``inputs`` of the operator, in order, with the constant ones packed."""
        return tuple(self.pack(i, x) for i, x in enumerate(inputs))

    def pack(self, i: int, weight: Any) -> Any:
        """Input number ``i`` as a call takes it: packed, or ``weight`` itself where it is read as it is.
        Raises ArgumentError."""
        if i not in self._packing:
            return weight
        raw, pack = self._packing[i]
        packed = aligned.kept_zeros(shape_of(self._ins[i]), self._ins[i].dtype)
        source = view(weight, raw, False)
        pack.run([source.ctypes.data, packed.ctypes.data])
        return packed

    def time(self, *inputs: Any, repeat: int = 10) -> float:
        """Median seconds of one run over ``repeat`` rounds of about a millisecond each, without the
        cost of the call. Random inputs (standard normal, or integers of -8 to 8) when none are given."""
        if repeat < 1:
            raise ValueError(f"repeat must be at least 1, not {repeat}")
        rng = np.random.default_rng(0)
        arrays = inputs or tuple(self._random(rng, i) for i in range(len(self._ins)))
        pointers, _keep = self._pointers(arrays, self._made())
        runs = 1
        for _ in range(2):  # twice, since the first run has cold caches and code
            once = max(self._loaded.bench(pointers, runs) / runs, 1)
            runs = max(round(_ROUND_NS / once), 1)
        return float(np.median([self._loaded.bench(pointers, runs) / runs for _ in range(repeat)])) * 1e-9

    def _random(self, rng: np.random.Generator, i: int) -> np.ndarray:
        """An input at random. What would be packed lies as `pack_weights` gives it."""
        values = random_array(rng, self._ins[i])
        if i not in self._packing:
            return values
        packed = aligned.zeros(values.shape, values.dtype.str)
        packed[...] = values
        return packed

    @property
    def parameters(self) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
        """(inputs, outputs) as a call takes them: names, shapes, dtypes. Weights are as they are packed."""
        return self._ins, self._outs

    @property
    def code(self) -> LoadedObject | DeviceObject:
        """The compiled code, for what calls it without a look at arrays."""
        return self._loaded

    @property
    def c_type(self) -> str:
        """The type in C of the function at `address`: pointers to the first elements of inputs and outputs,
        in order, then an int64 for each open size. Raises as `address` does.

        >>> at.load("matmul", m=64, n=32, k=48).c_type
        'int (*)(const float *a, const float *b, float *c)'
        """
        return c_address.c_type(self)

    @property
    def address(self) -> int:
        """The address of a function of C, of type `c_type`, that runs the kernel in this process. It lives
        as long as the kernel.

        It checks nothing of the arrays: they have the shapes, dtypes and strides of ``parameters``, are
        aligned to their elements, and an output overlaps nothing else, but for an input that the kernel was
        loaded for by ``in_place``. A number is a pointer to it. Weights known ahead are as `pack_weights`
        gives them. It returns 0; 1, where an open size is outside its range; 2, where there is no memory for
        scratch. It needs no lock of Python, and several threads may call it at once. It uses the threads of
        the kernel. Raises `ArgumentError` for a kernel of a GPU, or of several sizes each of its own code.

        >>> f = ctypes.CFUNCTYPE(ctypes.c_int, *3 * [ctypes.c_void_p])(kernel.address)
        >>> f(a.ctypes.data, b.ctypes.data, out.ctypes.data)
        0
        """
        return c_address.address_of(self)

    @property
    def packed(self) -> frozenset[int]:
        """Numbers of the inputs that a call takes as `pack_weights` gives them."""
        return frozenset(self._packing)

    @property
    def trace(self) -> Trace | None:
        """The schedule, in the names of ``workload.dag``: `Schedule.replay` takes it. None where it is not
        known."""
        if self._given is None or self.chosen_by == "schedule":
            return self._given
        from schedules.trace_names import to_named

        return to_named(self.workload, self._given)

    def source(self) -> str:
        """The LLVM IR text that this kernel was compiled from. Raises ValueError where it is unknown."""
        trace = self.trace
        if trace is None:
            raise ValueError("this kernel was loaded as object code only; its source is not known")
        return backends.of(self.target).source(self.workload.dag, trace, self.target)

    def __copy__(self) -> Kernel:
        """Itself: a kernel does not change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Kernel:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        # what reads it makes kernels, so it is looked up by its name, as by a pickle
        return import_module("autotune.run.kernels").unpickled, (self.as_text(),)

    def as_text(self) -> str:
        """The kernel as its workload, schedule and target, which `autotune.run.kernels.unpickled` reads.
        Raises NotPicklable where the schedule is not known."""
        if self._given is not None:
            return text_of(self.workload, self.target, self._given, self.chosen_by)
        raise NotPicklable(
            f"this kernel of {self.workload.op} cannot be pickled: its schedule is not known, and its code "
            "is at an address of this process; load it in the other one, by autotune.load"
        )

    def __repr__(self) -> str:
        ins = ", ".join(f"{b.name}: {_type(b)}" for b in self._ins)
        outs = ", ".join(b.name for b in self._outs)
        seconds = getattr(self.record, "time_s", None)
        cost = f"  {_duration(seconds)}" if isinstance(seconds, (int, float)) else ""
        where = f"{'  ' if not cost else ' '}on {self.target.arch} x{self.target.threads}"
        return f"<Kernel {self.workload.op}({ins}) -> {outs}{cost}{where}>"

    def _of_others(self, inputs: tuple[Any, ...], out: Any) -> tuple[int, Any]:
        """(status, result) of a call that the fast path refuses: arrays of other libraries, or a mistake.
        ``out``: what the caller gave."""
        outs = (out,) if self._single is not None and out is not None else out
        if self._in_place and type(outs) is tuple:
            for code in [*self._in_place.values()]:
                if not isinstance(code, ArgumentError) and (status := code.fast(*inputs, *outs)) != 1:
                    return status, out
        numbers = self._numbers and not any(map(torch_calls.is_tensor, inputs))
        placed = self._with_arrays(inputs) if numbers else inputs
        if placed is not inputs and (outs is None or type(outs) is tuple):
            made = self._made() if outs is None else outs
            inputs, status = placed, self._fast(*placed, *made)
            if status != 1:
                return status, self._as_given(made)
        if self._torch is None:
            self._torch = torch_calls.of_process(self._loaded, self._outs)
        if self._torch is not None and (outs is None or type(outs) is tuple):
            tensors = self._torch.outputs(inputs, outs, self._argument)
            if tensors is torch_calls.DISPATCHED:
                return 0, torch_operator.traced(self, *inputs, out=out)
            if tensors is not None:
                status = self._torch.fast(*inputs, *tensors)
                if status == 1:
                    status = self._slow(self._torch.plain(inputs), self._torch.plain(tensors))
                if outs is not None:
                    torch_calls.written(tensors)
                return status, self._as_given(tensors)
        made = self._made() if outs is None else outs
        status = self._slow(inputs, made)
        return status, self._as_given(made)

    def _made(self) -> tuple[np.ndarray, ...]:
        return tuple([make() for make in self._new])

    def _as_given(self, outs: Any) -> Any:
        """Outputs as a call returns them."""
        return outs[0] if self._single is not None else outs

    def _with_arrays(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """``inputs`` with an array for each number that stands for one. Raises ArgumentError."""
        placed = inputs
        for i in self._numbers:
            if i < len(inputs) and is_number(inputs[i]):
                placed = (*placed[:i], number(inputs[i], self._ins[i]), *placed[i + 1 :])
        return placed

    def _argument(self, i: int) -> str:
        """An argument in words, by its number."""
        params = (*self._ins, *self._outs)
        return name_of(params[i], i >= len(self._ins)) if i < len(params) else f"argument {i}"

    def _slow(self, inputs: tuple[Any, ...], outs: Any) -> int:
        """The status of a call without the fast path. Raises ArgumentError."""
        pointers, views = self._pointers(inputs, outs)
        places = in_place.shared_places(views, len(self._ins))
        (self.code_in_place(places).loaded if places else self._loaded).run(pointers)
        return 0

    def take_in_place(self, places: tuple[in_place.SharedPlace, ...]) -> None:
        """Have calls try the code for these places first, which takes arrays of their own too. For a kernel
        that nobody calls yet. Raises ArgumentError."""
        code = self.code_in_place(places)
        self._fast, self._called = code.fast, code.loaded

    def code_in_place(self, places: tuple[in_place.SharedPlace, ...]) -> in_place.InPlaceCode:
        """The code for outputs in the memory of inputs. Raises ArgumentError."""
        code = self._in_place.get(places)
        if code is None:
            try:
                code = in_place.code_of(self, places, self._argument)
            except ArgumentError as err:
                code = err
            for old in [*self._in_place][: len(self._in_place) + 1 - in_place.MOST_PLACES]:
                self._in_place.pop(old, None)
            self._in_place[places] = code
        if isinstance(code, ArgumentError):
            raise ArgumentError(str(code))
        return code

    def _pointers(self, inputs: Sequence[Any], outs: Any) -> tuple[list[int], list[np.ndarray]]:
        """Data pointers in parameter order and what keeps them valid. Raises ArgumentError."""
        self._check_counts(inputs, outs)
        for i, (raw, _) in self._packing.items():
            if tuple(getattr(inputs[i], "shape", ())) == shape_of(raw) != shape_of(self._ins[i]):
                raise ArgumentError(
                    f"input {raw.name!r} is not packed: give what kernel.pack_weights returns for it"
                )
        views = [view(x, b, False) for x, b in zip(inputs, self._ins, strict=True)]
        views += [view(x, b, True) for x, b in zip(outs, self._outs, strict=True)]
        pointers = [v.ctypes.data for v in views]
        return pointers, views

    def _check_counts(self, inputs: Sequence[Any], outs: Any) -> None:
        """Raises ArgumentError for another number of inputs, or of outputs, than the kernel has."""
        if len(inputs) != len(self._ins):
            names = ", ".join(b.name for b in self._ins)
            hint = "; give outputs by out=" if len(inputs) > len(self._ins) else ""
            raise ArgumentError(
                f"{self.workload.op} takes {len(self._ins)} inputs ({names}), got {len(inputs)}{hint}"
            )
        if not isinstance(outs, tuple) or len(outs) != len(self._outs):
            names = ", ".join(b.name for b in self._outs)
            got = f"{len(outs)} of them" if isinstance(outs, tuple) else f"a {type(outs).__name__}"
            raise ArgumentError(f"out must be a tuple of {len(self._outs)} arrays ({names}), got {got}")


def packed_params(params: tuple[Buffer, ...], packing: Mapping[int, LoadedObject]) -> tuple[Buffer, ...]:
    """Parameters as a call takes them: weights as they are packed, by what packs them."""
    for i, pack in packing.items():
        (_, _), (dtype, lies) = parse_signature(pack.signature)[0]
        packed = Buffer(params[i].name, tuple(map(wrap, lies.shape)), dtype)
        params = (*params[:i], packed, *params[i + 1 :])
    return params


def _type(b: Buffer) -> str:
    return f"{b.dtype}{layout_of(b)}"


def identifier(name: str) -> str:
    """A valid parameter name: a tensor may be called ``lambda`` or ``out``."""
    return f"{name}_" if keyword.iskeyword(name) or name in ("out", "stream") else name


def random_array(rng: np.random.Generator, b: Buffer) -> np.ndarray:
    """An array for a parameter: standard normal, or integers of -8 to 8."""
    lies, row = layout_of(b), DTYPES[b.dtype]
    if row.kind == "float":
        values = rng.standard_normal(lies.shape).astype(row.numpy)
    else:
        least, end = max(-8, row.range[0]), min(9, row.range[-1] + 1)
        values = rng.integers(least, end, lies.shape).astype(row.numpy)
    return values if lies.strides is None else laid(values, lies)


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
