"""How results move with the choices behind them (`docs/method.md`, Sensitivity and grid search).

One choice is varied at a time, the others stay at their defaults: the weights, k, tau, theta, the scaling of the
signals, the space in which Drift is measured, whether neighbours come from the corpus or from the own cluster, and the
labeller. Every setting uses the same resampled clusters, so that the order of two targets has a bootstrap probability
in each.

Grid search for the weights of the score (`docs/method.md`, Sensitivity and grid search).

The paper mentions one; the criterion is ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from sklearn.model_selection import KFold

from paraguard_utils import stores
from paraguard_utils.analysis import chance, confusion, pipeline, signals
from paraguard_utils.analysis.cohorts import POOLED
from paraguard_utils.analysis.evaluation import ScoredTarget
from paraguard_utils.core.confusion import K, ci_estimates
from paraguard_utils.core.estimates import MIN_MIXED, MIN_REFUSALS, SEED, ClusterBootstrap, to_columns
from paraguard_utils.core.neighbours import THETA
from paraguard_utils.core.signals import PAPER_WEIGHTS, READINGS, ScoreWeights, drift
from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.models import encoder
from paraguard_utils.models.prompting import model_of
from paraguard_utils.models.weights import MINILM
from paraguard_utils.schemas import Corpus, Labels, Pairs, Scores, Table
from paraguard_utils.settings import Settings
from paraguard_utils.stores import Store

Estimates: TypeAlias = dict[str, Any]
"""Estimates by measure, and n, the number of rejections they rest on."""

Varied: TypeAlias = dict[str, dict[str, dict[str, Estimates]]]
"""By dimension, setting and target."""

DEEP = 20
"""The largest k tried."""

THETAS = (-1.0, 0.3, 0.4, 0.5, THETA, 0.7, 0.8, 0.9)
"""Similarities below which a neighbour is left out; -1 leaves out none."""

SCALINGS = {**READINGS, "minmax": "ppl_minmax"}
SPACES = {"target": "drift", "target, centred": "drift_centred", "encoder": "drift_encoder"}
SCOPES = ("corpus", "own cluster")
CHOOSE_NEIGHBOURS = ("k", "theta", "neighbours")
"""Dimensions that cannot move the excess, which is over all pairs of one cluster."""


ORDERED = ("frr", "flip_rate", "ci", "cr60", "cd", "cr", "excess")
"""Measures by which targets are ordered, where a dimension has them; `cr` is CR at the tau varied."""

RATES = ("frr", "flip_rate")
"""Measures that are defined without a rejection."""

DEFAULTS = {
    "weights": "0.4/0.1/0.5",
    "k": str(K),
    "tau": "0.60",
    "theta": "none",
    "scaling": "relative",
    "drift space": "target",
    "neighbours": "corpus",
    "labeller": "combined",
}
"""The setting of each dimension that the others are compared with."""


def deep_pairs(store: Store, corpus_name: str, corpus: Corpus, target: ScoredTarget) -> pd.DataFrame:
    """Compare one target's prompts with up to `DEEP` neighbours, in every space and scaling.

    Parameters
    ----------
    store : stores.Store
        For sentence vectors and Drift in the encoder's space.
    corpus_name : str
    corpus : DataFrame
    target : evaluation.ScoredTarget

    Returns
    -------
    DataFrame
        A pairs file with cluster_id, centre (number), rejected, own_rank (among the own cluster's accepted
        prompts, NaN elsewhere), drift_centred (embeddings less their mean over the distinct tokens kept for the model)
        and drift_encoder (contextual token vectors of the sentence encoder; both for the default neighbours and the
        own cluster only), and what `minmax` takes: drift_minmax, prob_shift_minmax, ppl_minmax.
    """
    vectors = encoder.vectors(store, corpus_name, corpus["text"], earlier=True)
    traces = target.traces
    frame = signals.pairs(corpus, vectors, traces, target.labels, target.drifts, DEEP)
    place = pd.Series(np.arange(len(corpus)), index=corpus["prompt_id"])
    a, b = (place.loc[frame[name]].to_numpy() for name in ("centre_id", "neighbour_id"))
    usual = (signals.ranked(frame, K) | frame["same_cluster"]).to_numpy(bool)
    frame[["drift_centred", "drift_encoder"]] = np.nan
    frame.loc[usual, "drift_centred"] = target.drifts.centred(a[usual], b[usual])
    texts = corpus["text"].to_numpy()
    frame.loc[usual, "drift_encoder"] = token_drifts(store, corpus_name, texts[a[usual]], texts[b[usual]])
    return prepare(frame, corpus, signals.perplexity(traces))


def token_drifts(store: Store, name: str, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Return Drift between texts in the encoder's space, computing and keeping what is missing (in a live store only).

    Parameters
    ----------
    store : stores.Store
    name : str
        The corpus the texts belong to.
    first, second : sequence of str, length n

    Returns
    -------
    numpy.ndarray, shape (n,), float64, in [0, 1]

    Raises
    ------
    Missing
        The recorded store lacks some.
    """
    hashes = [sorted(map(encoder.text_hash, pair)) for pair in zip(first, second, strict=True)]
    keys = [(one, other) for one, other in hashes]
    # Recorded ones and this store's own, so that what is promoted holds them all.
    there = [stores.Store(one) for one in dict.fromkeys((stores.RECORDED, store.name))]
    known = [one.read("drifts", encoder.NAME, name) for one in there if one.has("drifts", encoder.NAME, name)]
    names = ["first_hash", "second_hash", "drift"]
    known = pd.concat(known, ignore_index=True).drop_duplicates(names[:2]) if known else pd.DataFrame(columns=names)
    drifts = dict(zip(zip(known["first_hash"], known["second_hash"], strict=True), known["drift"], strict=True))
    missing = {key: pair for key, pair in zip(keys, zip(first, second, strict=True), strict=True) if key not in drifts}
    if missing and store.recorded:
        raise Missing(
            f"{len(missing)} pairs of {name} have no recorded Drift in the encoder's space; run 06_sensitivity with a "
            "live store"
        )
    if missing:
        texts = list(dict.fromkeys(text for pair in missing.values() for text in pair))
        own = dict(zip(texts, encoder.token_vectors(texts), strict=True))
        drifts |= {key: drift(own[a], own[b]) for key, (a, b) in missing.items()}
    if not store.recorded and (missing or not store.has("drifts", encoder.NAME, name)):
        frame = pd.DataFrame([(*key, value) for key, value in drifts.items()], columns=names)
        meta = {"encoder": encoder.NAME, "weights": MINILM.sha256}
        store.write("drifts", encoder.NAME, name, frame=frame, meta=meta)
    return np.array([drifts[key] for key in keys], float)


