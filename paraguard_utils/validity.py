"""What the metric adds, what it overlooks, and files for whoever mends a model (`docs/method.md`, What CI adds).

CI of a rejection is set beside what is known without token signals, and beside each signal alone. Near-identical
prompts that were decided differently are listed: identical prompts score 0, so the score ranks the starkest
contradictions lowest. The clusters decided both ways become a table to read and examples to tune on.
"""

import json
from math import isqrt

import numpy as np
import pandas as pd

from paraguard_utils import metrics, signals, stores, text
from paraguard_utils.encoder import unit
from paraguard_utils.metrics import CI, FEW
from paraguard_utils.targets import titles

COVARIATES = {
    "similarity": "similarity to neighbours",
    "jaccard": "word overlap with neighbours",
    "risk": "surface risk",
    "length": "prompt length",
    "cluster_frr": "refusals in its cluster",
    "flip_entropy": "flip entropy of its cluster",
}
"""What is known of a rejection without token signals."""

SIGNALS = {"drift": "Drift", "prob_shift": "ProbShift", "ppl": "PPL contrast"}
"""The three parts of the score: CI is the weighted sum of their means."""

LIMIT = 0.7
"""The lower edge of the paper's break condition on the correlation with similarity."""

OPENING = 60
"""Characters of an answer in which an apology is looked for (ours)."""

NEAR_SIMILARITY, NEAR_OVERLAP = 0.95, 0.8
"""Two prompts are near-identical from this similarity or this content-word overlap on (ours)."""


def overlaps(corpus, first, second):
    """Return the Jaccard overlap of the content words of prompts, pair by pair; NaN where neither has any.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, text.
    first, second : sequence of str, length m
        Prompt ids.

    Returns
    -------
    numpy.ndarray, shape (m,), in [0, 1]
    """
    words = dict(zip(corpus["prompt_id"], corpus["text"].map(text.content_words), strict=True))
    sides = ((words[a], words[b]) for a, b in zip(first, second, strict=True))
    return np.array([text.jaccard(a, b) if a or b else np.nan for a, b in sides])


def covariates(corpus, traces, labels, pairs, scores, k=signals.K):
    """Put beside CI of each rejection what it may restate.

    Parameters
    ----------
    corpus, traces, labels : DataFrame
        Rows in the same order.
    pairs, scores : DataFrame
        The target's.
    k : int
        Neighbours used: those with rank <= k.

    Returns
    -------
    DataFrame, one row per scored rejection
        prompt_id, cluster_id, ci and ci_clipped in [0, 1]; similarity (mean cosine to its neighbours), jaccard (mean
        content-word overlap with them), risk, length (tokens of its own words), cluster_frr (share of the *other*
        scored prompts of its cluster that are refused: every row is a refusal, and counting itself would give small
        clusters a high rate by construction; NaN where there is no other), flip_entropy (of its cluster, itself
        included, in bits); drift, prob_shift, ppl_relative, ppl_clipped, means over its neighbours.
    """
    near = pairs[(pairs["centre_label"] == "reject") & signals.ranked(pairs, k)]
    near = near.assign(jaccard=overlaps(corpus, near["centre_id"], near["neighbour_id"]))
    means = near.groupby("centre_id")[["jaccard", "drift", "prob_shift", *signals.READINGS.values()]].mean()
    own = pd.DataFrame(
        {"risk": corpus["risk"].to_numpy(), "length": (traces["user_end"] - traces["user_start"]).to_numpy()}
    )
    own.index = corpus["prompt_id"]
    decided = metrics.flips(corpus, labels).set_index("cluster_id")
    others = decided["accepted"] + decided["rejected"] - 1
    about = pd.DataFrame({"cluster_frr": (decided["rejected"] - 1) / others, "flip_entropy": decided["entropy"]})
    rows = metrics.rejections(scores).rename(columns={"mean_similarity": "similarity"})
    rows = rows[["prompt_id", "cluster_id", *CI.values(), "similarity"]]
    rows = rows.join(means, on="prompt_id").join(own, on="prompt_id").join(about, on="cluster_id")
    return rows.reset_index(drop=True)


