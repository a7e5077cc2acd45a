"""Masks whose elements are known when a program is imported: how many they take is known too.

torch leaves the sizes of what a mask takes open. Here such a mask becomes the places that it takes, and the
program is exported again, which finds all sizes.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np


def with_places(exported: Any) -> Any:
    """The program with the places of known masks in their place; itself where it has no such mask."""
    import torch

    if exported.example_inputs is None or not any(_mask_of(n) for n in exported.graph.nodes):
        return exported
    guards = "check_guards" in inspect.signature(exported.module).parameters  # of newer torch
    module = exported.module(**({"check_guards": False} if guards else {}))
    found = False
    for node in list(module.graph.nodes):
        if (masks := _mask_of(node)) is None:
            continue
        known = [_known(m, module) for m in masks]
        if any(k is None for k in known):
            continue
        found = True
        with module.graph.inserting_before(node):
            _replace(node, dict(zip(masks, known, strict=True)), module)
    if not found:
        return exported
    module.graph.eliminate_dead_code()
    module.recompile()
    args, kwargs = exported.example_inputs
    return torch.export.export(module, args, kwargs)


def _mask_of(node: Any) -> list[Any] | None:
    """The masks by which a node takes elements."""
    name = str(node.target) if node.op == "call_function" else ""
    if name == "aten.masked_select.default":
        return [node.args[1]]
    if name != "aten.index.Tensor":
        return None
    return [i for i in node.args[1] if i is not None and str(i.meta["val"].dtype) == "torch.bool"] or None


def _known(node: Any, module: Any) -> Any:
    """What a node makes of constants and numbers alone; None for other nodes."""
    import torch

    if node.op == "get_attr":
        held: Any = module
        for part in node.target.split("."):
            held = getattr(held, part)
        weights = {id(t) for t in (*module.parameters(), *module.buffers())}
        return held if isinstance(held, torch.Tensor) and id(held) not in weights else None
    tags = getattr(node.target, "tags", None)
    if node.op != "call_function" or tags is None or torch.Tag.nondeterministic_seeded in tags:
        return None
    values = {n: _known(n, module) for n in node.all_input_nodes}
    if any(v is None for v in values.values()):
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    return node.target(*args, **kwargs)


def _replace(node: Any, known: dict[Any, Any], module: Any) -> None:
    """Take elements at the places of masks."""
    import torch

    graph, aten = module.graph, torch.ops.aten
    x, given = node.args
    if str(node.target) == "aten.masked_select.default":
        shape = np.broadcast_shapes(tuple(x.meta["val"].shape), tuple(known[given].shape))
        x = graph.call_function(aten.expand.default, (x, list(shape)))
        known, given = {given: known[given].expand(shape)}, [given]
    places: list[Any] = []
    for i in given:
        if i not in known:
            places.append(i)
            continue
        for p in known[i].nonzero().unbind(1):
            name = f"known_places_{len(graph.nodes)}"
            setattr(module, name, p)
            places.append(graph.get_attr(name))
    node.replace_all_uses_with(graph.call_function(aten.index.Tensor, (x, places)))
    graph.erase_node(node)
