"""Language models on the command line: tokens, and how fast they are made; models of open sizes at some."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cli_runner import run
from model_cases import model_of
from open_graphs import size
from state_models import StateBuilder, untuned
from word_models import LENGTH, WORDS, greedy_after, logits_after, word_model, word_net

import autotune as at
from autotune.cli import bench_language, models
from autotune.errors import KernelNotFound
from autotune.measure.compare import bench as comparing
from autotune.models import compiling, decoding, generation, llama_cpp_peer, onnxruntime_peer
from autotune.models.decoding import Spent

te = at.te


class Memory:
    """Memory that is read at a gigabyte a second."""

    def __init__(self, *told: Any, **how: Any) -> None: ...

    def bytes_a_second(self) -> float:
        return 1e9


class Peer:
    """A contender that gives the logits of the model, and takes a second a call."""

    name, tells_cpu = "llama.cpp", True

    def __init__(self, seconds: float) -> None:
        self.seconds, self.words = seconds, list[int]()
        self.logits = np.zeros(WORDS, np.float32)

    def run(self, calls: Any) -> list[Spent]:
        for tokens, position in calls:
            self.words = [*self.words[:position], *map(int, tokens)]
        self.logits = logits_after(self.words).astype(np.float32)
        return [Spent(self.seconds, self.seconds)] * len(calls)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What llama.cpp and the compiler were asked for. Files have the model of words."""
    seen: list[Any] = []

    @contextmanager
    def peer(*told: Any) -> Iterator[Peer]:
        seen.append(told)
        yield Peer(1.0)

    def compiled(model: Any, **how: Any) -> Any:
        seen.append(how)
        return word_net(1, 4)

    monkeypatch.setattr(models, "model_of", lambda o: word_model(at.dim(1, 4, "rows")))
    monkeypatch.setattr(compiling, "compile_model", compiled)
    monkeypatch.setattr(llama_cpp_peer, "llama_cpp", peer)
    monkeypatch.setattr(decoding, "MemoryLoop", Memory)
    return seen


SHORT = ("--depth", "2,3", "--prefill", 3, "--duration", "1ms", "--threads", 1)


def test_bench_times_a_prompt_and_tokens_after_others(asked: list[Any]) -> None:
    ran = run("bench", "x.gguf", *SHORT, "--against", "llama.cpp", "--cache", "float16", "--json")
    assert ran.status == 0 and asked[1] == ("x.gguf", 1, LENGTH, "float16")
    made = ran.json
    assert (made["cache"], made["context"], made["clock"], made["logits_apart"]) == ("float16", 12, "cpu", 0)
    whats = [(t["what"], t["tokens"], t["depth"]) for t in made["tasks"]]
    assert whats == [("prefill", 3, 0), ("decode", 1, 2), ("decode", 1, 3)]
    for task in made["tasks"]:
        ours, theirs = task["rows"]
        assert (ours["impl"], theirs["impl"]) == ("autotune", "llama.cpp")
        assert theirs["tokens_a_second"] == task["tokens"] and theirs["wall_s"] == 1.0
        assert theirs["bytes_a_second"] == task["bytes"]
        assert theirs["share_of_read_bandwidth"] == pytest.approx(task["bytes"] / 1e9)
        assert task["ratio"]["llama.cpp"] > 1 and task["rounds"] >= 5
    assert set(made["tasks"][1]["shares"]) == {"products", "attention", "other"}
    assert "shares" not in made["tasks"][0]


def test_bench_says_it_in_words(asked: list[Any]) -> None:
    ran = run("bench", "x.gguf", *SHORT, "--against", "llama.cpp", "--must-beat", "llama.cpp")
    assert ran.status == 0
    for said in ("prefill of 3", "decode after 2", "tokens/s", "CPU time", "of memory", "steps: products",
                 "times as fast as llama.cpp", "cache float32, 1 thread", "1.0 GB/s at which"):  # fmt: skip
        assert said in ran.out
    alone = run("bench", "x.gguf", *SHORT)
    assert alone.status == 0 and "llama.cpp" not in alone.out


