"""Regression trees as plain arrays: checked before anything uses them, and handed to XGBoost to predict.

Trees of any library come to this form, and only this form is saved. XGBoost reads no file: `booster` writes a
document of its own from arrays that passed `TreeEnsemble.check`, because a loader for trusted files may crash
or never end on others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_model.base import CostModelError
from cost_model.library import xgboost

# Most trees and nodes of an ensemble, and most nodes on a way from a root to a leaf: predicting takes trees x
# depth steps a row.
MOST_TREES = 4000
MOST_NODES = 2_000_000
DEEPEST = 64
# Largest size of a leaf's value: scores are shares of a task's best.
LARGEST_VALUE = 1e6
# Index of a leaf's feature and of its children.
NONE = -1
# Smallest positive threshold: what parses and compares floats may take smaller ones for 0.
TINY = np.finfo(np.float32).tiny

Ints = npt.NDArray[np.int32]
# (left child, right child, feature, threshold or value, whether missing values go left) of one tree: `NONE`
# as left child marks a leaf.
Nodes = tuple[Ints, Ints, Ints, npt.NDArray[np.float32], npt.NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class TreeEnsemble:
    """Trees whose values are added up.

    ``starts``: int64 [trees + 1], where the nodes of each tree begin. Of each node: ``feature`` int32, `NONE`
    for a leaf; ``threshold`` float32, the value of a leaf; ``left``, ``right`` int32, its children's numbers
    within the tree, `NONE` for a leaf; ``missing_left`` bool. A row goes left if its feature is below the
    threshold."""

    starts: npt.NDArray[np.int64]
    feature: Ints
    threshold: npt.NDArray[np.float32]
    left: Ints
    right: Ints
    missing_left: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @staticmethod
    def of(trees: Sequence[Nodes]) -> TreeEnsemble:
        """Of the nodes of each tree, in any order with the root first. They are numbered by level, so that
        children come after parents; what no way from the root leads to is dropped."""
        ordered = [_by_level(t) for t in trees]
        starts = np.cumsum([0, *(len(t[0]) for t in ordered)], dtype=np.int64)
        left, right, feature, threshold, missing = (np.concatenate(x) for x in zip(*ordered, strict=True))
        return TreeEnsemble(starts, feature, threshold, left, right, missing)

    def then(self, other: TreeEnsemble) -> TreeEnsemble:
        """These trees, and after them those of another."""
        starts = np.concatenate([self.starts, self.starts[-1] + other.starts[1:]])
        names = ("feature", "threshold", "left", "right", "missing_left")
        return TreeEnsemble(starts, *(np.concatenate([getattr(x, n) for x in (self, other)]) for n in names))

    def renumbered(self, places: npt.NDArray[np.int64]) -> TreeEnsemble:
        """The same trees over other columns: feature ``i`` is number ``places[i]`` there."""
        feature = np.where(self.feature == NONE, NONE, places[np.maximum(self.feature, 0)])
        return replace(self, feature=feature.astype(np.int32))

    def check(self, features: int) -> None:
        """Raises CostModelError unless each tree is a tree, of finite numbers, over so many features, and not
        too large."""
        starts, nodes = self.starts, len(self.feature)
        # compared, because differences of numbers of a file may overflow
        if len(starts) < 2 or starts[0] != 0 or starts[-1] != nodes or np.any(starts[1:] <= starts[:-1]):
            raise CostModelError("its trees have no nodes")
        each = (self.threshold, self.left, self.right, self.missing_left)
        if any(len(x) != nodes for x in each):
            raise CostModelError("its arrays have unlike lengths")
        if len(self) > MOST_TREES or nodes > MOST_NODES:
            raise CostModelError(f"it has {len(self)} trees of {nodes} nodes, more than may be")
        if self.feature.min() < NONE or self.feature.max() >= features:
            raise CostModelError(f"a node asks for a feature that is none of {features}")
        leaf = self.feature == NONE
        if not np.all(np.isfinite(self.threshold)) or np.any(np.abs(self.threshold[leaf]) > LARGEST_VALUE):
            raise CostModelError("a threshold or a value is not finite, or too large")
        size = np.repeat(np.diff(starts), np.diff(starts))
        begin = np.repeat(starts[:-1], np.diff(starts))
        number = np.arange(nodes) - begin
        for child in (self.left, self.right):
            inner = (child > number) & (child < size)
            if np.any(np.where(leaf, child != NONE, ~inner)):
                raise CostModelError("a child of a node is no later node of its tree")
        children = np.concatenate([(begin + child)[~leaf] for child in (self.left, self.right)])
        reached = np.bincount(children, minlength=nodes)
        reached[starts[:-1]] += 1
        if np.any(reached != 1):
            raise CostModelError("a node has no parent, or several")
        level, depth = starts[:-1], 0
        while len(level):
            depth += 1
            if depth > DEEPEST:
                raise CostModelError(f"a tree is deeper than {DEEPEST} nodes")
            inside = level[~leaf[level]]
            level = np.concatenate([begin[inside] + self.left[inside], begin[inside] + self.right[inside]])

    def trees(self) -> Iterator[Nodes]:
        """The nodes of each tree."""
        for begin, end in zip(self.starts[:-1], self.starts[1:], strict=True):
            part = slice(begin, end)
            yield (
                self.left[part], self.right[part], self.feature[part], self.threshold[part],
                self.missing_left[part],
            )  # fmt: skip

    def booster(self, features: int) -> Any:
        """An XGBoost model that predicts the sum of the trees. The arrays must have passed `check`."""
        xgb = xgboost()
        settings = {"objective": "reg:squarederror", "tree_method": "hist", "base_score": 0.0, "nthread": 1}
        data = xgb.DMatrix(np.zeros((2, features), np.float32), label=np.zeros(2), nthread=1)
        document = json.loads(xgb.train(settings | {"verbosity": 0}, data, 1).save_raw("json"))
        model = document["learner"]["gradient_booster"]["model"]
        pattern = model["trees"][0]
        model["trees"] = [_document(nodes, k, pattern) for k, nodes in enumerate(self.trees())]
        model["tree_info"] = [0] * len(self)
        model["iteration_indptr"] = list(range(len(self) + 1))
        model["gbtree_model_param"]["num_trees"] = str(len(self))
        made = xgb.Booster({"nthread": 1})
        made.load_model(bytearray(json.dumps(document), "utf-8"))
        return made


def of_booster(booster: Any) -> TreeEnsemble:
    """The trees of an XGBoost regressor. Its base score becomes a tree of one leaf, the first."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    base = float(str(learner["learner_model_param"]["base_score"]).strip("[]"))
    trees = [leaf(base)]
    for t in learner["gradient_booster"]["model"]["trees"]:
        left = np.array(t["left_children"], dtype=np.int32)
        trees.append(
            (
                left,
                np.array(t["right_children"], dtype=np.int32),
                np.where(left == NONE, NONE, np.array(t["split_indices"], dtype=np.int32)),
                np.array(t["split_conditions"], dtype=np.float32),
                np.array(t["default_left"], dtype=bool),
            )
        )
    return TreeEnsemble.of(trees)


