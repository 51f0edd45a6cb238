"""Estimate what overturning rejections gains, and what it loses on harmful requests
(`docs/method.md`, The veto).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from paraguard_lab.labels import follow_ups
from paraguard_utils import unsafe
from paraguard_utils.analysis import evaluation, pipeline
from paraguard_utils.core.estimates import (
    MIN_REFUSALS,
    SEED,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.guards import panel
from paraguard_utils.labels import labelling, systems
from paraguard_utils.schemas import Corpus, Labels, Scores, Table, select_prompts
from paraguard_utils.settings import Settings
from paraguard_utils.stores import Store

IDEAL_VETO = "veto-isolation"  # name of the ideal veto among remedies
# Share of the twins' rejections that a threshold may lose on the half that chooses it
# (ours)
MAX_LOST = 0.05
N_HALVES = (
    200  # random halves of the clusters (ours); predictions are judged on the first
)
# A veto counts as better than chance if it is so in this share of the halves (ours)
MIN_BETTER_SHARE = 0.95

VETO_THRESHOLDS = tuple(np.linspace(0, 1, 21).round(2))


def veto_scores(
    corpus: Corpus, labels: Labels, scores: Scores, again: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the scores for a veto in corpus order.

    `reworded` needs `again` (`follow_ups.read_reasked_decisions`).
    """
    ci = scores.set_index("prompt_id")["ci"].reindex(corpus["prompt_id"]).to_numpy()
    reworded = {} if again is None else {"reworded": again["isolation"].to_numpy()}
    return pd.DataFrame(
        {
            "isolation": evaluation.label_isolation(corpus, labels),
            **reworded,
            "ci": ci,
            "1 - ci": 1 - ci,
        }
    )


def count_reasked(
    system: str, prompts: str, labels: Labels, again: pd.DataFrame
) -> dict[str, object]:
    """Count what a system rejects of some prompts, how much of it could be reworded,
    and what asking again costs.

    `again` is as in `veto_scores`. Columns: system, prompts, n_reject, n_reworded,
    queries, queries_each (a rejection).
    """
    n, queries = int((labels["label"] == "reject").sum()), int(again["queries"].sum())
    found = {
        "system": system,
        "prompts": prompts,
        "n_reject": n,
        "n_reworded": int((again["queries"] > 0).sum()),
    }
    return found | {"queries": queries, "queries_each": queries / n if n else np.nan}


def veto_frame(
    corpus: Corpus,
    labels: Labels,
    score: pd.Series | np.ndarray,
    probability: pd.Series | float = np.nan,
) -> pd.DataFrame:
    """Return what a veto uses of every scored prompt; all arguments have corpus order.

    A higher score speaks for overturning, NaN never overturns; the probability is a
    guard's, of being unsafe. Columns: cluster_id (of the benign cluster, for twins
    too), rejected, score (NaN if accepted), probability, isolation.
    """
    rejected = (labels["label"] == "reject").to_numpy()
    frame = pd.DataFrame(
        {
            "cluster_id": unsafe.benign_cluster_of(corpus["cluster_id"]).to_numpy(),
            "rejected": rejected,
            "score": np.where(rejected, np.asarray(score, float), np.nan),
            "probability": np.asarray(probability, float),
            "isolation": evaluation.label_isolation(corpus, labels),
        }
    )
    return frame[evaluation.is_scored(labels)].reset_index(drop=True)


