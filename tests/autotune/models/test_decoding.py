"""How fast language models are: what is timed, in which turns, and what is said to be read."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_llama_cpp
import numpy as np
import pytest
from state_models import untuned
from word_models import LENGTH, WIDTH, WORDS, greedy_after, logits_after, word_model, word_net

import autotune as at
from autotune.backends import parse
from autotune.measure.compare.bench import DisagreementError
from autotune.measure.compare.peers import PeerError
from autotune.models import decoding, llama_cpp_peer
from autotune.models.decoding import ModuleContender, Spent
from autotune.models.llama_cpp_peer import llama_cpp
from autotune.models.module import Module
from autotune.models.own_programs import OwnProgram
from autotune.models.token_calls import TokenCalls


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the package reads, which is installed."""
    fake_llama_cpp.install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    values = word_model().graph.values
    made = tmp_path / "x.gguf"
    made.write_text(json.dumps([values["words"].tolist(), values["out"].tolist()]))
    yield made
    for name in [n for n in sys.modules if n.partition(".")[0] == "llama_cpp"]:
        del sys.modules[name]


class Scripted:
    """A contender that notes its calls, and takes what it is told."""

    def __init__(self, name: str, *took: float) -> None:
        self.name, self.took, self.seen, self.tells_cpu = name, took, [], True
        self.logits = np.zeros(3, np.float32)

    def run(self, calls: Any) -> list[Spent]:
        self.seen.append([(list(tokens), position) for tokens, position in calls])
        each = (self.took * 9)[: len(calls)]
        return [Spent(2 * s, s) for s in each]


