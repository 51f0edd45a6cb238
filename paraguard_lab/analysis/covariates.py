"""Correlate CI with what it may repeat (`docs/method.md`, What CI adds)."""

from collections.abc import Mapping

import pandas as pd

from paraguard_lab.analysis.near_identical import content_word_overlaps
from paraguard_lab.analysis.tokens import trace_lengths
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.similarity import correlate_ci, similarity_of_rejections
from paraguard_utils.analysis.system import CI_COLUMNS, System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.schemas import Table

COVARIATE_TITLES = {
    "similarity": "similarity to neighbours",
    "jaccard": "word overlap with neighbours",
    "risk": "surface risk",
    "length": "prompt length",
    "cluster_frr": "refusals in its cluster",
    "flip_entropy": "flip entropy of its cluster",
}
"""What is known of a rejection without token signals."""

SIGNAL_TITLES = {
    "drift": "Drift",
    "prob_shift": "ProbShift",
    "ppl": "PPL contrast",
}
"""The signals, of which CI is the weighted mean."""

CORRELATION_LIMIT = 0.7
"""The lower edge of the paper's break condition on the correlation with similarity."""


def ci_covariates(system: System) -> pd.DataFrame:
    """Return the covariates of CI of each scored rejection.

    Parameters
    ----------
    system : System
        With traces, pairs and scores.

    Returns
    -------
    DataFrame
        prompt_id, cluster_id, ci and ci_clipped in [0, 1]; similarity (mean cosine to
        its neighbours), jaccard (mean content-word overlap with them), risk, length
        (tokens of its own words), cluster_frr (share of the *other* scored prompts of
        its cluster that are refused, NaN without any: counting itself would give small
        clusters a high rate), flip_entropy (of its cluster, in bits); drift,
        prob_shift, ppl_relative, ppl_clipped, means over its k nearest neighbours.
    """
    pairs = system.pairs
    near = signals.is_ranked(pairs, system.scoring.k)
    near = pairs[near & (pairs["centre_label"] == "reject")]
    overlaps = content_word_overlaps(
        system.prompts, near["centre_id"], near["neighbour_id"]
    )
    columns = ["jaccard", "drift", "prob_shift", *PPL_INTERPRETATIONS.values()]
    means = near.assign(jaccard=overlaps).groupby("centre_id")[columns].mean()
    prompts = system.prompts.set_index("prompt_id")[["risk"]]
    prompts["length"] = trace_lengths(system.traces)
    flips = confusion.describe_flips(system).set_index("cluster_id")
    clusters = pd.DataFrame(
        {
            "cluster_frr": (flips["rejected"] - 1) / (flips["n"] - 1),
            "flip_entropy": flips["entropy"],
        }
    )
    rows = similarity_of_rejections(system).join(means, on="prompt_id")
    rows = rows.join(prompts, on="prompt_id").join(clusters, on="cluster_id")
    return rows.reset_index(drop=True)


def correlate_covariates(
    rejections: Mapping[str, pd.DataFrame], clusters: ClusterBootstrap
) -> Table:
    """Correlate CI(r) with each covariate and signal over each system's rejections.

    `rejections` are by system, from `ci_covariates`. Each interpretation is compared
    with its own PPL contrast. The columns are those of `similarity.correlate_ci`.
    """
    covariates = (*COVARIATE_TITLES, *SIGNAL_TITLES)
    tables = []
    for system, frame in rejections.items():
        for interpretation, column in PPL_INTERPRETATIONS.items():
            frames = {system: frame.assign(ppl=frame[column])}
            ci = {interpretation: CI_COLUMNS[interpretation]}
            tables.append(correlate_ci(frames, clusters, covariates, ci))
    return pd.concat(tables, ignore_index=True)
