"""How much further rejections lie from accepted paraphrases than these from each other.

The excess is ours (`docs/method.md`, Chance).
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from paraguard_utils.analysis import confusion
from paraguard_utils.analysis.signals import score_pairs
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate
from paraguard_utils.core.signals import ScoreWeights

_HEADLINES = [name for name, measure in confusion.MEASURES.items() if measure.headline]
COMPARED_MEASURES = (*_HEADLINES, "excess")
"""The measures by which every two systems are compared."""


def without_prob_shift(weights: ScoreWeights) -> ScoreWeights | None:
    """Return the weights without ProbShift, which leaks the decision.

    None if nothing else has weight.
    """
    rest = weights.drift + weights.ppl
    return ScoreWeights(weights.drift / rest, 0.0, weights.ppl / rest) if rest else None


def select_own_pairs(system: System) -> pd.DataFrame:
    """Select the pairs of one cluster, and add their cluster_id."""
    pairs = system.pairs[system.pairs["same_cluster"]]
    cluster_of = system.prompts.set_index("prompt_id")["cluster_id"]
    return pairs.assign(cluster_id=pairs["centre_id"].map(cluster_of))


def cluster_excess(own_pairs: pd.DataFrame, values: ArrayLike) -> pd.Series:
    """Compute the within-cluster excess of any value of pairs, by cluster_id.

    It is the mean value of the pairs of a cluster that begin at a rejection, minus that
    of those that begin at an accepted prompt. Clusters without both are left out: they
    need at least one rejected and two accepted prompts. `own_pairs` is from
    `select_own_pairs`.
    """
    is_rejected = (own_pairs["centre_label"] == "reject").to_numpy()
    numbers, names = pd.factorize(own_pairs["cluster_id"], sort=True)
    side = 2 * numbers + is_rejected
    n = np.bincount(side, minlength=2 * len(names))
    totals = np.bincount(side, np.asarray(values, float), 2 * len(names))
    with np.errstate(invalid="ignore"):
        accepted, rejected = (totals / n).reshape(-1, 2).T
    return pd.Series(rejected - accepted, names).dropna()


def estimate_excess(
    clusters: ClusterBootstrap, own_pairs: pd.DataFrame, values: ArrayLike
) -> Estimate:
    """Estimate the mean of `cluster_excess`; NaN if no cluster has one."""
    excess = cluster_excess(own_pairs, values)
    return clusters.mean(excess.index, excess)


def score_own_pairs(
    system: System, interpretation: str = "relative"
) -> tuple[pd.DataFrame, pd.Series]:
    """Return a system's pairs of one cluster (`select_own_pairs`), and their scores."""
    own_pairs = select_own_pairs(system)
    return own_pairs, score_pairs(own_pairs, system.scoring.weights, interpretation)


def estimate_scored(
    system: System, interpretation: str = "relative"
) -> dict[str, Estimate]:
    """Estimate `confusion.estimate_scores` and the excess of a system's score."""
    own_pairs, values = score_own_pairs(system, interpretation)
    return {
        **confusion.estimate_scores(system, interpretation),
        "excess": estimate_excess(system.clusters, own_pairs, values),
    }