def measured(task: Any, *contenders: Any, threads: int = 1) -> Any:
    return decoding.compare(contenders, task, 100, parse("cpu", threads), seconds=0, least=3)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is read at 50 bytes a second."""

    class Memory:
        def __init__(self, *told: Any, cpu_clock: bool) -> None:
            self.cpu_clock = cpu_clock

        def bytes_a_second(self) -> float:
            return 50.0 if self.cpu_clock else 25.0

    monkeypatch.setattr(decoding, "MemoryLoop", Memory)


@pytest.mark.usefixtures("two_cpus")
def test_tokens_are_made_after_the_same_others_in_each_round() -> None:
    a, b = Scripted("a", 1.0, 3.0, 1.0), Scripted("b", 4.0)
    found = measured(decoding.decode(5), a, b)
    words = decoding.made_up_tokens(13, 100).tolist()
    assert a.seen[0] == [(words[:5], 0)] and a.seen == b.seen
    calls = [([words[n]], n) for n in range(5, 13)]
    assert a.seen[1:] == [calls, *[calls[:1], calls] * 3]
    assert found.comparison.time_s("a") == 1.0 and found.best_s("a") == 1.0 and found.wall_s("b") == 8.0
    assert found.cpu_s("b") == 4.0 and found.comparison.ratio("a", "b") == 4.0
    assert found.share("a", 20.0) == pytest.approx(20 / 50)
    b.tells_cpu = False
    assert measured(decoding.decode(5), a, b).comparison.time_s("a") == 2.0
    b.tells_cpu = True
    found = measured(decoding.decode(5), a, b, threads=2)
    assert found.comparison.time_s("a") == 2.0, "by the clock of the wall"
    assert found.share("a", 20.0) == pytest.approx(20 / 2 / 25)


def test_a_prompt_is_read_from_nothing() -> None:
    a = Scripted("a", 1.0)
    found = measured(decoding.prefill(7), a)
    assert a.seen == [[(decoding.made_up_tokens(7, 100).tolist(), 0)]] * 7
    assert (found.task.tokens, decoding.decode(5).tokens) == (7, 13)


def test_a_module_is_timed_with_a_state_of_its_own() -> None:
    net = word_net(1, 4)
    before = net.state["kept"].copy()
    contender = ModuleContender(net, "ours")
    words = decoding.made_up_tokens(6, WORDS)
    spent = contender.run([(words[:5], 0), (words[5:], 5)])
    np.testing.assert_array_equal(contender.logits, logits_after(words))
    assert len(spent) == 2 and all(s.wall_s > 0 for s in spent)
    np.testing.assert_array_equal(net.state["kept"], before)


def test_what_a_token_reads_is_counted() -> None:
    net = word_net(1, 4)
    steps = decoding.steps_of(decoding.program_of(net, 1))
    assert [(s.kind, s.weights, s.states) for s in steps] == [
        ("other", 4 * 4 * WIDTH, 0),  # rows of the table, for the most tokens of a call
        ("attention", 0, 4 * LENGTH * WIDTH),
        ("products", 4 * WORDS * WIDTH, 0),
    ]
    assert decoding.bytes_read(steps, 0.5) == 4 * (4 * WIDTH + WORDS * WIDTH) + 2 * LENGTH * WIDTH


def test_the_time_of_a_token_is_shared_out() -> None:
    net = word_net(1, 4)
    found = decoding.step_shares(net, TokenCalls(net), 3, net.new_state(), repeat=2)
    assert sum(map(found.share, found.seconds)) == pytest.approx(1) and min(found.seconds.values()) > 0
    assert found.weights == 4 * WORDS * WIDTH
    assert found.product_rate == pytest.approx(found.weights / found.seconds[decoding.PRODUCT])


def test_the_program_of_one_token_is_what_one_token_runs() -> None:
    model = word_model(at.dim(1, 4, "rows"))
    net, one = untuned(model), untuned(model.at(rows=1))
    assert decoding.program_of(net, 1) is net.program, "it has no other"
    own = [OwnProgram({"rows": 1}, one.program, one.tuned_s)]
    both = Module(net.program, net.target, net.name, net.tuned_s, own=own)
    assert decoding.program_of(both, 1) is one.program
    assert decoding.program_of(both, 3) is net.program
    calls = TokenCalls(both)
    assert (calls.rows, calls.context, calls.vocabulary) == (4, LENGTH, WORDS)
    assert at.generate(both, [5, 3, 2, 8, 9], 8).tolist() == greedy_after([5, 3, 2, 8, 9], 8)
    shares = decoding.step_shares(both, calls, 3, both.new_state(), repeat=2)
    assert len(shares.seconds) == 3


# -- llama.cpp -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_llama_cpp_reads_what_it_is_given_in_a_process_of_its_own(file: Path) -> None:
    words = decoding.made_up_tokens(9, WORDS)
    with llama_cpp(str(file), 1, 12, "float16") as peer:
        spent = peer.run([(words[:5], 0), (words[5:8], 5)])
        np.testing.assert_array_equal(peer.logits, logits_after(words[:8]))
        assert len(spent) == 2 and all(s.wall_s > 0 for s in spent)
        peer.run([(words[8:], 2)])  # back to the second token
        np.testing.assert_array_equal(peer.logits, logits_after([*words[:2], words[8]]))
        assert decoding.apart(ModuleContender(word_net(1, 4), "ours"), peer, 7, WORDS) == 0
        with pytest.raises(PeerError, match="llama.cpp does not read 13 tokens: llama_decode gives 1"):
            peer.run([(np.ones(13, np.int64), 0)])


@pytest.mark.slow
def test_what_goes_wrong_in_the_other_process_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = file.with_name("refused.gguf")
    for how, said in (
        ((str(refused), 1, 12, "float32"), "llama.cpp does not read .*refused.gguf"),
        ((str(file), 1, 100, "float32"), "no context of 100 tokens with a float32 cache"),
    ):
        with pytest.raises(PeerError, match=said), llama_cpp(*how):
            pass
    monkeypatch.setenv("DIES", "1")
    with (
        llama_cpp(str(file), 1, 12, "float32") as peer,
        pytest.raises(PeerError, match="the process of llama.cpp died"),
    ):
        peer.run([([9], 0)])
    (file.parent / "llama_cpp" / "llama_cpp.py").write_text("raise OSError('libllama.so: no such file')")
    with pytest.raises(PeerError, match="cannot be loaded: .*no such file; pip install llama-cpp-python"):
        with llama_cpp(str(file), 1, 12, "float32"):
            pass


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp_peer, "PACKAGE", "no_such_package")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PeerError, match="llama.cpp is not installed: pip install llama-cpp-python, or put"):
        with llama_cpp("x.gguf", 1, 12, "float32"):
            pass


PROGRAM = f"""#!{sys.executable}
import json, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if words["-m"].endswith("none.gguf"):
    sys.exit("error: failed to load model")
