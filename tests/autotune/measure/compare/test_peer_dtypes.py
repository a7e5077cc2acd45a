"""Peers on arrays of dtypes that their library reads in a way of its own."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from needs import imported

from autotune.measure.compare.bench import agree, arrays_for
from autotune.measure.compare.peers import PeerError, peer
from schedules import ops
from schedules.dtypes import DTYPES


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("dtype", "more"),
    [
        ("bfloat16", {}),
        ("float16", {}),
        ("float8_e5m2", {}),
        ("int8", {"out_dtype": "int32"}),
        ("int8", {"transpose_b": 1, "out_dtype": "int32"}),
    ],
)
def test_a_product_agrees_with_the_reference(name: str, dtype: str, more: dict[str, Any]) -> None:
    imported(name)
    workload = ops.workload("matmul", {"m": 8, "n": 16, "k": 24, **more}, dtype)
    inputs, outputs = arrays_for(workload, 0)
    with peer(name).prepare(workload, inputs, outputs, 1) as prepared:
        prepared.call()
        agree(workload, name, prepared.result(), ops.reference(workload, inputs))


def test_integers_beyond_int8_are_added_up_by_both() -> None:
    imported("torch")
    workload = ops.workload("matmul", {"m": 8, "n": 16, "k": 24, "out_dtype": "int32"}, "int8")
    a, b = np.full((8, 24), 100, "int8"), np.full((24, 16), 100, "int8")
    for name in ("numpy", "torch"):
        with peer(name).prepare(workload, [a, b], [np.zeros((8, 16), "int32")], 1) as prepared:
            prepared.call()
            assert (prepared.result()[0] == 240000).all()


def test_what_torch_lacks_in_a_dtype_is_refused() -> None:
    imported("torch")
    workload = ops.workload("matmul", {"m": 8, "n": 16, "k": 24, "out_dtype": "float32"}, "int8")
    inputs, outputs = arrays_for(workload, 0)
    with pytest.raises(PeerError, match=r"torch has no 'matmul' of these dtypes: .*; leave torch out"):
        with peer("torch").prepare(workload, inputs, outputs, 1):
            pass


def test_what_onnxruntime_lacks_in_a_dtype_is_refused_with_the_dtype() -> None:
    imported("onnxruntime")
    workload = ops.workload("matmul", {"m": 8, "n": 16, "k": 24}, "bfloat16")
    inputs, outputs = arrays_for(workload, 0)
    with pytest.raises(PeerError, match="no peer for 'matmul' of bfloat16"):
        with peer("onnxruntime").prepare(workload, inputs, outputs, 1):
            pass


@pytest.mark.parametrize("out", [False, True])
def test_torch_adds_bytes_up_in_int32_with_and_without_an_output(out: bool) -> None:
    torch = imported("torch")
    from autotune.measure.compare.peers.with_torch import operator

    a = torch.full((24, 24), 100, dtype=torch.int8)
    place = torch.zeros((24, 24), dtype=torch.int32) if out else None
    found = operator("matmul")({"out_dtype": "int32"}, [a, a], place)()
    assert found.dtype == torch.int32 and bool((found == 240000).all())


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "float8_e5m2"])
def test_torch_reads_arrays_that_came_from_another_process(dtype: str) -> None:
    imported("torch")
    from autotune.measure.compare.peers.with_torch import array, tensor

    sent = np.arange(6).astype(DTYPES[dtype].numpy)
    arrived = pickle.loads(pickle.dumps(sent))  # its dtype is another object: numpy calls it not built in
    assert (array(tensor(arrived)) == sent).all()
