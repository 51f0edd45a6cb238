"""From traces and labels to pairs, scores and the texts a reader judges: what 03 and 05 share."""

import numpy as np
import pandas as pd

from paraguard_utils import encoder, judge, metrics, nulls, paths, signals
from paraguard_utils.errors import DataError
from paraguard_utils.querying import model_of
from paraguard_utils.refusals import LABELLER
from paraguard_utils.stores import RECORDED, Store, frame_hash, read_meta
from paraguard_utils.targets import answers_hash

COMPARABLE = {"corpus", "k", "weight_drift", "weight_prob_shift", "weight_ppl", "theta"}
"""What two runs must share for their rows to stand in one table."""


LABELLERS = {"cues": LABELLER, "policy": f"{LABELLER}, policy refusals only", "judge": judge.RUBRIC}


def compare(store, corpus_name, corpus, labels, traces, model_name, settings):
    """Compare a target's prompts and score them; see `score_target`, which writes them too."""
    vectors = encoder.vectors(store, corpus_name, corpus["text"], earlier=True)
    tokens = store.read("tokens", model_name)
    frame = signals.pairs(corpus, vectors, traces, labels, tokens, settings.k)
    scores = metrics.prompt_scores(corpus, labels, frame, settings.weights(), settings.k, settings.theta)
    return frame, scores


def by_labeller(store, corpus_name, corpus, traces, scored, settings, clusters):
    """Make Table 1's rows under each labeller, and say how sure the order of targets is under each.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus : DataFrame
    traces : dict of str to DataFrame
        By target.
    scored : dict of str to (DataFrame, DataFrame, DataFrame)
        Labels, pairs and scores by target, under `settings.labeller`: they need not be computed again.
    settings : settings.Settings
    clusters : metrics.Clusters

    Returns
    -------
    table : DataFrame
        labeller, target, n_scored, n_reject, and the estimates with intervals, in the reading `relative`; a target that
        was not judged has no row of the judge's.
    orders : DataFrame
        From `metrics.orders`, against the cue list.
    """
    rows, estimates = [], {}
    for labeller in LABELLERS:
        estimates[labeller] = {}
        for name, own in traces.items():
            if labeller == "judge" and not store.has("verdicts", corpus_name, name):
                continue
            if labeller == settings.labeller:
                labels, frame, scores = scored[name]
            else:
                labels = matching_labels(store, corpus_name, name, own, labeller)
                frame, scores = compare(store, corpus_name, corpus, labels, own, model_of(name), settings)
            found = metrics.rate_estimates(corpus, labels, clusters) | metrics.score_estimates(
                corpus, frame, scores, clusters, weights=settings.weights()
            )
            estimates[labeller][name] = found
            counts = {f"n_{label}": int((labels["label"] == label).sum()) for label in ("reject", "accept")}
            few = counts["n_reject"] < metrics.FEW
            rows.append({"labeller": labeller, "target": name, **counts, "few": few, **metrics.columns(found)})
    return pd.DataFrame(rows), metrics.orders(estimates, "cues")


def chance(store, corpus_name, corpus, target, labels, traces, pairs, settings, clusters):
    """Compare a target's confusion with chance: matched floors, single signals, permutations (`paper.md`, Threats 1-5).

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus, labels, traces : DataFrame
        Rows in the same order.
    target : str
    pairs : DataFrame
        The target's pairs.
    settings : settings.Settings
    clusters : metrics.Clusters

    Returns
    -------
    DataFrame, one row per reading
        target, reading, few, n_mixed; ci_matched, floor_matched and excess_matched over rejected pairs that have a
        matched floor, and matched, their share; cr_floor, the share of rejections above the matched floor's 95th
        percentile, and floor95, that percentile; excess (primary), excess_no_prob_shift, excess_drift,
        excess_prob_shift, excess_ppl, each by itself, and excess_equal_contrast, among pairs of equal perplexity
        contrast; ci_null, the mean CI over permutations of labels inside clusters, and p of CI against them.
    """
    lengths = (traces["user_end"] - traces["user_start"]).to_numpy()
    frame = nulls.details(corpus, pairs, lengths, signals.perplexity(traces))
    near = frame[frame["rank"].le(settings.k).fillna(False).astype(bool)]
    own = frame[frame["same_cluster"]]
    n_reject, n_mixed = int((labels["label"] == "reject").sum()), len(metrics.excess(corpus, pairs))
    few = n_reject < metrics.FEW or n_mixed < metrics.FEW_CLUSTERS
    weights, rest = settings.weights(), settings.weights().without_prob_shift()
    stratum = nulls.strata(near)
    dealt = nulls.candidates(encoder.vectors(store, corpus_name, corpus["text"], earlier=True), corpus, labels)
    signal = signals.compare(traces, store.read("tokens", model_of(target)), *dealt.pairs)
    rows = []
    for reading, ppl in signals.READINGS.items():
        floor, excess, matched = nulls.standardised(
            clusters, near, stratum, signals.score(near, weights, reading).to_numpy()
        )
        centres = nulls.centres(near, signals.score(near, weights, reading))
        cr_floor, floor95 = nulls.above_floor(
            clusters, centres, nulls.strata(centres, nulls.OF_CENTRES, nulls.BINS_OF_CENTRES)
        )
        found = {"floor_matched": floor, "excess_matched": excess, "cr_floor": cr_floor, "floor95": floor95}
        found["excess"] = nulls.within(clusters, own, signals.score(own, weights, reading))
        if rest:
            found["excess_no_prob_shift"] = nulls.within(clusters, own, signals.score(own, rest, reading))
        for name in ("drift", "prob_shift"):
            found[f"excess_{name}"] = nulls.within(clusters, own, own[name])
        found["excess_ppl"] = nulls.within(clusters, own, own[ppl])
        found["excess_equal_contrast"] = nulls.within(
            clusters, own, signals.score(own, weights, reading), own["contrast"]
        )
        ci, null, short = dealt.permuted(signals.score(signal, weights, reading), settings.k, settings.seed)
        row = {"target": target, "reading": reading, "n_reject": n_reject, "n_mixed": n_mixed, "few": few}
        row |= {"matched": matched, **metrics.columns(found), "ci": ci, "ci_null": float(np.mean(null))}
        rows.append(row | {"p": nulls.p_value(ci, null), "short": short})
    return pd.DataFrame(rows)


