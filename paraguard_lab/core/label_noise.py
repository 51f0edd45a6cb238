"""Rates corrected for the label errors that blind readings measured (`docs/method.md`,
Labels). All of it ours.

Redrawing labels at random would not help: wrong labels scatter over clusters, which
makes DR as labelled too high, and redrawing scatters more. The functions here solve
moments for the true decisions instead.
"""

from typing import Any

import numpy as np
import pandas as pd

from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, Estimate

JEFFREYS_PRIOR = 0.5  # Jeffreys' prior of a share: half a hit and half a miss


def true_rate(rate: Any, precision: Any, missed: Any) -> Any:
    """Return the share of prompts that are truly refused.

    Parameters
    ----------
    rate : float or numpy.ndarray, in [0, 1]
        Share of prompts labelled as rejected.
    precision, missed : float or numpy.ndarray, in [0, 1]
        Share of rejections, and of acceptances, that refuse according to readings.

    Examples
    --------
    >>> round(true_rate(0.5, 0.9, 0.1), 3)
    0.5
    """
    return precision * rate + missed * (1 - rate)


def true_dr(dr: float, rate: float, precision: float, missed: float) -> float:
    """Return DR of the true decisions if the errors of labels depend on the decision
    alone.

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
    t, slope = true_rate(rate, precision, missed), precision - missed
    if slope <= 0 or not 0 < rate < 1:
        return np.nan
    return float(1 - (1 - dr) * t * (1 - t) / (rate * (1 - rate) * slope**2))


def dr_inflation(
    rate: float, precision: float, missed: float, n: tuple[int, int]
) -> float:
    """Return the factor by which estimating both shares of `true_dr` inflates 1 - DR on
    average.

    It is close to 1 and holds the second-order terms of the Taylor expansion; `n`
    counts rejections and acceptances read.
    """
    t, slope = true_rate(rate, precision, missed), precision - missed
    spread = t * (1 - t)
    if spread <= 0:
        return 1.0
    own, other = precision * (1 - precision) / n[0], missed * (1 - missed) / n[1]
    of_t, common = (
        rate**2 * own + (1 - rate) ** 2 * other,
        rate * own - (1 - rate) * other,
    )
    return (
        1
        + 3 * (own + other) / slope**2
        - of_t / spread
        - 2 * (1 - 2 * t) * common / (spread * slope)
    )


def correct_label_noise(
    clusters: ClusterBootstrap,
    decided: pd.DataFrame,
    precision: tuple[int, int],
    missed: tuple[int, int],
) -> dict[str, Estimate]:
    """Estimate FRR and DR of the true decisions.

    Parameters
    ----------
    decided : DataFrame
        From `disagreement.count_decisions`.
    precision, missed : (int, int)
        Refusals among the rejections, and among the acceptances, that were read; and
        how many were read.

    Returns
    -------
    dict of str to Estimate
        frr in [0, 1] and dr. Each draw resamples clusters and draws both shares from
        their posterior (Jeffreys' prior), which is narrower the more of all answers was
        read. If a resample refuses more, the labels' error rates stay and not these
        shares. NaN if a side has answers of which none was read, or if labels say
        nothing about decisions.
    """
    n, r = (
        clusters.sums(decided["cluster_id"], decided[name])
        for name in ("n", "rejected")
    )
    rate = float(r.sum() / n.sum())
    sides = {"precision": (precision, r.sum()), "missed": (missed, n.sum() - r.sum())}
    if any(there and not read for (_, read), there in sides.values()):
        return dict.fromkeys(("frr", "dr"), clusters.undefined())
    shares = {
        name: hits / read if read else 0.0 for name, ((hits, read), _) in sides.items()
    }
    rng, drawn = np.random.default_rng(SEED), {}
    for name, ((hits, read), there) in sides.items():
        middle = (hits + JEFFREYS_PRIOR) / (read + 2 * JEFFREYS_PRIOR)
        wide = (
            rng.beta(
                hits + JEFFREYS_PRIOR,
                read - hits + JEFFREYS_PRIOR,
                len(clusters.counts),
            )
            - middle
        )
        drawn[name] = middle + wide * np.sqrt(
            max(1 - read / there, 0.0) if there else 1.0
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        labelled = (clusters.counts @ r) / (clusters.counts @ n)
        found = {
            "frr": Estimate.percentile(
                true_rate(rate, **shares), true_rate(labelled, **drawn)
            )
        }
        t, own = (
            true_rate(rate, **drawn),
            disagreement.estimate_disagreement(clusters, decided),
        )
        false, lost = (
            rate * (1 - drawn["precision"]) / (1 - t),
            (1 - rate) * drawn["missed"] / t,
        )
        slope = 1 - false - lost
        refuses = (labelled - false) / slope
        refuses = np.where((refuses > 0) & (refuses < 1), refuses, np.nan)
        meaning = (
            (1 - own.draws)
            * labelled
            * (1 - labelled)
            / (slope**2 * refuses * (1 - refuses))
        )
    value = true_dr(own[0], rate, **shares)
    if np.isfinite(value):
        value = 1 - (1 - value) / dr_inflation(
            rate, **shares, n=(precision[1], missed[1])
        )
    return found | {"dr": Estimate.percentile(value, 1 - meaning)}