def correlations(frames, clusters):
    """Correlate CI(r) with each covariate and each signal over a target's rejections.

    Parameters
    ----------
    frames : dict of str to DataFrame
        From `covariates`, by target.
    clusters : metrics.Clusters

    Returns
    -------
    DataFrame
        target, reading, covariate, n (rejections in which it is defined), few (n < 30), Pearson's r and Spearman's rho,
        both with cluster-bootstrap intervals. rho is Pearson's r of the ranks, and its interval resamples the ranks of
        the full sample: they are not ranked anew in each resample (ours). The row `similarity` is Fig. 3's.
    """
    rows = []
    for target, frame in frames.items():
        for reading, ci in CI.items():
            for name in (*COVARIATES, *SIGNALS):
                column = signals.READINGS[reading] if name == "ppl" else name
                known = frame[frame[column].notna()]
                both = known[[column, ci]]
                found = {
                    "r": clusters.correlation(known["cluster_id"], both[column], both[ci]),
                    "rho": clusters.correlation(known["cluster_id"], *(both.rank()[part] for part in both)),
                }
                row = {"target": target, "reading": reading, "covariate": name, "n": len(known)}
                rows.append(row | {"few": len(known) < FEW, **metrics.columns(found)})
    return pd.DataFrame(rows)


def explained(frames, clusters):
    """Say how much of the variance of CI(r) all covariates explain together, the signals left out.

    Least squares with a constant. The intervals resample clusters and fit anew in each; a fit to a resample is closer
    than one to new prompts, so their upper ends are generous, also for the adjusted share, which counts prompts as
    independent.

    Parameters
    ----------
    frames : dict of str to DataFrame
        From `covariates`, by target.
    clusters : metrics.Clusters

    Returns
    -------
    DataFrame
        target, reading, n (rejections in which every covariate is defined), few, r2 in [0, 1] and r2_adjusted, at most
        1; NaN with no more rejections than coefficients, or where CI has no spread.
    """
    rows = []
    for target, frame in frames.items():
        known = frame.dropna(subset=list(COVARIATES))
        for reading, ci in CI.items():
            values = known[[*COVARIATES, ci]].to_numpy(float)
            if len(values) <= len(COVARIATES) + 1 or np.ptp(values[:, -1]) == 0:
                found = dict.fromkeys(("r2", "r2_adjusted"), clusters.undefined())
            else:
                spread = values.std(axis=0)
                values = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1)
                products = (values[:, :, None] * values[:, None, :]).reshape(len(values), -1)
                moments = [
                    clusters.sums(known["cluster_id"], part) for part in (np.ones(len(values)), *values.T, *products.T)
                ]
                found = {"r2": clusters.estimate(_r2, *moments)}
                found["r2_adjusted"] = clusters.estimate(_r2_adjusted, *moments)
            row = {"target": target, "reading": reading, "n": len(known), "few": len(known) < FEW}
            rows.append(row | metrics.columns(found))
    return pd.DataFrame(rows)


def _fit(n, moments):
    """Share of variance explained and coefficients fitted, from sums of the columns and of their products."""
    width = isqrt(len(moments))  # width + width ** 2 sums; the last column is what is explained
    n = n[:, None, None]
    means = np.stack(moments[:width], axis=-1)[:, None] / n
    second = np.stack(moments[width:], axis=-1).reshape(-1, width, width) / n - means.swapaxes(1, 2) * means
    second = np.nan_to_num(second)  # a resample without rejections: 0 / 0 below
    # Covariates may be collinear in a resample: directions without spread are left out.
    spread, axes = np.linalg.eigh(second[:, :-1, :-1])
    used = spread > 1e-9
    along = np.einsum("rij,ri->rj", axes, second[:, :-1, -1])
    caught = np.where(used, along**2 / np.where(used, spread, 1), 0).sum(axis=1)
    return caught / second[:, -1, -1], used.sum(axis=1)


