"""Split clusters in three (`docs/method.md`, Remedies).

The parts are to learn on, to choose on and to report on, in turn.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils import unsafe
from paraguard_utils.core.estimates import SEED
from paraguard_utils.errors import DataError
from paraguard_utils.schemas import Corpus

HELD_OUT_SHARE = 0.2  # share of the seed categories that are in the test split only
SPLIT_NUMBERS = (1, 2, 3)  # numbers of the splits, as in file names and tables
PARTS = ("train", "validation", "test")

TWINNED_RATIO = (3, 3, 1)
"""Ratio of a category's clusters with a twin in training, validation and test."""

UNTWINNED_RATIO = (5, 5, 3)  # ratio of the others


class Split(NamedTuple):
    """Prompts of one split: rows of the corpus, and the twins of its clusters."""

    benign: Corpus
    twins: Corpus


class Splits(NamedTuple):
    """Three splits; `held_out` are the seed categories that are in `test` only.

    `third` is the number of the test split.
    """

    train: Split
    validation: Split
    test: Split
    held_out: tuple[str, ...]
    third: int = 3


def split_clusters(corpus: Corpus, twins: Corpus, seed: int = SEED) -> Splits:
    """Split clusters at random within each seed category.

    A twin goes with its benign cluster.

    Parameters
    ----------
    corpus, twins : Corpus
        With cluster_id and category.
    seed : int

    Returns
    -------
    Splits
        Some categories are in the test split only.

    Raises
    ------
    DataError
        A split would hold no twin or no benign cluster.
    """
    rng = np.random.default_rng(seed)
    category = corpus.groupby("cluster_id")["category"].first().sort_index()
    names = sorted(category.unique())
    count = int(len(names) * HELD_OUT_SHARE)
    held_out = sorted(map(str, rng.choice(names, count, replace=False)))
    benign_of_twins = unsafe.benign_cluster_of(twins["cluster_id"])
    has_twin = category.index.isin(benign_of_twins)
    part_of = pd.Series("test", index=category.index)
    for name in sorted(set(names).difference(held_out)):
        is_named = category == name
        for chosen, ratio in ((has_twin, TWINNED_RATIO), (~has_twin, UNTWINNED_RATIO)):
            clusters = rng.permutation(category.index[is_named & chosen])
            shares = np.cumsum(ratio) / sum(ratio)
            train, validation, _ = np.round(shares * len(clusters)).astype(int)
            part_of[clusters[:validation]] = "validation"
            part_of[clusters[:train]] = "train"
    splits = []
    for part in PARTS:
        clusters = part_of.index[part_of == part]
        benign = corpus[corpus["cluster_id"].isin(clusters)]
        harmful = twins[benign_of_twins.isin(clusters)]
        if benign.empty or harmful.empty:
            raise DataError(
                f"too few clusters with a twin to split: the {part} third would have"
                " none; remedies need about ten twins in several categories"
            )
        sides = (benign.reset_index(drop=True), harmful.reset_index(drop=True))
        splits.append(Split(*sides))
    train_split, validation_split, test_split = splits
    return Splits(train_split, validation_split, test_split, tuple(held_out))


def rotate_splits(splits: Splits) -> list[Splits]:
    """Return the splits in three orders, so that each is the test split once."""
    parts = [splits.train, splits.validation, splits.test]
    rotated = []
    for number in SPLIT_NUMBERS:
        train, validation, test = parts[number:] + parts[:number]
        held_out = splits.held_out if test is splits.test else ()
        rotated.append(Splits(train, validation, test, held_out, number))
    return rotated


def count_splits(splits: Splits) -> pd.DataFrame:
    """Count what each split holds.

    Columns: third, categories, benign_clusters, benign_prompts, twin_clusters,
    twin_prompts.
    """
    rows = []
    for name in PARTS:
        split: Split = getattr(splits, name)
        row = {"third": name, "categories": split.benign["category"].nunique()}
        for kind, prompts in (("benign", split.benign), ("twin", split.twins)):
            row[f"{kind}_clusters"] = prompts["cluster_id"].nunique()
            row[f"{kind}_prompts"] = len(prompts)
        rows.append(row)
    return pd.DataFrame(rows)
