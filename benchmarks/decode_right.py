"""Whether language models of GGUF files compute what they say: large ones, as they are tuned on this machine.

    python benchmarks/decode_right.py FILE.gguf [--context 512] [--rows 64] [--db LOG] [--threads 1]

Needs the package gguf. The reference is numpy in float64, with the weights as the file rounds them. Kernels
are those of the log, and first picks. A line for each check; the exit status is 1 if one fails.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import gguf_models  # noqa: E402
import numpy as np  # noqa: E402

import autotune as at  # noqa: E402
from autotune.models.gguf_file import read_gguf  # noqa: E402
from autotune.models.gguf_hyperparameters import hyperparameters  # noqa: E402

FIRST, TOKENS, PROMPT, PIECES, FORCED = 5, 64, 64, (37, 27), 32
MOST_ERROR, LEAD = 0.03, 4.0  # rms of logits over their deviation; leads over the error that must hold


def sizes_of(path: Path) -> gguf_models.Sizes:
    """The sizes of a file, as the reference takes them."""
    of = hyperparameters(read_gguf(path))
    tensors = read_gguf(path).tensors
    return gguf_models.Sizes(
        of.hidden, of.feed_forward, of.layers, of.heads, of.kv_heads, tensors["token_embd.weight"].shape[0],
        "blk.0.attn_q.bias" in tensors, "output.weight" not in tensors, of.neighbours,
        "rope_freqs.weight" in tensors, of.base, of.context,
    )  # fmt: skip


def greedy(net: Any, prompt: Sequence[int], n: int, rows: int = 1, state: Any = None) -> list[int]:
    """``n`` tokens after a prompt, which is read ``rows`` at a time."""
    state = net.new_state() if state is None else state
    for begin in range(0, len(prompt), rows):
        part = np.array(prompt[begin : begin + rows])
        y = net(part, begin, state=state)
    found = [int(np.argmax(y))]
    for place in range(len(prompt), len(prompt) + n - 1):
        found.append(int(np.argmax(net(np.array(found[-1:]), place, state=state))))
    return found


def piecewise(net: Any, tokens: Sequence[int], pieces: Sequence[int], state: Any = None) -> Any:
    """The logits after all tokens, which are given in pieces."""
    state, begin = state or net.new_state(), 0
    for n in pieces:
        y = net(np.array(tokens[begin : begin + n]), begin, state=state)
        begin += n
    return np.asarray(y)


def relative(x: Any, y: Any) -> float:
    """The rms of a difference, over the deviation of ``y``."""
    return float(np.sqrt(((x - y) ** 2).mean()) / y.std())


def checks(net: Any, path: Path, vocabulary: int) -> Iterator[tuple[str, bool, str]]:
    """(What is checked, whether it holds, figures)."""
    of, exact = sizes_of(path), read_gguf(path).tensors["blk.0.attn_q.weight"].type == "F32"
    w = gguf_models.rounded(of, path)
    prompt = np.random.default_rng(0).integers(0, vocabulary, PROMPT).tolist()
    made = greedy(net, [FIRST], TOKENS)
    if exact:
        want = gguf_models.logits(of, w, [FIRST, *made[:-1]]).argmax(-1).tolist()
        yield "greedy tokens from an empty state", made == want, f"{made[:8]} ..."
        after = greedy(net, prompt, TOKENS, PROMPT)
        want = gguf_models.logits(of, w, [*prompt, *after[:-1]])[PROMPT - 1 :].argmax(-1).tolist()
        yield "greedy tokens after a prompt", after == want, f"{after[:8]} ..."
    tokens = [FIRST, *made[: FORCED - 1]]
    state = net.new_state()
    got = np.array([net(np.array([t]), n, state=state) for n, t in enumerate(tokens)], np.float64)
    want = gguf_models.logits(of, w, tokens)
    error = relative(got, want)
    top = np.sort(want, axis=-1)
    clear = top[:, -1] - top[:, -2] > LEAD * error * want.std()
    same = got.argmax(-1) == want.argmax(-1)
    told = f"rms error {error:.4f} of the deviation, the same largest {same.sum()} of {len(tokens)}"
    yield "logits beside float64", bool(error <= MOST_ERROR and same[clear].all()), told
    each = [piecewise(net, prompt, p) for p in ((PROMPT,), PIECES, (1,) * PROMPT)]
    apart = max(map(relative, each, each[:1] * 3))
    most = 1e-5 if exact else 2 * MOST_ERROR  # codes of activations may differ by one
    yield "a prompt in one piece, in two, by tokens", bool(apart <= most), f"{apart:.2g} of the deviation"
    state = net.new_state()
    piecewise(net, prompt, (PROMPT,), state)
    other = [*prompt[:20], *prompt[40:60]]
    again = np.asarray(net(np.array(other[20:]), 20, state=state))
    new = piecewise(net, other, (20, 20))
    apart = relative(again, new)
    yield "going back to row 20", bool(apart <= most), f"{apart:.2g} of the deviation"
    dirty = net.new_state()
    for a in dirty.values():
        a[...] = np.nan
    same_bits = np.array_equal(piecewise(net, prompt, PIECES, dirty), piecewise(net, prompt, PIECES))
    yield "rows of NaN that are not valid", same_bits, "the same bits"
    every = [[(t + k) % vocabulary for t in prompt[:16]] for k in range(2)]
    alone = [greedy(net, p, 16, 16) for p in every]
    found: dict[int, list[int]] = {}
    threads = [Thread(target=lambda k=k: found.update({k: greedy(net, every[k], 16, 16)})) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    yield "two states in two threads", [found[0], found[1]] == alone, ""


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rows", type=int, default=PROMPT)
    parser.add_argument("--cache", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--db")
    options = parser.parse_args()
    failed = False
    for path in options.files:
        model = at.import_gguf(path, options.context, options.rows, options.cache)
        vocabulary = model.outputs[0].shape[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = at.compile_model(model, threads=options.threads, db=options.db, fallback=True)
        for what, holds, told in checks(net, path, vocabulary):
            failed |= not holds
            print(f"{path.name}: {what}: {'right' if holds else 'WRONG'} {told}".rstrip(), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
