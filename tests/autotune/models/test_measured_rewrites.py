"""A run of a model times both sides of rewrites that may lose; the log keeps which is faster."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from cli_runner import run
from graph_meaning import evaluate
from made_up import MadeUp
from model_cases import Made, model_of
from one_rewrite import looks_for

import autotune as at
from autotune.cli import models
from autotune.errors import ModelError
from autotune.measure.results import Measurement
from autotune.models import graph_choices, graph_search, graph_tuning, model_run
from autotune.models.compiling import compile_model
from autotune.models.graph_choices import ModelKey, ToldTry, looking, recorded
from autotune.models.graph_search import Alternative, alternatives, change_s, decided, hopeful, kinds, total
from autotune.models.model import Model
from autotune.models.preparation import PreparedModel, prepared
from autotune.models.tuned_model import ModelTuneResult
from autotune.settings import SettingsError
from autotune.targets import detect
from autotune.tuning import request
from autotune.tuning.site import Here
from autotune.tuning.tuner import OneMachine
from kernels_db import Log
from schedules.graph.rewrite import AskedPlace, Choices, RewritePlace
from schedules.model import Target, Trace

HERE = detect(1)
MACHINE = {"cpu": "made up"}
WIDTHS = {"q": 256, "k": 256, "v": 8}


def qkv(layers: int = 1) -> Model:
    """Layers with three products of one input: one alternative, however many layers."""
    return model_of(cases.transformer(layers))


def space(model: Model) -> tuple[PreparedModel, list[Alternative]]:
    base = prepared(model, looking)
    return base, list(alternatives(base, lambda a: False, math.inf).found)


def of_stacking(found: list[Alternative]) -> Alternative:
    """The last: the first layer may read the model's input in another order."""
    return [x for x in found if x.places[0].rewrite == "stack_equal"][-1]


def seconds(**times: float) -> Any:
    """Seconds by digest; all else takes a microsecond."""
    return lambda workload: times.get(workload.digest, 1e-6)


@pytest.mark.slow
def test_equal_layers_are_decided_together() -> None:
    one = of_stacking(space(qkv(3))[1])
    assert len(one.places) == 2 and sum(one.usual.values()) * 2 <= sum(one.other.values())
    assert one.name.startswith("without stack_equal at ") and one.name.endswith(" and 1 more")


def test_the_faster_side_is_taken() -> None:
    base, found = space(qkv())
    one = of_stacking(found)
    slow = seconds(**dict.fromkeys(one.usual, 1e-3))
    best, tried = decided(base, found, slow)
    assert [t.taken for t in tried if t.alternative == one] == [True]
    assert best.choices == Choices().turned(one.places)
    assert total(best, slow) < total(base, slow)
    best, tried = decided(base, found, seconds(**dict.fromkeys(one.other, 1e-3)))
    assert best is base and not any(t.taken for t in tried if t.alternative == one)


def test_a_side_that_is_not_measured_is_not_taken() -> None:
    base, found = space(qkv())
    one = of_stacking(found)
    best, tried = decided(base, found, lambda w: None if w.digest in one.other else 1e-3)
    (told,) = [t for t in tried if t.alternative == one]
    assert best is base and told.other_s is None and not told.taken


def test_kernels_that_both_graphs_run_need_not_be_known() -> None:
    """As in a first run, where only those that differ are tuned before it is decided."""
    base, found = space(qkv())
    one = of_stacking(found)
    known = dict.fromkeys(one.other, 1e-6) | dict.fromkeys(one.usual, 1e-3)
    best, _ = decided(base, [one], lambda w: known.get(w.digest))
    assert best.choices == Choices().turned(one.places)
    assert total(best, lambda w: known.get(w.digest)) is None
    assert change_s(base, best, lambda w: None) is None


def test_a_program_for_one_size_stays_one() -> None:
    base, found = space(qkv())
    one = of_stacking(found)
    best, _ = decided(replace(base, sizes={"n": 4}), [one], seconds(**dict.fromkeys(one.usual, 1e-3)))
    assert best.choices != base.choices and best.sizes == {"n": 4}


