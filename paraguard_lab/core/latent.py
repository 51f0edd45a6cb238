"""How much of a hidden tendency to refuse is shared by paraphrases (ours).

DR is about yes/no decisions; this is the correlation behind them, in a probit model
(`docs/method.md`, Disagreement).
"""

import numpy as np
import pandas as pd
from scipy.special import log_ndtr

_MAX_CLUSTER_SIZE = 100
"""The quadrature resolves the likelihood of clusters up to this many scored prompts;
beyond, nothing is estimated.
"""

_QUADRATURE_NODES = 64  # over a cluster's intercept

# Of intercepts with a standard deviation of 20, the largest that is searched
_MAX_CORRELATION = 20**2 / (1 + 20**2)


def latent_correlation(profiles: pd.DataFrame) -> tuple[float, float, float]:
    """Estimate the latent intra-cluster correlation by maximum likelihood.

    The model is a probit model with normal intercepts of clusters.

    Parameters
    ----------
    profiles : DataFrame
        From `disagreement.cluster_profiles`.

    Returns
    -------
    value, low, high : float
        In [0, 1], with its 95 % profile interval. NaN if all prompts are decided alike,
        or if a cluster has more than 100 scored prompts.

    Examples
    --------
    >>> profiles = pd.DataFrame({"n": 2, "rejected": [0, 1, 2], "times": [4, 2, 4]})
    >>> [round(end, 2) for end in latent_correlation(profiles)]
    [0.81, 0.0, 1.0]
    """
    from scipy import optimize, stats  # a second to import

    likelihood = _Likelihood(profiles)
    if not likelihood.is_defined:
        return np.nan, np.nan, np.nan
    start = stats.norm.ppf(likelihood.refusal_rate)

    def profile(correlation: float) -> float:
        """Return minus the log likelihood at the best location."""
        spread = np.sqrt(correlation / (1 - correlation))
        best = optimize.minimize_scalar(
            likelihood.loss,
            (start - 0.1, start + 0.1),
            args=(spread,),
            options={"xtol": 1e-6},
        )
        return float(best.fun)

    best = optimize.minimize_scalar(
        profile,
        bounds=(0.0, _MAX_CORRELATION),
        method="bounded",
        options={"xatol": 1e-5},
    )
    value = float(best.x)
    least = float(best.fun)
    if profile(0.0) <= least:
        value = 0.0
        least = profile(0.0)
    limit = least + stats.chi2.ppf(0.95, 1) / 2

    def beyond(correlation: float) -> float:
        return profile(correlation) - limit

    low = 0.0
    if beyond(0.0) > 0:
        low = float(optimize.brentq(beyond, 0.0, value, xtol=1e-5))
    high = 1.0
    if beyond(_MAX_CORRELATION) > 0:
        high = float(optimize.brentq(beyond, value, _MAX_CORRELATION, xtol=1e-5))
    return value, low, high


class _Likelihood:
    """The likelihood of decisions, given the spread of the clusters' intercepts."""

    def __init__(self, profiles: pd.DataFrame) -> None:
        self.n = profiles["n"].to_numpy(float)
        self.rejected = profiles["rejected"].to_numpy(float)
        self.times = profiles["times"].to_numpy(float)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)
        self.nodes = nodes
        self.log_weights = np.log(weights / weights.sum())

    @property
    def refusal_rate(self) -> float:
        return (self.rejected * self.times).sum() / (self.n * self.times).sum()

    @property
    def is_defined(self) -> bool:
        refused = (self.rejected * self.times).sum()
        total = (self.n * self.times).sum()
        return bool(0 < refused < total and self.n.max() <= _MAX_CLUSTER_SIZE)

    def loss(self, location: float, spread: float) -> float:
        """Return minus the log likelihood.

        `location` is the probit of the overall rate, `spread` the standard deviation of
        the intercepts.
        """
        tendency = location * np.sqrt(1 + spread**2) + spread * self.nodes
        rejected = self.rejected[:, None]
        accepted = (self.n - self.rejected)[:, None]
        given_node = rejected * log_ndtr(tendency) + accepted * log_ndtr(-tendency)
        joint = given_node + self.log_weights
        largest = joint.max(axis=1)  # subtracted, so that not all are 0
        rest = np.log(np.exp(joint - largest[:, None]).sum(axis=1))
        return -float(self.times @ (largest + rest))