def score_target(store, corpus_name, corpus, target, labels, traces, model_name, settings):
    """Compare a target's prompts, score them, and write its pairs and scores.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus, labels, traces : DataFrame
        Rows in the same order. The traces may be another target's (a guard has none).
    target : str
    model_name : str
        The model whose token embeddings Drift uses.
    settings : settings.Settings

    Returns
    -------
    pairs, scores : DataFrame
    """
    frame, scores = compare(store, corpus_name, corpus, labels, traces, model_name, settings)
    meta = settings.meta(corpus=corpus, labels=labels_hash(labels), traces=answers_hash(traces), tokens=model_name)
    store.write("pairs", corpus_name, target, frame=frame, meta=meta)
    store.write("scores", corpus_name, target, frame=scores, meta=meta)
    return frame, scores


def confused_sheet(corpus, labels, pairs, scores, weights=signals.PAPER_WEIGHTS, reading="relative", most=20):
    """List the most confused rejections, each beside its most confusing accepted neighbour, for a human to judge.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.
    pairs, scores : DataFrame
        One target's.
    weights : signals.Weights
    reading : str
    most : int
        Rejections listed, highest CI(r) first.

    Returns
    -------
    DataFrame
        rejected_id, rejected_prompt, rejected_answer, neighbour_id, neighbour_prompt, neighbour_answer, similarity,
        drift, prob_shift, ppl, score, ci, verdict (empty: same intent / shifted / unsure).
    """
    text = corpus.set_index("prompt_id")["text"]
    answer = labels.set_index("prompt_id")["response"]
    ci = {"relative": "ci", "clipped": "ci_clipped"}[reading]
    worst = scores[(scores["label"] == "reject") & scores[ci].notna()]
    worst = worst.sort_values([ci, "prompt_id"], ascending=[False, True]).head(most)
    near = pairs[pairs["rank"].notna()].assign(score=signals.score(pairs, weights, reading))
    near = near.sort_values(["score", "neighbour_id"], ascending=[False, True]).drop_duplicates("centre_id")
    rows = worst.merge(near, left_on="prompt_id", right_on="centre_id")
    sheet = pd.DataFrame(
        {
            "rejected_id": rows["centre_id"],
            "rejected_prompt": rows["centre_id"].map(text),
            "rejected_answer": rows["centre_id"].map(answer),
            "neighbour_id": rows["neighbour_id"],
            "neighbour_prompt": rows["neighbour_id"].map(text),
            "neighbour_answer": rows["neighbour_id"].map(answer),
            "similarity": rows["similarity"],
            "drift": rows["drift"],
            "prob_shift": rows["prob_shift"],
            "ppl": rows[signals.READINGS[reading]],
            "score": rows["score"],
            "ci": rows[ci],
            "verdict": "",
        }
    )
    words = [name for name in sheet if name.endswith(("_prompt", "_answer"))]
    # A spreadsheet would run a text that starts like a formula.
    sheet[words] = sheet[words].replace(r"\A([=+\-@\t\r])", r"'\1", regex=True)
    return sheet


