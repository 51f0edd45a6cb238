"""From traces and labels to pairs, scores and the texts a reader judges: what 03 and 05 share."""

import numpy as np
import pandas as pd

from paraguard_utils import encoder, metrics, nulls, paths, signals, tables
from paraguard_utils.errors import DataError
from paraguard_utils.querying import model_of, recorded_traces
from paraguard_utils.refusals import LABELLER
from paraguard_utils.settings import Settings
from paraguard_utils.stores import RECORDED, Store, frame_hash, read_meta
from paraguard_utils.targets import answers_hash, titles
from paraguard_utils.text import formula_safe, readable

DECIMALS = 6
"""Decimals of similarities and signals in a pairs file."""

COMPARABLE = {"corpus", "labeller", "k", "weight_drift", "weight_prob_shift", "weight_ppl", "theta"}
"""What two runs must share for their rows to stand in one table."""


def compare(store, corpus_name, corpus, labels, traces, model_name, settings):
    """Compare a target's prompts and score them; see `score_target`, which writes them too."""
    vectors = encoder.vectors(store, corpus_name, corpus["text"], earlier=True)
    tokens = store.read("tokens", model_name)
    frame = signals.pairs(corpus, vectors, traces, labels, tokens, settings.k)
    scores = metrics.prompt_scores(corpus, labels, frame, settings.weights(), settings.k, settings.theta)
    return frame, scores


def chance(store, corpus_name, corpus, target, labels, traces, pairs, settings, clusters):
    """Compare confusion with chance: matched floors, single signals, permutations (`docs/method.md`, Chance).

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
    rows : DataFrame, one per reading
        target, reading; matched and the estimates of `nulls.estimates`; ci_null, the mean CI over permutations of
        labels inside clusters, p of CI against them, and short, the share of permuted rejections with too few
        neighbours.
    curve : DataFrame, one row per reading and tau
        target, reading, tau, cr, and the permutations' mean with the range that 95 % of them lie in: null, null_low,
        null_high.
    """
    lengths = (traces["user_end"] - traces["user_start"]).to_numpy()
    frame = nulls.details(corpus, pairs, lengths, signals.perplexity(traces))
    near = frame[signals.ranked(frame, settings.k)]
    own = frame[frame["same_cluster"]]
    weights = settings.weights()
    dealt = nulls.candidates(
        encoder.vectors(store, corpus_name, corpus["text"], earlier=True), corpus, labels, settings.k
    )
    compared = signals.compare(traces, store.read("tokens", model_of(target)), *dealt.pairs)
    scores = np.column_stack([signals.score(compared, weights, reading) for reading in signals.READINGS])
    value, null, short = dealt.permuted(scores, _mean_and_curve, settings.k, settings.seed)
    rows, curves = [], []
    for column, reading in enumerate(signals.READINGS):
        found, matched = nulls.estimates(clusters, near, own, weights, reading)
        ci, many = value[0, column], null[:, 0, column]
        row = {"target": target, "reading": reading, "matched": matched, **metrics.columns(found)}
        row |= {"ci_null": many.mean(), "p": nulls.p_value(ci, many), "short": short}
        rows.append(row)
        low, high = np.quantile(null[:, 1:, column], [0.025, 0.975], axis=0)
        shares = {"cr": value[1:, column], "null": null[:, 1:, column].mean(0), "null_low": low, "null_high": high}
        curves.append(pd.DataFrame({"target": target, "reading": reading, "tau": nulls.CURVE, **shares}))
    return pd.DataFrame(rows), pd.concat(curves, ignore_index=True)


def _mean_and_curve(ci):
    """Dataset CI, then CR at every tau of the curve, a column per reading."""
    return np.vstack([ci.mean(0), (ci[:, None] >= nulls.CURVE[:, None]).mean(0)])


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
    # Processors differ in the sixteenth digit: what is written is the same on all of them.
    store.write("pairs", corpus_name, target, frame=frame.round(DECIMALS), meta=meta)
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
    ci = metrics.CI[reading]
    worst = metrics.rejections(scores).sort_values([ci, "prompt_id"], ascending=[False, True]).head(most)
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
    sheet[words] = formula_safe(sheet[words])
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
    labels = labels.set_index("prompt_id").loc[traces["prompt_id"]].reset_index()
    if labeller == "judge":  # whose own words stand in its file
        labels["response"] = traces["response"].map(readable, na_action="ignore").to_numpy()
    return labels


def matching_curve(store, corpus, labels):
    """Read the table `cr_curve` and check that it is of this corpus, of these labels, and of the usual score.

    Parameters
    ----------
    store : stores.Store
    corpus : DataFrame
    labels : dict of str to DataFrame
        By target.

    Raises
    ------
    DataError
        It is not.
    """
    path = store.path("tables", "cr_curve")
    curve, meta = store.read("tables", "cr_curve"), read_meta(path)
    expected = {"corpus": frame_hash(corpus), **{name: labels_hash(frame) for name, frame in labels.items()}}
    usual = Settings(store=store.name, corpus="usual").model_dump()
    scored = {name: meta["parameters"].get(name, usual[name]) for name in COMPARABLE & set(usual) - {"corpus"}}
    if meta["inputs"] != expected or any(value != usual[name] for name, value in scored.items()):
        raise DataError(f"{paths.shown(path)}: of other answers, labels or parameters; run 03_scoring again")
    return curve


