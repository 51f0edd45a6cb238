"""Estimate what overturning rejections gains, and what it loses on harmful requests.

The method defines both (`docs/method.md`, The veto).
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from paraguard_lab.labels import second_look
from paraguard_lab.settings import RemedySettings
from paraguard_utils import unsafe
from paraguard_utils.analysis import pipeline
from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import (
    MIN_REFUSALS,
    SEED,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.guards.panel import load_guard
from paraguard_utils.labels import labelling, systems
from paraguard_utils.schemas import Corpus, Table
from paraguard_utils.stores import CorpusFiles

IDEAL_VETO = "veto-isolation"
"""The name of the ideal veto among remedies."""

MAX_LOST = 0.05
"""Share of the twins' rejections that a threshold may lose when chosen (ours)."""

N_HALVES = 200
"""Random halves of the clusters (ours); predictions are judged on the first."""

MIN_BETTER_SHARE = 0.95
"""Share of the halves in which a veto that is better than chance is so (ours)."""

VETO_THRESHOLDS = tuple(np.linspace(0, 1, 21).round(2))


class VetoFrames(NamedTuple):
    """The rows of `veto_frame` of benign prompts and of their harmful twins."""

    benign: pd.DataFrame
    twins: pd.DataFrame


def veto_scores(system: System, again: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the scores for a veto.

    Parameters
    ----------
    system : System
        With scores.
    again : DataFrame
        How it decides rewordings (`second_look.read_reasked_decisions`).

    Returns
    -------
    DataFrame
        A row per prompt, in their order: isolation; reworded, which needs `again`; ci
        and 1 - ci.
    """
    ci_of = system.scores.set_index("prompt_id")["ci"]
    ci = ci_of.reindex(system.prompts["prompt_id"]).to_numpy()
    scores = {"isolation": system.isolation}
    if again is not None:
        scores["reworded"] = again["isolation"].to_numpy()
    scores["ci"] = ci
    scores["1 - ci"] = 1 - ci
    return pd.DataFrame(scores)


def count_reasked(
    system: System, prompts: str, again: pd.DataFrame
) -> dict[str, object]:
    """Count what a system rejects and could be reworded, and what asking again costs.

    Parameters
    ----------
    system : System
    prompts : str
        The name of its corpus.
    again : DataFrame
        As in `veto_scores`.

    Returns
    -------
    dict
        system, prompts, n_reject, n_reworded, queries, queries_each (per rejection).
    """
    n_reject = np.count_nonzero(system.refused == 1)
    queries = again["queries"].sum()
    return {
        "system": system.name,
        "prompts": prompts,
        "n_reject": n_reject,
        "n_reworded": np.count_nonzero(again["queries"]),
        "queries": queries,
        "queries_each": queries / n_reject if n_reject else np.nan,
    }


def veto_frame(
    system: System, score: ArrayLike, probability: ArrayLike = np.nan
) -> pd.DataFrame:
    """Return what a veto uses of every scored prompt.

    Parameters
    ----------
    system : System
    score : array-like of float, shape (n,)
        A higher score speaks for overturning; NaN never overturns.
    probability : array-like of float, shape (n,)
        A guard's, of being unsafe.

    Returns
    -------
    DataFrame
        cluster_id (of the benign cluster, for twins too), rejected, score (NaN if
        accepted), probability, isolation.
    """
    rejected = system.refused == 1
    ids = unsafe.benign_cluster_of(system.prompts["cluster_id"])
    frame = pd.DataFrame(
        {
            "cluster_id": ids.to_numpy(),
            "rejected": rejected,
            "score": np.where(rejected, np.asarray(score, float), np.nan),
            "probability": np.asarray(probability, float),
            "isolation": system.isolation,
        }
    )
    return frame[system.is_scored].reset_index(drop=True)


def draw_halves(n_clusters: int, seed: int = SEED, times: int = N_HALVES) -> np.ndarray:
    """Draw random halves of the clusters: one chooses a threshold, the other judges it.

    Returns
    -------
    numpy.ndarray of bool, shape (times, n_clusters)
        Whether a cluster chooses; clusters in the order of their names.
    """
    rng = np.random.default_rng(seed)
    choosing = np.zeros((times, n_clusters), bool)
    for half in choosing:
        half[rng.choice(n_clusters, n_clusters // 2, replace=False)] = True
    return choosing


def is_overturned(frame: pd.DataFrame, threshold: float) -> np.ndarray:
    """Mark the rejections that become accepted.

    They have a score of the threshold or more.
    """
    return (frame["rejected"] & (frame["score"] >= threshold)).to_numpy()


def veto_curve(frames: VetoFrames, clusters: ClusterBootstrap) -> Table:
    """Estimate what a veto gains and loses at every threshold.

    Returns
    -------
    Table
        threshold; with intervals gained and lost, the shares of benign prompts and of
        twins that are accepted after all, lost_random, what overturning at random loses
        for that gain, and better, lost minus lost_random (NaN if nothing is
        overturned).
    """
    rejected = _share_rejected(frames, clusters)
    rows = []
    by_numbers: dict[tuple[int, ...], dict[str, float]] = {}
    for threshold in VETO_THRESHOLDS:
        # A higher threshold overturns some of the same: as many are the same ones
        both = [is_overturned(frame, threshold) for frame in frames]
        numbers = tuple(int(overturned.sum()) for overturned in both)
        if numbers not in by_numbers:
            estimates = _estimate_veto(frames, rejected, both, clusters)
            by_numbers[numbers] = to_columns(estimates)
        rows.append({"threshold": threshold, **by_numbers[numbers]})
    return pd.DataFrame(rows)


def _share_rejected(frames: VetoFrames, clusters: ClusterBootstrap) -> list[Estimate]:
    """Estimate the shares of benign prompts and of twins that are rejected."""
    return [clusters.share(frame["cluster_id"], frame["rejected"]) for frame in frames]


def _estimate_veto(
    frames: VetoFrames,
    rejected: Sequence[Estimate],
    overturned: Sequence[np.ndarray],
    clusters: ClusterBootstrap,
) -> dict[str, Estimate]:
    """Estimate the columns of `veto_curve` where these prompts are overturned."""
    benign, twins = rejected
    gained, lost = (
        clusters.share(frame["cluster_id"], accepted)
        for frame, accepted in zip(frames, overturned, strict=True)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.float64(gained.value) * twins.value / benign.value
        draws = gained.draws * twins.draws / benign.draws
    lost_random = Estimate.percentile(value, draws)
    better = clusters.undefined()
    if gained.value or lost.value:
        better = lost - lost_random
    return {
        "gained": gained,
        "lost": lost,
        "lost_random": lost_random,
        "better": better,
    }


def _count_by_cluster(
    frame: pd.DataFrame, thresholds: Sequence[float], clusters: ClusterBootstrap
) -> pd.DataFrame:
    """Count prompts, the rejected, and those overturned from each threshold on."""
    columns: dict[object, ArrayLike] = {
        "rejected": frame["rejected"].to_numpy(),
        "prompts": 1,
    }
    for threshold in thresholds:
        columns[threshold] = is_overturned(frame, threshold)
    counts = pd.DataFrame(columns).groupby(frame["cluster_id"].to_numpy()).sum()
    return counts.reindex(clusters.codes.index, fill_value=0)


def cross_judge_veto(
    frames: VetoFrames, choosing: np.ndarray, clusters: ClusterBootstrap
) -> pd.DataFrame:
    """Choose a threshold on each half of the clusters, and judge it on the other.

    The lowest threshold that keeps `MAX_LOST` is chosen.

    Parameters
    ----------
    frames : VetoFrames
    choosing : numpy.ndarray of bool, shape (halves, n_clusters)
        From `draw_halves`.
    clusters : ClusterBootstrap

    Returns
    -------
    DataFrame
        A row per half: threshold, infinity if even the highest loses more than
        `MAX_LOST` of the twins' rejections; on the other half gained, lost, lost_random
        and better, as in `veto_curve`, but better is 0 if nothing is overturned;
        broken, 1 if more than `MAX_LOST` of the twins' rejections are lost. NaN if the
        half that chooses rejects nothing of one corpus.
    """
    thresholds = [*VETO_THRESHOLDS, np.inf]
    by_side = [_count_by_cluster(frame, thresholds, clusters) for frame in frames]
    benign_chooses, twins_choose = (choosing @ counts for counts in by_side)
    benign, twins = (~choosing @ counts for counts in by_side)
    keeps = twins_choose[thresholds].le(MAX_LOST * twins_choose["rejected"], axis=0)
    threshold = keeps.idxmax(axis=1)  # the first that keeps the limit
    place = benign.columns.get_indexer(threshold)
    half = np.arange(len(choosing))
    gained = benign.to_numpy()[half, place]
    lost = twins.to_numpy()[half, place]
    lost_at_random = gained / benign["rejected"] * twins["rejected"]
    judged = pd.DataFrame(
        {
            "threshold": threshold,
            "gained": gained / benign["prompts"],
            "lost": lost / twins["prompts"],
            "lost_random": lost_at_random / twins["prompts"],
        }
    )
    better = judged["lost"] - judged["lost_random"]
    judged["better"] = better.where(gained + lost > 0, 0.0)
    judged["broken"] = (lost > MAX_LOST * twins["rejected"]).astype(float)
    nothing = (benign_chooses["rejected"] == 0) | (twins_choose["rejected"] == 0)
    judged.loc[nothing] = np.nan
    return judged


def summarise_halves(judged: pd.DataFrame) -> dict[str, float]:
    """Summarise the halves judged by `cross_judge_veto`.

    Those without a threshold count nowhere.

    Returns
    -------
    dict
        mean_gained, mean_lost, mean_better, each with the 2.5th and 97.5th percentile
        over the halves, which share clusters: no confidence interval; beats_chance, the
        share of halves with `better` below 0; limit_broken, the share in which more of
        the twins' rejections is lost than the threshold was chosen for.
    """
    judged = judged[judged["threshold"].notna()]
    means = {}
    for name in ("gained", "lost", "better"):
        values = judged[name].to_numpy()
        means[f"mean_{name}"] = Estimate.percentile(judged[name].mean(), values)
    return {
        **to_columns(means),
        "beats_chance": (judged["better"] < 0).mean(),
        "limit_broken": judged["broken"].mean(),
    }


def matched_threshold(benign: pd.DataFrame, gained: float) -> float:
    """Find the threshold at which a guard gains as many benign prompts as a veto.

    Parameters
    ----------
    benign : DataFrame
        From `veto_frame`.
    gained : float
        The share of benign prompts that the veto accepts after all.

    Returns
    -------
    float
        The highest probability that is accepted; minus infinity for none.
    """
    probabilities = np.sort(benign.loc[benign["rejected"], "probability"])
    wanted = int(np.ceil(gained * len(benign) - 1e-9))
    return float(probabilities[wanted - 1]) if wanted else -np.inf


def veto_table(
    frames: Mapping[tuple[str, str], VetoFrames],
    clusters: ClusterBootstrap,
    seed: int = SEED,
) -> Table:
    """Choose each system's threshold on half of the clusters and judge it on the other.

    Parameters
    ----------
    frames : mapping
        By system and score (of `veto_scores`).
    clusters : ClusterBootstrap
        All benign clusters have a twin.
    seed : int
        Of the `N_HALVES` halves.

    Returns
    -------
    Table
        system, score; in the half that judges first n_benign, n_twins, n_reject_benign,
        n_reject_twins, threshold; with intervals gained, lost, lost_random, better;
        gained_one_more and lost_one_more, if one random paraphrase more decides;
        lost_lowered, the share of twins that a higher threshold of the guard loses for
        that gain, and against_lowered, lost_lowered minus lost; over all halves the
        columns of `summarise_halves`. NaN if nothing is rejected, or there is no
        probability.
    """
    choosing = draw_halves(len(clusters.codes), seed)
    judging = clusters.codes.index[~choosing[0]]
    rows = []
    for (system, score), both in frames.items():
        judged = cross_judge_veto(both, choosing, clusters)
        threshold = judged["threshold"].iloc[0]
        benign, twins = (frame[frame["cluster_id"].isin(judging)] for frame in both)
        estimates = _judge_threshold(VetoFrames(benign, twins), threshold, clusters)
        rows.append(
            {
                "system": system,
                "score": score,
                "n_benign": len(benign),
                "n_twins": len(twins),
                "n_reject_benign": benign["rejected"].sum(),
                "n_reject_twins": twins["rejected"].sum(),
                "threshold": threshold,
                **to_columns(estimates),
                **summarise_halves(judged),
            }
        )
    return pd.DataFrame(rows)


def _judge_threshold(
    frames: VetoFrames, threshold: float, clusters: ClusterBootstrap
) -> dict[str, Estimate]:
    """Estimate the columns of `veto_table` that have an interval."""
    benign, twins = frames
    undefined = clusters.undefined()
    names = ("gained", "lost", "lost_random", "better")
    estimates = dict.fromkeys(names, undefined)
    if not np.isnan(threshold):
        rejected = _share_rejected(frames, clusters)
        both = [is_overturned(frame, threshold) for frame in frames]
        estimates = _estimate_veto(frames, rejected, both, clusters)
    for name, frame in {"gained": benign, "lost": twins}.items():
        accepted = frame["isolation"].where(frame["rejected"]).fillna(0)
        estimates[f"{name}_one_more"] = clusters.mean(frame["cluster_id"], accepted)
    lowered = undefined
    gained = estimates["gained"].value
    if np.isfinite(gained) and benign["probability"].notna().any():
        highest = matched_threshold(benign, gained)
        is_lost = twins["rejected"] & (twins["probability"] <= highest)
        lowered = clusters.share(twins["cluster_id"], is_lost)
    estimates["lost_lowered"] = lowered
    estimates["against_lowered"] = lowered - estimates["lost"]
    return estimates


def has_enough_rejections(vetoes: Table) -> pd.Series:
    """Mark the rows of `veto_table` that can be judged.

    They have `MIN_REFUSALS` of each corpus in the judging half.
    """
    return vetoes[["n_reject_benign", "n_reject_twins"]].min(axis=1) >= MIN_REFUSALS


def measure_vetoes(
    files: CorpusFiles,
    corpora: Mapping[str, Corpus],
    settings: RemedySettings,
    reword: Callable[[Corpus], pd.DataFrame],
) -> dict[str, Table]:
    """Judge the vetoes of every system whose labels on both corpora a store has.

    A live store first asks what was rejected in other words.

    Parameters
    ----------
    files : CorpusFiles
        Of the benign corpus.
    corpora : mapping of str to Corpus
        The benign clusters that have a twin, and their twins, by name.
    settings : RemedySettings
    reword : callable
        Makes the other words (`corpus.reword.reword_prompts`).

    Returns
    -------
    dict of str to Table
        vetoes (`veto_table`), veto_curves (`veto_curve` by system and score) and
        veto_queries (`count_reasked`, if rejections are enough).
    """
    chat = systems.list_systems_to_score(files, settings.model)
    guards = {}
    for name in settings.asked_guards():
        guard = load_guard(name)
        guards[guard.name] = guard
    names = second_look.list_decided_systems(files.store, corpora, [*chat, *guards])
    guards = {name: guard for name, guard in guards.items() if name in names}
    reference = systems.choose_focus(chat, settings.model, settings.reference)
    clusters = settings.resample(corpora[files.name])
    frames: list[dict[tuple[str, str], pd.DataFrame]] = []
    costs = []
    for corpus, prompts in corpora.items():
        place = files.other(corpus)
        decided = []
        for name in names:
            labels = labelling.read_decisions(place, name)
            decided.append(System.of(name, prompts, labels, clusters))
        if not files.recorded:
            labels_of = {system.name: system.labels for system in decided}
            reworded = reword(prompts)
            second_look.reask_models(place, reworded, labels_of, settings)
            second_look.reask_guards(place, reworded, labels_of, guards, settings)
        if corpus == files.name:
            scored = [
                replace(system, scores=place.read("scores", system.name))
                for system in decided
            ]
        else:
            scored = _score_twins(place, decided, guards, reference, settings)
        frames.append({})
        for system in scored:
            again = second_look.read_reasked_decisions(
                place, prompts, system.name, system.labels
            )
            if again is not None:
                costs.append(count_reasked(system, corpus, again))
            frames[-1] |= _frame_scores(place, system, again, system.name in guards)
    # The frames name clusters by their numbers
    clusters = ClusterBootstrap(clusters.codes, clusters.resamples, clusters.seed)
    benign, twins = frames
    both = {key: VetoFrames(benign[key], twins[key]) for key in benign if key in twins}
    vetoes = veto_table(both, clusters, settings.seed)
    curves = []
    for (name, score), pair in both.items():
        curves.append(veto_curve(pair, clusters).assign(system=name, score=score))
    enough = vetoes.loc[has_enough_rejections(vetoes), "system"].unique()
    queries = []
    for name in enough:
        queries += [row for row in costs if row["system"] == name]
    tables = {
        "vetoes": vetoes,
        "veto_curves": pd.concat(curves, ignore_index=True),
        "veto_queries": pd.DataFrame(queries),
    }
    return {name: table for name, table in tables.items() if len(table.columns)}


def _score_twins(
    files: CorpusFiles,
    decided: Sequence[System],
    guards: Container[str],
    reference: str,
    settings: RemedySettings,
) -> list[System]:
    """Score systems on the twins, guards with the traces of the reference system."""
    scored = []
    drifts: dict[str, DriftCache] = {}
    for system in decided:
        name = reference if system.name in guards else system.name
        traces, model = pipeline.read_scoring_traces(files, name, system.prompts)
        if model not in drifts:
            drifts[model] = DriftCache(files.store.read_earlier("tokens", model))
        asked = replace(system, scoring=settings.scoring(), traces=traces)
        asked = replace(asked, drifts=drifts[model])
        scored.append(pipeline.compute_scores(files, asked))
    return scored


def _frame_scores(
    files: CorpusFiles, system: System, again: pd.DataFrame | None, is_guard: bool
) -> dict[tuple[str, str], pd.DataFrame]:
    """Return `veto_frame` of each score for a veto, by system and score.

    Clusters have numbers in place of ids, which are quicker to look up at every
    threshold.
    """
    probability: ArrayLike = np.nan
    if is_guard:
        risks = files.read("guards", system.name).set_index("prompt_id")["score"]
        probability = risks.reindex(system.prompts["prompt_id"]).to_numpy()
    frames = {}
    scores = veto_scores(system, again)
    for name in scores:
        frame = veto_frame(system, scores[name], probability)
        frame["cluster_id"] = system.clusters.codes.loc[frame["cluster_id"]].to_numpy()
        frames[system.name, name] = frame
    return frames
