"""From what a user gives, a library operator's name or tensors of an expression, to a `Workload`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from schedules import te
from schedules.errors import FEW_NAMES, WorkloadError, suggest
from schedules.model import Workload
from schedules.te import strided as te_strided
from schedules.te.compute_dag import ComputeDAG
from schedules.te.flops import count_flops
from schedules.te.strided import Strides

# What `tune` and `load` take: an operator's name, the tensors of `te` (inputs, then outputs), or a DAG.
Program = str | Sequence[Any] | ComputeDAG | Workload

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


def as_workload(
    program: Program,
    params: Mapping[str, Any],
    dtype: str | None = None,
    layout: str | None = None,
    constant_weights: bool | Sequence[str] = False,
    caller: Callable[..., Any] | None = None,
    strides: Strides | None = None,
) -> Workload:
    """The workload of a program. Parameters, dtype and layout belong to library operators; tensors carry
    their own. ``dtype=None``: float32, or the first that the operator has. ``constant_weights``: see
    `with_constants`. ``caller``: the function that a user gave ``params`` with its own keywords. ``strides``:
    of arguments, by name. Sums of dequantised products in tensors become sums of integers (see
    `schedules.graph.integers`). Raises `WorkloadError`."""
    _check_names(program, params, caller)
    workload = with_strides(_as_workload(program, params, dtype, layout), strides)
    made = with_constants(workload, constant_weights)
    if isinstance(program, (str, Workload)):
        return made
    from schedules.graph.integers import with_integer_products

    return replace(made, dag=with_integer_products(made.dag))


def _check_names(program: Program, params: Mapping[str, Any], caller: Callable[..., Any] | None) -> None:
    """Raise WorkloadError for what is neither a parameter of the operator nor a keyword of the caller."""
    known: list[str] = []
    if isinstance(program, str):
        from schedules import ops

        known = ops.get(program).keywords()
    unknown = [name for name in params if name not in known]
    if not unknown:
        return
    others: list[str] = []
    if caller is not None:
        from inspect import signature  # takes a while, and only mistakes need it

        others = [p.name for p in signature(caller).parameters.values() if p.kind is p.KEYWORD_ONLY]
    close = suggest(unknown[0], [*known, *others])
    if not isinstance(program, str):
        raise WorkloadError(
            f"{', '.join(f'{k}=' for k in unknown)} given with tensors{close}; parameters belong to library "
            "operators, which are given by name"
        )
    besides = f"; {caller.__name__} also takes {', '.join(others)}" if caller and not close else ""
    listed = close if close and len(known) > FEW_NAMES else f"{close}; its parameters are {', '.join(known)}"
    raise WorkloadError(f"{program} has no parameter {unknown[0]!r}{listed}{besides}")


def ahead(which: bool | Iterable[str] | None) -> bool | tuple[str, ...]:
    """``constant_weights`` as a value that can be read often and compared: an iterator gives its names once.
    A text is one name; None and nothing are False. Raises `WorkloadError`."""
    if which is None or isinstance(which, bool):
        return bool(which)
    if isinstance(which, str):
        return (which,) if which else False
    try:
        return tuple(which) or False
    except TypeError:
        raise WorkloadError(f"constant_weights: {which!r} is no name of an input, True or False") from None


def with_strides(workload: Workload, strides: Strides | None) -> Workload:
    """The workload whose arguments lie with these strides, by name, in elements; see
    `schedules.te.strided.with_strides`. Raises `WorkloadError`."""
    if not strides:
        return workload
    if not isinstance(strides, Mapping):
        raise WorkloadError(
            f"strides: {type(strides).__name__} has no names; give a dictionary, such as {{'a': (1, 64)}}"
        )
    return replace(workload, dag=te.with_strides(workload.dag, strides))


def row_major(workload: Workload) -> Workload | None:
    """The workload whose arguments are row-major; None where they are."""
    lie = te_strided.strides_given(workload.dag)
    return with_strides(workload, dict.fromkeys(lie)) if lie else None


def with_strides_each(
    workloads: Sequence[Workload], strides: Sequence[Strides | None] | None
) -> list[Workload]:
    """Workloads with strides, one of ``strides`` for each. Raises `WorkloadError`, which names the workload
    by its number from 0."""
    if strides is None:
        return [*workloads]
    if not isinstance(strides, (list, tuple)) or len(strides) != len(workloads):
        given = f"{len(strides)} entries" if isinstance(strides, (list, tuple)) else repr(strides)[:60]
        raise WorkloadError(
            f"strides: {given} for {len(workloads)} tasks; give a list that has a dictionary or None for each"
        )
    out = []
    for n, (workload, one) in enumerate(zip(workloads, strides, strict=True)):
        try:
            out.append(with_strides(workload, one))
        except WorkloadError as err:
            raise WorkloadError(f"task {n} ({workload.op}): {err}") from None
    return out


_STRIDES = re.compile(r"([A-Za-z_]\w*)=(-?[0-9]{1,18}(?:x-?[0-9]{1,18})*)")


def parse_strides(text: str) -> dict[str, tuple[int, ...]]:
    """Strides from text such as ``a=1x512,c=-64x1``, by names of arguments. Raises `WorkloadError`."""
    out: dict[str, tuple[int, ...]] = {}
    for item in filter(None, (x.strip() for x in text.split(","))):
        found = _STRIDES.fullmatch(item)
        if found is None:
            raise WorkloadError(
                f"strides {text!r}: cannot read {item!r}; write name=integers with x between them, such as "
                "a=1x512"
            )
        if found[1] in out:
            raise WorkloadError(f"strides {text!r}: {found[1]} is given twice")
        out[found[1]] = tuple(map(int, found[2].split("x")))
    return out


def strides_text(workload: Workload) -> str:
    """The strides of arguments as `parse_strides` reads them; empty where all are row-major."""
    lie = te_strided.strides_given(workload.dag)
    return ",".join(f"{name}={'x'.join(map(str, steps))}" for name, steps in lie.items())


def with_constants(workload: Workload, which: bool | Sequence[str]) -> Workload:
    """The workload with inputs that are known ahead of the calls: those named, or with True the weights of
    a library operator. Raises `WorkloadError`."""
    which = ahead(which)
    if which is False:
        return workload
    inputs = [t.name for t in workload.dag.inputs]
    if which is True:
        from schedules import ops

        names = ops.REGISTRY[workload.op].weights if workload.op in ops.REGISTRY else ()
        if not names:
            what = "the expression" if workload.op == "custom" else workload.op
            raise WorkloadError(
                f"{what} has no weights of its own to be known ahead; name the inputs that are, "
                f"as constant_weights=[...] of {', '.join(inputs)}"
            )
    else:
        names = which
        for n in names:
            if n not in inputs:
                have = ", ".join(inputs)
                raise WorkloadError(f"constant_weights: {n!r} is not an input; the inputs are {have}")
    constants = tuple(n for n in inputs if n in names)
    try:
        return replace(workload, dag=replace(workload.dag, constants=constants))
    except ValueError as err:
        raise WorkloadError(f"constant_weights: {err}") from None


def with_constants_each(
    workloads: Sequence[Workload], which: bool | Sequence[bool | str | Sequence[str]]
) -> list[Workload]:
    """Workloads with inputs that are known ahead: ``which`` as of `with_constants`, for all of them or one
    for each. False leaves a workload as it is; so does True one that has constants already. Raises
    `WorkloadError`, which names the workload by its number from 0."""
    if isinstance(which, bool):
        every: list[bool | str | Sequence[str]] = [which] * len(workloads)
    elif isinstance(which, (list, tuple)) and len(which) == len(workloads):
        every = [*which]
    else:
        given = f"{len(which)} entries" if isinstance(which, (list, tuple)) else repr(which)[:60]
        raise WorkloadError(
            f"constant_weights: {given} for {len(workloads)} tasks; give True or False, or a list that has "
            "True, False or names of inputs for each task"
        )
    out = []
    for n, (workload, one) in enumerate(zip(workloads, every, strict=True)):
        names = [one] if isinstance(one, str) else one
        try:
            if not isinstance(one, bool) and not (
                isinstance(names, (list, tuple)) and all(isinstance(x, str) for x in names)
            ):
                raise WorkloadError(f"constant_weights: {one!r} is no name of an input, True or False")
            kept = one is True and workload.dag.constants
            out.append(workload if kept else with_constants(workload, one))
        except WorkloadError as err:
            raise WorkloadError(f"task {n} ({workload.op}): {err}") from None
    return out


def is_custom(workload: Workload) -> bool:
    """Whether a workload is a user's own expression."""
    from schedules import ops

    return workload.op not in ops.REGISTRY