def prepare(frame: Pairs, corpus: Corpus, perplexities: np.ndarray) -> pd.DataFrame:
    """Add to a pairs frame what settings need: clusters, numbers of centres, ranks inside clusters, scaled signals.

    `minmax` scales each signal, with |difference of perplexities| as the PPL contrast, so that the target's pairs with
    its default neighbours span 0 to 1 (ours).

    Parameters
    ----------
    frame : DataFrame
        A pairs file.
    corpus : DataFrame
    perplexities : numpy.ndarray, shape (n,)
        In corpus order.

    Returns
    -------
    DataFrame
        As `deep_pairs` says.
    """
    known = corpus.assign(ppl=perplexities).set_index("prompt_id")
    a, b = known.loc[frame["centre_id"]], known.loc[frame["neighbour_id"]]
    frame = frame.assign(
        cluster_id=a["cluster_id"].to_numpy(),
        centre=pd.factorize(frame["centre_id"])[0],
        rejected=(frame["centre_label"] == "reject").to_numpy(),
        ppl_minmax=np.abs(a["ppl"].to_numpy() - b["ppl"].to_numpy()),
        drift_minmax=frame["drift"],
        prob_shift_minmax=frame["prob_shift"],
    )
    own = frame[frame["same_cluster"]].sort_values(["similarity", "neighbour_id"], ascending=[False, True])
    frame["own_rank"] = own.groupby("centre").cumcount() + 1
    scored = signals.ranked(frame, K)
    for name in ("drift_minmax", "prob_shift_minmax", "ppl_minmax"):
        low, high = frame.loc[scored, name].min(), frame.loc[scored, name].max()
        frame[name] = ((frame[name] - low) / (high - low)).clip(0, 1) if high > low else 0.0
    return frame


def used_pairs(frame: pd.DataFrame, k: int = K, theta: float = -1.0, scope: str = "corpus") -> np.ndarray:
    """Return which pairs CI averages over.

    Parameters
    ----------
    frame : DataFrame
        From `prepare`.
    k : int
    theta : float
        Pairs less similar are left out.
    scope : str
        "corpus" or "own cluster": where the k nearest accepted prompts are looked for.

    Returns
    -------
    numpy.ndarray of bool
    """
    rank = frame["rank"] if scope == "corpus" else frame["own_rank"]
    return rank.le(k).fillna(False).to_numpy(bool) & (frame["similarity"] >= theta).to_numpy()


