"""Estimate from decisions alone whether asking again in other words helps (ours).

Each measure is defined in the method (`docs/method.md`, Shared wording, rephrasing,
triggers).
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from paraguard_lab.core.inference import share_of_clusters
from paraguard_lab.core.ratios import share_of_totals, subtract_shares
from paraguard_lab.core.rephrasing import (
    MAX_TRIES,
    count_rephrased,
    estimate_refused_requests,
    too_few_for_odds,
    unrelated_share,
)
from paraguard_utils import unsafe
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import (
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.schemas import Table


def count_benign_decisions(system: System) -> pd.DataFrame:
    """Count decisions by cluster, a twin's under the id of its benign cluster.

    The result is that of `core.disagreement.count_decisions`.
    """
    decided = system.decided
    return decided.assign(cluster_id=unsafe.benign_cluster_of(decided["cluster_id"]))


def estimate_rephrasing(
    clusters: ClusterBootstrap, harmless: pd.DataFrame, twins: pd.DataFrame
) -> dict[str, Estimate]:
    """Estimate how often rephrasing gets an answer, and how many requests are refused.

    Parameters
    ----------
    clusters : ClusterBootstrap
        The harmless clusters.
    harmless, twins : DataFrame
        Decisions from `count_benign_decisions`; twins may be empty.

    Returns
    -------
    dict of Estimate
        rephrased1 and rephrased3, each also with `_twins` and `_difference` (harmless
        minus twins, over the clusters that have one); unrelated3, the control
        (`core.rephrasing.unrelated_share`), and rephrased3_minus_unrelated3, both also
        with `_twins`; those of `core.rephrasing.estimate_refused_requests`;
        answered_once, the share of twins that are answered in at least one wording.
    """
    paired = harmless[harmless["cluster_id"].isin(twins["cluster_id"])]
    estimates: dict[str, Estimate] = {}
    for tries in (1, MAX_TRIES):
        name = f"rephrased{tries}"
        of_all = count_rephrased(clusters, harmless, tries)
        of_paired = count_rephrased(clusters, paired, tries)
        of_twins = count_rephrased(clusters, twins, tries)
        estimates[name] = share_of_totals(clusters, of_all)
        estimates[f"{name}_twins"] = share_of_totals(clusters, of_twins)
        of_twins_share = estimates[f"{name}_twins"]
        difference = subtract_shares(
            share_of_totals(clusters, of_paired), of_twins_share
        )
        estimates[f"{name}_difference"] = difference
    estimates |= estimate_unrelated(clusters, harmless)
    for name, estimate in estimate_unrelated(clusters, twins).items():
        estimates[f"{name}_twins"] = estimate
    estimates |= estimate_refused_requests(clusters, harmless)
    answered = twins["rejected"] < twins["n"]
    estimates["answered_once"] = share_of_clusters(
        clusters, twins["cluster_id"], answered
    )
    return estimates


def estimate_unrelated(
    clusters: ClusterBootstrap, decided: pd.DataFrame
) -> dict[str, Estimate]:
    """Estimate the control of rephrasing success, and what success is above it.

    `decided` is from `count_benign_decisions`. The keys are unrelated3 and
    rephrased3_minus_unrelated3; both are NaN if nothing was refused.
    """
    (n,) = clusters.sums(decided["cluster_id"], decided["n"])
    refused, answered = count_rephrased(clusters, decided, MAX_TRIES)

    def control(n: np.ndarray, refused: np.ndarray) -> np.ndarray:
        return np.where(refused > 0, unrelated_share(refused / n), np.nan)

    def excess(n: np.ndarray, refused: np.ndarray, answered: np.ndarray) -> np.ndarray:
        return answered / refused - unrelated_share(refused / n)

    return {
        "unrelated3": clusters.estimate(control, n, refused),
        "rephrased3_minus_unrelated3": clusters.estimate(excess, n, refused, answered),
    }


def rephrasing_row(system: System, twins: System | None = None) -> dict[str, object]:
    """Return a system's row of `table1_rephrasing`.

    Columns: system, n_reject, n_reject_twins, n_twins (clusters),
    `estimate_rephrasing` with intervals, and the flags too_few and too_few_twins. The
    flags say whether the harmless decisions, or those of either side, are too few to
    judge. `twins` is the same system on the harmful twins.
    """
    harmless = count_benign_decisions(system)
    harmful = harmless.head(0)
    if twins is not None:
        harmful = count_benign_decisions(twins)
    too_few = too_few_for_odds(harmless)
    return {
        "system": system.name,
        "n_reject": int(harmless["rejected"].sum()),
        "n_reject_twins": int(harmful["rejected"].sum()),
        "n_twins": len(harmful),
        **to_columns(estimate_rephrasing(system.clusters, harmless, harmful)),
        "too_few": too_few,
        "too_few_twins": too_few or too_few_for_odds(harmful),
    }


def rephrasing_table(systems: Iterable[System], twins: Mapping[str, System]) -> Table:
    """Return the rows of several systems (`rephrasing_row`).

    `twins` holds, by name, the systems that were also run on the harmful twins.
    """
    rows = [rephrasing_row(system, twins.get(system.name)) for system in systems]
    return pd.DataFrame(rows)