def test_a_graph_that_cannot_be_cut_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    base, found = space(qkv())
    one = of_stacking(found)

    def refused(self: PreparedModel, choices: Choices) -> PreparedModel:
        raise ModelError("it cannot be cut")

    monkeypatch.setattr(PreparedModel, "with_choices", refused)
    best, (told,) = decided(base, [one], seconds(**dict.fromkeys(one.usual, 1e-3)))
    assert best is base and not told.taken


def test_a_gain_within_noise_is_not_taken() -> None:
    base, found = space(qkv())
    one = of_stacking(found)
    calls = sum(one.other.values())
    even = {**dict.fromkeys(one.usual, calls * 1.01e-6), **dict.fromkeys(one.other, 1e-6)}
    assert decided(base, [one], seconds(**even))[0] is base


def test_those_that_may_gain_most_have_the_time() -> None:
    _, found = space(qkv())
    one = of_stacking(found)
    assert hopeful(found, lambda w: None, 0.0) == []
    assert one in hopeful(found, seconds(**dict.fromkeys(one.usual, 1.0)), 2.0 * len(one.workloads))


def test_what_was_level_comes_after_what_saves_less_by_limits() -> None:
    def made(rewrite: str, usual: str, other: str) -> Alternative:
        asked = AskedPlace(rewrite, RewritePlace("a"), False)
        tasks: Any = {usual: usual, other: other}  # named by what stands for them
        return Alternative((asked,), {usual: 1}, {other: 1}, tasks)

    fused, split = made("fuse_windows", "apart", "fused"), made("split_sums", "whole", "parts")
    least: Any = {"apart": 8.0, "fused": 4.0, "whole": 8.0, "parts": 6.0}.get
    assert hopeful([fused, split], least, 4.0) == [split]
    known: Any = {"apart": 30.0, "fused": 20.0, "whole": 8.0}.get
    assert hopeful([fused, split], least, 4.0, known) == [fused]
    slower: Any = {"apart": 30.0, "fused": 40.0, "whole": 8.0, "parts": 9.0}.get
    assert hopeful([fused, split], least, 4.0, slower) == [split]


def test_a_budget_for_all_rewrites_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Here, "roofline", lambda self, w, t: None)
    monkeypatch.setattr(graph_tuning, "LOOKING", 1e3)  # however busy the machine is
    base = prepared(qkv(), looking)
    small = graph_tuning.GraphSpace.of([base], False, 4.0, HERE)
    assert small.needed_s is not None and small.needed_s * graph_search.SHARE >= 4.0
    whole = graph_tuning.GraphSpace.of([base], False, 100.0, HERE)
    assert whole.needed_s is None
    assert small.needed_s == math.ceil(len(whole.tasks) * graph_search.LEAST_S / graph_search.SHARE)


