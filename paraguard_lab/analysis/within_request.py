"""Which differences of wording inside a request move a decision (ours).

They are construction, form and charged words, and the gap between free rewordings and
near-copies is tested (`docs/method.md`, What a decision hangs on).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.core.disagreement import LOW_OVERLAP, estimate_pair_difference
from paraguard_lab.core.inference import adjust_holm
from paraguard_lab.core.pair_shares import gap_p
from paraguard_utils.analysis.system import System
from paraguard_utils.analysis.wording import (
    NEAR_COPY_STRATEGIES,
    find_cluster_pairs,
    make_phrasings,
)
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import (
    MIN_MIXED,
    SEED,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.core.wording import (
    estimate_pair_disagreement,
    too_few_for_pairs,
)
from paraguard_utils.schemas import Corpus, Table

SAME_CONSTRUCTION = ("lexical",)
OTHER_CONSTRUCTION = ("register", "rewrite")
MIN_OVERLAP = 0.2  # of pairs whose construction is compared at like overlap

FIRST_PERSON = r"(?i)\b(?:i|i'm|i've|i'd|me|my|mine)\b"

N_FLIPS = 9999


# The gap
# -------


def tabulate_gaps(systems: Iterable[System]) -> Table:
    """Test the gap between free rewordings and near-copies in every system.

    Returns
    -------
    Table
        system, n_reject, n_mixed (clusters decided both ways), gap, p_gap and p_holm,
        adjusted over the systems; NaN with fewer than `MIN_MIXED` such clusters.
    """
    rows = []
    for system in systems:
        scored = system.select(system.is_scored)
        pairs = find_cluster_pairs(scored.prompts)
        n_mixed = int(disagreement.is_mixed(system.decided).sum())
        gap = p = np.nan
        if n_mixed >= MIN_MIXED:
            near = pairs.select(pairs.near)
            free = pairs.select(pairs.free)
            clusters = _own_clusters(scored)
            gap, p = gap_p(clusters, make_phrasings(scored), near, free)
        n_reject = int((system.refused == 1).sum())
        rows.append(
            {
                "system": system.name,
                "n_reject": n_reject,
                "n_mixed": n_mixed,
                "gap": gap,
                "p_gap": p,
            }
        )
    table = pd.DataFrame(rows)
    return table.assign(p_holm=adjust_holm(table["p_gap"]))


def _own_clusters(system: System) -> ClusterBootstrap:
    """Return the clusters of a system's own prompts, which may be twins."""
    clusters = system.clusters
    ids = system.prompts["cluster_id"]
    return ClusterBootstrap(ids, clusters.resamples, clusters.seed)


# Construction
# ------------


def construction_row(system: System) -> dict[str, Any]:
    """Estimate DR of near-copies with rewordings in the same and in new constructions.

    Returns
    -------
    dict
        system; with intervals kept, changed and changed_minus_kept over all pairs, and
        with `_alike` at an overlap of words from `MIN_OVERLAP` to `LOW_OVERLAP`; the
        mean overlaps overlap_kept and overlap_changed; too_few.
    """
    clusters = _own_clusters(system)
    pairs = find_cluster_pairs(system.prompts)
    phrasings = make_phrasings(system)
    strategy = system.prompts["strategy"]
    near = strategy.isin(NEAR_COPY_STRATEGIES).to_numpy()
    chosen = {}
    for name, others in (
        ("kept", SAME_CONSTRUCTION),
        ("changed", OTHER_CONSTRUCTION),
    ):
        other = strategy.isin(others).to_numpy()
        forward = near[pairs.first] & other[pairs.second]
        chosen[name] = forward | (other[pairs.first] & near[pairs.second])
    alike = (pairs.overlap >= MIN_OVERLAP) & (pairs.overlap < LOW_OVERLAP)
    estimates: dict[str, Estimate] = {}
    too_few = False
    for end, inside in (("", np.ones(len(alike), bool)), ("_alike", alike)):
        kept = pairs.select(chosen["kept"] & inside)
        changed = pairs.select(chosen["changed"] & inside)
        for name, rows in (("kept", kept), ("changed", changed)):
            dr = estimate_pair_disagreement(clusters, phrasings, rows)
            estimates[f"{name}{end}"] = dr
            too_few |= too_few_for_pairs(phrasings.refused, rows)
        difference = estimate_pair_difference(clusters, phrasings, changed, kept)
        estimates[f"changed_minus_kept{end}"] = difference
    row: dict[str, Any] = {"system": system.name}
    for name, marked in chosen.items():
        row[f"overlap_{name}"] = float(pairs.overlap[marked].mean())
    return row | to_columns(estimates) | {"too_few": too_few}


# Form and charged words
# ----------------------


def mark_forms(prompts: Corpus) -> pd.DataFrame:
    """Mark the forms of prompts: question, lower_case, first_person.

    Examples
    --------
    >>> mark_forms(pd.DataFrame({"text": ["How do I mow?", "say how to mow"]}))
       question  lower_case  first_person
    0      True       False          True
    1     False        True         False
    """
    text = prompts["text"].str.strip()
    return pd.DataFrame(
        {
            "question": text.str.endswith("?"),
            "lower_case": text.str[:1].str.islower(),
            "first_person": text.str.contains(FIRST_PERSON),
        }
    )


