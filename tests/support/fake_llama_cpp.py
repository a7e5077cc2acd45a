"""A package ``llama_cpp`` of Python, in a folder: its functions of C as the peer calls them, for the model of
`word_models`."""

from __future__ import annotations

from pathlib import Path

SOURCE = """
import ctypes, json, os, pathlib
import numpy as np

_base_path = os.path.dirname(__file__)
_lib = None
llama_token = ctypes.c_int32
seen = {}
words = out = None
kept = []

def llama_log_callback(f): return f
def llama_log_set(f, data): pass
def llama_backend_init(): pass
class Params: pass
llama_model_default_params = llama_context_default_params = Params

def llama_model_load_from_file(path, how):
    global words, out
    if b"refused" in path: return None
    assert how.n_gpu_layers == 0
    words, out = (np.array(x, np.float32) for x in json.loads(pathlib.Path(os.fsdecode(path)).read_text()))
    return "model"

def llama_init_from_model(model, told):
    if told.type_k != told.type_v or told.n_threads != told.n_threads_batch: return None
    seen["context"] = told.n_ctx
    return None if told.n_ctx > 99 else "context"

def llama_get_memory(context): return kept
def llama_model_get_vocab(model): return "vocab"
def llama_vocab_n_tokens(vocab): return len(out)

def llama_memory_seq_rm(memory, sequence, start, end):
    assert (sequence, end) == (0, -1)
    del memory[start:]

def llama_batch_get_one(tokens, n): return list(tokens)[:n]

def llama_decode(context, batch):
    if len(kept) + len(batch) > seen["context"]: return 1
    if 9 in batch and "DIES" in os.environ: os._exit(3)
    kept.extend(batch)
    return 0

def llama_get_logits_ith(context, n):
    weight = (np.arange(len(kept)) * 2 % 7)[:, None]
    found = out @ (words[np.array(kept)] * weight).sum(0)
    seen["logits"] = (ctypes.c_float * len(found))(*found)
    return ctypes.cast(seen["logits"], ctypes.POINTER(ctypes.c_float))
"""


def install(folder: Path) -> None:
    """Write the package there."""
    package = folder / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text("from .llama_cpp import *\n")
    (package / "llama_cpp.py").write_text(SOURCE)
