"""Ask how a system decides and scores near-identical prompts.

All of it is ours (`docs/method.md`, Chance).
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from paraguard_lab.core.disagreement import disagreement_parts
from paraguard_lab.sheets import escape_formulas
from paraguard_utils import text
from paraguard_utils.analysis.signals import score_pairs
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import MIN_REFUSALS, Estimate, to_columns
from paraguard_utils.core.vectors import paired_cosine_similarity
from paraguard_utils.core.wording import list_cluster_pairs
from paraguard_utils.core.words import jaccard
from paraguard_utils.schemas import Corpus, Table

NEAR_SIMILARITY = 0.95
"""Cosine from which two prompts are near-identical (ours)."""

NEAR_OVERLAP = 0.8
"""Content-word overlap from which two prompts are near-identical (ours)."""


def content_word_overlaps(
    prompts: Corpus, first: Iterable[str], second: Iterable[str]
) -> np.ndarray:
    """Compute the Jaccard overlap of the content words of prompts.

    Parameters
    ----------
    prompts : Corpus
    first, second : iterable of str
        m ids of prompts each.

    Returns
    -------
    numpy.ndarray of float, shape (m,)
        In [0, 1]; NaN if neither prompt has any.
    """
    words = prompts["text"].map(text.content_words)
    words_of = dict(zip(prompts["prompt_id"], words, strict=True))
    overlaps = []
    for a, b in zip(first, second, strict=True):
        has_words = words_of[a] or words_of[b]
        overlaps.append(jaccard(words_of[a], words_of[b]) if has_words else np.nan)
    return np.array(overlaps, float)


def pair_within_clusters(prompts: Corpus, vectors: np.ndarray) -> pd.DataFrame:
    """Enumerate the pairs of prompts of a cluster.

    Parameters
    ----------
    prompts : Corpus
        n prompts.
    vectors : numpy.ndarray, shape (n, d)
        Their sentence vectors.

    Returns
    -------
    DataFrame
        cluster_id, first_id, second_id, similarity (cosine), jaccard (overlap of
        content words).
    """
    first, second = list_cluster_pairs(prompts["cluster_id"])
    ids = prompts["prompt_id"].to_numpy()
    return pd.DataFrame(
        {
            "cluster_id": prompts["cluster_id"].to_numpy()[first],
            "first_id": ids[first],
            "second_id": ids[second],
            "similarity": paired_cosine_similarity(vectors, first, second),
            "jaccard": content_word_overlaps(prompts, ids[first], ids[second]),
        }
    )


def is_near_identical(pairs: pd.DataFrame) -> pd.Series:
    """Mark pairs of high similarity or overlap.

    The limits are `NEAR_SIMILARITY` and `NEAR_OVERLAP`. Neither measure sees a negation
    ("not" is no content word), so read the pairs.
    """
    return (pairs["similarity"] >= NEAR_SIMILARITY) | (pairs["jaccard"] >= NEAR_OVERLAP)


def near_identical_ratio(system: System, vectors: np.ndarray) -> Estimate:
    """Estimate DR of the pairs of one cluster with a cosine of `NEAR_SIMILARITY`.

    The rate among unrelated prompts is taken as it is in the corpus. The estimate is
    undefined below `MIN_REFUSALS` such pairs.
    """
    decided = system.decided
    between = disagreement_parts(decided["n"], decided["rejected"])[1]
    first, second = list_cluster_pairs(system.prompts["cluster_id"])
    near = paired_cosine_similarity(vectors, first, second) >= NEAR_SIMILARITY
    near &= system.is_scored[first] & system.is_scored[second]
    if near.sum() < MIN_REFUSALS or not between > 0:
        return system.clusters.undefined()
    ids = system.prompts["cluster_id"].to_numpy()[first[near]]
    differ = system.refused[first[near]] != system.refused[second[near]]
    within = system.clusters.share(ids, differ)
    value, low, high = np.array(within) / between
    return Estimate(value, low, high, within.draws / between)


def near_identical_flips(pairs: pd.DataFrame, systems: Iterable[System]) -> Table:
    """Estimate how often systems decide near-identical prompts differently.

    Parameters
    ----------
    pairs : DataFrame
        From `pair_within_clusters`.
    systems : iterable of System

    Returns
    -------
    Table
        system; n_near, near-identical pairs with two scored prompts, and
        n_near_flipped; n_pairs, all pairs of one cluster; too_few, fewer than 30
        near-identical pairs; with intervals flip_near and flip_pairs, the shares of
        both kinds of pairs that are decided differently.
    """
    rows = []
    for system in systems:
        refused = pd.Series(system.refused, system.prompts["prompt_id"])
        first = pairs["first_id"].map(refused)
        second = pairs["second_id"].map(refused)
        decided = pairs.assign(flipped=first != second)
        decided = decided[first.notna() & second.notna()]
        near = decided[is_near_identical(decided)]
        clusters = system.clusters
        shares = {
            "flip_near": clusters.share(near["cluster_id"], near["flipped"]),
            "flip_pairs": clusters.share(decided["cluster_id"], decided["flipped"]),
        }
        rows.append(
            {
                "system": system.name,
                "n_near": len(near),
                "n_near_flipped": near["flipped"].sum(),
                "n_pairs": len(decided),
                "too_few": len(near) < MIN_REFUSALS,
                **to_columns(shares),
            }
        )
    return pd.DataFrame(rows)


def lowest_scored_pairs(systems: Iterable[System]) -> Table:
    """List near-identical prompts of which one is rejected and one accepted.

    They are among the pairs that scores rest on.

    Parameters
    ----------
    systems : iterable of System
        With pairs.

    Returns
    -------
    Table
        system, rejected_id, rejected_prompt, accepted_id, accepted_prompt,
        same_cluster, similarity, jaccard, score in [0, 1], share_below (share of the
        system's rejected-accepted pairs that score lower); lowest score first within a
        system. Prompts are made safe for a spreadsheet.
    """
    tables = [_list_near_identical(system) for system in systems]
    return pd.concat(tables, ignore_index=True)


def _list_near_identical(system: System) -> Table:
    """Return the rows of one system."""
    pairs = system.pairs[system.pairs["centre_label"] == "reject"]
    rejected = pairs["centre_id"]
    accepted = pairs["neighbour_id"]
    text_of = system.prompts.set_index("prompt_id")["text"]
    rows = pd.DataFrame(
        {
            "system": system.name,
            "rejected_id": rejected,
            "rejected_prompt": escape_formulas(rejected.map(text_of)),
            "accepted_id": accepted,
            "accepted_prompt": escape_formulas(accepted.map(text_of)),
            "same_cluster": pairs["same_cluster"],
            "similarity": pairs["similarity"],
            "jaccard": content_word_overlaps(system.prompts, rejected, accepted),
            "score": score_pairs(pairs, system.scoring.weights),
        }
    )
    rows["share_below"] = (rows["score"].rank(method="min") - 1) / len(rows)
    near = rows[is_near_identical(rows)]
    return near.sort_values(["score", "rejected_id", "accepted_id"])