def _r2(n, *moments):
    return _fit(n, moments)[0]


def _r2_adjusted(n, *moments):
    share, coefficients = _fit(n, moments)
    free = n - 1 - coefficients
    return np.where(free > 0, 1 - (1 - share) * (n - 1) / free, np.nan)


def verdicts(table, limit=LIMIT):
    """Say in words what CI restates: one sentence per covariate over all targets with enough rejections.

    The paper's break conditions are |r| above 0.7-0.8 with similarity, and CI following risk: read here as an interval
    of r that excludes 0 (ours).

    Parameters
    ----------
    table : DataFrame
        From `correlations`.
    limit : float

    Returns
    -------
    list of str
    """
    judged = table[~table["few"] & table["r_low"].notna()]
    rest = [target for target in dict.fromkeys(table["target"]) if target not in set(judged["target"])]
    sentences = [f"Not judged, fewer than {FEW} rejections or no spread: {', '.join(titles(rest))}."] if rest else []
    for name, title in (COVARIATES | SIGNALS).items():
        parts = []
        for reading, rows in judged[judged["covariate"] == name].groupby("reading", sort=False):
            above, below = rows["r_low"] > 0, rows["r_high"] < 0
            part = f"r from {rows['r'].min():+.2f} to {rows['r'].max():+.2f} ({reading}), "
            if name == "risk":
                part += f"CI follows it in {_count(above | below)} targets (up in {_count(above)}, down in "
                part += f"{_count(below)}), r2 at most {(rows['r'] ** 2).max():.3f}"
            else:
                part += f"its interval above 0 in {_count(above)} and below 0 in {_count(below)} targets"
            if name == "similarity":
                met, unclear = breaks(rows, limit)
                part += f", the break condition |r| > {limit} met in {_count(met)}, not ruled out in {_count(unclear)}"
            parts.append(part)
        if parts:
            sentences.append(f"{title}: {'; '.join(parts)}.")
    return sentences


def breaks(rows, limit=LIMIT):
    """Return where |r| is above the limit for sure, and where it only may be.

    Parameters
    ----------
    rows : DataFrame
        Columns r_low, r_high.
    limit : float

    Returns
    -------
    met, unclear : Series of bool
        The whole interval lies beyond the limit; or it holds the limit.
    """
    low, high = rows["r_low"], rows["r_high"]
    met = (low > limit) | (high < -limit)
    return met, ~met & ((low <= -limit) | (high >= limit))


def _count(hits):
    return f"{hits.sum() or 'none'} of {len(hits)}"


def explained_verdicts(table):
    """Say in words how much of CI the covariates explain together, one sentence per reading.

    Parameters
    ----------
    table : DataFrame
        From `explained`.

    Returns
    -------
    list of str
    """
    sentences = []
    for reading, rows in table[~table["few"] & table["r2_adjusted"].notna()].groupby("reading", sort=False):
        least, most = rows.loc[rows["r2_adjusted"].idxmin()], rows.loc[rows["r2_adjusted"].idxmax()]
        ends = (
            f"{row['r2_adjusted']:.2f} [{row['r2_adjusted_low']:.2f}, {row['r2_adjusted_high']:.2f}] "
            f"({titles([row['target']])[0]}, n = {row['n']})"
            for row in (least, most)
        )
        ends = " to ".join(dict.fromkeys(ends))  # one target is both
        sentences.append(
            f"{reading}: the {len(COVARIATES)} covariates that are no signals together explain {ends} of CI's variance "
            f"(adjusted R2, {len(rows)} targets)."
        )
    return sentences