def rejection_ci(frame: pd.DataFrame, scores: np.ndarray, near: np.ndarray) -> tuple[pd.Index, np.ndarray]:
    """CI(r) of every rejection that has a neighbour.

    Parameters
    ----------
    frame : DataFrame
        From `prepare`.
    scores : numpy.ndarray, shape (pairs,)
    near : numpy.ndarray of bool, shape (pairs,)
        Pairs that CI averages over.

    Returns
    -------
    cluster_ids : Index of str
    ci : numpy.ndarray of float
    """
    used = near & frame["rejected"].to_numpy()
    means = pd.Series(scores[used]).groupby([frame["centre"].to_numpy()[used], frame["cluster_id"].to_numpy()[used]])
    means = means.mean()
    return means.index.get_level_values(1), means.to_numpy()


def estimates(clusters: ClusterBootstrap, frame: pd.DataFrame, scores: np.ndarray, near: np.ndarray) -> Estimates:
    """Estimate how sensibly a target refuses under one setting.

    Parameters
    ----------
    clusters : ClusterBootstrap
    frame, scores, near
        As in `rejection_ci`.

    Returns
    -------
    dict of str to Estimate
        ci, cr60, cd over rejections with a neighbour; excess (primary). And n, the number of these rejections.
    """
    ids, ci = rejection_ci(frame, scores, near)
    own = frame["same_cluster"].to_numpy()
    pairs = frame[own]
    return {
        "n": len(ci),
        **ci_estimates(clusters, ids, ci, taus=(0.60,)),
        "excess": confusion.excess_estimate(clusters, pairs["cluster_id"], pairs["rejected"], scores[own]),
    }


def vary(clusters: ClusterBootstrap, frames: Mapping[str, pd.DataFrame]) -> Varied:
    """Estimate every target under every setting of every dimension but the labeller.

    Parameters
    ----------
    clusters : ClusterBootstrap
    frames : dict of str to DataFrame
        From `deep_pairs`, by target.

    Returns
    -------
    dict
        Estimates by dimension, setting, target and measure.
    """
    found: Varied = {name: {} for name in ("weights", "k", "theta", "scaling", "drift space", "neighbours", "tau")}

    def put(dimension: str, setting: str, name: str, estimate: Estimates) -> None:
        left_out = ("excess",) if dimension in CHOOSE_NEIGHBOURS else ()
        kept = {measure: value for measure, value in estimate.items() if measure not in left_out}
        found[dimension].setdefault(setting, {})[name] = kept

    for name, frame in frames.items():
        usual, scores = used_pairs(frame), signals.score(frame).to_numpy()
        for setting, weights in simplex().items():
            put("weights", setting, name, estimates(clusters, frame, signals.score(frame, weights).to_numpy(), usual))
        for k in range(1, DEEP + 1):
            put("k", str(k), name, estimates(clusters, frame, scores, used_pairs(frame, k)))
        for theta in THETAS:
            put(
                "theta",
                "none" if theta < 0 else f"{theta:.2f}",
                name,
                estimates(clusters, frame, scores, used_pairs(frame, theta=theta)),
            )
        for scope in SCOPES:
            put("neighbours", scope, name, estimates(clusters, frame, scores, used_pairs(frame, scope=scope)))
        for setting, column in SCALINGS.items():
            scaled = frame.assign(ppl_relative=frame[column])
            if setting == "minmax":
                scaled = scaled.assign(drift=frame["drift_minmax"], prob_shift=frame["prob_shift_minmax"])
            put("scaling", setting, name, estimates(clusters, frame, signals.score(scaled).to_numpy(), usual))
        for setting, column in SPACES.items():
            moved = signals.score(frame.assign(drift=frame[column])).fillna(0).to_numpy()  # pairs that nothing uses
            put("drift space", setting, name, estimates(clusters, frame, moved, usual))
        ids, ci = rejection_ci(frame, scores, usual)
        for tau in chance.CURVE:
            put("tau", f"{tau:.2f}", name, {"n": len(ci), "cr": clusters.share(ids, ci >= tau)})
    return found


