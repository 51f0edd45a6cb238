"""Do shared words decide, rather than meaning? DR of chosen pairs of phrasings (ours).

The pairs are within clusters; what they are compared with is matched by style
(`docs/method.md`, Shared wording, rephrasing, triggers).
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate
from paraguard_utils.core.words import jaccard, split_words

PairRows: TypeAlias = tuple[np.ndarray, np.ndarray]
"""First and second rows of pairs, each of shape (pairs,)."""


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
    rows = pd.DataFrame({"cluster": np.asarray(cluster)}).reset_index(names="row")
    rows = rows.sort_values("cluster", kind="stable")
    pairs = rows.merge(rows, on="cluster", suffixes=("", "_of_second"))
    pairs = pairs[pairs["row"] < pairs["row_of_second"]]
    return pairs["row"].to_numpy(), pairs["row_of_second"].to_numpy()


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
    words = {}
    for row in np.union1d(first, second):
        words[row] = frozenset(split_words(texts[row]))
    pairs = zip(first, second, strict=True)
    return np.array([jaccard(words[one], words[other]) for one, other in pairs], float)


class MatchedRatio:
    """DR of some pairs, with what is expected of unrelated prompts matched by style.

    A *combination* is two styles that occur together in a pair. The ratio follows from
    totals over clusters, in these columns of `sums`:

    - the pairs that are decided differently (1 column);
    - by style, the decided prompts, and those refused (m columns each);
    - by combination, the pairs (k columns);
    - by combination, the ordered pairs of prompts inside a cluster that are decided
      differently, and all such pairs, which are not unrelated (k columns each).
    """

    def __init__(
        self, clusters: ClusterBootstrap, phrasings: Phrasings, pairs: PairRows
    ) -> None:
        first, second = pairs
        scored = ~np.isnan(phrasings.refused)
        rejected = phrasings.refused == 1
        both_scored = scored[first] & scored[second]
        first = first[both_scored]
        second = second[both_scored]

        names, style = np.unique(phrasings.style.astype(str), return_inverse=True)
        styles_of_pair = np.sort(np.column_stack([style[first], style[second]]), axis=1)
        combinations, combination = np.unique(
            styles_of_pair, axis=0, return_inverse=True
        )
        self.n_styles = len(names)
        self.n_combinations = len(combinations)
        self.s, self.t = combinations.reshape(-1, 2).T  # styles of each combination

        code = clusters.codes.loc[phrasings.cluster].to_numpy()
        code_of_pair = code[first]
        size = len(clusters.codes)
        by_style = (size, self.n_styles)
        by_combination = (size, self.n_combinations)
        combination = combination.reshape(-1)
        differ = rejected[first] != rejected[second]
        n = _sum_cells(code, style, scored, by_style)
        r = _sum_cells(code, style, scored & rejected, by_style)
        different = np.bincount(code_of_pair, differ, minlength=size)[:, None]
        n_pairs = _sum_cells(
            code_of_pair, combination, np.ones(len(first)), by_combination
        )
        opposite_own = self._count_opposite(n, r)
        own_pairs = n[:, self.s] * n[:, self.t]
        self.sums = np.hstack([different, n, r, n_pairs, opposite_own, own_pairs])

    def _count_opposite(self, n: np.ndarray, r: np.ndarray) -> np.ndarray:
        """Count the ordered pairs of opposite decisions, by combination of styles."""
        a = n - r
        return r[:, self.s] * a[:, self.t] + r[:, self.t] * a[:, self.s]

    def log_ratio(self, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ln DR of totals and its derivatives by them (`estimates.Statistic`).

        ln DR is ln(pairs decided differently) - ln(how many would be if the prompts of
        a pair were unrelated).
        """
        m, k = self.n_styles, self.n_combinations
        widths = [1, m, m, k, k]
        different, n, r, n_pairs, opposite_own, own_pairs = np.split(
            totals, np.cumsum(widths), axis=1
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            # Pairs of two clusters: all but those inside a cluster. Two styles without
            # a pair in a resample do not count.
            unrelated = n[:, self.s] * n[:, self.t] - own_pairs
            unrelated = np.where(n_pairs > 0, unrelated, np.inf)
            chance = (self._count_opposite(n, r) - opposite_own) / unrelated
            expected = (n_pairs * chance).sum(axis=1, keepdims=True)
            value = (np.log(different) - np.log(expected))[:, 0]

            # Of ln(expected), by the number of opposite pairs of a combination
            by_opposite = n_pairs / unrelated / expected
            by_n = np.zeros_like(n)
            by_r = np.zeros_like(r)
            for one, other in ((self.s, self.t), (self.t, self.s)):
                slope_n = by_opposite * (r[:, other] - chance * n[:, other])
                slope_r = by_opposite * (n[:, other] - 2 * r[:, other])
                for i in range(k):
                    by_n[:, one[i]] += slope_n[:, i]
                    by_r[:, one[i]] += slope_r[:, i]
            slopes = [
                1 / different,
                -by_n,
                -by_r,
                -chance / expected,
                by_opposite,
                -by_opposite * chance,
            ]
            return value, np.hstack(slopes)


def _sum_cells(
    row: np.ndarray, column: np.ndarray, weights: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """Sum weights into the cells of a table of this shape."""
    cells = row * shape[1] + column
    size = shape[0] * shape[1]
    return np.bincount(cells, weights.astype(float), size).reshape(shape)


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
        At least 0: 0 if these pairs agree, 1 if they disagree as often as unrelated
        prompts. Bootstrap-t over clusters on the log scale. NaN without a pair, and if
        nothing could differ.

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
    ratio = MatchedRatio(clusters, phrasings, pairs)
    return disagreement.bootstrap_log_ratio(clusters, ratio.sums, ratio.log_ratio)


def too_few_for_pairs(refused: np.ndarray, pairs: PairRows) -> bool:
    """Return whether too few prompts in some pairs are refused, or answered.

    `disagreement.MIN_DECISIONS_EACH` of both are needed.
    """
    first, second = pairs
    decisions = refused[np.union1d(first, second)]
    n_refused = (decisions == 1).sum()
    n_answered = (decisions == 0).sum()
    return bool(min(n_refused, n_answered) < disagreement.MIN_DECISIONS_EACH)
