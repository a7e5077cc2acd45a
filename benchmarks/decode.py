"""Language models beside llama.cpp: tokens a second from a cache of some depth, and of a prompt.

    python benchmarks/decode.py [FILE.gguf ...] [--budget 0] [--depth 130,440] [--prefill 64] [--json FILE]

Needs the packages gguf and llama-cpp-python. Without files it writes those of `MODELS`, with random weights
in each of ``--weights``, to ``--folder``. Each file is tuned for ``--budget`` seconds, once for each dtype of
the cache. 10 s a task without it; 0: what the log has, and first picks. Then the model here and llama.cpp
take turns, each in its own process, with the same file, the same dtype of the cache, and as many threads.
With one thread, CPU time of the process: the best and the median of ``--rounds`` rounds. A round is the
median of 8 tokens, or one prompt.
Beside them a loop reads memory. "products" is the rate of all products with weights together inside of a
step, and "rest" the share of a step that is neither a product nor attention.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from suite import commit  # noqa: E402

import autotune as at  # noqa: E402
from autotune.models import decoding  # noqa: E402
from autotune.models.llama_cpp_peer import llama_cpp  # noqa: E402
from autotune.models.token_calls import TokenCalls  # noqa: E402


@dataclass(frozen=True)
class LlamaSizes:
    """Of a Llama."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    words: int = 32000


MODELS = {
    "hidden-1024": LlamaSizes(1024, 2816, 8, 16, 4),
    "hidden-2048": LlamaSizes(2048, 5632, 6, 32, 8),
}


def write_gguf(path: Path, name: str, s: LlamaSizes, weights: str) -> None:
    """Write a Llama with random weights. ``weights``: F32, F16, BF16, Q8_0 or Q4_0."""
    import gguf

    rng, kind = np.random.default_rng(0), gguf.GGMLQuantizationType[weights]
    file = gguf.GGUFWriter(str(path), "llama")
    file.add_name(f"{name}-{weights}")
    file.add_context_length(4096)
    file.add_embedding_length(s.hidden)
    file.add_block_count(s.layers)
    file.add_feed_forward_length(s.inner)
    file.add_head_count(s.heads)
    file.add_head_count_kv(s.kv_heads)
    file.add_vocab_size(s.words)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(10000.0)
    file.add_rope_dimension_count(s.hidden // s.heads)
    file.add_file_type(int(gguf.LlamaFileType[f"MOSTLY_{weights}" if weights != "F32" else "ALL_F32"]))
    file.add_tokenizer_model("no_vocab")

    def matrix(name: str, rows: int, columns: int, scale: float = 0.02) -> None:
        w = rng.standard_normal((rows, columns), np.float32) * np.float32(scale)
        if weights == "F32":
            file.add_tensor(f"{name}.weight", w)
        else:
            file.add_tensor(f"{name}.weight", gguf.quants.quantize(w, kind), raw_dtype=kind)

    def ones(name: str) -> None:
        file.add_tensor(f"{name}.weight", np.ones(s.hidden, np.float32))

    kv = s.hidden // s.heads * s.kv_heads
    matrix("token_embd", s.words, s.hidden, 0.05)
    ones("output_norm")
    matrix("output", s.words, s.hidden, 0.05)
    for i in range(s.layers):
        ones(f"blk.{i}.attn_norm")
        ones(f"blk.{i}.ffn_norm")
        for part, rows, columns in (
            ("attn_q", s.hidden, s.hidden), ("attn_k", kv, s.hidden), ("attn_v", kv, s.hidden),
            ("attn_output", s.hidden, s.hidden), ("ffn_gate", s.inner, s.hidden),
            ("ffn_up", s.inner, s.hidden), ("ffn_down", s.hidden, s.inner),
        ):  # fmt: skip
            matrix(f"blk.{i}.{part}", rows, columns)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def compiled(path: Path, cache: str, o: argparse.Namespace) -> at.Module:
    """The tuned model of a file."""
    model = at.import_gguf(path, context=o.context, rows=o.rows, cache=cache)
    if not model.own_sizes and o.rows > 1:
        model = model.with_own_sizes(rows=1)
    if o.budget != 0:
        at.tune_model(model, threads=o.threads, budget_s=o.budget, db=o.db)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if o.budget == 0 else "default")  # kernels that are not tuned
        return at.compile_model(model, threads=o.threads, db=o.db, fallback=True)


