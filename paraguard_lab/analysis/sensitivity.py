"""How results change with the choices behind them (see `docs/method.md`)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import pandas as pd

from paraguard_lab.analysis import chance
from paraguard_lab.analysis.comparisons import MIN_ORDER_PROBABILITY, compare_orders
from paraguard_lab.analysis.excess import estimate_excess, estimate_scored
from paraguard_lab.analysis.tokens import encode_tokens
from paraguard_lab.analysis.weight_search import weight_grid
from paraguard_utils import stores
from paraguard_utils.analysis import confusion, pipeline, signals
from paraguard_utils.analysis.drift import DriftCache, find_token_rows
from paraguard_utils.analysis.system import System
from paraguard_utils.core.confusion import N_NEIGHBOURS, THETA, estimate_confusion
from paraguard_utils.core.estimates import MIN_REFUSALS, ClusterBootstrap, to_columns
from paraguard_utils.core.signals import PPL_INTERPRETATIONS, drift
from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.models import encoder
from paraguard_utils.models.weights import MINILM_FILE
from paraguard_utils.schemas import Table, Tokens, Traces
from paraguard_utils.settings import Labeller
from paraguard_utils.stores import CorpusFiles

SettingEstimates: TypeAlias = dict[str, Any]
"""Estimates by measure, and n, the number of rejections they rest on."""

EstimatesBySetting: TypeAlias = dict[str, dict[str, dict[str, SettingEstimates]]]
"""Estimates by dimension, setting and system."""

MAX_K = 20
THETAS = (-1.0, 0.3, 0.4, 0.5, THETA, 0.7, 0.8, 0.9)
"""Least similarities of a neighbour; -1 leaves out none."""

NEIGHBOUR_DIMENSIONS = ("k", "theta", "neighbours")
"""The dimensions that cannot change the excess."""

ORDERED_MEASURES = ("frr", "flip_rate", "ci", "cr60", "cd", "cr", "excess")
"""The measures by which systems are ordered; `cr` is CR at the tau varied."""

DEFAULT_CHOICES = {
    "weights": "0.4/0.1/0.5",
    "k": str(N_NEIGHBOURS),
    "tau": "0.60",
    "theta": "none",
    "scaling": "relative",
    "drift space": "system",
    "neighbours": "corpus",
    "labeller": "combined",
}
"""The setting of each dimension that the others are compared with."""

# Dimension, setting, and what takes the place of columns of a pairs file
_OTHER_COLUMNS: list[tuple[str, str, dict[str, str]]] = [
    *(
        ("scaling", name, {"ppl_relative": column})
        for name, column in PPL_INTERPRETATIONS.items()
    ),
    (
        "scaling",
        "minmax",
        {
            "drift": "drift_minmax",
            "prob_shift": "prob_shift_minmax",
            "ppl_relative": "ppl_minmax",
        },
    ),
    ("drift space", "system", {}),
    ("drift space", "system, centred", {"drift": "drift_centred"}),
    ("drift space", "encoder", {"drift": "drift_encoder"}),
]


class Setting(NamedTuple):
    """One choice: scores of pairs under it, and which pairs CI averages over."""

    dimension: str
    name: str
    scores: np.ndarray
    used: np.ndarray


# Pairs in every space and scaling
# --------------------------------


def pairs_for_settings(
    files: CorpusFiles, systems: Iterable[System]
) -> dict[str, pd.DataFrame]:
    """Compare the prompts of each system with up to `MAX_K` neighbours.

    Returns
    -------
    dict of DataFrame
        By system, a pairs file with what `prepare_pairs` adds, and drift_centred (in
        the space of `centre_tokens`) and drift_encoder (of contextual token vectors of
        the sentence encoder), both for the default neighbours and the same cluster
        only.
    """
    prepared = {}
    in_centred: dict[str, DriftCache] = {}  # by model
    for system in systems:
        prompts = system.prompts
        texts = prompts["text"].to_numpy(object)
        vectors = encoder.stored_vectors(files, texts, earlier=True)
        pairs = signals.compute_pairs(system, vectors, k=MAX_K)
        is_usual = signals.is_ranked(pairs, N_NEIGHBOURS) | pairs["same_cluster"]
        place = pd.Index(prompts["prompt_id"])
        first = place.get_indexer(pairs.loc[is_usual, "centre_id"])
        second = place.get_indexer(pairs.loc[is_usual, "neighbour_id"])
        model = system.token_model
        if model not in in_centred:
            tokens = centre_tokens(system.drifts.tokens, system.traces)
            in_centred[model] = DriftCache(tokens)
        centred = in_centred[model](system.traces, first, second)
        in_encoder = encoder_drifts(files, texts[first], texts[second])
        pairs[["drift_centred", "drift_encoder"]] = np.nan
        pairs.loc[is_usual, "drift_centred"] = centred
        pairs.loc[is_usual, "drift_encoder"] = in_encoder
        perplexities = signals.trace_perplexity(system.traces)
        prepared[system.name] = prepare_pairs(pairs, prompts, perplexities)
    return prepared


def centre_tokens(tokens: Tokens, traces: Traces) -> Tokens:
    """Return tokens without the mean embedding of those that the prompts are made of.

    Other tokens that a store has of the model do not count.
    """
    embeddings = np.stack(tokens["embedding"].to_numpy()).astype(np.float64)
    in_prompts = np.unique(np.concatenate(find_token_rows(traces, tokens)))
    centre = embeddings[in_prompts].mean(axis=0)
    return tokens.assign(embedding=list(embeddings - centre))


def encoder_drifts(
    files: CorpusFiles, first: Sequence[str], second: Sequence[str]
) -> np.ndarray:
    """Return Drift of pairs of texts in the encoder's space.

    A live store computes and keeps what it lacks.

    Parameters
    ----------
    files : CorpusFiles
    first, second : sequence of str
        n texts each.

    Returns
    -------
    numpy.ndarray of float, shape (n,)
        In [0, 1].

    Raises
    ------
    Missing
        A recorded store lacks a pair.
    """
    known: dict[tuple[str, ...], float] = {}
    # A live store holds the record's too, so that what is promoted has both.
    for store in (stores.Store(stores.RECORDED), files.store):
        if store.has("drifts", files.name, encoder.ENCODER_NAME):
            frame = store.read("drifts", files.name, encoder.ENCODER_NAME)
            pairs = zip(frame["first_hash"], frame["second_hash"], strict=True)
            known |= dict(zip(pairs, frame["drift"], strict=True))
    hashes = {text: encoder.hash_text(text) for text in {*first, *second}}
    keys = []
    missing = {}
    for pair in zip(first, second, strict=True):
        key = tuple(sorted([hashes[pair[0]], hashes[pair[1]]]))
        keys.append(key)
        if key not in known:
            missing[key] = pair
    if missing and files.recorded:
        raise Missing(
            f"{len(missing)} pairs of {files.name} have no recorded Drift in the"
            " encoder's space; run 06_validity with a live store"
        )
    if missing:
        texts = sorted(set().union(*missing.values()))
        vectors = dict(zip(texts, encode_tokens(texts), strict=True))
        for key, (a, b) in missing.items():
            known[key] = drift(vectors[a], vectors[b])
    if not files.recorded:
        rows = [(*key, value) for key, value in known.items()]
        meta = {"encoder": encoder.ENCODER_NAME, "weights": MINILM_FILE.sha256}
        frame = pd.DataFrame(rows, columns=["first_hash", "second_hash", "drift"])
        files.write("drifts", encoder.ENCODER_NAME, frame=frame, meta=meta)
    return np.array([known[key] for key in keys], float)


def prepare_pairs(
    pairs: pd.DataFrame, prompts: pd.DataFrame, perplexities: np.ndarray
) -> pd.DataFrame:
    """Add to a pairs file what settings need.

    Parameters
    ----------
    pairs : DataFrame
    prompts : DataFrame
        With prompt_id and cluster_id.
    perplexities : numpy.ndarray, shape (n,)
        Of the prompts.

    Returns
    -------
    DataFrame
        New are cluster_id, centre (number), rejected, own_rank (among its cluster's
        accepted prompts), and drift_minmax, prob_shift_minmax and ppl_minmax: each
        signal, with |difference of perplexities| as the PPL contrast, scaled so that
        the system's pairs with its default neighbours span 0 to 1 (ours).
    """
    known = prompts.assign(ppl=perplexities).set_index("prompt_id")
    centre = known.loc[pairs["centre_id"]]
    neighbour = known.loc[pairs["neighbour_id"]]
    pairs = pairs.assign(
        cluster_id=centre["cluster_id"].to_numpy(),
        centre=pd.factorize(pairs["centre_id"])[0],
        rejected=(pairs["centre_label"] == "reject").to_numpy(),
        drift_minmax=pairs["drift"],
        prob_shift_minmax=pairs["prob_shift"],
        ppl_minmax=np.abs(centre["ppl"].to_numpy() - neighbour["ppl"].to_numpy()),
    )
    in_cluster = pairs[pairs["same_cluster"]]
    in_cluster = in_cluster.sort_values(
        ["similarity", "neighbour_id"], ascending=[False, True]
    )
    pairs["own_rank"] = in_cluster.groupby("centre").cumcount() + 1
    is_default = signals.is_ranked(pairs, N_NEIGHBOURS)
    for name in ("drift_minmax", "prob_shift_minmax", "ppl_minmax"):
        low = pairs.loc[is_default, name].min()
        high = pairs.loc[is_default, name].max()
        span = (high - low) or np.inf
        pairs[name] = ((pairs[name] - low) / span).clip(0, 1)
    return pairs


# Settings
# --------


def mark_used_pairs(
    pairs: pd.DataFrame, k: int = N_NEIGHBOURS, theta: float = -1, scope: str = "corpus"
) -> np.ndarray:
    """Mark the pairs CI averages over.

    Parameters
    ----------
    pairs : DataFrame
        From `prepare_pairs`.
    k : int
        So many nearest neighbours are used,
    theta : float
        if they are at least this similar.
    scope : {"corpus", "own cluster"}
        Where neighbours are looked for.

    Returns
    -------
    numpy.ndarray of bool, shape (pairs,)
    """
    rank = pairs["rank"] if scope == "corpus" else pairs["own_rank"]
    is_near = rank.le(k).fillna(False).to_numpy(bool)
    return is_near & (pairs["similarity"] >= theta).to_numpy()


def ci_of_rejections(
    pairs: pd.DataFrame, scores: np.ndarray, used: np.ndarray
) -> pd.Series:
    """Average the scores of each rejection's used pairs.

    Parameters
    ----------
    pairs : DataFrame
        From `prepare_pairs`.
    scores : numpy.ndarray of float, shape (pairs,)
    used : numpy.ndarray of bool, shape (pairs,)
        From `mark_used_pairs`.

    Returns
    -------
    Series
        CI of the rejections that have such pairs, by cluster_id.
    """
    chosen = used & pairs["rejected"].to_numpy()
    centre = pairs["centre"].to_numpy()[chosen]
    n = np.bincount(centre)
    totals = np.bincount(centre, scores[chosen])
    cluster_ids = pairs["cluster_id"].to_numpy()[chosen]
    id_of_centre = np.empty(len(n), cluster_ids.dtype)
    id_of_centre[centre] = cluster_ids
    has_pairs = n > 0
    return pd.Series(totals[has_pairs] / n[has_pairs], id_of_centre[has_pairs])


def list_settings(pairs: pd.DataFrame) -> list[Setting]:
    """List every setting of a system's pairs, but those of the labeller and of tau."""
    usual = mark_used_pairs(pairs)
    scores = signals.score_pairs(pairs).to_numpy()
    settings = []
    for name, weights in weight_grid().items():
        weighted = signals.score_pairs(pairs, weights).to_numpy()
        settings.append(Setting("weights", name, weighted, usual))
    for k in range(1, MAX_K + 1):
        settings.append(Setting("k", str(k), scores, mark_used_pairs(pairs, k)))
    for theta in THETAS:
        name = "none" if theta < 0 else f"{theta:.2f}"
        near = mark_used_pairs(pairs, theta=theta)
        settings.append(Setting("theta", name, scores, near))
    for dimension, name, columns in _OTHER_COLUMNS:
        moved = pairs.assign(**{signal: pairs[columns[signal]] for signal in columns})
        # Pairs that nothing uses have no Drift in the other spaces.
        changed = signals.score_pairs(moved).fillna(0).to_numpy()
        settings.append(Setting(dimension, name, changed, usual))
    for scope in ("corpus", "own cluster"):
        near = mark_used_pairs(pairs, scope=scope)
        settings.append(Setting("neighbours", scope, scores, near))
    return settings


