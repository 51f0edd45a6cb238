"""Tabulate refusal, confusion and flips by strategy, category and topic."""

import numpy as np
import pandas as pd

from paraguard_utils.analysis.system import System, select_rejections
from paraguard_utils.core.confusion import CR_THRESHOLDS
from paraguard_utils.core.estimates import (
    MIN_REFUSALS,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.core.strategies import SEED_STRATEGY, STRATEGIES
from paraguard_utils.schemas import Table

GROUPINGS = ("strategy", "category", "topical")


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
    parts = []
    for kind in GROUPINGS:
        names = sorted(set(system.prompts[kind]))
        if kind == "strategy":
            names.sort(key=(SEED_STRATEGY, *STRATEGIES).index)
        rows = []
        draws: dict[str, dict[str, np.ndarray]] = {"frr": {}, "flip": {}}
        for name in names:
            group = scored[scored[kind] == name]
            variants = group[(group["variant"] > 0) & group["seed"].notna()]
            n_reject = int((group["label"] == "reject").sum())
            estimates = _estimate_group(group, variants, system.clusters)
            for measure, by_group in draws.items():
                by_group[name] = estimates[measure].draws
            rows.append(
                {
                    "system": system.name,
                    "kind": kind,
                    "group": name,
                    "n_scored": len(group),
                    "n_reject": n_reject,
                    "n_clusters": group["cluster_id"].nunique(),
                    "n_flip": len(variants),
                    **to_columns(estimates),
                    "too_few": n_reject < MIN_REFUSALS,
                    "note": _note_group(name, group, variants),
                }
            )
        part = pd.DataFrame(rows)
        for measure, by_group in draws.items():
            highest = share_highest(pd.DataFrame(by_group))
            part[f"{measure}_most"] = highest.to_numpy()
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _note_group(name: str, group: pd.DataFrame, variants: pd.DataFrame) -> str:
    """Say what is undefined in a group."""
    reasons = []
    if not len(select_rejections(group)):
        reasons.append("no scored rejection: CI and CR are undefined")
    if name == SEED_STRATEGY:
        reasons.append("no flip: the seed is the reference")
    elif not len(variants):
        reasons.append("no flip: no variant with a scored seed")
    return "; ".join(reasons)


def _estimate_group(
    group: pd.DataFrame, variants: pd.DataFrame, clusters: ClusterBootstrap
) -> dict[str, Estimate]:
    """Estimate refusal and confusion of scored prompts, and flips of variants."""
    rejected = select_rejections(group)
    ids = rejected["cluster_id"]
    estimates = {"frr": clusters.share(group["cluster_id"], group["label"] == "reject")}
    for suffix in ("", "_clipped"):
        ci = rejected[f"ci{suffix}"]
        estimates[f"ci{suffix}"] = clusters.mean(ids, ci)
        estimates[f"cr60{suffix}"] = clusters.share(ids, ci >= CR_THRESHOLDS[0])
    flipped = variants["label"] != variants["seed"]
    directions = {
        "flip": flipped,
        "to_reject": flipped & (variants["label"] == "reject"),
        "to_accept": flipped & (variants["label"] == "accept"),
    }
    for name, hits in directions.items():
        estimates[name] = clusters.share(variants["cluster_id"], hits)
    return estimates


def share_highest(draws: pd.DataFrame) -> pd.Series:
    """Return the share of resamples (rows) in which each group (column) is the highest.

    Ties are shared. NaN for a group without an estimate.
    """
    highest = draws.eq(draws.max(axis=1), axis=0)
    shares = highest.div(highest.sum(axis=1), axis=0).mean()
    return shares.where(draws.notna().any())