def measured(path: Path, cache: str, o: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row of each task."""
    net = compiled(path, cache, o)
    calls, contender = TokenCalls(net), decoding.ModuleContender(net, "autotune")
    tasks = [decoding.prefill(o.prefill), *map(decoding.decode, o.depth)]
    with llama_cpp(str(path), o.threads, o.context, cache) as peer:
        apart = decoding.apart(contender, peer, o.prefill, calls.vocabulary)
        for task in tasks:
            how = {"seconds": 0.0, "least": o.rounds, "settle_s": 0.0 if o.threads == 1 else 0.15}
            times = decoding.compare([contender, peer], task, calls.vocabulary, net.target, **how)
            limit = max(times.limits)
            row: dict[str, Any] = {
                "file": path.stem, "cache": cache, "threads": o.threads, "tokens": task.rows,
                "depth": task.depth, "rounds": o.rounds, "read_gb_s": limit * 1e-9,
                "clock": "cpu" if times.by_cpu else "wall", "logits_apart": apart, "commit": commit(),
            }  # fmt: skip
            for name in ("autotune", "llama.cpp"):
                row |= {f"{name}_best_s": times.best_s(name), f"{name}_wall_s": times.wall_s(name)}
                row[f"{name}_median_s"] = times.comparison.time_s(name)
            row["ratio_best"] = row["llama.cpp_best_s"] / row["autotune_best_s"]
            row["ratio_median"] = times.comparison.ratio("autotune", "llama.cpp")
            if task.depth:
                shares = decoding.step_shares(net, calls, task.depth, contender.state)
                row |= {"products_gb_s": shares.product_rate * 1e-9, "weights": shares.weights}
                row["products_share_of_read"] = shares.product_rate / limit
                row["shares"] = {kind: shares.share(kind) for kind in shares.seconds}
            yield row


def shown(r: dict[str, Any]) -> str:
    """A row of the table."""
    what = f"decode after {r['depth']}" if r["depth"] else f"prefill of {r['tokens']}"
    cells = [r["file"], r["cache"], what]
    cells += [f"{r[f'{name}_best_s'] * 1e3:.2f} / {r[f'{name}_median_s'] * 1e3:.2f}" for name in NAMES]
    cells += [f"{r['ratio_best']:.2f} / {r['ratio_median']:.2f}"]
    if r["depth"]:
        cells += [f"{r['products_gb_s']:.1f} ({r['products_share_of_read']:.2f} of {r['read_gb_s']:.1f})"]
        cells += [f"{r['shares']['attention']:.1%}", f"{r['shares']['other']:.1%}"]
    else:
        cells += ["", "", ""]
    return f"| {' | '.join(cells)} |"


NAMES = ("autotune", "llama.cpp")
HEADS = (
    "file", "cache", "", "autotune, ms best / median", "llama.cpp", "×", "products, GB/s",
    "attention", "rest",
)  # fmt: skip


def files(o: argparse.Namespace) -> list[Path]:
    """The files that are given, or those of random weights, which are written where they are missing."""
    if o.files:
        return list(o.files)
    o.folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name, sizes in MODELS.items():
        for weights in o.weights:
            found.append(path := o.folder / f"{name}-{weights}.gguf")
            if not path.exists():
                write_gguf(path, name, sizes, weights)
    return found


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def main(argv: Sequence[str] | None = None) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.gguf")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "decode-models")
    parser.add_argument("--weights", type=lambda t: t.split(","), default=["F32", "Q8_0", "Q4_0"])
    parser.add_argument("--cache", type=lambda t: t.split(","), default=["float32", "float16"])
    parser.add_argument("--depth", type=numbers, default=[130, 440])
    parser.add_argument("--prefill", type=int, default=64)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rows", type=int, default=64, help="tokens of a call at most")
    parser.add_argument("--budget", type=float, help="seconds of tuning of a file; 0: none")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--db", default=None, help="the tuning log")
    parser.add_argument("--json", type=Path)
    o = parser.parse_args(argv)
    found = []
    print(f"| {' | '.join(HEADS)} |")
    print("|---" * len(HEADS) + "|")
    for path in files(o):
        for cache in o.cache:
            for row in measured(path, cache, o):
                found.append(row)
                print(shown(row), flush=True)
                if o.json:
                    o.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
