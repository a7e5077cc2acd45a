"""Linear layers that torchao quantised: imported as products with weights of few bits, which stay so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from needs import imported
from state_models import untuned

import autotune as at

torch, torchao = imported("torch"), imported("torchao")
quantization = pytest.importorskip("torchao.quantization")
DEPTH, ROWS, GROUP = 256, 320, 32


def config(name: str, **more: Any) -> Callable[[], Any]:
    def make() -> Any:
        from torchao.quantization.granularity import PerGroup

        values = {k: PerGroup(GROUP) if v == "groups" else v for k, v in more.items()}
        return getattr(quantization, name)(**values)

    return make


# {name: (its configuration, the dtype of the module, that of the weights in memory)}.
CASES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "int8": (config("Int8WeightOnlyConfig"), "float32", "int8"),
    "int8 in groups": (config("Int8WeightOnlyConfig", granularity="groups"), "float32", "int8"),
    "int8 beside bfloat16": (config("Int8WeightOnlyConfig"), "bfloat16", "int8"),
    "int8, dynamic activations": (config("Int8DynamicActivationInt8WeightConfig"), "float32", "int8"),
    "int4": (
        config("IntxWeightOnlyConfig", weight_dtype=torch.int4, granularity="groups"), "float32", "uint8",
    ),
    "int4, dynamic activations": (
        config("Int8DynamicActivationIntxWeightConfig", weight_dtype=torch.int4, weight_granularity="groups"),
        "float32", "uint8",
    ),
}  # fmt: skip


def quantised(case: str) -> tuple[Any, Any, Any]:
    """(the module, what is imported of it, an input)."""
    make, dtype, _ = CASES[case]
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(DEPTH, ROWS)).eval().to(getattr(torch, dtype))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        quantization.quantize_(module, make())
        x = torch.randn(3, DEPTH, dtype=getattr(torch, dtype))
        return module, at.import_torch(torch.export.export(module, (x,), strict=True)), x


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_weights_stay_codes_and_results_are_those_of_torch(case: str) -> None:
    module, model, x = quantised(case)
    net = untuned(model)
    with torch.no_grad():
        torch.testing.assert_close(net(x), module(x), rtol=1e-4, atol=1e-5)
    ol = net.program.outline
    large = [t for n in ol.constants if (t := ol.tensors[n]).nbytes > ROWS * DEPTH // GROUP * 4]
    stored = CASES[case][2]
    assert [(t.dtype, t.nbytes) for t in large] == [(stored, ROWS * DEPTH // (2 if stored == "uint8" else 1))]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["int8 in groups", "int4"])
def test_activations_may_be_rounded_for_such_weights(case: str) -> None:
    module, model, x = quantised(case)
    small = at.quantize(model, weights=None, activations="int8")
    net = untuned(small)
    integers = [w for w in net.program.outline.tasks if "int8" in [t.dtype for t in w.dag.inputs]]
    assert len(integers) == 1 and not any(t.shape[-1:] == (DEPTH,) for t in integers[0].dag.inputs)
    with torch.no_grad():
        want = module(x).numpy()
    error = np.asarray(net(x)) - want
    assert np.sqrt((error**2).mean()) < 0.01 * want.std()
