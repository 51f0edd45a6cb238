"""Bootstrap-t intervals a second time: influences by difference quotients."""

import numpy as np

NAMES = list("abcdefghijklmnopqrst")


def by_numbers(statistic, columns, counts):
    """Bootstrap-t of a statistic of totals; the influence of a cluster is a difference
    quotient of its weight.
    """
    k, step = len(columns), 1e-4

    def with_error(times):
        pulls = [
            (statistic((times + d) @ columns) - statistic((times - d) @ columns))
            / step
            / 2
            for d in np.eye(k) * step
        ]
        return statistic(times @ columns), np.sqrt(
            times @ np.square(pulls) - (times @ pulls) ** 2 / k
        )

    value, error = with_error(np.ones(k))
    with np.errstate(divide="ignore", invalid="ignore"):
        again = np.array([with_error(times) for times in counts])
        centred = (again[:, 0] - value) / again[:, 1]
    low, high = np.percentile(
        centred[~np.isnan(centred) & (centred < np.inf)], [2.5, 97.5]
    )
    return value, value - high * error, value - low * error, error