def test_a_budget_to_look_at_all_places_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked at foretells the rest."""
    monkeypatch.setattr(Here, "roofline", lambda self, w, t: None)
    clock = (float(n) for n in range(10**6))  # a second for each look at it
    monkeypatch.setattr(graph_tuning, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(graph_search, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    base = prepared(qkv(), looking)
    count = len(kinds(base.asked))
    found = graph_tuning.GraphSpace.of([base], False, 4.0, HERE)
    assert count >= 3 and len(found.found[0]) <= 1 and found.needed_s is not None
    assert found.needed_s * graph_search.SHARE * graph_search.LOOKING >= count
    whole = graph_tuning.GraphSpace.of([base], False, found.needed_s * graph_search.SHARE, HERE)
    assert whole.needed_s is None and len(whole.found[0]) > len(found.found[0])


def test_places_of_one_kind_are_together() -> None:
    base = prepared(qkv(3))
    of = [x for x in kinds(base.asked) if x[0].rewrite == "stack_equal"]
    assert sum(map(len, of)) == 3 and len(of) < 3


# -- what the log keeps -----------------------------------------------------------------------


def kept(db: Path, model: Model, choices: Choices, target: Target = HERE) -> None:
    key = ModelKey.of(model.graph)
    assert key is not None
    with Log(db) as log:
        graph_choices.keep(log, key, target, MACHINE, choices, {"tried": []})


def test_the_newest_choice_of_the_model_and_target_is_used(tmp_path: Path) -> None:
    db, model = tmp_path / "t.db", qkv()
    one = of_stacking(space(model)[1])
    turned = Choices().turned(one.places)
    assert recorded(model.graph, db, HERE, None).choices == Choices(), "there is no log"
    kept(db, model, turned)
    assert recorded(model.graph, db, HERE, None).choices == turned
    assert recorded(model.graph, db, HERE, 1).choices == turned
    assert recorded(model.graph, db, HERE, 2).choices == Choices()
    assert recorded(qkv(2).graph, db, HERE, None).choices == Choices(), (
        "another model with the same first stage"
    )
    kept(db, model, Choices())
    assert recorded(model.graph, db, HERE, None).choices == Choices()


@pytest.mark.parametrize("told", [None, 3, {"other": "x"}, {"other": [["a"]]}, {"other": [[1, 2]]}])
def test_what_a_log_says_is_checked(tmp_path: Path, told: Any) -> None:
    db, model = tmp_path / "t.db", qkv()
    key = ModelKey.of(model.graph)
    assert key is not None
    more = {"model": key.model} | told if isinstance(told, dict) else told
    with Log(db) as log:
        log.finish_run(log.start_run(key.anchor, HERE, MACHINE, seed=0, options={graph_choices.KEY: more}))
    assert recorded(model.graph, db, HERE, None).choices == Choices()


@pytest.mark.slow
def test_a_model_is_compiled_as_the_log_says(tmp_path: Path) -> None:
    db, model = tmp_path / "t.db", qkv()
    one = of_stacking(space(model)[1])
    kept(db, model, Choices().turned(one.places))
    arrays = cases.inputs_of(model.graph)
    calls = {}
    with pytest.warns(UserWarning, match="not tuned"):
        for how in ("measured", "always", "none"):
            net = compile_model(model, threads=1, db=db, fallback=True, rewrites=how, progress=None)  # type: ignore[arg-type]
            calls[how] = len(net.program.outline.calls)
            made = net(*arrays)
            for y, x in zip(
                [made] if len(net.outputs) == 1 else made, evaluate(model.graph, arrays), strict=True
            ):
                np.testing.assert_allclose(y, x, rtol=0, atol=1e-5 * np.sqrt(np.mean(x**2)))
    assert calls["measured"] > calls["always"] and calls["none"] == calls["measured"]


@pytest.mark.slow
def test_other_weights_are_rewritten_alike(tmp_path: Path) -> None:
    db, model = tmp_path / "t.db", qkv()
    kept(db, model, Choices().turned(of_stacking(space(model)[1]).places))
    with pytest.warns(UserWarning, match="not tuned"):
        net = compile_model(model, threads=1, db=db, fallback=True, progress=None)
    net.load_weights(model.graph.values)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(
        SettingsError, match="rewrites is 'mesured'; it is one of 'always', 'measured', 'none'"
    ):
        compile_model(qkv(), rewrites="mesured")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="rewrites is"):
        at.tune_model(qkv(), rewrites="all", budget_s=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "told",
    [
        3,
        {},
        {"what": 1},
        {"what": "a", "usual_s": "1"},
        {"what": "a", "other_s": True},
        {"what": "a", "other_s": float("nan")},
        {"what": "a", "usual_s": float("inf")},
        {"what": "a", "usual_s": -1},
        {"what": "a", "usual_s": 10**400},
    ],
)
def test_what_was_tried_is_checked(told: Any) -> None:
    assert ToldTry.from_json(told) is None


def test_what_was_tried_is_one_line() -> None:
    told = ToldTry.from_json({"what": "with\n\x1b[31m\ud800", "usual_s": 2e-3, "taken": True})
    str(told).encode()
    assert str(told) == str(told).strip() and "\n" not in str(told) and "\x1b" not in str(told)
    assert str(told).endswith(": not timed (without: 2 ms), taken")
    slower = ToldTry("without join at x", 1e-3, 2e-3, False, (4000, 8000))
    assert str(slower) == "without join at x: 2 ms (with it: 1 ms), arena 8 KB (with it: 4 KB), not taken"


@pytest.mark.slow
def test_a_run_tries_both_sides_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks_for(monkeypatch, "stack_equal")
    db, model = tmp_path / "t.db", qkv()
    found = at.tune_model(model, threads=1, budget_s=72.0, db=db, progress=None)
    (told,) = [t for t in found.rewrites if t.alternative.places[0].rewrite == "stack_equal"]
    assert told.usual_s and told.other_s
    key = ModelKey.of(model.graph)
    assert key is not None
    with Log(db) as log:
        (options,) = [r.options for r in log.runs(workload=key.anchor) if graph_choices.KEY in r.options]
    (written,) = [t for t in options[graph_choices.KEY]["tried"] if "stack_equal" in t["what"]]
    assert ToldTry.from_json(written) == told.told
    assert told.told in recorded(model.graph, db, HERE, 1).tried
    assert told.told.what in str(at.explain(model, threads=1, db=db))
    net = compile_model(model, threads=1, db=db, progress=None)
    stacked = any(name.endswith("_stacked") for name in net.program.outline.constants)
    assert stacked != (recorded(model.graph, db, HERE, 1).choices != Choices())
    base = prepared(model)
    # both graphs run, and the faster one stays
    with Log(db) as log:
        other = prepared(model, graph_choices.just(base.choices.turned(told.alternative.places)))
        stays, times = graph_tuning.confirmed(base, other, HERE, log, str(db))
    assert {"usual_s", "other_s"} <= set(times)
    assert (stays is other) == (times["other_s"] < times["usual_s"])


@pytest.mark.slow
def test_queries_keys_and_values_of_which_one_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both graphs run in turns; the one that stays is not the slower one, and computes the same."""
    looks_for(monkeypatch, "stack_unequal")
    b = cases.Builder()
    x = b.input("x", 64, 256)
    model = model_of(b.graph(*(cases.relu(cases.dense(b, x, n, m)) for m, n in WIDTHS.items())))
    db = tmp_path / "t.db"
    found = at.tune_model(model, threads=1, budget_s=80.0, db=db, progress=None)
    (tried,) = [t for t in found.rewrites if t.alternative.places[0].rewrite == "stack_unequal"]
    assert tried.usual_s and tried.other_s
    known = recorded(model.graph, db, HERE, 1).choices
    other = Choices().turned(tried.alternative.places)
    assert known in (Choices(), other) and (known == Choices() or tried.other_s < tried.usual_s)
    arrays = cases.inputs_of(model.graph)
    net = compile_model(model, threads=1, db=db, progress=None)
    for y, x_ in zip(net(*arrays), evaluate(model.graph, arrays), strict=True):
        np.testing.assert_allclose(y, x_, rtol=0, atol=1e-5)


