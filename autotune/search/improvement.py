"""Exploration by uncertainty: the trials from which the most improvement over the best is to be expected.

A model of the mean proposes what is like the best measured, over and over: on a plateau it stays there. A
forest (`cost_model.forest`) tells besides how much is not known about a candidate, as the spread of its
trees. If the logarithm of a candidate's throughput is normal with mean m and standard deviation s, and the
best measured has b, its expected improvement is

    s (z Phi(z) + phi(z)),  z = (m - b) / s

with the distribution Phi and the density phi of the standard normal: large where m is high, or where s is.
Source: Jones, Schonlau, Welch, "Efficient Global Optimization of Expensive Black-Box Functions", 1998.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_model.base import CostModelError, Features, Scores
from cost_model.forest import Forest

# Least standard deviation: a forest that has seen the same result twice is not certain.
LEAST = 1e-9


@dataclass(frozen=True)
class ImprovementOptions:
    """``share``: part of a round that is chosen by expected improvement, in place of the random part.
    ``after``: results before that. ``pool``: fresh random rows that are scored, over all sketches; mutations
    of the best measured are scored too."""

    share: float = 0.5
    after: int = 32
    pool: int = 2000


class ExpectedImprovement:
    """Scores candidates by expected improvement. The same for the same seed and results.

    ``feature_names``: the columns that it sees, those of the search's model.
    """

    def __init__(
        self, feature_names: tuple[str, ...], seed: int = 0, options: ImprovementOptions | None = None
    ) -> None:
        self.options = options or ImprovementOptions()
        self._names, self._seed = feature_names, seed
        self._forest: Forest | None = None

    @property
    def ready(self) -> bool:
        """Whether it has learnt from results enough, some of which ran."""
        return self._forest is not None

    def fit(self, features: Features, throughput: Scores) -> None:
        """Learn from scratch: features [n, features] of trials, and their throughput [n], 0 for a failure,
        which counts as the slowest that ran."""
        self._forest = None
        if len(throughput) >= self.options.after and (throughput > 0).any():
            self._forest = Forest(self._names, self._seed + len(throughput))
            self._forest.fit(features, throughput)

    def score(self, features: Features) -> Scores:
        """Expected improvement [n] of candidates, of the logarithm of throughput. Raises CostModelError
        before it is `ready`."""
        if self._forest is None:
            raise CostModelError(
                f"expected improvement needs {self.options.after} results: ask `ready` first"
            )
        mean, deviation = self._forest.predict(features)
        return expected_improvement(mean, deviation, self._forest.best)


def expected_improvement(mean: Scores, deviation: Scores, best: float) -> Scores:
    """E[max(0, X - best)] of normal X with these means and standard deviations, each [n].

    >>> import numpy as np
    >>> expected_improvement(np.array([0.0, 0.0, 1.0]), np.array([1.0, 2.0, 1.0]), 0.0).round(4).tolist()
    [0.3989, 0.7979, 1.0833]
    """
    s = np.maximum(deviation, LEAST)
    z = (mean - best) / s
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    found: Scores = s * (z * _distribution(z) + density)
    return found


def _distribution(z: npt.NDArray[np.float64]) -> Scores:
    """The distribution function of the standard normal."""
    return 0.5 * (1.0 + np.array([math.erf(x) for x in (z / math.sqrt(2)).tolist()]))
