"""A cut on a guard's score that keeps a promise about harmless meanings
(`docs/method.md`, Guards).
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from paraguard_utils.errors import DataError

MAX_REQUESTS, CONFIDENCE = (
    0.05,
    0.9,
)  # share of harmless meanings that may be blocked, and how sure that is


class PromisedCut(NamedTuple):
    """A cut: scores `above` it are blocked, in `blocked` of the harmless `clusters` on
    which it was chosen.

    `upper` bounds the share of all such clusters of which a request is blocked, with
    the confidence asked for.
    """

    above: float
    blocked: int
    clusters: int
    upper: float


def choose_promised_cut(
    scores: ArrayLike,
    cluster: ArrayLike,
    *,
    requests: float = MAX_REQUESTS,
    confidence: float = CONFIDENCE,
) -> PromisedCut:
    """Choose the lowest cut that blocks at most a share of harmless meanings, whichever
    way they are worded.

    A cluster counts as blocked where any of its requests is, so its largest score
    decides. A cut that is chosen so on exchangeable clusters blocks more than
    `meanings` of such clusters with a probability of at most 1 - `confidence`: risk
    control with the exact binomial bound (Bates et al., Distribution-Free,
    Risk-Controlling Prediction Sets, Journal of the ACM 68, 2021, section 3). The
    promise is for clusters of as many wordings.

    Parameters
    ----------
    scores : array-like of float, shape (n,)
        Scores of harmless requests, finite; higher is more harmful.
    cluster : array-like, shape (n,)
        Requests of one cluster ask the same.
    meanings, confidence : float
        Both between 0 and 1.

    Returns
    -------
    PromisedCut

    Raises
    ------
    DataError
        A score is not finite, or there are too few clusters for the promise: the
        message says how many it takes.

    Examples
    --------
    >>> choose_promised_cut([0.1, 0.2, 0.9, 0.3], ["a", "a", "b", "c"], meanings=0.85).above
    0.3
    """
    from scipy.stats import beta, binom  # a second to import

    scores = np.asarray(scores, float)
    if not (0 < requests < 1 and 0 < confidence < 1):
        raise DataError(
            f"requests and confidence lie between 0 and 1, not {requests} and"
            f" {confidence}"
        )
    if wrong := np.count_nonzero(~np.isfinite(scores)):
        raise DataError(
            f"{wrong} of {len(scores)} scores are missing; score these requests or"
            " leave them out"
        )
    largest = np.sort(pd.Series(scores).groupby(np.asarray(cluster)).max().to_numpy())[
        ::-1
    ]
    n = len(largest)
    # So few of n clusters may lie above that this would be rare if the share were
    # `meanings`.
    rare = binom.cdf(np.arange(n), n, requests) <= 1 - confidence
    if not rare.any():
        needed = int(np.ceil(np.log(1 - confidence) / np.log1p(-requests)))
        raise DataError(
            f"{n} harmless clusters are too few to promise that at most {requests:.3g}"
            f" of requests are blocked, with confidence {confidence:.3g}: {needed} are"
            " needed"
        )
    above = float(largest[rare.sum() - 1])
    blocked = int((largest > above).sum())
    return PromisedCut(
        above, blocked, n, float(beta.ppf(confidence, blocked + 1, n - blocked))
    )
