"""Estimate how much of a decision harm explains, and how much the topic (ours).

(`docs/method.md`, What a decision hangs on)
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from paraguard_lab.analysis.rephrasing import count_benign_decisions
from paraguard_lab.core.inference import estimate_parts, jackknife_t
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, to_columns
from paraguard_utils.schemas import Table

MIN_REFUSED_EACH = 50
"""With fewer refusals, or fewer answers, to harmless prompts or to twins, the intervals
of the parts are too narrow (`benchmarks/hangs_on.py`).
"""

HARM_PARTS = ("harm", "topic", "topic_by_harm", "rest")
"""Parts of the variance over harmless and harmful prompts, which sum to 1."""


def harm_shares(
    n: np.ndarray, r: np.ndarray, n_twin: np.ndarray, r_twin: np.ndarray
) -> np.ndarray:
    """Return the sums of a cluster that `split_totals` needs, shape (clusters, 10).

    Parameters
    ----------
    n, r : numpy.ndarray, shape (clusters,)
        Harmless prompts, and those refused.
    n_twin, r_twin : numpy.ndarray, shape (clusters,)
        The same of the twins.
    """
    columns = [n, r, n_twin, r_twin, n * n, r * r, n_twin**2, r_twin**2]
    return np.column_stack([*columns, n * n_twin, r * r_twin]).astype(float)


def split_totals(totals: np.ndarray) -> dict[str, np.ndarray]:
    """Return `HARM_PARTS` from totals of `harm_shares`, shape (draws, 10).

    Every part is made of products of the decisions of two different prompts.
    """
    n, r, n_twin, r_twin, nn, rr, nn_twin, rr_twin, n_both, r_both = totals.T
    with np.errstate(divide="ignore", invalid="ignore"):
        same_topic = [
            (rr - r) / (nn - n),
            (rr_twin - r_twin) / (nn_twin - n_twin),
        ]
        other_topic = [
            (r * r - rr) / (n * n - nn),
            (r_twin**2 - rr_twin) / (n_twin**2 - nn_twin),
        ]
        c11 = np.mean(same_topic, axis=0)
        c01 = np.mean(other_topic, axis=0)
        c10 = r_both / n_both
        c00 = (r * r_twin - r_both) / (n * n_twin - n_both)
        mean = (r / n + r_twin / n_twin) / 2
        variance = mean - (c01 + c00) / 2
        parts = {
            "harm": (c01 - c00) / 2 / variance,
            "topic": (c10 - c00) / variance,
            "topic_by_harm": (c11 - c10 - c01 + c00) / variance,
        }
    parts["rest"] = 1 - sum(parts.values())
    return parts


def estimate_harm(
    clusters: ClusterBootstrap, sums: np.ndarray
) -> tuple[dict[str, Estimate], bool]:
    """Estimate `HARM_PARTS` from `harm_shares` of the clusters.

    The interval of `harm` is a percentile interval: where harm explains nothing, this
    part is of second order, and the jackknife is too narrow.

    Returns
    -------
    estimates : dict of Estimate
    too_few : bool
        There are too few refusals or answers on a side (`MIN_REFUSED_EACH`).
    """

    def shares(*totals: np.ndarray) -> dict[str, np.ndarray]:
        return split_totals(np.column_stack(totals))

    parts = estimate_parts(clusters, shares, HARM_PARTS, sums.T)
    left_out = split_totals(sums.sum(axis=0) - sums)
    for name in HARM_PARTS[1:]:
        parts[name] = jackknife_t(parts[name], left_out[name])
    n, refused, n_twins, refused_twins = sums.sum(axis=0)[:4]
    rarest = min(refused, n - refused, refused_twins, n_twins - refused_twins)
    return parts, bool(rarest < MIN_REFUSED_EACH)


def harm_row(system: System, twins: System) -> dict[str, object]:
    """Split the variance of one system's decisions on harmless prompts and twins.

    Returns
    -------
    dict
        system; n_clusters, those with two decisions or more on both sides; with
        intervals frr, twins (the share refused) and `HARM_PARTS`; too_few
        (`estimate_harm`).
    """
    sides = [count_benign_decisions(one) for one in (system, twins)]
    both = sides[0].merge(sides[1], on="cluster_id", suffixes=("", "_twin"))
    clusters = ClusterBootstrap(
        both["cluster_id"], system.clusters.resamples, system.clusters.seed
    )
    names = ["n", "rejected", "n_twin", "rejected_twin"]
    sums = harm_shares(*both[names].to_numpy(float).T)
    sums = np.column_stack(clusters.sums(both["cluster_id"], *sums.T))
    parts, too_few = estimate_harm(clusters, sums)
    rates = {
        "frr": clusters.estimate(lambda n, r: r / n, sums[:, 0], sums[:, 1]),
        "twins": clusters.estimate(lambda n, r: r / n, sums[:, 2], sums[:, 3]),
    }
    about = {"system": system.name, "n_clusters": len(both)}
    return about | to_columns(rates | parts) | {"too_few": too_few}


def tabulate_harm(systems: Iterable[System], twins: Mapping[str, System]) -> Table:
    """Return `harm_row` of every system that has decided on twins."""
    rows = [
        harm_row(system, twins[system.name])
        for system in systems
        if system.name in twins
    ]
    return pd.DataFrame(rows)
