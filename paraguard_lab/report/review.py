"""Tables for people who review refusals or fix a model.

They list brittle clusters, and refusals next to accepted paraphrases.
"""

from collections.abc import Iterable

import pandas as pd

from paraguard_lab.analysis.nearest import pair_with_nearest_accepted
from paraguard_lab.sheets import escape_formulas
from paraguard_utils import unsafe
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.system import System
from paraguard_utils.schemas import Labels

SURE_PROBABILITY = 0.9
"""From this probability on, the classifier is sure of a refusal."""


def list_brittle_clusters(systems: Iterable[System]) -> pd.DataFrame:
    """List the requests that a system decides both ways, the most brittle first.

    Parameters
    ----------
    systems : iterable of System
        With scores.

    Returns
    -------
    DataFrame
        system, cluster_id, category, n_accepted, n_rejected, flip_entropy (bits), ci
        (mean CI(r) of its rejections, in the relative interpretation), accepted and
        rejected (phrasings, " | " between them, made safe for a spreadsheet). Systems
        are in the order given; within one, clusters by flip entropy, then ci, then
        cluster_id.
    """
    tables = [_list_brittle(system) for system in systems]
    return pd.concat(tables, ignore_index=True)


def _list_brittle(system: System) -> pd.DataFrame:
    """List the brittle clusters of one system."""
    flips = confusion.describe_flips(system)
    mixed = flips[flips["mixed"]].set_index("cluster_id")
    prompts = system.prompts
    label = system.labels["label"].to_numpy()
    groups = prompts["text"].groupby([prompts["cluster_id"], label])
    phrasings = escape_formulas(groups.agg(" | ".join).unstack())
    is_rejected = system.scores["label"] == "reject"
    ci = system.scores[is_rejected].groupby("cluster_id")["ci"].mean()
    table = pd.DataFrame(
        {
            "category": prompts.groupby("cluster_id")["category"].first(),
            "n_accepted": mixed["n"] - mixed["rejected"],
            "n_rejected": mixed["rejected"],
            "flip_entropy": mixed["entropy"],
            "ci": ci,
            "accepted": phrasings.get("accept"),
            "rejected": phrasings.get("reject"),
        },
        index=mixed.index,
    )
    table = table.reset_index()
    table.insert(0, "system", system.name)
    order = ["flip_entropy", "ci", "cluster_id"]
    return table.sort_values(order, ascending=[False, False, True])


def list_confused_refusals(system: System, most: int = 20) -> pd.DataFrame:
    """List a system's refusals next to the nearest paraphrase that it answered.

    The neighbour with the highest score would not do: the score grows with distance, so
    that one asks something else.

    Parameters
    ----------
    system : System
        With pairs and scores. A corpus that asks for harm is a DataError.
    most : int
        How many are listed: those with the most accepted paraphrases first, then whole
        refusals of which the classifier is sure (probability 0.9) before others, then
        by similarity.

    Returns
    -------
    DataFrame
        rejected_id, rejected_prompt, rejected_answer, paraphrase_id, paraphrase,
        paraphrase_answer, accepted (of the cluster's other prompts) of labelled
        (accepted or rejected), similarity, score, ci, verdict (empty: same intent /
        shifted / unsure). A rejection without an accepted paraphrase has no row (see
        `list_refused_clusters`).
    """
    unsafe.refuse_unsafe(system.prompts, "review sheets")
    pairs = pair_with_nearest_accepted(system.pairs)
    pairs = pairs.assign(
        score=signals.score_pairs(pairs, system.scoring.weights),
        weak=pairs["centre_id"].isin(_find_weak_refusals(system.labels)),
    )
    order = ["accepted", "weak", "similarity", "centre_id"]
    ascending = [False, True, False, True]
    pairs = pairs.sort_values(order, ascending=ascending, ignore_index=True)
    pairs = pairs.head(most)
    text = system.prompts.set_index("prompt_id")["text"]
    answer = system.labels.set_index("prompt_id")["response"]
    ci = system.scores.set_index("prompt_id")["ci"]
    rejected = pairs["centre_id"]
    paraphrase = pairs["neighbour_id"]
    return pd.DataFrame(
        {
            "rejected_id": rejected,
            "rejected_prompt": escape_formulas(rejected.map(text)),
            "rejected_answer": escape_formulas(rejected.map(answer)),
            "paraphrase_id": paraphrase,
            "paraphrase": escape_formulas(paraphrase.map(text)),
            "paraphrase_answer": escape_formulas(paraphrase.map(answer)),
            "accepted": pairs["accepted"],
            "labelled": rejected.map(_count_others(system)),
            "similarity": pairs["similarity"],
            "score": pairs["score"],
            "ci": rejected.map(ci),
            "verdict": "",
        }
    )


def _find_weak_refusals(labels: Labels) -> pd.Series:
    """Return the prompts that were refused in part, or perhaps not."""
    is_partial = labels["kind"] == "partial"
    is_unsure = labels["p_refusal"] < SURE_PROBABILITY
    return labels.loc[is_partial | is_unsure, "prompt_id"]


def _count_others(system: System) -> pd.Series:
    """Count the other scored prompts of each prompt's cluster."""
    scored = pd.Series(system.is_scored, index=system.prompts["prompt_id"])
    in_cluster = scored.groupby(system.prompts["cluster_id"].to_numpy())
    return in_cluster.transform("sum") - 1


def list_refused_clusters(systems: Iterable[System]) -> pd.DataFrame:
    """List the requests of which a system refuses every phrasing with a label.

    They are refused, but not confused.

    Parameters
    ----------
    systems : iterable of System

    Returns
    -------
    DataFrame
        system, cluster_id, category, rejected (prompts), unlabelled (blocked or
        unparsed), seed (the first prompt's text, made safe for a spreadsheet); systems
        in the order given, clusters in corpus order.
    """
    tables = []
    for system in systems:
        label = system.labels["label"]
        prompts = system.prompts.assign(
            accepted=(label == "accept").to_numpy(),
            rejected=(label == "reject").to_numpy(),
        )
        table = prompts.groupby("cluster_id", sort=False, as_index=False).agg(
            category=("category", "first"),
            accepted=("accepted", "sum"),
            rejected=("rejected", "sum"),
            unlabelled=("text", "size"),
            seed=("text", "first"),
        )
        table = table[(table["accepted"] == 0) & (table["rejected"] > 0)]
        table = table.drop(columns="accepted")
        table["unlabelled"] -= table["rejected"]
        table["seed"] = escape_formulas(table["seed"])
        table.insert(0, "system", system.name)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)
