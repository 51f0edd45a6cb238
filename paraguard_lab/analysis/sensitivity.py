"""How results change with the choices behind them (`docs/method.md`, Sensitivity and
grid search).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from paraguard_lab.analysis import chance
from paraguard_lab.analysis.surrogate import MIN_ORDER_PROBABILITY
from paraguard_utils import stores
from paraguard_utils.analysis import confusion, guarded, signals
from paraguard_utils.analysis.cohorts import ALL_SYSTEMS
from paraguard_utils.analysis.evaluation import Evaluation
from paraguard_utils.core.confusion import N_NEIGHBOURS, THETA, estimate_confusion
from paraguard_utils.core.estimates import (
    MIN_MIXED,
    MIN_REFUSALS,
    SEED,
    ClusterBootstrap,
    to_columns,
)
from paraguard_utils.core.measures import MEASURES
from paraguard_utils.core.signals import (
    PAPER_WEIGHTS,
    PPL_INTERPRETATIONS,
    ScoreWeights,
    drift,
)
from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.models import encoder
from paraguard_utils.models.weights import MINILM_FILE
from paraguard_utils.schemas import Corpus, Pairs, Table
from paraguard_utils.settings import Settings
from paraguard_utils.stores import Store

SettingEstimates: TypeAlias = dict[
    str, Any
]  # estimates by measure, and n, the number of rejections they rest on

EstimatesBySetting: TypeAlias = dict[str, dict[str, dict[str, SettingEstimates]]]

MAX_K = 20
NEIGHBOUR_DIMENSIONS = (
    "k",
    "theta",
    "neighbours",
)  # dimensions that cannot move the excess
ORDERED_MEASURES = (
    "frr",
    "flip_rate",
    "ci",
    "cr60",
    "cd",
    "cr",
    "excess",
)  # `cr` is CR at the tau varied

DEFAULT_CHOICES = {  # the setting of each dimension that the others are compared with
    "weights": "0.4/0.1/0.5",
    "k": str(N_NEIGHBOURS),
    "tau": "0.60",
    "theta": "none",
    "scaling": "relative",
    "drift space": "system",
    "neighbours": "corpus",
    "labeller": "combined",
}

SEARCH_FOLDS = 5


def pairs_for_settings(
    store: Store, corpus_name: str, corpus: Corpus, system: Evaluation
) -> pd.DataFrame:
    """Compare one system's prompts with up to `MAX_K` neighbours, in every space and
    scaling.

    Returns a pairs file with what `prepare_pairs` adds, and drift_centred
    (`DriftCache.centred`) and drift_encoder (contextual token vectors of the sentence
    encoder), both for the default neighbours and the own cluster only.
    """
    vectors = encoder.stored_vectors(store, corpus_name, corpus["text"], earlier=True)
    frame = signals.compute_pairs(
        corpus, vectors, system.traces, system.labels, system.tokens, MAX_K
    )
    place = pd.Series(np.arange(len(corpus)), index=corpus["prompt_id"])
    usual = (signals.is_ranked(frame, N_NEIGHBOURS) | frame["same_cluster"]).to_numpy(
        bool
    )
    a, b = (
        place.loc[frame.loc[usual, name]].to_numpy()
        for name in ("centre_id", "neighbour_id")
    )
    texts = corpus["text"].to_numpy()
    frame[["drift_centred", "drift_encoder"]] = np.nan
    frame.loc[usual, "drift_centred"] = signals.DriftCache.share(
        system.traces, system.tokens
    ).centred(a, b)
    frame.loc[usual, "drift_encoder"] = encoder_drifts(
        store, corpus_name, texts[a], texts[b]
    )
    return prepare_pairs(frame, corpus, signals.trace_perplexity(system.traces))


def encoder_drifts(
    store: Store, name: str, first: Sequence[str], second: Sequence[str]
) -> np.ndarray:
    """Return Drift of pairs of texts in the encoder's space.

    A live store computes and keeps what it lacks.
    """
    keys = [
        tuple(sorted(map(encoder.hash_text, pair)))
        for pair in zip(first, second, strict=True)
    ]
    # Recorded ones and this store's own, so that what is promoted holds them all.
    where, there = (
        ("drifts", name, encoder.ENCODER_NAME),
        map(Store, dict.fromkeys((stores.RECORDED, store.name))),
    )
    known = [one.read(*where) for one in there if one.has(*where)]
    names = ["first_hash", "second_hash", "drift"]
    known = (
        pd.concat(known, ignore_index=True).drop_duplicates(names[:2])
        if known
        else pd.DataFrame(columns=names)
    )
    drifts = known.set_index(names[:2])["drift"].to_dict()
    missing = {
        key: pair
        for key, pair in zip(keys, zip(first, second, strict=True), strict=True)
        if key not in drifts
    }
    if missing and store.recorded:
        lacking = (
            f"{len(missing)} pairs of {name} have no recorded Drift in the encoder's"
            " space"
        )
        raise Missing(f"{lacking}; run 06_validity with a live store")
    if missing:
        texts = list(dict.fromkeys(text for pair in missing.values() for text in pair))
        own = dict(zip(texts, encoder.encode_tokens(texts), strict=True))
        drifts |= {key: drift(own[a], own[b]) for key, (a, b) in missing.items()}
    if not store.recorded and (missing or not store.has(*where)):
        frame = pd.DataFrame(
            [(*key, value) for key, value in drifts.items()], columns=names
        )
        store.write(
            *where,
            frame=frame,
            meta={"encoder": encoder.ENCODER_NAME, "weights": MINILM_FILE.sha256},
        )
    return np.array([drifts[key] for key in keys], float)


def prepare_pairs(
    frame: Pairs, corpus: Corpus, perplexities: np.ndarray
) -> pd.DataFrame:
    """Add to a pairs file what settings need; perplexities are in corpus order.

    New are cluster_id, centre (number), rejected, own_rank (among its cluster's
    accepted prompts), and drift_minmax, prob_shift_minmax and ppl_minmax: each signal,
    with |difference of perplexities| as the PPL contrast, scaled so that the system's
    pairs with its default neighbours span 0 to 1 (ours).
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
    own = frame[frame["same_cluster"]].sort_values(
        ["similarity", "neighbour_id"], ascending=[False, True]
    )
    frame["own_rank"] = own.groupby("centre").cumcount() + 1
    scored = signals.is_ranked(frame, N_NEIGHBOURS)
    for name in ("drift_minmax", "prob_shift_minmax", "ppl_minmax"):
        low, high = frame.loc[scored, name].min(), frame.loc[scored, name].max()
        frame[name] = (
            ((frame[name] - low) / (high - low)).clip(0, 1) if high > low else 0.0
        )
    return frame


