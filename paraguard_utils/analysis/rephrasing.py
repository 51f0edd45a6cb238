"""Estimate from decisions alone whether asking again in other words helps (ours;
`docs/method.md`).
"""

from collections.abc import Mapping

import pandas as pd

from paraguard_utils import unsafe
from paraguard_utils.analysis import evaluation
from paraguard_utils.core.estimates import (
    ClusterBootstrap,
    Estimate,
    ratio_of_totals,
    to_columns,
)
from paraguard_utils.core.rephrasing import (
    MAX_TRIES,
    count_rephrased,
    estimate_refused_requests,
    too_few_for_odds,
)
from paraguard_utils.schemas import Corpus, Labels, Table


def count_benign_decisions(corpus: Corpus, labels: Labels) -> pd.DataFrame:
    """Count decisions by cluster, a twin's under the id of its benign cluster."""
    found = evaluation.count_label_decisions(corpus, labels)
    return found.assign(cluster_id=unsafe.benign_cluster_of(found["cluster_id"]))


def estimate_rephrasing(
    clusters: ClusterBootstrap, harmless: pd.DataFrame, twins: pd.DataFrame
) -> dict[str, Estimate]:
    """Estimate how often rephrasing gets an answer, and how many meanings are refused.

    Decisions come from `count_benign_decisions`; `clusters` are the harmless ones.
    Names: rephrased1 and rephrased3, each also with `_twins` and `_difference`; those
    of `estimate_refused_meanings`; answered_once.
    """
    paired = harmless[harmless["cluster_id"].isin(twins["cluster_id"])]
    found: dict[str, Estimate] = {}
    for tries in (1, MAX_TRIES):
        name, lost = f"rephrased{tries}", count_rephrased(clusters, twins, tries)
        found[name] = ratio_of_totals(
            clusters, count_rephrased(clusters, harmless, tries)
        )
        found[f"{name}_twins"] = ratio_of_totals(clusters, lost)
        found[f"{name}_difference"] = ratio_of_totals(
            clusters, count_rephrased(clusters, paired, tries), lost
        )
    found |= estimate_refused_requests(clusters, harmless)
    found["answered_once"] = clusters.share_of_clusters(
        twins["cluster_id"], twins["rejected"] < twins["n"]
    )
    return found


def rephrasing_row(
    system: str, clusters: ClusterBootstrap, harmless: pd.DataFrame, twins: pd.DataFrame
) -> dict[str, object]:
    """Return a system's row: n_reject, n_reject_twins, n_twins, `estimate_rephrasing`,
    and the flags few and too_few_twins.

    The flags say whether the harmless decisions, or those of either side, are too few
    to judge.
    """
    refused = [int(side["rejected"].sum()) for side in (harmless, twins)]
    numbers = {
        "n_reject": refused[0],
        "n_reject_twins": refused[1],
        "n_twins": len(twins),
    }
    flags = {
        "too_few": too_few_for_odds(harmless),
        "too_few_twins": too_few_for_odds(harmless) or too_few_for_odds(twins),
    }
    return {
        "system": system,
        **numbers,
        **to_columns(estimate_rephrasing(clusters, harmless, twins)),
        **flags,
    }


def rephrasing_table(
    corpus: Corpus,
    labels: Mapping[str, Labels],
    twins: Corpus,
    of_twins: Mapping[str, Labels],
    clusters: ClusterBootstrap,
) -> Table:
    """Return the rows of several systems, from their labels and those of their twins.

    The latter may lack systems.
    """
    rows = []
    for name, own in labels.items():
        harmless = count_benign_decisions(corpus, own)
        found = harmless.head(0)
        if name in of_twins:
            found = count_benign_decisions(
                twins, of_twins[name].set_index("prompt_id").loc[twins["prompt_id"]]
            )
        rows.append(rephrasing_row(name, clusters, harmless, found))
    return pd.DataFrame(rows)
