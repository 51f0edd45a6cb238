"""Short tables from long ones: verdicts, counts, ranges. Nothing is estimated here."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from paraguard_lab.analysis.sensitivity import NEIGHBOUR_DIMENSIONS
from paraguard_utils.analysis.cohorts import BINNINGS, to_percent
from paraguard_utils.core.estimates import MIN_MIXED, MIN_REFUSALS
from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.registry import display_titles
from paraguard_utils.report import paper, tables
from paraguard_utils.schemas import Table

# What the excess says of a system, by the side of 0 on which its interval lies
EXCESS_VERDICTS = {
    "above": "refused phrasings lie further off",
    "below": "refused phrasings lie closer",
    "about": "cannot tell from noise",
    "undefined": "undefined",
}


def _sides(table: pd.DataFrame, name: str, value: float = 0) -> np.ndarray:
    """Say of each row whether an interval lies "above" or "below" a value or holds it
    ("about"), or is "undefined".
    """
    low, high = table[f"{name}_low"], table[f"{name}_high"]
    return np.select(
        [low.isna(), low > value, high < value],
        ["undefined", "above", "below"],
        "about",
    )


def judge_excess(table: Table) -> list[str]:
    """Say of each row of Table 1 or 3 whether refusals are more confused than
    paraphrase noise.

    Each is a value of `EXCESS_VERDICTS`, or "too few to judge" below 30 rejections or
    10 mixed clusters. If the table has excess_equal_contrast and its interval does not
    lie above 0, refusals further off are "separable by wording".
    """
    said = np.array([EXCESS_VERDICTS[side] for side in _sides(table, "excess")], object)
    if "excess_equal_contrast" in table:
        left = _sides(table, "excess_equal_contrast")
        said[
            (said == EXCESS_VERDICTS["above"]) & ~np.isin(left, ["above", "undefined"])
        ] = "separable by wording"
    return list(np.where(tables.too_few_for_excess(table), "too few to judge", said))


def _judged_differences(between: Table, table: Table) -> pd.DataFrame:
    """Leave out differences that rest on systems with few rejections, and those of CI
    and excess between two models.
    """
    too_few, too_few_for_dr = (
        set(table.loc[tables.too_few_for_excess(table), "system"]),
        set(table.loc[table["too_few_for_dr"], "system"]),
    )
    first, second, measure = between["first"], between["second"], between["measure"]
    # Drift is measured in each model's own embedding space.
    unsure = (
        first.isin(too_few)
        | second.isin(too_few)
        | (first.map(model_of_system) != second.map(model_of_system))
    )
    unsure &= measure.isin(["ci", "excess"])
    unsure |= (measure == "dr") & (
        first.isin(too_few_for_dr) | second.isin(too_few_for_dr)
    )
    judged = between[~unsure & between["difference"].notna()]
    return judged.assign(differ=judged["p_holm"] < 0.05)


def significant_pairs(between: Table, table: Table) -> Table:
    """Count the pairs of systems that can be judged and those that differ (p < 0.05
    after Holm's adjustment).

    Pairs with too few rejections are not judged, nor CI and excess of two models.
    `between` is from `confusion.compare_systems`, `table` is Table 1. Returns measure,
    pairs, differ.
    """
    judged = _judged_differences(between, table)
    return (
        judged.groupby("measure", sort=False)["differ"]
        .agg(pairs="size", differ="sum")
        .reset_index()
    )


def list_differences(between: Table, table: Table, measure: str) -> Table:
    """List `significant_pairs`, largest first: first, second (titles), difference with
    its interval, p_holm.
    """
    judged = _judged_differences(between, table)
    rows = judged[(judged["measure"] == measure) & judged["differ"]]
    rows = rows.sort_values("difference", key=abs, ascending=False, kind="stable")
    rows = rows.assign(
        first=display_titles(rows["first"]), second=display_titles(rows["second"])
    )
    return rows[
        ["first", "second", "difference", "difference_low", "difference_high", "p_holm"]
    ]


# The paper's: risk, similarity, what is looked at, its limit, and the side that
# confirms
COHORT_CLAIMS = {
    "safe paraphrases are mostly confused": ("low", "high", "cr", 0.5, "above"),
    "safe paraphrases are the more confused": ("low", "high", "gap", 0.0, "above"),
    "high-risk rejections are the less confused": ("high", "all", "gap", 0.0, "below"),
}

COHORT_CLAIM_KEYS = dict(
    zip(COHORT_CLAIMS, ("safe", "safe_more", "risky"), strict=True)
)  # for keys of numbers

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
DEPENDS_ON_INTERPRETATION, CANNOT_TELL = "depends on the reading", "cannot tell here"

MIN_DECIDING_SHARE = (
    0.5  # least share of the testable comparisons that must decide a claim (ours)
)
# A correlation is as the paper's where its whole interval lies this close to it (ours)
MAX_R_DISTANCE = 0.1
CLAIM_OUTCOMES = [
    "confirm",
    "contradict",
    "undecided",
]  # what a testable comparison may say; columns of counts

ALL_CORPORA = "all corpora"


def count_cohort_claims(table: Table, tau: float = 0.60) -> Table:
    """Test the paper's claims about cohorts on Table 2, at one of
    `confusion.CR_THRESHOLDS` (`docs/method.md`).

    Cells of fewer than 30 rejections or 10 clusters are untestable. Returns claim,
    cohorts (how they are cut), reading, and how many systems confirm the claim,
    contradict it, leave it open, or are untestable.
    """
    end, rows = to_percent(tau), []
    for claim, (risk, similarity, measure, limit, side) in COHORT_CLAIMS.items():
        for (bins, interpretation), own in table.groupby(
            ["bins", "interpretation"], sort=False
        ):
            cells = own[(own["risk"] == risk) & (own["similarity"] == similarity)]
            counts = (
                ["n_clusters", "rest_clusters"] if measure == "gap" else ["n_clusters"]
            )
            too_few = (cells[counts].min(axis=1) < MIN_MIXED) | (
                cells["n"] < MIN_REFUSALS
            )
            found = np.where(
                too_few, "undefined", _sides(cells, f"{measure}{end}", limit)
            )
            rows.append(
                {
                    "claim": claim,
                    "cohorts": BINNINGS[bins],
                    "interpretation": interpretation,
                    **_outcomes(found, side),
                }
            )
    return pd.DataFrame(rows)


def _outcomes(sides: np.ndarray, confirms: str) -> dict[str, int]:
    """Count what `_sides` says of a claim: one value confirms it, and any other side
    contradicts it.
    """
    kinds = [sides == confirms, sides == "about", sides == "undefined"]
    outcomes = np.select(kinds, ["confirm", "undecided", "untestable"], "contradict")
    return {
        name: int((outcomes == name).sum()) for name in (*CLAIM_OUTCOMES, "untestable")
    }


def count_similarity_claim(table: Table) -> Table:
    """Compare the correlation of CI and similarity (`validity.correlate_ci`) with the
    paper's, system by system.

    Returns claim, reading, and the counts of `count_cohort_claims`.
    """
    known, rows = paper.paper_value("r.similarity"), []
    for interpretation, own in table[table["covariate"] == "similarity"].groupby(
        "interpretation", sort=False
    ):
        sides = np.where(own["too_few"], "undefined", _sides(own, "r", known))
        close = (own["r_low"] >= known - MAX_R_DISTANCE) & (
            own["r_high"] <= known + MAX_R_DISTANCE
        )
        counts = _outcomes(
            np.where(close & (sides == "about"), "close", sides), "close"
        )
        rows.append(
            {
                "claim": "CI does not follow similarity",
                "interpretation": interpretation,
                **counts,
            }
        )
    return pd.DataFrame(rows)


def count_guard_claim(table: Table) -> Table:
    """Ask of each guard in Table 3 whether most of its rejections are confused, as the
    paper finds of all of them.

    No sample can show a share of exactly 1, so a guard confirms the claim where the
    interval of CR@0.60 lies above one half, and contradicts it where it lies below.
    Returns claim, reading, and the counts of `count_cohort_claims`; the clipped reading
    only if the table has columns `cr60_clipped`.
    """
    guards, rows = table[table["axis"] != "model"], []
    for interpretation, name in (("relative", "cr60"), ("clipped", "cr60_clipped")):
        if f"{name}_low" in guards:
            counts = _outcomes(
                np.where(guards["too_few"], "undefined", _sides(guards, name, 0.5)),
                "above",
            )
            rows.append(
                {
                    "claim": "guards' rejections are mostly confused",
                    "interpretation": interpretation,
                    **counts,
                }
            )
    return pd.DataFrame(rows)


def choose_verdict(confirm: int, contradict: int, unclear: int) -> str:
    """Say in one word what a claim's testable comparisons come to, in one interpretation
    (method.md, Verdict).
    """
    least = max(1, MIN_DECIDING_SHARE * (confirm + contradict + unclear))
    if not contradict and confirm >= least:
        return REPRODUCED
    return NOT_REPRODUCED if not confirm and contradict >= least else CANNOT_TELL


def combine_verdicts(words: Iterable[str]) -> str:
    """Combine the verdicts of all readings: their common word.

    `DEPENDS_ON_READING` if they are opposite.
    """
    different = set(words)
    if different == {REPRODUCED, NOT_REPRODUCED}:
        return DEPENDS_ON_INTERPRETATION
    return different.pop() if len(different) == 1 else CANNOT_TELL


def decide_claims(claims: Table) -> Table:
    """Add up counts by claim and reading: confirm, contradict, open, word (the
    reading's), verdict (all readings').
    """
    counts = (
        claims.groupby(["claim", "interpretation"], sort=False)[CLAIM_OUTCOMES]
        .sum()
        .reset_index()
    )
    counts["word"] = [
        choose_verdict(*map(int, row)) for row in counts[CLAIM_OUTCOMES].to_numpy()
    ]
    return counts.assign(
        verdict=counts.groupby("claim")["word"].transform(combine_verdicts)
    )


def tabulate_claims(claims: Mapping[str, Table]) -> Table:
    """Put what each corpus says of a claim (`count_cohort_claims`, one tau) into one
    table, readings side by side.

    A claim's last row adds up all corpora. Returns claim, corpus, by reading "2 yes, 0
    no, 1 unclear", verdict.
    """
    corpora = {**claims, ALL_CORPORA: pd.concat(claims.values())}
    every = pd.concat(
        [decide_claims(own).assign(corpus=name) for name, own in corpora.items()]
    )
    every["told"] = [
        f"{yes} yes, {no} no, {unclear} unclear"
        for yes, no, unclear in every[CLAIM_OUTCOMES].to_numpy()
    ]
    told = every.set_index(["claim", "corpus", "verdict", "interpretation"])[
        "told"
    ].unstack(sort=False)
    wide = (
        told.rename_axis(columns=None)
        .reset_index("verdict")[[*told.columns, "verdict"]]
        .reset_index()
    )
    order = list(COHORT_CLAIMS).index
    return wide.sort_values(
        "claim", key=lambda claims: claims.map(order), kind="stable", ignore_index=True
    ).astype(str)


# Those that are judged: in words, item of `data/paper_values.csv`, notebook
PAPER_CLAIMS = {
    "safe": ("Safe paraphrases are mostly confused", "cohort.safe", "04"),
    "risky": ("High-risk refusals are the least confused", "cohort.risky", "04"),
    "similarity": ("CI does not follow similarity (r)", "r.similarity", "03"),
    "guards": (
        "Guards' refusals are all confused (CR@0.60)",
        "guard.safeunlearn.cr60",
        "05",
    ),
}


def tabulate_results(claims: Table) -> Table:
    """Put the paper's claims beside what was found here, a row a claim, from
    `numbers.count_claims`.

    Returns claim, paper (its value), for each interpretation the comparisons that confirm the
    claim of those that can be judged ("0 of 8"), verdict, notebook.
    """
    written, rows = paper.read_paper_values()["written"], []
    for name, (claim, item, notebook) in PAPER_CLAIMS.items():
        own = claims[claims["claim"] == name].set_index("interpretation")
        told = {
            interpretation: f"{row['confirm']} of {row['testable']}"
            for interpretation, row in own.iterrows()
        }
        rows.append(
            {
                "claim": claim,
                "paper": written[item],
                **told,
                "verdict": own["verdict"].iloc[0],
                "in": notebook,
            }
        )
    return pd.DataFrame(rows)


def compare_with_paper(table: Table, correlations: Table) -> Table:
    """Put the paper's CD and r of CI with similarity beside ours: measure, paper, a
    range of systems by reading.
    """
    known = paper.read_paper_values()["written"]
    ends = " to ".join(known[f"cd.mistral-7b.{end}"] for end in ("low", "high"))
    similar = correlations[correlations["covariate"] == "similarity"]
    r = {
        "measure": "r of CI with similarity",
        "paper": known["r.similarity"],
    } | _ranges(similar, "r", 2)
    cd = {"measure": "CD", "paper": f"{ends} (Mistral 7B)"} | _ranges(table, "cd", 3)
    return pd.DataFrame([r, cd])


def _ranges(table: Table, name: str, decimals: int) -> dict[str, str]:
    """Return a column's range over systems with enough refusals, by reading."""
    known = (
        table[~table["too_few"]]
        .groupby("interpretation", sort=False)[name]
        .agg(["min", "max"])
    )
    ends = known.map(lambda end: tables.format_number(end, decimals))
    return {
        f"here, {interpretation}": f"{low} to {high}"
        for interpretation, low, high in ends.itertuples()
    }


def find_leading_groups(table: Table) -> Table:
    """Return the row of `cohorts.group_table` of most flips by strategy, for systems
    with 30 rejections or more.
    """
    own = table[(table["kind"] == "strategy") & table["flip"].notna()]
    enough = own.groupby("system")["n_reject"].transform("sum") >= MIN_REFUSALS
    return (
        own[enough]
        .sort_values("flip", ascending=False, kind="stable")
        .drop_duplicates("system")
        .sort_index()
    )


def summarize_ranges(table: Table) -> Table:
    """Say how far each dimension of `sensitivity.sensitivity_table` moves CI, and where
    the excess stays above zero.

    Rows below 30 rejections are left out. Returns dimension, settings, system (whose CI
    moves most), lowest, highest (its CI); always, never: of how many systems the
    excess's interval lies above 0 under all settings, and none.
    """
    rows = []
    judged = table[(table["n"] >= MIN_REFUSALS) & table["ci"].notna()]
    for dimension, own in judged.groupby("dimension", sort=False):
        spans = own.groupby("system", sort=False)["ci"].agg(["min", "max"])
        widest = (spans["max"] - spans["min"]).idxmax()
        row = {
            "dimension": dimension,
            "settings": own["setting"].nunique(),
            "system": widest,
        }
        row |= {"lowest": spans["min"][widest], "highest": spans["max"][widest]}
        if dimension not in NEIGHBOUR_DIMENSIONS:
            above = (own["excess_low"] > 0).groupby(own["system"]).agg(["all", "any"])
            row["always"] = f"{above['all'].sum()} of {len(above)}"
            row["never"] = f"{(~above['any']).sum()} of {len(above)}"
        rows.append(row)
    return pd.DataFrame(
        rows,
        columns=[
            "dimension",
            "settings",
            "system",
            "lowest",
            "highest",
            "always",
            "never",
        ],
    )


def format_predictions(judged: Table) -> Table:
    """Show judged predictions: number, about (with titles), measure, verdict and the
    value.
    """
    named = [
        " | ".join(display_titles(about.split(" | "))) for about in judged["about"]
    ]
    return tables.format_estimates(
        judged.assign(about=named), ["value"], ["number", "about", "measure", "verdict"]
    )
