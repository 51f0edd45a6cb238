"""Grid search for the weights of the score (`docs/method.md`, Sensitivity and grid search).

The paper mentions one; the criterion is ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import KFold

from paraguard_utils.analysis.regression import POOLED
from paraguard_utils.core.estimates import MIN_MIXED, SEED, ClusterBootstrap, to_columns
from paraguard_utils.core.signals import PAPER_WEIGHTS, READINGS, ScoreWeights
from paraguard_utils.schemas import Table

FOLDS = 5


def simplex(steps: int = 10) -> dict[str, ScoreWeights]:
    """Return all weights in steps of 1 / steps, by name: 66 for steps of 0.1."""
    made = [
        ScoreWeights(drift / steps, shift / steps, (steps - drift - shift) / steps)
        for drift in range(steps + 1)
        for shift in range(steps + 1 - drift)
    ]
    return {f"{weights.drift:g}/{weights.prob_shift:g}/{weights.ppl:g}": weights for weights in made}


def separation(
    frame: pd.DataFrame, weights: Sequence[ScoreWeights], reading: str = "relative"
) -> tuple[np.ndarray, np.ndarray]:
    """How well a score tells rejected-accepted pairs from accepted-accepted pairs, inside clusters (ours).

    Parameters
    ----------
    frame : DataFrame
        From `sensitivity.prepare`.
    weights : sequence of ScoreWeights, length m
    reading : str

    Returns
    -------
    cluster_ids : numpy.ndarray of str, shape (mixed clusters,)
    auc : numpy.ndarray, shape (mixed clusters, m), in [0, 1]
        Share of (rejected-accepted, accepted-accepted) couples of one cluster in which the first scores higher, ties
        half; 0.5 is chance.
    """
    own = frame[frame["same_cluster"]]
    parts = own[["drift", "prob_shift", READINGS[reading]]].to_numpy()
    scores = parts @ np.array([[one.drift, one.prob_shift, one.ppl] for one in weights]).T
    rejected = own["rejected"].to_numpy()
    mixed, aucs = [], []
    for cluster_id, mine in own.groupby("cluster_id").indices.items():
        one, other = scores[mine[rejected[mine]]], scores[mine[~rejected[mine]]]
        if len(one) and len(other):
            steps = one[:, None] - other[None]
            mixed.append(cluster_id)
            aucs.append(((steps > 1e-12) + 0.5 * (np.abs(steps) <= 1e-12)).mean(axis=(0, 1)))
    return np.array(mixed, dtype=object), np.array(aucs).reshape(len(aucs), len(weights))


def grid_search(
    clusters: ClusterBootstrap, frames: Mapping[str, pd.DataFrame], folds: int = FOLDS, seed: int = SEED
) -> Table:
    """Search the weights that tell rejected-accepted pairs best, cross-validated, with and without ProbShift.

    The criterion (ours) is the mean over mixed clusters of `separation`. In each fold the weights are chosen on the
    other folds' clusters; of equal ones the first of `simplex` is taken. Intervals resample clusters with each fold's
    choice fixed, so they leave out that another sample would have chosen otherwise.

    Parameters
    ----------
    clusters : ClusterBootstrap
    frames : dict of str to DataFrame
        From `sensitivity.prepare`, by target. A row `all targets` pools their clusters.
    folds, seed : int

    Returns
    -------
    DataFrame
        target, reading, prob_shift (with / without), n_mixed, few (fewer than 10 mixed clusters), best: the weights
        with the highest criterion on all clusters; auc_best, their criterion there (optimistic); auc_held_out, that of
        each fold's choice on the clusters left out; auc_paper, that of the paper's weights (without ProbShift, scaled
        to sum to 1); gain, held out minus paper; each of the three with its interval; chosen: the folds' choices. NaN
        below two clusters a fold.
    """
    grid, rest = simplex(), PAPER_WEIGHTS.without_prob_shift()
    assert rest is not None  # Drift and the PPL contrast have weight
    paper = {"with": PAPER_WEIGHTS, "without": rest}
    rows = []
    for reading in READINGS:
        tried = [*grid.values(), *paper.values()]
        by_target = {name: separation(frame, tried, reading) for name, frame in frames.items()}
        pooled = tuple(np.concatenate(parts) for parts in zip(*by_target.values(), strict=True))
        for name, (ids, auc) in {**by_target, POOLED: pooled}.items():
            for place, which in enumerate(paper):
                usable = [i for i, one in enumerate(grid.values()) if which == "with" or one.prob_shift == 0]
                found = _searched(clusters, ids, auc[:, usable], auc[:, len(grid) + place], folds, seed)
                best, chosen = (found.pop(part) for part in ("best", "chosen"))
                names = [list(grid)[i] for i in usable]
                counted = pd.Series([names[i] for i in chosen], dtype=object).value_counts(sort=False)
                rows.append(
                    {
                        "target": name,
                        "reading": reading,
                        "prob_shift": which,
                        "n_mixed": len(set(ids)),
                        "few": len(set(ids)) < MIN_MIXED,
                        "best": "" if best is None else names[best],
                        **found,
                        "chosen": "; ".join(f"{weights} ({count} of {folds})" for weights, count in counted.items()),
                    }
                )
    return pd.DataFrame(rows)


def _searched(
    clusters: ClusterBootstrap, ids: np.ndarray, auc: np.ndarray, paper: np.ndarray, folds: int, seed: int
) -> dict[str, Any]:
    """Choose a column of `auc` in each fold, and on all clusters."""
    held_out, chosen = np.full(len(ids), np.nan), []
    members = np.unique(ids)
    if len(members) < 2 * folds:
        nothing = clusters.undefined()
        undefined = to_columns({"auc_held_out": nothing, "auc_paper": nothing, "gain": nothing})
        return {"best": None, "chosen": [], "auc_best": np.nan, **undefined}
    for _, out in KFold(folds, shuffle=True, random_state=seed).split(members):
        left = np.isin(ids, members[out])
        choice = auc[~left].mean(axis=0).round(12).argmax()
        held_out[left] = auc[left, choice]
        chosen.append(choice)
    mean = auc.mean(axis=0).round(12)
    found = {
        "auc_held_out": clusters.mean(ids, held_out),
        "auc_paper": clusters.mean(ids, paper),
        "gain": clusters.mean(ids, held_out - paper),
    }
    return {"best": mean.argmax(), "chosen": chosen, "auc_best": mean.max(), **to_columns(found)}