def by_labeller(
    store: Store,
    corpus_name: str,
    corpus: Corpus,
    scored: Mapping[str, ScoredTarget],
    settings: Settings,
    clusters: ClusterBootstrap,
) -> tuple[Table, dict[str, dict[str, Estimates]]]:
    """Estimate every target under each labeller.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus : DataFrame
    scored : dict of str to evaluation.ScoredTarget
        By target.
    settings : settings.Settings
    clusters : ClusterBootstrap

    Returns
    -------
    counts : DataFrame
        labeller, target, n_reject, n_accept, few.
    estimates : dict
        By labeller, target and measure, in the reading `relative`; a target that was not judged has none of the
        judge's.
    """
    rows: list[dict[str, Any]] = []
    estimates: dict[str, dict[str, Estimates]] = {}
    for labeller in labelling.LABELLERS:
        estimates[labeller] = {}
        for name, own in scored.items():
            if labeller == "judge" and not store.has("verdicts", corpus_name, name):
                continue
            labels = labelling.matching_labels(store, corpus_name, name, own.traces, labeller)
            if labeller == "aside" and "blocked" not in set(labels["label"]):
                continue
            frame, scores = _scored(store, corpus_name, corpus, labels, name, own, settings)
            counts = {f"n_{label}": int((labels["label"] == label).sum()) for label in ("reject", "accept")}
            n = len(confusion.rejections(scores))
            rows.append({"labeller": labeller, "target": name, **counts, "few": n < MIN_REFUSALS})
            estimates[labeller][name] = {
                "n": n,
                **confusion.rate_estimates(corpus, labels, clusters),
                **confusion.score_estimates(corpus, frame, scores, clusters, weights=settings.weights()),
            }
    return pd.DataFrame(rows), estimates


def _scored(
    store: Store,
    corpus_name: str,
    corpus: Corpus,
    labels: Labels,
    name: str,
    target: ScoredTarget,
    settings: Settings,
) -> tuple[Pairs, Scores]:
    """Score a target under other labels."""
    return pipeline.pairs_and_scores(
        store, corpus_name, corpus, labels, target.traces, model_of(name), settings, target.drifts
    )


def table(found: Varied) -> Table:
    """Lay out estimates by dimension, setting and target, a row each, with n (rejections) and intervals."""
    return pd.DataFrame(
        {
            "dimension": dimension,
            "setting": setting,
            "target": target,
            "n": own["n"],
            **to_columns({name: estimate for name, estimate in own.items() if name != "n"}),
        }
        for dimension, settings in found.items()
        for setting, targets in settings.items()
        for target, own in targets.items()
    )


def orders(found: Varied) -> Table:
    """Say how sure the order of any two targets is under every setting; see `confusion.orders`.

    Returns
    -------
    DataFrame
        dimension, then the columns of `confusion.orders`.
    """
    parts = []
    for dimension, settings in found.items():
        measures = [name for name in next(iter(settings[DEFAULTS[dimension]].values())) if name in ORDERED]
        part = confusion.orders(settings, DEFAULTS[dimension], measures)
        part.insert(0, "dimension", dimension)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def order_counts(orders: Table, table: Table, limit: float = 0.95) -> Table:
    """Count which orders of targets every setting of a dimension is sure of, and which turn with the setting.

    Parameters
    ----------
    orders : DataFrame
        From `orders`.
    table : DataFrame
        From `table`: what rests on fewer than 30 rejections orders nothing but rates.
    limit : float
        Bootstrap probability from which an order is called sure.

    Returns
    -------
    DataFrame
        dimension, measure, settings, pairs (of targets, compared under at least two settings); of these
        always: one sure order under every setting that compares them; sometimes: a sure order under at least one;
        reversed: sure orders that contradict each other.
    """
    rows = []
    few = table[table["n"] < MIN_REFUSALS].set_index(["dimension", "setting", "target"]).index
    unsure = [
        pd.MultiIndex.from_frame(orders[["dimension", "setting", side]]).isin(few) for side in ("first", "second")
    ]
    judged = orders[orders["measure"].isin(RATES) | ~np.logical_or(*unsure)]
    for (dimension, measure), own in judged.groupby(["dimension", "measure"], sort=False):
        higher = own.pivot(index=["first", "second"], columns="setting", values="higher")
        higher = higher[higher.notna().sum(axis=1) > 1]
        if higher.empty:
            continue
        up, down = (higher >= limit).where(higher.notna()), (higher <= 1 - limit).where(higher.notna())
        row = {"dimension": dimension, "measure": measure, "settings": higher.shape[1], "pairs": len(higher)}
        row["always"] = int((up.min(axis=1).eq(1) | down.min(axis=1).eq(1)).sum())
        row["sometimes"] = int((up.max(axis=1).eq(1) | down.max(axis=1).eq(1)).sum())
        row["reversed"] = int((up.max(axis=1).eq(1) & down.max(axis=1).eq(1)).sum())
        rows.append(row)
    names = ["dimension", "measure", "settings", "pairs", "always", "sometimes", "reversed"]
    return pd.DataFrame(rows, columns=names)


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
        From `prepare`.
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
        From `prepare`, by target. A row `all targets` pools their clusters.
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