def leaf(value: float) -> Nodes:
    """A tree of one leaf."""
    none = np.full(1, NONE, np.int32)
    return none, none, none, np.array([value], np.float32), np.zeros(1, bool)


def inclusive(thresholds: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Thresholds of "x <= t" as those of "x < t" for every float32 x."""
    with np.errstate(over="ignore", under="ignore"):
        near = thresholds.astype(np.float32)
        near = np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)
        above = np.nextafter(near, np.float32(np.inf))
    above = np.where((above > 0) & (above < TINY), np.float32(TINY), above)
    most = np.finfo(np.float32).max
    return np.clip(above, -most, most)


def _by_level(nodes: Nodes) -> Nodes:
    left, right, feature, threshold, missing = nodes
    level, levels = np.zeros(1, np.int64), []
    while len(level):
        levels.append(level)
        inside = level[left[level] != NONE]
        level = np.stack([left[inside], right[inside]], axis=1).ravel()
    order = np.concatenate(levels)
    number = np.full(len(left) + 1, NONE, np.int32)  # the last one is that of `NONE`
    number[order] = np.arange(len(order))
    is_leaf = left[order] == NONE
    return (
        number[left[order]],
        np.where(is_leaf, np.int32(NONE), number[right[order]]),
        np.where(is_leaf, np.int32(NONE), feature[order]).astype(np.int32),
        threshold[order].astype(np.float32),
        missing[order].astype(bool),
    )


def _document(nodes: Nodes, number: int, pattern: dict[str, Any]) -> dict[str, Any]:
    left, right, feature, threshold, missing = nodes
    count, is_leaf = len(left), left == NONE
    parents = np.full(count, 2**31 - 1, np.int64)
    for child in (left, right):
        parents[child[~is_leaf]] = np.flatnonzero(~is_leaf)
    zeros = [0.0] * count
    return pattern | {
        "id": number,
        "left_children": left.tolist(),
        "right_children": right.tolist(),
        "parents": parents.tolist(),
        "split_indices": np.maximum(feature, 0).tolist(),
        "split_conditions": threshold.tolist(),
        "split_type": [0] * count,
        "default_left": missing.astype(int).tolist(),
        "base_weights": np.where(is_leaf, threshold, 0).tolist(),
        "loss_changes": zeros,
        "sum_hessian": zeros,
        "tree_param": pattern["tree_param"] | {"num_nodes": str(count), "num_deleted": "0"},
    }
