"""`QuantizedModel`: what became of each product of a model that was quantised."""

from __future__ import annotations

from collections.abc import Iterator
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

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        done = [t for t in self.products if not t.why]
        before, after = self.nbytes
        activations = "activations of int8" if self.activations else "activations of floats"
        if self.weights is None:
            yield f"{number(len(self.rounded), 'product')} with {activations}"
        else:
            groups = f" in groups of {self.group}" if self.weights.startswith("int") else ""
            what = f"{len(done)} of {len(self.products)} products with weights of {self.weights}{groups}"
            sizes = f"{size(before)} of weights are {size(after)}"
            yield f"{what}, {activations}: {sizes}"
        for t in self.products:
            name = t.node or t.stage
            yield f"  {name}: {t.why or 'x'.join(map(str, t.shape))}"
