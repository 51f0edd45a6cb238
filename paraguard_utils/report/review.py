"""Files for whoever reads refusals or mends a model: sheets and clusters."""

from collections.abc import Mapping

import pandas as pd

from paraguard_utils import text, unsafe
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.core.signals import PAPER_WEIGHTS, ScoreWeights
from paraguard_utils.schemas import Corpus, Labels, Pairs, Scores
from paraguard_utils.text import formula_safe


def brittle_clusters(corpus: Corpus, labels: Mapping[str, Labels], scores: Mapping[str, Scores]) -> pd.DataFrame:
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
        mixed = confusion.flips(corpus, own).query("mixed")
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


def nearest_accepted(pairs: Pairs) -> pd.DataFrame:
    """Return each rejection beside the most similar accepted prompt of its own cluster.

    Parameters
    ----------
    pairs : DataFrame
        One target's.

    Returns
    -------
    DataFrame
        The rows of `pairs` with that prompt, and accepted: how many of its cluster are. A rejection without one is in
        none.
    """
    own = pairs[pairs["same_cluster"] & (pairs["centre_label"] == "reject") & (pairs["neighbour_label"] == "accept")]
    own = own.assign(accepted=own.groupby("centre_id")["neighbour_id"].transform("size"))
    return own.sort_values(["similarity", "neighbour_id"], ascending=[False, True]).drop_duplicates("centre_id")


SURE = 0.9
"""Probability from which the classifier is sure of a refusal."""


def confused_refusals(
    corpus: Corpus,
    labels: Labels,
    pairs: Pairs,
    scores: Scores,
    weights: ScoreWeights = PAPER_WEIGHTS,
    reading: str = "relative",
    most: int = 20,
) -> pd.DataFrame:
    """List rejections of which paraphrases were accepted, each beside the nearest of these, for a human to judge.

    The neighbour with the highest score would not do: the score grows with distance, so that one asks something else.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.
    pairs, scores : DataFrame
        One target's.
    weights : ScoreWeights
    reading : str
    most : int
        Rejections listed: the most accepted paraphrases first; then whole refusals of which the classifier is sure
        (`SURE`) before the others; then the most similar one.

    Returns
    -------
    DataFrame
        rejected_id, rejected_prompt, rejected_answer, paraphrase_id, paraphrase, paraphrase_answer, accepted (of the
        cluster's other prompts) of labelled (accepted or rejected), similarity, score, ci, verdict (empty: same
        intent / shifted / unsure). A rejection without an accepted paraphrase is in none (`refused_throughout`).

    Raises
    ------
    DataError
        The corpus asks for harm.
    """
    unsafe.refuse(corpus, "review sheets")
    text, answer = corpus.set_index("prompt_id")["text"], labels.set_index("prompt_id")["response"]
    own = nearest_accepted(pairs)
    own = own.assign(score=signals.score(own, weights, reading))
    weak = labels.loc[(labels["kind"] == "partial") | (labels["p_refusal"] < SURE), "prompt_id"]
    own["weak"] = own["centre_id"].isin(weak)
    order = {"accepted": False, "weak": True, "similarity": False, "centre_id": True}
    rows = own.sort_values(list(order), ascending=list(order.values())).head(most)
    scored = corpus.assign(scored=labels["label"].isin(["accept", "reject"]).to_numpy()).set_index("prompt_id")
    others = scored.groupby("cluster_id")["scored"].transform("sum") - 1
    sheet = pd.DataFrame(
        {
            "rejected_id": rows["centre_id"],
            "rejected_prompt": rows["centre_id"].map(text),
            "rejected_answer": rows["centre_id"].map(answer),
            "paraphrase_id": rows["neighbour_id"],
            "paraphrase": rows["neighbour_id"].map(text),
            "paraphrase_answer": rows["neighbour_id"].map(answer),
            "accepted": rows["accepted"],
            "labelled": rows["centre_id"].map(others),
            "similarity": rows["similarity"],
            "score": rows["score"],
            "ci": rows["centre_id"].map(scores.set_index("prompt_id")[confusion.CI[reading]]),
            "verdict": "",
        }
    ).reset_index(drop=True)
    words = ["rejected_prompt", "rejected_answer", "paraphrase", "paraphrase_answer"]
    sheet[words] = formula_safe(sheet[words])
    return sheet


def refused_throughout(corpus: Corpus, labels: Mapping[str, Labels]) -> pd.DataFrame:
    """List the clusters of which a target rejects every prompt it has a label for: refused, but not confused.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, cluster_id, category, text.
    labels : dict of str to DataFrame
        By target, in corpus order.

    Returns
    -------
    DataFrame
        target, cluster_id, category, rejected (prompts), unlabelled (blocked or unparsed), seed (the first
        prompt's text, made safe for a spreadsheet); targets in the order given, clusters in corpus order.
    """
    frames = []
    for target, own in labels.items():
        label = own["label"].to_numpy()
        counts = corpus.assign(accepted=label == "accept", rejected=label == "reject").groupby("cluster_id", sort=False)
        table = counts.agg(
            category=("category", "first"),
            accepted=("accepted", "sum"),
            rejected=("rejected", "sum"),
            prompts=("rejected", "size"),
            seed=("text", "first"),
        ).reset_index()
        table = table[(table["accepted"] == 0) & (table["rejected"] > 0)]
        table = table.assign(
            target=target, unlabelled=table["prompts"] - table["rejected"], seed=formula_safe(table["seed"])
        )
        frames.append(table[["target", "cluster_id", "category", "rejected", "unlabelled", "seed"]])
    return pd.concat(frames, ignore_index=True)
