"""Overturning rejections, and what it costs on harmful requests (`docs/method.md`, The veto).

The benign corpus says what a veto gains, its unsafe twins what it loses. A twin's cluster is named after the benign one
(`corpus.twins`), so that both are split and resampled together.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from paraguard_utils import unsafe
from paraguard_utils.analysis import evaluation
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, Estimate, to_columns
from paraguard_utils.schemas import Corpus, Labels, Scores, Table

SCORES = ("isolation", "reworded", "ci", "1 - ci")
"""What a veto looks at: isolation in the cluster, isolation among rewordings that the rules make, CI, and 1 - CI."""

IDEAL = "veto-isolation"
"""How the ideal veto is called among remedies (08)."""

FEW = 30
"""Rejections of either corpus, in the half that judges, below which a target does not decide a prediction."""

MOST_LOST = 0.05
"""A threshold is chosen so that at most this share of the twins' rejections is lost on the half that chooses (ours)."""

HALVES = 200
"""Random halves of the clusters, numbered from 0 (ours). Predictions are judged on number 0."""

OFTEN = 0.95
"""Share of the halves in which a veto must beat chance to be counted among those that do (ours)."""

THRESHOLDS = tuple(np.linspace(0, 1, 21).round(2))


def looks(corpus: Corpus, labels: Labels, scores: Scores, again: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return every score that a veto may look at.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.
    scores : DataFrame
        The target's scores; prompts without any have no CI.
    again : DataFrame or None
        Columns isolation and queries of the rewordings, in corpus order (`labels.follow_ups`); None: not asked.

    Returns
    -------
    DataFrame, rows in corpus order
        Columns of `SCORES`, `reworded` where it was asked.
    """
    ci = scores.set_index("prompt_id")["ci"].reindex(corpus["prompt_id"]).to_numpy()
    isolation = evaluation.isolation(corpus, labels)
    found = pd.DataFrame({"isolation": isolation, "ci": ci, "1 - ci": 1 - ci})
    return found if again is None else found.assign(reworded=again["isolation"].to_numpy())


def asked_again(target: str, prompts: str, labels: Labels, again: pd.DataFrame) -> dict[str, object]:
    """Count what a target rejects, how much of it could be reworded, and what asking again costs.

    Parameters
    ----------
    target, prompts : str
        Who was asked, and what the requests are called.
    labels, again : DataFrame
        As for `looks`.

    Returns
    -------
    dict
        target, prompts, n_reject, n_reworded, queries, and queries_each, per rejection.
    """
    n, queries = int((labels["label"] == "reject").sum()), int(again["queries"].sum())
    found = {"target": target, "prompts": prompts, "n_reject": n, "n_reworded": int((again["queries"] > 0).sum())}
    return found | {"queries": queries, "queries_each": queries / n if n else np.nan}


def rows(
    corpus: Corpus, labels: Labels, score: pd.Series | np.ndarray, probability: pd.Series | float = np.nan
) -> pd.DataFrame:
    """Return what a veto looks at: every scored prompt, whether it is rejected, and the score of a rejection.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.
    score : array-like of float, in corpus order
        Higher speaks for overturning; NaN never overturns.
    probability : array-like of float, in corpus order
        A guard's, of being unsafe; NaN for what has none.

    Returns
    -------
    DataFrame
        cluster_id (of the benign cluster, for twins too), rejected, score (NaN where accepted), probability, isolation.
    """
    label = labels["label"].to_numpy()
    frame = pd.DataFrame(
        {
            "cluster_id": unsafe.benign_of(corpus["cluster_id"]).to_numpy(),
            "rejected": label == "reject",
            "score": np.where(label == "reject", np.asarray(score, float), np.nan),
            "probability": np.asarray(probability, float),
            "isolation": evaluation.isolation(corpus, labels),
        }
    )
    return frame[np.isin(label, ["accept", "reject"])].reset_index(drop=True)


def halves(n_clusters: int, seed: int = SEED, times: int = HALVES) -> np.ndarray:
    """Draw random halves of the clusters: one half chooses a threshold, the other judges it.

    Returns
    -------
    numpy.ndarray of bool, shape (times, n_clusters)
        Whether a cluster chooses, clusters in the order of their names. More times leave the first ones as they are.

    Examples
    --------
    >>> halves(4, seed=0, times=3).astype(int).tolist()
    [[0, 0, 1, 1], [1, 1, 0, 0], [1, 0, 0, 1]]
    """
    rng, places = np.random.default_rng(seed), np.arange(n_clusters)
    return np.stack([np.isin(places, rng.choice(n_clusters, n_clusters // 2, replace=False)) for _ in range(times)])


def overturned(frame: pd.DataFrame, threshold: float) -> np.ndarray:
    """Say which prompts a veto accepts after all: rejections with a score of the threshold or more."""
    return (frame["rejected"] & (frame["score"] >= threshold)).to_numpy()


def curve(benign: pd.DataFrame, twins: pd.DataFrame, clusters: ClusterBootstrap) -> Table:
    """Return what a veto gains and loses at every threshold, and what overturning at random would lose for that gain.

    Parameters
    ----------
    benign, twins : DataFrame
        From `rows`.
    clusters : ClusterBootstrap
        Of the benign corpus.

    Returns
    -------
    DataFrame, one row per threshold
        threshold; with intervals gained, the share of benign prompts that are accepted after all, and lost, the share
        of twins that are; lost_random, gained times the twins' rejection rate over the benign one, with better, lost
        minus lost_random (below 0: the veto tells the two apart; NaN where nothing is overturned).
    """
    return pd.DataFrame([{"threshold": one, **to_columns(_at(benign, twins, one, clusters))} for one in THRESHOLDS])


def _at(benign: pd.DataFrame, twins: pd.DataFrame, threshold: float, clusters: ClusterBootstrap) -> dict[str, Estimate]:
    if np.isnan(threshold):
        return dict.fromkeys(("gained", "lost", "lost_random", "better"), clusters.undefined())
    gained, lost = (_share(clusters, frame, overturned(frame, threshold)) for frame in (benign, twins))
    wrong, right = (_share(clusters, frame, frame["rejected"].to_numpy()) for frame in (benign, twins))
    with np.errstate(divide="ignore", invalid="ignore"):
        random = Estimate.percentile(
            np.float64(gained[0]) * right[0] / wrong[0], gained.draws * right.draws / wrong.draws
        )
    better = lost - random if gained[0] or lost[0] else clusters.undefined()
    return {"gained": gained, "lost": lost, "lost_random": random, "better": better}


def cross_judge(
    benign: pd.DataFrame,
    twins: pd.DataFrame,
    choosing: np.ndarray,
    clusters: ClusterBootstrap,
    most_lost: float = MOST_LOST,
) -> pd.DataFrame:
    """Choose a threshold on each half of the clusters and judge it on the other half.

    The threshold is the lowest, which gains most, that loses at most a share of the twins' rejections.

    Parameters
    ----------
    benign, twins : DataFrame
        From `rows`.
    choosing : numpy.ndarray of bool, shape (halves, clusters)
        From `halves`.
    clusters : ClusterBootstrap
    most_lost : float

    Returns
    -------
    DataFrame, one row per half
        threshold: infinity where even the highest loses more, so that the veto is never used. On the other half:
        gained, lost, lost_random and better, as in `curve`, but better is 0 where nothing is overturned; broken, 1
        where more than `most_lost` of the twins' rejections is lost. NaN where the half that chooses has no rejection
        of one of the corpora.

    See Also
    --------
    summarise : what it comes to over all halves.
    """
    cuts = np.array([*THRESHOLDS, np.inf])
    totals = []
    for frame in (benign, twins):
        columns = [np.ones(len(frame)), frame["rejected"], *(overturned(frame, cut) for cut in cuts)]
        sums = np.column_stack([clusters.sums(frame["cluster_id"], column) for column in columns])
        totals.append((choosing @ sums, ~choosing @ sums))
    (wrong, own), (right, other) = totals
    place = (right[:, 2:] <= most_lost * right[:, [1]]).argmax(axis=1)
    gained, lost = (np.take_along_axis(total, place[:, None] + 2, axis=1)[:, 0] for total in (own, other))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = pd.DataFrame({"threshold": cuts[place], "gained": gained / own[:, 0], "lost": lost / other[:, 0]})
        found["lost_random"] = gained / own[:, 1] * other[:, 1] / other[:, 0]
    found["better"] = (found["lost"] - found["lost_random"]).where(gained + lost > 0, 0.0)
    found["broken"] = (lost > most_lost * other[:, 1]).astype(float)
    found.loc[(wrong[:, 1] == 0) | (right[:, 1] == 0)] = np.nan
    return found


def summarise(judged: pd.DataFrame) -> dict[str, float]:
    """Summarise what a veto does over many halves.

    Parameters
    ----------
    judged : DataFrame
        From `cross_judge`.

    Returns
    -------
    dict
        mean_gained, mean_lost, mean_better, each with the 2.5th and 97.5th percentile over the halves, which share
        clusters: no confidence interval. beats_chance, the share of halves with `better` below 0; limit_broken, the
        share in which more of the twins' rejections is lost than the threshold was chosen for. Halves without a
        threshold count nowhere.

    Examples
    --------
    >>> both = pd.DataFrame({"threshold": 0.5, "gained": [0.2, 0.1], "lost": [0, 0.1], "broken": [0, 1]})
    >>> found = summarise(both.assign(better=[-0.2, 0.1]))
    >>> [round(found[name], 2) for name in ("mean_gained", "mean_better", "beats_chance", "limit_broken")]
    [0.15, -0.05, 0.5, 0.5]
    """
    judged = judged[judged["threshold"].notna()]
    means = {
        f"mean_{name}": Estimate.percentile(judged[name].mean(), judged[name].to_numpy())
        for name in ("gained", "lost", "better")
    }
    shares = {"beats_chance": float((judged["better"] < 0).mean()), "limit_broken": float(judged["broken"].mean())}
    return to_columns(means) | shares


def one_more(benign: pd.DataFrame, twins: pd.DataFrame, clusters: ClusterBootstrap) -> dict[str, Estimate]:
    """Return gain and loss of asking one paraphrase more and accepting where that one is accepted.

    The expectation over the paraphrases of a cluster: a rejection is overturned with probability isolation.
    """
    return {
        name: clusters.mean(frame["cluster_id"], frame["isolation"].where(frame["rejected"]).fillna(0))
        for name, frame in (("gained", benign), ("lost", twins))
    }


def lowered(benign: pd.DataFrame, gained: float) -> float:
    """Move a guard's threshold up until as many more benign prompts are accepted as a veto gains.

    Parameters
    ----------
    benign : DataFrame
        From `rows`, with probabilities.
    gained : float
        Share of benign prompts.

    Returns
    -------
    float
        The highest probability that is then accepted too; minus infinity where nothing is gained.
    """
    own = np.sort(benign.loc[benign["rejected"], "probability"])
    wanted = int(np.ceil(gained * len(benign) - 1e-9))
    return float(own[wanted - 1]) if wanted else -np.inf


def table(
    frames: Mapping[tuple[str, str], tuple[pd.DataFrame, pd.DataFrame]], clusters: ClusterBootstrap, seed: int = SEED
) -> Table:
    """Choose each target's threshold on half of the clusters and judge it on the other half, for `HALVES` halves.

    Parameters
    ----------
    frames : dict of (str, str) to (DataFrame, DataFrame)
        By target and score (one of `SCORES`): benign rows and twins' rows.
    clusters : ClusterBootstrap
        Of the benign prompts, all of which have a twin: they are halved.
    seed : int
        Of the halves.

    Returns
    -------
    DataFrame, one row per target and score
        target, score; of half number 0: n_benign, n_twins and n_reject_benign, n_reject_twins (where it judges),
        threshold; with intervals over its clusters gained, lost, lost_random, better; gained_one_more and
        lost_one_more; lost_lowered, the share of twins that a guard's lower threshold loses for that gain, with
        against_lowered, lost_lowered minus lost (above 0: the veto is better). Over all halves: the columns of
        `summarise`. NaN where there is nothing to reject, or no probability.
    """
    found = []
    choosing = halves(len(clusters.codes), seed)
    judging = clusters.codes.index[~choosing[0]]
    for (target, score), (benign, twins) in frames.items():
        each = cross_judge(benign, twins, choosing, clusters)
        threshold = float(each["threshold"].iloc[0])
        benign, twins = (frame[frame["cluster_id"].isin(judging)] for frame in (benign, twins))
        row: dict[str, object] = {"target": target, "score": score, "n_benign": len(benign), "n_twins": len(twins)}
        row |= {"n_reject_benign": int(benign["rejected"].sum()), "n_reject_twins": int(twins["rejected"].sum())}
        estimates = _at(benign, twins, threshold, clusters)
        estimates |= {f"{name}_one_more": value for name, value in one_more(benign, twins, clusters).items()}
        lower = clusters.undefined()
        if np.isfinite(estimates["gained"][0]) and benign["probability"].notna().any():
            cut = lowered(benign, estimates["gained"][0])
            lower = _share(clusters, twins, (twins["rejected"] & (twins["probability"] <= cut)).to_numpy())
        estimates |= {"lost_lowered": lower, "against_lowered": lower - estimates["lost"]}
        found.append(row | {"threshold": threshold, **to_columns(estimates), **summarise(each)})
    return pd.DataFrame(found)


def enough(vetoes: Table) -> pd.Series:
    """Say of each row of `table` whether there are `FEW` rejections or more of each corpus in the half that judges."""
    return vetoes[["n_reject_benign", "n_reject_twins"]].min(axis=1) >= FEW


def _share(clusters: ClusterBootstrap, frame: pd.DataFrame, hits: np.ndarray) -> Estimate:
    return clusters.share(frame["cluster_id"], hits)
