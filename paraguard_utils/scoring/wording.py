"""Does meaning decide, or do shared words? DR of near-copies and of free rewordings.

Nothing but texts, strategies and decisions is used (`docs/method.md`, Shared wording, rephrasing, triggers).
All of it ours.
"""

import itertools
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, Statistic, studentized, to_columns
from paraguard_utils.schemas import Corpus, Labels, Table
from paraguard_utils.text import jaccard, words

NEAR, FREE = ("seed", "softening", "hardening"), ("lexical", "register", "rewrite")
"""Strategies that keep the seed's words but charged ones, and those that do not."""

STEP = 0.2
"""Width of a bin of word overlap."""

LOW, HIGH = 0.4, 0.6
"""Pairs that share few words lie below the first, those that share most at the second or above."""


DIFFERENCES = ("difference", "low_minus_high")
"""Estimates that are differences of two DR."""


class Pairs(NamedTuple):
    """Pairs of prompts of one cluster.

    Attributes
    ----------
    first, second : numpy.ndarray of int, shape (pairs,)
        Rows of the corpus.
    overlap : numpy.ndarray, shape (pairs,)
        Jaccard overlap of their words, in [0, 1]; NaN where the texts are not there.
    near, free : numpy.ndarray of bool, shape (pairs,)
        Both prompts are near-copies; both are free rewordings.
    """

    first: np.ndarray
    second: np.ndarray
    overlap: np.ndarray
    near: np.ndarray
    free: np.ndarray


def pairs(corpus: Corpus) -> Pairs:
    """Return all pairs of prompts of one cluster, in corpus order.

    Parameters
    ----------
    corpus : DataFrame
        Columns cluster_id, strategy and, for the overlap, text.

    Examples
    --------
    >>> rows = pd.DataFrame({"cluster_id": "a", "strategy": ["seed", "rewrite"], "text": ["How to kill weeds", "kill"]})
    >>> pairs(rows).overlap
    array([0.25])
    """
    strategy = corpus["strategy"].to_numpy()
    own = [words(text) for text in corpus["text"]] if "text" in corpus else None
    made = [pair for rows in _rows(corpus) for pair in itertools.combinations(rows, 2)]
    first, second = np.array(made, int).reshape(-1, 2).T
    overlap = np.array([jaccard(own[i], own[j]) if own else np.nan for i, j in made])
    near, free = (np.isin(strategy[first], kind) & np.isin(strategy[second], kind) for kind in (NEAR, FREE))
    return Pairs(first, second, overlap, near, free)


def _rows(corpus: Corpus) -> list[np.ndarray]:
    return list(pd.Series(range(len(corpus))).groupby(corpus["cluster_id"].to_numpy()).indices.values())


class _Totals(NamedTuple):
    """What a DR of pairs is made of: sums by cluster, and how its logarithm follows from their totals."""

    sums: np.ndarray
    log_ratio: Statistic


