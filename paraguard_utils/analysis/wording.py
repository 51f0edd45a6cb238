"""Estimate whether meaning or shared words decide: DR of near-copies and free
rewordings (ours; `docs/method.md`).
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils.core import strategies
from paraguard_utils.core import wording as core
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, to_columns
from paraguard_utils.schemas import Corpus, Labels, Table

NEAR_COPY_STRATEGIES = (strategies.SEED, *strategies.NEAR_COPIES)
FREE_REWORDING_STRATEGIES = strategies.FREE_REWORDINGS

OVERLAP_STEP = 0.2

DR_DIFFERENCES = ("difference", "low_minus_high")


class WordingPairs(NamedTuple):
    """Pairs of prompts of one cluster: rows of the corpus, and whether both are
    near-copies or both free rewordings.
    """

    first: np.ndarray
    second: np.ndarray
    overlap: np.ndarray  # Jaccard overlap of their words, in [0, 1]; NaN without texts
    near: np.ndarray
    free: np.ndarray


def find_cluster_pairs(corpus: Corpus) -> WordingPairs:
    """Return all pairs of prompts of one cluster, in corpus order."""
    strategy = corpus["strategy"].to_numpy()
    first, second = core.list_cluster_pairs(corpus["cluster_id"])
    overlap = np.full(len(first), np.nan)
    if "text" in corpus:
        overlap = core.word_overlap(corpus["text"].tolist(), first, second)
    kinds = (NEAR_COPY_STRATEGIES, FREE_REWORDING_STRATEGIES)
    near, free = (
        np.isin(strategy[first], kind) & np.isin(strategy[second], kind)
        for kind in kinds
    )
    return WordingPairs(first, second, overlap, near, free)


def make_phrasings(corpus: Corpus, labels: Labels) -> core.Phrasings:
    """Return a system's decisions in the form that `core.wording` compares: a strategy
    is a style.
    """
    refused, style = (
        as_refused(labels["label"], blocked=False),
        corpus["strategy"].to_numpy().astype(str),
    )
    return core.Phrasings(corpus["cluster_id"].to_numpy(), refused, style)


def estimate_wording(
    clusters: ClusterBootstrap, corpus: Corpus, labels: Labels, own: WordingPairs
) -> dict[str, Estimate]:
    """Estimate DR by shared wording; corpus and labels are in the same order.

    The names are dr_near, dr_free and difference, free minus near; dr_low and dr_high
    (overlap below `LOW_OVERLAP`; `HIGH_OVERLAP` or more) and low_minus_high.
    """
    chosen = {"near": own.near, "free": own.free}
    chosen |= {
        "low": own.overlap < core.LOW_OVERLAP,
        "high": own.overlap >= core.HIGH_OVERLAP,
    }
    ends = {name: (own.first[mask], own.second[mask]) for name, mask in chosen.items()}
    given = (clusters, make_phrasings(corpus, labels))
    found = {
        f"dr_{name}": core.estimate_pair_disagreement(*given, rows)
        for name, rows in ends.items()
    }
    found["difference"] = core.estimate_pair_difference(
        *given, ends["free"], ends["near"]
    )
    found["low_minus_high"] = core.estimate_pair_difference(
        *given, ends["low"], ends["high"]
    )
    return found


def wording_row(
    system: str, labels: Labels, own: WordingPairs, found: dict[str, Estimate]
) -> dict[str, object]:
    """Return a system's row: `estimate_wording` with intervals, the pairs n_near and
    n_free, and few.
    """
    masks = {"near": own.near, "free": own.free}
    counts: dict[str, object] = {
        f"n_{name}": int(mask.sum()) for name, mask in masks.items()
    }
    refused = as_refused(labels["label"], blocked=False)
    flagged = any(
        core.too_few_for_pairs(refused, (own.first[mask], own.second[mask]))
        for mask in masks.values()
    )
    if flagged:  # then the interval of a difference means nothing
        found = found | {
            name: Estimate(found[name][0], np.nan, np.nan, found[name].draws)
            for name in DR_DIFFERENCES
        }
    return {"system": system, **counts, **to_columns(found), "too_few": flagged}


def overlap_curve(
    system: str,
    clusters: ClusterBootstrap,
    corpus: Corpus,
    labels: Labels,
    own: WordingPairs,
) -> Table:
    """Estimate DR by word overlap: system, overlap (from; bins of `OVERLAP_STEP`), n
    pairs, dr with interval, few.
    """
    bins = np.minimum(
        (own.overlap / OVERLAP_STEP + 1e-9).astype(int), round(1 / OVERLAP_STEP) - 1
    )
    decided, rows = make_phrasings(corpus, labels), []
    for number in np.unique(bins):
        ends = own.first[bins == number], own.second[bins == number]
        found = {"dr": core.estimate_pair_disagreement(clusters, decided, ends)}
        about = {
            "system": system,
            "overlap": round(number * OVERLAP_STEP, 1),
            "n": len(ends[0]),
        }
        rows.append(
            about
            | to_columns(found)
            | {"too_few": core.too_few_for_pairs(decided.refused, ends)}
        )
    return pd.DataFrame(rows)


def wording_tables(
    corpus: Corpus,
    labels: Mapping[str, Labels],
    clusters: ClusterBootstrap,
    encoder: str = "",
) -> tuple[Table, Table]:
    """Return the rows of `wording_row` of several systems, and those of
    `overlap_curve`; labels are in corpus order.

    If `encoder` names the system that compares sentence vectors, rows also hold
    difference_over_encoder: how far the others' difference exceeds that system's, with
    its interval.
    """
    own = find_cluster_pairs(corpus)
    found = {
        name: estimate_wording(clusters, corpus, one, own)
        for name, one in labels.items()
    }
    rows = []
    for name, one in labels.items():
        made = wording_row(name, one, own, found[name])
        if encoder:
            over = clusters.undefined()
            if encoder in found and name != encoder:
                over = found[name]["difference"] - found[encoder]["difference"]
            made |= to_columns({"difference_over_encoder": over})
        rows.append(made)
    curves = [
        overlap_curve(name, clusters, corpus, one, own) for name, one in labels.items()
    ]
    return pd.DataFrame(rows), pd.concat(curves, ignore_index=True)