def draw_halves(n_clusters: int, seed: int = SEED, times: int = N_HALVES) -> np.ndarray:
    """Draw random halves of the clusters: one half chooses a threshold, the other
    judges it.

    Return whether a cluster chooses, shape (times, n_clusters), clusters in the order
    of their names.
    """
    rng, places = np.random.default_rng(seed), np.arange(n_clusters)
    return np.stack(
        [
            np.isin(places, rng.choice(n_clusters, n_clusters // 2, replace=False))
            for _ in range(times)
        ]
    )


def is_overturned(frame: pd.DataFrame, threshold: float) -> np.ndarray:
    """Mark the prompts that a veto accepts after all: rejections with a score of the
    threshold or more.
    """
    return (frame["rejected"] & (frame["score"] >= threshold)).to_numpy()


def veto_curve(
    benign: pd.DataFrame, twins: pd.DataFrame, clusters: ClusterBootstrap
) -> Table:
    """Estimate what a veto gains and loses at every threshold, and what overturning at
    random loses for that gain.

    Rows are from `veto_frame`. Columns: threshold; with intervals gained and lost, the
    shares of benign prompts and of twins that are accepted after all, lost_random, and
    better, lost minus lost_random (NaN if nothing is overturned).
    """
    found = zip(
        VETO_THRESHOLDS, _at(benign, twins, VETO_THRESHOLDS, clusters), strict=True
    )
    return pd.DataFrame({"threshold": one, **to_columns(row)} for one, row in found)


def _at(
    benign: pd.DataFrame,
    twins: pd.DataFrame,
    thresholds: Sequence[float],
    clusters: ClusterBootstrap,
) -> Iterator[dict[str, Estimate]]:
    """Estimate rows of `veto_curve`."""
    frames = (benign, twins)
    wrong, right = (
        clusters.share(frame["cluster_id"], frame["rejected"]) for frame in frames
    )
    for one in thresholds:
        gained, lost = (
            clusters.share(frame["cluster_id"], is_overturned(frame, one))
            for frame in frames
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.float64(gained[0]) * right[0] / wrong[0]
            random = Estimate.percentile(
                value, gained.draws * right.draws / wrong.draws
            )
        better = lost - random if gained[0] or lost[0] else clusters.undefined()
        yield {"gained": gained, "lost": lost, "lost_random": random, "better": better}


def cross_judge_veto(
    benign: pd.DataFrame,
    twins: pd.DataFrame,
    choosing: np.ndarray,
    clusters: ClusterBootstrap,
) -> pd.DataFrame:
    """Choose a threshold on each half of the clusters (the lowest that keeps
    `MAX_LOST`), and judge it on the other.

    `choosing` comes from `draw_halves`, benign rows and twins' rows from `veto_frame`.
    Columns, a row per half: threshold, infinity if even the highest loses more than
    `MAX_LOST` of the twins' rejections; on the other half gained, lost, lost_random and
    better, as in `veto_curve`, but better is 0 if nothing is overturned; broken, 1 if
    more than `MAX_LOST` of the twins' rejections are lost. NaN if the half that chooses
    rejects nothing of one corpus.
    """
    cuts = np.array([*VETO_THRESHOLDS, np.inf])
    totals = []
    for frame in (benign, twins):
        columns = [
            np.ones(len(frame)),
            frame["rejected"],
            *(is_overturned(frame, cut) for cut in cuts),
        ]
        sums = np.column_stack(
            [clusters.sums(frame["cluster_id"], column) for column in columns]
        )
        totals.append((choosing @ sums, ~choosing @ sums))
    (wrong, own), (right, other) = totals
    place = (right[:, 2:] <= MAX_LOST * right[:, [1]]).argmax(axis=1)
    gained, lost = (
        np.take_along_axis(total, place[:, None] + 2, axis=1)[:, 0]
        for total in (own, other)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        found = pd.DataFrame(
            {
                "threshold": cuts[place],
                "gained": gained / own[:, 0],
                "lost": lost / other[:, 0],
            }
        )
        found["lost_random"] = gained / own[:, 1] * other[:, 1] / other[:, 0]
    found["better"] = (found["lost"] - found["lost_random"]).where(
        gained + lost > 0, 0.0
    )
    found["broken"] = (lost > MAX_LOST * other[:, 1]).astype(float)
    found.loc[(wrong[:, 1] == 0) | (right[:, 1] == 0)] = np.nan
    return found


def summarise_halves(judged: pd.DataFrame) -> dict[str, float]:
    """Summarise the halves judged by `cross_judge_veto`.

    Those without a threshold count nowhere.

    Columns: mean_gained, mean_lost, mean_better, each with the 2.5th and 97.5th
    percentile over the halves, which share clusters: no confidence interval;
    beats_chance, the share of halves with `better` below 0; limit_broken, the share in
    which more of the twins' rejections is lost than the threshold was chosen for.
    """
    judged = judged[judged["threshold"].notna()]
    known = {f"mean_{name}": judged[name] for name in ("gained", "lost", "better")}
    means = {
        name: Estimate.percentile(values.mean(), values.to_numpy())
        for name, values in known.items()
    }
    shares = {
        "beats_chance": float((judged["better"] < 0).mean()),
        "limit_broken": float(judged["broken"].mean()),
    }
    return to_columns(means) | shares


def matched_threshold(benign: pd.DataFrame, gained: float) -> float:
    """Find the highest probability that a guard accepts to gain as many benign prompts
    as a veto; -inf for none.
    """
    own = np.sort(benign.loc[benign["rejected"], "probability"])
    wanted = int(np.ceil(gained * len(benign) - 1e-9))
    return float(own[wanted - 1]) if wanted else -np.inf


def veto_table(
    frames: Mapping[tuple[str, str], tuple[pd.DataFrame, pd.DataFrame]],
    clusters: ClusterBootstrap,
    seed: int = SEED,
) -> Table:
    """Choose each system's threshold on half of the clusters and judge it on the other
    half, for `N_HALVES` halves.

    The benign rows and the twins' rows are by system and score (of `veto_scores`). All
    benign `clusters` have a twin. Columns: system, score; in the half that judges first
    n_benign, n_twins, n_reject_benign, n_reject_twins, threshold; with intervals
    gained, lost, lost_random, better; gained_one_more and lost_one_more, where one
    random paraphrase more decides; lost_lowered, the share of twins that a higher
    threshold of the guard loses for that gain, and against_lowered, lost_lowered minus
    lost; over all halves the columns of `summarise_halves`. NaN if nothing is rejected,
    or there is no probability.
    """
    found, choosing = [], draw_halves(len(clusters.codes), seed)
    judging = clusters.codes.index[~choosing[0]]
    for (system, score), (benign, twins) in frames.items():
        each = cross_judge_veto(benign, twins, choosing, clusters)
        threshold = float(each["threshold"].iloc[0])
        benign, twins = (
            frame[frame["cluster_id"].isin(judging)] for frame in (benign, twins)
        )
        row: dict[str, object] = {
            "system": system,
            "score": score,
            "n_benign": len(benign),
            "n_twins": len(twins),
        }
        row |= {
            "n_reject_benign": int(benign["rejected"].sum()),
            "n_reject_twins": int(twins["rejected"].sum()),
        }
        estimates = dict.fromkeys(
            ("gained", "lost", "lost_random", "better"), clusters.undefined()
        )
        if not np.isnan(threshold):
            (estimates,) = _at(benign, twins, [threshold], clusters)
        for name, frame in (("gained", benign), ("lost", twins)):
            accepted = (
                frame["isolation"].where(frame["rejected"]).fillna(0)
            )  # of one random paraphrase more
            estimates[f"{name}_one_more"] = clusters.mean(frame["cluster_id"], accepted)
        lower = clusters.undefined()
        if np.isfinite(estimates["gained"][0]) and benign["probability"].notna().any():
            cut = matched_threshold(benign, estimates["gained"][0])
            lower = clusters.share(
                twins["cluster_id"], twins["rejected"] & (twins["probability"] <= cut)
            )
        estimates |= {
            "lost_lowered": lower,
            "against_lowered": lower - estimates["lost"],
        }
        found.append(
            row
            | {
                "threshold": threshold,
                **to_columns(estimates),
                **summarise_halves(each),
            }
        )
    return pd.DataFrame(found)


def has_enough_rejections(vetoes: Table) -> pd.Series:
    """Mark the rows of `veto_table` that have `MIN_REFUSALS` of each corpus in the
    judging half: they can be judged.
    """
    return vetoes[["n_reject_benign", "n_reject_twins"]].min(axis=1) >= MIN_REFUSALS


def measure_vetoes(
    store: Store,
    corpora: Mapping[str, Corpus],
    settings: Settings,
    reword: Callable[[Corpus], pd.DataFrame],
) -> dict[str, Table]:
    """Judge the vetoes of every system whose labels on both corpora a store has.

    Return tables by name.

    `corpora` are the benign clusters that have a twin, and their twins, by name. A live
    store first asks what was rejected in the words of `reword`
    (`corpus.reword.reword_prompts`). The tables are vetoes (`veto_table`), veto_curves
    (`veto_curve` by system and score) and veto_queries (`count_reasked`, if rejections
    are enough).
    """
    chat, _ = systems.list_systems_to_score(store, settings.corpus, settings)
    reference = systems.choose_focus(chat, settings.model, settings.reference)
    known = {one.name: one for one in map(panel.load_guard, settings.asked_guards())}
    decided = systems.list_decided_systems(store, corpora, [*chat, *known])
    guards = {name: known[name] for name in decided if name in known}
    labels, again = {}, {}
    for of, texts in corpora.items():
        labels[of] = {
            name: select_prompts(labelling.read_decisions(store, of, name), texts)
            for name in decided
        }
        if not store.recorded:
            follow_ups.reask_models(store, of, reword(texts), labels[of], settings)
            follow_ups.reask_guards(
                store, of, reword(texts), labels[of], guards, settings
            )
    of, twins = list(corpora.items())[1]
    frames: dict[tuple[str, str], tuple[pd.DataFrame, pd.DataFrame]] = {}
    for name in decided:
        traces, lender = pipeline.read_scoring_traces(
            store, of, twins, reference if name in guards else name
        )
        given = (
            labels[of][name],
            traces,
            store.read_earlier("tokens", lender),
            settings,
        )
        scores = [store.read("scores", settings.corpus, name)]
        scores.append(pipeline.compute_pairs_and_scores(store, of, twins, *given)[1])
        sides = []
        for (one, texts), scored in zip(corpora.items(), scores, strict=True):
            own = labels[one][name]
            again[name, one] = follow_ups.read_reasked_decisions(
                store, one, texts, name, own
            )
            risks = (
                store.read("guards", one, name).set_index("prompt_id")["score"]
                if name in guards
                else pd.Series()
            )
            looks = veto_scores(texts, own, scored, again[name, one])
            risks = risks.reindex(texts["prompt_id"]).to_numpy(float)
            sides.append(
                {look: veto_frame(texts, own, looks[look], risks) for look in looks}
            )
        frames |= {
            (name, look): (one, sides[1][look])
            for look, one in sides[0].items()
            if look in sides[1]
        }
    clusters = ClusterBootstrap(
        corpora[settings.corpus]["cluster_id"], settings.resamples, settings.seed
    )
    vetoes = veto_table(frames, clusters, settings.seed)
    curves = [
        veto_curve(*pair, clusters).assign(system=key[0], score=key[1])
        for key, pair in frames.items()
    ]
    enough = set(vetoes.loc[has_enough_rejections(vetoes), "system"])
    asked = {
        key: found
        for key, found in again.items()
        if found is not None and key[0] in enough
    }
    rows = [
        count_reasked(name, one, labels[one][name], found)
        for (name, one), found in asked.items()
    ]
    tables = {
        "vetoes": vetoes,
        "veto_curves": pd.concat(curves, ignore_index=True),
        "veto_queries": pd.DataFrame(rows),
    }
    return {name: table for name, table in tables.items() if len(table.columns)}
