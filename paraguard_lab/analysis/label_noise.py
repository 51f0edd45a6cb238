"""Correct systems' rates for the label errors that blind annotations measured.

The formulas are in `core.label_noise`.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from paraguard_lab.core.disagreement import disagreement_parts
from paraguard_lab.core.label_noise import JEFFREYS_PRIOR, correct_label_noise
from paraguard_lab.labels.annotators import compare_with_annotations
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import SEED, Estimate, to_columns
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
