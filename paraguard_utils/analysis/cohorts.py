"""Tabulate which refusals are confused, and which rewordings flip them: Table 2.

The bins are the paper's (`docs/method.md`, Cohorts and regression).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from paraguard_utils.analysis.system import CI_COLUMNS, System, select_rejections
from paraguard_utils.core.confusion import CR_THRESHOLDS, THETA, to_percent
from paraguard_utils.core.estimates import (
    MIN_REFUSALS,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.schemas import STRATEGIES, Table
from paraguard_utils.settings import Gates

BIN_NAMES = ("low", "middle", "high")

BINNINGS = {"quantile": "thirds of a system's own rejections", "fixed": "fixed edges"}
"""Thirds fill the cells of one system evenly; fixed edges mean the same for all systems
and make them comparable.
"""

_MIN_RISK = Gates().min_risk
_RISK_WIDTH = Gates().max_risk - _MIN_RISK
RISK_BIN_EDGES = (_MIN_RISK + _RISK_WIDTH * (1 / 3), _MIN_RISK + _RISK_WIDTH * (2 / 3))
"""Fixed edges of surface risk: the gates' interval in three equal steps (ours)."""

SIMILARITY_BIN_EDGES = (THETA, 0.80)
"""Fixed edges of mean similarity (ours): below the first, neighbours are no paraphrases
on average; 0.80 halves the rest.
"""

