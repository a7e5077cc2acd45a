"""Damaged and hostile GGUF files are imported or refused with ModelError, within time and memory."""

from __future__ import annotations

import random
import resource
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_models as files
import numpy as np
import pytest

import autotune as at
from autotune.errors import ModelError
from autotune.models import gguf_file
from autotune.models.gguf_file import read_gguf
from autotune.models.gguf_hyperparameters import hyperparameters

SMALL = replace(
    files.LLAMA, layers=1, hidden=32, feed_forward=32, heads=2, kv_heads=1, vocabulary=8, context=16
)
WIDE = replace(SMALL, hidden=256, feed_forward=256)
MOST_BYTES, MOST_S = 512 << 20, 5.0  # of memory and CPU time that a damaged file may take


def mutated(data: bytes, seed: int) -> tuple[bytes, str]:
    """A file with a fault of some kind, and which."""
    rng = random.Random(seed)
    kind = ("flip", "cut", "number", "swap", "grow")[seed % 5]
    out, header = bytearray(data), len(data) - 12000 if len(data) > 14000 else len(data)
    if kind == "flip":
        for _ in range(rng.randint(1, 8)):
            out[rng.randrange(header)] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del out[rng.randrange(len(out)) :]
    elif kind == "number":
        where = rng.randrange(4, header - 8)
        many = (0, 1, 2**16, 2**31, 2**32 - 1, 2**48, 2**63, 2**64 - 1, rng.getrandbits(64))
        struct.pack_into("<Q", out, where, rng.choice(many))
    elif kind == "swap":
        a, b, n = rng.randrange(header - 32), rng.randrange(header - 32), rng.randint(1, 32)
        out[a : a + n], out[b : b + n] = out[b : b + n], out[a : a + n]
    else:
        where = rng.randrange(header)
        out[where:where] = rng.randbytes(rng.randint(1, 64))
    return bytes(out), kind


def survey(folder: Path, seeds: range) -> dict[str, int]:
    """How many damaged files are imported, by kind of damage; -1 is added for those that are refused."""
    kinds = {"F32": SMALL, "Q8_0": SMALL, "Q4_0": SMALL, "Q4_K": WIDE, "Q6_K": WIDE}
    base = [files.write(folder / f"{k}.gguf", of, kind=k).read_bytes() for k, of in kinds.items()]
    found: dict[str, int] = {"imported": 0, "refused": 0}
    path = folder / "damaged.gguf"
    for seed in seeds:
        data, kind = mutated(base[seed // 5 % len(base)], seed)
        path.write_bytes(data)
        begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            model = at.import_gguf(path, context=8, rows=1)
        except ModelError as err:
            assert str(path) in str(err), (seed, kind)
            found["refused"] += 1
        else:
            found["imported"] += 1
            for name, value in model.graph.values.items():  # all of it can be read
                assert value.tobytes() is not None, name
        assert time.process_time() - begun < MOST_S, (seed, kind)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_BYTES >> 10, (seed, kind)
    return found


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_damaged_files_are_imported_or_refused(tmp_path: Path, first: int) -> None:
    found = survey(tmp_path, range(first, first + 10))
    assert found["imported"] >= 1 and found["refused"] >= 1


@pytest.mark.fuzz
def test_many_damaged_files_are_imported_or_refused(tmp_path: Path) -> None:
    found = survey(tmp_path, range(1000, 1500))
    assert found["imported"] >= 100 and found["refused"] >= 100


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return files.write(tmp_path / "x.gguf", SMALL)


def changed(path: Path, before: bytes, after: bytes) -> Path:
    data = path.read_bytes()
    assert data.count(before) >= 1 and len(before) == len(after)
    path.write_bytes(data.replace(before, after, 1))
    return path


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "is no GGUF file: it has 0 bytes"),
        (b"GGUF" + bytes(8), "is no GGUF file: it has 12 bytes"),
        (b"ABCD" + bytes(40), "it begins with b'ABCD'; convert the model to GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "its version is 1, not 2 or 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian machine"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), f"0 keys and {2**60} tensors; at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), f"{2**60} keys and 0 tensors; at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 9), "key 0 ends behind the file's end: it is cut off or"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "key 'general.architecture' is missing"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "the name of key 0 has .* bytes, more than 1024"),
    ],
)
def test_what_is_no_file_is_refused(tmp_path: Path, data: bytes, match: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=match):
        at.import_gguf(path)


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none.gguf", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ModelError, match=r"cannot be read: .*; give the path of a GGUF file"):
            at.import_gguf(path)


