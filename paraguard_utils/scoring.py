"""From traces and labels to pairs, scores and the texts a reader judges: what 03 and 05 share."""

import numpy as np
import pandas as pd

from paraguard_utils import encoder, judge, metrics, paths, signals
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


def by_labeller(store, corpus_name, corpus, traces, settings, clusters):
    """Make Table 1's rows under each labeller, and say how sure the order of targets is under each.

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
