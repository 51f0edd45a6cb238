"""The area under the ROC curve, with an interval over resampled clusters."""

import numpy as np

from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, Strings

_ROWS_PER_PART = 200  # prompts for which one part of the resamples is counted at a time


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
        rows = np.flatnonzero(stratum == name)
        if outcome[rows].any() and not outcome[rows].all():
            parts.append(rows)
    if not parts:
        return clusters.undefined()

    def area(counts: np.ndarray) -> np.ndarray:
        won = np.zeros(len(counts))
        pairs = np.zeros(len(counts))
        for rows in parts:
            won_here, pairs_here = _count_won(
                counts, codes[rows], outcome[rows], scores[rows]
            )
            won += won_here
            pairs += pairs_here
        return won / pairs

    return clusters.estimate_from_counts(area, max(1, len(codes) // _ROWS_PER_PART))


def _count_won(
    counts: np.ndarray, codes: np.ndarray, outcome: np.ndarray, scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count the pairs of a hit and a miss in which the hit scores higher, ties half.

    The second result is the number of all pairs. Both have one value per row of
    `counts`, which says how often each cluster counts.
    """
    hits = _sum_by_score(counts, codes, scores, outcome)
    misses = _sum_by_score(counts, codes, scores, ~outcome)
    misses_below = misses.cumsum(axis=1) - misses / 2
    won = (hits * misses_below).sum(axis=1)
    return won, hits.sum(axis=1) * misses.sum(axis=1)


def _sum_by_score(
    counts: np.ndarray, codes: np.ndarray, scores: np.ndarray, chosen: np.ndarray
) -> np.ndarray:
    """Sum how often the chosen prompts count at each distinct score, ascending."""
    values, place = np.unique(scores, return_inverse=True)
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(place[chosen], kind="stable")]
    used, first = np.unique(place[rows], return_index=True)
    sums = np.zeros((len(counts), len(values)))
    sums[:, used] = np.add.reduceat(counts[:, codes[rows]], first, axis=1)
    return sums
