"""The texts of an exported model: its function in C, its header, and examples in C and in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.codegen.runtime.by_cpu import SharedEntry
from autotune.codegen.runtime.entry import layout_of
from autotune.codegen.runtime.model_tables import enumerated
from autotune.models.outline import Outline
from autotune.models.sizes import is_roomy
from autotune.run.export_text import (
    ExportedArgument,
    ExportedSize,
    c_type,
    commented,
    example_head,
    filled,
    framed,
    given,
    identifiers,
    period,
    pointer,
    shown,
    summed,
    taken,
)
from schedules.expr import show
from schedules.ir.nest import tensor_buffer
from schedules.te.compute_dag import Tensor

# Types of Python's ctypes by those of C, and words that a call's arguments are not called.
_CTYPES = {"float": "c_float", "double": "c_double", "int64_t": "c_int64"}
_TAKEN = ("instance", "made", "weights", "argc", "argv")


@dataclass(frozen=True)
class ExportedCall:
    """What a call takes: arrays, which inputs are first, and then sizes. ``extents``: {array: its extents as
    text, where they depend on sizes}."""

    arguments: tuple[ExportedArgument, ...]
    sizes: tuple[ExportedSize, ...]
    extents: Mapping[str, str]
    keeps: bool

    @property
    def functions(self) -> tuple[str, ...]:
        """What functions are called behind the name of the model."""
        return ("make", "run", *(("reset", "state") if self.keeps else ()), "free", "error_text")


def call_of(ol: Outline) -> ExportedCall:
    """The call of a model."""
    ins, outs = ol.inputs, tuple(dict.fromkeys(ol.outputs))
    labels = [ol.label(n) for n in (*ins, *outs)]
    words = identifiers([*_TAKEN, *labels, *(s.name for s in ol.sizes)])[len(_TAKEN) :]
    arguments, extents = [], {}
    for i, (n, word) in enumerate(zip((*ins, *outs), words, strict=False)):
        t = ol.tensors[n]
        # callers have row-major arrays where steps have room for the largest sizes
        lies = layout_of(tensor_buffer(Tensor(n, t.shape, t.dtype, None if is_roomy(ol, n) else t.strides)))
        arguments.append(ExportedArgument(labels[i], word, t.dtype, lies, i >= len(ins)))
        if of_sizes := dict(ol.extents.get(n, ())):
            each = (show(of_sizes[d]) if d in of_sizes else str(k) for d, k in enumerate(t.shape))
            extents[word] = f"[{']['.join(each)}]"
    told = words[len(arguments) :]
    sizes = tuple(ExportedSize(s.name, w, s.least, s.most) for s, w in zip(ol.sizes, told, strict=True))
    return ExportedCall(tuple(arguments), sizes, extents, bool(ol.states))


def wrapper(name: str, call: ExportedCall) -> str:
    """The text of the functions of ``name`` that depend on a call."""
    arrays = [pointer(a.dtype, a.written, f"a{i}") for i, a in enumerate(call.arguments)]
    takes = ", ".join(
        [f"struct {name}_instance *x", *arrays, *(f"int64_t n{i}" for i in range(len(call.sizes)))]
    )
    given = ", ".join(f"(void *)a{i}" for i in range(len(arrays)))
    told = ", ".join([*(f"n{i}" for i in range(len(call.sizes))), "0"])
    return (
        f"\nint FUNCTION(_run)({takes}) {{\n    void *const arrays[] = {{{given}}};\n"
        f"    const int64_t sizes[] = {{{told}}};\n    return call(x, arrays, sizes);\n}}\n"
    )


def entries(name: str, call: ExportedCall) -> list[SharedEntry]:
    """Functions that each of several sets of code has."""
    takes = ("ptr",) * (1 + len(call.arguments)) + ("i64",) * len(call.sizes)
    found = [
        SharedEntry(f"{name}_make", ("ptr", "ptr")),
        SharedEntry(f"{name}_run", takes),
        SharedEntry(f"{name}_free", ("ptr",), "void", ""),
    ]
    states = [
        SharedEntry(f"{name}_reset", ("ptr",)),
        SharedEntry(f"{name}_state", ("ptr", "i32"), "ptr", "null"),
    ]
    return [*found, *states] if call.keeps else found


def header(name: str, call: ExportedCall, contract: Mapping[str, Any]) -> str:
    """The header: the elements of each argument, what statuses mean, and declarations."""
    body = f"""\
/* What functions return; {name}_error_text says what each means. */
{enumerated(name)}

{_functions(name, call, contract)}"""
    return framed(name, f"The model {contract['model']}", contract, call.arguments, body)


def _functions(name: str, call: ExportedCall, contract: Mapping[str, Any]) -> str:
    """What a header declares."""
    weights = (
        f"`weights`: the path of {name}.weights,\n * which is read and checked unless an instance has it"
    )
    if contract["weights"]["file"] is None:
        weights = "It has the weights, so that `weights` is NULL"
    lies = ""
    if any(a.layout.strides is not None for a in call.arguments):
        lies = (
            " Where strides are told, an\n * array has them in place of row-major order, and a pointer is to "
            "its first element."
        )
    kept = ", ".join(
        f"{i}: {commented(t['name'])}, {t['dtype']}{t['shape']}" for i, t in enumerate(contract["states"])
    )
    states = f"""
