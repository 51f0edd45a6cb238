"""Do shared words decide, rather than meaning? DR of chosen pairs of phrasings (ours).

The pairs are within clusters; what they are compared with is matched by style
(`docs/method.md`, Shared wording, rephrasing, triggers).
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, Statistic
from paraguard_utils.core.words import jaccard, split_words

PairRows: TypeAlias = tuple[np.ndarray, np.ndarray]
"""First and second rows of pairs, each of shape (pairs,)."""

LOW_OVERLAP = 0.4  # pairs that share few words have a smaller overlap
HIGH_OVERLAP = 0.6  # pairs that share most words have at least this overlap


class Phrasings(NamedTuple):
    """Decided prompts whose pairs are compared.

    Attributes
    ----------
    cluster : numpy.ndarray, shape (n,)
    refused : numpy.ndarray of float, shape (n,)
        1 refused, 0 answered, NaN set aside.
    style : numpy.ndarray of str, shape (n,)
        How a prompt is written. Two prompts are compared with unrelated prompts of the
        same two styles, so that a style that is refused more often does not count as
        disagreement. One style for all compares with all prompts.
    """

    cluster: np.ndarray
    refused: np.ndarray
    style: np.ndarray


def list_cluster_pairs(cluster: ArrayLike) -> PairRows:
    """Return the rows of all pairs of prompts of one cluster, cluster by cluster.

    Examples
    --------
    >>> first, second = list_cluster_pairs(["a", "b", "a", "a"])
    >>> first.tolist(), second.tolist()
    ([0, 0, 2], [2, 3, 3])
    """
    rows = pd.DataFrame({"cluster": cluster}).reset_index(names="row")
    pairs = rows.merge(rows, on="cluster", suffixes=("", "_second"))
    pairs = pairs[pairs["row"] < pairs["row_second"]]
    pairs = pairs.sort_values(["cluster", "row", "row_second"])
    return pairs["row"].to_numpy(), pairs["row_second"].to_numpy()


def word_overlaps(
    texts: Sequence[str], first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Compute the Jaccard overlap of the words of pairs of texts.

    Parameters
    ----------
    texts : sequence of str
    first, second : numpy.ndarray of int, shape (pairs,)
        Positions in `texts`.

    Returns
    -------
    numpy.ndarray, shape (pairs,), in [0, 1]

    Examples
    --------
    >>> word_overlaps(["How to kill weeds", "kill"], np.array([0]), np.array([1]))
    array([0.25])
    """
    words = [frozenset(split_words(text)) for text in texts]
    pairs = zip(first, second, strict=True)
    return np.array([jaccard(words[one], words[other]) for one, other in pairs], float)


def _match_by_style(
    clusters: ClusterBootstrap, phrasings: Phrasings, pairs: PairRows
) -> tuple[np.ndarray, Statistic]:
    """Return what DR of some pairs is summed from, and its logarithm.

    Of m styles the sums, of shape (n_clusters, 1 + 2 m + 3 m**2), hold:

    - the pairs that are decided differently (1 column);
    - by style, the decided prompts, and those refused (m columns each);
    - by two styles, the pairs (m**2 columns; a pair counts half in either order);
    - by two styles, the ordered pairs of prompts inside a cluster that are decided
      differently, and all such pairs, which are not unrelated (m**2 columns each).
    """
    scored = ~np.isnan(phrasings.refused)
    rejected = phrasings.refused == 1
    first, second = pairs
    both_scored = scored[first] & scored[second]
    first = first[both_scored]
    second = second[both_scored]
    names, style = np.unique(phrasings.style.astype(str), return_inverse=True)
    code = clusters.codes.loc[phrasings.cluster].to_numpy()
    shape = (len(clusters.codes), len(names))
    different = np.zeros((len(clusters.codes), 1))
    np.add.at(different[:, 0], code[first], rejected[first] != rejected[second])
    n = np.zeros(shape)
    np.add.at(n, (code, style), scored)
    r = np.zeros(shape)
    np.add.at(r, (code, style), rejected)
    n_pairs = np.zeros((*shape, len(names)))
    for one, other in ((first, second), (second, first)):
        np.add.at(n_pairs, (code[one], style[one], style[other]), 0.5)
    tables = [n_pairs, _count_opposite(n, r), n[:, :, None] * n[:, None, :]]
    flat = [table.reshape(len(table), -1) for table in tables]
    return np.hstack([different, n, r, *flat]), partial(_log_ratio, len(names))


