"""Factors move into weights: a batch norm after a convolution becomes part of its weights and its bias.

``a[o] * (sum of x * w[.., o]) + b[o]`` is ``(sum of x * (a[o] * w[.., o])) + b[o]``. Both products are of
constants: `biases` and `fold` make new weights and a new bias of them (as in Jacob et al., *Quantization and
training of neural networks*, CVPR 2018, section 3.2, for inference).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from schedules import expr as E
from schedules.dtypes import is_storage
from schedules.expr import Binary, Expr, Load, Var
from schedules.graph.edit import factors, is_map, is_product, readers, remade, terms
from schedules.graph.graph import Graph
from schedules.te.compute_dag import Axis, Stage, Tensor
from schedules.te.unique import Taken


@dataclass(frozen=True)
class Affine:
    """``factor * product + shift``; None: 1, and 0."""

    factor: Expr | None
    shift: Expr | None


@dataclass(frozen=True)
class _Scaled:
    """A map's ``whole`` expression of ``load``, an element of ``product``: ``factor * load + shift``.
    ``weight``: the product's load of its weights, which have ``shape``."""

    product: str
    load: Load
    weight: Load
    shape: tuple[int, ...]
    whole: Expr
    factor: Expr
    shift: Expr | None


def fold_scales(graph: Graph) -> Graph:
    """The graph in which no factor of constants stands after a product with a constant."""
    order: dict[str, Stage] = {}
    shapes = {n: v.shape for n, v in graph.values.items()}
    outputs = set(graph.dag.outputs)
    taken = Taken(graph.dag.tensors)
    read = readers(graph.dag.stages)
    alone = {n for n, users in read.items() if len(users) == 1 and n not in outputs}
    for s in graph.dag.stages:
        order[s.name] = s
        while (found := _scaled(order[s.name], order, shapes, alone)) is not None:
            order = _folded(order, s.name, found, taken, shapes)
    return remade(graph, tuple(order.values())) if len(order) > len(graph.dag.stages) else graph


def _folded(
    order: dict[str, Stage], name: str, found: _Scaled, taken: Taken, shapes: dict[str, tuple[int, ...]]
) -> dict[str, Stage]:
    """The stages with a factor moved from the map of that name into the weights of a product."""
    s = order[name]
    new = taken.add(f"{found.weight.buffer}_scaled")
    shapes[new] = found.shape
    order = _put(order, found.product, _pushed(order[found.product], found, s, new))
    moved = found.load if found.shift is None else sum(terms(found.shift), start=found.load)

    def put(x: Expr) -> Expr | None:
        return moved if x == found.whole else None

    return order | {name: replace(s, values=(E.rewrite(s.values[0], put),))}


def _put(order: dict[str, Stage], name: str, by: tuple[Stage, ...]) -> dict[str, Stage]:
    """The stages with the named one replaced."""
    return {x.name: x for s in order.values() for x in (by if s.name == name else (s,))}


def _scaled(
    s: Stage, stages: dict[str, Stage], shapes: dict[str, tuple[int, ...]], alone: set[str]
) -> _Scaled | None:
    """What a map multiplies a product by; None where it does not, or not by constants alone, or the weights
    lack an axis of the factor. ``shapes``: of constants. ``alone``: tensors that one stage reads."""
    if not is_map(s) or len(s.values) != 1:
        return None
    for load in dict.fromkeys(s.reads()):
        product = stages.get(load.buffer)
        if product is None or load.buffer not in alone or not is_product(product):
            continue
        weight = _weight(product, shapes)
        whole = _largest(s.values[0], load)
        parts = None if whole is None else affine_in(whole, load)
        if weight is None or whole is None or parts is None or parts.factor is None:
            continue
        if _is_read(s.values[0], load.buffer, whole):
            continue
        own = _plain_axes(load, product)
        dims = {i.name for i in weight.indices if isinstance(i, Var)}
        reads = {x.buffer for x in E.loads(parts.factor)}
        if E.holes(parts.factor):  # a call tells it: weights are not the same at each
            continue
        if reads <= shapes.keys() and all(own.get(v) in dims for v in E.variables(parts.factor)):
            shape = shapes[weight.buffer]
            return _Scaled(product.name, load, weight, shape, whole, parts.factor, parts.shift)
    return None


