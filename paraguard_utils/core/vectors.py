"""Sentence vectors: unit length, cosines, nearest neighbours.

The search is exact (`docs/method.md`, Neighbours, signals, score).
"""

import numpy as np
import pandas as pd

BLOCK_ROWS = 1024  # rows compared at the same time


def normalize_rows(vectors: np.ndarray) -> np.ndarray:
    """Scale rows to length 1, in float64.

    Examples
    --------
    >>> normalize_rows(np.array([[3.0, 4.0]]))
    array([[0.6, 0.8]])
    """
    vectors = np.asarray(vectors, np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def cosine_similarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the cosines of all rows of a, (n, d), with all rows of b, (m, d).

    The result has shape (n, m), in float64 and in [-1, 1].

    Examples
    --------
    >>> cosine_similarity(np.array([[1.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 1.0]]))
    array([[0.6, 0. ]])
    """
    return np.clip(normalize_rows(a) @ normalize_rows(b).T, -1.0, 1.0)


def paired_cosine_similarity(
    vectors: np.ndarray, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Compute the cosines of pairs of rows.

    Parameters
    ----------
    vectors : numpy.ndarray, shape (n, d)
    first, second : numpy.ndarray of int, shape (m,)
        Row numbers.

    Returns
    -------
    numpy.ndarray of float64, shape (m,), in [-1, 1]

    Examples
    --------
    >>> vectors = np.array([[1.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    >>> paired_cosine_similarity(vectors, np.array([0, 0]), np.array([1, 2]))
    array([0.6, 0. ])
    """
    units = normalize_rows(vectors)
    cosines = np.einsum("ij,ij->i", units[first], units[second])
    return np.clip(cosines, -1.0, 1.0)


def find_nearest(
    vectors: np.ndarray, ids: np.ndarray, centres: np.ndarray, pool: np.ndarray, k: int
) -> pd.DataFrame:
    """Find each centre's k nearest members of a pool, itself left out.

    Every pair is compared.

    Parameters
    ----------
    vectors : numpy.ndarray, shape (n, d)
    ids : numpy.ndarray of str, shape (n,)
        Break ties.
    centres, pool : numpy.ndarray of int
        Row numbers.
    k : int

    Returns
    -------
    DataFrame
        Columns centre, neighbour (row numbers), similarity (cosine, float64), rank
        (from 1). A centre has fewer than k rows if the pool is small.

    Examples
    --------
    >>> vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> centres, pool = np.array([0]), np.array([0, 1, 2])
    >>> find_nearest(vectors, np.array(["a", "b", "c"]), centres, pool, k=2)
       centre  neighbour  similarity  rank
    0       0          1         0.6     1
    1       0          2         0.0     2
    """
    centres = np.sort(np.asarray(centres, int))
    pool = np.asarray(pool, int)
    pool = pool[np.argsort(ids[pool])]  # of equal cosines, the first id comes first
    units = normalize_rows(vectors)
    n_each = min(k, len(pool))
    blocks = []
    for start in range(0, max(len(centres), 1), BLOCK_ROWS):
        block = centres[start : start + BLOCK_ROWS]
        cosines = np.clip(units[block] @ units[pool].T, -1.0, 1.0)
        cosines[block[:, None] == pool] = -2.0  # itself
        # Of equal cosines the first in the pool: whole numbers, all different
        order = np.rint(-1e12 * cosines).astype(int) * len(pool) + np.arange(len(pool))
        nearest = np.sort(order, axis=1)[:, :k] % len(pool)
        columns = {
            "centre": block.repeat(n_each),
            "neighbour": pool[nearest].ravel(),
            "similarity": np.take_along_axis(cosines, nearest, axis=1).ravel(),
            "rank": np.tile(np.arange(1, n_each + 1), len(nearest)),
        }
        blocks.append(pd.DataFrame(columns))
    pairs = pd.concat(blocks, ignore_index=True)
    return pairs[pairs["centre"] != pairs["neighbour"]].reset_index(drop=True)
