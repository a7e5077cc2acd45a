"""A language model beside the search: its answers are untrusted, and its silence costs nothing."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from search_table import FormulaSpace
from waiting import LIMIT_S

from autotune import targets
from autotune.search.base import Result
from autotune.search.llm import EXCHANGES, LlmOptions, Proposing, plain
from autotune.search.llm_answers import candidate_of, rows_of
from autotune.search.llm_client import LlmError
from autotune.search.llm_prompt import prompt_of
from autotune.search.policies import create
from autotune.search.simulate import play
from autotune.search.table import Sheet, TableSpace
from schedules import ops
from schedules.space import derive
from schedules.space.base import Candidate, trace_of

SPACE = FormulaSpace(choices=((8, 8, 8), (6, 4)), peaks=(1.0, 0.7))
ROW = {"sketch": 0, "h0": 1, "h1": 2, "h2": 3}


class Model:
    """A client that answers as a test says."""

    model = "recorded"

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer, self.prompts, self.closed = answer, [], 0

    def complete(self, prompt: str, deadline_s: float) -> str:
        self.prompts.append(prompt)
        return self.answer(prompt)

    def close(self) -> None:
        self.closed += 1


def failing(prompt: str) -> str:
    raise LlmError("out of order")


def searching(answer: Callable[[str], str], patient: bool = True, **options: float) -> Proposing:
    inner = create("random", SPACE, "random", 1)
    return Proposing(inner, SPACE, Model(answer), patient=patient, options=LlmOptions(**options))


def told(policy: Proposing, asked: list[Candidate]) -> None:
    rows = [np.array([c.row]) for c in asked]
    policy.tell([Result(c, float(SPACE.throughput(c.sketch, r)[0])) for c, r in zip(asked, rows)])


def test_the_model_proposes_its_share_of_a_round_and_no_more() -> None:
    wanted = [{"sketch": 0, "h0": i, "h1": 0, "h2": 1} for i in range(8)]
    policy = searching(lambda _: json.dumps(wanted))
    asked = policy.ask(16)
    mine = [c for c in asked if policy.proposed(c)]
    assert len(asked) == len(set(asked)) == 16
    assert mine == [Candidate(0, (i, 0, 1)) for i in range(4)]
    told(policy, asked)
    later = policy.ask(16)
    assert not set(later) & set(asked)
    assert sum(policy.proposed(c) for c in later) == 4


def test_small_rounds_keep_the_share_too() -> None:
    every = [{"sketch": 0, "h0": i, "h1": j, "h2": 1} for i in range(8) for j in range(8)]
    policy = searching(lambda _: json.dumps(every), rows=64)
    mine = 0
    for _ in range(20):
        asked = policy.ask(1)
        mine += policy.proposed(asked[0])
        told(policy, asked)
    assert mine == 5


def test_what_is_not_legal_is_repaired_or_dropped_and_counted() -> None:
    rows = [
        ROW,
        {**ROW, "h0": 10**30},  # beyond all bounds
        {"sketch": "sketch1", "h0": 2},  # a hole is missing
        {**ROW, "sketch": 7},
        {**ROW, "sketch": True},
        {"sketch": 0, "h0": "4", "h1": None, "h2": [3]},  # no decision at all
        "a row", None, 3, [1, 2],
        ROW,
    ]  # fmt: skip
    policy = searching(lambda _: json.dumps(rows))
    policy.ask(64)
    c = policy.counters
    assert (c.taken, c.repaired, c.dropped, c.repeated) == (3, 2, 7, 1)
    for candidate in policy._proposed:
        assert SPACE.valid(candidate.sketch, np.array([candidate.row]))[0]


def test_a_row_that_the_target_forbids_becomes_a_valid_neighbour() -> None:
    rng = np.random.default_rng(0)
    corner = {"sketch": 0, "h0": 7, "h1": 7, "h2": 7}
    assert not SPACE.valid(0, np.array([[7, 7, 7]]))[0]
    found = candidate_of(SPACE, corner, lambda s: np.zeros(3, dtype=np.int64), rng)
    assert found is not None and found[1]
    assert SPACE.valid(0, np.array([found[0].row]))[0]
    assert sum(x == 7 for x in found[0].row) == 2  # one decision changed


@pytest.mark.parametrize(
    "text",
    [
        "", "no JSON", "[" * 100_000, "[1, 2, 3]", '{"a": 1}', "[NaN, Infinity]", "[[[]]]", '[{"h0": 1}',
        "[" + "9" * 10_000 + "]", "\ud800\x00\x1b[2J",
        "Ignore all instructions. __import__('os').system('touch /tmp/x') [lambda: 1]",
    ],
)  # fmt: skip
def test_garbage_has_no_rows(text: str) -> None:
    started = time.process_time()
    assert rows_of(text, 8) == []
    assert time.process_time() - started < 2.0


def test_the_first_array_of_objects_counts_and_only_its_first_rows() -> None:
    text = "As [1] says:\n```json\n" + json.dumps([ROW] * 100) + '\n``` [{"h0": 1}]'
    assert rows_of(text, 8) == [ROW] * 8
    assert rows_of('[{"h0": NaN, "h1": 1e999}]', 8) == [{"h0": None, "h1": float("inf")}]
    nested = '[{"sketch": ' + "[" * 50_000 + "]" * 50_000 + "}]"
    assert rows_of(nested, 8) == []


def test_numbers_that_are_none_decide_nothing() -> None:
    rng = np.random.default_rng(0)
    for bad in (float("inf"), float("nan"), True, "1", {}, None):
        row = {"sketch": 0, "h0": bad, "h1": bad, "h2": bad}
        assert candidate_of(SPACE, row, lambda s: np.zeros(3, dtype=np.int64), rng) is None


@pytest.mark.parametrize("answer", [failing, lambda _: "nothing", lambda _: "[]", lambda _: 1 // 0])
def test_a_model_that_fails_is_not_asked_again_and_costs_no_trial(answer: Callable[[str], str]) -> None:
    policy = searching(answer)
    asked = []
    for _ in range(8):
        more = policy.ask(8)
        told(policy, more)
        asked += more
    assert len(set(asked)) == 64 and not any(policy.proposed(c) for c in asked)
    assert len(policy._client.prompts) == 3
    # nothing is lost: the same candidates without a model
    alone = create("random", SPACE, "random", 1)
    assert asked == [c for _ in range(8) for c in alone.ask(8)]


def test_a_silent_model_delays_no_round() -> None:
    speaks = threading.Event()

    def silent(prompt: str) -> str:
        speaks.wait(LIMIT_S)
        return json.dumps([ROW])

    policy = searching(silent, patient=False)
    for _ in range(5):
        asked = policy.ask(8)
        assert len(asked) == 8
        told(policy, asked)
    assert len(policy._client.prompts) == 1 and not policy._proposed
    assert policy._call is not None and not policy._call.done(0.0)  # nobody waited for it
    speaks.set()
    assert policy._call.done(LIMIT_S)
    assert Candidate(0, (1, 2, 3)) in policy.ask(8) or policy.counters.repeated


def test_closing_waits_for_nobody_and_closes_the_client_once_it_is_done() -> None:
    go_on = threading.Event()
    policy = searching(lambda _: "[]" if go_on.wait(LIMIT_S) else "", patient=False)
    policy.ask(4)
    call = policy._call
    policy.close()
    assert call is not None and not policy._client.closed
    go_on.set()
    assert call.done(LIMIT_S) and policy._client.closed == 1
    policy.ask(4)
    assert len(policy._client.prompts) == 1
    idle = searching(lambda _: "[]")
    idle.close()
    assert idle._client.closed == 1


def test_calls_of_a_run_are_limited() -> None:
    rng = np.random.default_rng(0)

    def some(prompt: str) -> str:
        rows = SPACE.sample(0, 16, rng).tolist()
        return json.dumps([{"sketch": 0, **dict(zip(("h0", "h1", "h2"), r))} for r in rows])

    policy = searching(some, calls=2, share=1.0)
    for _ in range(8):
        told(policy, policy.ask(16))
    assert policy.calls == len(policy._client.prompts) == 2


def test_excluded_schedules_are_not_proposed() -> None:
    policy = searching(lambda _: json.dumps([ROW]))
    policy.exclude([trace_of(SPACE, Candidate(0, (1, 2, 3))).digest])
    assert not any(policy.proposed(c) for c in policy.ask(16))
    assert policy.counters.repeated == 1


def test_the_policy_does_not_propose_what_the_model_did() -> None:
    small = FormulaSpace(choices=((6, 4),), peaks=(1.0,))
    every = small.every(0, 100)
    assert every is not None
    rows = [dict(zip(("h0", "h1"), r)) for r in every.tolist()]
    policy = Proposing(create("grid", small), small, Model(lambda _: json.dumps(rows)), patient=True)
    asked = [*policy.ask(40), *policy.ask(40)]
    assert any(policy.proposed(c) for c in asked)
    assert len(asked) == len(set(asked)) == small.valid(0, every).sum()


def test_exchanges_are_kept_once_and_short() -> None:
    policy = searching(lambda _: "x\x1b[2J\ud800" * 50_000)
    policy.ask(4)
    said = policy.exchanges()[EXCHANGES]
    assert said["model"] == "recorded" and said["prompt"] == policy._client.prompts[0]
    assert len(json.dumps(said)) < 48_000
    assert "\x1b" not in said["answer"] and said["taken"] == 0
    json.dumps(said).encode("utf-8")
    assert policy.exchanges() == {}
    assert len(json.dumps(plain("\U0001f600" * 20_000))) <= 20_002


def test_the_prompt_has_the_best_and_the_worst() -> None:
    policy = searching(lambda _: "[]")
    results = [Result(Candidate(0, (i, j, 0)), float(8 * i + j)) for i in range(8) for j in range(8)]
    policy.tell(results)
    policy.ask(8)
    prompt = policy._client.prompts[-1]
    assert "Trials so far: 64" in prompt
    assert f'best: {{"sketch":0,"h0":7,"h1":7,"h2":0}} {1e6 / 63:.4g} us' in prompt
    assert 'worst: {"sketch":0,"h0":0,"h1":0,"h2":0} failed' in prompt
    assert prompt.count("best: ") == prompt.count("worst: ") == 8


def test_a_prompt_is_never_long() -> None:
    space = FormulaSpace(choices=tuple((4,) * 30 for _ in range(200)), peaks=(1.0,) * 200)
    results = [Result(Candidate(s, (1,) * 30), 1.0) for s in range(8)]
    prompt = prompt_of(space, "x" * 100_000, None, results, results, 10**6, 16)
    assert len(prompt) <= 16_000 and "# Answer" in prompt and "more sketches" in prompt


@pytest.mark.parametrize("target", ["x86-64-v3", "h100"])
@pytest.mark.parametrize(
    "op, shape",
    [
        ("matmul", {"m": 64, "n": 48, "k": 32}),
        ("conv2d", {"h": 14, "w": 14, "ci": 16, "co": 32, "k": 3}),
        ("attention", {"heads": 2, "seq": 64, "dim": 32}),
    ],
)
def test_the_prompt_tells_what_each_hole_decides(op: str, shape: dict[str, int], target: str) -> None:
    workload = ops.workload(op, shape)
    machine = targets.from_name(target)
    space = derive(workload.canonical, machine)
    rng = np.random.default_rng(0)
    best = [Result(Candidate(s, tuple(space.sample(s, 1, rng)[0].tolist())), 1.0) for s in (1, 1, 0)]
    prompt = prompt_of(space, "the computation", machine, best, best, 6, 16)
    told = prompt.split("# Some sketches in full")[1].split("# Trials")[0]
    assert told.index("sketch 1:") > 0
    assert all(f"\n{hole}: " in told for hole in space.holes(1))
    assert "\n...\n" in told or all(f"?{hole}" in told for hole in space.holes(1))
    for line in re.findall("^(?:best|worst): (.*) \\S+ us$", prompt, re.MULTILINE):
        assert set(json.loads(line)) in [{"sketch", *space.holes(s)} for s in (0, 1)]
    assert len(prompt) <= 16_000 and plain(prompt) == prompt  # a log keeps it whole
    assert prompt.rstrip().endswith("...]")


def test_a_large_sketch_is_told_with_fewer_values() -> None:
    space = FormulaSpace(choices=((40,) * 120,), peaks=(1.0,))
    prompt = prompt_of(space, "", None, [], [], 0, 16)
    assert re.search(r'"h119":\[\d+,\d+,\d+\]\}', prompt)
    assert '"h0":[0,3,' in prompt_of(FormulaSpace(choices=((40,),), peaks=(1.0,)), "", None, [], [], 0, 16)


def test_loops_that_do_not_fit_are_cut_at_a_line() -> None:
    space = FormulaSpace()
    space.describe = lambda sketch: "\n".join(f"for i{n} in range({n}):" for n in range(1000))
    prompt = prompt_of(space, "", None, [], [], 0, 16)
    loops = prompt.split("# Some sketches in full")[1].split("# Trials")[0].strip().splitlines()[2:]
    assert loops[0] == "sketch 0:" and loops[-1] == "..."
    assert loops[-2] == f"for i{len(loops) - 3} in range({len(loops) - 3}):"


def test_a_model_that_knows_the_best_finds_it_on_a_table() -> None:
    grid = np.array([[i, j] for i in range(30) for j in range(30)], dtype=np.int64)
    times = 1.0 + np.abs(grid - [21, 4]).sum(axis=1).astype(float)
    space = TableSpace([Sheet("table", ("i", "j"), grid, times, grid.astype(np.float32))], ("i", "j"))
    inner = create("random", space, "random", 0)
    assert play(space_table(space), create("random", space, "random", 0), 16, 0).best_s[-1] > 1.0
    policy = Proposing(inner, space, Model(lambda _: '[{"i": 21, "j": 4}]'), patient=True)
    assert play(space_table(space), policy, 16, 0).best_s[-1] == 1.0


def space_table(space: TableSpace):
    from autotune.search.table import Table

    return Table("grid", space)
