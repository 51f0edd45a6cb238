"""What the confusion map and the token view draw: the most confused rejections among all prompts, and up close (ours).

Both number the same rejections, those of highest CI(r) in the reading `relative`, from 1.
"""

import numpy as np
import pandas as pd
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from paraguard_utils.bootstrap import SEED
from paraguard_utils.models.encoder import unit
from paraguard_utils.schemas import Corpus, Labels, Pairs, Scores, Tokens, Traces
from paraguard_utils.scoring import confusion, signals

MOST = 10
"""Rejections that the two figures number."""

_PERPLEXITY = 30  # t-SNE's own, about the number of neighbours it tries to keep: scikit-learn's default
_STEPS = 500  # half of scikit-learn's default: as many neighbours are kept
_FEWEST = 10  # prompts below which there are no neighbourhoods to keep, and PCA alone is drawn


def most_confused(scores: Scores, most: int = MOST) -> pd.DataFrame:
    """List the rejections of highest CI(r), numbered, ties in the order of prompt_id.

    Parameters
    ----------
    scores : DataFrame
        One target's.
    most : int

    Returns
    -------
    DataFrame, at most `most` rows
        number (from 1), prompt_id, ci.
    """
    rows = confusion.rejections(scores).sort_values(["ci", "prompt_id"], ascending=[False, True]).head(most)
    rows = rows[["prompt_id", "ci"]].reset_index(drop=True)
    rows.insert(0, "number", np.arange(1, len(rows) + 1))
    return rows


def plane(vectors: np.ndarray, seed: int = SEED) -> np.ndarray:
    """Put sentence vectors into a plane so that neighbours by cosine stay neighbours where they can (t-SNE from PCA).

    Distances in the plane are only a sketch of cosines: near points are similar, but gaps and sizes of groups mean
    nothing. The start is PCA rounded to a millionth of its width, so that the last bits of a processor's linear algebra
    do not grow into another picture.

    Parameters
    ----------
    vectors : numpy.ndarray, shape (n, d)
    seed : int

    Returns
    -------
    numpy.ndarray, shape (n, 2)
        Rounded to 3 decimals, in no unit.
    """
    units = unit(vectors)
    if min(units.shape) < 2:
        return np.zeros((len(units), 2))
    start = PCA(2, svd_solver="full").fit_transform(units)
    width = start[:, 0].std() or 1.0
    start = np.round(start / width, 6)
    if len(units) < _FEWEST:
        return start.round(3)
    perplexity = min(_PERPLEXITY, (len(units) - 1) / 3)
    # Euclidean between unit vectors: its square is 2 (1 - cosine).
    found = TSNE(init=(start * 1e-4).astype(np.float32), perplexity=perplexity, max_iter=_STEPS, random_state=seed)
    with threadpool_limits(1):  # on a busy machine its threads wait for each other
        return found.fit_transform(units).astype(float).round(3)


def map_points(
    corpus: Corpus,
    vectors: np.ndarray,
    labels: Labels,
    pairs: Pairs,
    scores: Scores,
    most: int = MOST,
    seed: int = SEED,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Lay out the scored prompts of one target, and join its most confused rejections to their accepted neighbours.

    The layout depends on the prompts alone, so that the maps of two targets can be laid beside each other.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors in corpus order.
    pairs, scores : DataFrame
        One target's.
    most : int
    seed : int
        Of `plane`.

    Returns
    -------
    points : DataFrame
        prompt_id, label (accept or reject), x, y; number and ci of the most confused rejections, else missing.
    lines : DataFrame
        number, prompt_id (the rejection), x, y, neighbour_id, rank, similarity, x_to, y_to: one row per rejection and
        neighbour among its k.
    """
    x, y = plane(vectors, seed).T
    worst = most_confused(scores, most)
    points = pd.DataFrame({"prompt_id": corpus["prompt_id"], "label": labels["label"].to_numpy(), "x": x, "y": y})
    ends = points[["prompt_id", "x", "y"]]
    points = points[points["label"].isin(["accept", "reject"])].merge(worst, on="prompt_id", how="left")
    points = points.astype({"number": "Int64"})
    near = pairs.loc[pairs["rank"].notna(), ["centre_id", "neighbour_id", "rank", "similarity"]]
    lines = worst[["number", "prompt_id"]].merge(ends, on="prompt_id")
    lines = lines.merge(near.rename(columns={"centre_id": "prompt_id"}), on="prompt_id")
    to = ends.rename(columns={"prompt_id": "neighbour_id", "x": "x_to", "y": "y_to"})
    return points, lines.merge(to, on="neighbour_id").sort_values(["number", "rank"], ignore_index=True)


def neighbours_kept(vectors: np.ndarray, points: np.ndarray, k: int = signals.K) -> float:
    """Return the share of the k nearest prompts by cosine that are among the k nearest in the plane too.

    Parameters
    ----------
    vectors : numpy.ndarray, shape (n, d)
    points : numpy.ndarray, shape (n, 2)
    k : int

    Returns
    -------
    float, in [0, 1]
        NaN with fewer than k + 2 points, where any plane would keep them all.
    """
    if len(points) < k + 2:
        return float("nan")
    here, there = (
        NearestNeighbors(n_neighbors=k).fit(places).kneighbors(return_distance=False)
        for places in (unit(vectors), np.asarray(points, float))
    )
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(here, there, strict=True)]))


def token_pairs(traces: Traces, tokens: Tokens, pairs: Pairs, scores: Scores, most: int = MOST) -> pd.DataFrame:
    """Align the most confused rejections with their nearest accepted neighbours (rank 1), token by token.

    Parameters
    ----------
    traces, tokens : DataFrame
        The target's (a guard's reference target's).
    pairs, scores : DataFrame
        One target's.
    most : int

    Returns
    -------
    DataFrame, one row per token of either prompt's own words
        number, side (rejected or accepted), prompt_id, place (from 0), token, nearest, distance (to `nearest`, a token
        of the other prompt, 1 - cosine, in [0, 2]); and of the pair, the same in each row: ci (of the rejection),
        similarity, same_cluster, drift, prob_shift, ppl_relative.
    """
    of_pair = ["similarity", "same_cluster", "drift", "prob_shift", "ppl_relative"]
    columns = ["number", "side", "prompt_id", "place", "token", "nearest", "distance", "ci", *of_pair]
    near = pairs[signals.ranked(pairs, 1)]
    rows = most_confused(scores, most).merge(near, left_on="prompt_id", right_on="centre_id")
    trace = {row.prompt_id: row for row in traces.itertuples()}
    frames = []
    for row in rows.itertuples():
        ends = {"rejected": row.centre_id, "accepted": row.neighbour_id}
        for (side, own), other in zip(ends.items(), reversed(ends.values()), strict=True):
            frame = signals.alignment(trace[own], trace[other], tokens).drop(columns="place")
            about = {name: getattr(row, name) for name in ("number", "ci", *of_pair)}
            frames.append(frame.assign(side=side, prompt_id=own, place=range(len(frame)), **about))
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)
