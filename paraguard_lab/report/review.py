"""Tables for whoever reads refusals or mends a model: brittle clusters, and refusals
beside accepted paraphrases.
"""

from collections.abc import Mapping

import pandas as pd

from paraguard_utils import unsafe
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.system import System
from paraguard_utils.core.signals import PAPER_WEIGHTS, ScoreWeights
from paraguard_utils.schemas import Corpus, Labels, Pairs, Scores
from paraguard_utils.text import escape_formulas


def list_brittle_clusters(
    corpus: Corpus, labels: Mapping[str, Labels], scores: Mapping[str, Scores]
) -> pd.DataFrame:
    """List the requests that a system decides both ways, the most brittle first.

    Labels are in corpus order.

    Returns system, cluster_id, category, n_accepted, n_rejected, flip_entropy (bits),
    ci (mean CI(r) of its rejections, reading `relative`), accepted and rejected
    (phrasings, " | " between them, made safe for a spreadsheet). Systems in the order
    given; within one by flip entropy, then ci, then cluster_id.
    """
    columns = [
        "system",
        "cluster_id",
        "category",
        "n_accepted",
        "n_rejected",
        "flip_entropy",
        "ci",
    ]
    counts = {"rejected": "n_rejected", "entropy": "flip_entropy"}
    category, frames = corpus.groupby("cluster_id")["category"].first(), []
    for system, own in labels.items():
        mixed = (
            confusion.describe_flips(System.of(system, corpus, own))
            .query("mixed")
            .rename(columns=counts)
            .set_index("cluster_id")
        )
        mixed["n_accepted"] = mixed["n"] - mixed["n_rejected"]
        rejected = scores[system][scores[system]["label"] == "reject"]
        phrasings = (
            corpus["text"]
            .groupby([corpus["cluster_id"], own["label"].to_numpy()])
            .agg(" | ".join)
            .unstack()
        )
        phrasings = escape_formulas(phrasings.reindex(columns=["accept", "reject"]))
        phrasings.columns = ["accepted", "rejected"]
        mixed = (
            mixed.join(category)
            .join(rejected.groupby("cluster_id")["ci"].mean())
            .join(phrasings)
        )
        mixed = mixed.assign(system=system).reset_index()[[*columns, *phrasings]]
        frames.append(
            mixed.sort_values(
                ["flip_entropy", "ci", "cluster_id"], ascending=[False, False, True]
            )
        )
    return pd.concat(frames, ignore_index=True)


def list_confused_refusals(
    corpus: Corpus,
    labels: Labels,
    pairs: Pairs,
    scores: Scores,
    weights: ScoreWeights = PAPER_WEIGHTS,
    most: int = 20,
) -> pd.DataFrame:
    """List a system's refusals of which paraphrases were answered, each beside the
    nearest of these, for review.

    The neighbour with the highest score would not do: the score grows with distance, so
    that one asks something else. At most `most` are listed: those with the most
    accepted paraphrases first; then whole refusals of which the classifier is sure
    (probability 0.9) before others; then by similarity. Corpus and labels have the same
    order. A corpus that asks for harm is a DataError.

    Returns rejected_id, rejected_prompt, rejected_answer, paraphrase_id, paraphrase,
    paraphrase_answer, accepted (of the cluster's other prompts) of labelled (accepted
    or rejected), similarity, score, ci, verdict (empty: same intent / shifted /
    unsure). A rejection without an accepted paraphrase has no row (see
    `list_refused_clusters`).
    """
    unsafe.refuse_unsafe(corpus, "review sheets")
    text, answer = (
        corpus.set_index("prompt_id")["text"],
        labels.set_index("prompt_id")["response"],
    )
    own = confusion.pair_with_nearest_accepted(pairs)
    weak = labels.loc[
        (labels["kind"] == "partial") | (labels["p_refusal"] < 0.9), "prompt_id"
    ]
    own = own.assign(
        score=signals.score_pairs(own, weights), weak=own["centre_id"].isin(weak)
    )
    order = {"accepted": False, "weak": True, "similarity": False, "centre_id": True}
    rows = own.sort_values(
        list(order), ascending=list(order.values()), ignore_index=True
    ).head(most)
    scored = corpus.assign(
        scored=labels["label"].isin(["accept", "reject"]).to_numpy()
    ).set_index("prompt_id")
    centre, neighbour = rows["centre_id"], rows["neighbour_id"]
    found = {
        "rejected_id": centre,
        "rejected_prompt": escape_formulas(centre.map(text)),
        "rejected_answer": escape_formulas(centre.map(answer)),
        "paraphrase_id": neighbour,
        "paraphrase": escape_formulas(neighbour.map(text)),
        "paraphrase_answer": escape_formulas(neighbour.map(answer)),
        "accepted": rows["accepted"],
        "labelled": centre.map(
            scored.groupby("cluster_id")["scored"].transform("sum") - 1
        ),
        "similarity": rows["similarity"],
        "score": rows["score"],
        "ci": centre.map(scores.set_index("prompt_id")["ci"]),
    }
    return pd.DataFrame(found).assign(verdict="")


def list_refused_clusters(corpus: Corpus, labels: Mapping[str, Labels]) -> pd.DataFrame:
    """List the requests of which a system refuses every wording it has a label for:
    refused, but not confused.

    Returns system, cluster_id, category, rejected (prompts), unlabelled (blocked or
    unparsed), seed (the first prompt's text, made safe for a spreadsheet); systems in
    the order given, clusters in corpus order, as labels are.
    """
    frames = []
    for system, own in labels.items():
        label = own["label"].to_numpy()
        table = corpus.assign(
            accepted=label == "accept",
            rejected=label == "reject",
            prompts=1,
            seed=corpus["text"],
        )
        how = {
            "category": "first",
            "seed": "first",
            "accepted": "sum",
            "rejected": "sum",
            "prompts": "sum",
        }
        table = (
            table.groupby("cluster_id", sort=False)
            .agg(how)
            .query("accepted == 0 and rejected > 0")
        )
        unlabelled = table["prompts"] - table["rejected"]
        table = table.assign(
            system=system, unlabelled=unlabelled, seed=escape_formulas(table["seed"])
        )
        frames.append(table.reset_index())
    return pd.concat(frames, ignore_index=True)[
        ["system", "cluster_id", "category", "rejected", "unlabelled", "seed"]
    ]