def _is_read(e: Expr, buffer: str, whole: Expr) -> bool:
    """Whether an expression reads a buffer outside ``whole``."""
    if e == whole:
        return False
    return (isinstance(e, Load) and e.buffer == buffer) or any(
        _is_read(k, buffer, whole) for k in E.children(e)
    )


def _largest(e: Expr, load: Load) -> Expr | None:
    if affine_in(e, load) is not None:
        return e
    found = (_largest(k, load) for k in E.children(e) if load in E.loads(k))
    return next((x for x in found if x is not None), None)


def affine_in(e: Expr, load: Expr) -> Affine | None:
    """The parts of an expression of floats that is affine in another one, such as a load; None where it is
    not, or does not hold it."""
    if e == load:
        return Affine(None, None)
    if not isinstance(e, Binary) or e.op not in "+-*/":
        return None
    in_a, in_b = (_holds(x, load) for x in (e.a, e.b))
    if in_a == in_b or (in_b and e.op == "/"):
        return None
    inner, other = (affine_in(e.a, load), e.b) if in_a else (affine_in(e.b, load), e.a)
    if inner is None:
        return None
    f, c = inner.factor, inner.shift
    match e.op:
        case "+":
            return Affine(f, other if c is None else c + other)
        case "-" if in_a:
            return Affine(f, -other if c is None else c - other)
        case "-":
            minus = E.wrap(-1.0, E.dtype_of(load))
            return Affine(minus if f is None else minus * f, other if c is None else other - c)
        case "*":
            return Affine(other if f is None else f * other, None if c is None else c * other)
    one = E.wrap(1.0, E.dtype_of(load)) if f is None else f
    return Affine(one / other, None if c is None else c / other)


def _holds(e: Expr, part: Expr) -> bool:
    return part in (E.loads(e) if isinstance(part, Load) else E.walk(e))


def _weight(product: Stage, constants: Container[str]) -> Load | None:
    """The factor of a product that is a constant, where one is. A dtype of storage would round it again."""
    found = [x for x in factors(product.values[0]) if x.buffer in constants]
    return found[0] if len(found) == 1 and not is_storage(found[0].dtype) else None


def _plain_axes(load: Load, product: Stage) -> dict[str, str]:
    """{axis of who reads a product: the product's axis that it is}, of those that stand in no other index."""
    used = [v for i in load.indices for v in E.variables(i)]
    pairs = zip(load.indices, product.axes, strict=True)
    return {i.name: a.var for i, a in pairs if isinstance(i, Var) and used.count(i.name) == 1}


def _pushed(product: Stage, found: _Scaled, s: Stage, name: str) -> tuple[Stage, Stage]:
    """(the stage of new weights of that name, the product with them)."""
    load, weight = found.load, found.weight
    own = _plain_axes(load, product)
    dims = {i.name: Var(f"d{n}") for n, i in enumerate(weight.indices) if isinstance(i, Var)}
    times = E.substitute(found.factor, {v: dims[own[v]] for v in E.variables(found.factor)})
    axes = tuple(Axis(f"d{n}", extent) for n, extent in enumerate(found.shape))
    value = Load(weight.buffer, tuple(Var(a.var) for a in axes), weight.dtype) * times
    scaled = Stage((Tensor(name, found.shape, weight.dtype),), axes, (), (value,))

    def new(x: Expr) -> Expr | None:
        return replace(weight, buffer=name) if x == weight else None

    return scaled, replace(product, values=tuple(E.rewrite(v, new) for v in product.values))
