"""Language models of transformers, exported with their static cache: right at every number of rows, and read
by valid rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from needs import imported
from state_models import static_cache, untuned

import autotune as at
from schedules.graph.optimize import optimize
from schedules.graph.valid_rows import read_whole

torch = imported("torch")
pytestmark = pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")


def exported(module: Any, how: dict[str, Any], rows: int | None) -> Any:
    dims = None
    if rows is None:
        n = torch.export.Dim("rows", min=1, max=8)
        dims = {"input_ids": {1: n}, "cache_position": {0: n}}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return at.import_torch(torch.export.export(module, (), how, strict=True, dynamic_shapes=dims))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "attention", "rows"),
    [("Llama", "sdpa", None), ("Llama", "eager", None), ("Qwen2", "eager", 1), ("Qwen2", "sdpa", 8)],
)
def test_a_static_cache_is_written_in_place_and_read_by_valid_rows(
    architecture: str, attention: str, rows: int | None
) -> None:
    """Rows behind the last valid one are NaN at every call."""
    module, how = static_cache(architecture, attention, rows, 1024)
    model = exported(module, how, rows)
    graph = optimize(model.graph)
    assert read_whole(graph) == {} and [(s.least, s.most) for s in graph.short] == [(rows or 1, 1024)]
    net, position = untuned(model), 0
    assert net.program.outline.root(graph.states["key_cache_0"].new) == "key_cache_0"
    with torch.no_grad():
        for n in (3, 8, 1, 1, 5) if rows is None else (rows,) * 3:
            for name, x in net.state.items():
                if "cache" in name:
                    x[:, :, position:] = np.nan
            call = {
                "input_ids": torch.randint(0, 256, (1, n)),
                "cache_position": torch.arange(position, position + n),
            }
            torch.testing.assert_close(net(**call), module(**call), rtol=1e-4, atol=1e-5)
            position += n


@pytest.mark.slow
def test_a_model_of_bfloat16_keeps_its_cache_so() -> None:
    module, how = static_cache("Llama", "eager", None, 32, "bfloat16")
    model = exported(module, how, None)
    assert read_whole(optimize(model.graph)) == {}
    net, position = untuned(model), 0
    assert {str(x.dtype) for n, x in net.state.items() if "cache" in n} == {"bfloat16"}
    ol = net.program.outline
    assert {t.dtype for n in ol.constants if (t := ol.tensors[n]).nbytes > 4096} == {"bfloat16"}
    with torch.no_grad():
        for n in (5, 1, 1):
            call = {
                "input_ids": torch.randint(0, 256, (1, n)),
                "cache_position": torch.arange(position, position + n),
            }
            torch.testing.assert_close(net(**call).float(), module(**call).float(), rtol=0.02, atol=0.02)
            position += n


@pytest.mark.slow
def test_tokens_of_a_model_of_transformers() -> None:
    """The same tokens as torch makes, of one module that takes 1 to 8."""
    module, how = static_cache("Qwen2", "sdpa", None)
    net = untuned(exported(module, how, None))
    prompt = [5, 17, 3, 200, 4, 9, 11, 30, 2, 77, 1]
    made = at.generate(net, prompt, 12)
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(12):
            given = torch.tensor([tokens[:8]]), torch.tensor([tokens[8:]])
            module(input_ids=given[0], cache_position=torch.arange(8))
            logits = module(input_ids=given[1], cache_position=torch.arange(8, len(tokens)))
            tokens.append(int(logits[0, -1].argmax()))
    assert list(made) == tokens[len(prompt) :]