def vary_settings(
    clusters: ClusterBootstrap, pairs: Mapping[str, pd.DataFrame]
) -> EstimatesBySetting:
    """Estimate every system under every setting but the labeller's.

    Parameters
    ----------
    clusters : ClusterBootstrap
    pairs : mapping of str to DataFrame
        By system, from `pairs_for_settings`.

    Returns
    -------
    dict
        By dimension, setting and system: n, the estimates of `estimate_confusion`, and
        the primary excess if the setting can change it.
    """
    estimates: EstimatesBySetting = {}
    # Numbers of clusters in place of their ids: quicker to look up a thousand times
    numbered = ClusterBootstrap(clusters.codes, clusters.resamples, clusters.seed)

    def keep(
        dimension: str, name: str, system: str, measures: SettingEstimates
    ) -> None:
        by_setting = estimates.setdefault(dimension, {})
        by_setting.setdefault(name, {})[system] = measures

    for system, frame in pairs.items():
        codes = clusters.codes.loc[frame["cluster_id"]].to_numpy()
        frame = frame.assign(cluster_id=codes)
        same_cluster = frame["same_cluster"].to_numpy()
        in_cluster = frame.loc[same_cluster, ["cluster_id", "centre_label"]]
        for setting in list_settings(frame):
            ci = ci_of_rejections(frame, setting.scores, setting.used)
            measures: SettingEstimates = {"n": len(ci)}
            measures |= estimate_confusion(numbered, ci.index, ci.to_numpy())
            del measures["cr75"]
            if setting.dimension not in NEIGHBOUR_DIMENSIONS:
                values = setting.scores[same_cluster]
                measures["excess"] = estimate_excess(numbered, in_cluster, values)
            keep(setting.dimension, setting.name, system, measures)
        scores = signals.score_pairs(frame).to_numpy()
        ci = ci_of_rejections(frame, scores, mark_used_pairs(frame))
        for tau in chance.CURVE_TAUS:
            share = numbered.share(ci.index, ci.to_numpy() >= tau)
            keep("tau", f"{tau:.2f}", system, {"n": len(ci), "cr": share})
    return estimates


