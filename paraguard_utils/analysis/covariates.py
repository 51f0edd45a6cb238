"""What CI of a rejection restates: covariates, single signals, variance explained (`docs/method.md`, What CI adds).

CI is set beside what is known without token signals, and beside each signal alone.
"""

from collections.abc import Mapping, Sequence
from math import isqrt

import numpy as np
import pandas as pd

from paraguard_utils.analysis import confusion, near_identical, signals
from paraguard_utils.analysis.confusion import CI
from paraguard_utils.core.confusion import K
from paraguard_utils.core.estimates import MIN_REFUSALS, ClusterBootstrap, to_columns
from paraguard_utils.core.signals import READINGS
from paraguard_utils.schemas import Corpus, Labels, Pairs, Scores, Table, Traces

COVARIATES = {
    "similarity": "similarity to neighbours",
    "jaccard": "word overlap with neighbours",
    "risk": "surface risk",
    "length": "prompt length",
    "cluster_frr": "refusals in its cluster",
    "flip_entropy": "flip entropy of its cluster",
}
"""What is known of a rejection without token signals."""

SIGNALS = {"drift": "Drift", "prob_shift": "ProbShift", "ppl": "PPL contrast"}
"""The three parts of the score: CI is the weighted sum of their means."""

LIMIT = 0.7
"""The lower edge of the paper's break condition on the correlation with similarity."""


def beside_ci(corpus: Corpus, traces: Traces, labels: Labels, pairs: Pairs, scores: Scores, k: int = K) -> pd.DataFrame:
    """Put beside CI of each rejection what it may restate.

    Parameters
    ----------
    corpus, traces, labels : DataFrame
        Rows in the same order.
    pairs, scores : DataFrame
        The target's.
    k : int
        Neighbours used: those with rank <= k.

    Returns
    -------
    DataFrame, one row per scored rejection
        prompt_id, cluster_id, ci and ci_clipped in [0, 1]; similarity (mean cosine to its neighbours), jaccard (mean
        content-word overlap with them), risk, length (tokens of its own words), cluster_frr (share of the *other*
        scored prompts of its cluster that are refused: every row is a refusal, and counting itself would give small
        clusters a high rate by construction; NaN where there is no other), flip_entropy (of its cluster, itself
        included, in bits); drift, prob_shift, ppl_relative, ppl_clipped, means over its neighbours.
    """
    near = pairs[(pairs["centre_label"] == "reject") & signals.ranked(pairs, k)]
    near = near.assign(jaccard=near_identical.overlaps(corpus, near["centre_id"], near["neighbour_id"]))
    means = near.groupby("centre_id")[["jaccard", "drift", "prob_shift", *READINGS.values()]].mean()
    own = pd.DataFrame(
        {"risk": corpus["risk"].to_numpy(), "length": (traces["user_end"] - traces["user_start"]).to_numpy()}
    )
    own.index = corpus["prompt_id"]
    decided = confusion.flips(corpus, labels).set_index("cluster_id")
    others = decided["accepted"] + decided["rejected"] - 1
    about = pd.DataFrame({"cluster_frr": (decided["rejected"] - 1) / others, "flip_entropy": decided["entropy"]})
    rows = confusion.rejections(scores).rename(columns={"mean_similarity": "similarity"})
    rows = rows[["prompt_id", "cluster_id", *CI.values(), "similarity"]]
    rows = rows.join(means, on="prompt_id").join(own, on="prompt_id").join(about, on="cluster_id")
    return rows.reset_index(drop=True)


def correlations(frames: Mapping[str, pd.DataFrame], clusters: ClusterBootstrap) -> Table:
    """Correlate CI(r) with each covariate and each signal over a target's rejections.

    Parameters
    ----------
    frames : dict of str to DataFrame
        From `beside_ci`, by target.
    clusters : ClusterBootstrap

    Returns
    -------
    DataFrame
        target, reading, covariate, n (rejections in which it is defined), few (n < 30), Pearson's r and Spearman's rho,
        both with cluster-bootstrap intervals. rho is Pearson's r of the ranks, and its interval resamples the ranks of
        the full sample: they are not ranked anew in each resample (ours). The row `similarity` is Fig. 3's.
    """
    rows = []
    for target, frame in frames.items():
        for reading, ci in CI.items():
            for name in (*COVARIATES, *SIGNALS):
                column = READINGS[reading] if name == "ppl" else name
                known = frame[frame[column].notna()]
                both = known[[column, ci]]
                found = {
                    "r": clusters.correlation(known["cluster_id"], both[column], both[ci]),
                    "rho": clusters.correlation(known["cluster_id"], *(both.rank()[part] for part in both)),
                }
                row = {"target": target, "reading": reading, "covariate": name, "n": len(known)}
                rows.append(row | {"few": len(known) < MIN_REFUSALS, **to_columns(found)})
    # Processors differ in the last digits, and a figure shows it: nine decimals are the same on all of them.
    return pd.DataFrame(rows).round(9)


