"""How results move with the choices behind them (`docs/method.md`, Sensitivity and grid search).

One choice is varied at a time, the others stay at their defaults: the weights, k, tau, theta, the scaling of the
signals, the space in which Drift is measured, whether neighbours come from the corpus or from the own cluster, and the
labeller. Every setting uses the same resampled clusters, so that the order of two targets has a bootstrap probability
in each. The grid search for weights that the paper mentions is here too, with a criterion of ours.
"""

import numpy as np
import pandas as pd
from sklearn.model_selection import KFold

from paraguard_utils import encoder, judge, metrics, nulls, scoring, signals, stores, tables
from paraguard_utils.errors import Missing
from paraguard_utils.metrics import FEW, FEW_CLUSTERS, SEED, THETA
from paraguard_utils.querying import model_of
from paraguard_utils.refusals import LABELLER
from paraguard_utils.signals import PAPER_WEIGHTS, READINGS, K, Weights
from paraguard_utils.targets import titles
from paraguard_utils.weights import MINILM

DEEP = 20
"""The largest k tried."""

THETAS = (-1.0, 0.3, 0.4, 0.5, THETA, 0.7, 0.8, 0.9)
"""Similarities below which a neighbour is left out; -1 leaves out none."""

SCALINGS = {**READINGS, "minmax": "ppl_minmax"}
SPACES = {"target": "drift", "target, centred": "drift_centred", "encoder": "drift_encoder"}
SCOPES = ("corpus", "own cluster")
CHOOSE_NEIGHBOURS = ("k", "theta", "neighbours")
"""Dimensions that cannot move the excess, which is over all pairs of one cluster."""

FOLDS = 5

ORDERED = ("frr", "flip_rate", "ci", "cr60", "cd", "cr", "excess")
"""Measures by which targets are ordered, where a dimension has them; `cr` is CR at the tau varied."""

RATES = ("frr", "flip_rate")
"""Measures that are defined without a rejection."""

LABELLERS = {"cues": LABELLER, "policy": f"{LABELLER}, policy refusals only", "judge": judge.RUBRIC}

DEFAULTS = {
    "weights": "0.4/0.1/0.5",
    "k": str(K),
    "tau": "0.60",
    "theta": "none",
    "scaling": "relative",
    "drift space": "target",
    "neighbours": "corpus",
    "labeller": "cues",
}
"""The setting of each dimension that the others are compared with."""


def simplex(steps=10):
    """Return all weights in steps of 1 / steps, by name: 66 for steps of 0.1."""
    made = [
        Weights(drift / steps, shift / steps, (steps - drift - shift) / steps)
        for drift in range(steps + 1)
        for shift in range(steps + 1 - drift)
    ]
    return {f"{weights.drift:g}/{weights.prob_shift:g}/{weights.ppl:g}": weights for weights in made}


def compared(store, corpus_name, corpus, traces, labels, tokens, clusters):
    """Compare one target's prompts with up to `DEEP` neighbours, in every space and scaling.

    Parameters
    ----------
    store : stores.Store
        For sentence vectors and Drift in the encoder's space.
    corpus_name : str
    corpus, traces, labels : DataFrame
        Rows in the same order.
    tokens : DataFrame
    clusters : metrics.Clusters

    Returns
    -------
    DataFrame
        A pairs file with cluster (number), centre (number), rejected, own_rank (among the own cluster's accepted
        prompts, NaN elsewhere), drift_centred (embeddings less their mean over the distinct tokens kept for the model)
        and drift_encoder (contextual token vectors of the sentence encoder; both for the default neighbours and the
        own cluster only), and what `minmax` takes: drift_minmax, prob_shift_minmax, ppl_minmax.
    """
    vectors = encoder.vectors(store, corpus_name, corpus["text"], earlier=True)
    frame = signals.pairs(corpus, vectors, traces, labels, tokens, DEEP)
    place = pd.Series(np.arange(len(corpus)), index=corpus["prompt_id"])
    a, b = (place.loc[frame[name]].to_numpy() for name in ("centre_id", "neighbour_id"))
    usual = (signals.ranked(frame, K) | frame["same_cluster"]).to_numpy(bool)
    centred = np.stack(tokens["embedding"].to_numpy()).astype(np.float64)
    centred = tokens.assign(embedding=list(centred - centred.mean(axis=0)))
    frame[["drift_centred", "drift_encoder"]] = np.nan
    frame.loc[usual, "drift_centred"] = signals.compare(traces, centred, a[usual], b[usual])["drift"].to_numpy()
    texts = corpus["text"].to_numpy()
    frame.loc[usual, "drift_encoder"] = token_drifts(store, corpus_name, texts[a[usual]], texts[b[usual]])
    return laid_out(frame, corpus, signals.perplexity(traces), clusters)


