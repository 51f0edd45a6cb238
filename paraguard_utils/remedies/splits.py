"""Thirds of the clusters: to learn on, to choose on, to report on, in turn (`docs/method.md`, Remedies)."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils import unsafe
from paraguard_utils.core.estimates import SEED
from paraguard_utils.errors import DataError
from paraguard_utils.schemas import Corpus

HELD_OUT = 0.2
"""Share of the seed categories that lie in the test third whole."""

THIRDS = (1, 2, 3)
"""Their numbers: the first teaches and the second chooses for the third, and so on in turn."""

TWINNED, OTHERS = (3, 3, 1), (5, 5, 3)
"""How a category's clusters are dealt to training, validation and test: those that have a twin, and the others."""


class Third(NamedTuple):
    """Prompts of one third.

    Attributes
    ----------
    benign, twins : DataFrame
        Rows of the corpus and of its unsafe twins; the twins' clusters are among the benign ones.
    """

    benign: Corpus
    twins: Corpus


class Splits(NamedTuple):
    """The three thirds, the seed categories that lie whole in the one that `split` reports on, and which that is."""

    train: Third
    validation: Third
    test: Third
    held_out: tuple[str, ...]
    third: int = 3


def split(corpus: Corpus, twins: Corpus, seed: int = SEED) -> Splits:
    """Deal clusters to thirds, by seed category and by cluster.

    Parameters
    ----------
    corpus, twins : DataFrame
        Columns cluster_id, category.
    seed : int

    Returns
    -------
    Splits
        No cluster is in two thirds, and a twin is where its benign cluster is.

    Raises
    ------
    DataError
        A third would hold no twin or no benign cluster.
    """
    rng = np.random.default_rng(seed)
    category = corpus.groupby("cluster_id")["category"].first().sort_index()
    names = sorted(category.unique())
    held = sorted(rng.choice(names, int(len(names) * HELD_OUT), replace=False)) if len(names) > 1 else []
    twinned = category.index.isin(unsafe.benign_of(twins["cluster_id"]))
    of = pd.Series("test", index=category.index)
    for name in [name for name in names if name not in held]:
        for mask, shares in ((twinned, TWINNED), (~twinned, OTHERS)):
            ids = rng.permutation(category.index[(category == name) & mask])
            ends = np.round(np.cumsum(shares) / sum(shares) * len(ids)).astype(int)
            of[ids[: ends[0]]], of[ids[ends[0] : ends[1]]] = "train", "validation"
    thirds = []
    for third in ("train", "validation", "test"):
        ids = of.index[of == third]
        parts = (corpus["cluster_id"].isin(ids), unsafe.benign_of(twins["cluster_id"]).isin(ids))
        found = Third(corpus[parts[0]].reset_index(drop=True), twins[parts[1]].reset_index(drop=True))
        if found.benign.empty or found.twins.empty:
            raise DataError(
                f"too few clusters with a twin to split: the {third} third would have none; "
                "remedies need about ten twins in several categories"
            )
        thirds.append(found)
    return Splits(thirds[0], thirds[1], thirds[2], tuple(map(str, held)))


def folds(splits: Splits) -> list[Splits]:
    """Cross-fit: let each third be the one that is reported on, and the other two teach.

    Parameters
    ----------
    splits : Splits
        From `split`.

    Returns
    -------
    list of Splits
        By the third that is reported on, 1 to 3; the one behind it teaches, and the one behind that chooses. No
        category is held out of the first two, whose categories the others share.
    """
    thirds = splits[:3]
    return [
        Splits(thirds[k % 3], thirds[(k + 1) % 3], thirds[k - 1], splits.held_out if k == len(THIRDS) else (), k)
        for k in THIRDS
    ]


def described(splits: Splits) -> pd.DataFrame:
    """Count what the thirds hold: third, categories, benign_clusters, benign_prompts, twin_clusters, twin_prompts."""
    return pd.DataFrame(
        [
            {
                "third": name,
                "categories": third.benign["category"].nunique(),
                "benign_clusters": third.benign["cluster_id"].nunique(),
                "benign_prompts": len(third.benign),
                "twin_clusters": third.twins["cluster_id"].nunique(),
                "twin_prompts": len(third.twins),
            }
            for name, third in zip(Splits._fields, splits[:3], strict=False)
        ]
    )
