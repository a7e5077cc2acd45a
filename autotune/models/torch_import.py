"""`import_torch`: an exported program of torch as a graph of tensor expressions."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.errors import ModelError, one_line
from autotune.models.assembling import assemble
from autotune.models.model import Model
from autotune.models.open_import import open_model
from autotune.models.signature import Fixed, Leaf, TensorSlot
from autotune.models.torch_masks import with_places
from autotune.models.torch_signature import blank, signature_of
from autotune.models.torch_sizes import at_numbers, is_open, numbers_in, symbols_of
from autotune.models.torch_states import STRICT, is_written, kept_states, old_states
from autotune.models.torch_threads import alone
from schedules import te
from schedules.strides import flaw

if TYPE_CHECKING:
    from autotune.models.torch_scope import TorchLowering

# What makes an exported program of a module.
EXPORT = "torch.export.export(module.eval(), example_inputs)"
# Where a program has operators without an expression.
REMEDY = (
    "\nexport a part of the module without them; or take torch.compile(module, backend='autotune'), which "
    "leaves such graphs to torch"
)


def import_torch(program: Any, inputs: Any = None, *, largest: int | None = None) -> Model:
    """A module of torch with example ``inputs``, or an exported program (`torch.export.export`), as a graph
    of tensor expressions.

    A module is exported as it is in evaluation. ``inputs``: a tensor, a tuple of them, or a dict by name.
    A program that was exported with ``dynamic_shapes=`` is one model for all sizes of the ranges (ADR 88).
    ``largest``: the largest number of each size that the export gives none, in elements. It does not change
    a size that has one.

    Its tensors are the model's inputs, in order; an argument that is a number or None was fixed by the
    export. Outputs are the tensors that the program returns, in order, without None, numbers and tensors
    without elements. A compiled model is called as the program is, and returns the same containers (see
    `Module`). Parameters, buffers and constants are the graph's constants, whose values share the memory of
    torch's tensors. Inputs and outputs of any of the dtypes float32, float64, float16, bfloat16, int64,
    int32, int8, uint8, int16, uint16, uint32 and bool are taken. What is known before a call, such as
    positions and masks, is computed here.

    Buffers that the program writes to, and inputs, are states of the model, which a compiled one keeps from
    call to call (`Module.state`), and which no call is given. They begin as the program has them, inputs as
    zeros. Rows are written in place where the program has ``index_copy_``, ``index_put_`` or slices with a
    position that is an input or a state. A small state may be replaced as a whole.

    Raises ModelError for what is no module or exported program, for a module that torch cannot export, for
    open sizes without a largest number, for programs that write to their parameters, or to states in another
    way, for dtypes that are not supported, and for all operators that have no expression, at once. Example:

        model = at.import_torch(module, (example,))
    """
    exported = exported_program(program, inputs)
    name = class_name(exported, "module")
    try:
        program = decomposed(exported)
    except Exception as err:  # whatever torch raises, such as for a constant that the program writes to
        strict = isinstance(err, AssertionError) and is_written(exported)
        raise ModelError(
            f"torch program {name}: torch cannot decompose it: {type(err).__name__}: {one_line(err, 500)}"
            + (f": {STRICT}" if strict else "")
        ) from err
    label = f"torch program {name}"

    def read(at: Any) -> Model:
        found = read_program(at, {}, name, remedy=REMEDY, states=True)
        if found.model is None:
            raise ModelError(f"{label}: it returns no tensor with elements")
        return replace(found.model, signature=signature_of(exported, found.inputs, found.results))

    if not is_open(program):
        return read(program)
    symbols = symbols_of(program, label, largest)
    numbers = numbers_in(program)

    def at_sizes(sizes: Mapping[str, int]) -> Model:
        return read(at_numbers(program, {s.symbol: sizes[s.size.name] for s in symbols}))

    return open_model(at_sizes, [s.size for s in symbols], numbers.__contains__, FIXED)


def exported_program(program: Any, inputs: Any) -> Any:
    """An exported program, made of a module where one is given. Raises ModelError."""
    kind = type(program)
    if kind.__module__.startswith("torch.export") and hasattr(program, "graph_signature"):
        if inputs is not None:
            raise ModelError("import_torch: an exported program has its inputs; leave out inputs=")
        return program
    if not hasattr(program, "named_modules") or not callable(program):
        raise ModelError(
            f"import_torch takes a module of torch with example inputs, or an exported program, not a "
            f"{kind.__name__}: give {EXPORT}"
        )
    if inputs is None:
        raise ModelError(
            f"import_torch needs example inputs of a module: import_torch(module, (x,)), or give {EXPORT}"
        )
    import torch

    args, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    modes = [(m, m.training) for m in program.modules()]
    try:
        return torch.export.export(program.eval(), args, dict(named))
    except Exception as err:  # whatever torch raises for a module that it cannot trace
        said = f"{type(err).__name__}: {one_line(err, 500)}"
        raise ModelError(f"import_torch: torch cannot export the {kind.__name__}: {said}") from err
    finally:
        for m, training in modes:
            m.training = training


# Where a size cannot stay open.
FIXED = (
    "give the export another range, as Dim('n', min=2, max=512), or leave that size out of dynamic_shapes= "
    "and export once for each size that is wanted"
)


@dataclass(frozen=True)
class Imported:
    """``model``: None where there is nothing to compute. ``inputs``, ``results``: what the program takes and
    returns, one after the other: a `TensorSlot` for each input and output of the model. ``written``: {input
    of the program that it writes to: number of the output that is the new value}."""

    model: Model | None
    inputs: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    written: Mapping[str, int]


def read_program(
    program: Any,
    weights: Mapping[str, Any],
    name: str,
    wanted: Container[int] | None = None,
    remedy: str = "",
    states: bool = False,
) -> Imported:
    """The model of a program that was `decomposed`. ``weights``: {placeholder: torch tensor} for inputs of
    the program that are weights, as those are that torch.compile lifts out of a module. ``wanted``: the
    results that are computed, None for all. ``remedy``: what ends the error for operators without an
    expression. ``states``: what the program writes to are states of the model; else buffers are refused, and
    of inputs the new values are outputs. Raises ModelError."""
    from autotune.models.torch_scope import TorchLowering

    label = f"torch program {name}"
    _refuse_writes(program, label, weights, states)
    lowering = TorchLowering(label)
    olds = old_states(program, lowering) if states else {}
    inputs, given = _inputs(program, weights, lowering)
    specs = program.graph_signature.output_specs
    first = sum(s.kind.name != "USER_OUTPUT" for s in specs)  # new values of inputs come before results
    every = next(n for n in program.graph.nodes if n.op == "output").args[0]
    kept = [n < 0 or wanted is None or n in wanted for n in range(-first, len(every) - first)]
    lowering.run(program.graph, [v for v, keep in zip(every, kept, strict=True) if keep])
    if lowering.unsupported:
        raise lowering.refusal(remedy)
    outputs: list[tuple[str, te.Tensor]] = []
    leaves: list[Leaf] = []
    for spec, value, keep in zip(specs, every, kept, strict=True):
        val = value.meta.get("val") if hasattr(value, "meta") else value
        if not keep or (states and spec.kind.name != "USER_OUTPUT"):
            leaves.append(Fixed(None))
        elif not hasattr(val, "shape"):
            if hasattr(val, "node"):
                raise ModelError(
                    f"{label}: output {spec.arg.name} is a number that depends on data: return a tensor of it"
                )
            leaves.append(Fixed(val))
        elif 0 in val.shape:
            leaves.append(blank(val, f"{label}: output {spec.arg.name}"))
        else:
            leaves.append(TensorSlot(len(outputs)))
            outputs.append((spec.arg.name, lowering.result(value)))
    written = {
        s.target: x.number for s, x in zip(specs[:first], leaves, strict=False) if isinstance(x, TensorSlot)
    }
    model = None
    if outputs:
        keeps = kept_states(program, every, olds, lowering) if states else {}
        model = assemble(
            inputs, _distinct(outputs), lowering.constants, lowering.origins, name, label, states=keeps
        )
        model = model.with_strides(_strides(program, inputs))
    return Imported(model, tuple(given), tuple(leaves[first:]), written)


def _inputs(
    program: Any, weights: Mapping[str, Any], lowering: TorchLowering
) -> tuple[dict[str, te.Tensor], list[Leaf]]:
    """(the model's inputs by name, what the program takes). ``lowering`` learns their values, and those of
    what is known."""
    from autotune.models.torch_scope import nothing, shape_and_dtype

    label = lowering.label
    specs = program.graph_signature.input_specs
    nodes = {n.name: n for n in program.graph.nodes}
    inputs: dict[str, te.Tensor] = {}
    given: list[Leaf] = []
    _refuse_open([nodes[s.arg.name] for s in specs if hasattr(s.arg, "name") and s.arg.name in nodes], label)
    for spec in specs:
        what = spec.kind.name
        called = str(getattr(spec.arg, "name", ""))
        node = nodes.get(called)
        if what == "CUSTOM_OBJ":
            raise ModelError(f"{label}: input {called!r} is an object, not a tensor")
        val: Any = None if node is None else node.meta.get("val")
        if what == "USER_INPUT" and not hasattr(val, "shape"):
            given.append(Fixed(getattr(spec.arg, "value", val)))  # a number or None, which the export fixed
        elif what == "TOKEN" or node is None:
            continue
        elif node in lowering.values:  # a state
            given += [Fixed(None)] if what == "USER_INPUT" else []
        elif what == "USER_INPUT" and called not in weights:
            if 0 in val.shape:
                given.append(blank(val, f"{label}: input {called!r}"))
                lowering.values[node] = nothing(val)
                continue
            shape, dtype = shape_and_dtype(val, f"{label}: input {called!r}")
            given.append(TensorSlot(len(inputs)))
            inputs[called] = lowering.values[node] = te.placeholder(shape, dtype, called)
        elif what == "USER_INPUT":
            lowering.know(node, weights[called], called, weight=True)
        else:
            held = program.state_dict if spec.target in program.state_dict else program.constants
            lowering.know(node, held[spec.target], spec.target, weight=what != "CONSTANT_TENSOR")
    return inputs, given


def _strides(program: Any, inputs: Container[str]) -> dict[str, tuple[int, ...]]:
    """The strides of the example inputs of a program, of those that kernels read in place: rows of elements
    that lie side by side, each in a place of its own."""
    found = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in inputs:
            val = node.meta["val"]
            shape, steps = tuple(map(int, val.shape)), tuple(map(int, val.stride()))
            side_by_side = any(n > 1 and s == 1 for n, s in zip(shape, steps, strict=True))
            if side_by_side and not flaw(shape, steps, written=True):
                found[node.name] = steps
    return found


def decomposed(exported: Any) -> Any:
    """The program without in-place writes, in the operators that have a row of the table, others in those of
    core ATen."""
    import torch

    from autotune.models.operators import aten

    with alone(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own ways
        table = torch.export.default_decompositions()
        for overload in list(table):
            if str(overload) in aten:
                del table[overload]
        return with_places(exported).run_decompositions(table)


def class_name(exported: Any, otherwise: str) -> str:
    """The class of the module that a graph or a program is of."""
    for node in exported.graph.nodes:
        for _, kind in (node.meta.get("nn_module_stack") or {}).values():
            name = str(kind if isinstance(kind, str) else kind.__name__).rsplit(".", 1)[-1]
            if not name.startswith("_empty_nn_module_stack"):  # of what torch adds, such as sizes
                return name
    return otherwise


def _refuse_writes(program: Any, label: str, weights: Mapping[str, Any], states: bool) -> None:
    """Raise ModelError for programs that write to their weights. ``states``: whether buffers are none."""
    sig = program.graph_signature
    written = [f"parameter {n!r}" for n in getattr(sig, "parameters_to_mutate", {}).values()]
    if not states:
        written += [f"buffer {n!r}" for n in sig.buffers_to_mutate.values()]
        written += [f"buffer {n!r}" for n in sig.user_inputs_to_mutate.values() if n in weights]
    if written:
        raise ModelError(
            f"{label} writes to {', '.join(written)}: export module.eval(), in which batch norms keep their "
            "statistics, or return new states"
        )


def _refuse_open(placeholders: list[Any], label: str) -> None:
    """Raise ModelError that names all inputs with open sizes."""
    told = []
    for node in placeholders:
        val = node.meta.get("val")
        dims = getattr(val, "shape", None)
        if dims is None:
            if not isinstance(val, (int, float, bool, str, type(None))) and hasattr(val, "node"):
                told.append(f"input {node.name!r} is the number {val}")
        elif any(not isinstance(d, int) for d in dims):
            told.append(f"input {node.name!r} has shape [{', '.join(map(str, dims))}]")
    if told:
        raise ModelError(
            f"{label}: {'; '.join(told)}; sizes must be known: export without dynamic_shapes=, with example "
            "inputs of the sizes that are wanted, once for each size"
        )


def _distinct(outputs: list[tuple[str, te.Tensor]]) -> list[tuple[str, te.Tensor]]:
    """With names that differ."""
    seen: dict[str, int] = {}
    out = []
    for name, t in outputs:
        n = seen[name] = seen.get(name, -1) + 1
        out.append((f"{name}_{n}" if n else name, t))
    return out
