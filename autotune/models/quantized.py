"""`QuantizedModel`: what became of each product of a model that was quantised."""

from __future__ import annotations

from dataclasses import dataclass

from schedules.graph.round_weights import Treated
from schedules.units import number, size


@dataclass(frozen=True, repr=False)
class QuantizedModel:
    """What `quantize` did. Example: ``print(at.quantize(model).quantized)``.

    ``weights``: the format that was asked for; None: weights stayed. ``group``: numbers that share a scale.
    ``activations``: whether activations are rounded. ``products``: each product with something known, in the
    order of the model, and why it stayed as it was. ``rounded``: nodes of the products whose activations are
    rounded.
    """

    weights: str | None
    group: int
    activations: bool
    products: tuple[Treated, ...]
    rounded: tuple[str, ...]

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of the weights of all products, before and after."""
        before, after = zip((0, 0), *(t.nbytes for t in self.products), strict=True)
        return sum(before), sum(after)

    @property
    def summary(self) -> str:
        """How many products have which weights and activations."""
        activations = "activations of int8" if self.activations else "activations of floats"
        if self.weights is None:
            return f"{number(len(self.rounded), 'product')} with {activations}"
        done = sum(not t.why for t in self.products)
        groups = f" in groups of {self.group}" if self.weights.startswith("int") else ""
        what = f"{done} of {number(len(self.products), 'product')} with weights of {self.weights}{groups}"
        return f"{what}, {activations}"

    def __repr__(self) -> str:
        before, after = self.nbytes
        sizes = f": {size(before)} of weights are {size(after)}" if self.products else ""
        lines = (f"  {t.node or t.stage}: {t.why or 'x'.join(map(str, t.shape))}" for t in self.products)
        return "\n".join([self.summary + sizes, *lines])
