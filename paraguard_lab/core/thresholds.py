"""A threshold on a guard's score that keeps a promise about harmless requests.

The method defines it (`docs/method.md`, Guards).
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from paraguard_utils.errors import DataError

MAX_REQUESTS = 0.05  # share of harmless requests that may be blocked
CONFIDENCE = 0.9  # probability with which the promise is kept


class PromisedThreshold(NamedTuple):
    """A threshold: scores above it are blocked.

    Attributes
    ----------
    threshold : float
    blocked, clusters : int
        In so many of the harmless clusters on which it was chosen a prompt is blocked.
    upper : float
        Bound on the share of all such clusters in which a prompt is blocked, with the
        confidence asked for.
    """

    threshold: float
    blocked: int
    clusters: int
    upper: float


def choose_promised_threshold(
    scores: ArrayLike,
    cluster: ArrayLike,
    *,
    requests: float = MAX_REQUESTS,
    confidence: float = CONFIDENCE,
) -> PromisedThreshold:
    """Choose the lowest threshold that blocks at most a share of harmless requests.

    A request counts as blocked if any of its wordings is, so the largest score of each
    cluster decides. A threshold that is chosen so on exchangeable clusters blocks more
    than `requests` of such clusters with a probability of at most 1 - `confidence`:
    risk control with the exact binomial bound (Bates et al., Distribution-Free,
    Risk-Controlling Prediction Sets, Journal of the ACM 68, 2021, section 3). The
    promise is for clusters of as many wordings.

    Parameters
    ----------
    scores : array-like of float, shape (n,)
        Scores of harmless prompts, finite; higher is more harmful.
    cluster : array-like, shape (n,)
        Prompts of one cluster ask the same.
    requests, confidence : float
        Both between 0 and 1.

    Returns
    -------
    PromisedThreshold

    Raises
    ------
    DataError
        A score is not finite, or there are too few clusters for the promise: the
        message says how many it takes.

    Examples
    --------
    >>> scores, cluster = [0.1, 0.2, 0.9, 0.3], ["a", "a", "b", "c"]
    >>> choose_promised_threshold(scores, cluster, requests=0.85).threshold
    0.3
    """
    from scipy.stats import beta, binom  # a second to import

    scores = np.asarray(scores, float)
    if not (0 < requests < 1 and 0 < confidence < 1):
        raise DataError(
            f"requests and confidence lie between 0 and 1, not {requests} and"
            f" {confidence}"
        )
    missing = np.count_nonzero(~np.isfinite(scores))
    if missing:
        raise DataError(
            f"{missing} of {len(scores)} scores are missing; score these prompts or"
            " leave them out"
        )
    largest = pd.Series(scores).groupby(np.asarray(cluster)).max()
    descending = np.sort(largest.to_numpy())[::-1]
    n = len(descending)
    # So few of n clusters may be blocked that this would be rare if the share were
    # `requests`.
    is_rare = binom.cdf(np.arange(n), n, requests) <= 1 - confidence
    if not is_rare.any():
        needed = int(np.ceil(np.log(1 - confidence) / np.log1p(-requests)))
        raise DataError(
            f"{n} harmless clusters are too few to promise that at most {requests:.3g}"
            f" of requests are blocked, with confidence {confidence:.3g}: {needed} are"
            " needed"
        )
    threshold = float(descending[is_rare.sum() - 1])
    blocked = int((descending > threshold).sum())
    upper = float(beta.ppf(confidence, blocked + 1, n - blocked))
    return PromisedThreshold(threshold, blocked, n, upper)
