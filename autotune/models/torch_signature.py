"""The signature of an exported program: its containers, as torch knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autotune.models.signature import Blank, Held, Leaf, Node, Signature


def blank(val: Any, what: str) -> Blank:
    """A tensor without elements. Raises ModelError for a dtype that is not supported."""
    from autotune.models.torch_scope import supported_dtype

    return Blank(tuple(map(int, val.shape)), supported_dtype(val, what))


def signature_of(exported: Any, inputs: Sequence[Leaf], results: Sequence[Leaf]) -> Signature | None:
    """How an exported program is called. ``inputs``, ``results``: what it takes and returns, one after the
    other. None where the program does not tell."""
    spec = exported.call_spec
    if spec.in_spec is None or spec.out_spec is None:
        return None
    if (spec.in_spec.num_leaves, spec.out_spec.num_leaves) != (len(inputs), len(results)):
        return None
    left = iter(inputs)
    taken = _node(spec.in_spec, left)
    result = _node(spec.out_spec, iter(results))
    match taken:
        case Held(parts=(Held(kind="tuple", parts=arguments), Held(kind="dict", parts=named, keys=keys))):
            call = exported.module_call_graph[0].signature
            names = list(getattr(call, "forward_arg_names", None) or ())
            if names[len(arguments) :] != list(keys):
                names = []
            shown = (*names[: len(arguments)], *[""] * (len(arguments) - len(names)))
            return Signature(arguments, shown, dict(zip(keys, named, strict=True)), result)
    return None


def _node(spec: Any, leaves: Iterator[Leaf]) -> Node:
    if spec.is_leaf():
        return next(leaves)
    below = spec.children() if hasattr(spec, "children") else spec.children_specs
    parts = tuple(_node(x, leaves) for x in below)
    kind, context = spec.type, spec.context
    if kind in (tuple, list):
        return Held(kind.__name__, parts)
    if kind is dict:
        return Held("dict", parts, tuple(context))
    make, split, keys = _class(kind, context, len(parts))
    if isinstance(context, type) and hasattr(context, "_fields"):
        return Held("named tuple", parts, tuple(context._fields), context.__name__, make, split)
    return Held("other", parts, keys, kind.__name__, make, split)


def _class(
    kind: Any, context: Any, count: int
) -> tuple[Callable[[Sequence[Any]], Any], Callable[[Any], Sequence[Any] | None], tuple[Any, ...]]:
    """(What makes an object of a class that torch was told of, what splits one, the keys of its parts)."""
    from torch.utils import _pytree

    known = _pytree.SUPPORTED_NODES[kind]

    def make(parts: Sequence[Any]) -> Any:
        return known.unflatten_fn(list(parts), context)

    def split(value: Any) -> Sequence[Any] | None:
        if _pytree._get_node_type(value) is not kind:
            return None
        parts, found = known.flatten_fn(value)
        return list(parts) if found == context else None

    return make, split, _keys(known, context, count)


def _keys(known: Any, context: Any, count: int) -> tuple[Any, ...]:
    """What the parts of an object are called; empty where that is not known."""
    try:
        pairs, _ = known.flatten_with_keys_fn(known.unflatten_fn([object() for _ in range(count)], context))
        keys = tuple(k.name if hasattr(k, "name") else k.key for k, _ in pairs)
    except Exception:  # whatever a class raises that is made of no tensors
        return ()
    plain = all(k is None or isinstance(k, (bool, int, float, str)) for k in keys)
    return keys if plain and len(set(keys)) == len(keys) == count else ()