def own_pairs(corpus, vectors):
    """Enumerate all pairs of prompts of one cluster, whatever was decided.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, cluster_id, text.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors in corpus order.

    Returns
    -------
    DataFrame
        cluster_id, first_id, second_id, similarity (cosine), jaccard (of content words); each pair once.
    """
    rows = pd.DataFrame({"cluster_id": corpus["cluster_id"].to_numpy(), "centre": np.arange(len(corpus))})
    rows = rows.merge(rows.rename(columns={"centre": "neighbour"}), on="cluster_id")
    rows = rows[rows["centre"] < rows["neighbour"]].reset_index(drop=True)
    ids = corpus["prompt_id"].to_numpy()
    first, second = ids[rows["centre"]], ids[rows["neighbour"]]
    return pd.DataFrame(
        {
            "cluster_id": rows["cluster_id"],
            "first_id": first,
            "second_id": second,
            "similarity": signals.similarity(unit(vectors), rows),
            "jaccard": overlaps(corpus, first, second),
        }
    )


def near_identical(frame, similarity=NEAR_SIMILARITY, overlap=NEAR_OVERLAP):
    """Return which pairs are near-identical: cosine >= `similarity` or content-word overlap >= `overlap` (ours).

    Neither sees a negation: "not" is no content word, and a sentence encoder puts a sentence near its denial. The pairs
    are to be read.

    Parameters
    ----------
    frame : DataFrame
        Columns similarity, jaccard.
    similarity, overlap : float

    Returns
    -------
    Series of bool
    """
    return (frame["similarity"] >= similarity) | (frame["jaccard"] >= overlap)


def flip_shares(own, labels, clusters):
    """Say how often near-identical prompts are decided differently, beside all pairs of one cluster.

    Parameters
    ----------
    own : DataFrame
        From `own_pairs`.
    labels : dict of str to DataFrame
        By target.
    clusters : metrics.Clusters

    Returns
    -------
    DataFrame, one row per target
        target; n_near, near-identical pairs whose prompts are both accepted or rejected, n_near_clusters and
        n_near_flipped; flip_near, the share decided differently, with its interval over clusters; n_pairs and
        flip_pairs, the same over all pairs of one cluster; few: fewer than 30 near-identical pairs.
    """
    rows = []
    for target, frame in labels.items():
        label = frame.set_index("prompt_id")["label"].where(lambda values: values.isin(["accept", "reject"]))
        first, second = own["first_id"].map(label), own["second_id"].map(label)
        scored = first.notna() & second.notna()
        pairs = own.assign(flipped=first != second)[scored]
        near = pairs[near_identical(pairs)]
        found = {
            "flip_near": clusters.share(near["cluster_id"], near["flipped"]),
            "flip_pairs": clusters.share(pairs["cluster_id"], pairs["flipped"]),
        }
        row = {"target": target, "n_near": len(near), "n_near_clusters": near["cluster_id"].nunique()}
        row |= {"n_near_flipped": int(near["flipped"].sum()), "n_pairs": len(pairs), "few": len(near) < FEW}
        rows.append(row | metrics.columns(found))
    return pd.DataFrame(rows)