def test_a_file_that_was_cut_off_is_refused(whole: Path) -> None:
    whole.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"bytes from .* on, and the file .*: it is cut off or damaged"):
        at.import_gguf(whole)


@pytest.mark.parametrize(
    ("array", "match"),
    [
        ((0, 2**62), "ends behind the file's end"),
        ((8, 2**62), "texts, more than the file has room for"),
        ((9, 1), "is an array of type 9, which is not read"),
        ((77, 1), "is an array of type 77"),
    ],
)
def test_arrays_that_are_longer_than_the_file_are_refused(
    tmp_path: Path, array: tuple[int, int], match: str
) -> None:
    key = struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, *array)
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + bytes(64))
    with pytest.raises(ModelError, match=match):
        read_gguf(path)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = files.write(tmp_path / "x.gguf", SMALL, architecture="gemma9")
    with pytest.raises(ModelError, match="'gemma9' is not supported; those that are: llama, qwen2"):
        at.import_gguf(path)


def test_types_that_are_not_supported_are_named_together(tmp_path: Path) -> None:
    of = replace(SMALL, hidden=256, layers=2, feed_forward=256)
    path = files.write(tmp_path / "x.gguf", of, kind="TQ2_0")
    with pytest.raises(ModelError) as told:
        at.import_gguf(path)
    text = str(told.value)
    assert "16 of 21 tensors" in text and "and 8 more" in text and "blk.0.attn_q.weight (TQ2_0)" in text
    assert "those that are: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K;" in text
    assert "llama-quantize" in text


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"expert_count": 8}, "it has experts, which are not supported"),
        ({"rope.scaling.type": "yarn"}, "rotations are scaled by 'yarn'"),
        ({"attention.head_count_kv": 3}, "2 heads of queries are no multiple of 3 of keys"),
        ({"rope.dimension_count": 7}, "7 numbers of a head of 16 are rotated"),
        ({"block_count": 2}, "tensor 'blk.1.attn_norm.weight' is missing"),
        ({"embedding_length": 64}, "has shape"),
        ({"block_count": 0}, "'llama.block_count' is 0"),
        ({"attention.head_count": "two"}, "'llama.attention.head_count' is 'two', no size"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "absurd"),
        ({"rope.freq_base": 0.0}, "absurd"),
    ],
)
def test_keys_that_do_not_fit_are_refused(tmp_path: Path, keys: dict[str, Any], match: str) -> None:
    path = files.write(tmp_path / "x.gguf", SMALL, keys=keys)
    with pytest.raises(ModelError, match=match):
        at.import_gguf(path)


@pytest.mark.parametrize("divisor", [0.0, float("nan")])
def test_rotations_that_are_no_numbers_are_refused(tmp_path: Path, divisor: float) -> None:
    of = replace(SMALL, divisors=True)
    tensors = files.weights(of) | {"rope_freqs.weight": np.full(of.head // 2, divisor, np.float32)}
    with pytest.raises(ModelError, match="angles are not all finite: 'rope_freqs.weight' is damaged"):
        at.import_gguf(files.write(tmp_path / "x.gguf", of, tensors))


def test_texts_are_short_and_have_no_controls(tmp_path: Path) -> None:
    file = read_gguf(files.write(tmp_path / "x.gguf", SMALL))
    of = hyperparameters(replace(file, keys={**file.keys, "general.name": "a\nb\x1b" + "x" * 100_000}))
    assert of.name == "a b " + "x" * 96
    with pytest.raises(ModelError, match="rotations are scaled by 'nnn") as told:
        hyperparameters(replace(file, keys={**file.keys, "llama.rope.scaling.type": "n" * 100_000}))
    assert len(str(told.value).removeprefix(file.label)) < 250


def test_one_of_several_files_is_refused(tmp_path: Path) -> None:
    path = files.write(tmp_path / "x.gguf", SMALL, whole_keys={"split.count": 2})
    with pytest.raises(ModelError, match="one of several files of a model; join them: llama-gguf-split"):
        at.import_gguf(path)


def test_a_tensor_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    tensors = {**files.weights(SMALL), "blk.0.attn_q_norm.weight": np.ones(16, np.float32)}
    path = files.write(tmp_path / "x.gguf", SMALL, tensors)
    with pytest.raises(ModelError, match=r"its architecture has no blk.0.attn_q_norm.weight"):
        at.import_gguf(path)


def test_long_vocabularies_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "MOST_KEPT", 4)
    file = read_gguf(files.write(tmp_path / "x.gguf", SMALL))
    assert file.keys["tokenizer.ggml.tokens"] == gguf_file.Skipped(8)
    assert len(file.tensors) == 12
