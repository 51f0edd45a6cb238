"""Test which charged words make a system refuse, by matched pairs inside clusters.

All of it is ours (`docs/method.md`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import comb

from paraguard_lab.core.inference import adjust_holm
from paraguard_utils.analysis.system import System
from paraguard_utils.analysis.wording import NEAR_COPY_STRATEGIES
from paraguard_utils.schemas import Corpus, Table

MIN_VARIED_CLUSTERS = 8
"""Clusters that must hold near-copies with a term and without it for a test."""

MAX_LOG_ODDS = 30.0
"""The largest logarithm of an odds ratio that is searched."""

_TESTED_COLUMNS = [
    "system",
    "term",
    "kind",
    "n_clusters",
    "frr_exposed",
    "frr_unexposed",
    "odds_ratio",
    "odds_ratio_low",
    "odds_ratio_high",
    "p",
]

TermExposure: TypeAlias = tuple[str, np.ndarray]
""""term" or "family", and which prompts hold something of it."""


def find_exposures(
    prompts: Corpus, terms: Mapping[str, Sequence[bool]], families: Mapping[str, str]
) -> dict[str, TermExposure]:
    """Find the terms and families of terms that vary in enough clusters to be tested.

    Parameters
    ----------
    prompts : Corpus
    terms : mapping of str to sequence of bool
        Which prompts hold each term (`charged.match_charged_terms`).
    families : mapping of str to str
        The family of each term.

    Returns
    -------
    dict of str to TermExposure
        Terms, then families.
    """
    hits = pd.DataFrame(dict(terms))
    exposures = {name: ("term", hits[name].to_numpy()) for name in hits}
    for family in sorted({families[name] for name in hits}):
        members = [name for name in hits if families[name] == family]
        exposures[family] = ("family", hits[members].any(axis=1).to_numpy())
    near = prompts["strategy"].isin(NEAR_COPY_STRATEGIES).to_numpy()
    ids = prompts["cluster_id"].to_numpy()[near]
    tested = {}
    for name, (kind, holds) in exposures.items():
        share = pd.Series(holds[near]).groupby(ids).mean()
        n_varied = ((share > 0) & (share < 1)).sum()
        if n_varied >= MIN_VARIED_CLUSTERS:
            tested[name] = (kind, holds)
    return tested


def conditional_odds_ratio(
    n: np.ndarray, exposed: np.ndarray, refused: np.ndarray, both: np.ndarray
) -> tuple[float, float, float, float]:
    """Estimate a common odds ratio over clusters, given their margins.

    It is the exact conditional test of Breslow and Day, Statistical Methods in Cancer
    Research I (1980), section 7.

    Parameters
    ----------
    n, exposed, refused, both : numpy.ndarray of int, shape (clusters,)
        Each cluster's prompts, exposed ones, refused ones, and those that are both.

    Returns
    -------
    ratio, low, high, p : float
        The conditional maximum likelihood estimate, the exact 95 % interval (0 or
        infinite where the data do not bound it) and the two-sided p (twice the smaller
        tail). If the margins allow one outcome only, p is 1 and the rest NaN.
    """
    least, ways = _count_outcomes(n, exposed, refused)
    if len(ways) == 1:
        return np.nan, np.nan, np.nan, 1.0
    outcomes = np.arange(len(ways))
    observed = int(both.sum()) - least
    log_ways = np.log(ways)

    def probabilities(beta: float) -> np.ndarray:
        """Return the probability of each outcome at this log odds ratio."""
        terms = log_ways + beta * outcomes
        weights = np.exp(terms - terms.max())
        return weights / weights.sum()

    def solve(wanted: float, statistic: np.ndarray) -> float:
        """Return the log odds ratio at which a statistic has the wanted mean."""

        def miss(beta: float) -> float:
            return probabilities(beta) @ statistic - wanted

        return float(brentq(miss, -MAX_LOG_ODDS, MAX_LOG_ODDS))

    null = probabilities(0.0)
    below = null[: observed + 1].sum()
    above = null[observed:].sum()
    p = float(min(1.0, 2 * min(below, above)))
    beta = low = -np.inf
    high = np.inf
    if observed > 0:
        low = solve(0.025, (outcomes >= observed).astype(float))
        beta = np.inf
    if observed < len(ways) - 1:
        high = solve(0.025, (outcomes <= observed).astype(float))
        if observed > 0:
            beta = solve(observed, outcomes.astype(float))
    return float(np.exp(beta)), float(np.exp(low)), float(np.exp(high)), p


def _count_outcomes(
    n: np.ndarray, exposed: np.ndarray, refused: np.ndarray
) -> tuple[int, np.ndarray]:
    """Count the ways to each sum of `both` over clusters, up to a factor.

    Returns
    -------
    least : int
        The least sum, to which the first count belongs.
    ways : numpy.ndarray
        A count for each sum, in steps of 1.
    """
    least = 0
    ways = np.ones(1)
    for size, x, r in zip(n, exposed, refused, strict=True):
        low = max(0, x + r - size)
        counts = np.arange(low, min(x, r) + 1)
        of_cluster = comb(x, counts) * comb(size - x, r - counts)
        least += low
        ways = np.convolve(ways, of_cluster / of_cluster.sum())
    return least, ways


def trigger_table(system: System, exposures: Mapping[str, TermExposure]) -> Table:
    """Test the terms and families of terms on one system.

    Parameters
    ----------
    system : System
    exposures : mapping of str to TermExposure
        From `find_exposures`, of the system's prompts.

    Returns
    -------
    Table
        The smallest p first. Columns: system, term, kind, n_clusters (that hold exposed
        and unexposed near-copies, and both decisions: the others say nothing),
        frr_exposed and frr_unexposed (shares refused in the clusters with both
        exposures), odds_ratio with its interval, p, p_holm (over all rows), trigger,
        instruction (of the system), leads (the first row).
    """
    near = system.prompts["strategy"].isin(NEAR_COPY_STRATEGIES).to_numpy()
    used = near & system.is_scored
    cluster = system.prompts["cluster_id"].to_numpy()[used]
    refused = system.refused[used] == 1
    rows = []
    for name, (kind, holds) in exposures.items():
        decisions = pd.DataFrame({"n": 1, "exposed": holds[used], "refused": refused})
        decisions["both"] = decisions["exposed"] & decisions["refused"]
        counts = decisions.groupby(cluster).sum()
        varied = counts[_varies(counts["exposed"], counts["n"])]
        informative = varied[_varies(varied["refused"], varied["n"])]
        ratio, low, high, p = conditional_odds_ratio(*informative.to_numpy(int).T)
        rows.append(
            {
                "system": system.name,
                "term": name,
                "kind": kind,
                "n_clusters": len(informative),
                **_refused_shares(varied.sum()),
                "odds_ratio": ratio,
                "odds_ratio_low": low,
                "odds_ratio_high": high,
                "p": p,
            }
        )
    table = pd.DataFrame(rows, columns=_TESTED_COLUMNS)
    # Processors differ in the last digit of equal p
    table["p"] = table["p"].round(12)
    table["p_holm"] = adjust_holm(table["p"])
    table["trigger"] = (table["p_holm"] < 0.05) & (table["odds_ratio"] > 1)
    table["instruction"] = system.name.rpartition("--")[2]
    table = table.sort_values(["p", "term"], ignore_index=True)
    return table.assign(leads=table.index == 0)


def _varies(part: pd.Series, n: pd.Series) -> pd.Series:
    """Mark the clusters of which some prompts, and not all, are in a part."""
    return (part > 0) & (part < n)


def _refused_shares(counts: pd.Series) -> dict[str, float]:
    """Return the shares refused of exposed and of unexposed prompts.

    They are NaN without any.
    """
    if not counts["n"]:
        return {"frr_exposed": np.nan, "frr_unexposed": np.nan}
    unexposed = counts["n"] - counts["exposed"]
    refused_unexposed = counts["refused"] - counts["both"]
    return {
        "frr_exposed": counts["both"] / counts["exposed"],
        "frr_unexposed": refused_unexposed / unexposed,
    }


def stack_trigger_tables(
    systems: Iterable[System], exposures: Mapping[str, TermExposure]
) -> Table:
    """Stack the rows of `trigger_table` of several systems.

    Holm's correction is over the rows of each system.
    """
    tables = [trigger_table(system, exposures) for system in systems]
    return pd.concat(tables, ignore_index=True)