def low_tail(corpus, pairs, weights=signals.PAPER_WEIGHTS):
    """List near-identical prompts of which one is rejected and one accepted (`docs/method.md`, What CI adds).

    They are looked for among the pairs a target's scores rest on: of one cluster, or nearest neighbours from another.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, text.
    pairs : dict of str to DataFrame
        By target.
    weights : signals.Weights

    Returns
    -------
    DataFrame
        target, rejected_id, rejected_prompt, accepted_id, accepted_prompt, same_cluster, similarity, jaccard, score and
        score_clipped in [0, 1], share_below and share_below_clipped (share of the target's rejected-accepted pairs that
        score lower); lowest score first within a target. Prompts are made safe for a spreadsheet.
    """
    words = corpus.set_index("prompt_id")["text"]
    frames = []
    for target, frame in pairs.items():
        frame = frame[frame["centre_label"] == "reject"]
        frame = frame.assign(jaccard=overlaps(corpus, frame["centre_id"], frame["neighbour_id"]))
        for reading, ci in CI.items():
            name = ci.replace("ci", "score")
            frame[name] = signals.score(frame, weights, reading)
            below = frame[name].rank(method="min") - 1
            frame[name.replace("score", "share_below")] = below / len(frame)
        frames.append(
            frame[near_identical(frame)].sort_values(["score", "centre_id", "neighbour_id"]).assign(target=target)
        )
    rows = pd.concat(frames, ignore_index=True)
    rows = rows.rename(columns={"centre_id": "rejected_id", "neighbour_id": "accepted_id"})
    for side in ("rejected", "accepted"):
        rows[f"{side}_prompt"] = text.formula_safe(rows[f"{side}_id"].map(words))
    numbers = ["similarity", "jaccard", "score", "score_clipped", "share_below", "share_below_clipped"]
    sides = [f"{side}_{part}" for side in ("rejected", "accepted") for part in ("id", "prompt")]
    return rows[["target", *sides, "same_cluster", *numbers]]


def tail_verdicts(shares, tail):
    """Say in words, for each target, how near-identical prompts were decided and where the score ranks them.

    Parameters
    ----------
    shares : DataFrame
        From `flip_shares`.
    tail : DataFrame
        From `low_tail`.

    Returns
    -------
    list of str
    """
    sentences = []
    for row in shares.to_dict("records"):
        head = f"{titles([row['target']])[0]}: "
        if not row["n_near"]:
            sentences.append(f"{head}no two prompts of one cluster are near-identical and scored.")
            continue
        near, every = (
            f"{row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"
            if np.isfinite(row[f"{name}_low"])
            else f"{row[name]:.3f} [–]"
            for name in ("flip_near", "flip_pairs")
        )
        sentence = (
            f"{head}{row['n_near_flipped']} of {row['n_near']} near-identical pairs are decided differently "
            f"({near}; {every} of all {row['n_pairs']} pairs of one cluster)"
        )
        listed = tail[tail["target"] == row["target"]]
        if len(listed):
            below, clipped = (listed[name].median() for name in ("share_below", "share_below_clipped"))
            sentence += (
                f"; a median of {below:.1%} of the target's rejected-accepted pairs score lower than these "
                f"(clipped: {clipped:.1%})"
            )
        sentences.append(f"{sentence}{'; too few to judge' if row['few'] else ''}.")
    return sentences


def brittle_clusters(corpus, labels, scores):
    """List the clusters that a target decides both ways, the most brittle first.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, cluster_id, category, text.
    labels, scores : dict of str to DataFrame
        By target; labels in corpus order.

    Returns
    -------
    DataFrame
        target, cluster_id, category, n_accepted, n_rejected, flip_entropy (bits), ci (mean CI(r) of its rejections,
        reading `relative`), accepted and rejected (phrasings, " | " between them, made safe for a spreadsheet). Targets
        in the order given; within one by flip entropy, then ci, then cluster_id.
    """
    frames = []
    category = corpus.groupby("cluster_id")["category"].first()
    for target, own in labels.items():
        mixed = metrics.flips(corpus, own).query("mixed")
        rejected = scores[target][scores[target]["label"] == "reject"]
        phrasings = corpus["text"].groupby([corpus["cluster_id"], own["label"].to_numpy()]).agg(" | ".join)
        phrasings = phrasings.unstack().reindex(columns=["accept", "reject"])
        frames.append(
            pd.DataFrame(
                {
                    "target": target,
                    "cluster_id": mixed["cluster_id"],
                    "category": mixed["cluster_id"].map(category),
                    "n_accepted": mixed["accepted"],
                    "n_rejected": mixed["rejected"],
                    "flip_entropy": mixed["entropy"],
                    "ci": mixed["cluster_id"].map(rejected.groupby("cluster_id")["ci"].mean()),
                    "accepted": text.formula_safe(mixed["cluster_id"].map(phrasings["accept"])),
                    "rejected": text.formula_safe(mixed["cluster_id"].map(phrasings["reject"])),
                }
            ).sort_values(["flip_entropy", "ci", "cluster_id"], ascending=[False, False, True])
        )
    return pd.concat(frames, ignore_index=True)


