"""The networks of the benchmarks, small: exported by torch, imported, and compared with ONNX Runtime."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from graph_meaning import evaluate
from needs import imported

import autotune as at

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

imported("torch")
imported("onnx")
runtime = imported("onnxruntime")

import networks  # noqa: E402


@pytest.mark.fast("vit", "mobilenet_v2")
@pytest.mark.parametrize("name", networks.NETWORKS)
def test_a_small_network_is_what_onnx_runtime_computes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about its older exporter
        given = [x.numpy() for x in networks.export(name, path, **networks.SMALL[name])]
    model = at.import_onnx(path)
    assert not model.graph.islands
    (got,) = evaluate(model.graph, given)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (want,) = session.run(None, dict(zip((p.name for p in model.inputs), given, strict=True)))
    assert np.abs(got - want).max() <= 1e-5 * np.sqrt(np.mean(want**2))
