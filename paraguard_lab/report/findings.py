"""Short tables from long ones, for the notebooks beyond the paper.

Nothing is estimated here.
"""

import numpy as np
import pandas as pd

from paraguard_lab.analysis.sensitivity import NEIGHBOUR_DIMENSIONS
from paraguard_lab.report.tables import too_few_for_excess
from paraguard_utils.core.estimates import MIN_REFUSALS
from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.registry import display_titles
from paraguard_utils.report import tables
from paraguard_utils.report.findings import locate_intervals
from paraguard_utils.schemas import Table

EXCESS_VERDICTS = {
    "above": "refused phrasings are further away",
    "below": "refused phrasings are closer",
    "about": "not distinguishable from noise",
    "undefined": "undefined",
}
"""What the excess says of a system, by the side of 0 on which its interval is."""

SIGNIFICANCE = 0.05
"""Two systems differ below this p, after Holm's adjustment."""


def judge_excess(table: Table) -> list[str]:
    """Say of each row of Table 1 whether CI exceeds the noise of paraphrasing.

    Parameters
    ----------
    table : Table
        Table 1 with its floors. If it has excess_equal_contrast and its interval is not
        above 0, rejections that are further off are "separable by wording".

    Returns
    -------
    list of str
        Values of `EXCESS_VERDICTS`, or "too few refusals to estimate" below 30
        rejections or 10 mixed clusters.
    """
    sides = locate_intervals(table, "excess")
    verdicts = np.array([EXCESS_VERDICTS[side] for side in sides], object)
    if "excess_equal_contrast" in table:
        left = locate_intervals(table, "excess_equal_contrast")
        is_explained = (sides == "above") & ~np.isin(left, ["above", "undefined"])
        verdicts[is_explained] = "separable by wording"
    too_few = too_few_for_excess(table)
    return list(np.where(too_few, "too few refusals to estimate", verdicts))


def significant_pairs(between: Table, table: Table) -> Table:
    """Count the pairs of systems that can be judged, and those that differ.

    Pairs with too few rejections are not judged, nor CI and excess of two models: Drift
    is measured in each model's own embedding space.

    Parameters
    ----------
    between : Table
        From `comparisons.compare_systems`.
    table : Table
        Table 1 with its floors.

    Returns
    -------
    Table
        measure, pairs, differ.
    """
    judged = _judge_differences(between, table)
    by_measure = judged.groupby("measure", sort=False)["differ"]
    return by_measure.agg(pairs="size", differ="sum").reset_index()


def list_differences(between: Table, table: Table, measure: str) -> Table:
    """List the pairs of systems that differ in a measure, the largest difference first.

    Parameters
    ----------
    between, table : Table
        As `significant_pairs` takes them.
    measure : str

    Returns
    -------
    Table
        first, second (titles), difference with its interval, p_holm.
    """
    judged = _judge_differences(between, table)
    rows = judged[(judged["measure"] == measure) & judged["differ"]]
    largest = rows["difference"].abs().sort_values(ascending=False, kind="stable")
    rows = rows.loc[largest.index]
    first = display_titles(rows["first"])
    second = display_titles(rows["second"])
    columns = ["difference", "difference_low", "difference_high", "p_holm"]
    return rows.assign(first=first, second=second)[["first", "second", *columns]]


def _judge_differences(between: Table, table: Table) -> pd.DataFrame:
    """Return the differences that can be judged, and whether they `differ`."""
    too_few = set(table.loc[too_few_for_excess(table), "system"])
    too_few_for_dr = set(table.loc[table["too_few_for_dr"], "system"])
    first = between["first"]
    second = between["second"]
    two_models = first.map(model_of_system) != second.map(model_of_system)
    rests_on_few = first.isin(too_few) | second.isin(too_few)
    rests_on_few_for_dr = first.isin(too_few_for_dr) | second.isin(too_few_for_dr)
    is_scored = between["measure"].isin(["ci", "excess"])
    is_dr = between["measure"] == "dr"
    cannot_tell = is_scored & (rests_on_few | two_models)
    cannot_tell |= is_dr & rests_on_few_for_dr
    judged = between[~cannot_tell & between["difference"].notna()]
    return judged.assign(differ=judged["p_holm"] < SIGNIFICANCE)


def find_leading_groups(table: Table) -> Table:
    """Return the strategy that flips most decisions, a row for each system.

    Only systems with 30 rejections or more are listed. `table` is from
    `groups.group_table`, whose columns are kept.
    """
    strategies = table[(table["kind"] == "strategy") & table["flip"].notna()]
    n_rejected = strategies.groupby("system")["n_reject"].transform("sum")
    enough = strategies[n_rejected >= MIN_REFUSALS]
    ordered = enough.sort_values("flip", ascending=False, kind="stable")
    return ordered.drop_duplicates("system").sort_index()


def summarize_ranges(table: Table) -> Table:
    """Say how far each dimension of a sensitivity table changes CI and the excess.

    Parameters
    ----------
    table : Table
        The sensitivity table; rows below 30 rejections are left out.

    Returns
    -------
    Table
        dimension, settings (how many), system (whose CI changes most), lowest and
        highest (its CI), and of how many systems the excess's interval is above 0 under
        all settings (always) and under none (never).
    """
    judged = table[(table["n"] >= MIN_REFUSALS) & table["ci"].notna()]
    columns = ["dimension", "settings", "system", "lowest", "highest"]
    rows = []
    for dimension, part in judged.groupby("dimension", sort=False):
        ranges = part.groupby("system", sort=False)["ci"].agg(["min", "max"])
        widest = (ranges["max"] - ranges["min"]).idxmax()
        row = {
            "dimension": dimension,
            "settings": part["setting"].nunique(),
            "system": widest,
            "lowest": ranges["min"][widest],
            "highest": ranges["max"][widest],
        }
        if dimension not in NEIGHBOUR_DIMENSIONS:
            is_above = part["excess_low"] > 0
            above = is_above.groupby(part["system"]).agg(["all", "any"])
            row["always"] = f"{above['all'].sum()} of {len(above)}"
            row["never"] = f"{(~above['any']).sum()} of {len(above)}"
        rows.append(row)
    return pd.DataFrame(rows, columns=[*columns, "always", "never"])


def format_predictions(judged: Table) -> Table:
    """Format judged predictions: number, about (titles), measure, verdict, value."""
    titles = []
    for about in judged["about"]:
        titles.append(" | ".join(display_titles(about.split(" | "))))
    columns = ["number", "about", "measure", "verdict"]
    return tables.format_estimates(judged.assign(about=titles), ["value"], columns)
