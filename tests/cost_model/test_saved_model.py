"""Files of trained models: predictions kept to the bit, strangers' files refused and never run."""

from __future__ import annotations

import base64
import json
import os
import pickle
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from cost_model import saved, tree_ensemble
from cost_model.base import CostModelError
from cost_model.features import DERIVED
from cost_model.pretrained import Prior
from cost_model.saved import SavedModel, read
from cost_model.tree_ensemble import TreeEnsemble, inclusive, leaf, of_booster
from schedules.space.estimate.cpu.features import FEATURE_NAMES
from schedules.space.estimate.gpu.features import FEATURE_NAMES as GPU_FEATURES

WIDTH = len(FEATURE_NAMES) + len(DERIVED)


def columns(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, WIDTH)).astype(np.float32)
    x[:, 2] = np.round(x[:, 2])  # thresholds that are met exactly
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


@cache
def boosted(seed: int = 0) -> Any:
    x = columns(300, seed)
    y = np.nan_to_num(x[:, 0]) + 3 * np.nan_to_num(x[:, 2]) + 5
    settings = {"max_depth": 5, "eta": 0.3, "seed": seed, "nthread": 1}
    return xgb.train(settings, xgb.DMatrix(x, label=y, nthread=1), 12)


@pytest.fixture(scope="module")
def model() -> SavedModel:
    return SavedModel(
        "xgb", FEATURE_NAMES, (of_booster(boosted(0)), of_booster(boosted(1))), {"workloads": ["w"]}
    )