# -- runs, with times that are made up --------------------------------------------------------


class Slow(Made):
    """A measurer of kernels that take longer by a factor."""

    def __init__(self, by: float) -> None:
        self.by = by

    def _measured(self, trace: Trace) -> Measurement:
        return replace(super()._measured(trace), times_s=(self.by * 1e-6,), time_s=self.by * 1e-6)


@pytest.fixture
def stacked_is_slow(monkeypatch: pytest.MonkeyPatch) -> Alternative:
    """Products side by side are slow, each alone and in the whole model."""
    one = of_stacking(space(qkv())[1])
    site = MadeUp(lambda w: Slow(1000.0 if w.digest in one.usual else 1.0))
    monkeypatch.setattr(request, "OneMachine", partial(OneMachine, site=site))
    monkeypatch.setattr(Here, "roofline", lambda self, w, t: None)
    monkeypatch.setattr(model_run, "_in_place", lambda *args: ())
    monkeypatch.setattr(graph_tuning, "_program", lambda *args: args[0])
    monkeypatch.setattr(graph_tuning, "_in_turns", lambda programs: (2.0, 1.0))
    return one


def tuned(db: Path, budget_s: float = 120.0, **more: Any) -> ModelTuneResult:
    given = {"trials": 2, "search": "random", "threads": 1, "progress": None} | more
    return at.tune_model(qkv(), db=db, budget_s=budget_s, **given)