def token_drifts(store, name, first, second):
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
    keys = [tuple(sorted(map(encoder.text_hash, pair))) for pair in zip(first, second, strict=True)]
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
        drifts |= {key: signals.drift(own[a], own[b]) for key, (a, b) in missing.items()}
    if not store.recorded and (missing or not store.has("drifts", encoder.NAME, name)):
        frame = pd.DataFrame([(*key, value) for key, value in drifts.items()], columns=names)
        meta = {"encoder": encoder.NAME, "weights": MINILM.sha256}
        store.write("drifts", encoder.NAME, name, frame=frame, meta=meta)
    return np.array([drifts[key] for key in keys], float)


def laid_out(frame, corpus, perplexities, clusters):
    """Add to a pairs frame what settings need: numbers of clusters and centres, ranks inside clusters, scaled signals.

    `minmax` scales each signal, with |difference of perplexities| as the PPL contrast, so that the target's pairs with
    its default neighbours span 0 to 1 (ours).

    Parameters
    ----------
    frame : DataFrame
        A pairs file.
    corpus : DataFrame
    perplexities : numpy.ndarray, shape (n,)
        In corpus order.
    clusters : metrics.Clusters

    Returns
    -------
    DataFrame
        As `compared` says.
    """
    known = corpus.assign(ppl=perplexities).set_index("prompt_id")
    a, b = known.loc[frame["centre_id"]], known.loc[frame["neighbour_id"]]
    frame = frame.assign(
        cluster=clusters.codes.loc[a["cluster_id"]].to_numpy(),
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


def near(frame, k=K, theta=-1.0, scope="corpus"):
    """Return which pairs CI averages over.

    Parameters
    ----------
    frame : DataFrame
        From `laid_out`.
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


def confusion(frame, scores, near):
    """CI(r) of every rejection that has a neighbour.

    Returns
    -------
    cluster : numpy.ndarray of int
        Each rejection's cluster.
    ci : numpy.ndarray of float
    """
    rows = np.flatnonzero(near & frame["rejected"].to_numpy())
    centre = frame["centre"].to_numpy()[rows]
    size = centre.max() + 1 if len(rows) else 0
    count, total = np.bincount(centre, minlength=size), np.bincount(centre, scores[rows], minlength=size)
    cluster = np.zeros(size, int)
    cluster[centre] = frame["cluster"].to_numpy()[rows]
    return cluster[count > 0], total[count > 0] / count[count > 0]


def estimates(clusters, frame, scores, near):
    """Estimate how sensibly a target refuses under one setting.

    Parameters
    ----------
    clusters : metrics.Clusters
    frame : DataFrame
        From `laid_out`.
    scores : numpy.ndarray, shape (pairs,)
    near : numpy.ndarray of bool, shape (pairs,)
        Pairs that CI averages over.

    Returns
    -------
    dict of str to Estimate
        ci, cr60, cd over rejections with a neighbour; excess (primary). And n, the number of these rejections.
    """
    cluster, ci = confusion(frame, scores, near)
    names = clusters.codes.index.to_numpy()
    ids = names[cluster]
    own = frame["same_cluster"].to_numpy()
    group = 2 * frame["cluster"].to_numpy()[own] + frame["rejected"].to_numpy()[own]
    size = 2 * len(names)
    with np.errstate(invalid="ignore"):
        means = np.bincount(group, scores[own], minlength=size) / np.bincount(group, minlength=size)
    excess = means[1::2] - means[::2]
    mixed = np.isfinite(excess)
    return {
        "n": len(ci),
        "ci": clusters.mean(ids, ci),
        "cr60": clusters.share(ids, ci >= 0.6),
        "cd": clusters.deviation(ids, ci),
        "excess": clusters.mean(names[mixed], excess[mixed]),
    }


def vary(clusters, frames):
    """Estimate every target under every setting of every dimension but the labeller.

    Parameters
    ----------
    clusters : metrics.Clusters
    frames : dict of str to DataFrame
        From `compared`, by target.

    Returns
    -------
    dict
        Estimates by dimension, setting, target and measure.
    """
    found = {name: {} for name in ("weights", "k", "theta", "scaling", "drift space", "neighbours", "tau")}

    def put(dimension, setting, name, estimate):
        if dimension in CHOOSE_NEIGHBOURS:
            del estimate["excess"]
        found[dimension].setdefault(setting, {})[name] = estimate

    for name, frame in frames.items():
        usual, scores = near(frame), signals.score(frame).to_numpy()
        for setting, weights in simplex().items():
            put("weights", setting, name, estimates(clusters, frame, signals.score(frame, weights).to_numpy(), usual))
        for k in range(1, DEEP + 1):
            put("k", str(k), name, estimates(clusters, frame, scores, near(frame, k)))
        for theta in THETAS:
            put(
                "theta",
                "none" if theta < 0 else f"{theta:.2f}",
                name,
                estimates(clusters, frame, scores, near(frame, theta=theta)),
            )
        for scope in SCOPES:
            put("neighbours", scope, name, estimates(clusters, frame, scores, near(frame, scope=scope)))
        for setting, column in SCALINGS.items():
            scaled = frame.assign(ppl_relative=frame[column])
            if setting == "minmax":
                scaled = scaled.assign(drift=frame["drift_minmax"], prob_shift=frame["prob_shift_minmax"])
            put("scaling", setting, name, estimates(clusters, frame, signals.score(scaled).to_numpy(), usual))
        for setting, column in SPACES.items():
            moved = signals.score(frame.assign(drift=frame[column])).fillna(0).to_numpy()  # pairs that nothing uses
            put("drift space", setting, name, estimates(clusters, frame, moved, usual))
        cluster, ci = confusion(frame, scores, usual)
        ids = clusters.codes.index.to_numpy()[cluster]
        for tau in nulls.CURVE:
            put("tau", f"{tau:.2f}", name, {"n": len(ci), "cr": clusters.share(ids, ci >= tau)})
    return found


def by_labeller(store, corpus_name, corpus, traces, settings, clusters):
    """Estimate every target under each labeller.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus : DataFrame
    traces : dict of str to DataFrame
        By target.
    settings : settings.Settings
    clusters : metrics.Clusters

    Returns
    -------
    counts : DataFrame
        labeller, target, n_reject, n_accept, few.
    estimates : dict
        By labeller, target and measure, in the reading `relative`; a target that was not judged has none of the
        judge's.
    """
    rows, estimates = [], {}
    for labeller in LABELLERS:
        estimates[labeller] = {}
        for name, own in traces.items():
            if labeller == "judge" and not store.has("verdicts", corpus_name, name):
                continue
            labels = scoring.matching_labels(store, corpus_name, name, own, labeller)
            frame, scores = scoring.compare(store, corpus_name, corpus, labels, own, model_of(name), settings)
            counts = {f"n_{label}": int((labels["label"] == label).sum()) for label in ("reject", "accept")}
            n = len(metrics.rejections(scores))
            rows.append({"labeller": labeller, "target": name, **counts, "few": n < FEW})
            estimates[labeller][name] = {
                "n": n,
                **metrics.rate_estimates(corpus, labels, clusters),
                **metrics.score_estimates(corpus, frame, scores, clusters, weights=settings.weights()),
            }
    return pd.DataFrame(rows), estimates


def table(found):
    """Lay out estimates by dimension, setting and target, a row each, with n (rejections) and intervals."""
    return pd.DataFrame(
        {
            "dimension": dimension,
            "setting": setting,
            "target": target,
            "n": own["n"],
            **metrics.columns({name: estimate for name, estimate in own.items() if name != "n"}),
        }
        for dimension, settings in found.items()
        for setting, targets in settings.items()
        for target, own in targets.items()
    )


def orders(found):
    """Say how sure the order of any two targets is under every setting; see `metrics.orders`.

    Returns
    -------
    DataFrame
        dimension, then the columns of `metrics.orders`.
    """
    parts = []
    for dimension, settings in found.items():
        measures = [name for name in next(iter(settings[DEFAULTS[dimension]].values())) if name in ORDERED]
        part = metrics.orders(settings, DEFAULTS[dimension], measures)
        part.insert(0, "dimension", dimension)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def separation(frame, weights, reading="relative"):
    """How well a score tells rejected-accepted pairs from accepted-accepted pairs, inside clusters (ours).

    Parameters
    ----------
    frame : DataFrame
        From `laid_out`.
    weights : sequence of signals.Weights, length m
    reading : str

    Returns
    -------
    cluster : numpy.ndarray of int, shape (mixed clusters,)
    auc : numpy.ndarray, shape (mixed clusters, m), in [0, 1]
        Share of (rejected-accepted, accepted-accepted) couples of one cluster in which the first scores higher, ties
        half; 0.5 is chance.
    """
    own = frame[frame["same_cluster"]]
    parts = own[["drift", "prob_shift", READINGS[reading]]].to_numpy()
    scores = parts @ np.array([[one.drift, one.prob_shift, one.ppl] for one in weights]).T
    cluster, rejected = own["cluster"].to_numpy(), own["rejected"].to_numpy()
    numbers, aucs = [], []
    for number in np.unique(cluster):
        mine = cluster == number
        one, other = scores[mine & rejected], scores[mine & ~rejected]
        if len(one) and len(other):
            steps = one[:, None] - other[None]
            numbers.append(number)
            aucs.append(((steps > 1e-12) + 0.5 * (np.abs(steps) <= 1e-12)).mean(axis=(0, 1)))
    return np.array(numbers, int), np.array(aucs).reshape(len(aucs), len(weights))


def grid_search(clusters, frames, folds=FOLDS, seed=SEED):
    """Search the weights that tell confused pairs best, cross-validated by cluster, with and without ProbShift.

    The criterion (ours) is the mean over mixed clusters of `separation`. In each fold the weights are chosen on the
    other folds' clusters; of equal ones the first of `simplex` is taken. Intervals resample clusters with each fold's
    choice fixed, so they leave out that another sample would have chosen otherwise.

    Parameters
    ----------
    clusters : metrics.Clusters
    frames : dict of str to DataFrame
        From `laid_out`, by target. A row `all targets` pools their clusters.
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
    grid, paper = simplex(), {"with": PAPER_WEIGHTS, "without": PAPER_WEIGHTS.without_prob_shift()}
    rows = []
    for reading in READINGS:
        tried = [*grid.values(), *paper.values()]
        by_target = {name: separation(frame, tried, reading) for name, frame in frames.items()}
        pooled = tuple(np.concatenate(parts) for parts in zip(*by_target.values(), strict=True))
        for name, (cluster, auc) in {**by_target, "all targets": pooled}.items():
            ids = clusters.codes.index.to_numpy()[cluster]
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
                        "few": len(set(ids)) < FEW_CLUSTERS,
                        "best": "" if best is None else names[best],
                        **found,
                        "chosen": "; ".join(f"{weights} ({count} of {folds})" for weights, count in counted.items()),
                    }
                )
    return pd.DataFrame(rows)


