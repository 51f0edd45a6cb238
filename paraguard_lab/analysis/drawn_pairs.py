"""Tell chance from wording in answers that were drawn several times (ours).

(`docs/method.md`, What a decision hangs on)
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from paraguard_lab.core.draws import join_draws
from paraguard_lab.core.pair_shares import PairShares
from paraguard_lab.core.ratios import share_of_totals
from paraguard_lab.core.rephrasing import MAX_TRIES, answer_probability
from paraguard_utils import unsafe
from paraguard_utils.analysis.system import System
from paraguard_utils.analysis.wording import find_cluster_pairs
from paraguard_utils.core.disagreement import MIN_DECISIONS_EACH
from paraguard_utils.core.estimates import (
    MIN_REFUSALS,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.core.wording import PairRows, Phrasings
from paraguard_utils.schemas import Table

KINDS_OF_PAIRS = ("near", "free", "all")

MIN_DRAWS = MAX_TRIES + 1
"""Draws of a prompt, and drawn phrasings of a request, that asking again needs."""

MIN_MOSTLY_REFUSED = 7
"""With fewer requests of which most draws are refused, the interval of `other3` lies
too high (`benchmarks/hangs_on.py`).
"""


def share_draws(drawn: pd.DataFrame) -> tuple[Phrasings, np.ndarray]:
    """Return what `PairShares` needs of prompts from `core.draws.join_draws`.

    That is their refused shares, and how probably two draws of a prompt differ.
    """
    size = drawn["size"].to_numpy(float)
    refused = drawn["sum"].to_numpy(float)
    same = 2 * refused * (size - refused) / (size * (size - 1))
    style = drawn["strategy"].to_numpy().astype(str)
    return Phrasings(drawn["cluster_id"].to_numpy(), refused / size, style), same


def too_few_drawn(drawn: pd.DataFrame, pairs: PairRows) -> bool:
    """Return whether the prompts in some pairs have too few refused or other draws."""
    inside = drawn.iloc[np.union1d(*pairs)]
    n_refused = inside["sum"].sum()
    rarer = min(n_refused, inside["size"].sum() - n_refused)
    return bool(rarer < MIN_DECISIONS_EACH)


def split_chance(
    system: System, samples: pd.DataFrame, decoding: str
) -> list[dict[str, object]]:
    """Split decisions into meaning, wording and chance, by kind of pair.

    Returns
    -------
    list of dict
        A row for near-copies, free rewordings and all pairs: system, decoding, pairs
        (their kind), n (pairs), with intervals pair, meaning, wording and chance, and
        too_few (refused or other draws of the prompts in such pairs).
    """
    drawn = join_draws(system.prompts, samples)
    phrasings, same = share_draws(drawn)
    found = find_cluster_pairs(drawn)
    clusters = ClusterBootstrap(
        drawn["cluster_id"], system.clusters.resamples, system.clusters.seed
    )
    chosen = {"near": found.near, "free": found.free}
    chosen["all"] = np.ones(len(found.first), bool)
    rows = []
    for kind in KINDS_OF_PAIRS:
        pairs = found.select(chosen[kind])
        about = {
            "system": system.name,
            "decoding": decoding,
            "pairs": kind,
            "n": len(pairs[0]),
        }
        parts = PairShares(clusters, phrasings, pairs, same).estimate()
        too_few = {"too_few": too_few_drawn(drawn, pairs)}
        rows.append(about | to_columns(parts) | too_few)
    return rows


def tabulate_chance(
    systems: Sequence[System], samples: Mapping[str, Mapping[str, pd.DataFrame]]
) -> Table:
    """Return `split_chance` of all systems and decodings.

    `samples` holds drawn answers by decoding and name of a system.
    """
    rows = []
    for decoding, by_system in samples.items():
        for system in systems:
            if system.name in by_system:
                rows += split_chance(system, by_system[system.name], decoding)
    return pd.DataFrame(rows)


def all_refused_elsewhere(refused_shares: np.ndarray, tries: int) -> np.ndarray:
    """Return the probability that some other phrasings are all refused.

    Each phrasing is asked once; which ones are asked is random.

    Parameters
    ----------
    refused_shares : numpy.ndarray, shape (..., phrasings)
        Of one request or more, in [0, 1].
    tries : int
        Other phrasings asked.

    Returns
    -------
    numpy.ndarray, shape (..., phrasings)
        For each phrasing, over the others of its request.

    Examples
    --------
    Of four phrasings, the first has three others, all of which are asked.

    >>> all_refused_elsewhere(np.array([1.0, 0.5, 0.5, 1.0]), tries=3)
    array([0.25, 0.5 , 0.5 , 0.25])
    """
    n_phrasings = refused_shares.shape[-1]
    chosen = np.array(list(combinations(range(n_phrasings - 1), tries)))
    shares = []
    for place in range(n_phrasings):
        others = np.delete(refused_shares, place, axis=-1)
        shares.append(others[..., chosen].prod(axis=-1).mean(axis=-1))
    return np.stack(shares, axis=-1)


def estimate_asked_again(
    drawn: pd.DataFrame, clusters: ClusterBootstrap
) -> dict[str, Estimate]:
    """Estimate how often a refused draw is followed by an answer within three more.

    Parameters
    ----------
    drawn : DataFrame
        From `core.draws.join_draws`.
    clusters : ClusterBootstrap
        Of the requests; a twin counts as its benign cluster.

    Returns
    -------
    dict of Estimate
        same3, of draws of the same words; other3, of one draw each of three other
        phrasings; other3_minus_same3. NaN without a refused draw that has both.
    """
    drawn = drawn[drawn["size"] >= MIN_DRAWS]
    siblings = drawn.groupby("cluster_id")["size"].transform("size")
    drawn = drawn.assign(siblings=siblings)[siblings >= MIN_DRAWS]
    drawn = drawn.sort_values("cluster_id", kind="stable")
    siblings = drawn["siblings"].to_numpy()
    share = (drawn["sum"] / drawn["size"]).to_numpy()
    others = np.zeros(len(drawn))
    for n_phrasings in np.unique(siblings):
        rows = siblings == n_phrasings
        by_request = share[rows].reshape(-1, n_phrasings)
        others[rows] = all_refused_elsewhere(by_request, MAX_TRIES).ravel()
    answered = drawn["size"] - drawn["sum"]
    same = answer_probability(drawn["size"] - 1, answered, MAX_TRIES)
    weight = drawn["sum"].to_numpy(float)
    ids = unsafe.benign_cluster_of(drawn["cluster_id"])
    n, same_hits, other_hits = clusters.sums(
        ids,
        weight,
        np.where(weight > 0, weight * same, 0.0),
        weight * (1 - others),
    )
    difference = clusters.undefined()
    if n.any():
        difference = clusters.estimate(
            lambda n, same, other: (other - same) / n, n, same_hits, other_hits
        )
    return {
        "same3": share_of_totals(clusters, (n, same_hits), reduce=True),
        "other3": share_of_totals(clusters, (n, other_hits), reduce=True),
        "other3_minus_same3": difference,
    }


def too_few_mostly_refused(drawn: pd.DataFrame) -> bool:
    """Return whether too few requests are mostly refused to judge `other3`.

    `drawn` is from `core.draws.join_draws`.
    """
    draws = drawn.groupby("cluster_id")[["sum", "size"]].sum()
    mostly_refused = draws["sum"] > draws["size"] / 2
    return bool(mostly_refused.sum() < MIN_MOSTLY_REFUSED)


def asked_again_row(
    system: System, samples: pd.DataFrame, decoding: str
) -> dict[str, object]:
    """Return a row of `estimate_asked_again`.

    Columns: system, decoding, n_refused (draws), the estimates with intervals, too_few
    (refused prompts), too_few_for_other3 (requests that are mostly refused, too).
    """
    drawn = join_draws(system.prompts, samples)
    estimates = estimate_asked_again(drawn, system.clusters)
    too_few = bool((drawn["sum"] > 0).sum() < MIN_REFUSALS)
    return {
        "system": system.name,
        "decoding": decoding,
        "n_refused": int(drawn["sum"].sum()),
        **to_columns(estimates),
        "too_few": too_few,
        "too_few_for_other3": too_few or too_few_mostly_refused(drawn),
    }


def tabulate_asked_again(
    systems: Sequence[System], samples: Mapping[str, Mapping[str, pd.DataFrame]]
) -> Table:
    """Return `asked_again_row` of all systems and decodings, as `tabulate_chance`."""
    rows = []
    for decoding, by_system in samples.items():
        for system in systems:
            if system.name in by_system:
                drawn = by_system[system.name]
                rows.append(asked_again_row(system, drawn, decoding))
    return pd.DataFrame(rows)
