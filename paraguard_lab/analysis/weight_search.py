"""Search the weights of the score that separate best (see `docs/method.md`)."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.analysis.excess import without_prob_shift
from paraguard_lab.analysis.regression import ALL_SYSTEMS
from paraguard_utils.analysis.signals import score_pairs
from paraguard_utils.core.estimates import (
    MIN_MIXED,
    SEED,
    ClusterBootstrap,
    to_columns,
)
from paraguard_utils.core.signals import (
    PAPER_WEIGHTS,
    PPL_INTERPRETATIONS,
    ScoreWeights,
)
from paraguard_utils.schemas import Table

SEARCH_FOLDS = 5


def weight_grid() -> dict[str, ScoreWeights]:
    """Return all 66 weights in steps of 0.1, by name."""
    grid = {}
    for drift in range(11):
        for shift in range(11 - drift):
            ppl = 10 - drift - shift
            weights = ScoreWeights(drift / 10, shift / 10, ppl / 10)
            grid[name_weights(weights)] = weights
    return grid


def name_weights(weights: ScoreWeights) -> str:
    """Return the name of weights: Drift/ProbShift/PPL."""
    return f"{weights.drift:g}/{weights.prob_shift:g}/{weights.ppl:g}"


def pair_separation(
    pairs: pd.DataFrame, weights: Mapping[str, ScoreWeights], interpretation: str
) -> pd.DataFrame:
    """Compute how well weights separate rejected-accepted from accepted-accepted pairs.

    Parameters
    ----------
    pairs : DataFrame
        Of one cluster each (`excess.select_own_pairs`).
    weights : mapping of str to ScoreWeights
    interpretation : str
        Of the PPL contrast.

    Returns
    -------
    DataFrame
        A row for each mixed cluster, by its id, and a column for each of the weights,
        by name: the share of (rejected-accepted, accepted-accepted) couples in which
        the first scores higher, ties half (ours).
    """
    scores = np.column_stack(
        [score_pairs(pairs, each, interpretation) for each in weights.values()]
    )
    rejected = (pairs["centre_label"] == "reject").to_numpy()
    aucs = {}
    for cluster_id, rows in pairs.groupby("cluster_id").indices.items():
        of_rejected = scores[rows[rejected[rows]]]
        of_accepted = scores[rows[~rejected[rows]]]
        if len(of_rejected) and len(of_accepted):
            difference = of_rejected[:, None] - of_accepted[None]
            won = (difference > 1e-12) + 0.5 * (np.abs(difference) <= 1e-12)
            aucs[cluster_id] = won.mean(axis=(0, 1))
    return pd.DataFrame.from_dict(aucs, orient="index", columns=list(weights))


def search_weights(
    clusters: ClusterBootstrap, pairs: Mapping[str, pd.DataFrame], seed: int = SEED
) -> Table:
    """Search the weights that separate rejected-accepted pairs best, cross-validated.

    The criterion is the mean of `pair_separation`; intervals keep the folds' choices.

    Parameters
    ----------
    clusters : ClusterBootstrap
    pairs : mapping of str to DataFrame
        Those of one cluster (`excess.select_own_pairs`), by system. `ALL_SYSTEMS`
        pools the clusters of all.
    seed : int
        Of the folds.

    Returns
    -------
    Table
        system, interpretation, prob_shift (with / without), n_mixed, too_few (fewer
        than 10); best, the best weights on all clusters, and auc_best; with intervals
        auc_held_out (of each fold's choice on the clusters left out), auc_paper and
        gain, the first minus the second; chosen: the folds' choices. NaN below two
        clusters per fold.
    """
    grid = weight_grid()
    paper_without = without_prob_shift(PAPER_WEIGHTS)
    assert paper_without is not None  # Drift and the PPL contrast have weight
    tried = {**grid, "paper, with": PAPER_WEIGHTS, "paper, without": paper_without}
    usable = {
        "with": list(grid),
        "without": [name for name in grid if not grid[name].prob_shift],
    }
    rows = []
    for interpretation in PPL_INTERPRETATIONS:
        separations = {
            name: pair_separation(frame, tried, interpretation)
            for name, frame in pairs.items()
        }
        separations[ALL_SYSTEMS] = pd.concat(separations.values())
        for system, separation in separations.items():
            n_mixed = separation.index.nunique()
            for which, columns in usable.items():
                auc = separation[columns]
                of_paper = separation[f"paper, {which}"].to_numpy()
                about = {
                    "system": system,
                    "interpretation": interpretation,
                    "prob_shift": which,
                    "n_mixed": n_mixed,
                    "too_few": n_mixed < MIN_MIXED,
                }
                rows.append(about | _search(clusters, auc, of_paper, seed))
    return pd.DataFrame(rows)


def _search(
    clusters: ClusterBootstrap, auc: pd.DataFrame, paper: np.ndarray, seed: int
) -> dict[str, Any]:
    """Choose a column of `auc` in each fold of clusters and on all of them."""
    from sklearn.model_selection import KFold  # a second to import

    ids = auc.index.to_numpy()
    members = np.unique(ids)
    if len(members) < 2 * SEARCH_FOLDS:
        undefined = clusters.undefined()
        names = ("auc_held_out", "auc_paper", "gain")
        nothing = to_columns(dict.fromkeys(names, undefined))
        return {"best": "", "auc_best": np.nan, **nothing, "chosen": ""}
    held_out = np.full(len(ids), np.nan)
    chosen: Counter[str] = Counter()
    folds = KFold(SEARCH_FOLDS, shuffle=True, random_state=seed)
    for _, out in folds.split(members):
        is_left_out = np.isin(ids, members[out])
        choice = _find_best(auc[~is_left_out])
        held_out[is_left_out] = auc.loc[is_left_out, choice]
        chosen[choice] += 1
    best = _find_best(auc)
    estimates = {
        "auc_held_out": clusters.mean(ids, held_out),
        "auc_paper": clusters.mean(ids, paper),
        "gain": clusters.mean(ids, held_out - paper),
    }
    counts = [f"{name} ({n} of {SEARCH_FOLDS})" for name, n in chosen.items()]
    return {
        "best": best,
        "auc_best": auc[best].mean(),
        **to_columns(estimates),
        "chosen": "; ".join(counts),
    }


def _find_best(auc: pd.DataFrame) -> str:
    """Return the column with the highest mean over clusters, the first of equal ones.

    Means are rounded, so that equal ones are equal.
    """
    return str(auc.mean().round(12).idxmax())