def matching_scores(store, corpus_name, target, corpus, settings):
    """Read a target's scores and check that they are of this corpus and of the labels in the store.

    The record holds scores under the cue list only; under another labeller they are made anew from its traces.

    Raises
    ------
    DataError
        They are not.
    """
    if store.recorded and settings.labeller != "cues":
        traces = recorded_traces(store, corpus_name, corpus, target)
        labels = matching_labels(store, corpus_name, target, traces, settings.labeller)
        return compare(store, corpus_name, corpus, labels, traces, model_of(target), settings)[1]
    path = store.path("scores", corpus_name, target)
    scores = store.read("scores", corpus_name, target)
    _, labels = labels_by(store, corpus_name, target, settings.labeller)
    inputs = read_meta(path)["inputs"]
    if inputs["corpus"] != frame_hash(corpus) or inputs["labels"] != labels_hash(labels):
        raise DataError(
            f"{paths.shown(path)}: scores of another corpus or other labels; run 03_scoring again, with "
            f"labeller={settings.labeller}"
        )
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
    frames = [metrics.rejections(frame).assign(target=name) for name, frame in scores.items()]
    return pd.concat(frames, ignore_index=True)


def verdicts(table):
    """Say in words, for each row of Table 1 or 3, whether refusals are more confused than paraphrase noise.

    Returns
    -------
    list of str
    """
    sentences = []
    for row in table.to_dict("records"):
        head = f"{titles([row['target']])[0]} ({row['reading']}): "
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


def chance_verdicts(table):
    """Say in words whether refused phrasings lie further off than chance puts them, and whether wording separates them.

    Parameters
    ----------
    table : DataFrame
        Table 1.

    Returns
    -------
    list of str
    """
    sentences = []
    for row in table.to_dict("records"):
        head = f"{titles([row['target']])[0]} ({row['reading']}): "
        if row["few"] or row["n_mixed"] < metrics.FEW_CLUSTERS or not np.isfinite(row["excess_low"]):
            sentences.append(f"{head}not judged ({row['n_reject']} rejections, {row['n_mixed']} mixed clusters).")
            continue
        primary, matched, left, rest, floor = (
            tables.interval(row[name], row[f"{name}_low"], row[f"{name}_high"])
            for name in (
                "excess",
                "excess_matched",
                "excess_equal_contrast",
                "excess_equal_contrast_no_prob_shift",
                "cr_floor",
            )
        )
        above, remains = row["excess_low"] > 0, row["excess_equal_contrast_low"] > 0
        if above:
            sentence = "refused phrasings lie further from accepted ones than these from each other"
        elif row["excess_high"] < 0:
            sentence = "refused phrasings lie closer to accepted ones than these to each other"
        else:
            sentence = "inside clusters refused phrasings are not told from accepted ones"
        sentence += f" (excess {primary}; over the matched floor {matched})"
        if np.isnan(row["excess_equal_contrast_low"]):
            sentence += "; what is left at equal perplexity contrast is undefined"
        elif above and not remains:
            sentence += f", and are separable by wording: at equal perplexity contrast {left} is left"
        else:
            sentence += ", beyond what perplexity separates" if above else ""
            sentence += f"; at equal perplexity contrast {left} is left, {rest} without ProbShift"
        sentences.append(
            f"{head}{sentence}. CR@floor is {floor} (chance: 0.05). Dealt out anew inside clusters, labels give a CI "
            f"of {row['ci_null']:.3f} instead of {row['ci']:.3f} (p = {row['p']:.3f})."
        )
    return sentences


def judged_differences(between, table):
    """Leave out of the differences in CI and excess what rests on targets with few rejections or mixed clusters.

    Parameters
    ----------
    between : DataFrame
        From `metrics.differences`.
    table : DataFrame
        Table 1.

    Returns
    -------
    DataFrame
        Rows of `between` with a difference.
    """
    few = set(table.loc[table["few"] | (table["n_mixed"] < metrics.FEW_CLUSTERS), "target"])
    unsure = between["measure"].isin(["ci", "excess"]) & (between["first"].isin(few) | between["second"].isin(few))
    return between[~unsure & between["difference"].notna()]


def difference_verdicts(between, table, limit=0.05):
    """Say in words how many pairs of targets differ in each measure after Holm's adjustment.

    Parameters
    ----------
    between : DataFrame
        From `metrics.differences`.
    table : DataFrame
        Table 1.
    limit : float
        Adjusted p from which a difference is no longer called one.

    Returns
    -------
    list of str
        One sentence per measure.
    """
    sentences = []
    for measure, judged in judged_differences(between, table).groupby("measure", sort=False):
        differ = judged[judged["p_holm"] < limit]
        sentence = f"{measure}: {len(differ)} of {len(judged)} pairs of targets differ (p < {limit} after Holm)"
        if len(differ):
            most = differ.loc[differ["difference"].abs().idxmax()]
            first, second = titles([most["first"], most["second"]])
            size = tables.interval(most["difference"], most["difference_low"], most["difference_high"])
            sentence += f"; most of all {first} and {second}, by {size}"
        sentences.append(sentence + ".")
    return sentences