def vary_labeller(
    files: CorpusFiles, systems: Iterable[System]
) -> dict[str, dict[str, SettingEstimates]]:
    """Estimate every system under each labeller, in the interpretation `relative`.

    Parameters
    ----------
    files : CorpusFiles
    systems : iterable of System
        With traces and drifts.

    Returns
    -------
    dict
        By labeller, system and measure. A system that was not judged has no estimates
        of `judge`, and one of which a provider stopped nothing has none of `aside`.
    """
    estimates: dict[str, dict[str, SettingEstimates]] = {}
    for labeller in get_args(Labeller):
        estimates[labeller] = {}
    for system in systems:
        for labeller, by_system in estimates.items():
            if labeller == "judge" and not files.has("verdicts", system.name):
                continue
            labels = labelling.read_matching_labels(
                files, system.name, system.traces, labeller
            )
            stopped = labelling.STOPPED_KIND in set(labels["kind"])
            if labeller == "aside" and not stopped:
                continue
            relabelled = system.with_labels(labels)
            scored = pipeline.compute_scores(files, relabelled)
            by_system[system.name] = {
                "n": len(scored.rejections),
                **confusion.estimate_rates(scored),
                **estimate_scored(scored),
            }
    return estimates


# Tables
# ------


def sensitivity_table(estimates: EstimatesBySetting) -> Table:
    """Tabulate the estimates of `vary_settings` and `vary_labeller`.

    Returns
    -------
    Table
        A row for each dimension, setting and system: dimension, setting, system, n
        (rejections), and measures with intervals.
    """
    rows = []
    for dimension, settings in estimates.items():
        for setting, systems in settings.items():
            for system, measures in systems.items():
                about = {"dimension": dimension, "setting": setting, "system": system}
                values = dict(measures)
                about["n"] = values.pop("n")
                rows.append(about | to_columns(values))
    return pd.DataFrame(rows)


