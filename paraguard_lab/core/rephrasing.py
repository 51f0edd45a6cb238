"""Does asking again help? Rephrasing success and refused requests (ours).

A person whose request is refused tries other phrasings of it (`docs/method.md`,
Rephrasing).
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import comb

from paraguard_lab.core.inference import share_of_clusters
from paraguard_lab.core.ratios import share_of_totals
from paraguard_utils.core.disagreement import count_decisions, is_mixed
from paraguard_utils.core.estimates import (
    MIN_MIXED,
    MIN_REFUSALS,
    N_RESAMPLES,
    SEED,
    ClusterBootstrap,
    Estimate,
)

MAX_TRIES = 3  # a person tries at most this many other phrasings


def rephrasing_odds(
    refused: ArrayLike,
    cluster: ArrayLike,
    *,
    tries: int = MAX_TRIES,
    n_resamples: int = N_RESAMPLES,
    random_state: int = SEED,
) -> Estimate:
    """Estimate the share of refused requests that get an answer in other words.

    The other phrasings of a request are tried in random order; the expectation over all
    orders has a closed form.

    Parameters
    ----------
    refused : array-like of float or bool, shape (n,)
        1 refused, 0 answered, NaN set aside.
    cluster : array-like, shape (n,)
        Requests of one cluster ask the same.
    tries : int
        Other phrasings tried at most.
    n_resamples, random_state : int
        Number and seed of the resamples of clusters.

    Returns
    -------
    Estimate
        In [0, 1]; NaN if no refused request has another phrasing.

    See Also
    --------
    paraguard_utils.core.disagreement.isolation : The share of each refusal's
        paraphrases that are answered: the odds of one try.

    Examples
    --------
    >>> rephrasing_odds([1, 0, 1, 1], ["a", "a", "b", "b"], tries=1).value
    0.3333333333333333
    """
    decided = count_decisions(refused, cluster)
    clusters = ClusterBootstrap(decided["cluster_id"], n_resamples, random_state)
    return share_of_totals(clusters, count_rephrased(clusters, decided, tries))


def answer_probability(
    others: ArrayLike, answered: ArrayLike, tries: int
) -> np.ndarray:
    """Return the probability that a refused request is answered within some tries.

    Parameters
    ----------
    others, answered : array-like of int
        How many other phrasings each request has, and how many of them are answered.
        They are tried in random order.
    tries : int

    Returns
    -------
    numpy.ndarray of float
        In [0, 1]; NaN without another phrasing.

    Examples
    --------
    One of five is among the first three in 3 of 5 orders.

    >>> answer_probability([5, 5, 2], [1, 5, 0], 3)
    array([0.6, 1. , 0. ])
    """
    others = np.asarray(others, float)
    refused = others - np.asarray(answered, float)
    tried = np.minimum(tries, others)
    with np.errstate(divide="ignore", invalid="ignore"):
        all_refused = comb(refused, tried) / comb(others, tried)
    return np.where(others > 0, 1 - all_refused, np.nan)


def unrelated_share(rate: ArrayLike) -> np.ndarray:
    """Return how often one of three prompts drawn at random from all is answered.

    It is what rephrasing success would be if the other phrasings of a refused request
    were unrelated prompts. `rate` is the refused share of all prompts, in [0, 1].

    Examples
    --------
    If half of the prompts are refused, three in a row are with probability 1/8.

    >>> unrelated_share([0.5, 1.0])
    array([0.875, 0.   ])
    """
    return 1 - np.asarray(rate, float) ** MAX_TRIES


def count_rephrased(
    clusters: ClusterBootstrap, decided: pd.DataFrame, tries: int
) -> tuple[np.ndarray, np.ndarray]:
    """Count refused requests, and those expected to be answered within some tries.

    `decided` is from `count_decisions`; both arrays have shape (n_clusters,) and suit
    `ratios.share_of_totals`.

    Examples
    --------
    >>> cluster = ["a", "a", "a", "b", "b"]
    >>> decided = count_decisions([1, 0, 0, 1, 1], cluster)
    >>> count_rephrased(ClusterBootstrap(cluster), decided, tries=1)
    (array([1., 2.]), array([1., 0.]))
    """
    n = decided["n"].to_numpy()
    rejected = decided["rejected"].to_numpy()
    probability = answer_probability(n - 1, n - rejected, tries)
    expected = np.where(rejected > 0, rejected * probability, 0.0)
    refusals, answered = clusters.sums(decided["cluster_id"], rejected, expected)
    return refusals, answered


def estimate_refused_requests(
    clusters: ClusterBootstrap, decided: pd.DataFrame
) -> dict[str, Estimate]:
    """Estimate the shares of requests that are refused in some or all phrasings.

    `decided` is from `count_decisions`. The keys are refused_once (in at least one
    phrasing), refused_always (in all) and refused_once_minus_always; all in [0, 1].

    Examples
    --------
    >>> cluster = ["a", "a", "b", "b"]
    >>> decided = count_decisions([1, 0, 0, 0], cluster)
    >>> estimate_refused_requests(ClusterBootstrap(cluster), decided)["refused_once"][0]
    0.5
    """
    ids = decided["cluster_id"]
    once = decided["rejected"] > 0
    always = decided["rejected"] == decided["n"]
    return {
        "refused_once": share_of_clusters(clusters, ids, once),
        "refused_always": share_of_clusters(clusters, ids, always),
        "refused_once_minus_always": share_of_clusters(clusters, ids, once & ~always),
    }


def too_few_for_odds(decided: pd.DataFrame) -> bool:
    """Return whether there are too few decisions for an interval of odds.

    30 refusals and 10 clusters decided both ways are needed.
    """
    n_refusals = decided["rejected"].sum()
    n_mixed = is_mixed(decided).sum()
    return bool(n_refusals < MIN_REFUSALS or n_mixed < MIN_MIXED)
