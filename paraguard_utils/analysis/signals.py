"""Find neighbours and compute the paper's token-level signals between prompts.

All sums are in float64 (`docs/method.md`, Neighbours, signals, score).
"""

import numpy as np
import pandas as pd

from paraguard_utils.analysis.drift import DriftCache, select_own_words
from paraguard_utils.analysis.system import System
from paraguard_utils.core import signals as core
from paraguard_utils.core.signals import PAPER_WEIGHTS, ScoreWeights
from paraguard_utils.core.vectors import find_nearest, paired_cosine_similarity
from paraguard_utils.schemas import Pairs, Traces


def trace_perplexity(traces: Traces) -> np.ndarray:
    """Compute the perplexity of each prompt's own words under the system.

    It has shape (n,), and the formula is `core.signals.perplexity`.
    """
    return core.perplexity(select_own_words(traces, "token_nll"))


def has_signals(traces: Traces) -> np.ndarray:
    """Mark the prompts whose traces hold what signals are computed from; shape (n,).

    Every trace of a local model does. What completes a server's traces gives NaN for a
    part that is missing.
    """
    has_words = np.isfinite(trace_perplexity(traces))
    return has_words & traces["tail_mass"].notna().to_numpy()


def compute_pairs(system: System, vectors: np.ndarray, k: int | None = None) -> Pairs:
    """Compare every scored prompt with accepted ones: its k nearest, and its cluster's.

    Prompts without signals (`has_signals`) are in no pair.

    Parameters
    ----------
    system : System
        With traces and drifts.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors of its prompts.
    k : int
        By default that of the system's scoring.

    Returns
    -------
    Pairs
        The columns of a pairs file. Accepted prompts of the same cluster that are not
        among the k nearest have no rank.
    """
    traces = system.traces
    if k is None:
        k = system.scoring.k
    ids = system.prompts["prompt_id"].to_numpy()
    cluster = system.prompts["cluster_id"].to_numpy()
    label = system.labels["label"].to_numpy()
    usable = has_signals(traces)
    centres = np.flatnonzero(usable & system.is_scored)
    accepted = np.flatnonzero(usable & (label == "accept"))

    nearest = find_nearest(vectors, ids, centres, accepted, k)
    same_cluster = _pair_within_clusters(cluster, centres, accepted)
    same_cluster["similarity"] = paired_cosine_similarity(
        vectors, same_cluster["centre"], same_cluster["neighbour"]
    )
    rows = pd.concat([nearest, same_cluster], ignore_index=True)
    rows = rows.drop_duplicates(["centre", "neighbour"])  # keeps the one with a rank
    rows["rank"] = rows["rank"].astype("Int64")
    rows = rows.sort_values(["centre", "rank", "neighbour"], ignore_index=True)

    a = rows["centre"].to_numpy(int)
    b = rows["neighbour"].to_numpy(int)
    about = pd.DataFrame(
        {
            "centre_id": ids[a],
            "centre_label": label[a],
            "neighbour_id": ids[b],
            "neighbour_label": label[b],
            "same_cluster": cluster[a] == cluster[b],
        }
    )
    signals = compute_signals(traces, system.drifts, a, b)
    return pd.concat([about, rows[["rank", "similarity"]], signals], axis=1)


def _pair_within_clusters(
    cluster: np.ndarray, centres: np.ndarray, accepted: np.ndarray
) -> pd.DataFrame:
    """Pair row numbers of centres with those of other accepted prompts of a cluster."""
    left = pd.DataFrame({"centre": centres, "cluster": cluster[centres]})
    right = pd.DataFrame({"neighbour": accepted, "cluster": cluster[accepted]})
    pairs = left.merge(right, on="cluster")
    others = pairs["centre"] != pairs["neighbour"]
    return pairs.loc[others, ["centre", "neighbour"]].assign(rank=pd.NA)


def is_ranked(pairs: Pairs, k: int) -> pd.Series:
    """Mark the pairs that are among the k nearest.

    A pair of one cluster beyond them has no rank.
    """
    return pairs["rank"].le(k).fillna(False).astype(bool)


def compute_signals(
    traces: Traces, drifts: DriftCache, a: np.ndarray, b: np.ndarray
) -> pd.DataFrame:
    """Compute the signals between prompts.

    Parameters
    ----------
    traces : Traces
    drifts : DriftCache
        Of the model whose tokens the traces hold.
    a, b : numpy.ndarray of int, shape (m,)
        Row numbers of the prompts compared.

    Returns
    -------
    DataFrame
        Columns drift, prob_shift, ppl_relative and ppl_clipped, each in [0, 1].
    """
    shifts = core.prob_shifts(
        traces["next_ids"],
        traces["next_logprobs"],
        traces["tail_mass"].to_numpy(),
        a,
        b,
    )
    ppl = trace_perplexity(traces)
    return pd.DataFrame(
        {
            "drift": drifts(traces, a, b),
            "prob_shift": shifts,
            "ppl_relative": core.ppl_relative(ppl[a], ppl[b]),
            "ppl_clipped": core.ppl_clipped(ppl[a], ppl[b]),
        }
    )


def score_pairs(
    pairs: Pairs,
    weights: ScoreWeights = PAPER_WEIGHTS,
    interpretation: str = "relative",
) -> pd.Series:
    """Compute the score of pairs, in [0, 1]: the weighted sum of their signals.

    `interpretation` of the PPL contrast is a key of `core.signals.PPL_INTERPRETATIONS`.
    """
    ppl = pairs[core.PPL_INTERPRETATIONS[interpretation]]
    return weights(pairs["drift"], pairs["prob_shift"], ppl)