@pytest.fixture(scope="module")
def file(model: SavedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.json"
    model.save(path)
    return path


@pytest.mark.slow
def test_a_file_predicts_what_its_boosters_did(file: Path, model: SavedModel) -> None:
    back, x = read(file), columns(500, 9)
    for k, booster in enumerate(back.boosters):
        np.testing.assert_array_equal(booster.inplace_predict(x), boosted(k).inplace_predict(x))
    assert back.digest == model.digest and back.tasks == {"w"} and back.origin == str(file)
    assert (back.learner, back.serves, back.feature_names) == ("xgb", "cpus", FEATURE_NAMES)


def test_a_prior_of_it_is_that_of_the_same_boosters(file: Path) -> None:
    back, x = read(file), columns(64, 3)[:, : len(FEATURE_NAMES)]
    prior = Prior(FEATURE_NAMES, x, back)
    seen = prior._inputs(x)
    expected = np.mean([boosted(k).inplace_predict(seen) for k in range(2)], axis=0)
    np.testing.assert_array_equal(prior.learned(x), expected.astype(np.float64))
    assert np.isfinite(prior.predict(x)).all() and np.isfinite(prior.draft(x)).all()


def test_saving_replaces_a_file_as_a_whole(model: SavedModel, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text("before")
    model.save(path)
    first = path.read_bytes()
    model.save(path)
    assert path.read_bytes() == first and os.listdir(tmp_path) == ["m.json"]
    link = tmp_path / "link.json"
    link.symlink_to(path)
    path.write_text("before")
    model.save(link)
    assert link.is_symlink() and path.read_bytes() == first


def test_inclusive_thresholds_part_all_numbers_as_before() -> None:
    at = np.array([0.1, 0.5, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 1e300, np.inf, 1 / 3, 16777217.0])
    with np.errstate(over="ignore"):
        near = at.astype(np.float32)
        x = np.concatenate([np.nextafter(near, np.float32(s)) for s in (-np.inf, np.inf)] + [near])
    x = x[np.isfinite(x) & ((x == 0) | (np.abs(x) >= np.finfo(np.float32).tiny)) & (np.abs(x) < 3.3e38)]
    for t, strict in zip(at, inclusive(at), strict=True):
        np.testing.assert_array_equal(x < strict, x.astype(np.float64) <= t, err_msg=str(t))


# -- what is refused -----------------------------------------------------------------------------


def changed(file: Path, change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(file.read_text())
    change(document)
    return json.dumps(document).encode()


def array(document: dict[str, Any], name: str, change: Callable[[np.ndarray], np.ndarray | None]) -> None:
    """Change an array of the first ensemble, in place or by a new one."""
    bag = document["bags"][0]
    values = np.frombuffer(base64.b64decode(bag[name]), saved.ARRAYS[name]).copy()
    other = change(values)
    bag[name] = base64.b64encode((values if other is None else other).tobytes()).decode()


def put(name: str, place: int, value: float) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        array(document, name, lambda a: a.__setitem__(place, value))

    return change


def overflowing(starts: np.ndarray) -> np.ndarray:
    """Starts whose differences are positive as numbers of 64 bits."""
    return np.array([0, 1 << 62, -1 << 63, -1 << 62, starts[-1]], dtype=starts.dtype)


ROOT = 1  # node 0 is the leaf of the base score; here the first tree of several nodes begins
REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "kind": (lambda d: d.update(kind="xgb"), "it is no trained cost model"),
    "version": (lambda d: d.update(version=99), "it has version 99 and not 1"),
    "learner": (lambda d: d.update(learner="x" * 9999), "learner: expected one of xgb, scratch"),
    "feature": (lambda d: d["feature_names"].__setitem__(0, "hue"), "it has 'hue', it lacks 'block0.inst"),
    "order": (lambda d: d["feature_names"].reverse(), "other features: they have another order"),
    "no features": (lambda d: d.pop("feature_names"), "feature_names: it is missing"),
    "derived": (lambda d: d["derived"].pop(), "those derived from a candidate's changed"),
    "columns": (lambda d: d.update(columns=0), "those derived from a candidate's changed"),
    "provenance": (lambda d: d.update(provenance=[]), "provenance: expected an object"),
    "no bags": (lambda d: d.update(bags=[]), "bags: expected a list of 1 to 64 parts"),
    "many bags": (lambda d: d.update(bags=d["bags"] * 33), "bags: expected a list of 1 to 64 parts"),
    "bag": (lambda d: d.update(bags=[7]), "bags[0]: expected an object"),
    "missing array": (lambda d: d["bags"][0].pop("left"), "bags[0].left: it is missing"),
    "base64": (lambda d: d["bags"][0].update(left="%%%%"), "the array 'left' of its trees is malformed"),
    "half a number": (lambda d: d["bags"][0].update(left="AAA="), "the array 'left'"),
    "bool": (put("missing_left", 0, 2), "other numbers than 0 and 1"),
    "own child": (put("left", ROOT, 0), "a child of a node is no later node"),
    "negative child": (put("left", ROOT, -2), "a child of a node is no later node"),
    "missing child": (put("left", ROOT, -1), "a child of a node is no later node"),
    "far child": (put("right", ROOT, 1 << 30), "a child of a node is no later node"),
    "child of a leaf": (put("left", 0, 1), "a child of a node is no later node"),
    "shared child": (put("left", ROOT, 2), "a node has no parent, or several"),
    "strange feature": (put("feature", ROOT, WIDTH), "a feature that is none of"),
    "negative feature": (put("feature", ROOT, -2), "a feature that is none of"),
    "nan": (put("threshold", ROOT, np.nan), "not finite"),
    "infinite": (put("threshold", 0, np.inf), "not finite"),
    "large leaf": (put("threshold", 0, 1e30), "not finite, or too large"),
    "starts": (put("starts", 1, -5), "no nodes"),
    "other end": (put("starts", -1, 1 << 60), "no nodes"),
    "starts that overflow": (lambda d: array(d, "starts", overflowing), "no nodes"),
    "shorter": (lambda d: array(d, "threshold", lambda a: a[:-1]), "unlike lengths"),
    "none": (lambda d: [array(d, n, lambda a: a[:0]) for n in saved.ARRAYS], "no nodes"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_changed_file_is_refused_by_name_reason_and_remedy(name: str, file: Path, tmp_path: Path) -> None:
    change, reason = REFUSED[name]
    path = tmp_path / "bad.json"
    path.write_bytes(changed(file, change))
    with pytest.raises(CostModelError) as err:
        read(path)
    said = str(err.value)
    assert said.startswith(f"cannot read the cost model {path}: ") and reason in said, said
    assert said.endswith("make one of your own log with: autotune train") and len(said) < 400


class _Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


RAW: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda b: b"", "no JSON"),
    "cut": (lambda b: b[: len(b) // 2], "it is no JSON"),
    "binary": (lambda b: bytes(range(256)), "no JSON"),
    "deep": (lambda b: b"[" * 100_000, "no JSON"),
    "many parts": (lambda b: b"[" + b"[]," * 100_000 + b"0]", "too many parts"),
    "list": (lambda b: b"[]", "no JSON object"),
    "nan": (lambda b: b.replace(b'"version": 1', b'"version": NaN'), "no JSON"),
    "long number": (lambda b: b.replace(b'"version": 1', b'"version": ' + b"1" * 9999), "no JSON"),
    "pickle": (lambda b: pickle.dumps(_Runs()), "no JSON"),
}


@pytest.mark.parametrize("name", RAW)
def test_bytes_of_all_kinds_are_refused(
    name: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, reason = RAW[name]
    Path("bad.json").write_bytes(make(file.read_bytes()))
    with pytest.raises(CostModelError, match=reason):
        read("bad.json")
    assert os.listdir() == ["bad.json"], "nothing of the file ran"


def test_what_is_no_file_of_a_sane_size_is_refused_at_once(tmp_path: Path) -> None:
    huge = tmp_path / "huge.json"
    huge.touch()
    os.truncate(huge, 1 << 40)
    os.mkfifo(tmp_path / "pipe.json")
    begin = time.process_time()
    for path, reason in (
        (huge, "larger than 64 MiB"),
        (tmp_path / "pipe.json", "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (tmp_path, "directory|no regular file"),
        (tmp_path / "none.json", "No such file"),
        ("a\0b.json", "null"),
    ):
        with pytest.raises(CostModelError, match=reason):
            read(path)
    assert time.process_time() - begin < 5


def test_ensembles_that_would_take_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 4 * tree_ensemble.DEEPEST + 1  # a chain: each left child is a leaf, each right one goes on
    number, is_leaf = np.arange(n), (np.arange(n) % 2 == 1) | (np.arange(n) == n - 1)
    chain = TreeEnsemble(
        np.array([0, n]),
        np.where(is_leaf, -1, 0).astype(np.int32),
        np.zeros(n, np.float32),
        np.where(is_leaf, -1, number + 1).astype(np.int32),
        np.where(is_leaf, -1, number + 2).astype(np.int32),
        np.zeros(n, bool),
    )
    with pytest.raises(CostModelError, match="deeper than"):
        chain.check(1)
    twice = TreeEnsemble(  # both children of a node are the next one: 2^39 ways to the leaf
        np.array([0, 40]),
        np.where(np.arange(40) == 39, -1, 0).astype(np.int32),
        np.zeros(40, np.float32),
        *(2 * [np.where(np.arange(40) == 39, -1, np.arange(40) + 1).astype(np.int32)]),
        np.zeros(40, bool),
    )
    with pytest.raises(CostModelError, match="a node has no parent, or several"):
        twice.check(1)
    stumps = TreeEnsemble.of([leaf(1.0)] * 5)
    stumps.check(1)
    monkeypatch.setattr(tree_ensemble, "MOST_TREES", 4)
    with pytest.raises(CostModelError, match="5 trees of 5 nodes, more than may be"):
        stumps.check(1)


def test_a_model_of_gpus_says_so(tmp_path: Path) -> None:
    SavedModel("xgb", GPU_FEATURES, (TreeEnsemble.of([leaf(0.5)]),)).save(tmp_path / "g.json")
    assert read(tmp_path / "g.json").serves == "gpus"


# -- mutants -------------------------------------------------------------------------------------


def mutant(original: bytes, rng: random.Random) -> bytes:
    """Bytes changed anywhere, or numbers changed within an array, which a change of bytes seldom survives."""
    if rng.random() < 0.5:
        document = json.loads(original)
        bag = document["bags"][rng.randrange(len(document["bags"]))]
        name = rng.choice(list(saved.ARRAYS))
        raw = bytearray(base64.b64decode(bag[name]))
        for _ in range(rng.choice((1, 1, 4, 64))):
            raw[rng.randrange(len(raw))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        if rng.random() < 0.2:
            raw = raw[: rng.randrange(len(raw))]
        bag[name] = base64.b64encode(bytes(raw)).decode()
        return json.dumps(document).encode()
    raw = bytearray(original)
    for _ in range(rng.choice((1, 1, 2, 8, 100))):
        at = rng.randrange(len(raw))
        how = rng.randrange(4)
        if how == 0:
            raw[at] = rng.randrange(256)
        elif how == 1:
            del raw[at : at + rng.choice((1, 10, 1000))]
        elif how == 2:
            raw[at:at] = bytes(rng.choices(b'[]{}",:0-9eNaN', k=rng.choice((1, 5, 50))))
        else:
            raw[at:at] = raw[at : at + rng.choice((10, 1000))]
    return bytes(raw)


def try_mutants(file: Path, folder: Path, seeds: range) -> int:
    """How many of the mutants were read. Each is refused, or predicts finite numbers, and takes no time."""
    original, x, sane = file.read_bytes(), columns(64, 5), 0
    path = folder / "mutant.json"
    for seed in seeds:
        path.write_bytes(mutant(original, random.Random(seed)))
        begin = time.process_time()
        try:
            found = read(path)
        except CostModelError as err:
            assert str(err).startswith(f"cannot read the cost model {path}: "), seed
            continue
        sane += 1
        for booster in found.boosters:
            assert np.isfinite(booster.inplace_predict(x)).all(), seed
        assert time.process_time() - begin < 5, seed
    return sane


@pytest.mark.slow
def test_mutants_are_refused_or_predict_finite_numbers(file: Path, tmp_path: Path) -> None:
    sane = try_mutants(file, tmp_path, range(150))
    assert 5 < sane < 100, "both happens"


@pytest.mark.fuzz
def test_many_mutants(file: Path, tmp_path: Path) -> None:
    try_mutants(file, tmp_path, range(1000, 6000))