if words["-m"].endswith("odd.gguf"):
    print('[{{"samples_ns": [-5]}}]')
    sys.exit()
rows, n, depth = (int(words[x]) for x in ("-p", "-n", "-d"))
assert (words["-ctk"], words["-ctv"], words["-t"], words["-o"]) == ("f16", "f16", "1", "json")
print(json.dumps([{{"samples_ns": [(rows * 100 + n + depth) * 10**9], "n_gen": n}}]))
"""


@pytest.mark.slow
def test_the_program_stands_in_for_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp_peer, "PACKAGE", "no_such_package")
    program = tmp_path / "llama-bench"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = decoding.made_up_tokens(9, WORDS)
    with llama_cpp("x.gguf", 1, 12, "float16") as peer:
        assert [s.wall_s for s in peer.run([(words[:7], 0)])] == [700.0]
        assert [s.wall_s for s in peer.run([(words[n : n + 1], n) for n in (4, 5)])] == [3.0, 3.0]
        assert decoding.apart(ModuleContender(word_net(1, 4), "ours"), peer, 7, WORDS) is None
        found = measured(decoding.decode(4), Scripted("autotune", 1.0), peer)
        assert found.comparison.ratio("autotune", "llama.cpp") == (8 + 4) / 8 / 2, "by the wall"
    for name, said in (("none", "failed to load model"), ("odd", "nanoseconds, got -5")):
        with llama_cpp(f"{name}.gguf", 1, 12, "float16") as peer:
            with pytest.raises(PeerError, match=f"llama-bench does not time .*{name}.gguf: .*{said}"):
                peer.run([(words[:7], 0)])


def in_process(file: Path) -> Iterator[Any]:
    """A session in this process."""
    yield llama_cpp_peer._Session(str(file), 1, 12, "float32")


def test_a_session_goes_back_to_a_position(file: Path) -> None:
    (session,) = in_process(file)
    spent, logits = session.calls([([1, 2, 3, 4], 0), ([5], 2)])
    assert len(spent) == 2
    np.testing.assert_array_equal(logits, logits_after([1, 2, 5]))


def test_libraries_for_kinds_of_cpus_are_loaded_from_their_folder(tmp_path: Path) -> None:
    loaded: list[bytes] = []

    class C:
        _base_path = tmp_path

        class _lib:
            @staticmethod
            def ggml_backend_load_all_from_path(folder: bytes) -> None:
                loaded.append(folder)

    llama_cpp_peer._load_backends(C)
    (tmp_path / "libggml-cpu-zen4.so").touch()
    llama_cpp_peer._load_backends(C)
    assert loaded == [str(tmp_path).encode()]


@pytest.mark.parametrize(
    ("logits", "said"),
    [
        (np.ones(4), "gives 4 logits, and the model 3"),
        (np.array([0, 1, 5]), "logits after 2 tokens are apart by"),
        (np.array([0, 1, math.nan]), "differ"),
    ],
)
def test_another_model_is_not_compared(logits: Any, said: str) -> None:
    ours, theirs = Scripted("ours"), Scripted("llama.cpp")
    ours.logits, theirs.logits = np.array([0, 1, 2], np.float32), logits.astype(np.float32)
    with pytest.raises(DisagreementError, match=f"{said}.*leave llama.cpp out"):
        decoding.apart(ours, theirs, 2, 100)
    theirs.logits = np.array([0, 1.1, 2], np.float32)
    assert 0 < decoding.apart(ours, theirs, 2, 100) < 0.1
