"""What the keys of a GGUF file say of a decoder: its architecture, sizes and rotations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from autotune.errors import ModelError
from autotune.models.gguf_file import GgufFile
from autotune.models.operators.base import Array

# Architectures by name: whether the rotated pairs are neighbours in a file. llama.cpp's converter puts the
# rows of q and k of the first so.
ARCHITECTURES = {"llama": True, "qwen2": False}
_MOST = 1 << 24  # of any size
MOST_TEXT = 100  # characters of a text that are kept


@dataclass(frozen=True)
class Hyperparameters:
    """``hidden``: numbers of a token; ``feed_forward``: of the gated product. ``heads`` of queries read
    ``kv_heads`` of keys (``head`` numbers each) and of values (``value``). ``turned``: numbers of a head that
    are rotated. ``neighbours``: whether pairs are neighbours. ``context``: places that the model was trained
    for. Place ``p`` turns pair ``i`` by ``p / factor * base ** (-2 i / turned)``."""

    architecture: str
    name: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head: int
    value: int
    turned: int
    neighbours: bool
    context: int
    eps: float
    base: float
    factor: float

    def rotations(self, places: int, divisors: Array | None) -> tuple[Array, Array]:
        """(Cosines, sines), both (places, pairs). ``divisors``: of the angle of each pair. Raises ValueError
        where an angle is no number."""
        speed = self.base ** (-np.arange(0, self.turned, 2) / self.turned) / self.factor
        with np.errstate(all="ignore"):
            speed = speed if divisors is None else speed / divisors.astype(np.float64)
            angle = np.arange(places)[:, None] * speed
        if not np.isfinite(angle).all():
            raise ValueError("angles are not all finite")
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def hyperparameters(file: GgufFile) -> Hyperparameters:
    """What a file says. Raises ModelError for another architecture, for keys that are missing or absurd."""
    return _Keys(file).read()


class _Keys:
    def __init__(self, file: GgufFile) -> None:
        self.label, self.keys = file.label, file.keys
        self.architecture = self._text("general.architecture", None)
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            self._refuse(f"architecture {self.architecture!r} is not supported; those that are: {known}")

    def read(self) -> Hyperparameters:
        heads = self._size("attention.head_count")
        kv_heads = self._size("attention.head_count_kv", heads)
        hidden = self._size("embedding_length")
        if heads % kv_heads:
            self._refuse(f"{heads} heads of queries are no multiple of {kv_heads} of keys")
        head = self._size("attention.key_length", hidden // heads)
        turned = self._size("rope.dimension_count", head)
        if turned % 2 or turned > head:
            self._refuse(
                f"{turned} numbers of a head of {head} are rotated: that is odd, or more than there are"
            )
        if self._found("split.count", 1, "size") > 1:
            self._refuse("it is one of several files of a model; join them: llama-gguf-split --merge")
        if self._size("expert_count", 0):
            self._refuse("it has experts, which are not supported; give a model without")
        scaling = self._text("rope.scaling.type", "none", own=True)
        factor = 1.0
        if scaling == "linear":
            factor = self._float("rope.scaling.factor", self._float("rope.scale_linear", 1.0))
        elif scaling != "none":
            self._refuse(f"rotations are scaled by {scaling!r}, which is not supported; none and linear are")
        eps = self._float("attention.layer_norm_rms_epsilon")
        base = self._float("rope.freq_base", 10000.0)
        if not 0 <= eps < 1 or not 0 < base < 1e12 or not 1e-6 < factor < 1e6:
            self._refuse(f"eps {eps}, rope.freq_base {base} or the scaling factor {factor} is absurd")
        return Hyperparameters(
            self.architecture, self._text("general.name", self.architecture), self._size("block_count"),
            hidden, self._size("feed_forward_length"), heads, kv_heads, head,
            self._size("attention.value_length", hidden // heads), turned, ARCHITECTURES[self.architecture],
            self._size("context_length"), eps, base, factor,
        )  # fmt: skip

    def _refuse(self, why: str) -> NoReturn:
        raise ModelError(f"{self.label}: {why}")

    def _found(self, key: str, default: Any, kind: str) -> Any:
        value = self.keys.get(key, default)
        if value is None:
            self._refuse(f"key {key!r} is missing: it is no model, or was cut; convert it again")
        if isinstance(value, tuple) and len({*value}) == 1:  # one number for each layer
            value = value[0]
        if isinstance(value, tuple):
            self._refuse(f"key {key!r} differs from layer to layer, which is not supported")
        wanted = {"number": (int, float), "size": (int,), "text": (str,)}[kind]
        if not isinstance(value, wanted) or isinstance(value, bool):
            self._refuse(f"key {key!r} is {value!r}, no {kind}")
        return value

    def _text(self, key: str, default: str | None, own: bool = False) -> str:
        text = str(self._found(f"{self.architecture}.{key}" if own else key, default, "text"))
        # it is shown: no lines and no controls of terminals
        return "".join(c if c.isprintable() else " " for c in text[:MOST_TEXT])

    def _size(self, key: str, default: int | None = None) -> int:
        n = int(self._found(f"{self.architecture}.{key}", default, "size"))
        if not (n > 0 or (n == 0 and default == 0)) or n > _MOST:
            self._refuse(f"key '{self.architecture}.{key}' is {n}, no size from 1 to {_MOST}")
        return n

    def _float(self, key: str, default: float | None = None) -> float:
        return float(self._found(f"{self.architecture}.{key}", default, "number"))
