"""Near-identical prompts: how often they are decided differently, and where the score ranks them.

Identical prompts score 0, so the score ranks the starkest contradictions lowest (`docs/method.md`, What CI adds).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from paraguard_utils import text
from paraguard_utils.analysis import signals
from paraguard_utils.analysis.confusion import CI
from paraguard_utils.core.estimates import MIN_REFUSALS, ClusterBootstrap, to_columns
from paraguard_utils.core.signals import PAPER_WEIGHTS, ScoreWeights
from paraguard_utils.core.vectors import pair_cosine
from paraguard_utils.core.words import jaccard
from paraguard_utils.schemas import Corpus, Labels, Pairs, Table

NEAR_SIMILARITY, NEAR_OVERLAP = 0.95, 0.8
"""Two prompts are near-identical from this similarity or this content-word overlap on (ours)."""


def overlaps(corpus: Corpus, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
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
    return np.array([jaccard(a, b) if a or b else np.nan for a, b in sides])


def own_pairs(corpus: Corpus, vectors: np.ndarray) -> pd.DataFrame:
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
            "similarity": pair_cosine(vectors, rows["centre"].to_numpy(), rows["neighbour"].to_numpy()),
            "jaccard": overlaps(corpus, first, second),
        }
    )


def is_near_identical(
    frame: pd.DataFrame, similarity: float = NEAR_SIMILARITY, overlap: float = NEAR_OVERLAP
) -> pd.Series:
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


def flip_shares(own: pd.DataFrame, labels: Mapping[str, Labels], clusters: ClusterBootstrap) -> Table:
    """Say how often near-identical prompts are decided differently, beside all pairs of one cluster.

    Parameters
    ----------
    own : DataFrame
        From `own_pairs`.
    labels : dict of str to DataFrame
        By target.
    clusters : ClusterBootstrap

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
        near = pairs[is_near_identical(pairs)]
        found = {
            "flip_near": clusters.share(near["cluster_id"], near["flipped"]),
            "flip_pairs": clusters.share(pairs["cluster_id"], pairs["flipped"]),
        }
        row = {"target": target, "n_near": len(near), "n_near_clusters": near["cluster_id"].nunique()}
        row |= {"n_near_flipped": int(near["flipped"].sum()), "n_pairs": len(pairs), "few": len(near) < MIN_REFUSALS}
        rows.append(row | to_columns(found))
    return pd.DataFrame(rows)


def low_tail(corpus: Corpus, pairs: Mapping[str, Pairs], weights: ScoreWeights = PAPER_WEIGHTS) -> Table:
    """List near-identical prompts of which one is rejected and one accepted (`docs/method.md`, What CI adds).

    They are looked for among the pairs a target's scores rest on: of one cluster, or nearest neighbours from another.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, text.
    pairs : dict of str to DataFrame
        By target.
    weights : ScoreWeights

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
            frame[is_near_identical(frame)].sort_values(["score", "centre_id", "neighbour_id"]).assign(target=target)
        )
    rows = pd.concat(frames, ignore_index=True)
    rows = rows.rename(columns={"centre_id": "rejected_id", "neighbour_id": "accepted_id"})
    for side in ("rejected", "accepted"):
        rows[f"{side}_prompt"] = text.formula_safe(rows[f"{side}_id"].map(words))
    numbers = ["similarity", "jaccard", "score", "score_clipped", "share_below", "share_below_clipped"]
    sides = [f"{side}_{part}" for side in ("rejected", "accepted") for part in ("id", "prompt")]
    return rows[["target", *sides, "same_cluster", *numbers]]
