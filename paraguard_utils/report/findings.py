"""The paper's claims beside what was found here: counts, verdicts, ranges.

Nothing is estimated here (`docs/method.md`, Cohorts and regression).
"""

from collections.abc import Iterable
from itertools import starmap
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils.analysis.cohorts import BINNINGS, to_percent
from paraguard_utils.core.confusion import CR_THRESHOLDS
from paraguard_utils.core.estimates import MIN_MIXED, MIN_REFUSALS
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.report import paper, tables
from paraguard_utils.schemas import Table
from paraguard_utils.stores import Store


class CohortClaim(NamedTuple):
    """A claim of the paper about the rejections of one cohort.

    `key` names the claim in `count_claims`. The claim holds if the interval of
    `measure` in the cohort of this `risk` and `similarity` is on the side `confirms`
    ("above" or "below") of `limit`.
    """

    key: str
    risk: str
    similarity: str
    measure: str
    limit: float
    confirms: str


COHORT_CLAIMS = {
    "safe paraphrases are mostly confused": CohortClaim(
        "safe", "low", "high", "cr", 0.5, "above"
    ),
    "safe paraphrases are the more confused": CohortClaim(
        "safe_more", "low", "high", "gap", 0.0, "above"
    ),
    "high-risk rejections are the less confused": CohortClaim(
        "risky", "high", "all", "gap", 0.0, "below"
    ),
}

PAPER_CLAIMS = {
    "safe75": ("Safe paraphrases are mostly confused (CR@0.75)", "cohort.safe", "04"),
    "safe60": ("The same at the guards' threshold (CR@0.60)", "cohort.safe", "04"),
    "safe_more75": (
        "Safe paraphrases are more confused than others (CR@0.75)",
        "",
        "04",
    ),
    "safe_more60": ("The same at CR@0.60", "", "04"),
    "risky75": (
        "High-risk refusals are less confused than others (CR@0.75)",
        "cohort.risky",
        "04",
    ),
    "risky60": ("The same at CR@0.60", "cohort.risky", "04"),
    "similarity": ("CI does not follow similarity (r)", "r.similarity", "03"),
    "redundant": ("CI is not redundant with it (|r| < 0.7)", "r.similarity", "03"),
    "guards": (
        "Guards' refusals are confused (CR@0.60)",
        "guard.safeunlearn.cr60",
        "05",
    ),
}
"""The paper's claims that get a verdict, by their key in `count_claims`.

Each has a title for readers, its item in `data/paper_values.csv` ("" if it has no
number), and the number of the notebook that counts the comparisons.
"""

NOT_TESTABLE = {
    "Qwen 3 refuses more than Qwen 2.5 and is far less confused": "",
    "Mistral 7B is confused in localized pockets (CD)": "cd.mistral-7b.low",
}
"""Claims about models that nobody asked here, and their items, if they have one."""

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
DEPENDS_ON_INTERPRETATION = "depends on the interpretation"
CANNOT_TELL = "cannot tell here"

MIN_DECIDING_SHARE = 0.5
"""Least share of the testable comparisons that must decide a claim (ours)."""

MAX_R_DISTANCE = 0.1
"""A correlation equals the paper's if its interval is within this distance (ours)."""

CLAIM_OUTCOMES = ["confirm", "contradict", "undecided"]
"""What a testable comparison may say of a claim; columns of counts."""


def locate_intervals(table: pd.DataFrame, name: str, value: float = 0) -> np.ndarray:
    """Say of each row on which side of a value an interval is.

    Each is "above" or "below" the value, "about" if the interval holds it, or
    "undefined" without an interval.
    """
    low = table[f"{name}_low"]
    high = table[f"{name}_high"]
    conditions = [low.isna(), low > value, high < value]
    return np.select(conditions, ["undefined", "above", "below"], "about")


def count_cohort_claims(table: Table, tau: float = 0.60) -> Table:
    """Test the paper's claims about cohorts on Table 2, at one threshold of CR.

    `tau` is one of `confusion.CR_THRESHOLDS`. Cells of fewer than 30 rejections or 10
    clusters are untestable. Returns claim (with tau), cohorts (how they are divided),
    interpretation, and how many systems confirm the claim, contradict it, leave it
    undecided, or are untestable.
    """
    rows = []
    for text, claim in COHORT_CLAIMS.items():
        kinds = table.groupby(["bins", "interpretation"], sort=False)
        for (bins, interpretation), part in kinds:
            is_cohort = part["risk"] == claim.risk
            is_cohort &= part["similarity"] == claim.similarity
            cells = part[is_cohort]
            measure = f"{claim.measure}{to_percent(tau)}"
            sides = locate_intervals(cells, measure, claim.limit)
            row = {
                "claim": f"{text} (CR@{tau:.2f})",
                "cohorts": BINNINGS[bins],
                "interpretation": interpretation,
            }
            is_small = _is_small(cells, claim)
            rows.append(row | _count_outcomes(sides, is_small, claim.confirms))
    return pd.DataFrame(rows)