GROUPINGS = ("strategy", "category", "topical")


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
    bins, risk_bin and similarity_bin.
    """
    risk = system.prompts[["prompt_id", "risk"]]
    rejected = system.rejections.merge(risk, on="prompt_id").assign(bins=bins)
    if bins == "quantile":
        rejected["risk_bin"] = cut_into_thirds(rejected["risk"])
        rejected["similarity_bin"] = cut_into_thirds(rejected["mean_similarity"])
    else:
        rejected["risk_bin"] = cut_at_edges(rejected["risk"], RISK_BIN_EDGES)
        rejected["similarity_bin"] = cut_at_edges(
            rejected["mean_similarity"], SIMILARITY_BIN_EDGES
        )
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
    rows = []
    for interpretation, ci in CI_COLUMNS.items():
        for risk in (*BIN_NAMES, "all"):
            for similarity in (*BIN_NAMES, "all"):
                in_risk = (rejected["risk_bin"] == risk) | (risk == "all")
                in_similarity = rejected["similarity_bin"] == similarity
                in_similarity |= similarity == "all"
                row = {
                    "system": system.name,
                    "bins": bins,
                    "interpretation": interpretation,
                    "risk": risk,
                    "similarity": similarity,
                }
                inside = in_risk & in_similarity
                row |= _describe_cohort(rejected, inside, ci, system.clusters)
                rows.append(row)
    return pd.DataFrame(rows)


def _describe_cohort(
    rejected: pd.DataFrame, inside: pd.Series, ci: str, clusters: ClusterBootstrap
) -> dict[str, Any]:
    """Compare some rejections with the others, by the column `ci`."""
    cell = rejected[inside]
    rest = rejected[~inside]
    with_isolation = cell[cell["isolation"].notna()]
    estimates = {
        "ci": clusters.mean(cell["cluster_id"], cell[ci]),
        "isolation": clusters.mean(
            with_isolation["cluster_id"], with_isolation["isolation"]
        ),
    }
    for tau in CR_THRESHOLDS:
        cr = clusters.share(cell["cluster_id"], cell[ci] >= tau)
        cr_of_rest = clusters.share(rest["cluster_id"], rest[ci] >= tau)
        estimates[f"cr{to_percent(tau)}"] = cr
        estimates[f"gap{to_percent(tau)}"] = share_difference(cr, cr_of_rest)
    note = ""
    if not len(rest):
        note = "no rejection outside: the gap is undefined"
    if not len(cell):
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


def group_table(system: System) -> Table:
    """Tabulate refusal, confusion and flips by strategy, category and topic.

    Parameters
    ----------
    system : System
        With scores.

    Returns
    -------
    Table
        One system's part of `table2_groups`, a row per kind (of `GROUPINGS`) and group:
        frr; of its rejections ci, cr60, ci_clipped, cr60_clipped, too_few; flip, the
        share of the n_flip variants with a scored seed that are decided otherwise than
        it, the sum of to_reject and to_accept; frr_most and flip_most, the share of
        resamples in which the group is the highest of its kind. NaN with a `note` where
        undefined.
    """
    about = system.prompts[["prompt_id", "variant", *GROUPINGS]]
    scored = system.scores.merge(about, on="prompt_id")
    seeds = scored[scored["variant"] == 0].set_index("cluster_id")["label"]
    scored["seed"] = scored["cluster_id"].map(seeds)
    rows = []
    for kind in GROUPINGS:
        present = set(system.prompts[kind])
        names = sorted(present)
        if kind == "strategy":
            names = [name for name in ("seed", *STRATEGIES) if name in present]
        groups = {name: scored[scored[kind] == name] for name in names}
        estimates = {
            name: _estimate_group(group, system.clusters)
            for name, group in groups.items()
        }
        frr_most = share_highest(estimates, "frr")
        flip_most = share_highest(estimates, "flip")
        for name, group in groups.items():
            n_reject = int((group["label"] == "reject").sum())
            rows.append(
                {
                    "system": system.name,
                    "kind": kind,
                    "group": name,
                    "n_scored": len(group),
                    "n_reject": n_reject,
                    "n_clusters": group["cluster_id"].nunique(),
                    "n_flip": len(_with_seed(group)),
                    **to_columns(estimates[name]),
                    "frr_most": frr_most.get(name, np.nan),
                    "flip_most": flip_most.get(name, np.nan),
                    "too_few": n_reject < MIN_REFUSALS,
                    "note": _note_group(name, group),
                }
            )
    return pd.DataFrame(rows)


def _with_seed(group: pd.DataFrame) -> pd.DataFrame:
    """Select the variants whose seed is scored."""
    return group[(group["variant"] > 0) & group["seed"].notna()]


def _note_group(name: str, group: pd.DataFrame) -> str:
    """Say what is undefined in a group."""
    reasons = []
    if not len(select_rejections(group)):
        reasons.append("no scored rejection: CI and CR are undefined")
    if name == "seed":
        reasons.append("no flip: the seed is the reference")
    elif not len(_with_seed(group)):
        reasons.append("no flip: no variant with a scored seed")
    return "; ".join(reasons)


def _estimate_group(
    group: pd.DataFrame, clusters: ClusterBootstrap
) -> dict[str, Estimate]:
    """Estimate refusal, confusion and flips of some scored prompts."""
    rejected = select_rejections(group)
    ids = rejected["cluster_id"]
    variants = _with_seed(group)
    flipped = variants["label"] != variants["seed"]
    to_reject = flipped & (variants["label"] == "reject")
    to_accept = flipped & (variants["label"] == "accept")
    return {
        "frr": clusters.share(group["cluster_id"], group["label"] == "reject"),
        "ci": clusters.mean(ids, rejected["ci"]),
        "cr60": clusters.share(ids, rejected["ci"] >= 0.60),
        "ci_clipped": clusters.mean(ids, rejected["ci_clipped"]),
        "cr60_clipped": clusters.share(ids, rejected["ci_clipped"] >= 0.60),
        "flip": clusters.share(variants["cluster_id"], flipped),
        "to_reject": clusters.share(variants["cluster_id"], to_reject),
        "to_accept": clusters.share(variants["cluster_id"], to_accept),
    }


def share_highest(
    estimates: Mapping[str, Mapping[str, Estimate]], measure: str
) -> dict[str, float]:
    """Return the share of resamples in which each group's estimate is the highest.

    Ties are shared, and groups without an estimate left out.
    """
    draws = {}
    for name, own in estimates.items():
        if np.isfinite(own[measure].value):
            draws[name] = own[measure].draws
    if not draws:
        return {}
    table = np.array(list(draws.values()))  # groups x resamples
    table = table[:, np.isfinite(table).any(axis=0)]
    highest = table == np.nanmax(table, axis=0)
    shares = (highest / highest.sum(axis=0)).mean(axis=1)
    return dict(zip(draws, shares.tolist(), strict=True))