def training_examples(target, corpus, traces, pairs):
    """Make chat examples that ask a rejected phrasing and answer as the target answered an accepted one.

    The answers are the target's own, cut at the recorded length and not checked for quality: they are ready for
    fine-tuning after a review. One cut at the length (`complete` is false) would teach the model to stop in the middle,
    one that begins with an apology (`apology` is true) to apologise where the label rule saw no refusal.
    The user's turn is the bare prompt: a wrapper's system turn is the trainer's to add.

    Parameters
    ----------
    target : str
        A chat target: a guard gives no answers.
    corpus, traces : DataFrame
        Rows in the same order.
    pairs : DataFrame
        The target's pairs.

    Returns
    -------
    list of dict
        One per rejected prompt with an accepted one in its cluster, in corpus order: messages (user, assistant),
        target, cluster_id, prompt_id, answered_as (the accepted prompt's id), complete, apology. The accepted phrasing
        is the most similar one with an answer that ended by itself and is no apology, else one without an apology,
        else one that ended by itself, else the most similar one.
    """
    prompts = corpus.set_index("prompt_id")
    answers = traces.set_index("prompt_id")
    rows = pairs[(pairs["centre_label"] == "reject") & pairs["same_cluster"]]
    rows = rows.assign(
        answer=rows["neighbour_id"].map(answers["response"]),
        complete=rows["neighbour_id"].map(answers["finish_reason"]) == "stop",
    ).dropna(subset="answer")
    rows = rows.assign(apology=rows["answer"].str[:OPENING].str.contains("sorry|apolog", case=False))
    rows = rows.sort_values(["apology", "complete", "similarity", "neighbour_id"], ascending=[True, False, False, True])
    rows = rows.drop_duplicates("centre_id").set_index("centre_id")
    rows = rows.loc[[name for name in prompts.index if name in rows.index]]
    return [
        {
            "messages": [
                {"role": "user", "content": prompts.at[row.Index, "text"]},
                {"role": "assistant", "content": row.answer},
            ],
            "target": target,
            "cluster_id": prompts.at[row.Index, "cluster_id"],
            "prompt_id": row.Index,
            "answered_as": row.neighbour_id,
            "complete": bool(row.complete),
            "apology": bool(row.apology),
        }
        for row in rows.itertuples()
    ]


def example_counts(examples):
    """Count training examples.

    Parameters
    ----------
    examples : dict of str to list of dict
        From `training_examples`, by target.

    Returns
    -------
    DataFrame, one row per target
        target, examples, complete, apology, usable (complete and no apology).
    """
    return pd.DataFrame(
        {
            "target": target,
            "examples": len(rows),
            "complete": sum(row["complete"] for row in rows),
            "apology": sum(row["apology"] for row in rows),
            "usable": sum(row["complete"] and not row["apology"] for row in rows),
        }
        for target, rows in examples.items()
    )


# JSON allows them inside a string, but many readers end a line at them.
_LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}


def write_jsonl(path, examples, meta):
    """Write objects as JSON lines, UTF-8, one a line whatever a text holds, in one step, with a meta file beside them.

    Parameters
    ----------
    path : Path
    examples : sequence of dict
        JSON-able.
    meta : dict
        Parameters and hashes of inputs.

    Raises
    ------
    DataError
        The file cannot be written; it is as it was.
    """
    lines = (json.dumps(example, ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS) for example in examples)
    content = "".join(f"{line}\n" for line in lines)
    stores.atomic(path, lambda part: part.write_text(content, encoding="utf-8", newline="\n"))
    stores.write_meta(path, meta)
