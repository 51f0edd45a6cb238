"""Correct systems' rates for the label errors that blind annotations measured.

The formulas are in `core.label_noise`.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from paraguard_lab.core.disagreement import disagreement_parts
from paraguard_lab.core.label_noise import (
    JEFFREYS_PRIOR,
    ReadCounts,
    correct_estimates,
    correct_label_noise,
)
from paraguard_lab.labels.annotators import compare_with_annotations
from paraguard_lab.labels.blind_marks import count_readings, select_equal
from paraguard_utils.analysis.system import System
from paraguard_utils.analysis.wording import (
    FREE_REWORDING_STRATEGIES,
    NEAR_COPY_STRATEGIES,
    make_phrasings,
)
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import (
    SEED,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.core.wording import estimate_pair_disagreement, list_cluster_pairs
from paraguard_utils.schemas import Table


def correct_rates(systems: Iterable[System], annotated: pd.DataFrame) -> Table:
    """Correct the rates of all systems of which answers were read.

    Parameters
    ----------
    systems : iterable of System
    annotated : DataFrame
        From `annotations.join_annotations`.

    Returns
    -------
    Table
        A row for each system that has annotations: system, noisy; frr_labelled and
        dr_labelled; with intervals frr, dr and usable, the share of prompts with a
        usable answer.
    """
    measured = compare_with_annotations(annotated).set_index("system")
    rows = []
    for system in systems:
        if system.name in measured.index:
            rows.append(_corrected_row(system, measured.loc[system.name]))
    return pd.DataFrame(rows)


def _corrected_row(system: System, measured: pd.Series) -> dict[str, object]:
    """Return the row of one system; `measured` is its row of comparisons."""
    precision = _count_hits(measured, "precision", "rejections")
    missed = _count_hits(measured, "missed", "acceptances")
    decided = system.decided
    found = correct_label_noise(system.clusters, decided, precision, missed)
    usable = _count_hits(measured, "usable", "acceptances")
    found["usable"] = _estimate_usable(system, usable)
    dr = disagreement_parts(decided["n"], decided["rejected"])[2]
    return {
        "system": system.name,
        "noisy": measured["noisy"],
        "frr_labelled": decided["rejected"].sum() / decided["n"].sum(),
        "dr_labelled": dr,
        **to_columns(found),
    }


def _count_hits(measured: pd.Series, share: str, side: str) -> tuple[int, int]:
    """Return how many of the answers read on a side hit, and how many were read."""
    read = int(measured[side])
    return round(float(np.nan_to_num(measured[share])) * read), read


def _estimate_usable(system: System, usable: tuple[int, int]) -> Estimate:
    """Estimate the share of prompts that get a usable answer.

    It is the share accepted times the share of acceptances read that are usable.
    """
    hits, read = usable
    scored = system.is_scored
    ids = system.prompts["cluster_id"].to_numpy()[scored]
    accepted = system.clusters.share(ids, system.refused[scored] == 0)
    value = accepted.value * hits / read if read else np.nan
    a = hits + JEFFREYS_PRIOR
    b = read - hits + JEFFREYS_PRIOR
    posterior = np.random.default_rng(SEED).beta(a, b, len(accepted.draws))
    return Estimate.percentile(value, accepted.draws * posterior)


# Other kinds of answers
# ----------------------

HARMLESS = "harmless"
"""The kind of the annotated answers: to the corpus, under the usual instructions."""

_STYLES = {
    "dr_near": NEAR_COPY_STRATEGIES,
    "dr_free": FREE_REWORDING_STRATEGIES,
}
_MEASURES = ("frr", "dr", *_STYLES)
_DIFFERENCE = "difference"  # DR of free rewordings minus DR of near-copies


def correct_by_kind(
    systems: Mapping[str, Iterable[System]], read: pd.DataFrame
) -> Table:
    """Correct the rates of the kinds of answers that were read blind.

    Precision and missed share are pooled over the systems of a kind (`docs/method.md`,
    Answers of other kinds).

    Parameters
    ----------
    systems : mapping of str to iterable of System
        By kind (`blind.read_unread_systems`).
    read : DataFrame
        From `blind_marks.read_blind_annotations`.

    Returns
    -------
    Table
        A row for each system: kind, system, the columns of `correct_system`.
    """
    equal = select_equal(read)
    rows = []
    for kind, of_kind in systems.items():
        counts = count_readings(equal[equal["kind"] == kind], pooled=True)
        for system in of_kind:
            corrected = correct_system(system, dict.fromkeys(_MEASURES, counts))
            rows.append({"kind": kind, "system": system.name, **corrected})
    return pd.DataFrame(rows)


def correct_wordings(systems: Iterable[System], annotated: pd.DataFrame) -> Table:
    """Correct DR of near-copies and of free rewordings of the annotated systems.

    Parameters
    ----------
    systems : iterable of System
    annotated : DataFrame
        From `annotations.join_annotations`. Annotations of near-copies correct the one,
        those of free rewordings the other, by system.

    Returns
    -------
    Table
        As from `correct_by_kind`, with the kind `HARMLESS`.
    """
    rows = []
    for system in systems:
        own = annotated[annotated["system"] == system.name]
        strategy = system.prompts.set_index("prompt_id")["strategy"]
        strategies = own["prompt_id"].map(strategy)
        counts = dict.fromkeys(_MEASURES, count_readings(own))
        for stream, (measure, chosen) in enumerate(_STYLES.items()):
            of_style = count_readings(own[strategies.isin(chosen)])
            counts[measure] = of_style._replace(stream=stream)
        corrected = correct_system(system, counts)
        rows.append({"kind": HARMLESS, "system": system.name, **corrected})
    return pd.DataFrame(rows)


def correct_system(
    system: System, counts: Mapping[str, ReadCounts]
) -> dict[str, object]:
    """Return a system's rates as labelled and as corrected.

    Parameters
    ----------
    system : System
        Prompts without the column `strategy` have a refused share only.
    counts : mapping of str to ReadCounts
        What was read, by measure: frr, dr, dr_near, dr_free.

    Returns
    -------
    dict
        The four measures as labelled, and difference (dr_free minus dr_near); the same
        with `_read` as corrected, with intervals, NaN if nothing was read; too_few
        (refusals or answers for dr_near or dr_free).
    """
    ids = system.prompts["cluster_id"]
    resampled = system.clusters
    clusters = ClusterBootstrap(ids, resampled.resamples, resampled.seed)
    every = disagreement.count_decisions(system.refused, ids, least=1)
    labelled = {"frr": every["rejected"].sum() / every["n"].sum()}
    refused = correct_estimates(clusters, every, clusters.undefined(), counts["frr"])
    read = {"frr": refused["frr"]}
    too_few = False
    if "strategy" in system.prompts:
        for measure, (dr, decided) in _estimate_all_dr(system, clusters).items():
            labelled[measure] = dr.value
            corrected = correct_estimates(clusters, decided, dr, counts[measure])
            read[measure] = corrected["dr"]
            if measure in _STYLES:
                too_few |= _is_too_few(decided)
        labelled[_DIFFERENCE] = labelled["dr_free"] - labelled["dr_near"]
        read[_DIFFERENCE] = read["dr_free"] - read["dr_near"]
    row: dict[str, object] = {}
    for measure in (*_MEASURES, _DIFFERENCE):
        row[measure] = labelled.get(measure, np.nan)
        estimate = read.get(measure, clusters.undefined())
        row |= to_columns({f"{measure}_read": estimate})
    return row | {"too_few": too_few}


def _is_too_few(decided: pd.DataFrame) -> bool:
    """Return whether too few prompts are refused, or answered, as in Table 3."""
    rejected = decided["rejected"].sum()
    rarer = min(rejected, decided["n"].sum() - rejected)
    return bool(rarer < disagreement.MIN_DECISIONS_EACH)


def _estimate_all_dr(
    system: System, clusters: ClusterBootstrap
) -> dict[str, tuple[Estimate, pd.DataFrame]]:
    """Estimate DR of all, near and free pairs, each with counts of its prompts."""
    ids = system.prompts["cluster_id"].to_numpy()
    decided = disagreement.count_decisions(system.refused, ids)
    dr = disagreement.estimate_disagreement(clusters, decided)
    found = {"dr": (dr, decided)}
    phrasings = make_phrasings(system)
    first, second = list_cluster_pairs(ids)
    for measure, strategies in _STYLES.items():
        chosen = np.isin(phrasings.style, strategies)
        inside = chosen[first] & chosen[second]
        rows = (first[inside], second[inside])
        dr = estimate_pair_disagreement(clusters, phrasings, rows)
        decided = disagreement.count_decisions(system.refused[chosen], ids[chosen])
        found[measure] = (dr, decided)
    return found
