"""Find near neighbours of prompts that have no clusters, and groups to resample.

Neighbours stand in the place of clusters (`docs/method.md`, Disagreement).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from paraguard_utils.core.confusion import THETA
from paraguard_utils.core.disagreement import bootstrap_log_ratio
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, Estimate
from paraguard_utils.core.vectors import iterate_blocks, normalize_rows

_MAX_EXACT_PROMPTS = 20_000  # up to this number of prompts, every pair is compared

_HNSW_LINKS, _HNSW_CANDIDATES = 32, 128
"""Links per prompt in the approximate index (HNSW), and candidates compared when
building and searching it.
"""

_MAX_HNSW_NEIGHBOURS = 100  # the approximate index returns at most this many neighbours
_RECALL_PROMPTS = (
    200  # prompts on which the recall of the approximate index is measured
)


class Neighbourhoods(NamedTuple):
    """Near neighbours of each prompt, and groups of prompts.

    Attributes
    ----------
    near, near_rejected : numpy.ndarray of int, shape (n,)
        How many neighbours reach the threshold, the prompt itself left out, and how
        many of them are rejected.
    groups : numpy.ndarray of int, shape (n,)
        Each prompt joins the group of the first earlier leader found near it, or else
        leads a new group.
    recall : float
        Share of the neighbours, at most `_MAX_HNSW_NEIGHBOURS` each, that were found
        for `_RECALL_PROMPTS` prompts; 1 if every pair was compared.
    """

    near: np.ndarray
    near_rejected: np.ndarray
    groups: np.ndarray
    recall: float


def find_neighbours(
    vectors: np.ndarray, rejected: np.ndarray, theta: float = THETA
) -> Neighbourhoods:
    """Find the neighbours of every prompt.

    Sentence vectors (n, d) of neighbours have a cosine of theta or more.
    """
    units = normalize_rows(vectors).astype(np.float32)
    n, rejected = len(units), np.asarray(rejected, bool)
    exact = n <= _MAX_EXACT_PROMPTS
    near, near_rejected, groups = np.zeros((3, n), int)
    leads, count = np.zeros(n, bool), 0
    for row, found in enumerate((_compare_all if exact else _search)(units, theta)):
        near[row], near_rejected[row] = len(found), np.count_nonzero(rejected[found])
        leaders = found[leads[found]]
        groups[row] = groups[leaders].min() if len(leaders) else count
        leads[row] = not len(leaders)
        count += leads[row]
    if exact:
        return Neighbourhoods(near, near_rejected, groups, 1.0)
    checked = np.random.default_rng(SEED).choice(
        n, min(_RECALL_PROMPTS, n), replace=False
    )
    truly = np.minimum(
        (units[checked] @ units.T >= theta).sum(axis=1) - 1, _MAX_HNSW_NEIGHBOURS
    )
    recall = (
        float(np.minimum(near[checked], truly).sum() / truly.sum())
        if truly.sum()
        else 1.0
    )
    return Neighbourhoods(near, near_rejected, groups, recall)


def _compare_all(units: np.ndarray, theta: float) -> Iterator[np.ndarray]:
    """Yield the neighbours of each prompt."""
    for part in iterate_blocks(len(units)):
        close = units[part] @ units.T >= theta
        np.fill_diagonal(close[:, part.start :], False)
        yield from map(np.flatnonzero, close)


def _search(units: np.ndarray, theta: float) -> Iterator[np.ndarray]:
    """Yield the neighbours of each prompt that an approximate index finds."""
    import faiss  # not needed for fewer prompts

    index = faiss.IndexHNSWFlat(units.shape[1], _HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = index.hnsw.efSearch = _HNSW_CANDIDATES
    index.add(units)
    similar, found = index.search(units, _MAX_HNSW_NEIGHBOURS + 1)
    kept = (similar >= theta) & (found >= 0) & (found != np.arange(len(units))[:, None])
    yield from (own[there] for own, there in zip(found, kept, strict=True))


def estimate_neighbour_disagreement(
    clusters: ClusterBootstrap,
    groups: np.ndarray,
    rejected: np.ndarray,
    near: np.ndarray,
    near_rejected: np.ndarray,
) -> Estimate:
    """Estimate DR without clusters: a prompt's near neighbours are its paraphrases.

    Parameters
    ----------
    clusters : ClusterBootstrap
        The groups, which are resampled.
    groups : numpy.ndarray of int, shape (n,)
        Group of each prompt.
    rejected : numpy.ndarray of bool, shape (n,)
    near, near_rejected : numpy.ndarray of int, shape (n,)
        How many neighbours each prompt has, itself left out, and how many of them are
        rejected.

    Returns
    -------
    Estimate
        NaN if all prompts are decided alike, if none has a neighbour, or if all are
        neighbours of all.
    """
    opposite = np.where(rejected, near - near_rejected, near_rejected).astype(float)
    share = np.divide(opposite, near, out=np.zeros(len(opposite)), where=near > 0)
    # In the order of `disagreement.cluster_sums`
    columns = [share, near > 0, np.ones(len(share)), rejected, opposite, near + 1.0]
    sums = [clusters.sums(groups, column) for column in columns]
    return bootstrap_log_ratio(clusters, np.stack(sums, axis=-1))
