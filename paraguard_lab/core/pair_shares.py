"""How often pairs of phrasings are decided differently, from shares refused (ours).

A prompt that was answered several times has a share of refusals instead of a decision
(`docs/method.md`, What a decision hangs on). Pairs are of one cluster; what they are
compared with is matched by style, as in `paraguard_utils.core.wording`.
"""

import numpy as np
from scipy import sparse

from paraguard_lab.core.inference import jackknife_t
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, Estimate
from paraguard_utils.core.wording import PairRows, Phrasings

N_PERMUTATIONS = 999

_ROUNDING = 1e-12


class PairShares:
    """Sums over clusters from which the parts of some pairs' decisions follow.

    Parameters
    ----------
    clusters : ClusterBootstrap
    phrasings : Phrasings
        `refused` may be any share in [0, 1]; none is NaN.
    pairs : (numpy.ndarray, numpy.ndarray)
        Rows of the phrasings, of one cluster each.
    same : numpy.ndarray, shape (n,)
        The probability that two answers to a prompt are decided differently.
    """

    def __init__(
        self,
        clusters: ClusterBootstrap,
        phrasings: Phrasings,
        pairs: PairRows,
        same: np.ndarray,
    ) -> None:
        first, second = pairs
        q = phrasings.refused
        names, style = np.unique(phrasings.style.astype(str), return_inverse=True)
        code = clusters.codes.loc[phrasings.cluster].to_numpy()
        size = len(clusters.codes)
        self.clusters = clusters
        self.n_styles = len(names)
        shape = (size, self.n_styles)
        cells = code * self.n_styles + style
        n = np.bincount(cells, minlength=size * self.n_styles).reshape(shape)
        r = np.bincount(cells, q, minlength=size * self.n_styles).reshape(shape)
        combination = self.n_styles * style[first] + style[second]
        width = self.n_styles**2
        n_pairs = np.bincount(
            code[first] * width + combination, minlength=size * width
        ).reshape(size, width)
        differ = q[first] * (1 - q[second]) + q[second] * (1 - q[first])
        chance = (same[first] + same[second]) / 2
        self.columns = [
            np.bincount(code[first], differ, minlength=size),
            np.bincount(code[first], chance, minlength=size),
            n_pairs.astype(float),
            n.astype(float),
            r,
            _multiply_styles(n, n),
            _opposite(n, r),
        ]

    def shares(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parts for counts of clusters, shape (draws, n_clusters).

        They are pair (DR of these pairs), chance, wording and meaning.
        """
        return self._split([counts @ column for column in self.columns])

    def _split(self, sums: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the parts for totals of `columns`, shapes (draws,) and (draws, k)."""
        differ, chance, n_pairs, n, r, own_pairs, own_opposite = sums
        unrelated = _multiply_styles(n, n) - own_pairs
        opposite = _opposite(n, r) - own_opposite
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(n_pairs > 0, n_pairs * opposite / unrelated, 0.0)
            expected = each.sum(axis=1)
            pair = differ / expected
            same = chance / expected
        return {
            "pair": pair,
            "chance": same,
            "wording": pair - same,
            "meaning": 1 - pair,
        }

    def estimate(self) -> dict[str, Estimate]:
        """Estimate the parts of `shares`, with jackknife intervals."""
        values = self.shares(np.ones((1, len(self.clusters.codes))))
        left_out = self._split([column.sum(axis=0) - column for column in self.columns])
        parts = [self.shares(counts) for counts in self.clusters.split_counts()]
        estimates = {}
        for name, value in values.items():
            draws = np.concatenate([part[name] for part in parts])
            estimate = Estimate.percentile(float(value[0]), draws)
            estimates[name] = jackknife_t(estimate, left_out[name])
        return estimates


def _multiply_styles(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return products of every style's a with every style's b; shape (rows, m * m)."""
    return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)


def _opposite(n: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Count pairs of two styles that are decided differently; shape (rows, m * m)."""
    return _multiply_styles(r, n - r) + _multiply_styles(n - r, r)


def deal_out(
    refused: np.ndarray, cluster: np.ndarray, draws: int, seed: int = SEED
) -> np.ndarray:
    """Deal out decisions anew inside each cluster, shape (draws, n).

    Examples
    --------
    >>> dealt = deal_out(np.array([1, 0, 1, 1]), np.array([0, 0, 1, 1]), draws=9)
    >>> dealt[:, :2].sum(axis=1).tolist(), dealt[:, 2:].all()
    ([1, 1, 1, 1, 1, 1, 1, 1, 1], np.True_)
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(cluster, kind="stable")
    number = np.unique(cluster[order], return_inverse=True)[1]
    mixed = np.argsort(number + rng.random((draws, len(order))), axis=1)
    dealt = np.empty((draws, len(order)), refused.dtype)
    dealt[:, order] = refused[order][mixed]
    return dealt


def gap_p(
    clusters: ClusterBootstrap,
    phrasings: Phrasings,
    near: PairRows,
    free: PairRows,
    draws: int = N_PERMUTATIONS,
    seed: int = SEED,
) -> tuple[float, float]:
    """Test whether free rewordings are decided differently more often than near-copies.

    Decisions are dealt out anew inside each cluster.

    Parameters
    ----------
    clusters : ClusterBootstrap
    phrasings : Phrasings
        Decisions of 0 or 1; none is NaN.
    near, free : (numpy.ndarray, numpy.ndarray)
        Rows of the phrasings.
    draws, seed : int
        Number and seed of the permutations.

    Returns
    -------
    gap, p : float
        DR of `free` minus DR of `near`, and the one-sided p. Both are NaN if no pair of
        either is decided differently in the whole corpus.
    """
    code = clusters.codes.loc[phrasings.cluster].to_numpy()
    dealt = deal_out(phrasings.refused, code, draws, seed)
    decisions = np.vstack([phrasings.refused, dealt])
    gaps = dealt_ratios(phrasings, code, free, decisions) - dealt_ratios(
        phrasings, code, near, decisions
    )
    observed = float(gaps[0])
    if not np.isfinite(observed):
        return np.nan, np.nan
    n_beyond = np.count_nonzero(gaps[1:] >= observed - _ROUNDING)
    return observed, (1 + n_beyond) / (1 + draws)


def dealt_ratios(
    phrasings: Phrasings, code: np.ndarray, pairs: PairRows, decisions: np.ndarray
) -> np.ndarray:
    """Return DR of some pairs under several sets of decisions.

    Parameters
    ----------
    phrasings : Phrasings
        Their decisions are not used.
    code : numpy.ndarray of int, shape (n,)
        Number of each phrasing's cluster.
    pairs : (numpy.ndarray, numpy.ndarray)
    decisions : numpy.ndarray, shape (draws, n)

    Returns
    -------
    numpy.ndarray, shape (draws,)
        NaN where nothing could differ.
    """
    first, second = pairs
    names, style = np.unique(phrasings.style.astype(str), return_inverse=True)
    n_styles = len(names)
    shape = (code.max() + 1, n_styles)
    cells = code * n_styles + style
    n = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
    rows = np.arange(len(cells))
    in_cell = sparse.csr_array((np.ones(len(cells)), (cells, rows)))
    refused = (in_cell @ decisions.T).T.reshape(len(decisions), *shape)
    answered = n - refused
    # Of every two styles, pairs of one cluster that are decided differently
    own = refused.transpose(0, 2, 1) @ answered
    r = refused.sum(axis=1)
    a = answered.sum(axis=1)
    every = r[:, :, None] * a[:, None, :]
    of_two_clusters = every - own
    opposite = of_two_clusters + of_two_clusters.transpose(0, 2, 1)
    total = n.sum(axis=0)
    unrelated = np.outer(total, total) - n.T @ n
    n_pairs = np.zeros((n_styles, n_styles))
    np.add.at(n_pairs, (style[first], style[second]), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(n_pairs > 0, n_pairs * opposite / unrelated, 0.0)
        differ = decisions[:, first] != decisions[:, second]
        return differ.sum(axis=1) / each.sum(axis=(1, 2))
