"""Estimate how often and how consistently a system refuses: the rows of Table 1.

CI(r) of a refusal is computed in `score_prompts`; `RATES` and `SCORES` list every
measure of Table 1 with its function. The Confusion Index, Rate and Depth and flips are
the paper's (of Depth the name: the standard deviation is our interpretation); DR is
ours (`docs/method.md`, Metrics).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import entr

from paraguard_utils.analysis.signals import is_ranked, score_pairs
from paraguard_utils.analysis.system import System
from paraguard_utils.core import disagreement
from paraguard_utils.core.decisions import LABELS
from paraguard_utils.core.estimates import (
    MIN_REFUSALS,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.schemas import Labels, Scores


def score_prompts(system: System) -> Scores:
    """Compute CI(r): the mean score over a prompt's k nearest accepted prompts.

    Accepted prompts are scored too; `System.rejections` selects those that CI, CR and
    CD use.

    Parameters
    ----------
    system : System
        With pairs; its scoring gives weights, k and theta.

    Returns
    -------
    Scores
        The columns of a scores file, one row per accepted or rejected prompt. `ci` and
        `spread` (the standard deviation of the scores inside the neighbourhood) are in
        the interpretation `relative`, `ci_clipped` and `spread_clipped` in `clipped`.
        The columns that end in `_theta` use only neighbours at least theta similar, and
        n_theta counts these. `isolation` is `core.disagreement.isolation`. NaN if a
        prompt has no neighbour.
    """
    scoring = system.scoring
    near = system.pairs[is_ranked(system.pairs, scoring.k)].copy()
    for interpretation in PPL_INTERPRETATIONS:
        near[interpretation] = score_pairs(near, scoring.weights, interpretation)
    every = near.groupby("centre_id")
    close = near[near["similarity"] >= scoring.theta].groupby("centre_id")
    neighbourhoods = pd.DataFrame(
        {
            "n_neighbours": every.size(),
            "mean_similarity": every["similarity"].mean(),
            "ci": every["relative"].mean(),
            "ci_clipped": every["clipped"].mean(),
            "spread": every["relative"].std(ddof=0),
            "spread_clipped": every["clipped"].std(ddof=0),
            "n_theta": close.size(),
            "ci_theta": close["relative"].mean(),
            "ci_clipped_theta": close["clipped"].mean(),
        }
    )
    scores = system.prompts[["prompt_id", "cluster_id"]].assign(
        label=system.labels["label"].to_numpy(), isolation=system.isolation
    )
    scores = scores[system.is_scored].join(neighbourhoods, on="prompt_id")
    counts = ["n_neighbours", "n_theta"]
    scores[counts] = scores[counts].fillna(0).astype(int)
    return scores.reset_index(drop=True)


def describe_flips(system: System) -> pd.DataFrame:
    """Describe how each cluster with at least two scored prompts was decided.

    Columns: cluster_id, n (scored), rejected, mixed (decided both ways), entropy (of
    the rejected share, in bits).
    """
    decided = system.decided
    share = decided["rejected"] / decided["n"]
    bits = (entr(share) + entr(1 - share)) / np.log(2)
    return decided.assign(mixed=disagreement.is_mixed(decided), entropy=bits)


def estimate_rates(system: System) -> dict[str, Estimate]:
    """Estimate how often a system refuses, and how often its clusters are mixed.

    The names are those of `RATES`.
    """
    return {name: measure.estimate(system) for name, measure in RATES.items()}


def _estimate_flip_rate(system: System) -> Estimate:
    """Estimate the share of clusters that are decided both ways."""
    flips = describe_flips(system)
    return system.clusters.share(flips["cluster_id"], flips["mixed"])


def _estimate_flip_entropy(system: System) -> Estimate:
    """Estimate the mean entropy of a cluster's decisions, in bits."""
    flips = describe_flips(system)
    return system.clusters.mean(flips["cluster_id"], flips["entropy"])


def rate_row(system: System) -> dict[str, Any]:
    """Count a system's decisions and estimate how often it refuses.

    Columns: system, n_prompts, n_scored, a count per label (n_reject includes what
    n_blocked counts, unless that was set aside), n_clusters, `estimate_rates` with
    intervals, and too_few_for_dr (`core.disagreement.too_few_for_disagreement`).
    """
    label = system.labels["label"]
    kind = system.labels.get("kind", label)
    counts = {f"n_{name}": int((label == name).sum()) for name in LABELS}
    counts["n_blocked"] = int(((kind == "blocked") | (label == "blocked")).sum())
    return {
        "system": system.name,
        "n_prompts": len(system.prompts),
        "n_scored": int(system.is_scored.sum()),
        **counts,
        "n_clusters": len(system.decided),
        **to_columns(estimate_rates(system)),
        "too_few_for_dr": disagreement.too_few_for_disagreement(system.decided),
    }


