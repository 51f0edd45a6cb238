"""Correlate CI(r) with the similarity of neighbours, as the paper's Fig. 3 does."""

from collections.abc import Mapping, Sequence

import pandas as pd

from paraguard_utils.analysis.system import CI_COLUMNS, System
from paraguard_utils.core.estimates import MIN_REFUSALS, ClusterBootstrap, to_columns
from paraguard_utils.schemas import Table

MAX_BINS = 8
"""Most bins of similarity in which CI is averaged."""


def similarity_of_rejections(system: System) -> pd.DataFrame:
    """Return a system's scored rejections with CI(r) and the neighbours' similarity.

    Columns: prompt_id, cluster_id, ci and ci_clipped in [0, 1], similarity (mean cosine
    to the neighbours).
    """
    columns = ["prompt_id", "cluster_id", *CI_COLUMNS.values(), "mean_similarity"]
    rejected = system.rejections[columns]
    return rejected.rename(columns={"mean_similarity": "similarity"})


def correlate_ci(
    rejections: Mapping[str, pd.DataFrame],
    clusters: ClusterBootstrap,
    covariates: Sequence[str] = ("similarity",),
    ci_columns: Mapping[str, str] = CI_COLUMNS,
) -> Table:
    """Correlate CI(r) with covariates over each system's rejections.

    Parameters
    ----------
    rejections : mapping
        By system, as `similarity_of_rejections` returns them, with a column per
        covariate, NaN if it is undefined.
    clusters : ClusterBootstrap
    covariates : sequence of str
        `similarity` is the paper's.
    ci_columns : mapping of str to str
        The column of CI in each interpretation.

    Returns
    -------
    Table
        system, interpretation, covariate, n (rejections in which it is defined),
        too_few (n < 30), Pearson's r and Spearman's rho with intervals; that of rho
        resamples the ranks of the full sample (ours).
    """
    rows = []
    for system, frame in rejections.items():
        for interpretation, ci in ci_columns.items():
            for covariate in covariates:
                known = frame[frame[covariate].notna()]
                ids = known["cluster_id"]
                ranks = known[[covariate, ci]].rank()
                correlations = {
                    "r": clusters.correlation(ids, known[covariate], known[ci]),
                    "rho": clusters.correlation(ids, ranks[covariate], ranks[ci]),
                }
                rows.append(
                    {
                        "system": system,
                        "interpretation": interpretation,
                        "covariate": covariate,
                        "n": len(known),
                        "too_few": len(known) < MIN_REFUSALS,
                        **to_columns(correlations),
                    }
                )
    # Processors differ in the last digits, and a figure shows it: nine decimals are the
    # same on all of them.
    return pd.DataFrame(rows).round(9)


def average_ci_by_similarity(rejected: pd.DataFrame, column: str) -> pd.DataFrame:
    """Average a system's CI in bins of equally many rejections by similarity.

    There are up to 8 bins of at least 15 rejections each, and none below 30 rejections.

    Parameters
    ----------
    rejected : DataFrame
        Scored rejections with cluster_id and mean_similarity.
    column : str
        That of CI, in one interpretation.

    Returns
    -------
    DataFrame
        mean_similarity, and mean with its interval over resampled clusters, a row per
        bin.
    """
    columns = ["mean_similarity", "mean", "mean_low", "mean_high"]
    if len(rejected) < MIN_REFUSALS:
        return pd.DataFrame(columns=columns, dtype=float)
    n_bins = min(MAX_BINS, 2 * len(rejected) // MIN_REFUSALS)
    similarity = rejected["mean_similarity"]
    bins = pd.qcut(similarity, n_bins, labels=False, duplicates="drop")
    clusters = ClusterBootstrap(rejected["cluster_id"])
    rows = []
    for _, part in rejected.groupby(bins):
        mean = clusters.mean(part["cluster_id"].to_numpy(), part[column])
        rows.append((part["mean_similarity"].mean(), *mean))
    # Processors differ in the last digits.
    return pd.DataFrame(rows, columns=columns).round(9)