def mark_used_pairs(
    frame: pd.DataFrame, k: int = N_NEIGHBOURS, theta: float = -1, scope: str = "corpus"
) -> np.ndarray:
    """Mark the pairs CI averages over: the k nearest of a scope ("corpus", "own
    cluster") if at least theta similar.
    """
    rank = frame["rank"] if scope == "corpus" else frame["own_rank"]
    return (
        rank.le(k).fillna(False).to_numpy(bool)
        & (frame["similarity"] >= theta).to_numpy()
    )


def ci_of_rejections(
    frame: pd.DataFrame, scores: np.ndarray, near: np.ndarray
) -> tuple[pd.Index, np.ndarray]:
    """Average the scores of the pairs marked in `near`: return the cluster and CI of
    every rejection that has some.
    """
    used = near & frame["rejected"].to_numpy()
    centres, cluster = (
        frame[name].to_numpy()[used] for name in ("centre", "cluster_id")
    )
    means = pd.Series(scores[used]).groupby(centres).mean()
    return pd.Index(cluster[np.unique(centres, return_index=True)[1]]), means.to_numpy()


def vary_settings(
    clusters: ClusterBootstrap, frames: Mapping[str, pd.DataFrame]
) -> EstimatesBySetting:
    """Estimate every system (`pairs_for_settings`) under every setting but the
    labeller's, with the primary excess.
    """
    found: EstimatesBySetting = {}
    for name, frame in frames.items():
        same = frame["same_cluster"].to_numpy()
        own = frame.loc[same, ["cluster_id", "centre_label"]]
        for dimension, setting, scores, near in _settings(frame):
            ids, ci = ci_of_rejections(frame, scores, near)
            estimate: SettingEstimates = {
                "n": len(ci),
                **estimate_confusion(clusters, ids, ci, taus=(0.60,)),
            }
            if dimension not in NEIGHBOUR_DIMENSIONS:
                estimate["excess"] = confusion.estimate_excess(
                    clusters, own, scores[same]
                )
            found.setdefault(dimension, {}).setdefault(setting, {})[name] = estimate
        ids, ci = ci_of_rejections(
            frame, signals.score_pairs(frame).to_numpy(), mark_used_pairs(frame)
        )
        for tau in chance.CURVE_TAUS:
            estimate = {"n": len(ci), "cr": clusters.share(ids, ci >= tau)}
            found.setdefault("tau", {}).setdefault(f"{tau:.2f}", {})[name] = estimate
    return found