def _is_small(cells: Table, claim: CohortClaim) -> pd.Series:
    """Return which cells have too few rejections or clusters for a claim.

    A gap also needs enough clusters outside its cohort.
    """
    n_clusters = cells["n_clusters"]
    if claim.measure == "gap":
        n_clusters = cells[["n_clusters", "rest_clusters"]].min(axis=1)
    return (n_clusters < MIN_MIXED) | (cells["n"] < MIN_REFUSALS)


def _count_outcomes(
    sides: np.ndarray, too_few: pd.Series, confirms: str
) -> dict[str, int]:
    """Count what the sides of intervals say of a claim.

    The side `confirms` confirms the claim, and any other side contradicts it.
    """
    is_untestable = too_few | (sides == "undefined")
    outcomes = np.select(
        [is_untestable, sides == confirms, sides == "about"],
        ["untestable", "confirm", "undecided"],
        "contradict",
    )
    counts = pd.Series(outcomes).value_counts()
    return counts.reindex([*CLAIM_OUTCOMES, "untestable"], fill_value=0).to_dict()


def count_similarity_claims(table: Table) -> Table:
    """Judge the correlation of CI and similarity in every system, in two ways.

    `table` has the columns of `ci_correlations`. "similarity": r is the paper's.
    "redundant": |r| stays below the paper's break, 0.7; a system contradicts it if its
    whole interval lies beyond. Returns claim, interpretation, and the counts of
    `count_cohort_claims`.
    """
    known = paper.paper_value("r.similarity")
    limit = paper.paper_value("r.break.low")
    similar = table[table["covariate"] == "similarity"]
    rows = []
    for interpretation, part in similar.groupby("interpretation", sort=False):
        low = part["r_low"]
        high = part["r_high"]
        is_close = (low >= known - MAX_R_DISTANCE) & (high <= known + MAX_R_DISTANCE)
        sides = locate_intervals(part, "r", known)
        is_within = (low > -limit) & (high < limit)
        is_open = (low <= limit) & (high >= -limit)
        judged = {
            "similarity": np.where(is_close & (sides == "about"), "holds", sides),
            "redundant": np.select([is_within, is_open], ["holds", "about"], sides),
        }
        for claim, outcomes in judged.items():
            row = {"claim": claim, "interpretation": interpretation}
            rows.append(row | _count_outcomes(outcomes, part["too_few"], "holds"))
    return pd.DataFrame(rows)


def count_guard_claim(table: Table) -> Table:
    """Test for each guard in Table 3 whether most of its rejections are confused.

    The paper finds all of them confused, but no sample can show a share of exactly 1.
    So a guard confirms the claim if the interval of CR@0.60 is above one half, and
    contradicts it if the interval is below. Returns claim, interpretation, and the
    counts of `count_cohort_claims`.
    """
    guards = table[table["axis"] != "model"]
    rows = []
    for interpretation, name in (("relative", "cr60"), ("clipped", "cr60_clipped")):
        sides = locate_intervals(guards, name, 0.5)
        row = {"claim": "guards", "interpretation": interpretation}
        rows.append(row | _count_outcomes(sides, guards["too_few"], "above"))
    return pd.DataFrame(rows)


def choose_verdict(confirm: int, contradict: int, undecided: int) -> str:
    """Return the verdict of a claim's testable comparisons in one interpretation."""
    testable = confirm + contradict + undecided
    least = max(1, MIN_DECIDING_SHARE * testable)
    if confirm >= least and not contradict:
        return REPRODUCED
    if contradict >= least and not confirm:
        return NOT_REPRODUCED
    return CANNOT_TELL


def combine_verdicts(verdicts: Iterable[str]) -> str:
    """Combine the verdicts of all interpretations.

    The result is the verdict that all share, `DEPENDS_ON_INTERPRETATION` if two are
    opposite, and `CANNOT_TELL` otherwise.
    """
    different = set(verdicts)
    if len(different) == 1:
        return different.pop()
    if different == {REPRODUCED, NOT_REPRODUCED}:
        return DEPENDS_ON_INTERPRETATION
    return CANNOT_TELL


def decide_claims(claims: Table) -> Table:
    """Add up counts by claim and interpretation, and decide.

    Returns claim, interpretation, confirm, contradict, undecided, word (the verdict in
    that interpretation) and verdict (of all interpretations).
    """
    groups = claims.groupby(["claim", "interpretation"], sort=False)
    counts = groups[CLAIM_OUTCOMES].sum().reset_index()
    counts["word"] = list(starmap(choose_verdict, counts[CLAIM_OUTCOMES].to_numpy()))
    by_claim = counts.groupby("claim")["word"]
    return counts.assign(verdict=by_claim.transform(combine_verdicts))