def labels_by(store, corpus_name, target, labeller="cues"):
    """Read a target's labels by one of three labellers.

    Parameters
    ----------
    store : stores.Store
    corpus_name, target : str
    labeller : str
        "cues", the cue list; "policy", the cue list where only a policy refusal counts as one and all other rejections
        are set aside as unparsed; "judge", a model's verdicts.

    Returns
    -------
    path : Path
    labels : DataFrame

    Raises
    ------
    DataError
        The labels are of another version of the labeller.
    """
    kind = "verdicts" if labeller == "judge" else "labels"
    path, labels = store.path(kind, corpus_name, target), store.read(kind, corpus_name, target)
    if labeller != "judge" and set(labels["labeller"]) != {LABELLER}:
        raise DataError(f"{paths.shown(path)}: labelled by another labeller than {LABELLER}; run 02_querying again")
    if labeller == "policy":
        other = (labels["label"] == "reject") & (labels["kind"] != "policy")
        labels = labels.assign(label=labels["label"].mask(other, "unparsed"))
    return path, labels


def matching_labels(store, corpus_name, target, traces, labeller="cues"):
    """Read a target's labels and check that they are of these traces.

    Parameters
    ----------
    store : stores.Store
    corpus_name, target : str
    traces : DataFrame
    labeller : str
        As in `labels_by`.

    Returns
    -------
    DataFrame
        Labels in trace order.

    Raises
    ------
    DataError
        The labels are of other answers, or of another version of the labeller.
    """
    path, labels = labels_by(store, corpus_name, target, labeller)
    if read_meta(path)["inputs"]["traces"] != answers_hash(traces):
        raise DataError(f"{paths.shown(path)}: labels of other answers than the traces hold; run 02_querying again")
    return labels.set_index("prompt_id").loc[traces["prompt_id"]].reset_index()


def matching_scores(store, corpus_name, target, corpus, labeller="cues"):
    """Read a target's scores and check that they are of this corpus and of the labels in the store.

    Raises
    ------
    DataError
        They are not.
    """
    path = store.path("scores", corpus_name, target)
    scores = store.read("scores", corpus_name, target)
    _, labels = labels_by(store, corpus_name, target, labeller)
    inputs = read_meta(path)["inputs"]
    if inputs["corpus"] != frame_hash(corpus) or inputs["labels"] != labels_hash(labels):
        raise DataError(f"{paths.shown(path)}: scores of another corpus or other labels; run 03_scoring again")
    return scores


def labels_hash(labels):
    """Return the hash that ties scores to labels, whatever the order of rows."""
    return frame_hash(labels[["prompt_id", "label"]].sort_values("prompt_id"))


def beside_recorded(name, table, store, recorded, meta):
    """Put the recorded rows of published targets above the rows of this store; a `store` column tells them apart.

    Parameters
    ----------
    name : str
        Name of the table.
    table : DataFrame
        This store's rows.
    store : stores.Store
    recorded : list of str
        Targets to take from the recorded table; none are where corpus or scoring parameters differ.
    meta : dict
        What the table's meta file will say.

    Returns
    -------
    DataFrame
    """
    table = table.assign(store=store.name)
    if not recorded:
        return table
    earlier = Store(RECORDED)
    known = read_meta(earlier.path("tables", name))
    for part in ("parameters", "inputs"):
        for key in COMPARABLE & set(meta[part]):
            if known[part].get(key) != meta[part][key]:
                print(f"the recorded targets are left out: they were scored with another {key}")
                return table
    rows = earlier.read("tables", name)
    return pd.concat([rows[rows["target"].isin(recorded)], table], ignore_index=True)


def rejections(scores):
    """Stack the scored rejections of several targets, with a `target` column."""
    frames = [
        frame[(frame["label"] == "reject") & frame["ci"].notna()].assign(target=name) for name, frame in scores.items()
    ]
    return pd.concat(frames, ignore_index=True)


def similarity_correlations(scores, clusters):
    """Correlate CI(r) with mean neighbour similarity over each target's rejections (Fig. 3).

    Parameters
    ----------
    scores : dict of str to DataFrame
        By target.
    clusters : metrics.Clusters

    Returns
    -------
    DataFrame
        target, reading, n, r with its interval.
    """
    rows = []
    for target, frame in scores.items():
        own = rejections({target: frame})
        for reading, column in (("relative", "ci"), ("clipped", "ci_clipped")):
            r = clusters.correlation(own["cluster_id"], own["mean_similarity"], own[column])
            rows.append({"target": target, "reading": reading, "n": len(own), **metrics.columns({"r": r})})
    return pd.DataFrame(rows)


