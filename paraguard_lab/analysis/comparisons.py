"""Compare systems with one another, and their order under other choices.

The tests are defined in the method (`docs/method.md`, Intervals and comparisons).
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from paraguard_lab.analysis.excess import COMPARED_MEASURES
from paraguard_lab.core.inference import adjust_holm, two_sided_p
from paraguard_utils.core.estimates import Estimate
from paraguard_utils.schemas import Table

MIN_ORDER_PROBABILITY = 0.95
"""Bootstrap probability from which the order of two systems is clear."""


def compare_systems(
    estimates: Mapping[str, Mapping[str, Estimate]],
    measures: Sequence[str] = COMPARED_MEASURES,
) -> Table:
    """Compare every two systems on the same resampled clusters.

    Parameters
    ----------
    estimates : mapping
        By system and measure, over the same clusters.
    measures : sequence of str

    Returns
    -------
    Table
        measure, first, second, difference (first minus second) with its interval; p,
        two-sided (`inference.two_sided_p`); p_holm, adjusted by Holm over the pairs of
        systems of one measure. NaN if an estimate is undefined.
    """
    rows = []
    for measure in measures:
        for first, second in itertools.combinations(estimates, 2):
            difference = estimates[first][measure] - estimates[second][measure]
            value, low, high = difference
            p = two_sided_p(difference)
            rows.append((measure, first, second, value, low, high, p))
    columns = ["measure", "first", "second", "difference"]
    columns += ["difference_low", "difference_high", "p"]
    table = pd.DataFrame(rows, columns=columns)  # one system has no difference
    return table.assign(p_holm=table.groupby("measure")["p"].transform(adjust_holm))


def compare_orders(
    estimates: Mapping[str, Mapping[str, Mapping[str, Estimate]]],
    reference: str,
    measures: Sequence[str],
) -> Table:
    """Compute how certain the order of systems is, and if other settings reverse it.

    Parameters
    ----------
    estimates : mapping
        By setting, system and measure, over the same resampled clusters.
    reference : str
        One of the settings.
    measures : sequence of str

    Returns
    -------
    Table
        measure, first, second, setting; higher, the share of resamples in which the
        first system's estimate is higher (ties count half); reversed, the share in
        which the order is opposite to the reference's. NaN if an estimate is undefined
        in every resample.
    """
    rows = []
    for measure in measures:
        for first, second in itertools.combinations(estimates[reference], 2):
            signs = {}
            for setting, by_system in estimates.items():
                if first in by_system and second in by_system:
                    one = by_system[first][measure].draws
                    other = by_system[second][measure].draws
                    signs[setting] = np.sign(one - other)
            usual = signs[reference]
            for setting, sign in signs.items():
                defined = np.isfinite(sign) & np.isfinite(usual)
                higher = np.nan
                turned = np.nan
                if defined.any():
                    higher = ((sign[defined] + 1) / 2).mean()
                    turned = (sign * usual < 0)[defined].mean()
                rows.append((measure, first, second, setting, higher, turned))
    columns = ["measure", "first", "second", "setting", "higher", "reversed"]
    return pd.DataFrame(rows, columns=columns)
