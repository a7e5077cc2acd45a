"""Damaged ONNX files, by seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

NUMBERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
TEXTS = ("", "x", "y", "Conv", "Loop", "If", "Range", "com.evil", "ai.onnx.ml", "a/../b", "\u2028", "s0")


def mutated(models: Sequence[Any], seed: int) -> tuple[bytes, str]:
    """(the bytes of a damaged model, how it was damaged): bytes flipped, cut off, cut out or repeated, or one
    to four fields changed, removed, repeated or moved, or one to three numbers of attributes, shapes and
    weights changed."""
    rng = random.Random(seed)
    net = models[rng.randrange(len(models))]
    how = rng.choice(("flip", "cut", "splice", "fields", "fields", "fields", "numbers", "numbers", "numbers"))
    if how in ("fields", "numbers"):
        out = type(net)()
        out.CopyFrom(net)
        for _ in range(rng.randint(1, 4 if how == "fields" else 3)):
            (_change if how == "fields" else _renumber)(out, rng)
        return out.SerializeToString(), how
    data = bytearray(net.SerializeToString())
    if how == "flip":
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del data[rng.randrange(len(data)) :]
    else:
        a, b, c = sorted(rng.randrange(len(data)) for _ in range(3))
        data[c:c] = data[a:b] if rng.random() < 0.5 else b""
        del data[a : a + rng.randint(0, 16)]
    return bytes(data), how


def _renumber(model: Any, rng: random.Random) -> None:
    """Change a number that says what is computed."""
    places: list[Any] = []
    for node in model.graph.node:
        for a in node.attribute:
            places += [(a.ints, i) for i in range(len(a.ints))] + [(a, "i")] * a.HasField("i")
            places += (
                [(a, "f")] * a.HasField("f")
                + [(a, "s")] * a.HasField("s")
                + [(a.t, "dims")] * a.HasField("t")
            )
    for port in model.graph.input:
        places += [(d, "dim_value") for d in port.type.tensor_type.shape.dim]
    for t in model.graph.initializer:
        places += [(t, "raw_data")] * 2 if t.data_type == 7 else [(t.dims, i) for i in range(len(t.dims))]
    if not places:
        return
    where, name = rng.choice(places)
    small = rng.choice((*NUMBERS, *range(-4, 9)))
    if isinstance(name, int):
        where[name] = small
    elif name == "raw_data":
        count = len(where.raw_data) // 8
        values = list(struct.unpack(f"<{count}q", where.raw_data[: 8 * count]))
        if values:
            values[rng.randrange(count)] = small
        where.raw_data = struct.pack(f"<{count}q", *values)
    elif name == "dims":
        where.dims.append(small)
    elif name == "f":
        where.f = rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    elif name == "s":
        where.s = rng.choice(
            (b"", b"SAME_UPPER", b"VALID", b"linear", b"reflect", b"ij,jk->ik", b"\xff", where.s[::-1])
        )
    else:
        setattr(where, name, small)


def _change(message: Any, rng: random.Random) -> None:
    """Change one field of a message, or of one somewhere inside it."""
    while True:
        fields = message.ListFields()
        if not fields:
            return
        if message.DESCRIPTOR.name == "ModelProto" and rng.random() < 0.9:  # most is in there
            fields = [f for f in fields if f[0].name in ("graph", "functions")] or fields
        field, value = rng.choice(fields)
        is_message = field.type == FieldDescriptor.TYPE_MESSAGE
        repeated = hasattr(value, "append") or hasattr(value, "add")
        if is_message and rng.random() < 0.85:
            message = rng.choice(list(value)) if repeated else value
            continue
        break
    if repeated:
        _change_list(value, is_message, field, rng)
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    elif not is_message:
        setattr(message, field.name, _other(field, value, rng))


def _change_list(value: Any, is_message: bool, field: Any, rng: random.Random) -> None:
    how, i = rng.choice(("remove", "repeat", "swap", "other")), rng.randrange(len(value))
    if how == "remove":
        del value[i]
    elif how == "repeat":
        value.append(value[i])
    elif how == "swap":
        items = list(value)
        rng.shuffle(items)
        del value[:]
        value.extend(items)
    elif is_message:
        _change(value[i], rng)
    else:
        value[i] = _other(field, value[i], rng)


def _other(field: Any, value: Any, rng: random.Random) -> Any:
    """Another value of a field's type."""
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values])
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice((*TEXTS, value + "_", value[:-1]))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice((value[:-1], value + b"\0", b"", value[::-1], b"\xff" * len(value)))
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf"), -float("inf")))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not value
    low, high = {
        FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1), FieldDescriptor.TYPE_UINT64: (0, 2**63 - 1),
    }.get(field.type, (-(2**63), 2**63 - 1))  # fmt: skip
    return min(max(rng.choice((*NUMBERS, value + 1, value - 1, value * 2)), low), high)