def test_bench_fails_where_a_peer_is_faster(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def peer(*told: Any) -> Iterator[Peer]:
        yield Peer(1e-9)

    monkeypatch.setattr(llama_cpp_peer, "llama_cpp", peer)
    ran = run("bench", "x.gguf", *SHORT, "--against", "llama.cpp", "--must-beat", "llama.cpp")
    assert ran.status == 1 and "times as fast as the tuned model" in ran.out


def test_what_does_not_go_together_is_refused(asked: list[Any]) -> None:
    for words, said in (
        (("x.gguf", "--depth", "9", "--prefill", "3"), "need room for 17 tokens, and the cache has it"),
        (("x.gguf", "--against", "torch"), "torch does not run files of GGUF; compare with"),
        (("x.gguf", "--depth", "a"), "--depth 'a': write numbers"),
        (("x.gguf", "--cache", "int8"), "--cache 'int8' is not one of float32, float16, bfloat16"),
        (("x.gguf", "--sizes", "3"), "--sizes does not go with a model"),
        (("net.onnx", "--depth", "3"), "--depth goes with a file of GGUF alone"),
        (("net.onnx", "--against", "llama.cpp"), "llama.cpp does not go with net.onnx: it runs"),
    ):
        ran = run("bench", *words)
        assert ran.status == 2 and said in ran.err, ran


def test_sizes_of_files_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def import_gguf(path: str, **how: Any) -> Any:
        seen.append((path, how))
        raise at.ModelError("far enough")

    gguf = pytest.importorskip("autotune.models.gguf_import")
    monkeypatch.setattr(gguf, "import_gguf", import_gguf)
    for command in ("tune", "bench", "explain", "ops"):
        ran = run(command, "x.gguf", "--shape", "context=64,rows=8", "--cache", "float16")
        assert ran.status == 2 and "far enough" in ran.err
    assert seen == [("x.gguf", {"cache": "float16", "activations": "int8", "context": 64, "rows": 8})] * 4
    run("tune", "X.GGUF", "--activations", "none")
    assert seen[-1] == ("X.GGUF", {"cache": "float32", "activations": None})
    for shape in ("rows=1..4", "batch=3"):
        ran = run("tune", "x.gguf", "--shape", shape)
        assert ran.status == 2 and "it has context and rows, as numbers" in ran.err
    for words in (("tune", "net.onnx"), ("tune", "matmul", "--shape", "m=8,n=8,k=8"), ("explain", "matmul")):
        ran = run(*words, "--cache", "float16")
        assert ran.status == 2 and "--cache goes with a file of GGUF alone" in ran.err


def test_a_report_compares_files_of_onnx_alone() -> None:
    ran = run("report", "x.gguf", "--against", "onnxruntime")
    assert ran.status == 2 and "--against does not run files of GGUF" in ran.err


def test_generate_prints_each_token(asked: list[Any]) -> None:
    wanted = greedy_after([5, 3], 4)
    ran = run("generate", "x.gguf", "--tokens", "5,3", "--n", 4, "--threads", 1)
    assert ran.status == 0 and ran.out.split() == [str(t) for t in wanted]
    assert asked[-1]["threads"] == 1 and asked[-1]["fallback"] is False
    made = run("generate", "x.gguf", "--tokens", "5, 3", "--n", 4, "--json", "--fallback").json
    assert (made["prompt"], made["tokens"]) == ([5, 3], wanted) and made["first_s"] > 0
    assert asked[-1]["fallback"] is True
    stopped = run("generate", "x.gguf", "--tokens", "5,3", "--n", 4, "--stop", wanted[1]).out.split()
    assert stopped == [str(t) for t in wanted[: wanted.index(wanted[1]) + 1]]


def test_generate_says_which_command_tunes(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(*told: Any, **how: Any) -> Any:
        said = "1 of 2 tasks run kernels that are not tuned:\n  x\ntune them: autotune.tune_model(model)"
        warnings.warn(said, stacklevel=2)
        return word_net(1, 4)

    monkeypatch.setattr(compiling, "compile_model", warned)
    ran = run("generate", "x.gguf", "--tokens", "5,3", "--n", 1, "--threads", 1, "--fallback")
    assert ran.out.split() == [str(t) for t in greedy_after([5, 3], 1)]
    assert ran.err.splitlines() == [
        "autotune: 1 of 2 tasks run kernels that are not tuned:", "  x",
        "tune them: autotune tune x.gguf --threads 1",
    ]  # fmt: skip


def test_generate_reads_tokens_of_another_program(asked: list[Any]) -> None:
    from typer.testing import CliRunner

    from autotune.cli.app import app

    ran = CliRunner().invoke(app, ["generate", "x.gguf", "--tokens", "-", "--n", "2"], input="5 3\n")
    assert ran.stdout.split() == [str(t) for t in greedy_after([5, 3], 2)]


def test_generate_says_what_is_wrong(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for words, said in (
        (("x.gguf", "--tokens", "5,x"), "--tokens '5,x': write numbers with commas between them"),
        (("x.gguf", "--tokens", "99"), "token 99 at place 0 is outside of the vocabulary"),
        (
            ("x.gguf", "--tokens", "1", "--n", "13"),
            "1 token is given, and 13 to make; the state of words has room for 12",
        ),
        (("net.onnx", "--tokens", "1"), "net.onnx is no language model"),
    ):
        ran = run("generate", *words)
        assert ran.status == 2 and said in ran.err, ran

    def missing(*told: Any, **how: Any) -> Any:
        raise KernelNotFound("2 of 2 tasks have no tuned kernel")

    monkeypatch.setattr(compiling, "compile_model", missing)
    for words in (("--tokens", "99"), ("--tokens", "1", "--n", "13")):  # which is known before compiling
        assert run("generate", "x.gguf", *words).status == 2
    words = ("x.gguf", "--shape", "rows=8", "--cache", "float16", "--threads", 1)
    for command in (("generate", "--tokens", "1", "--n", "2"), ("bench", *SHORT[:4])):
        ran = run(command[0], *words, *command[1:])
        assert ran.status == 1, ran
        assert "tune them: autotune tune x.gguf --shape rows=8 --cache float16 --threads 1" in ran.err


def test_an_interrupt_ends_with_its_status(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*told: Any, **how: Any) -> Iterator[int]:
        yield 7
        raise KeyboardInterrupt

    monkeypatch.setattr(generation, "stream_tokens", interrupted)
    ran = run("generate", "x.gguf", "--tokens", "1", "--n", "2")
    assert (ran.status, ran.out) == (130, "7\n")


def test_open_models_are_compared_at_some_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    b = StateBuilder()
    n = size(1, 64, "seq")
    x = b.input("x", n, 4)
    model = model_of(b.graph(te.compute((n, 4), lambda i, j: x[i, j] + 1.0, "y")))
    net = untuned(model)
    monkeypatch.setattr(models, "model_of", lambda o: model)
    monkeypatch.setattr(compiling, "compile_model", lambda *told, **how: net)
    monkeypatch.setattr(
        onnxruntime_peer, "onnxruntime_call", lambda path, module, inputs: lambda: [inputs[0] + np.float32(1)]
    )
    monkeypatch.setattr(comparing, "SAMPLE_S", 1e-4)
    ran = run("bench", "net.onnx", "--sizes", "3,64", "--duration", "1ms", "--json")
    assert ran.status == 0 and [s["size"] for s in ran.json["sizes"]] == [{"seq": 3}, {"seq": 64}]
    assert [s["rows"][1]["impl"] for s in ran.json["sizes"]] == ["onnxruntime"] * 2
    assert ran.json["ratio"]["onnxruntime"] > 0
    text = run("bench", "net.onnx", "--duration", "1ms").out
    assert "net seq=64" in text and "Over" in text and "sizes" in text
    ran = run("bench", "net.onnx", "--sizes", "65")
    assert ran.status == 2 and "65 is outside" in ran.err


def test_help_has_examples() -> None:
    for command in ("generate", "bench", "tune", "explain"):
        assert "x.gguf" in run(command, "--help").out
    assert bench_language.PEER == "llama.cpp"