/* Has states as they are before the first call. */
int {name}_reset({name}_instance *instance);

/* The memory of a state, row-major, which calls read and write; NULL for a number that none has.
 * {kept} */
void *{name}_state({name}_instance *instance, int number);
"""
    return f"""\
/* The memory of calls ({contract["instance_bytes"]} bytes). One instance has one call at a time. Instances
 * share the weights. */
typedef struct {name}_instance {name}_instance;

/* Makes an instance. {weights}. */
int {name}_make({name}_instance **made, const char *weights);

/* Arrays are row-major and aligned to their elements. An output overlaps nothing else. Floats of 16 bits are
 * given as their bits.{lies} */
/* {_shapes(call)} */
{_declared(name, call)}
{states if call.keeps else ""}
/* Frees an instance, which is in no call. NULL is one that is freed. */
void {name}_free({name}_instance *instance);

const char *{name}_error_text(int status);
"""


def _shapes(call: ExportedCall) -> str:
    shapes = "; ".join(
        f"{a.word}: {a.dtype}{commented(call.extents[a.word])}" if a.word in call.extents else shown(a)
        for a in call.arguments
    )
    told = "".join(f"\n * {s.word} is {s.least} to {s.most}." for s in call.sizes)
    return f"{shapes}{'.' if told else ''}{told}"


def _declared(name: str, call: ExportedCall) -> str:
    takes = [f"{name}_instance *instance", *taken(call.arguments, call.sizes)]
    return f"int {name}_run({', '.join(takes)});"


def example(name: str, call: ExportedCall, inside: bool) -> str:
    """A program that makes an instance, fills the inputs, runs the model, and prints the sum of each
    output."""
    arrays, takes = call.arguments, ", ".join(["instance", *given(call.arguments, call.sizes)])
    path = "NULL" if inside else f'argc > 1 ? argv[1] : "{name}.weights"'
    lines = [
        *example_head(name, "int argc, char **argv", arrays),
        f"    {name}_instance *instance = NULL;",
        f"    if (!{name}_runnable() || {' || '.join(f'!{a.word}' for a in arrays)}) return 1;",
        *filled(name, [a for a in arrays if not a.written]),
        "    (void)argc, (void)argv;",
        f"    int status = {name}_make(&instance, {path});",
        f"    if (!status) status = {name}_run({takes});",
        f'    printf("%s\\n", {name}_error_text(status));',
        f"    {name}_free(instance);",
        "    if (status) return status;",
        *summed(name, arrays, '"sum of {} %.9g\\n", sum_{}'),
        *(f"    free({a.word});" for a in arrays),
    ]
    return "\n".join([*lines, "    return 0;", "}"]) + "\n"


def python_example(name: str, call: ExportedCall, inside: bool) -> str:
    """The same in Python, of its own library alone."""
    arrays = {f"a{i}": a for i, a in enumerate(call.arguments)}
    path = "None" if inside else f'os.fsencode(here / "{name}.weights")'
    lines = [
        f'"""Runs {name}.so, which needs neither autotune nor numpy."""',
        "import os",
        "from ctypes import *",
        "from pathlib import Path",
        "",
        "here = Path(__file__).resolve().parent",
        f'library = CDLL(str(here / "{name}.so"))',
        f"library.{name}_error_text.restype = c_char_p",
        f"library.{name}_free.argtypes = [c_void_p]",
        "instance = c_void_p()",
    ]
    for word, a in arrays.items():
        lines.append(f"{word} = ({_ctype(a)} * {a.layout.span})()  # {shown(a)}")
        if not a.written:
            lines.append(f"{word}[:] = [i % {period(a)} for i in range({a.layout.span})]")
    pointers = (
        f"byref({word}, {a.before} * sizeof({_ctype(a)}))" if a.before else word for word, a in arrays.items()
    )
    given = ", ".join(["instance", *pointers, *(f"c_int64({s.most})" for s in call.sizes)])
    lines += [
        f"status = library.{name}_make(byref(instance), {path})",
        f"status = status or library.{name}_run({given})",
        f"print(library.{name}_error_text(status).decode())",
        f"library.{name}_free(instance)",
    ]
    for word, a in arrays.items():
        if a.written:
            lines.append(f'if not status: print("sum of {a.word} %.9g" % sum({word}))')
    return "\n".join([*lines, "raise SystemExit(status)"]) + "\n"


def _ctype(a: ExportedArgument) -> str:
    return _CTYPES.get(c_type(a), f"c_{c_type(a).removesuffix('_t')}")