def _searched(clusters, ids, auc, paper, folds, seed):
    """Choose a column of `auc` in each fold, and on all clusters."""
    held_out, chosen = np.full(len(ids), np.nan), []
    members = np.unique(ids)
    if len(members) < 2 * folds:
        nothing = clusters.undefined()
        found = metrics.columns({"auc_held_out": nothing, "auc_paper": nothing, "gain": nothing})
        return {"best": None, "chosen": [], "auc_best": np.nan, **found}
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
    return {"best": mean.argmax(), "chosen": chosen, "auc_best": mean.max(), **metrics.columns(found)}


def range_verdicts(table):
    """Say in words how far CI moves with each dimension, and where the excess stays above zero.

    Parameters
    ----------
    table : DataFrame
        From `table`; what rests on fewer than 30 rejections is left out.

    Returns
    -------
    list of str
        One sentence per dimension that has these measures.
    """
    sentences = []
    judged = table[(table["n"] >= FEW) & table["ci"].notna()]
    for dimension, own in judged.groupby("dimension", sort=False):
        usual = own[own["setting"] == DEFAULTS[dimension]].set_index("target")
        spans = own.groupby("target", sort=False)["ci"].agg(["min", "max"])
        widest = (spans["max"] - spans["min"]).idxmax()
        sentence = (
            f"{dimension} ({own['setting'].nunique()} settings): CI moves most for {titles([widest])[0]}, from "
            f"{spans.loc[widest, 'min']:.3f} to {spans.loc[widest, 'max']:.3f} (default "
            f"{usual['ci'].get(widest, np.nan):.3f})"
        )
        if dimension not in CHOOSE_NEIGHBOURS:
            above = own.assign(above=own["excess_low"] > 0).groupby("target", sort=False)["above"].mean()
            sentence += (
                f"; of {len(above)} targets judged the excess lies surely above 0 under every setting for "
                f"{int((above == 1).sum())}, under some for {int(above.between(0, 1, inclusive='neither').sum())}, "
                f"under none for {int((above == 0).sum())}"
            )
        sentences.append(f"{sentence}.")
    return sentences