def explained(frames: Mapping[str, pd.DataFrame], clusters: ClusterBootstrap) -> Table:
    """Say how much of the variance of CI(r) all covariates explain together, the signals left out.

    Least squares with a constant. The intervals resample clusters and fit anew in each; a fit to a resample is closer
    than one to new prompts, so their upper ends are generous, also for the adjusted share, which counts prompts as
    independent.

    Parameters
    ----------
    frames : dict of str to DataFrame
        From `beside_ci`, by target.
    clusters : ClusterBootstrap

    Returns
    -------
    DataFrame
        target, reading, n (rejections in which every covariate is defined), few, r2 in [0, 1] and r2_adjusted, at most
        1; NaN with no more rejections than coefficients, or where CI has no spread.
    """
    rows = []
    for target, frame in frames.items():
        known = frame.dropna(subset=list(COVARIATES))
        for reading, ci in CI.items():
            values = known[[*COVARIATES, ci]].to_numpy(float)
            if len(values) <= len(COVARIATES) + 1 or np.ptp(values[:, -1]) == 0:
                found = dict.fromkeys(("r2", "r2_adjusted"), clusters.undefined())
            else:
                spread = values.std(axis=0)
                values = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1)
                products = (values[:, :, None] * values[:, None, :]).reshape(len(values), -1)
                moments = [
                    clusters.sums(known["cluster_id"], part) for part in (np.ones(len(values)), *values.T, *products.T)
                ]
                found = {"r2": clusters.estimate(_r2, *moments)}
                found["r2_adjusted"] = clusters.estimate(_r2_adjusted, *moments)
            row = {"target": target, "reading": reading, "n": len(known), "few": len(known) < MIN_REFUSALS}
            rows.append(row | to_columns(found))
    return pd.DataFrame(rows)


def _fit(n: np.ndarray, moments: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Share of variance explained and coefficients fitted, from sums of the columns and of their products."""
    width = isqrt(len(moments))  # width + width ** 2 sums; the last column is what is explained
    n = n[:, None, None]
    means = np.stack(moments[:width], axis=-1)[:, None] / n
    second = np.stack(moments[width:], axis=-1).reshape(-1, width, width) / n - means.swapaxes(1, 2) * means
    second = np.nan_to_num(second)  # a resample without rejections: 0 / 0 below
    # Covariates may be collinear in a resample: directions without spread are left out.
    spread, axes = np.linalg.eigh(second[:, :-1, :-1])
    used = spread > 1e-9
    along = np.einsum("rij,ri->rj", axes, second[:, :-1, -1])
    caught = np.where(used, along**2 / np.where(used, spread, 1), 0).sum(axis=1)
    return caught / second[:, -1, -1], used.sum(axis=1)


def _r2(n: np.ndarray, *moments: np.ndarray) -> np.ndarray:
    return _fit(n, moments)[0]


def _r2_adjusted(n: np.ndarray, *moments: np.ndarray) -> np.ndarray:
    share, coefficients = _fit(n, moments)
    free = n - 1 - coefficients
    return np.where(free > 0, 1 - (1 - share) * (n - 1) / free, np.nan)


def breaks(rows: pd.DataFrame, limit: float = LIMIT) -> tuple[pd.Series, pd.Series]:
    """Return where |r| is above the limit for sure, and where it only may be.

    Parameters
    ----------
    rows : DataFrame
        Columns r_low, r_high.
    limit : float

    Returns
    -------
    met, unclear : Series of bool
        The whole interval lies beyond the limit; or it holds the limit.
    """
    low, high = rows["r_low"], rows["r_high"]
    met = (low > limit) | (high < -limit)
    return met, ~met & ((low <= -limit) | (high >= limit))