def differences_within(
    cluster: np.ndarray, refused: np.ndarray, marked: np.ndarray, other: np.ndarray
) -> pd.Series:
    """Return the refused share of some prompts minus that of others, by cluster.

    Parameters
    ----------
    cluster : numpy.ndarray, shape (n,)
    refused : numpy.ndarray of float, shape (n,)
        1 refused, 0 answered, NaN set aside.
    marked, other : numpy.ndarray of bool, shape (n,)

    Returns
    -------
    Series of float
        In [-1, 1], by cluster; clusters without decided prompts of both are left out.
    """
    known = pd.Series(refused, cluster)
    shares = [known[side].groupby(level=0).mean() for side in (marked, other)]
    return (shares[0] - shares[1]).dropna()


def sign_flip_p(values: np.ndarray, flips: int = N_FLIPS, seed: int = SEED) -> float:
    """Return the two-sided p that values are as often above 0 as below (sign flips).

    NaN if all are 0.

    Examples
    --------
    >>> sign_flip_p(np.ones(10)) < 0.01
    True
    """
    values = np.asarray(values, float)
    values = values[values != 0]
    if not len(values):
        return np.nan
    rng = np.random.default_rng(seed)
    signs = rng.integers(0, 2, (flips, len(values))) * 2 - 1
    null = np.abs(signs @ values)
    n_beyond = np.count_nonzero(null >= abs(values.sum()) - 1e-9)
    return (1 + n_beyond) / (1 + flips)


def _estimate_difference(
    system: System, marked: np.ndarray, other: np.ndarray
) -> dict[str, Any]:
    """Return n_clusters, the mean difference with its interval, and p."""
    clusters = _own_clusters(system)
    ids = system.prompts["cluster_id"].to_numpy()
    values = differences_within(ids, system.refused, marked, other)
    estimate = clusters.undefined()
    if len(values):
        estimate = clusters.mean(values.index, values.to_numpy())
    return {
        "n_clusters": len(values),
        **to_columns({"difference": estimate}),
        "p": sign_flip_p(values.to_numpy()),
    }


def tabulate_forms(systems: Sequence[System]) -> Table:
    """Compare phrasings with and without a form inside the same request.

    Returns
    -------
    Table
        system, form, n_clusters (with both), difference (refused share with the form
        minus without) with its interval, p and p_holm over all rows.
    """
    rows = []
    for system in systems:
        for form, marked in mark_forms(system.prompts).items():
            has_form = marked.to_numpy()
            difference = _estimate_difference(system, has_form, ~has_form)
            rows.append({"system": system.name, "form": form, **difference})
    table = pd.DataFrame(rows)
    return table.assign(p_holm=adjust_holm(table["p"]))


def tabulate_charged_words(systems: Sequence[System]) -> Table:
    """Compare harsher with milder words in the same sentence.

    Returns
    -------
    Table
        system, n_clusters, difference (refused share of hardenings minus softenings)
        with its interval, p and p_holm over the systems; odds_ratio of a standard
        deviation of risk among near-copies (conditional logistic regression) with its
        interval, n_mixed (clusters in it).
    """
    rows = []
    for system in systems:
        strategy = system.prompts["strategy"].to_numpy()
        difference = _estimate_difference(
            system, strategy == "hardening", strategy == "softening"
        )
        rows.append({"system": system.name, **difference, **_fit_risk(system)})
    table = pd.DataFrame(rows)
    return table.assign(p_holm=adjust_holm(table["p"]))


def _fit_risk(system: System) -> dict[str, Any]:
    """Fit refusal of near-copies on risk inside clusters, if 10 are decided both ways.

    `odds_ratio` is NaN with fewer, or where the fit has no finite maximum.
    """
    from statsmodels.discrete.conditional_models import ConditionalLogit  # a second

    near = system.prompts["strategy"].isin(NEAR_COPY_STRATEGIES).to_numpy()
    chosen = near & system.is_scored
    ids = system.prompts["cluster_id"].to_numpy()[chosen]
    refused = system.refused[chosen]
    risk = system.prompts["risk"].to_numpy(float)[chosen]
    decided = disagreement.count_decisions(refused, ids)
    mixed = decided.loc[disagreement.is_mixed(decided), "cluster_id"]
    n_mixed = len(mixed)
    estimate: tuple[float, float, float] = (np.nan, np.nan, np.nan)
    if n_mixed >= MIN_MIXED:
        scaled = (risk - risk.mean()) / risk.std()
        tells = np.isin(ids, mixed)  # the other clusters say nothing
        model = ConditionalLogit(refused[tells], scaled[tells, None], groups=ids[tells])
        fit = model.fit(disp=False)
        beta = float(fit.params[0])
        error = float(fit.bse[0])
        if np.isfinite(error):
            ends = np.exp([beta, beta - 1.959964 * error, beta + 1.959964 * error])
            estimate = (float(ends[0]), float(ends[1]), float(ends[2]))
    return {**to_columns({"odds_ratio": estimate}), "n_mixed": n_mixed}
