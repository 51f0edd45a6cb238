"""DR of near-copies beside that of free rewordings, and DR by shared words (ours).

DR of each kind is in 03 (`docs/method.md`, Shared wording, rephrasing, triggers).
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from paraguard_lab.core.disagreement import (
    HIGH_OVERLAP,
    LOW_OVERLAP,
    estimate_pair_difference,
)
from paraguard_utils.analysis.system import System
from paraguard_utils.analysis.wording import (
    WordingPairs,
    find_cluster_pairs,
    make_phrasings,
    wording_row,
)
from paraguard_utils.core.estimates import Estimate, to_columns
from paraguard_utils.core.wording import estimate_pair_disagreement
from paraguard_utils.schemas import Table

DIFFERENCES = ("difference", "low_minus_high")
"""Names of what is estimated as DR minus another."""


def estimate_comparisons(system: System, pairs: WordingPairs) -> dict[str, Estimate]:
    """Estimate what stands beside dr_near and dr_free.

    Parameters
    ----------
    system : System
    pairs : WordingPairs
        Those of its prompts (`wording.find_cluster_pairs`).

    Returns
    -------
    dict of Estimate
        dr_low and dr_high (overlap below `LOW_OVERLAP`; `HIGH_OVERLAP` or more),
        difference (free minus near) and low_minus_high.
    """
    clusters = system.clusters
    phrasings = make_phrasings(system)
    low = pairs.select(pairs.overlap < LOW_OVERLAP)
    high = pairs.select(pairs.overlap >= HIGH_OVERLAP)
    near = pairs.select(pairs.near)
    free = pairs.select(pairs.free)
    return {
        "dr_low": estimate_pair_disagreement(clusters, phrasings, low),
        "dr_high": estimate_pair_disagreement(clusters, phrasings, high),
        "difference": estimate_pair_difference(clusters, phrasings, free, near),
        "low_minus_high": estimate_pair_difference(clusters, phrasings, low, high),
    }


def compare_wordings(systems: Iterable[System]) -> Table:
    """Tabulate DR by shared wording of systems on one corpus, with its differences.

    The columns are those of `wording.wording_row` and `estimate_comparisons`. Where too
    few are refused or answered, the differences have no intervals.
    """
    systems = list(systems)
    pairs = find_cluster_pairs(systems[0].prompts)
    rows = []
    for system in systems:
        row = wording_row(system, pairs)
        too_few = row.pop("too_few")
        columns = to_columns(estimate_comparisons(system, pairs))
        rows.append({**row, **columns, "too_few": too_few})
    table = pd.DataFrame(rows)
    for name in DIFFERENCES:
        table.loc[table["too_few"], [f"{name}_low", f"{name}_high"]] = np.nan
    return table