def named(workload: Workload, name: str) -> Workload:
    """A user's own expression under a name, which logs and commands show it by. Raises `WorkloadError` for a
    library operator, and for a name that is taken or is none."""
    from schedules import ops

    if workload.op in ops.REGISTRY:
        raise WorkloadError(f"name={name!r}: {workload.op} has a name; name= is for expressions of your own")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise WorkloadError(
            f"name={name!r} is no name; give at most 100 letters, digits, _, - and ., beginning with a letter"
        )
    if name in ops.REGISTRY or name == "custom":
        what = "an operator of the library" if name in ops.REGISTRY else "what expressions without a name are"
        raise WorkloadError(f"name={name!r} is {what}; give another name")
    return replace(workload, op=name)


def otherwise_constant(workload: Workload) -> Workload | None:
    """The library operator with its weights known ahead where they are not, and the other way round; None
    where there is no such thing."""
    from schedules import ops

    if workload.op not in ops.REGISTRY or not ops.REGISTRY[workload.op].weights:
        return None
    if workload.dag.constants:
        return replace(workload, dag=replace(workload.dag, constants=()))
    return with_constants(workload, True)


def _as_workload(
    program: Program, params: Mapping[str, Any], dtype: str | None, layout: str | None
) -> Workload:
    if isinstance(program, str):
        from schedules import ops

        return ops.workload(program, params, dtype, layout)
    if isinstance(program, Workload):
        return program
    if isinstance(program, ComputeDAG):
        return Workload(program, flops=count_flops(program))
    if isinstance(program, (list, tuple)):
        dag = te.dag([*program])
        return Workload(dag, flops=count_flops(dag))
    if any(c.__module__.startswith("torch.") for c in type(program).__mro__):
        raise WorkloadError(
            f"{type(program).__name__} is a model of torch: tune it with "
            "autotune.tune_model(autotune.import_torch(module, inputs))"
        )
    raise WorkloadError(
        f"{type(program).__name__} is not a program; give an operator's name, such as 'matmul', or a list of "
        "te tensors"
    )


def shown_params(workload: Workload) -> dict[str, Any]:
    """The parameters that tell a library operator's workload from others, in the operator's own order:
    those that differ from their default, and the layout likewise."""
    from schedules import ops
    from schedules.ops.base import TYPED

    given = dict(workload.params)
    if workload.op not in ops.REGISTRY:
        return given
    op = ops.REGISTRY[workload.op]
    shown = {p.name: given[p.name] for p in op.params if p.name in given and given[p.name] != p.default}
    shown |= {k: given[k] for k in TYPED if k in given}
    if given.get("layout") not in (None, *op.layouts[:1]):
        shown["layout"] = given["layout"]
    return shown


def dtype_of(workload: Workload) -> str:
    """The dtype that a workload is known by. Of a library operator its ``dtype``, which is that of its first
    input. Of a user's own expression those of the outputs, each once: its first input may be of places."""
    from schedules import ops

    if workload.op in ops.REGISTRY:
        return workload.dag.params[0].dtype
    return ", ".join(dict.fromkeys(workload.dag.tensors[n].dtype for n in workload.dag.outputs))


def param_text(value: Any) -> str:
    """A parameter as ``--shape`` takes it: ``512`` or ``2x3x4``."""
    from schedules.ops.base import text

    return text(value)
