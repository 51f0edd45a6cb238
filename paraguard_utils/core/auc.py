"""The area under the ROC curve, with an interval over resampled clusters."""

import numpy as np
from scipy import sparse

from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, Strings


def estimate_auc(
    clusters: ClusterBootstrap,
    cluster_ids: Strings,
    outcome: np.ndarray,
    scores: np.ndarray,
    strata: np.ndarray | None = None,
) -> Estimate:
    """Estimate the area under the ROC curve of scores for an outcome.

    Parameters
    ----------
    clusters : ClusterBootstrap
    cluster_ids : array-like, shape (n,)
    outcome : numpy.ndarray of bool, shape (n,)
    scores : numpy.ndarray of float, shape (n,)
        NaN is left out; ties count half.
    strata : numpy.ndarray, shape (n,)
        If given, only scores of one stratum are compared.

    Returns
    -------
    Estimate
        In [0, 1]; NaN if the outcome never varies.

    Examples
    --------
    >>> clusters = ClusterBootstrap(["a", "b", "c", "d"])
    >>> outcome = np.array([True, True, False, False])
    >>> scores = np.array([0.9, 0.4, 0.6, 0.1])
    >>> estimate_auc(clusters, ["a", "b", "c", "d"], outcome, scores).value
    0.75
    """
    known = np.isfinite(scores)
    scores = scores[known]
    outcome = np.asarray(outcome, bool)[known]
    codes = clusters.codes.loc[np.asarray(cluster_ids)[known]].to_numpy()
    stratum = np.zeros(len(scores))
    if strata is not None:
        stratum = np.asarray(strata)[known]
    parts = []
    for name in np.unique(stratum):
        inside = stratum == name
        values, place = np.unique(scores[inside], return_inverse=True)
        shape = (len(clusters.codes), len(values))
        hits, misses = (
            # How many prompts of each cluster have each score, ascending
            sparse.csr_array((side[inside], (codes[inside], place)), shape, dtype=float)
            for side in (outcome, ~outcome)
        )
        parts.append((hits, misses))

    def area(counts: np.ndarray) -> np.ndarray:
        won = np.zeros(len(counts))
        pairs = np.zeros(len(counts))
        for hits, misses in parts:
            n_hits = counts @ hits
            n_misses = counts @ misses
            n_below = n_misses.cumsum(axis=1) - n_misses / 2  # ties count half
            won += (n_hits * n_below).sum(axis=1)
            pairs += n_hits.sum(axis=1) * n_misses.sum(axis=1)
        return won / pairs

    return clusters.estimate_from_counts(area)
