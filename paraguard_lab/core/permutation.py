"""Test whether DR is below 1, by dealing out the rejections anew (ours).

The test is defined in the method (`docs/method.md`, Disagreement).
"""

import numpy as np
import pandas as pd

from paraguard_lab.core.disagreement import disagreement_parts
from paraguard_utils.core.estimates import SEED


def permutation_test(
    profiles: pd.DataFrame, permutations: int = 999
) -> tuple[float, float]:
    """Test whether DR is below 1, by dealing the rejections out over all prompts anew.

    Parameters
    ----------
    profiles : DataFrame
        From `cluster_profiles`.
    permutations : int

    Returns
    -------
    mean : float
        Mean DR of the permutations, which is 1 but for chance.
    p : float
        One-sided, in (0, 1]: (1 + permutations with a DR as low) / (1 + permutations).
        NaN if DR is undefined.

    Examples
    --------
    Thirty clusters of two are each decided one way.

    >>> profiles = pd.DataFrame({"n": [2, 2], "rejected": [0, 2], "times": [15, 15]})
    >>> mean, p = permutation_test(profiles)
    >>> round(mean, 1), p
    (1.0, 0.001)
    """
    n = profiles["n"]
    rejected = profiles["rejected"]
    times = profiles["times"]
    _, _, observed = disagreement_parts(n, rejected, times)
    if not np.isfinite(observed):
        return np.nan, np.nan
    sizes = np.repeat(n.to_numpy(), times)
    n_rejected = int((rejected * times).sum())
    rng = np.random.default_rng(SEED)
    permuted = []
    for _ in range(permutations):
        dealt = rng.multivariate_hypergeometric(sizes, n_rejected, method="marginals")
        permuted.append(disagreement_parts(sizes, dealt)[2])
    # Two ways to compute the same ratio differ in the last digits.
    n_as_low = np.count_nonzero(np.array(permuted) <= observed + 1e-12)
    return float(np.mean(permuted)), float((1 + n_as_low) / (1 + permutations))
