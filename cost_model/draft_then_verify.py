"""Scores many candidates of which only the best are wanted.

A draft by a few trees scores all of them, and the whole model scores the best part. This seldom misses the
best candidate. Figures: docs/measurements/cost-models.md.
"""

from __future__ import annotations

import numpy as np

from cost_model.base import CostModel, Drafts, Features, Scores

# Share of the candidates of a call that the whole model scores, and the least number.
VERIFIED = 1 / 16
LEAST = 64
# Distance by which drafts are moved below the model's scores, which are shares of the best.
BELOW = 4.0


def draft_then_verify(model: CostModel, features: Features) -> Scores:
    """Scores [n]: the model's own for those that its draft ranks highest, the draft less `BELOW` for others.
    A score depends on the other candidates of the same call."""
    if not isinstance(model, Drafts) or len(features) <= LEAST:
        return model.predict(features)
    scores = model.draft(features) - BELOW
    keep = max(LEAST, int(VERIFIED * len(scores)))
    best = np.argsort(-scores, kind="stable")[:keep]
    scores[best] = model.predict(features[best])
    return scores