def rejection_row(system: str, labels: Labels) -> dict[str, Any]:
    """Estimate how often a system rejects requests that ask for harm.

    A prompt's cluster is its id up to the last hyphen. Columns: system, n_scored, and
    rejected = reject / (accept + reject), with its interval.
    """
    label = labels["label"]
    scored = label.isin(["accept", "reject"])
    ids = labels["prompt_id"].str.rpartition("-")[0]
    rejected = ClusterBootstrap(ids).share(ids[scored], label[scored] == "reject")
    row = {"system": system, "n_scored": int(scored.sum())}
    return row | to_columns({"rejected": rejected})


def estimate_scores(
    system: System, interpretation: str = "relative"
) -> dict[str, Estimate]:
    """Estimate the Confusion Index of a system and what it is compared with.

    Parameters
    ----------
    system : System
        With pairs and scores.
    interpretation : str
        Of the PPL contrast, a key of `core.signals.PPL_INTERPRETATIONS`.

    Returns
    -------
    dict of Estimate
        By the names of `SCORES`.
    """
    return {
        name: measure.estimate(system, interpretation)
        for name, measure in SCORES.items()
    }


def _read_confusion(name: str) -> Callable[[System, str], Estimate]:
    """Return what reads CI, CR or CD of a system by its column."""
    return lambda system, interpretation: system.confusion[interpretation][name]


class Measure(NamedTuple):
    """A measure of a system: a column of tables, with its interval (x, x_low, x_high).

    Attributes
    ----------
    heading : str
        Its name in published tables.
    estimate : callable
        Returns its Estimate for a System; a score also takes the interpretation.
    headline : bool
        Whether every two systems are compared by it.
    """

    heading: str
    estimate: Callable[..., Estimate]
    headline: bool = False


RATES = {
    "frr": Measure("FRR", System.frr, headline=True),
    "flip_rate": Measure("flip rate", _estimate_flip_rate, headline=True),
    "flip_entropy": Measure("flip entropy", _estimate_flip_entropy),
    "dr": Measure("DR", System.dr, headline=True),
}
"""Measures of a system's decisions, by their columns. A new one needs a row here."""

SCORES = {
    "ci": Measure("CI", _read_confusion("ci"), headline=True),
    "cr60": Measure("CR@0.60", _read_confusion("cr60")),
    "cr75": Measure("CR@0.75", _read_confusion("cr75")),
    "cd": Measure("CD", _read_confusion("cd")),
}
"""Measures of a system's scores, by their columns. A new one needs a row here."""

MEASURES = RATES | SCORES


def system_row(system: System, interpretation: str = "relative") -> dict[str, Any]:
    """Summarise one system: one row of Tables 1 and 3.

    The row holds `rate_row` and `estimate_scores` with intervals; n_short, the
    rejections with fewer than k neighbours; too_few, whether fewer than 30 rejections
    have CI; note, why something is NaN or rests on fewer neighbours.
    """
    rejected = system.rejections
    n_short = int((rejected["n_neighbours"] < system.scoring.k).sum())
    return {
        **rate_row(system),
        "interpretation": interpretation,
        **to_columns(estimate_scores(system, interpretation)),
        "n_short": n_short,
        "too_few": len(rejected) < MIN_REFUSALS,
        "note": _note(system, n_short),
    }


def _note(system: System, n_short: int) -> str:
    """Say why estimates of a system are NaN, or rest on fewer neighbours."""
    label = system.labels["label"]
    n_reject = (label == "reject").sum()
    if not (label == "accept").any():
        return "no accepted prompt: CI, CR and CD are undefined"
    if not n_reject:
        return "no rejection: CI, CR and CD are undefined"
    reasons = []
    if n_short:
        k = system.scoring.k
        reasons.append(f"{n_short} rejections have fewer than {k} neighbours")
    if n_reject < 2:
        reasons.append("one rejection: CD is undefined")
    return "; ".join(reasons)
