"""Tabulate which refusals are confused: Table 2.

The bins are the paper's (`docs/method.md`, Cohorts and regression).
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from paraguard_utils.analysis.system import CI_COLUMNS, System
from paraguard_utils.core.confusion import CR_THRESHOLDS, THETA, to_percent
from paraguard_utils.core.estimates import (
    MIN_REFUSALS,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.schemas import Table
from paraguard_utils.settings import Gates

BIN_NAMES = ("low", "middle", "high")

BINNINGS = {"quantile": "thirds of a system's own rejections", "fixed": "fixed edges"}
"""Thirds fill the cells of one system evenly; fixed edges mean the same for all systems
and make them comparable.
"""

RISK_BIN_EDGES = tuple(np.linspace(Gates().min_risk, Gates().max_risk, 4)[1:3].tolist())
"""Fixed edges of surface risk: the gates' interval in three equal steps (ours)."""

SIMILARITY_BIN_EDGES = (THETA, 0.80)
"""Fixed edges of mean similarity (ours): below the first, neighbours are no paraphrases
on average; 0.80 halves the rest.
"""


def cut_into_thirds(values: pd.Series) -> pd.Series:
    """Cut values into three bins (`BIN_NAMES`) of about equal size.

    Equal values share a bin, so one may be empty.
    """
    ranks = values.rank(method="min", pct=True)
    bins = pd.cut(ranks, [0, 1 / 3, 2 / 3, 1], labels=list(BIN_NAMES))
    return bins.astype(str)


def cut_at_edges(values: pd.Series, edges: Sequence[float]) -> pd.Series:
    """Cut values at two ascending edges into three bins (`BIN_NAMES`).

    An edge belongs to the bin above it.
    """
    low, high = edges
    bounds = [-np.inf, low, high, np.inf]
    bins = pd.cut(values, bounds, labels=list(BIN_NAMES), right=False)
    return bins.astype(str)


def bin_rejections(system: System, bins: str = "quantile") -> pd.DataFrame:
    """Return a system's scored rejections with their risk and bins.

    `bins` is a key of `BINNINGS`. The columns beside those of a scores file are risk,
    risk_bin and similarity_bin.
    """
    risk = system.prompts[["prompt_id", "risk"]]
    rejected = system.rejections.merge(risk, on="prompt_id")
    edges = {"risk": RISK_BIN_EDGES, "similarity": SIMILARITY_BIN_EDGES}
    columns = {"risk": "risk", "similarity": "mean_similarity"}
    for name, column in columns.items():
        if bins == "quantile":
            binned = cut_into_thirds(rejected[column])
        else:
            binned = cut_at_edges(rejected[column], edges[name])
        rejected[f"{name}_bin"] = binned
    return rejected


def cohort_table(system: System, bins: str = "quantile") -> Table:
    """Tabulate CI, CR and isolation by cohort: one system's part of Table 2.

    Parameters
    ----------
    system : System
        With scores.
    bins : str
        A key of `BINNINGS`.

    Returns
    -------
    Table
        A row per interpretation, risk bin and similarity bin (`all` = margin): bounds,
        n, n_clusters, ci, cr60, cr75 and isolation with intervals, too_few; gap60 and
        gap75, the cohort's CR minus that of the system's other rejections, with the
        number of `rest_clusters`. NaN in empty cells, with a `note`.
    """
    rejected = bin_rejections(system, bins)
    choices = (*BIN_NAMES, "all")
    rows = []
    for interpretation, risk, similarity in itertools.product(
        CI_COLUMNS, choices, choices
    ):
        inside = (rejected["risk_bin"] == risk) | (risk == "all")
        inside &= (rejected["similarity_bin"] == similarity) | (similarity == "all")
        row = {
            "system": system.name,
            "bins": bins,
            "interpretation": interpretation,
            "risk": risk,
            "similarity": similarity,
        }
        ci = CI_COLUMNS[interpretation]
        rows.append(row | _describe_cohort(rejected, inside, ci, system.clusters))
    return pd.DataFrame(rows)


def _describe_cohort(
    rejected: pd.DataFrame, inside: pd.Series, ci: str, clusters: ClusterBootstrap
) -> dict[str, Any]:
    """Compare some rejections with the others, by the column `ci`."""
    cell = rejected[inside]
    rest = rejected[~inside]
    isolated = cell[cell["isolation"].notna()]
    estimates = {
        "ci": clusters.mean(cell["cluster_id"], cell[ci]),
        "isolation": clusters.mean(isolated["cluster_id"], isolated["isolation"]),
    }
    for tau in CR_THRESHOLDS:
        cr = clusters.share(cell["cluster_id"], cell[ci] >= tau)
        cr_of_rest = clusters.share(rest["cluster_id"], rest[ci] >= tau)
        estimates[f"cr{to_percent(tau)}"] = cr
        estimates[f"gap{to_percent(tau)}"] = share_difference(cr, cr_of_rest)
    note = ""
    if rest.empty:
        note = "no rejection outside: the gap is undefined"
    if cell.empty:
        note = "no rejection in this cohort"
    return {
        "risk_from": cell["risk"].min(),
        "risk_to": cell["risk"].max(),
        "similarity_from": cell["mean_similarity"].min(),
        "similarity_to": cell["mean_similarity"].max(),
        "n": len(cell),
        "n_clusters": cell["cluster_id"].nunique(),
        **to_columns(estimates),
        "rest_clusters": rest["cluster_id"].nunique(),
        "too_few": len(cell) < MIN_REFUSALS,
        "note": note,
    }


def share_difference(first: Estimate, second: Estimate) -> Estimate:
    """Estimate the first of two shares minus the second, paired by resample.

    If one of them is 0 or 1, resamples show none of its uncertainty, and the interval
    is Newcombe's.
    """
    value = first.value - second.value
    draws = first.draws - second.draws
    if np.isnan([*first, *second]).any():
        return Estimate(value, np.nan, np.nan, draws)
    if first.value in (0, 1) or second.value in (0, 1):
        down = np.hypot(first.value - first.low, second.high - second.value)
        up = np.hypot(first.high - first.value, second.value - second.low)
        return Estimate(value, value - down, value + up, draws)
    return first - second