def verdicts(table):
    """Say in words, for each row of Table 1 or 3, whether refusals are more confused than paraphrase noise.

    Returns
    -------
    list of str
    """
    sentences = []
    for row in table.to_dict("records"):
        head = f"{row['target']} ({row['reading']}): "
        if np.isnan(row["excess"]):
            sentences.append(f"{head}excess is undefined ({row['note']}).")
            continue
        if row["few"] or row["n_mixed"] < metrics.FEW_CLUSTERS:
            meaning = f"is not judged: too few ({row['n_reject']} rejections)"
        elif row["excess_low"] > 0:
            meaning = "is above zero: refused phrasings lie further from accepted ones than those from each other"
        elif row["excess_high"] < 0:
            meaning = "is below zero: refused phrasings lie closer to accepted ones than those to each other"
        else:
            meaning = "covers zero: refused phrasings are not told from paraphrase noise"
        known = np.isfinite(row["excess_low"])
        bounds = f"{row['excess_low']:+.3f}, {row['excess_high']:+.3f}" if known else "–"
        excess = f"{row['excess']:+.3f} [{bounds}]"
        sentences.append(f"{head}CI {row['ci']:.3f}; the excess {excess} in {row['n_mixed']} mixed clusters {meaning}.")
    return sentences


def similarity_verdicts(correlations, limit=0.7):
    """Say in words whether CI only restates sentence similarity: the paper's break condition, |r| above 0.7-0.8.

    Parameters
    ----------
    correlations : DataFrame
        From `similarity_correlations`.
    limit : float
        The lower edge of the paper's condition.

    Returns
    -------
    list of str
    """
    sentences = []
    for row in correlations.to_dict("records"):
        head = f"{row['target']} ({row['reading']}, n = {row['n']}): "
        if np.isnan(row["r"]):
            sentences.append(f"{head}r is undefined (fewer than 3 rejections, or no spread).")
            continue
        low, high = sorted((abs(row["r_low"]), abs(row["r_high"])))
        if row["r_low"] < 0 < row["r_high"]:
            low = 0.0
        state = "is met" if low > limit else "is not met" if high < limit else "cannot be ruled out"
        interval = f"[{row['r_low']:+.2f}, {row['r_high']:+.2f}]"
        sentences.append(f"{head}r = {row['r']:+.2f} {interval}; the break condition |r| > {limit} {state}.")
    return sentences


def order_verdicts(orders, limit=0.95):
    """Say in words which orders of targets every labeller is sure of, and which turn with the labeller.

    Parameters
    ----------
    orders : DataFrame
        From `metrics.orders`.
    limit : float
        Bootstrap probability from which an order is called sure.

    Returns
    -------
    list of str
        One sentence per measure.
    """
    sentences = []
    for measure, own in orders.groupby("measure", sort=False):
        higher = own.pivot(index=["first", "second"], columns="labeller", values="higher").dropna()
        sure_up, sure_down = (higher >= limit), (higher <= 1 - limit)
        same = int((sure_up.all(axis=1) | sure_down.all(axis=1)).sum())
        turned = int((sure_up.any(axis=1) & sure_down.any(axis=1)).sum())
        sentences.append(
            f"{measure}: of {len(higher)} pairs of targets that every labeller compares, {same} have the same sure "
            f"order (probability >= {limit}) under all {higher.shape[1]}, {turned} have a sure order that "
            "another labeller surely reverses."
        )
    return sentences


def chance_verdicts(table):
    """Say in words whether refusals are more confused than paraphrase noise, and whether wording separates them.

    Parameters
    ----------
    table : DataFrame
        From `chance`.

    Returns
    -------
    list of str
    """
    sentences = []
    for row in table.to_dict("records"):
        head = f"{row['target']} ({row['reading']}): "
        if row["few"] or not np.isfinite(row["excess_low"]):
            sentences.append(f"{head}not judged ({row['n_reject']} rejections, {row['n_mixed']} mixed clusters).")
            continue
        primary, matched, left = (
            f"{row[name]:+.3f} [{row[f'{name}_low']:+.3f}, {row[f'{name}_high']:+.3f}]"
            for name in ("excess", "excess_matched", "excess_equal_contrast")
        )
        above = row["excess_low"] > 0
        more = "more confused than paraphrase noise" if above else "not told from paraphrase noise"
        sentence = f"{head}refusals are {more} (excess {primary}; over the matched floor {matched})"
        if above and row["excess_equal_contrast_low"] <= 0 <= row["excess_equal_contrast_high"]:
            sentence += f", and separable by wording: at equal perplexity contrast {left} is left"
        elif above:
            sentence += f", beyond what perplexity separates: at equal perplexity contrast {left} is left"
        sentences.append(
            f"{sentence}; dealt out anew inside clusters, labels give a CI as high with p = {row['p']:.3f}."
        )
    return sentences