def _count_opposite(n: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Count the ordered pairs of opposite decisions, by the two styles."""
    opposite = r[:, :, None] * (n - r)[:, None, :]
    return opposite + opposite.swapaxes(1, 2)


def _log_ratio(m: int, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ln DR of totals over m styles, and its derivatives by them.

    ln DR is ln(pairs decided differently) - ln(how many would be if the prompts of a
    pair were unrelated).
    """
    widths = [1, m, m, m**2, m**2]
    different, n, r, *tables = np.split(totals, np.cumsum(widths), axis=1)
    n_pairs, opposite_own, own_pairs = (table.reshape(-1, m, m) for table in tables)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Pairs of two clusters: all but those inside a cluster. Two styles without a
        # pair in a resample do not count.
        unrelated = n[:, :, None] * n[:, None, :] - own_pairs
        unrelated = np.where(n_pairs > 0, unrelated, np.inf)
        chance = (_count_opposite(n, r) - opposite_own) / unrelated
        expected = (n_pairs * chance).sum(axis=(1, 2), keepdims=True)
        value = np.log(different[:, 0]) - np.log(expected[:, 0, 0])

        # Of ln(expected), by the opposite pairs of two styles, and by n and r of one
        by_opposite = n_pairs / unrelated / expected
        others = r[:, None, :] - chance * n[:, None, :]
        by_n = 2 * (by_opposite * others).sum(axis=2)
        by_r = 2 * (by_opposite * (n - 2 * r)[:, None, :]).sum(axis=2)
        slopes = [
            1 / different,
            -by_n,
            -by_r,
            -chance / expected,
            by_opposite,
            -by_opposite * chance,
        ]
        return value, np.hstack([slope.reshape(len(totals), -1) for slope in slopes])


def estimate_pair_disagreement(
    clusters: ClusterBootstrap, phrasings: Phrasings, pairs: PairRows
) -> Estimate:
    """Estimate DR of some pairs of prompts of one cluster.

    Pairs not both scored are left out.

    Parameters
    ----------
    clusters : ClusterBootstrap
        Of the phrasings.
    phrasings : Phrasings
    pairs : (numpy.ndarray, numpy.ndarray)
        Rows of the phrasings (`list_cluster_pairs`, or a part of it).

    Returns
    -------
    Estimate
        At least 0: 0 if meaning decides, 1 if it does not. Bootstrap-t over clusters on
        the log scale. NaN without a pair, and if nothing could differ.

    Examples
    --------
    >>> cluster = np.array(["a", "a", "b", "b", "c", "c"])
    >>> refused = np.array([1.0, 0, 0, 0, 1, 1])
    >>> phrasings = Phrasings(cluster, refused, np.full(6, "any"))
    >>> clusters = ClusterBootstrap(cluster)
    >>> pairs = list_cluster_pairs(cluster)
    >>> round(estimate_pair_disagreement(clusters, phrasings, pairs).value, 3)
    0.5
    """
    sums, log_ratio = _match_by_style(clusters, phrasings, pairs)
    return disagreement.bootstrap_log_ratio(clusters, sums, log_ratio)


def estimate_pair_difference(
    clusters: ClusterBootstrap, phrasings: Phrasings, pairs: PairRows, minus: PairRows
) -> Estimate:
    """Estimate DR of some pairs minus DR of others, on the same resampled clusters.

    The parameters are those of `estimate_pair_disagreement`.
    """
    first = _match_by_style(clusters, phrasings, pairs)
    second = _match_by_style(clusters, phrasings, minus)
    return disagreement.estimate_ratio_difference(clusters, first, second)


def too_few_for_pairs(refused: np.ndarray, pairs: PairRows) -> bool:
    """Return whether too few prompts in some pairs are refused, or answered.

    `disagreement.MIN_DECISIONS_EACH` of both are needed.
    """
    first, second = pairs
    decisions = refused[np.union1d(first, second)]
    n_refused = (decisions == 1).sum()
    n_answered = (decisions == 0).sum()
    return bool(min(n_refused, n_answered) < disagreement.MIN_DECISIONS_EACH)
