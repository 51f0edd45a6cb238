"""Check that paraphrases are nearest to their own seed (`docs/method.md`, Corpus)."""

import numpy as np
import pandas as pd

from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.core.vectors import normalize_rows
from paraguard_utils.schemas import Corpus, Table


def measure_spread(corpus: Corpus, vectors: np.ndarray) -> pd.DataFrame:
    """Measure how close each variant is to its own seed and to other seeds.

    Parameters
    ----------
    corpus : pandas.DataFrame
        n prompts.
    vectors : numpy.ndarray, shape (n, d)
        Their sentence vectors.

    Returns
    -------
    pandas.DataFrame
        A row per variant: prompt_id, cluster_id, strategy, similarity (cosine to its
        seed), nearest_seed (a cluster_id), margin (cosine to its own seed minus the
        largest cosine to another; positive if its own is the nearest).
    """
    vectors = normalize_rows(vectors)
    is_seed = (corpus["variant"] == 0).to_numpy()
    seed_names = corpus.loc[is_seed, "cluster_id"].to_numpy()
    variants = corpus.loc[~is_seed, ["prompt_id", "cluster_id", "strategy"]]
    variants = variants.reset_index(drop=True)
    cosines = vectors[~is_seed] @ vectors[is_seed].T
    is_own = variants["cluster_id"].to_numpy()[:, None] == seed_names
    variants["similarity"] = cosines[is_own]
    variants["nearest_seed"] = seed_names[cosines.argmax(axis=1)]
    to_others = np.where(is_own, -np.inf, cosines).max(axis=1)
    variants["margin"] = variants["similarity"] - to_others
    return variants


def nearest_seed_share(variants: pd.DataFrame) -> Table:
    """Return the share of variants that are nearest to their own seed.

    Parameters
    ----------
    variants : pandas.DataFrame
        As from `measure_spread`.

    Returns
    -------
    pandas.DataFrame
        One row: own (variants nearest to their own seed), variants, share, share_low,
        share_high (95 % interval over clusters).
    """
    cluster = variants["cluster_id"]
    is_nearest = (variants["nearest_seed"] == cluster).to_numpy()
    share = ClusterBootstrap(cluster).share(cluster, is_nearest)
    counts = {"own": is_nearest.sum(), "variants": len(variants)}
    return pd.DataFrame([counts | to_columns({"share": share})])
