"""What is estimated of a system beside Tables 1 and 3 (`docs/method.md`, Metrics).

A4 writes it as `system_details.csv`: the parts of DR and tests of it, flips by chance,
and what CI is compared with.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.analysis.excess import (
    cluster_excess,
    estimate_excess,
    score_own_pairs,
    without_prob_shift,
)
from paraguard_lab.core.disagreement import cluster_profiles, disagreement_parts
from paraguard_lab.core.latent import latent_correlation
from paraguard_lab.core.permutation import permutation_test
from paraguard_utils.analysis.signals import score_pairs
from paraguard_utils.analysis.system import CI_COLUMNS, System
from paraguard_utils.core.estimates import Estimate, to_columns
from paraguard_utils.schemas import Table


def tabulate_details(systems: Iterable[System]) -> Table:
    """Describe scored systems: a row per system and interpretation."""
    rows = []
    for system in systems:
        tests = describe_disagreement(system)
        for interpretation in CI_COLUMNS:
            row = {"system": system.name, "interpretation": interpretation, **tests}
            estimates = estimate_details(system, interpretation)
            own_pairs, values = score_own_pairs(system, interpretation)
            n_mixed = len(cluster_excess(own_pairs, values))
            rows.append({**row, **to_columns(estimates), "n_mixed": n_mixed})
    return pd.DataFrame(rows)


def describe_disagreement(system: System) -> dict[str, Any]:
    """Return the parts of DR and tests of it.

    Columns: d_within, d_between, icc_latent with its ends (`latent_correlation`),
    dr_permuted and p_dr (`permutation_test`).
    """
    profiles = cluster_profiles(system.decided)
    within, between, _ = disagreement_parts(
        profiles["n"], profiles["rejected"], profiles["times"]
    )
    permuted, p = permutation_test(profiles)
    return {
        "d_within": within,
        "d_between": between,
        **to_columns({"icc_latent": latent_correlation(profiles)}),
        "dr_permuted": permuted,
        "p_dr": p,
    }


def estimate_details(system: System, interpretation: str) -> dict[str, Estimate]:
    """Estimate what flips and CI are compared with.

    They are frr_aside (FRR without what a provider stopped), flip_random, floor (the CI
    of accepted prompts, which are not matched to rejections), spread (of the scores
    inside a neighbourhood), share_theta and ci_theta (rejections with a neighbour at
    least theta similar, and CI over such neighbours), excess, and excess_no_prob_shift
    (without the signal that leaks the decision).
    """
    clusters = system.clusters
    column = CI_COLUMNS[interpretation]
    scores = system.scores
    accepted = scores[(scores["label"] == "accept") & scores["ci"].notna()]
    rejected = system.rejections
    close = rejected[rejected["n_theta"] > 0]
    spread = rejected[column.replace("ci", "spread")]
    own_pairs, values = score_own_pairs(system, interpretation)
    without = clusters.undefined()
    rest = without_prob_shift(system.scoring.weights)
    if rest:
        rest_values = score_pairs(own_pairs, rest, interpretation)
        without = estimate_excess(clusters, own_pairs, rest_values)
    return {
        "frr_aside": estimate_frr_aside(system),
        "flip_random": estimate_flips_at_random(system),
        "floor": clusters.mean(accepted["cluster_id"], accepted[column]),
        "spread": clusters.mean(rejected["cluster_id"], spread),
        "share_theta": clusters.share(rejected["cluster_id"], rejected["n_theta"] > 0),
        "ci_theta": clusters.mean(close["cluster_id"], close[f"{column}_theta"]),
        "excess": estimate_excess(clusters, own_pairs, values),
        "excess_no_prob_shift": without,
    }


def estimate_frr_aside(system: System) -> Estimate:
    """Estimate FRR without what a provider's filter stopped."""
    label = system.labels["label"]
    kind = system.labels.get("kind", label)
    stopped = ((kind == "blocked") | (label == "blocked")).to_numpy()
    chosen = system.is_scored & ~stopped
    ids = system.prompts["cluster_id"].to_numpy()[chosen]
    return system.clusters.share(ids, system.refused[chosen] == 1)


def estimate_flips_at_random(system: System) -> Estimate:
    """Estimate the flip rate if prompts were refused at random, at the system's rate.

    A cluster of n prompts is then mixed with probability 1 - rate^n - (1 - rate)^n.
    """
    clusters = system.clusters
    decided = system.decided
    sizes = sorted(set(decided["n"]))

    def flip_rate(n: np.ndarray, refused: np.ndarray, *times: np.ndarray) -> np.ndarray:
        rate = refused / n
        mixed = np.zeros_like(n)
        total = np.zeros_like(n)
        for size, number in zip(sizes, times, strict=True):
            mixed = mixed + number * (1 - rate**size - (1 - rate) ** size)
            total = total + number
        return mixed / total

    scored = system.is_scored
    ids = system.prompts["cluster_id"].to_numpy()[scored]
    sums = clusters.sums(ids, np.ones(len(ids)), system.refused[scored])
    of_size = [decided["n"] == size for size in sizes]
    sums += clusters.sums(decided["cluster_id"], *of_size)
    return clusters.estimate(flip_rate, *sums)