@pytest.mark.slow
def test_a_first_run_takes_what_is_faster_and_a_second_keeps_it(
    tmp_path: Path, stacked_is_slow: Alternative, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "t.db"
    first, turned = tuned(db), Choices().turned(stacked_is_slow.places)
    assert first.rewrites and stacked_is_slow.name in [t.alternative.name for t in first.rewrites if t.taken]
    assert recorded(qkv().graph, db, HERE, 1).choices.other >= turned.other
    kept = recorded(qkv().graph, db, HERE, 1)
    monkeypatch.setattr(graph_tuning, "_in_turns", lambda programs: (1.0, 2.0))
    again = tuned(db)
    assert again.measured == 0 and again.stopped == "tuned" and again.skipped == len(again.tasks)
    assert recorded(qkv().graph, db, HERE, 1) == kept
    tuned(db, 20.0)
    assert recorded(qkv().graph, db, HERE, 1) == kept, "nor does a small budget lose it"
    found = tuned(db, 240.0)
    assert recorded(qkv().graph, db, HERE, 1).choices == Choices(), "a larger one looks again"
    assert found.rewrites and not any(t.taken for t in found.rewrites)
    assert not any(t.taken for t in recorded(qkv().graph, db, HERE, 1).tried)
    with Log(db) as log:
        log.prune(1, apply=True)
    assert recorded(qkv().graph, db, HERE, 1).tried


@pytest.mark.slow
def test_an_interrupt_in_the_end_keeps_what_is_chosen(
    tmp_path: Path, stacked_is_slow: Alternative, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call has the last word."""

    def interrupted(programs: Any) -> Any:
        raise KeyboardInterrupt

    db = tmp_path / "t.db"
    monkeypatch.setattr(graph_tuning, "_in_turns", interrupted)
    found = tuned(db)
    assert found.stopped == "interrupted" and any(t.taken for t in found.rewrites)
    kept = recorded(qkv().graph, db, HERE, 1)
    assert kept.choices != Choices() and kept.looked_s == 0.0
    monkeypatch.setattr(graph_tuning, "_in_turns", lambda programs: (1.0, 2.0))
    assert tuned(db).measured == 0
    assert recorded(qkv().graph, db, HERE, 1).choices == Choices()


@pytest.mark.slow
@pytest.mark.usefixtures("stacked_is_slow")
def test_a_document_has_the_rewrites_that_were_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "imported", lambda path, shape, islands=False: qkv())
    words = ("tune", "net.onnx", "--threads", 1, "--trials", 1, "--search", "random", "--budget", "2m")
    found = run(*words, "--db", tmp_path / "t.db", "--json").json["rewrites"]
    assert any(x["taken"] and "stack_equal" in x["what"] for x in found)
    assert all(set(x) == {"what", "usual_s", "other_s", "taken", "arenas"} for x in found)
    always = run(*words, "--db", tmp_path / "u.db", "--json", "--rewrites", "always").json
    assert always["rewrites"] == []


def test_a_graph_without_kernels_is_not_kept_where_the_usual_one_has_them(tmp_path: Path) -> None:
    base, found = space(qkv())
    other = base.with_choices(base.choices.turned(of_stacking(found).places))
    with Log(tmp_path / "t.db") as log:
        assert graph_tuning.running(base, other, HERE, log) is other, "neither has"
        whole = base.outline(lambda w: None)
        with pytest.MonkeyPatch.context() as patch:
            known = {w.digest for w in whole.tasks}
            patch.setattr(
                graph_tuning.Known,
                "of",
                lambda w, target, log: SimpleNamespace(time_s=1e-6 if w.digest in known else None),
            )
            assert graph_tuning.running(base, other, HERE, log) is base
