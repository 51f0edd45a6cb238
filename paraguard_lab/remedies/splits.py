"""Split clusters in three: to learn on, to choose on and to report on, in turn
(`docs/method.md`, Remedies).
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
TWINNED_RATIO = (
    3,
    3,
    1,
)  # ratio of a category's clusters with a twin in training, validation and test
UNTWINNED_RATIO = (5, 5, 3)  # ratio of the others


class Split(NamedTuple):
    """Prompts of one split: rows of the corpus, and of the unsafe twins of the same
    clusters.
    """

    benign: Corpus
    twins: Corpus


class Splits(NamedTuple):
    """The three splits, the seed categories that are in `test` only, and the number of
    `test`.
    """

    train: Split
    validation: Split
    test: Split
    held_out: tuple[str, ...]
    third: int = 3


def split_clusters(corpus: Corpus, twins: Corpus, seed: int = SEED) -> Splits:
    """Split clusters at random within each seed category.

    A twin goes with its benign cluster.

    `corpus` and `twins` have the columns cluster_id and category. Raises DataError if a
    split would hold no twin or no benign cluster.
    """
    rng = np.random.default_rng(seed)
    category = corpus.groupby("cluster_id")["category"].first().sort_index()
    names = sorted(category.unique())
    held = (
        sorted(rng.choice(names, int(len(names) * HELD_OUT_SHARE), replace=False))
        if len(names) > 1
        else []
    )
    benign_of = unsafe.benign_cluster_of(twins["cluster_id"])
    twinned = category.index.isin(benign_of)
    of = pd.Series("test", index=category.index)
    for name in [name for name in names if name not in held]:
        for mask, shares in ((twinned, TWINNED_RATIO), (~twinned, UNTWINNED_RATIO)):
            ids = rng.permutation(category.index[(category == name) & mask])
            ends = np.round(np.cumsum(shares) / sum(shares) * len(ids)).astype(int)
            of[ids[: ends[0]]], of[ids[ends[0] : ends[1]]] = "train", "validation"
    made = []
    for part in ("train", "validation", "test"):
        ids = of.index[of == part]
        sides = (corpus[corpus["cluster_id"].isin(ids)], twins[benign_of.isin(ids)])
        if any(side.empty for side in sides):
            raise DataError(
                f"too few clusters with a twin to split: the {part} third would have"
                " none; remedies need about ten twins in several categories"
            )
        made.append(Split(*(side.reset_index(drop=True) for side in sides)))
    return Splits(made[0], made[1], made[2], tuple(map(str, held)))


def rotate_splits(splits: Splits) -> list[Splits]:
    """Return the splits in three orders, so that each is the test split once
    (`docs/method.md`, Remedies).
    """
    parts = splits[:3]
    return [
        Splits(
            parts[k % 3],
            parts[(k + 1) % 3],
            parts[k - 1],
            splits.held_out if k == len(SPLIT_NUMBERS) else (),
            k,
        )
        for k in SPLIT_NUMBERS
    ]


def count_splits(splits: Splits) -> pd.DataFrame:
    """Count what each split holds: third, categories, {benign,twin}_{clusters,prompts}."""
    rows = []
    for name, own in zip(Splits._fields, splits[:3], strict=False):
        row = {"third": name, "categories": own.benign["category"].nunique()}
        for kind, side in zip(("benign", "twin"), own, strict=True):
            row |= {
                f"{kind}_clusters": side["cluster_id"].nunique(),
                f"{kind}_prompts": len(side),
            }
        rows.append(row)
    return pd.DataFrame(rows)
