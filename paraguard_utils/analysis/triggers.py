"""Which charged word makes a target refuse? Matched pairs inside clusters.

All of it ours (`docs/method.md`, Shared wording, rephrasing, triggers).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import comb, logsumexp

from paraguard_utils.analysis.multiple_testing import adjust_holm
from paraguard_utils.analysis.wording import NEAR
from paraguard_utils.core.estimates import to_columns
from paraguard_utils.schemas import Corpus, Labels, Table

FEWEST = 8
"""Clusters that must hold exposed and unexposed near-copies, for a term or family to be tested."""

LEVEL = 0.05
"""Adjusted p below which a term that raises the odds is called a trigger."""

COLUMNS = "target term kind n_clusters frr_exposed frr_unexposed odds_ratio odds_ratio_low odds_ratio_high p".split()  # noqa: SIM905
"""What is estimated of a term, before p is adjusted."""

FARTHEST = 30.0
"""Largest logarithm of an odds ratio that is looked for."""


class Exposure(NamedTuple):
    """What a term or family is compared on.

    Attributes
    ----------
    kind : str
        "term" or "family".
    exposed : numpy.ndarray of bool, shape (n,)
        By row of the corpus.
    """

    kind: str
    exposed: np.ndarray


def exposures(corpus: Corpus, terms: Mapping[str, Sequence[bool]], families: Mapping[str, str]) -> dict[str, Exposure]:
    """Return what can be tested on a corpus: terms, and the families they belong to, that vary in enough clusters.

    Parameters
    ----------
    corpus : DataFrame
        Columns cluster_id, strategy.
    terms : dict of str to sequence of bool
        Which prompts hold each term, in corpus order (`risk.matched_terms`).
    families : dict of str to str
        The family of each term (`risk.families`).
    """
    near = corpus["strategy"].isin(NEAR).to_numpy()
    hits = pd.DataFrame(dict(terms))
    found = {name: Exposure("term", hits[name].to_numpy()) for name in hits}
    for family in sorted(set(families.values())):
        own = [name for name in hits if families[name] == family]
        if own:
            found[family] = Exposure("family", hits[own].any(axis=1).to_numpy())
    kept = {}
    for name, one in found.items():
        shares = pd.Series(one.exposed[near]).groupby(corpus["cluster_id"].to_numpy()[near]).mean()
        if ((shares > 0) & (shares < 1)).sum() >= FEWEST:
            kept[name] = one
    return kept


def effect(
    n: np.ndarray, exposed: np.ndarray, refused: np.ndarray, both: np.ndarray
) -> tuple[float, float, float, float]:
    """Estimate a common odds ratio over clusters, given their margins: the exact conditional test.

    Parameters
    ----------
    n, exposed, refused, both : numpy.ndarray of int, shape (clusters,)
        Prompts; exposed ones; refused ones; those that are both.

    Returns
    -------
    odds_ratio, low, high, p : float
        Conditional maximum likelihood, exact 95 % interval, two-sided p (twice the smaller tail). An end is 0 or
        infinite where the data bound nothing; all NaN but p, which is 1, where the margins leave nothing open.

    Notes
    -----
    Breslow and Day, Statistical Methods in Cancer Research I (1980), section 7.

    Examples
    --------
    >>> n, one = np.full(6, 2), np.ones(6, int)
    >>> round(effect(n, one, one, one)[3], 5)  # in six pairs always the exposed one is refused: 2 / 2**6
    0.03125
    """
    first, weights = 0, np.ones(1)
    for size, x, r in zip(n, exposed, refused, strict=True):
        low, high = max(0, x + r - size), min(x, r)
        ways = np.array([comb(x, t) * comb(size - x, r - t) for t in range(low, high + 1)])
        first, weights = first + low, np.convolve(weights, ways / ways.sum())
    values, at = np.arange(len(weights)), int(both.sum()) - first
    logs = np.log(weights)

    def chances(beta: float) -> np.ndarray:
        own = logs + beta * values
        return np.exp(own - logsumexp(own))

    null = chances(0.0)
    p = float(min(1.0, 2 * min(null[: at + 1].sum(), null[at:].sum())))
    if len(weights) == 1:
        return np.nan, np.nan, np.nan, 1.0

    def root(target: float, statistic: np.ndarray) -> float:
        return float(brentq(lambda beta: chances(beta) @ statistic - target, -FARTHEST, FARTHEST))

    tails = (values >= at).astype(float), (values <= at).astype(float)
    top = len(weights) - 1
    beta = -np.inf if at == 0 else np.inf if at == top else root(at, values.astype(float))
    low = -np.inf if at == 0 else root(0.025, tails[0])
    high = np.inf if at == top else root(0.025, tails[1])
    return float(np.exp(beta)), float(np.exp(low)), float(np.exp(high)), p


def table(target: str, corpus: Corpus, labels: Labels, tested: dict[str, Exposure]) -> Table:
    """Test every term and family on one target.

    Parameters
    ----------
    target : str
    corpus, labels : DataFrame
        Rows in the same order.
    tested : dict of str to Exposure
        From `exposures`.

    Returns
    -------
    DataFrame, the smallest p first
        target, term, kind, n_clusters (that hold exposed and unexposed near-copies, and both decisions: the others tell
        nothing), frr_exposed and frr_unexposed (shares refused in the clusters with both exposures), odds_ratio with
        its interval, p, p_holm (over all rows), trigger, wrapper (of the target), leads (the smallest p).
    """
    label = labels["label"].to_numpy()
    near = corpus["strategy"].isin(NEAR).to_numpy() & np.isin(label, ["accept", "reject"])
    frame = pd.DataFrame({"cluster": corpus["cluster_id"].to_numpy(), "refused": label == "reject", "n": 1})[near]
    rows = []
    for name, one in tested.items():
        own = frame.assign(exposed=one.exposed[near])
        sums = own.assign(both=own["exposed"] & own["refused"]).groupby("cluster").sum()
        varied = sums[(sums["exposed"] > 0) & (sums["exposed"] < sums["n"])]
        telling = varied[(varied["refused"] > 0) & (varied["refused"] < varied["n"])]
        value, low, high, p = effect(*(telling[key].to_numpy(int) for key in ("n", "exposed", "refused", "both")))
        exposed, refused, both, n = (varied[key].sum() for key in ("exposed", "refused", "both", "n"))
        known = len(varied) > 0
        shares = {
            "frr_exposed": both / exposed if known else np.nan,
            "frr_unexposed": (refused - both) / (n - exposed) if known else np.nan,
        }
        about = {"target": target, "term": name, "kind": one.kind, "n_clusters": len(telling), **shares}
        rows.append(about | to_columns({"odds_ratio": (value, low, high)}) | {"p": p})
    found = pd.DataFrame(rows, columns=None if rows else COLUMNS)
    found["p_holm"] = adjust_holm(found["p"])
    trigger = (found["p_holm"] < LEVEL) & (found["odds_ratio"] > 1)
    found = found.assign(trigger=trigger, wrapper=target.rpartition("--")[2])
    return found.sort_values(["p", "term"], ignore_index=True).assign(leads=lambda rows: rows.index == 0)


def tables(corpus: Corpus, labels: Mapping[str, Labels], tested: dict[str, Exposure]) -> Table:
    """Test every term and family on several targets: rows of `table`, Holm's adjustment inside each target."""
    return pd.concat([table(name, corpus, own, tested) for name, own in labels.items()], ignore_index=True)
