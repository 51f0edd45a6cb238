"""What long tables come to, as short ones: verdicts, counts, ranges. Nothing is estimated here."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from paraguard_utils.analysis import cohorts, validity
from paraguard_utils.analysis.cohorts import BINNINGS
from paraguard_utils.analysis.sensitivity import CHOOSE_NEIGHBOURS, DEFAULTS
from paraguard_utils.analysis.validity import COVARIATES, LIMIT, SIGNALS
from paraguard_utils.core.estimates import MIN_MIXED, MIN_REFUSALS
from paraguard_utils.models.prompting import model_of
from paraguard_utils.registry import titles
from paraguard_utils.report import tables
from paraguard_utils.report.paper import paper_value, paper_values
from paraguard_utils.schemas import Table

VERDICTS = {
    "above": "refused phrasings lie further off",
    "below": "refused phrasings lie closer",
    "about": "not told from noise",
    "undefined": "undefined",
}
"""What the excess says of a target, by the side of 0 on which its interval lies."""

DIFFERS = 0.05
"""Two targets differ below this p, adjusted by Holm."""


def side_of(table: pd.DataFrame, name: str, value: float = 0) -> np.ndarray:
    """Say of each row where the interval of an estimate lies: above a value, below it, about it; or undefined."""
    low, high = table[f"{name}_low"], table[f"{name}_high"]
    return np.select([low.isna(), low > value, high < value], ["undefined", "above", "below"], "about")


def verdicts(table: Table) -> list[str]:
    """Say of each row of Table 1 or 3 whether refusals are more confused than paraphrase noise.

    Parameters
    ----------
    table : DataFrame
        With excess, and where wording is told apart excess_equal_contrast, each with its interval; few, n_mixed.

    Returns
    -------
    list of str
        A value of `VERDICTS`; "not judged" below 30 rejections or 10 mixed clusters; "separable by wording" where
        nothing sure is left at equal perplexity contrast.
    """
    said = np.array([VERDICTS[side] for side in side_of(table, "excess")], object)
    if "excess_equal_contrast" in table:
        left = side_of(table, "excess_equal_contrast")
        said[(said == VERDICTS["above"]) & ~np.isin(left, ["above", "undefined"])] = "separable by wording"
    return list(np.where(tables.too_few(table), "not judged", said))


def judged_differences(between: Table, table: Table) -> pd.DataFrame:
    """Leave out differences that rest on targets with few rejections, and those of CI and excess between two models.

    Parameters
    ----------
    between : DataFrame
        From `confusion.differences`.
    table : DataFrame
        Table 1.

    Returns
    -------
    DataFrame
        Rows of `between` with a difference.
    """
    few, few_dr = set(table.loc[tables.too_few(table), "target"]), set(table.loc[table["few_dr"], "target"])
    unsure = between["measure"].isin(["ci", "excess"]) & (between["first"].isin(few) | between["second"].isin(few))
    # Drift is measured in each model's own embedding space.
    families = between["first"].map(model_of) != between["second"].map(model_of)
    unsure |= between["measure"].isin(["ci", "excess"]) & families
    unsure |= (between["measure"] == "dr") & (between["first"].isin(few_dr) | between["second"].isin(few_dr))
    return between[~unsure & between["difference"].notna()]


def told_apart(between: Table, table: Table, limit: float = DIFFERS) -> Table:
    """Count, by measure, the judged pairs of targets, and those that differ after Holm's adjustment.

    Parameters
    ----------
    between : DataFrame
        From `confusion.differences`.
    table : DataFrame
        Table 1.
    limit : float
        Adjusted p from which a difference is no longer called one.

    Returns
    -------
    DataFrame
        measure, pairs, differ.
    """
    judged = judged_differences(between, table)
    differ = (judged["p_holm"] < limit).groupby(judged["measure"], sort=False)
    return differ.agg(pairs="size", differ="sum").reset_index()


def differing(between: Table, table: Table, measure: str, limit: float = DIFFERS) -> Table:
    """List the judged pairs of targets that differ in a measure, the largest difference first.

    Returns
    -------
    DataFrame
        first, second (targets' titles), difference (first minus second) with its interval, p_holm.
    """
    judged = judged_differences(between, table)
    rows = judged[(judged["measure"] == measure) & (judged["p_holm"] < limit)]
    rows = rows.sort_values("difference", key=abs, ascending=False, kind="stable")
    rows = rows.assign(first=titles(rows["first"]), second=titles(rows["second"]))
    return rows[["first", "second", "difference", "difference_low", "difference_high", "p_holm"]]


def restated(table: Table, limit: float = LIMIT) -> Table:
    """Tell over all judged targets what CI restates, readings side by side.

    The paper's break conditions are |r| above 0.7-0.8 with similarity, and CI following risk: read here as an interval
    of r that excludes 0 (ours).

    Parameters
    ----------
    table : DataFrame
        From `validity.correlations`.
    limit : float

    Returns
    -------
    DataFrame
        covariate; for each reading the range of r, how many of the targets have r surely above and below 0, and, for
        similarity, how many surely have |r| above the limit, or may have it.
    """
    judged = table[~table["few"] & table["r_low"].notna()].copy()
    judged["met"], judged["unclear"] = validity.breaks(judged, limit)
    judged["side"] = side_of(judged, "r")
    rows = []
    for name, title in (COVARIATES | SIGNALS).items():
        row: dict[str, object] = {"covariate": title}
        for reading, own in judged[judged["covariate"] == name].groupby("reading", sort=False):
            ends = tables.decimal(own["r"].min(), 2, "+"), tables.decimal(own["r"].max(), 2, "+")
            row |= {f"r, {reading}": " to ".join(ends)}
            above, below = (int((own["side"] == side).sum()) for side in ("above", "below"))
            beyond = f"; |r| > {limit} in {own['met'].sum()}, perhaps {own['unclear'].sum()}"
            told = f"{above} up, {below} down of {len(own)}{beyond if name == 'similarity' else ''}"
            row |= {f"sure, {reading}": told}
        rows.append(row)
    return pd.DataFrame([row for row in rows if len(row) > 1])


CLAIMS = {
    "safe paraphrases are mostly confused": ("low", "high", "cr", 0.5, "above"),
    "safe paraphrases are the more confused": ("low", "high", "gap", 0.0, "above"),
    "high-risk rejections are the less confused": ("high", "all", "gap", 0.0, "below"),
}
"""The paper's claims about cohorts: risk, similarity, what is looked at, its limit, and the side that confirms."""

CLAIM_KEYS = dict(zip(CLAIMS, ("safe", "safe_more", "risky"), strict=True))
"""A short name of each claim about cohorts, for keys of numbers."""

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
DEPENDS, CANNOT_TELL = "depends on the reading", "cannot tell here"

AGREEING = 0.5
"""Least share of the testable comparisons that must decide a claim (ours); with 0 a single one would."""

SMALL_R = 0.1
"""A correlation is as the paper's where its whole interval lies this close to it (ours)."""

OUTCOMES = ["confirm", "contradict", "open"]
"""What a testable comparison may say of a claim, as columns of counts."""

ALL_CORPORA = "all corpora"


def cohort_claims(table: Table, tau: float = 0.60) -> Table:
    """Put the paper's claims about cohorts to the test.

    Safe paraphrases (low risk, high similarity) are about 60 % confused, the high-risk cohort, 27.8 %, least. The first
    is read as CR above one half, and above that of the target's other rejections; the second as CR below that of the
    other rejections. Fewer than `FEW` rejections or `FEW_CLUSTERS` clusters are untestable.

    Parameters
    ----------
    table : DataFrame
        Table 2.
    tau : float
        One of `confusion.TAUS`; the paper does not say which of them Table 2 took.

    Returns
    -------
    DataFrame
        claim, cohorts (how they are cut), reading, and how many targets confirm it, contradict it, leave it open, or
        are untestable.
    """
    end, rows = cohorts.percent(tau), []
    for claim, (risk, similarity, measure, limit, side) in CLAIMS.items():
        for (bins, reading), own in table.groupby(["bins", "reading"], sort=False):
            cells = own[(own["risk"] == risk) & (own["similarity"] == similarity)]
            counts = ["n_clusters", "rest_clusters"] if measure == "gap" else ["n_clusters"]
            few = (cells[counts].min(axis=1) < MIN_MIXED) | (cells["n"] < MIN_REFUSALS)
            found = np.where(few, "undefined", side_of(cells, f"{measure}{end}", limit))
            rows.append({"claim": claim, "cohorts": BINNINGS[bins], "reading": reading, **_outcomes(found, side)})
    return pd.DataFrame(rows)


def _outcomes(sides: np.ndarray, confirms: str) -> dict[str, int]:
    """Count what `side_of` says of a claim that one side confirms and the other contradicts."""
    other = {"above": "below", "below": "above"}[confirms]
    names = {"confirm": confirms, "contradict": other, "open": "about", "untestable": "undefined"}
    return {name: int((sides == where).sum()) for name, where in names.items()}


def similarity_claim(table: Table) -> Table:
    """Compare the correlation of CI and similarity with the paper's, target by target.

    A target contradicts the paper where the interval of r leaves out the paper's value, and confirms it where the
    whole interval lies within `SMALL_R` of that value.

    Parameters
    ----------
    table : DataFrame
        From `validity.correlations`.

    Returns
    -------
    DataFrame
        claim, reading, and the counts of `cohort_claims`.
    """
    known = paper_value("r.similarity")
    rows: list[dict[str, str | int]] = []
    for reading, own in table[table["covariate"] == "similarity"].groupby("reading", sort=False):
        sides = np.where(own["few"], "undefined", side_of(own, "r", known))
        close = (own["r_low"] >= known - SMALL_R) & (own["r_high"] <= known + SMALL_R) & (sides == "about")
        found = {"confirm": close, "contradict": np.isin(sides, ["above", "below"])}
        found |= {"open": (sides == "about") & ~close, "untestable": sides == "undefined"}
        counts = {name: int(np.sum(where)) for name, where in found.items()}
        rows.append({"claim": "CI does not follow similarity", "reading": reading, **counts})
    return pd.DataFrame(rows)


def guard_claim(table: Table) -> Table:
    """Ask of each guard whether most of its rejections are confused, as the paper finds of all of them.

    No sample can show a share of exactly 1, so a guard confirms the claim where the interval of CR@0.60 lies above one
    half, and contradicts it where it lies below.

    Parameters
    ----------
    table : DataFrame
        Table 3; a second reading stands in columns `cr60_clipped`.

    Returns
    -------
    DataFrame
        claim, reading, and the counts of `cohort_claims`; a reading without its columns has no row.
    """
    guards, rows = table[table["axis"] != "model"], []
    for reading, name in (("relative", "cr60"), ("clipped", "cr60_clipped")):
        if f"{name}_low" in guards:
            sides = np.where(guards["few"], "undefined", side_of(guards, name, 0.5))
            claim = {"claim": "guards' rejections are mostly confused", "reading": reading}
            rows.append({**claim, **_outcomes(sides, "above")})
    return pd.DataFrame(rows)


def verdict_word(confirm: int, contradict: int, unclear: int) -> str:
    """Say in one word what comparisons come to, in one reading (`docs/method.md`, Cohorts and regression).

    Parameters
    ----------
    confirm, contradict, unclear : int
        Testable comparisons that confirm the claim, contradict it, or do neither.

    Returns
    -------
    str
        `REPRODUCED` or `NOT_REPRODUCED` where at least `AGREEING` of the comparisons say so and none says the opposite;
        else `CANNOT_TELL`.

    See Also
    --------
    combined_verdict : over readings.

    Examples
    --------
    >>> verdict_word(4, 0, 1), verdict_word(0, 4, 0), verdict_word(1, 0, 18)
    ('reproduced', 'not reproduced', 'cannot tell here')
    """
    least = max(1, AGREEING * (confirm + contradict + unclear))
    if not contradict and confirm >= least:
        return REPRODUCED
    return NOT_REPRODUCED if not confirm and contradict >= least else CANNOT_TELL


def combined_verdict(words: Iterable[str]) -> str:
    """Combine the verdicts of all readings: their common word, `DEPENDS` where they differ.

    Examples
    --------
    >>> combined_verdict(["reproduced", "not reproduced"])
    'depends on the reading'
    """
    different = set(words) or {CANNOT_TELL}
    return different.pop() if len(different) == 1 else DEPENDS


def decided_claims(claims: Table) -> Table:
    """Add up comparisons by claim and reading, and say what they come to.

    Parameters
    ----------
    claims : DataFrame
        From `cohort_claims`, at one tau, `similarity_claim` or `guard_claim`.

    Returns
    -------
    DataFrame
        claim, reading, confirm, contradict, open; word, the reading's verdict, and verdict, that of all readings.
    """
    counts = claims.groupby(["claim", "reading"], sort=False)[OUTCOMES].sum().reset_index()
    counts["word"] = [verdict_word(*map(int, row)) for row in counts[OUTCOMES].to_numpy()]
    return counts.assign(verdict=counts.groupby("claim")["word"].transform(combined_verdict))


def show_claims(claims: Mapping[str, Table]) -> Table:
    """Put what corpora say of each claim into one table, readings side by side; the last row of a claim is all of them.

    Parameters
    ----------
    claims : dict of str to DataFrame
        From `cohort_claims`, at one tau, by the name of a corpus.

    Returns
    -------
    DataFrame
        claim, corpus, a column a reading ("2 yes, 0 no, 1 unclear"), verdict.
    """
    parts = [decided_claims(own).assign(corpus=name) for name, own in claims.items()]
    parts.append(decided_claims(pd.concat(claims.values())).assign(corpus=ALL_CORPORA))
    every = pd.concat(parts)
    every["told"] = [f"{yes} yes, {no} no, {unclear} unclear" for yes, no, unclear in every[OUTCOMES].to_numpy()]
    readings = list(dict.fromkeys(every["reading"]))
    wide = every.pivot(index=["claim", "corpus", "verdict"], columns="reading", values="told").reset_index()
    wide["claim"] = pd.Categorical(wide["claim"], list(CLAIMS))
    wide["corpus"] = pd.Categorical(wide["corpus"], [*claims, ALL_CORPORA])
    wide = wide.sort_values(["claim", "corpus"], ignore_index=True).rename_axis(columns=None)
    return wide[["claim", "corpus", *readings, "verdict"]].astype(str)


def beside_paper(table: Table, correlations: Table) -> Table:
    """Put CD and the correlation of CI with similarity beside the paper's, readings side by side.

    Parameters
    ----------
    table : DataFrame
        Table 1.
    correlations : DataFrame
        From `validity.correlations`.

    Returns
    -------
    DataFrame
        measure, paper, and for each reading the range over targets with at least 30 rejections.
    """
    known = paper_values()["written"]
    ends = " to ".join(known[f"cd.mistral-7b.{end}"] for end in ("low", "high"))
    similar = correlations[correlations["covariate"] == "similarity"]
    rows: list[dict[str, str]] = []
    for measure, paper, frame, name, decimals in (
        ("r of CI with similarity", known["r.similarity"], similar, "r", 2),
        ("CD", f"{ends} (Mistral 7B)", table, "cd", 3),
    ):
        rows.append({"measure": measure, "paper": paper})
        for reading, own in frame[~frame["few"]].groupby("reading", sort=False):
            lowest, highest = (tables.decimal(end, decimals) for end in (own[name].min(), own[name].max()))
            rows[-1][f"here, {reading}"] = f"{lowest} to {highest}"
    return pd.DataFrame(rows)


def leading(table: Table, kind: str, rate: str) -> Table:
    """Return for each target the group that is ahead in a rate.

    Parameters
    ----------
    table : DataFrame
        Parts of `cohorts.groups`.
    kind : str
        "strategy", "category" or "topical".
    rate : str
        "flip" or "frr".

    Returns
    -------
    DataFrame
        The rows of `table` with the highest rate, a target each; targets below 30 rejections are left out.
    """
    own = table[(table["kind"] == kind) & table[rate].notna()]
    enough = own.groupby("target")["n_reject"].transform("sum") >= MIN_REFUSALS
    return own[enough].sort_values(rate, ascending=False, kind="stable").drop_duplicates("target").sort_index()


def ranges(table: Table) -> Table:
    """Tell how far CI moves with each dimension, and where the excess stays above zero.

    Parameters
    ----------
    table : DataFrame
        From `sensitivity.table`; what rests on fewer than 30 rejections is left out.

    Returns
    -------
    DataFrame
        dimension, settings, target (whose CI moves most), default, lowest, highest (its CI); always and never: how many
        of the targets have an excess surely above 0 under every setting and under none.
    """
    rows = []
    judged = table[(table["n"] >= MIN_REFUSALS) & table["ci"].notna()]
    for dimension, own in judged.groupby("dimension", sort=False):
        usual = own[own["setting"] == DEFAULTS[dimension]].set_index("target")["ci"]
        spans = own.groupby("target", sort=False)["ci"].agg(["min", "max"])
        widest = (spans["max"] - spans["min"]).idxmax()
        row = {"dimension": dimension, "settings": own["setting"].nunique(), "target": widest}
        row |= {"default": usual.get(widest, np.nan), "lowest": spans["min"][widest], "highest": spans["max"][widest]}
        if dimension not in CHOOSE_NEIGHBOURS:
            above = (own["excess_low"] > 0).groupby(own["target"]).agg(["all", "any"])
            counts = {"always": above["all"].sum(), "never": (~above["any"]).sum()}
            row |= {name: f"{count} of {len(above)}" for name, count in counts.items()}
        rows.append(row)
    names = ["dimension", "settings", "target", "default", "lowest", "highest", "always", "never"]
    return pd.DataFrame(rows, columns=names)


def unsure_orders(orders: Table, few: Sequence[str] = (), sure: float = 0.95) -> Table:
    """Return the pairs of targets whose order is sure under one setting and surely reversed under another.

    Parameters
    ----------
    orders : DataFrame
        From `sensitivity.orders`.
    few : sequence of str
        Targets with too few rejections to be judged.
    sure : float

    Returns
    -------
    DataFrame
        dimension, measure, first, second, and the lowest and highest probability that the first is higher.
    """
    judged = orders[~orders["first"].isin(few) & ~orders["second"].isin(few)]
    span = judged.groupby(["dimension", "measure", "first", "second"], sort=False)["higher"].agg(["min", "max"])
    span = span.set_axis(["lowest", "highest"], axis="columns").reset_index()
    return span[(span["highest"] >= sure) & (span["lowest"] <= 1 - sure)].reset_index(drop=True)


def kept_orders(orders: Table, reading: str = "relative") -> Table:
    """Tell how many sure orders of targets each setting keeps and surely turns, measures side by side.

    Parameters
    ----------
    orders : DataFrame
        From `surrogate.orders`.
    reading : str

    Returns
    -------
    DataFrame
        among, setting, and for each measure "kept of sure", with what is turned.
    """
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in orders[orders["reading"] == reading].to_dict("records"):
        turned = f", {row['sure_turned']} turned" if row["sure_turned"] else ""
        told = f"{row['sure_kept']} of {row['sure']}{turned}"
        rows.setdefault((row["among"], row["setting"]), {})[tables.HEADINGS.get(row["measure"], row["measure"])] = told
    ordered = sorted(rows, key=lambda key: key[0])  # "all" first, settings as they come
    return pd.DataFrame([{"pairs": among, "setting": setting} | rows[among, setting] for among, setting in ordered])


def judged_predictions(judged: Table) -> Table:
    """Return judged predictions to be shown: number, about (with titles), measure, verdict and the value.

    Parameters
    ----------
    judged : DataFrame
        From `predictions.judge`.
    """
    named = [" | ".join(titles(about.split(" | "))) for about in judged["about"]]
    return tables.shown(judged.assign(about=named), ["value"], ["number", "about", "measure", "verdict"])