def _settings(frame: pd.DataFrame) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """Yield each dimension and setting, the scores of pairs under it, and which pairs
    CI averages over.
    """
    usual, scores = mark_used_pairs(frame), signals.score_pairs(frame).to_numpy()
    for name, weights in weight_grid().items():
        yield "weights", name, signals.score_pairs(frame, weights).to_numpy(), usual
    for k in range(1, MAX_K + 1):
        yield "k", str(k), scores, mark_used_pairs(frame, k)
    for theta in (
        -1.0,
        0.3,
        0.4,
        0.5,
        THETA,
        0.7,
        0.8,
        0.9,
    ):  # -1 leaves out none
        yield (
            "theta",
            "none" if theta < 0 else f"{theta:.2f}",
            scores,
            mark_used_pairs(frame, theta=theta),
        )
    for name, column in {**PPL_INTERPRETATIONS, "minmax": "ppl_minmax"}.items():
        scaled = frame.assign(ppl_relative=frame[column])
        if name == "minmax":
            scaled = scaled.assign(
                drift=frame["drift_minmax"], prob_shift=frame["prob_shift_minmax"]
            )
        yield "scaling", name, signals.score_pairs(scaled).to_numpy(), usual
    for name, column in {
        "system": "drift",
        "system, centred": "drift_centred",
        "encoder": "drift_encoder",
    }.items():
        moved = signals.score_pairs(frame.assign(drift=frame[column])).fillna(
            0
        )  # pairs that nothing uses
        yield "drift space", name, moved.to_numpy(), usual
    for scope in ("corpus", "own cluster"):
        yield "neighbours", scope, scores, mark_used_pairs(frame, scope=scope)


def vary_labeller(
    store: Store,
    corpus: Corpus,
    scored: Mapping[str, Evaluation],
    settings: Settings,
    clusters: ClusterBootstrap,
) -> tuple[Table, dict[str, dict[str, SettingEstimates]]]:
    """Estimate every system under each labeller, in the interpretation `relative`.

    Returns counts (labeller, system, n_reject, n_accept, few), and estimates by
    labeller, system and measure. A system that was not judged has none of the judge's.
    """
    rows: list[dict[str, Any]] = []
    found: dict[str, dict[str, SettingEstimates]] = {}
    for labeller in labelling.LABELLERS:
        found[labeller] = {}
        for name, own in scored.items():
            if labeller == "judge" and not store.has("verdicts", settings.corpus, name):
                continue
            labels = labelling.read_matching_labels(
                store, settings.corpus, name, own.traces, labeller
            )
            if labeller == "aside" and labelling.STOPPED_KIND not in set(
                labels["kind"]
            ):
                continue
            estimates = guarded.estimate_guarded(
                store, corpus, own, labels, settings, clusters
            )
            counts = {
                f"n_{label}": int((labels["label"] == label).sum())
                for label in ("reject", "accept")
            }
            rows.append(
                {
                    "labeller": labeller,
                    "system": name,
                    **counts,
                    "too_few": estimates["n"] < MIN_REFUSALS,
                }
            )
            found[labeller][name] = estimates
    return pd.DataFrame(rows), found


