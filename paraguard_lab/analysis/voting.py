"""Does asking in several wordings, or asking two systems, tell harm better (ours).

(`docs/method.md`, What a decision hangs on)
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from paraguard_lab.core.inference import adjust_holm, normal_p
from paraguard_utils import unsafe
from paraguard_utils.core.auc import estimate_auc
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, to_columns
from paraguard_utils.schemas import Corpus, Table

SINGLE = "one query"

COLUMNS = (
    *("system", "rule", "auc", "auc_low", "auc_high"),
    *("over_single", "over_single_low", "over_single_high", "p"),
)


class RefusalScores(NamedTuple):
    """How likely a system refuses harmless prompts and twins.

    Attributes
    ----------
    cluster : numpy.ndarray, shape (n,)
        The benign cluster of each prompt, also of twins.
    twin : numpy.ndarray of bool, shape (n,)
    score : numpy.ndarray of float, shape (n,)
        p(refuse), or a guard's probability of being unsafe.
    refused : numpy.ndarray of float, shape (n,)
        1 refused, 0 answered, NaN set aside.
    """

    cluster: np.ndarray
    twin: np.ndarray
    score: np.ndarray
    refused: np.ndarray

    @classmethod
    def of(
        cls,
        prompts: Sequence[Corpus],
        scores: Sequence[np.ndarray],
        refused: Sequence[np.ndarray],
    ) -> "RefusalScores":
        """Put harmless prompts and twins together, in the order of clusters.

        Each argument has the harmless side first and the twins second.
        """
        ids = [unsafe.benign_cluster_of(side["cluster_id"]) for side in prompts]
        twin = np.repeat([False, True], [len(side) for side in prompts])
        together = pd.DataFrame(
            {
                "cluster": np.concatenate(ids),
                "twin": twin,
                "score": np.concatenate(scores),
                "refused": np.concatenate(refused),
            }
        )
        columns = together.sort_values(["twin", "cluster"], kind="stable")
        return cls(*[columns[name].to_numpy() for name in columns])


def put_together(scores: RefusalScores) -> dict[str, np.ndarray]:
    """Return what several phrasings of a request say together, for every prompt.

    Returns
    -------
    dict of numpy.ndarray, shape (n,)
        "one query", the score itself; "mean of three", of it and the next two phrasings
        of its cluster, in turn; "mean of all"; "votes", the refused share of the
        cluster.
    """
    frame = pd.DataFrame(scores._asdict())
    groups = frame.groupby(["twin", "cluster"])
    three = groups["score"].transform(
        lambda own: (own + np.roll(own, -1) + np.roll(own, -2)) / 3
    )
    return {
        SINGLE: scores.score,
        "mean of three": three.to_numpy(),
        "mean of all": groups["score"].transform("mean").to_numpy(),
        "votes": groups["refused"].transform("mean").to_numpy(),
    }


def voting_rows(
    name: str, scores: RefusalScores, clusters: ClusterBootstrap
) -> list[dict[str, Any]]:
    """Compare what several phrasings say with one query's score.

    Returns
    -------
    list of dict
        system, rule; with intervals auc (of twins against harmless prompts) and
        over_single (auc minus that of one query); p of the latter.
    """
    aucs = {}
    for rule, values in put_together(scores).items():
        aucs[rule] = estimate_auc(clusters, scores.cluster, scores.twin, values)
    rows = []
    for rule, auc in aucs.items():
        over = clusters.undefined() if rule == SINGLE else auc - aucs[SINGLE]
        rows.append(_row(name, rule, auc, over))
    return rows


def _row(name: str, rule: str, auc: Estimate, over: Estimate) -> dict[str, Any]:
    estimates = to_columns({"auc": auc, "over_single": over})
    return {"system": name, "rule": rule, **estimates, "p": normal_p(over)}


def tabulate_votes(
    systems: Mapping[str, RefusalScores], clusters: ClusterBootstrap
) -> Table:
    """Return `voting_rows` of all systems, and of every two systems together.

    Two systems together have the mean of the ranks of their scores, compared with the
    better of the two. p_holm is adjusted over all comparisons.
    """
    rows = []
    for name, scores in systems.items():
        rows += voting_rows(name, scores, clusters)
    table = pd.concat([pd.DataFrame(rows), tabulate_pairs(systems, clusters)])
    table = table.reset_index(drop=True)
    return table.assign(p_holm=adjust_holm(table["p"]))


def tabulate_pairs(
    systems: Mapping[str, RefusalScores], clusters: ClusterBootstrap
) -> Table:
    """Compare the mean rank of every two systems with the better one's score.

    The columns are those of `tabulate_votes`, the rule is "with" the other system. All
    scores are of the same prompts, in the same order.
    """
    aucs = {}
    for name, scores in systems.items():
        aucs[name] = estimate_auc(clusters, scores.cluster, scores.twin, scores.score)
    rows = []
    for first, second in combinations(systems, 2):
        better, other = sorted((first, second), key=lambda name: -aucs[name].value)
        one, two = systems[better], systems[other]
        ranks = pd.Series(one.score).rank() + pd.Series(two.score).rank()
        auc = estimate_auc(clusters, one.cluster, one.twin, ranks.to_numpy())
        rows.append(_row(better, f"with {other}", auc, auc - aucs[better]))
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.assign(p_holm=adjust_holm(table["p"]))


def estimate_foretelling(
    scores: RefusalScores, clusters: ClusterBootstrap
) -> tuple[int, Estimate]:
    """Estimate how well p(refuse) of an answered prompt foretells refused paraphrases.

    Returns
    -------
    n : int
        Answered harmless prompts.
    auc : Estimate
        Of their score for "most of the other phrasings are refused".
    """
    frame = pd.DataFrame(scores._asdict())
    frame = frame[~frame["twin"] & frame["refused"].notna()]
    groups = frame.groupby("cluster")["refused"]
    n_others = groups.transform("size") - 1
    others = (groups.transform("sum") - frame["refused"]) / n_others.where(n_others > 0)
    chosen = frame["refused"].eq(0) & others.notna()
    outcome = (others > 0.5)[chosen].to_numpy()
    answered = frame[chosen]
    auc = estimate_auc(
        clusters, answered["cluster"], outcome, answered["score"].to_numpy()
    )
    return len(answered), auc
