"""Sentence vectors: unit length, cosines, nearest neighbours.

The search is exact (`docs/method.md`, Neighbours, signals, score).
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

BLOCK_ROWS = 1024  # rows compared at the same time

_SPARE_NEIGHBOURS = 32
"""More than k are put in order, since rounding and ids decide between near-ties."""


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
    cosines = []
    for block in iterate_blocks(len(first)):
        a = units[first[block]]
        b = units[second[block]]
        cosines.append(np.einsum("ij,ij->i", a, b))
    return np.clip(np.concatenate(cosines), -1.0, 1.0)


def iterate_blocks(n: int) -> Iterator[slice]:
    """Yield slices of at most `BLOCK_ROWS` rows that cover n rows; one at least."""
    for start in range(0, max(n, 1), BLOCK_ROWS):
        yield slice(start, start + BLOCK_ROWS)


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
    # One more than k, since a centre in the pool is its own nearest
    depth = min(len(pool), k + 1 + _SPARE_NEIGHBOURS)
    neighbours, cosines = _find_deepest(vectors, centres, pool, depth)
    is_self = neighbours == centres[:, None]
    cosines[is_self] = -np.inf
    # The nearest first; of those with the same cosine but for rounding, by id
    id_order = np.unique(ids, return_inverse=True)[1]
    order = np.lexsort((id_order[neighbours], -cosines.round(12)))[:, :k]
    neighbours = np.take_along_axis(neighbours, order, axis=1)
    cosines = np.take_along_axis(cosines, order, axis=1)
    kept = neighbours != centres[:, None]
    row, column = np.nonzero(kept)
    return pd.DataFrame(
        {
            "centre": centres[row],
            "neighbour": neighbours[kept],
            "similarity": cosines[kept],
            "rank": column + 1,
        }
    )


def _find_deepest(
    vectors: np.ndarray, centres: np.ndarray, pool: np.ndarray, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest members of the pool, in no order, and their cosines.

    Both have shape (centres, depth).
    """
    units = normalize_rows(vectors)
    neighbours = np.empty((len(centres), depth), int)
    cosines = np.empty((len(centres), depth))
    if not depth:
        return neighbours, cosines
    for block in iterate_blocks(len(centres)):
        every = units[centres[block]] @ units[pool].T
        nearest = np.argpartition(every, -depth, axis=1)[:, -depth:]
        neighbours[block] = pool[nearest]
        cosines[block] = np.take_along_axis(every, nearest, axis=1).clip(-1.0, 1.0)
    return neighbours, cosines
