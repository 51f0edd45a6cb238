"""Sentence vectors: unit length, cosines, nearest neighbours (`docs/method.md`,
Neighbours, signals, score).
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

BLOCK_ROWS = 1024  # rows compared at the same time


def normalize_rows(vectors: np.ndarray) -> np.ndarray:
    """Scale rows to length 1, in float64."""
    vectors = np.asarray(vectors, np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def cosine_similarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the cosines of all rows of a, (n, d), with all rows of b, (m, d): shape
    (n, m), float64, in [-1, 1].
    """
    return np.clip(normalize_rows(a) @ normalize_rows(b).T, -1.0, 1.0)


def paired_cosine_similarity(
    vectors: np.ndarray, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Compute the cosines of pairs of rows, given by row numbers of shape (m,): shape
    (m,), float64, in [-1, 1].
    """
    units = normalize_rows(vectors)
    found = [
        np.einsum("ij,ij->i", units[first[part]], units[second[part]])
        for part in iterate_blocks(len(first))
    ]
    return np.clip(np.concatenate(found), -1.0, 1.0)


def iterate_blocks(n: int) -> Iterator[slice]:
    """Yield slices of at most `BLOCK_ROWS` rows that cover n rows; at least one slice."""
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
    """
    centres = np.sort(np.asarray(centres, int))
    depth = min(
        len(pool), k + 1 + 32
    )  # 32 more are ordered, since rounding and ids decide between near-ties
    if not depth or not len(centres):
        numbers = np.empty(0, int)
        return pd.DataFrame(
            {
                "centre": numbers,
                "neighbour": numbers,
                "similarity": np.empty(0),
                "rank": numbers,
            }
        )
    units, blocks = normalize_rows(vectors), []
    for part in iterate_blocks(len(centres)):
        dense = units[centres[part]] @ units[pool].T
        nearest = np.argpartition(dense, -depth, axis=1)[:, -depth:]
        blocks.append(
            (
                np.asarray(pool)[nearest],
                np.take_along_axis(dense, nearest, axis=1).clip(-1.0, 1.0),
            )
        )
    found, cosines = (np.concatenate(one) for one in zip(*blocks, strict=True))
    cosines[found == centres[:, None]] = -np.inf
    tie = np.unique(ids, return_inverse=True)[1][found]
    order = np.lexsort((tie, -cosines.round(12)))[:, :k]
    found, cosines = (
        np.take_along_axis(table, order, axis=1) for table in (found, cosines)
    )
    other = found != centres[:, None]
    row, column = np.nonzero(other)
    return pd.DataFrame(
        {
            "centre": centres[row],
            "neighbour": found[other],
            "similarity": cosines[other],
            "rank": column + 1,
        }
    )