def _totals(
    clusters: ClusterBootstrap, corpus: Corpus, labels: Labels, first: np.ndarray, second: np.ndarray
) -> _Totals:
    label, names = labels["label"].to_numpy(), sorted(set(corpus["strategy"]))
    scored, rejected = np.isin(label, ["accept", "reject"]), label == "reject"
    strategy = np.searchsorted(names, corpus["strategy"].to_numpy().astype(str))
    cluster = clusters.codes.loc[corpus["cluster_id"]].to_numpy()
    known = scored[first] & scored[second]
    first, second = first[known], second[known]
    ends = np.sort(np.column_stack([strategy[first], strategy[second]]), axis=1)
    combinations, which = np.unique(ends, axis=0, return_inverse=True)
    size, k, m = len(clusters.codes), len(combinations), len(names)

    def table(rows: np.ndarray, column: np.ndarray, weights: np.ndarray, width: int) -> np.ndarray:
        """Sum weights by cluster and column."""
        flat = np.bincount(rows * width + column, weights=weights.astype(float), minlength=size * width)
        return flat.reshape(size, width)

    n = table(cluster, strategy, scored, m)
    r = table(cluster, strategy, scored & rejected, m)
    differ = table(cluster[first], np.zeros(len(first), int), rejected[first] != rejected[second], 1)
    counted = table(cluster[first], which.reshape(-1), np.ones(len(first)), k)
    s, t = combinations.reshape(-1, 2).T
    own = r[:, s] * (n - r)[:, t] + r[:, t] * (n - r)[:, s]
    sums = np.hstack([differ, n, r, counted, own, n[:, s] * n[:, t]])

    def log_ratio(totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ln DR and its derivatives by the totals, shape (draws, 1 + 2 strategies + 3 combinations)."""
        different, n, r, counted, own, pairs = np.split(totals, np.cumsum([1, m, m, k, k]), axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            pairs = n[:, s] * n[:, t] - pairs
            pairs = np.where(counted > 0, pairs, np.inf)  # two strategies that a resample has no pair of count not
            chance = (r[:, s] * (n - r)[:, t] + r[:, t] * (n - r)[:, s] - own) / pairs
            expected = (counted * chance).sum(axis=1, keepdims=True)
            by = counted / pairs / expected  # ln of what is expected, by the numerator of a combination's chance
            by_n, by_r = np.zeros_like(n), np.zeros_like(r)
            for one, other in ((s, t), (t, s)):
                for i in range(k):
                    by_n[:, one[i]] += by[:, i] * (r[:, other[i]] - chance[:, i] * n[:, other[i]])
                    by_r[:, one[i]] += by[:, i] * (n - 2 * r)[:, other[i]]
            slopes = np.hstack([1 / different, -by_n, -by_r, -chance / expected, by, -by * chance])
            return (np.log(different) - np.log(expected))[:, 0], slopes

    return _Totals(sums, log_ratio)


def estimate(
    clusters: ClusterBootstrap, corpus: Corpus, labels: Labels, first: np.ndarray, second: np.ndarray
) -> Estimate:
    """Estimate DR of some pairs, marginals matched by strategy.

    Parameters
    ----------
    clusters : ClusterBootstrap
    corpus, labels : DataFrame
        Rows in the same order.
    first, second : numpy.ndarray of int, shape (pairs,)
        Rows of pairs of one cluster; those of which not both are scored are left out.

    Returns
    -------
    Estimate
        At least 0: 0 where meaning decides, 1 where it does not. Bootstrap-t over clusters on the log scale. NaN where
        there is no pair, or nothing that could differ.
    """
    own = _totals(clusters, corpus, labels, first, second)
    return disagreement.bootstrap_t(clusters, own.sums, own.log_ratio)


Ends: TypeAlias = tuple[np.ndarray, np.ndarray]
"""First and second rows of pairs."""


def difference(clusters: ClusterBootstrap, corpus: Corpus, labels: Labels, one: Ends, other: Ends) -> Estimate:
    """Estimate DR of some pairs minus that of others, on the same resampled clusters; bootstrap-t.

    Parameters
    ----------
    clusters : ClusterBootstrap
    corpus, labels : DataFrame
        Rows in the same order.
    one, other : (numpy.ndarray, numpy.ndarray)
        As `first` and `second` of `estimate`.
    """
    sides = [_totals(clusters, corpus, labels, *ends) for ends in (one, other)]
    width = sides[0].sums.shape[1]

    def statistic(totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = (totals[:, :width], totals[:, width:])
        (a, up), (b, down) = (side.log_ratio(part) for side, part in zip(sides, parts, strict=True))
        a, b = np.exp(a), np.exp(b)
        return a - b, np.hstack([a[:, None] * up, -b[:, None] * down])

    found = studentized(clusters, np.hstack([side.sums for side in sides]), statistic)
    return Estimate(found.value, *found.ends(), found.draws)


def few(labels: Labels, first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether fewer than `disagreement.MIN_DECISIONS` prompts of pairs are rejected, or accepted."""
    label = labels["label"].to_numpy()[np.union1d(first, second)]
    return bool(min((label == "reject").sum(), (label == "accept").sum()) < disagreement.MIN_DECISIONS)


def estimates(clusters: ClusterBootstrap, corpus: Corpus, labels: Labels, own: Pairs) -> dict[str, Estimate]:
    """Estimate DR by shared wording.

    Parameters
    ----------
    clusters : ClusterBootstrap
    corpus, labels : DataFrame
        Rows in the same order.
    own : Pairs
        From `pairs`.

    Returns
    -------
    dict of str to Estimate
        dr_near, dr_free and difference, free minus near; dr_low and dr_high (overlap below `LOW`; `HIGH` or more) and
        low_minus_high.
    """
    chosen = {"near": own.near, "free": own.free, "low": own.overlap < LOW, "high": own.overlap >= HIGH}
    ends = {name: (own.first[mask], own.second[mask]) for name, mask in chosen.items()}
    given = (clusters, corpus, labels)
    found = {f"dr_{name}": estimate(*given, *rows) for name, rows in ends.items()}
    found["difference"] = difference(*given, ends["free"], ends["near"])
    found["low_minus_high"] = difference(*given, ends["low"], ends["high"])
    return found


def row(target: str, labels: Labels, own: Pairs, found: dict[str, Estimate]) -> dict[str, object]:
    """Return a target's row: `estimates` with intervals, their numbers of pairs and flags.

    Parameters
    ----------
    target : str
    labels : DataFrame
    own : Pairs
    found : dict of str to Estimate
        From `estimates`.
    """
    masks = {"near": own.near, "free": own.free}
    counts: dict[str, object] = {f"n_{name}": int(mask.sum()) for name, mask in masks.items()}
    flagged = any(few(labels, own.first[mask], own.second[mask]) for mask in masks.values())
    if flagged:  # an interval of a difference then bounds nothing
        found = found | {name: Estimate(found[name][0], np.nan, np.nan, found[name].draws) for name in DIFFERENCES}
    return {"target": target, **counts, **to_columns(found), "few": flagged}


def curve(target: str, clusters: ClusterBootstrap, corpus: Corpus, labels: Labels, own: Pairs) -> Table:
    """Return DR by word overlap.

    A row a bin of `STEP`: target, overlap (where the bin begins), n (pairs), dr with its interval, few.

    Parameters
    ----------
    target : str
    clusters : ClusterBootstrap
    corpus, labels : DataFrame
        Rows in the same order.
    own : Pairs
    """
    bins = np.minimum((own.overlap / STEP + 1e-9).astype(int), round(1 / STEP) - 1)
    rows = []
    for number in np.unique(bins):
        ends = own.first[bins == number], own.second[bins == number]
        found = {"dr": estimate(clusters, corpus, labels, *ends)}
        about = {"target": target, "overlap": round(number * STEP, 1), "n": len(ends[0])}
        rows.append(about | to_columns(found) | {"few": few(labels, *ends)})
    return pd.DataFrame(rows)


def tables(
    corpus: Corpus, labels: Mapping[str, Labels], clusters: ClusterBootstrap, encoder: str = ""
) -> tuple[Table, Table]:
    """Return DR by shared wording of several targets: a row each, and their curves.

    Parameters
    ----------
    corpus : DataFrame
    labels : dict of str to DataFrame
        By target, rows in corpus order.
    clusters : ClusterBootstrap
    encoder : str
        The target that compares sentence vectors, which others are held against; "" for none.

    Returns
    -------
    table, curves : DataFrame
        Rows of `row`, where `encoder` is given with difference_over_encoder and its interval: how far a target's
        difference exceeds that one's; and of `curve`.
    """
    own = pairs(corpus)
    found = {name: estimates(clusters, corpus, one, own) for name, one in labels.items()}
    rows = [row(name, one, own, found[name]) for name, one in labels.items()]
    for made in rows if encoder else ():
        over = clusters.undefined()
        if encoder in found and made["target"] != encoder:
            over = found[str(made["target"])]["difference"] - found[encoder]["difference"]
        made |= to_columns({"difference_over_encoder": over})
    curves = [curve(name, clusters, corpus, one, own) for name, one in labels.items()]
    return pd.DataFrame(rows), pd.concat(curves, ignore_index=True)
