"""Find near neighbours of prompts that have no clusters, and groups to resample.

Neighbours stand in the place of clusters (`docs/method.md`, Disagreement).
"""

from typing import NamedTuple

import numpy as np

from paraguard_utils.core.confusion import THETA
from paraguard_utils.core.disagreement import bootstrap_log_ratio
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate
from paraguard_utils.core.vectors import BLOCK_ROWS, normalize_rows


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
    """

    near: np.ndarray
    near_rejected: np.ndarray
    groups: np.ndarray


def find_neighbours(
    vectors: np.ndarray,
    rejected: np.ndarray,
    theta: float = THETA,
    below: float = np.inf,
) -> Neighbourhoods:
    """Find the neighbours of every prompt.

    Sentence vectors (n, d) of neighbours have a cosine of theta or more, and less than
    `below`.
    """
    units = normalize_rows(vectors).astype(np.float32)
    near, near_rejected, groups = np.zeros((3, len(units)), int)
    leads, count = np.zeros(len(units), bool), 0
    for start in range(0, len(units), BLOCK_ROWS):
        cosines = units[start : start + BLOCK_ROWS] @ units.T
        close = (cosines >= theta) & (cosines < below)
        np.fill_diagonal(close[:, start:], False)
        for row, found in enumerate(map(np.flatnonzero, close), start):
            near[row], near_rejected[row] = len(found), rejected[found].sum()
            leaders = found[leads[found]]
            groups[row] = groups[leaders].min() if len(leaders) else count
            leads[row] = not len(leaders)
            count += leads[row]
    return Neighbourhoods(near, near_rejected, groups)


def estimate_neighbour_disagreement(
    clusters: ClusterBootstrap, found: Neighbourhoods, rejected: np.ndarray
) -> Estimate:
    """Estimate DR without clusters: a prompt's near neighbours are its paraphrases.

    Parameters
    ----------
    clusters : ClusterBootstrap
        The groups of `found`, which are resampled.
    found : Neighbourhoods
    rejected : numpy.ndarray of bool, shape (n,)

    Returns
    -------
    Estimate
        NaN if all prompts are decided alike, if none has a neighbour, or if all are
        neighbours of all.
    """
    near, near_rejected = found.near, found.near_rejected
    opposite = np.where(rejected, near - near_rejected, near_rejected).astype(float)
    share = np.divide(opposite, near, out=np.zeros(len(opposite)), where=near > 0)
    # In the order of `disagreement.cluster_sums`
    columns = [share, near > 0, np.ones(len(share)), rejected, opposite, near + 1.0]
    sums = clusters.sums(found.groups, *columns)
    return bootstrap_log_ratio(clusters, np.stack(sums, axis=-1))