def sensitivity_table(found: EstimatesBySetting) -> Table:
    """Lay out estimates by dimension, setting and system, a row each, with n
    (rejections) and intervals.
    """
    return pd.DataFrame(
        {"dimension": dimension, "setting": setting, "system": system, "n": own["n"]}
        | to_columns({name: estimate for name, estimate in own.items() if name != "n"})
        for dimension, settings in found.items()
        for setting, systems in settings.items()
        for system, own in systems.items()
    )


def sensitivity_orders(found: EstimatesBySetting) -> Table:
    """Say how sure the order of two systems is in every setting: dimension, and columns
    of `compare_orders`.
    """
    parts = []
    for dimension, settings in found.items():
        usual = DEFAULT_CHOICES[dimension]
        measures = [
            name
            for name in next(iter(settings[usual].values()))
            if name in ORDERED_MEASURES
        ]
        parts.append(confusion.compare_orders(settings, usual, measures))
        parts[-1].insert(0, "dimension", dimension)
    return pd.concat(parts, ignore_index=True)


def count_sure_orders(orders: Table, table: Table) -> Table:
    """Count which orders of systems every setting of a dimension is sure of, and which
    turn with the setting.

    What rests on fewer than 30 rejections orders nothing but rates. Columns: dimension,
    measure, settings, pairs (of systems, under two settings or more); always,
    sometimes, reversed: those surely ordered in all, any, both ways.
    """
    too_few = (
        table[table["n"] < MIN_REFUSALS]
        .set_index(["dimension", "setting", "system"])
        .index
    )
    sides = [
        pd.MultiIndex.from_frame(orders[["dimension", "setting", side]])
        for side in ("first", "second")
    ]
    rates = [name for name, measure in MEASURES.items() if not measure.needs_refusals]
    judged = orders[
        orders["measure"].isin(rates)
        | ~(sides[0].isin(too_few) | sides[1].isin(too_few))
    ]
    rows = []
    for (dimension, measure), own in judged.groupby(
        ["dimension", "measure"], sort=False
    ):
        higher = own.pivot(
            index=["first", "second"], columns="setting", values="higher"
        )
        higher = higher[higher.notna().sum(axis=1) > 1]
        if higher.empty:
            continue
        up, down, open_ = (
            higher >= MIN_ORDER_PROBABILITY,
            higher <= 1 - MIN_ORDER_PROBABILITY,
            higher.isna(),
        )
        always = (up | open_).all(axis=1) | (down | open_).all(axis=1)
        ever = up.any(axis=1), down.any(axis=1)
        counts = (always.sum(), (ever[0] | ever[1]).sum(), (ever[0] & ever[1]).sum())
        rows.append(
            (dimension, measure, higher.shape[1], len(higher), *map(int, counts))
        )
    return pd.DataFrame(
        rows,
        columns=[
            "dimension",
            "measure",
            "settings",
            "pairs",
            "always",
            "sometimes",
            "reversed",
        ],
    )


def weight_grid() -> dict[str, ScoreWeights]:
    """Return all 66 weights in steps of 0.1, by name."""
    steps = [
        (drift, shift, 10 - drift - shift)
        for drift in range(11)
        for shift in range(11 - drift)
    ]
    made = [ScoreWeights(*(step / 10 for step in three)) for three in steps]
    return {
        f"{weights.drift:g}/{weights.prob_shift:g}/{weights.ppl:g}": weights
        for weights in made
    }


def pair_separation(
    own: pd.DataFrame, weights: Sequence[ScoreWeights], interpretation: str
) -> tuple[np.ndarray, np.ndarray]:
    """Compute how well each of m weights tells rejected-accepted from accepted-accepted
    pairs of a cluster (ours).

    Returns the ids of the mixed clusters in `own` (`confusion.select_own_pairs`), and
    for each, shape (clusters, m), the share of (rejected-accepted, accepted-accepted)
    couples in which the first scores higher, ties half.
    """
    parts = own[["drift", "prob_shift", PPL_INTERPRETATIONS[interpretation]]].to_numpy()
    scores = (
        parts @ np.array([[one.drift, one.prob_shift, one.ppl] for one in weights]).T
    )
    rejected = (own["centre_label"] == "reject").to_numpy()
    mixed, aucs = [], []
    for cluster_id, mine in own.groupby("cluster_id").indices.items():
        one, other = scores[mine[rejected[mine]]], scores[mine[~rejected[mine]]]
        if len(one) and len(other):
            steps = one[:, None] - other[None]
            mixed.append(cluster_id)
            aucs.append(
                ((steps > 1e-12) + 0.5 * (np.abs(steps) <= 1e-12)).mean(axis=(0, 1))
            )
    return np.array(mixed, dtype=object), np.array(aucs).reshape(
        len(aucs), len(weights)
    )