def order_counts(orders, table, limit=0.95):
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
    few = table[table["n"] < FEW].set_index(["dimension", "setting", "target"]).index
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


def order_verdicts(counts):
    """Say in words which measure keeps the order of targets under which choices.

    Parameters
    ----------
    counts : DataFrame
        From `order_counts`.

    Returns
    -------
    list of str
        One sentence per measure that more than one dimension moves.
    """
    sentences = []
    for measure, rows in counts.groupby("measure", sort=False):
        if len(rows) < 2:
            continue
        kept = ", ".join(f"{row.dimension} {row.always} of {row.pairs}" for row in rows.itertuples())
        turned = rows[rows["reversed"] > 0]
        reversals = ", ".join(f"{row.dimension} {row.reversed}" for row in turned.itertuples())
        sentences.append(
            f"{measure}, pairs of targets that keep one sure order, by the choice varied: {kept}. Pairs surely "
            f"reversed: {reversals or 'none'}."
        )
    return sentences


def search_verdicts(searched):
    """Say in words what the grid search finds beside the paper's weights.

    Parameters
    ----------
    searched : DataFrame
        From `grid_search`.

    Returns
    -------
    list of str
        One sentence per reading, with and without ProbShift.
    """
    sentences = []
    for (reading, which), own in searched.groupby(["reading", "prob_shift"], sort=False):
        pooled = own[own["target"] == "all targets"].iloc[0]
        judged = own[(own["target"] != "all targets") & ~own["few"] & own["gain"].notna()]
        if np.isnan(pooled["gain"]):
            sentences.append(f"{reading}, {which} ProbShift: too few mixed clusters to search.")
            continue
        held_out, paper, gain = (
            tables.interval(pooled[name], pooled[f"{name}_low"], pooled[f"{name}_high"])
            for name in ("auc_held_out", "auc_paper", "gain")
        )
        better, worse = int((judged["gain_low"] > 0).sum()), int((judged["gain_high"] < 0).sum())
        weights = "0.4/0.1/0.5" if which == "with" else "0.4/0/0.5, scaled to 1,"
        sentences.append(
            f"{reading}, {which} ProbShift: over all targets the search takes Drift/ProbShift/PPL = {pooled['best']}; "
            f"held out it tells confused pairs with AUC {held_out}, the paper's {weights} with {paper} (gain {gain}). "
            f"Target by target it gains surely for {better} and loses surely for {worse} of {len(judged)}."
        )
    return sentences


def curve_verdicts(curve, few=()):
    """Say in words at how many thresholds CR leaves the range of permuted labels.

    Parameters
    ----------
    curve : DataFrame
        The table `cr_curve` of 03.
    few : sequence of str
        Targets with too few rejections to be judged.

    Returns
    -------
    list of str
        One sentence per target and reading.
    """
    sentences = []
    judged = curve[~curve["target"].isin(few) & curve["cr"].notna()]
    for (target, reading), own in judged.groupby(["target", "reading"], sort=False):
        above = own[own["cr"] > own["null_high"] + 1e-12]
        largest = own.loc[(own["cr"] - own["null"]).idxmax()]
        sentences.append(
            f"{titles([target])[0]} ({reading}): CR lies above the middle 95 % of permutations at {len(above)} of "
            f"{len(own)} values of tau; the gap is widest at tau = {largest['tau']:.2f}, {largest['cr']:.3f} against "
            f"{largest['null']:.3f}."
        )
    return sentences
