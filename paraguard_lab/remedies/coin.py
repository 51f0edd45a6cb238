"""Compare what a remedy answers with a coin that answers as many refusals (ours).

(`docs/method.md`, Remedies)
"""

import numpy as np

from paraguard_utils.core.estimates import Estimate


def compare_with_coin(
    untouched: tuple[Estimate, Estimate], remedied: tuple[Estimate, Estimate]
) -> Estimate:
    """Estimate how many more twins a remedy answers than a coin does.

    The coin answers a share of the untouched system's refusals at random: as many
    harmless prompts as the remedy.

    Parameters
    ----------
    untouched, remedied : (Estimate, Estimate)
        FRR and the share of twins refused, from the same resamples.

    Returns
    -------
    Estimate
        A share of all twins, in [-1, 1]; below 0 the remedy beats the coin. NaN if FRR
        does not fall, and in such resamples.

    Examples
    --------
    >>> def known(value):
    ...     return Estimate(value, value, value, np.full(2, value))
    >>> before, after = (known(0.2), known(0.4)), (known(0.1), known(0.35))
    >>> round(compare_with_coin(before, after).value, 2)
    -0.15
    """
    frr, twins = untouched
    new_frr, new_twins = remedied
    value = _excess(frr.value, twins.value, new_frr.value, new_twins.value)
    draws = _excess(frr.draws, twins.draws, new_frr.draws, new_twins.draws)
    return Estimate.percentile(float(value), draws)


def _excess(
    frr: np.ndarray | float,
    twins: np.ndarray | float,
    new_frr: np.ndarray | float,
    new_twins: np.ndarray | float,
) -> np.ndarray:
    """Return the twins answered minus those that the coin answers; NaN if none is."""
    gained = np.subtract(frr, new_frr)
    with np.errstate(divide="ignore", invalid="ignore"):
        lost_by_coin = gained * np.divide(twins, frr)
    return np.where(gained > 0, np.subtract(twins, new_twins) - lost_by_coin, np.nan)