def search_weights(
    clusters: ClusterBootstrap, own: Mapping[str, pd.DataFrame], seed: int = SEED
) -> Table:
    """Search the weights that tell rejected-accepted pairs best, cross-validated, with
    and without ProbShift.

    The criterion is the mean of `pair_separation`; intervals keep the folds' choices.
    `own` has what `confusion.select_own_pairs` returns, by system; the row `all
    systems` pools their clusters. Columns: system, reading, prob_shift (with /
    without), n_mixed, few (fewer than 10); best, the best weights on all clusters, and
    auc_best; with intervals auc_held_out (of each fold's choice on the clusters left
    out), auc_paper and gain, the first minus the second; chosen: the folds' choices.
    NaN below two clusters a fold.
    """
    grid, rest = weight_grid(), PAPER_WEIGHTS.without_prob_shift()
    assert rest is not None  # Drift and the PPL contrast have weight
    without = [i for i, one in enumerate(grid.values()) if one.prob_shift == 0]
    rows = []
    for interpretation in PPL_INTERPRETATIONS:
        tried = [*grid.values(), PAPER_WEIGHTS, rest]
        by_system = {
            name: pair_separation(frame, tried, interpretation)
            for name, frame in own.items()
        }
        pooled = tuple(
            np.concatenate(parts) for parts in zip(*by_system.values(), strict=True)
        )
        for name, (ids, auc) in {**by_system, ALL_SYSTEMS: pooled}.items():
            for which, usable, paper in (
                ("with", list(range(len(grid))), -2),
                ("without", without, -1),
            ):
                n_mixed, names = len(set(ids)), [list(grid)[i] for i in usable]
                row: dict[str, Any] = {
                    "system": name,
                    "interpretation": interpretation,
                    "prob_shift": which,
                }
                row |= {"n_mixed": n_mixed, "too_few": n_mixed < MIN_MIXED}
                rows.append(
                    row
                    | _searched(
                        clusters, ids, auc[:, usable], auc[:, paper], names, seed
                    )
                )
    return pd.DataFrame(rows)


def _searched(
    clusters: ClusterBootstrap,
    ids: np.ndarray,
    auc: np.ndarray,
    paper: np.ndarray,
    names: list[str],
    seed: int,
) -> dict[str, Any]:
    """Choose a column of `auc`, by name, in each fold and on all clusters."""
    from sklearn.model_selection import KFold  # a second to import

    held_out, chosen, members = np.full(len(ids), np.nan), [], np.unique(ids)
    if len(members) < 2 * SEARCH_FOLDS:
        nothing = dict.fromkeys(
            ("auc_held_out", "auc_paper", "gain"), clusters.undefined()
        )
        return {"best": "", "auc_best": np.nan, **to_columns(nothing), "chosen": ""}
    for _, out in KFold(SEARCH_FOLDS, shuffle=True, random_state=seed).split(members):
        left = np.isin(ids, members[out])
        choice = auc[~left].mean(axis=0).round(12).argmax()
        held_out[left] = auc[left, choice]
        chosen.append(names[choice])
    mean = auc.mean(axis=0).round(12)
    values = {"auc_held_out": held_out, "auc_paper": paper, "gain": held_out - paper}
    found = {name: clusters.mean(ids, value) for name, value in values.items()}
    counted = "; ".join(
        f"{name} ({chosen.count(name)} of {SEARCH_FOLDS})"
        for name in dict.fromkeys(chosen)
    )
    return {
        "best": names[mean.argmax()],
        "auc_best": mean.max(),
        **to_columns(found),
        "chosen": counted,
    }
