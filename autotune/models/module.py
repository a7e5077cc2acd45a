"""`Module`: a compiled model that is called on arrays, of numpy or of torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ArgumentError, ModelError
from autotune.models.call_forms import CallForms, FormsBySize
from autotune.models.donation import Donation, donation
from autotune.models.model import shown_sizes
from autotune.models.outline import Outline
from autotune.models.own_programs import OwnProgram, check_own
from autotune.models.program import Program, Times
from autotune.models.saving import ModuleContents, as_bytes, save
from autotune.models.signature import Signature
from autotune.models.state import ModelState
from autotune.models.weights import KeptOnce
from autotune.run import torch_calls
from schedules.dtypes import DTYPES
from schedules.errors import suggest
from schedules.expr import show
from schedules.strides import MemoryLayout
from schedules.te.compute_dag import Tensor

if TYPE_CHECKING:
    from autotune.models.export import ExportedModel
    from autotune.models.origin import ModelOrigin
    from autotune.models.profile import Profile
    from schedules.model import Target

Array = NDArray[Any]


class Module:
    """A compiled model: ``module(*inputs)`` runs it.

    Inputs: numpy arrays, torch tensors, or anything with DLPack, ``__array_interface__`` or the buffer
    protocol, of exactly the model's shapes and dtypes, in the model's order or by name: ``module(x=image)``.
    Names that are no identifiers are given as ``module(**{"input.1": image})``. An input that lies as the
    model has it (`inputs`; row-major but where the model has strides: `Model.with_strides`) is read where it
    lies. Any other is copied first, which `profile` tells. Returns new numpy arrays, or new torch tensors
    where the first input is one: one array, or a tuple where the model has several outputs. No result shares
    memory with an input, a weight or another result: where the model returns such, it is a copy. Raises
    `ArgumentError`, which names the input. Calls from several threads at once are independent, and each has
    an arena of its own. The GIL is released.

    A model with open sizes (`sizes`) takes inputs of every size in their ranges. Its outputs are as long as
    the inputs say. Its arena has room for the largest sizes, once. Sizes with programs of their own
    (`own_sizes`) run these; all programs share states, and weights that they read in the same layout.

    A model of `import_torch` is called as the exported program is, with dicts, lists, numbers and None where
    that has them, and returns its containers: ``module(x, {"mask": m}, use_cache=False)``. What the export
    fixed may be left out; another value is refused. The model's inputs alone, one after the other, are taken
    too. After `load_model`, a class that torch was told of (a dataclass) is a dict of its fields, or a tuple
    where they have no names; a named tuple has a new class of the same name and fields.

    A model for a GPU takes arrays of the host too: inputs are copied there and outputs back. It has one arena
    on the device, so that calls wait for each other. Launches are captured at the first call, where the
    driver can, and later calls replay them.

    A model that keeps states, such as a cache of keys and values, has them in `state`, and changes them with
    each call; ``module(x, state=s)`` takes another (`new_state`).

    Weights are packed when the model is compiled. A change of the arrays that they came from changes nothing:
    see `load_weights`. Example: ``y = net(x); print(net.profile(x))``.

    A copy (`copy.copy`, `copy.deepcopy`) is a module of its own, which shares the weights in memory until
    either loads others, and has a copy of the state. A pickle has what `save` writes, which is no state but
    the first, and is read as `load_model` reads that.
    """

    def __init__(
        self,
        program: Program,
        target: Target,
        name: str,
        tuned_s: Sequence[float | None],
        origin: ModelOrigin | None = None,
        signature: Signature | None = None,
        own: Sequence[OwnProgram] = (),
    ) -> None:
        """``tuned_s``: of each task, the seconds that its kernel took when it was tuned, None if it was
        not. ``signature``: as of `Model`. ``own``: programs for single sizes. Raises ValueError for those
        that take, return or keep something else than ``program`` does at these sizes."""
        self._programs, self._origin, self._own = (program, *(p.program for p in own)), origin, tuple(own)
        self.target, self.name, self.tuned_s = target, name, tuple(tuned_s)
        ol = program.outline
        for p in own:
            check_own(ol, p.program.outline, p.sizes)
        each = [(p.sizes, p.program.outline) for p in own]
        self._sized = FormsBySize(ol, name, each) if ol.sizes else None
        self._forms = CallForms(ol, name, {}) if self._sized is None else self._sized.largest
        self._ins = self._forms.ins
        self._order = [list(dict.fromkeys(ol.outputs)).index(n) for n in ol.outputs]
        self._signature = signature
        # what takes the inputs one after the other needs no look into the arguments of a call
        self._takes = None if signature is None or signature.is_plain else signature
        self._aliases = {} if signature is None else signature.aliases
        self._keeps = program.kept
        self._state: ModelState | None = None
        self._making = Lock()
        self._donation = Donation()

    def donating(self, names: Sequence[str]) -> Module:
        """Another module of the same weights, whose calls take the memory of the inputs ``names`` (as
        `inputs` has them): each is overwritten, and is what the call returns for an output of its shape and
        dtype. Results are the same numbers. A state is shared with no other module. `donated` says which
        output takes which input.

        Raises `ModelError`, which names an input that no output can take, and why: as a later step reads it,
        or the schedule of the step that writes overwrites elements before it reads them.

        Example: ``net = at.compile_model(model).donating(["x"]); y = net(x)`` and ``y is x``.
        """
        if self._own:
            raise ModelError("donate is for models without sizes of their own (own_sizes); leave it out")
        made = self.__copy__()
        made._donation = donation(self.program, self._forms, names)
        made._programs = (self.program.with_codes(made._donation.codes),)
        return made

    @property
    def donated(self) -> dict[str, str]:
        """{input: the output that takes its memory}."""
        return {self._ins[k].name: self._forms.outs[m].name for k, m in self._donation.pairs.items()}

    @property
    def state(self) -> ModelState:
        """The state of calls without ``state=``: ``{name: array}`` without a copy, such as a cache of keys
        and values. It is empty for a model that keeps nothing. See `ModelState`."""
        with self._making:
            self._state = self._state or self.new_state()
        return self._state

    def new_state(self) -> ModelState:
        """A new state, as it is before the first call: ``s = net.new_state(); y = net(x, state=s)``."""
        return self.program.new_state()

    @property
    def program(self) -> Program:
        """What runs; of a model with open sizes, the program of all sizes."""
        return self._programs[0]

    @property
    def programs(self) -> tuple[Program, ...]:
        """The program of all sizes, then those of `own_sizes`."""
        return self._programs

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights as they are held. What several programs read in the same layout is held
        once."""
        return sum({id(a): a.nbytes for p in self._programs for a in p.weights.values()}.values())

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What a call takes: names, shapes, dtypes, and strides where it reads them so."""
        ol = self.program.outline
        return tuple(replace(ol.tensors[n], name=ol.label(n)) for n in ol.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What a call returns: names, shapes and dtypes."""
        ol = self.program.outline
        return tuple(Tensor(ol.label(n), ol.tensors[n].shape, ol.tensors[n].dtype) for n in ol.outputs)

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """{open size: its least and its largest value}. Extents in `inputs` and `outputs` are those of the
        largest."""
        return {s.name: (s.least, s.most) for s in self.program.outline.sizes}

    @property
    def own_sizes(self) -> tuple[dict[str, int], ...]:
        """The sizes that have programs of their own, such as ``({"rows": 1},)``."""
        return tuple(dict(p.sizes) for p in self._own)

    @property
    def weights(self) -> dict[str, Tensor]:
        """{name: what `load_weights` takes for it}; empty where a module was read from a file."""
        return {} if self._origin is None else self._origin.weights

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        state = self._state_of(named) if self._keeps else None
        inputs = self._given(inputs, named)
        forms = self._forms if self._sized is None else self._sized.of(inputs)
        results, program = forms.results(inputs), self._programs[forms.program]
        if self._donation.pairs:
            results = self._donation.give(forms, inputs, results)
        if state is None:
            forms.run(program, inputs, results)
        else:
            with state.turn:
                forms.run(program, inputs, results, state.in_order(program.state_names))
        if self._donation.pairs:
            torch_calls.written([results[m] for m in self._donation.pairs.values()])
        found = tuple(results[i] for i in self._order)
        if self._signature is not None:
            return self._signature.built(found, self._blank(inputs))
        return found[0] if len(found) == 1 else found

    def tensors(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs as torch tensors, of the inputs one after the other, which may be none."""
        forms = self._forms if self._sized is None else self._sized.of(inputs)
        made = forms.tensors()
        forms.run(self._programs[forms.program], inputs, made)
        return tuple(made[i] for i in self._order)

    def profile(self, *inputs: Any, repeat: int = 10, **named: Any) -> Profile:
        """How long each step takes inside the model, beside what its kernel took when it was tuned: medians
        of ``repeat`` calls. Printed, it is a table. Without inputs it takes random ones (standard normal, or
        integers of -8 to 8), of the largest sizes. Inputs of a size with a program of its own time that.
        Calls change a copy of the state. On a GPU each step runs alone, timed by the device's clock, with
        nothing in its second cache, as when it was tuned."""
        from autotune.models.profile import profile

        state = self._state_of(named) if self._keeps else None
        forms = self._forms
        if inputs or named:
            inputs = self._given(inputs, named)
            forms = forms if self._sized is None else self._sized.of(inputs)
        else:
            inputs = forms.random()
            self.program.told.settle(self.program.outline, inputs)
        if repeat < 1:
            raise ValueError(f"repeat must be at least 1, not {repeat}")
        read = [forms.read(x, b) for x, b in zip(inputs, forms.ins, strict=True)]
        outputs = forms.empty()
        copied = [b.name for b, (_, was) in zip(forms.ins, read, strict=True) if was]
        program = self._programs[forms.program]
        tuned_s = self._own[forms.program - 1].tuned_s if forms.program else self.tuned_s
        kept = () if state is None else state.copy().in_order(program.state_names)

        def run(times: Times) -> None:
            forms.run_on(program, [a for a, _ in read], outputs, times, kept)

        return profile(program, tuned_s, run, repeat, copied)

    def load_weights(self, values: Mapping[str, Any]) -> None:
        """Take other values of the model's weights: ``{name: array}``, names and shapes as `weights` has
        them.

        They go through the rewrites of the model and are packed anew, which takes about as long as compiling.
        Weights of more than 64 KiB are kept in packed form only, so that all of these are given together.
        Calls that are under way end with the old ones. Raises `ModelError` for names that are none, weights
        that are missing, or a module that was read from a file; and `ArgumentError` for shapes and dtypes
        that do not fit. Then nothing is changed.

        Example: ``net.load_weights({n: t.numpy() for n, t in torch_module.state_dict().items()})``.
        """
        if self._origin is None:
            raise ModelError(
                f"{self.name} was read from a file or a pickle, which has packed weights only: compile the "
                "model, load the weights into that, and save it again"
            )
        every = [self._origin, *(p.origin for p in self._own if p.origin is not None)]
        read = [origin.with_weights(values) for origin in every]
        once, made = KeptOnce(), []
        for program, (_, found) in zip(self._programs, read, strict=True):
            made.append(program.with_weights({n: found[n] for n in program.outline.constants}, once))
        self._programs, self._origin = tuple(made), read[0][0]
        self._own = tuple(
            replace(p, program=program, origin=origin)
            for p, program, (origin, _) in zip(self._own, made[1:], read[1:], strict=True)
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with its weights and its schedules to a file, which `load_model` reads on any
        machine. It has no code. Raises `ModelError` where the file cannot be written."""
        save(self._contents(), path)

    def export(
        self,
        directory: str | os.PathLike[str],
        name: str | None = None,
        *,
        weights: Literal["auto", "inside", "beside"] = "auto",
        targets: Sequence[str | Target] | None = None,
        db: str | os.PathLike[str] | None = None,
    ) -> ExportedModel:
        """Write the model as a shared object that needs no Python. It computes the same numbers by the same
        kernels.

        ``directory`` is made where it is missing. It gets these files:

        - ``NAME.so``: ``NAME_make`` makes an instance, ``NAME_run(instance, inputs ..., outputs ...)`` runs
          the model, with an int64 behind the arrays for each open size, and ``NAME_free`` frees the
          instance. Each returns a status, which ``NAME_error_text`` explains. ``NAME_reset`` has the states
          of an instance as before the first call.
        - ``NAME.h``: their declarations, and whether this CPU can run it;
        - ``NAME.json``: the contract: names, shapes and dtypes of arguments, sizes, states, kernels;
        - ``NAME_example.c``, ``NAME_example.py``: programs that call it;
        - ``NAME.weights``: the weights as kernels read them, if they are not in the shared object.

        Arrays are row-major, or have the model's strides. Instances are independent: several threads may
        each call their own. They share the weights. ``name``: an identifier of C; by default of the model's
        name. ``weights``: "inside" of the shared object, "beside" it, or "auto": beside from 16 MiB on. The
        length and a checksum of the file are checked when it is read.

        ``targets``: names of processors, such as ``["x86-64-v3", "x86-64-v4", "znver5"]``. The object then
        has code for each, and takes that for the processor that it runs on, as of `autotune.export`.
        ``NAME_target()`` says which. Where it can run none, `NAME_make` returns ``NAME_NO_CODE``. Schedules
        are those of this module for its own processor, for others the best of the log ``db``, else first
        picks, with a warning. The weights are then stored as the model has them, and packed when the first
        instance is made.

        Raises `ArgumentError` for a name that is none, a directory that cannot be written, or targets of
        several families, `TargetError` for targets that are none, `ModelError` for a model with islands or
        donated inputs, and `CompileError` for a model of a GPU, and where there is no compiler of C (install
        gcc, or the extra ``emulator``).

        Example: ``net.export("build", "resnet").library``.
        """
        return import_module("autotune.models.export").export_module(
            self._contents(), directory, name, weights, targets, db
        )

    def __copy__(self) -> Module:
        """Another module, of the same program and the same weights until one of them loads others: a program
        does not change."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._making = Lock()
        made._state = None if self._state is None else self._state.copy()
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        return self.__copy__()

    def __reduce__(self) -> tuple[Callable[..., Module], tuple[Any, ...]]:
        """A pickle has what a file has. Raises NotPicklable where the schedule of a kernel is not known."""
        # what reads it makes modules, so it is looked up by its name, as by a pickle
        unpickled = import_module("autotune.models.saved").unpickled
        given = (tuple(self.donated),) if self.donated else ()
        return unpickled, (as_bytes(self._contents()), *given)

    def _contents(self) -> ModuleContents:
        return ModuleContents(self.program, self.name, self.target, self.tuned_s, self._signature, self._own)

    def __repr__(self) -> str:
        ol = self.program.outline
        ins = ", ".join(f"{ol.label(n)}: {_type(ol, n)}" for n in ol.inputs)
        outs = ", ".join(f"{ol.label(n)}: {_type(ol, n)}" for n in ol.outputs)
        mib = (self.weights_bytes + sum(p.arena_bytes for p in self._programs)) / 2**20
        sizes = ", ".join(f"{s.name}={s.least}..{s.most}" for s in ol.sizes)
        sizes = f" with {sizes}" if sizes else ""
        each = f"{len(ol.calls)} kernels of {len(ol.tasks)} tasks, "
        for p in self._own:
            one = p.program.outline
            each += f"{len(one.calls)} of {len(one.tasks)} at {shown_sizes(p.sizes)}, "
        return (
            f"<Module {self.name}({ins}) -> {outs}{sizes}: {each}{mib:.1f} MiB, "
            f"on {self.target.arch} {self._threads}>"
        )

    @property
    def _threads(self) -> str:
        """The numbers of threads of its kernels: "x1", or "x1 and x2" where they differ."""
        kernels = [k for p in self._programs for k in getattr(p, "kernels", ())]
        numbers = sorted({k.target.threads for k in kernels}) or [self.target.threads]
        return " and ".join(f"x{n}" for n in numbers)

    # -- arguments ---------------------------------------------------------------------------

    def _given(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The inputs of the model in the arguments of a call. Raises ArgumentError."""
        if self._takes is not None:
            try:
                return tuple(self._takes.inputs(given, named, len(self._ins), self.name))
            except ArgumentError:
                if not self._one_by_one((*given, *named.values())):
                    raise
        if named:
            given = self._placed(given, named)
        self._check_count(given)
        return given

    def _one_by_one(self, given: Sequence[Any]) -> bool:
        """Whether a call may have the model's inputs one after the other."""
        return len(given) == len(self._ins) and all(hasattr(x, "shape") for x in given)

    def _state_of(self, named: dict[str, Any]) -> ModelState:
        """The state that a call changes, which is no input. Raises ModelError for that of another model."""
        if isinstance(named.get("state"), ModelState) or (
            "state" in named and "state" not in self._argument_names()
        ):
            return ModelState.of(named.pop("state"), self._keeps, self.name, f"{self.name}: state=")
        return self.state

    def _argument_names(self) -> set[str]:
        """What a call may name."""
        exported = () if self._signature is None else (*self._signature.names, *self._signature.named)
        return {*self.program.outline.inputs, *(b.name for b in self._ins), *self._aliases, *exported}

    def _blank(self, inputs: Sequence[Any]) -> Callable[[tuple[int, ...], str], Any]:
        """What makes a tensor without elements, of the kind of the first input."""
        if inputs and torch_calls.is_tensor(inputs[0]):
            import torch

            return lambda shape, dtype: torch.empty(shape, dtype=getattr(torch, dtype))
        return lambda shape, dtype: np.empty(shape, DTYPES[dtype].numpy)

    def _check_count(self, inputs: Sequence[Any]) -> None:
        if len(inputs) != len(self._ins):
            names = ", ".join(b.name for b in self._ins)
            raise ArgumentError(f"{self.name} takes {len(self._ins)} inputs ({names}), got {len(inputs)}")

    def _placed(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All inputs in order, those that were given by name after the others. Raises ArgumentError."""
        ol = self.program.outline
        names = [b.name for b in self._ins]
        known = {n: i for i, n in enumerate(ol.inputs)} | {n: i for i, n in enumerate(names)} | self._aliases
        what = f"{self.name} takes {', '.join(names)}"
        placed: dict[int, Any] = dict(enumerate(inputs))
        for name, value in named.items():
            if name not in known:
                raise ArgumentError(f"{what}; there is no input {name!r}{suggest(name, known)}")
            if known[name] in placed:
                raise ArgumentError(f"{what}; input {name!r} is given twice")
            placed[known[name]] = value
        missing = [n for i, n in enumerate(names) if i not in placed]
        if missing:
            raise ArgumentError(f"{what}; {', '.join(missing)} not given")
        return tuple(placed[i] for i in sorted(placed))


def _type(ol: Outline, name: str) -> str:
    """The dtype and the extents of an input or output; where they are open, by sizes."""
    t, extents = ol.tensors[name], dict(ol.extents.get(name, ()))
    if not extents:
        return f"{t.dtype}{MemoryLayout(t.shape, t.strides)}"
    shape = (show(extents[d]) if d in extents else str(n) for d, n in enumerate(t.shape))
    return f"{t.dtype}[{','.join(shape)}]"