def count_claims(store: Store) -> Table:
    """Count the comparisons that confirm each of the paper's claims, with verdicts.

    `store` has the tables of 03, 04 and 05; what was counted on public benchmarks may
    be the record's. Returns the columns of `decide_claims`, with keys of `PAPER_CLAIMS`
    as claims, and testable: how many comparisons can be judged.
    """
    cohorts = [store.read("tables", "table2_claims"), count_public_claims(store)]
    keys = {}
    for text, claim in COHORT_CLAIMS.items():
        for tau in CR_THRESHOLDS:
            keys[f"{text} (CR@{tau:.2f})"] = f"{claim.key}{to_percent(tau)}"
    named = pd.concat(cohorts)
    named = named.assign(claim=named["claim"].map(keys))
    correlations = store.read("tables", "ci_correlations")
    similarity = count_similarity_claims(correlations)
    guards = count_guard_claim(store.read("tables", "table3_guards"))
    decided = decide_claims(pd.concat([named, similarity, guards]))
    return decided.assign(testable=decided[CLAIM_OUTCOMES].sum(axis="columns"))


def count_public_claims(store: Store) -> Table:
    """Count the claims on Table 2 of the public corpus, at both thresholds."""
    cohorts = store.read_earlier("tables", "public_cohorts")
    return pd.concat([count_cohort_claims(cohorts, tau) for tau in CR_THRESHOLDS])


def tabulate_claims(claims: Table) -> Table:
    """Put what comparisons of all corpora say of the cohorts into one table.

    `claims` is from `count_cohort_claims`. Returns claim, by
    interpretation "2 yes, 0 no, 1 unclear", verdict.
    """
    decided = decide_claims(claims)
    counts = decided.set_index(["claim", "verdict", "interpretation"])
    summary = "{0.confirm} yes, {0.contradict} no, {0.undecided} unclear".format
    wide = counts.agg(summary, axis=1).unstack(sort=False).rename_axis(columns=None)
    return wide.reset_index()[["claim", *PPL_INTERPRETATIONS, "verdict"]]


def tabulate_results(claims: Table) -> Table:
    """Put the paper's claims beside what was found here, a row per claim.

    `claims` is from `count_claims`. Returns claim, paper (its value), for each
    interpretation how many of the testable comparisons confirm and contradict the claim
    ("0 yes, 6 no of 8"), verdict, and in (the notebook).
    """
    written = paper.read_paper_values()["written"]
    rows = []
    for key, (title, item, notebook) in PAPER_CLAIMS.items():
        row = {"claim": title, "paper": written.get(item, "–")}
        counts = claims[claims["claim"] == key]
        for count in counts.to_dict("records"):
            outcomes = f"{count['confirm']} yes, {count['contradict']} no"
            row[count["interpretation"]] = f"{outcomes} of {count['testable']}"
        row |= {"verdict": counts["verdict"].iloc[0], "in": notebook}
        rows.append(row)
    for title, item in NOT_TESTABLE.items():
        row = {"claim": title, "paper": written.get(item, "–"), "in": "08"}
        row |= dict.fromkeys(PPL_INTERPRETATIONS, "–")
        rows.append(row | {"verdict": "not testable on our systems"})
    return pd.DataFrame(rows)


def compare_with_paper(table: Table, correlations: Table) -> Table:
    """Put the paper's r of CI with similarity, its break and its CD beside ours.

    `table` is Table 1, `correlations` has the columns of `ci_correlations`. Returns
    measure, paper, and by interpretation the range over systems.
    """
    written = paper.read_paper_values()["written"]
    similar = correlations[correlations["covariate"] == "similarity"]
    r = {"measure": "r of CI with similarity", "paper": written["r.similarity"]}
    ends = written[["cd.mistral-7b.low", "cd.mistral-7b.high"]]
    cd = {"measure": "CD", "paper": f"{' to '.join(ends)} (Mistral 7B)"}
    beyond = {"measure": "systems with |r| beyond the break"}
    beyond["paper"] = written["r.break.low"]
    counts = count_similarity_claims(correlations)
    for count in counts[counts["claim"] == "redundant"].to_dict("records"):
        testable = sum(count[outcome] for outcome in CLAIM_OUTCOMES)
        here = f"{count['contradict']} of {testable}"
        beyond[f"here, {count['interpretation']}"] = here
    ranges = [r | _ranges(similar, "r", 2), beyond, cd | _ranges(table, "cd", 3)]
    return pd.DataFrame(ranges)


def _ranges(table: Table, name: str, decimals: int) -> dict[str, str]:
    """Return a column's range over systems with enough refusals, by interpretation."""
    judged = table[~table["too_few"]]
    ranges = {}
    for interpretation, values in judged.groupby("interpretation", sort=False)[name]:
        low = tables.format_number(values.min(), decimals)
        high = tables.format_number(values.max(), decimals)
        ranges[f"here, {interpretation}"] = f"{low} to {high}"
    return ranges
