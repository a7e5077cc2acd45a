"""`import_torch`: an exported program of torch as a graph of tensor expressions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import ModelError
from autotune.models.assembling import assemble
from autotune.models.model import Model
from autotune.models.torch_masks import with_places
from schedules import te

# Where a program has operators without an expression.
REMEDY = (
    "\nexport a part of the module without them; or take torch.compile(module, backend='autotune'), which "
    "leaves such graphs to torch"
)


def import_torch(exported: Any) -> Model:
    """An exported program of torch (`torch.export.export`) as a graph of tensor expressions.

    Its inputs are the model's inputs, in order; an argument that is a number or None was fixed by the export.
    Parameters, buffers and constants are the graph's constants, whose values share the memory of torch's
    tensors. Outputs are the tensors that the program returns, in order, without None and numbers. Inputs and
    outputs of any of the dtypes float32, float64, float16, bfloat16, int64, int32, int8, uint8 and bool are
    taken. What is known before a call, such as positions and masks, is computed here.

    Raises ModelError for what is no exported program, for sizes that were left open, for programs that write
    to their inputs or buffers, for dtypes that are not supported, and for all operators that have no
    expression, at once. Example:

        exported = torch.export.export(module.eval(), (example,))
        model = at.import_torch(exported)
    """
    kind = type(exported)
    if not (kind.__module__.startswith("torch.export") and hasattr(exported, "graph_signature")):
        raise ModelError(
            f"import_torch takes an exported program of torch, not a {kind.__name__}: give "
            "torch.export.export(module.eval(), example_inputs)"
        )
    name = _name(exported)
    try:
        program = decomposed(exported)
    except Exception as err:  # whatever torch raises, such as for a constant that the program writes to
        raise ModelError(f"torch program {name}: torch cannot decompose it: {_short(err)}") from err
    return read_program(program, {}, name, REMEDY).model


@dataclass(frozen=True)
class Imported:
    """``model``, and for each result of the program the number of its output, or what it is, if it is no
    tensor: ``results`` has (True, number) or (False, value)."""

    model: Model
    results: tuple[tuple[bool, Any], ...]


def read_program(program: Any, weights: Mapping[str, Any], name: str, remedy: str = "") -> Imported:
    """The model of a program that was `decomposed`. ``weights``: {placeholder: torch tensor} for inputs of
    the program that are weights, as those are that torch.compile lifts out of a module. ``remedy``: what ends
    the error for operators without an expression. Raises ModelError."""
    from autotune.models.torch_scope import Lowering, shape_and_dtype

    label = f"torch program {name}"
    _refuse_writes(program, label, weights)
    specs = program.graph_signature.input_specs
    nodes = {n.name: n for n in program.graph.nodes}
    lowering = Lowering(label)
    inputs: dict[str, te.Tensor] = {}
    _refuse_open([nodes[s.arg.name] for s in specs if hasattr(s.arg, "name") and s.arg.name in nodes], label)
    for spec in specs:
        what = spec.kind.name
        given = getattr(spec.arg, "name", None)
        if what == "TOKEN" or given is None or given not in nodes:
            continue
        if what == "CUSTOM_OBJ":
            raise ModelError(f"{label}: input {given!r} is an object, not a tensor")
        node = nodes[given]
        if what == "USER_INPUT" and given not in weights:
            if not hasattr(node.meta.get("val"), "shape"):
                continue  # a number or None, which the export fixed
            shape, dtype = shape_and_dtype(node.meta["val"], f"{label}: input {given!r}")
            inputs[given] = lowering.values[node] = te.placeholder(shape, dtype, given)
        elif what == "USER_INPUT":
            lowering.know(node, weights[given], given, weight=True)
        else:
            held = program.state_dict if spec.target in program.state_dict else program.constants
            tensor = held[spec.target]
            lowering.know(node, tensor, spec.target, weight=what != "CONSTANT_TENSOR")
    returned = next(n for n in program.graph.nodes if n.op == "output").args[0]
    lowering.run(program.graph, returned)
    if lowering.unsupported:
        raise lowering.refusal(remedy)
    outputs: list[tuple[str, te.Tensor]] = []
    results: list[tuple[bool, Any]] = []
    for spec, value in zip(program.graph_signature.output_specs, returned, strict=True):
        if hasattr(value, "meta") and hasattr(value.meta.get("val"), "shape"):
            results.append((True, len(outputs)))
            outputs.append((spec.arg.name, lowering.result(value)))
        elif hasattr(value, "meta"):
            raise ModelError(f"{label}: it returns a number that is data ({value.name}): return the tensor")
        else:
            results.append((False, value))
    if not outputs:
        raise ModelError(f"{label}: it returns no tensor")
    model = assemble(inputs, _distinct(outputs), lowering.constants, lowering.origins, name, label)
    return Imported(model, tuple(results))


def decomposed(exported: Any) -> Any:
    """The program without in-place writes, in the operators that have a row of the table, others in those of
    core ATen."""
    import torch

    from autotune.models.torch_ops import ROWS

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own ways
        table = torch.export.default_decompositions()
        for overload in list(table):
            if str(overload) in ROWS:
                del table[overload]
        return with_places(exported).run_decompositions(table)


def _name(exported: Any) -> str:
    """The class of the module that was exported."""
    for node in exported.graph.nodes:
        for _, kind in (node.meta.get("nn_module_stack") or {}).values():
            text = kind if isinstance(kind, str) else kind.__name__
            return str(text).rsplit(".", 1)[-1]
    return "module"


def _short(err: BaseException) -> str:
    return f"{type(err).__name__}: {' '.join(str(err).split())}"[:500]


def _refuse_writes(program: Any, label: str, weights: Mapping[str, Any]) -> None:
    """Raise ModelError for programs that write to what they are given."""
    sig = program.graph_signature
    buffers = [f"buffer {n!r}" for n in sig.buffers_to_mutate.values()]
    buffers += [f"parameter {n!r}" for n in getattr(sig, "parameters_to_mutate", {}).values()]
    buffers += [f"buffer {n!r}" for n in sig.user_inputs_to_mutate.values() if n in weights]
    inputs = [f"input {n!r}" for n in sig.user_inputs_to_mutate.values() if n not in weights]
    if not buffers and not inputs:
        return
    remedy = []
    if buffers:
        remedy.append(
            "export module.eval(), in which batch norms keep their statistics, or return new states"
        )
    if inputs:
        remedy.append("return the new value in place of writing to the input")
    raise ModelError(f"{label} writes to {', '.join([*buffers, *inputs])}: {'; '.join(remedy)}")


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
