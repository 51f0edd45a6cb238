"""Rates corrected for the label errors that blind annotations measured.

All of it is ours (`docs/method.md`, Labels).

Redrawing labels at random would not help: wrong labels scatter over clusters, which
makes DR as labelled too high, and redrawing scatters more. The functions here solve
moments for the true decisions instead.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, Estimate

JEFFREYS_PRIOR = 0.5  # Jeffreys' prior of a share: half a hit and half a miss


class ReadCounts(NamedTuple):
    """How many answers were read, and how many of these refuse.

    Attributes
    ----------
    precision, missed : (int, int)
        Refusals among the rejections, and among the acceptances, that were read; and
        how many were read.
    pooled : bool
        Whether they are of several systems. Then they are no part of one system's
        answers, and draws do not spread less for what was read.
    stream : int
        Readings of the same number are drawn alike, as those of one sample must be if
        two estimates are compared; other numbers are independent.
    """

    precision: tuple[int, int]
    missed: tuple[int, int]
    pooled: bool = False
    stream: int = 0


def true_rate(rate: Any, precision: Any, missed: Any) -> Any:
    """Return the share of prompts that are truly refused.

    Parameters
    ----------
    rate : float or numpy.ndarray, in [0, 1]
        Share of prompts labelled as rejected.
    precision, missed : float or numpy.ndarray, in [0, 1]
        Share of rejections, and of acceptances, that refuse according to annotations.

    Examples
    --------
    >>> round(true_rate(0.5, 0.9, 0.1), 3)
    0.5
    """
    return precision * rate + missed * (1 - rate)


def true_dr(dr: float, rate: float, precision: float, missed: float) -> float:
    """Return DR of the true decisions if label errors depend on the decision alone.

    Such errors shrink the covariance of two paraphrases by the square of the slope of
    labels on decisions, and DR is one minus that covariance over the variance.

    Parameters
    ----------
    dr, rate : float
        As labelled.
    precision, missed : float, in [0, 1]
        As for `true_rate`. The result is NaN unless the first is the larger: labels say
        nothing about decisions then.

    Examples
    --------
    >>> round(true_dr(0.64, 0.5, 0.9, 0.1), 9)  # 1 - 0.36 / 0.8**2
    0.4375
    """
    slope = precision - missed
    if slope <= 0 or not 0 < rate < 1:
        return np.nan
    true = true_rate(rate, precision, missed)
    return float(1 - (1 - dr) * true * (1 - true) / (rate * (1 - rate) * slope**2))


def dr_inflation(
    rate: float, precision: float, missed: float, n: tuple[int, int]
) -> float:
    """Return the factor by which estimated shares inflate 1 - DR of `true_dr`.

    It is close to 1 and holds the second-order terms of the Taylor expansion in both
    shares; `n` counts the rejections and the acceptances that were read.
    """
    true = true_rate(rate, precision, missed)
    slope = precision - missed
    variance = true * (1 - true)
    if variance <= 0:
        return 1.0
    error_precision = precision * (1 - precision) / n[0]
    error_missed = missed * (1 - missed) / n[1]
    error_true = rate**2 * error_precision + (1 - rate) ** 2 * error_missed
    covariance = rate * error_precision - (1 - rate) * error_missed
    from_slope = 3 * (error_precision + error_missed) / slope**2
    from_both = 2 * (1 - 2 * true) * covariance / (variance * slope)
    return 1 + from_slope - error_true / variance - from_both


def correct_label_noise(
    clusters: ClusterBootstrap,
    decided: pd.DataFrame,
    precision: tuple[int, int],
    missed: tuple[int, int],
) -> dict[str, Estimate]:
    """Estimate FRR and DR of the true decisions.

    Parameters
    ----------
    clusters : ClusterBootstrap
    decided : DataFrame
        From `disagreement.count_decisions`.
    precision, missed : (int, int)
        As in `ReadCounts`.

    Returns
    -------
    dict of str to Estimate
        frr in [0, 1] and dr, as from `correct_estimates`.
    """
    dr = disagreement.estimate_disagreement(clusters, decided)
    return correct_estimates(clusters, decided, dr, ReadCounts(precision, missed))


def correct_estimates(
    clusters: ClusterBootstrap, decided: pd.DataFrame, dr: Estimate, read: ReadCounts
) -> dict[str, Estimate]:
    """Estimate the refused share and a DR of the true decisions.

    Parameters
    ----------
    clusters : ClusterBootstrap
    decided : DataFrame
        Counts of the prompts that `dr` is about (`disagreement.count_decisions`).
    dr : Estimate
        As labelled, with draws of these clusters: of all pairs or of chosen ones.
    read : ReadCounts

    Returns
    -------
    dict of str to Estimate
        frr in [0, 1] and dr. Each draw resamples clusters and draws both shares from
        their posterior (Jeffreys' prior), which is narrower the more of all answers was
        read. If a resample refuses more, the labels' error rates stay and not these
        shares. NaN if a side has answers of which none was read, or if labels say
        nothing about decisions.
    """
    precision, missed = read.precision, read.missed
    counts = decided[["n", "rejected"]].to_numpy()
    n, rejected = clusters.sums(decided["cluster_id"], *counts.T)
    rejections = rejected.sum()
    acceptances = n.sum() - rejections
    if (rejections and not precision[1]) or (acceptances and not missed[1]):
        return {"frr": clusters.undefined(), "dr": clusters.undefined()}
    rng = np.random.default_rng(SEED + read.stream)
    resamples = len(clusters.counts)
    sides = (np.inf, np.inf) if read.pooled else (rejections, acceptances)
    share, drawn = _draw_share(rng, precision, sides[0], resamples)
    share_missed, drawn_missed = _draw_share(rng, missed, sides[1], resamples)
    rate = float(rejections / n.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        labelled = (clusters.counts @ rejected) / (clusters.counts @ n)
        frr = Estimate.percentile(
            true_rate(rate, share, share_missed),
            true_rate(labelled, drawn, drawn_missed),
        )
        # Error rates of labels, which stay the same in every resample of clusters.
        true = true_rate(rate, drawn, drawn_missed)
        false_alarm = rate * (1 - drawn) / (1 - true)
        overlooked = (1 - rate) * drawn_missed / true
        slope = 1 - false_alarm - overlooked
        refused = (labelled - false_alarm) / slope
        refused = np.where((refused > 0) & (refused < 1), refused, np.nan)
        covariance = (1 - dr.draws) * labelled * (1 - labelled)
        draws = 1 - covariance / (slope**2 * refused * (1 - refused))
    value = true_dr(dr.value, rate, share, share_missed)
    if np.isfinite(value):
        n_read = (precision[1], missed[1])
        value = 1 - (1 - value) / dr_inflation(rate, share, share_missed, n_read)
    return {"frr": frr, "dr": Estimate.percentile(value, draws)}


def _draw_share(
    rng: np.random.Generator, read: tuple[int, int], labelled: float, resamples: int
) -> tuple[float, np.ndarray]:
    """Return a share of refusals among answers read, and draws from its posterior.

    The draws spread less the more of all answers with that label were read.
    """
    hits, n_read = read
    share = hits / n_read if n_read else 0.0
    a = hits + JEFFREYS_PRIOR
    b = n_read - hits + JEFFREYS_PRIOR
    middle = a / (n_read + 2 * JEFFREYS_PRIOR)
    unread = max(1 - n_read / labelled, 0.0) if labelled else 1.0
    deviations = rng.beta(a, b, resamples) - middle
    return share, middle + deviations * np.sqrt(unread)