def sensitivity_orders(estimates: EstimatesBySetting) -> Table:
    """Compute how certain the order of two systems is in every setting.

    Columns: dimension, and those of `compare_orders`.
    """
    tables = []
    for dimension, settings in estimates.items():
        usual = DEFAULT_CHOICES[dimension]
        known = next(iter(settings[usual].values()))
        measures = [name for name in known if name in ORDERED_MEASURES]
        orders = compare_orders(settings, usual, measures)
        orders.insert(0, "dimension", dimension)
        tables.append(orders)
    return pd.concat(tables, ignore_index=True)


def count_sure_orders(orders: Table, table: Table) -> Table:
    """Count the orders of systems that are clear in every setting of a dimension.

    An order is clear if it has a bootstrap probability of `MIN_ORDER_PROBABILITY`. What
    rests on fewer than 30 rejections orders nothing but rates.

    Parameters
    ----------
    orders : Table
        From `sensitivity_orders`.
    table : Table
        From `sensitivity_table`.

    Returns
    -------
    Table
        dimension, measure, settings, pairs (of systems, under two settings or more);
        always, sometimes, reversed: pairs with a clear order in all settings, in any,
        and in both directions.
    """
    keys = ["dimension", "setting", "system"]
    too_few = table[table["n"] < MIN_REFUSALS].set_index(keys).index
    is_judged = pd.Series(True, orders.index)
    for side in ("first", "second"):
        sides = pd.MultiIndex.from_frame(orders[["dimension", "setting", side]])
        is_judged &= ~sides.isin(too_few)
    is_judged |= orders["measure"].isin(["frr", "flip_rate"])
    columns = ["dimension", "measure", "settings", "pairs"]
    columns += ["always", "sometimes", "reversed"]
    rows = []
    for about, part in orders[is_judged].groupby(columns[:2], sort=False):
        higher = part.pivot(
            index=["first", "second"], columns="setting", values="higher"
        )
        higher = higher[higher.notna().sum(axis=1) > 1]
        if higher.empty:
            continue
        lowest = higher.min(axis=1)
        highest = higher.max(axis=1)
        always_up = lowest >= MIN_ORDER_PROBABILITY
        always_down = highest <= 1 - MIN_ORDER_PROBABILITY
        ever_up = highest >= MIN_ORDER_PROBABILITY
        ever_down = lowest <= 1 - MIN_ORDER_PROBABILITY
        counts = [always_up | always_down, ever_up | ever_down, ever_up & ever_down]
        totals = [hits.sum() for hits in counts]
        rows.append((*about, higher.shape[1], len(higher), *totals))
    return pd.DataFrame(rows, columns=columns)
