"""Rates without the errors of labels that blind readings measured (`docs/method.md`, Labels). All of it ours."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from paraguard_utils.bootstrap import SEED, Clusters, columns
from paraguard_utils.querying.readings import against_labels
from paraguard_utils.schemas import Corpus, Labels, Table
from paraguard_utils.scoring import disagreement

DRAWS = 1000
PRIOR = 0.5
"""Jeffreys' prior of a share: half a hit and half a miss."""


def chances(labels: Labels, both: pd.DataFrame, precision: np.ndarray, missed: np.ndarray) -> np.ndarray:
    """Return how probably each labelled answer refuses.

    Parameters
    ----------
    labels : DataFrame
        One target's, n rows.
    both : DataFrame
        Its readings beside labels (`readings.joined`): what was read counts as read.
    precision, missed : numpy.ndarray, shape (draws,)
        Share of rejections, and of acceptances, that refuse.

    Returns
    -------
    numpy.ndarray, shape (n, draws)
        In [0, 1]; NaN for what is neither accepted nor rejected, and where no reading tells the share.
    """
    label = labels["label"].to_numpy()
    found = np.where((label == "reject")[:, None], precision, missed)
    sure = both[both["reads"] != "differ"].set_index("prompt_id")["reads"]
    reads = labels["prompt_id"].map(sure).to_numpy(object)
    found[reads == "reject"], found[reads == "accept"] = 1.0, 0.0
    found[~np.isin(label, ["accept", "reject"])] = np.nan
    return found


def redrawn(labels: Labels, both: pd.DataFrame, rng: np.random.Generator) -> Labels:
    """Undo the measured errors of a target's labels at random, once.

    Parameters
    ----------
    labels : DataFrame
    both : DataFrame
        From `readings.joined`, of this target.
    rng : numpy.random.Generator

    Returns
    -------
    DataFrame
    """
    measured = against_labels(both).iloc[0]
    shares = (np.array([float(measured[name])]) for name in ("precision", "missed"))
    chance = chances(labels, both, *shares)[:, 0]
    drawn = np.where(rng.random(len(labels)) < chance, "reject", "accept")
    return labels.assign(label=labels["label"].where(np.isnan(chance), drawn))


def corrected(corpus: Corpus, labels: Mapping[str, Labels], both: pd.DataFrame, clusters: Clusters) -> Table:
    """Correct rates for the measured errors of labels.

    Labels that were read are replaced by the readings; of all others a rejection stays one with the probability
    `precision` and an acceptance becomes one with the probability `missed` of its target, each by itself: errors that
    fall on whole clusters would move fewer flips and less of DR. The value takes the measured shares, the interval
    draws them from their posterior (Jeffreys' prior), and clusters with replacement.

    Parameters
    ----------
    corpus : DataFrame
    labels : dict of str to DataFrame
        By target, rows in corpus order.
    both : DataFrame
        From `readings.joined`.
    clusters : bootstrap.Clusters

    Returns
    -------
    DataFrame
        target; frr, flip_rate (share of clusters with both labels) and dr, as labelled and corrected; usable, the share
        of prompts with a usable answer. The corrected ones and `usable` with percentile intervals; NaN where
        no rejection, or no acceptance, of the target was read and there are any.
    """
    known = against_labels(both).set_index("target")
    rows = [
        {"target": target} | _corrected(corpus, own, both[both["target"] == target], known.loc[target], clusters)
        for target, own in labels.items()
        if target in known.index
    ]
    return pd.DataFrame(rows)


def _corrected(
    corpus: Corpus, labels: Labels, both: pd.DataFrame, measured: pd.Series, clusters: Clusters
) -> dict[str, float | bool]:
    rng = np.random.default_rng(SEED)
    scored = labels["label"].isin(["accept", "reject"]).to_numpy()
    codes = clusters.codes.loc[corpus["cluster_id"]].to_numpy()[scored]
    reject = (labels["label"] == "reject").to_numpy()[scored]
    size = len(clusters.codes)
    n = np.bincount(codes, minlength=size)
    paired = n > 1

    def rates(refused: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
        """One rate a draw: `counts` says how often each draw takes each cluster; both have shape (draws, clusters)."""
        mixed = (refused > 0) & (refused < n)
        return {
            "frr": (counts * refused).sum(axis=1) / (counts @ n),
            "flip_rate": (counts * mixed).sum(axis=1) / (counts @ paired),
            "dr": disagreement.ratios(n[paired], refused[:, paired], counts[:, paired]),
        }

    def drawn(shares: Sequence[np.ndarray], counts: np.ndarray) -> dict[str, np.ndarray]:
        precision, missed, usable = shares
        chance = chances(labels, both, precision, missed)[scored]
        refuses = rng.random(chance.shape) < chance
        refused = np.stack([np.bincount(codes, draw, size) for draw in refuses.T.astype(float)])
        accepted = (counts * np.bincount(codes, ~reject, size)).sum(axis=1)
        return rates(refused, counts) | {"usable": accepted / (counts @ n) * usable}

    posterior, as_measured = [], []
    for name, of in (("precision", "rejections"), ("missed", "acceptances"), ("usable", "acceptances")):
        number = int(measured[of])
        share = float(np.nan_to_num(measured[name]))
        as_measured.append(np.full(DRAWS, share))
        posterior.append(rng.beta(number * share + PRIOR, number * (1 - share) + PRIOR, DRAWS))
    whole = np.ones((DRAWS, size))
    values = drawn(as_measured, whole)
    draws = drawn(posterior, clusters.counts[np.arange(DRAWS) % len(clusters.counts)])
    labelled = rates(np.bincount(codes, reject, size)[None], whole[:1])
    row: dict[str, float | bool] = {"noisy": bool(measured["noisy"])}
    row |= {f"{name}_labelled": float(value[0]) for name, value in labelled.items()}
    unread = (reject.any() and not measured["rejections"]) or (not reject.all() and not measured["acceptances"])
    for name, value in values.items():
        known, drawn_known = value[np.isfinite(value)], draws[name][np.isfinite(draws[name])]
        told = not unread and len(known) and len(drawn_known)
        triple = (float(known.mean()), *np.percentile(drawn_known, [2.5, 97.5])) if told else (np.nan,) * 3
        row |= columns({name: triple})
    return row
