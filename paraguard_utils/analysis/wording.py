"""Estimate whether meaning or shared words decide (ours).

It compares DR of near-copies with DR of free rewordings (`docs/method.md`, Shared
wording, rephrasing, triggers).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils.analysis.system import System
from paraguard_utils.core import strategies
from paraguard_utils.core import wording as core
from paraguard_utils.core.estimates import to_columns
from paraguard_utils.core.wording import PairRows, Phrasings
from paraguard_utils.schemas import Corpus, Table

NEAR_COPY_STRATEGIES = (strategies.SEED_STRATEGY, *strategies.NEAR_COPIES)
FREE_REWORDING_STRATEGIES = strategies.FREE_REWORDINGS

OVERLAP_STEP = 0.2  # width of the bins of `overlap_curve`


class WordingPairs(NamedTuple):
    """Pairs of prompts of one cluster, in corpus order.

    Attributes
    ----------
    first, second : numpy.ndarray of int, shape (pairs,)
        Rows of the corpus.
    overlap : numpy.ndarray of float, shape (pairs,)
        Jaccard overlap of their words, in [0, 1]; NaN for a corpus without texts.
    near, free : numpy.ndarray of bool, shape (pairs,)
        Whether both are near-copies of the seed, or both free rewordings.
    """

    first: np.ndarray
    second: np.ndarray
    overlap: np.ndarray
    near: np.ndarray
    free: np.ndarray

    def select(self, chosen: np.ndarray) -> PairRows:
        """Return the rows of some pairs, marked by a bool for each."""
        return self.first[chosen], self.second[chosen]


def find_cluster_pairs(corpus: Corpus) -> WordingPairs:
    """Return all pairs of prompts of one cluster."""
    first, second = core.list_cluster_pairs(corpus["cluster_id"])
    overlap = np.full(len(first), np.nan)
    if "text" in corpus:
        overlap = core.word_overlaps(corpus["text"].tolist(), first, second)
    is_near = corpus["strategy"].isin(NEAR_COPY_STRATEGIES).to_numpy()
    is_free = corpus["strategy"].isin(FREE_REWORDING_STRATEGIES).to_numpy()
    return WordingPairs(
        first,
        second,
        overlap,
        near=is_near[first] & is_near[second],
        free=is_free[first] & is_free[second],
    )


def make_phrasings(system: System) -> Phrasings:
    """Return a system's decisions as `core.wording` compares them.

    A strategy is a style.
    """
    prompts = system.prompts
    style = prompts["strategy"].to_numpy().astype(str)
    return Phrasings(prompts["cluster_id"].to_numpy(), system.refused, style)


def wording_row(system: System, pairs: WordingPairs) -> dict[str, Any]:
    """Estimate DR of a system's near-copies and of its free rewordings.

    Parameters
    ----------
    system : System
    pairs : WordingPairs
        Those of its prompts (`find_cluster_pairs`).

    Returns
    -------
    dict
        system, the numbers of pairs n_near and n_free, dr_near and dr_free with
        intervals, and too_few: too few refusals or answers among either.
    """
    phrasings = make_phrasings(system)
    row: dict[str, Any] = {"system": system.name}
    estimates = {}
    too_few = False
    for name, chosen in (("near", pairs.near), ("free", pairs.free)):
        rows = pairs.select(chosen)
        row[f"n_{name}"] = len(rows[0])
        dr = core.estimate_pair_disagreement(system.clusters, phrasings, rows)
        estimates[f"dr_{name}"] = dr
        too_few |= core.too_few_for_pairs(system.refused, rows)
    return {**row, **to_columns(estimates), "too_few": too_few}


def overlap_curve(system: System, pairs: WordingPairs) -> Table:
    """Estimate DR by word overlap.

    Columns: system, overlap (where the bin begins; bins are `OVERLAP_STEP` wide), n
    pairs, dr with its interval, too_few.
    """
    last_bin = round(1 / OVERLAP_STEP) - 1
    # An overlap of 0.6 must not fall below 0.6 by rounding.
    bins = (pairs.overlap / OVERLAP_STEP + 1e-9).astype(int)
    bins = np.minimum(bins, last_bin)
    phrasings = make_phrasings(system)
    rows = []
    for number in np.unique(bins):
        inside = pairs.select(bins == number)
        dr = core.estimate_pair_disagreement(system.clusters, phrasings, inside)
        rows.append(
            {
                "system": system.name,
                "overlap": round(number * OVERLAP_STEP, 1),
                "n": len(inside[0]),
                **to_columns({"dr": dr}),
                "too_few": core.too_few_for_pairs(phrasings.refused, inside),
            }
        )
    return pd.DataFrame(rows)


def wording_tables(systems: Iterable[System]) -> tuple[Table, Table]:
    """Tabulate DR by shared wording of several systems on one corpus.

    Returns
    -------
    rows : Table
        `wording_row` of each system.
    curves : Table
        `overlap_curve` of each system.
    """
    systems = list(systems)
    pairs = find_cluster_pairs(systems[0].prompts)
    rows = [wording_row(system, pairs) for system in systems]
    curves = [overlap_curve(system, pairs) for system in systems]
    return pd.DataFrame(rows), pd.concat(curves, ignore_index=True)
