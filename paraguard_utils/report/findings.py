"""What the tables say, in sentences. Each function takes a table and returns text; nothing is estimated here."""

import numpy as np
import pandas as pd

from paraguard_utils import bootstrap
from paraguard_utils.bootstrap import FEW, FEW_CLUSTERS
from paraguard_utils.registry import titles
from paraguard_utils.report import tables
from paraguard_utils.schemas import STRATEGIES
from paraguard_utils.scoring import cohorts, covariates
from paraguard_utils.scoring.cohorts import BINNINGS
from paraguard_utils.scoring.covariates import COVARIATES, LIMIT, SIGNALS
from paraguard_utils.scoring.regression import ADJUSTMENT, POOLED
from paraguard_utils.scoring.sensitivity import CHOOSE_NEIGHBOURS, DEFAULTS


def covariate_verdicts(table, limit=LIMIT):
    """Say in words what CI restates: one sentence per covariate over all targets with enough rejections.

    The paper's break conditions are |r| above 0.7-0.8 with similarity, and CI following risk: read here as an interval
    of r that excludes 0 (ours).

    Parameters
    ----------
    table : DataFrame
        From `correlations`.
    limit : float

    Returns
    -------
    list of str
    """
    judged = table[~table["few"] & table["r_low"].notna()]
    rest = [target for target in dict.fromkeys(table["target"]) if target not in set(judged["target"])]
    sentences = [f"Not judged, fewer than {FEW} rejections or no spread: {', '.join(titles(rest))}."] if rest else []
    for name, title in (COVARIATES | SIGNALS).items():
        parts = []
        for reading, rows in judged[judged["covariate"] == name].groupby("reading", sort=False):
            above, below = rows["r_low"] > 0, rows["r_high"] < 0
            part = f"r from {rows['r'].min():+.2f} to {rows['r'].max():+.2f} ({reading}), "
            if name == "risk":
                part += f"CI follows it in {_count(above | below)} targets (up in {_count(above)}, down in "
                part += f"{_count(below)}), r2 at most {(rows['r'] ** 2).max():.3f}"
            else:
                part += f"its interval above 0 in {_count(above)} and below 0 in {_count(below)} targets"
            if name == "similarity":
                met, unclear = covariates.breaks(rows, limit)
                part += f", the break condition |r| > {limit} met in {_count(met)}, not ruled out in {_count(unclear)}"
            parts.append(part)
        if parts:
            sentences.append(f"{title}: {'; '.join(parts)}.")
    return sentences


def _count(hits):
    return f"{hits.sum() or 'none'} of {len(hits)}"


def explained_verdicts(table):
    """Say in words how much of CI the covariates explain together, one sentence per reading.

    Parameters
    ----------
    table : DataFrame
        From `explained`.

    Returns
    -------
    list of str
    """
    sentences = []
    for reading, rows in table[~table["few"] & table["r2_adjusted"].notna()].groupby("reading", sort=False):
        least, most = rows.loc[rows["r2_adjusted"].idxmin()], rows.loc[rows["r2_adjusted"].idxmax()]
        ends = (
            f"{row['r2_adjusted']:.2f} [{row['r2_adjusted_low']:.2f}, {row['r2_adjusted_high']:.2f}] "
            f"({titles([row['target']])[0]}, n = {row['n']})"
            for row in (least, most)
        )
        ends = " to ".join(dict.fromkeys(ends))  # one target is both
        sentences.append(
            f"{reading}: the {len(COVARIATES)} covariates that are no signals together explain {ends} of CI's variance "
            f"(adjusted R2, {len(rows)} targets)."
        )
    return sentences


def tail_verdicts(shares, tail):
    """Say in words, for each target, how near-identical prompts were decided and where the score ranks them.

    Parameters
    ----------
    shares : DataFrame
        From `flip_shares`.
    tail : DataFrame
        From `low_tail`.

    Returns
    -------
    list of str
    """
    sentences = []
    for row in shares.to_dict("records"):
        head = f"{titles([row['target']])[0]}: "
        if not row["n_near"]:
            sentences.append(f"{head}no two prompts of one cluster are near-identical and scored.")
            continue
        near, every = (
            f"{row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"
            if np.isfinite(row[f"{name}_low"])
            else f"{row[name]:.3f} [–]"
            for name in ("flip_near", "flip_pairs")
        )
        sentence = (
            f"{head}{row['n_near_flipped']} of {row['n_near']} near-identical pairs are decided differently "
            f"({near}; {every} of all {row['n_pairs']} pairs of one cluster)"
        )
        listed = tail[tail["target"] == row["target"]]
        if len(listed):
            below, clipped = (listed[name].median() for name in ("share_below", "share_below_clipped"))
            sentence += (
                f"; a median of {below:.1%} of the target's rejected-accepted pairs score lower than these "
                f"(clipped: {clipped:.1%})"
            )
        sentences.append(f"{sentence}{'; too few to judge' if row['few'] else ''}.")
    return sentences


def excess_verdicts(table):
    """Say in words, for each row of Table 1 or 3, whether refusals are more confused than paraphrase noise.

    Returns
    -------
    list of str
    """
    sentences = []
    for row in table.to_dict("records"):
        head = f"{titles([row['target']])[0]} ({row['reading']}): "
        if np.isnan(row["excess"]):
            sentences.append(f"{head}excess is undefined ({row['note']}).")
            continue
        if row["few"] or row["n_mixed"] < bootstrap.FEW_CLUSTERS:
            meaning = f"is not judged: too few ({row['n_reject']} rejections)"
        elif row["excess_low"] > 0:
            meaning = "is above zero: refused phrasings lie further from accepted ones than those from each other"
        elif row["excess_high"] < 0:
            meaning = "is below zero: refused phrasings lie closer to accepted ones than those to each other"
        else:
            meaning = "covers zero: refused phrasings are not told from paraphrase noise"
        known = np.isfinite(row["excess_low"])
        bounds = f"{row['excess_low']:+.3f}, {row['excess_high']:+.3f}" if known else "–"
        excess = f"{row['excess']:+.3f} [{bounds}]"
        sentences.append(f"{head}CI {row['ci']:.3f}; the excess {excess} in {row['n_mixed']} mixed clusters {meaning}.")
    return sentences


def chance_verdicts(table):
    """Say in words whether refused phrasings lie further off than chance puts them, and whether wording separates them.

    Parameters
    ----------
    table : DataFrame
        Table 1.

    Returns
    -------
    list of str
    """
    sentences = []
    for row in table.to_dict("records"):
        head = f"{titles([row['target']])[0]} ({row['reading']}): "
        if row["few"] or row["n_mixed"] < bootstrap.FEW_CLUSTERS or not np.isfinite(row["excess_low"]):
            sentences.append(f"{head}not judged ({row['n_reject']} rejections, {row['n_mixed']} mixed clusters).")
            continue
        primary, matched, left, rest, floor = (
            tables.interval(row[name], row[f"{name}_low"], row[f"{name}_high"])
            for name in (
                "excess",
                "excess_matched",
                "excess_equal_contrast",
                "excess_equal_contrast_no_prob_shift",
                "cr_floor",
            )
        )
        above, remains = row["excess_low"] > 0, row["excess_equal_contrast_low"] > 0
        if above:
            sentence = "refused phrasings lie further from accepted ones than these from each other"
        elif row["excess_high"] < 0:
            sentence = "refused phrasings lie closer to accepted ones than these to each other"
        else:
            sentence = "inside clusters refused phrasings are not told from accepted ones"
        sentence += f" (excess {primary}; over the matched floor {matched})"
        if np.isnan(row["excess_equal_contrast_low"]):
            sentence += "; what is left at equal perplexity contrast is undefined"
        elif above and not remains:
            sentence += f", and are separable by wording: at equal perplexity contrast {left} is left"
        else:
            sentence += ", beyond what perplexity separates" if above else ""
            sentence += f"; at equal perplexity contrast {left} is left, {rest} without ProbShift"
        sentences.append(
            f"{head}{sentence}. CR@floor is {floor} (chance: 0.05). Dealt out anew inside clusters, labels give a CI "
            f"of {row['ci_null']:.3f} instead of {row['ci']:.3f} (p = {row['p']:.3f})."
        )
    return sentences


def judged_differences(between, table):
    """Leave out of the differences in CI and excess what rests on targets with few rejections or mixed clusters.

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
    few = set(table.loc[table["few"] | (table["n_mixed"] < bootstrap.FEW_CLUSTERS), "target"])
    unsure = between["measure"].isin(["ci", "excess"]) & (between["first"].isin(few) | between["second"].isin(few))
    return between[~unsure & between["difference"].notna()]


def difference_verdicts(between, table, limit=0.05):
    """Say in words how many pairs of targets differ in each measure after Holm's adjustment.

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
    list of str
        One sentence per measure.
    """
    sentences = []
    for measure, judged in judged_differences(between, table).groupby("measure", sort=False):
        differ = judged[judged["p_holm"] < limit]
        sentence = f"{measure}: {len(differ)} of {len(judged)} pairs of targets differ (p < {limit} after Holm)"
        if len(differ):
            most = differ.loc[differ["difference"].abs().idxmax()]
            first, second = titles([most["first"], most["second"]])
            size = tables.interval(most["difference"], most["difference_low"], most["difference_high"])
            sentence += f"; most of all {first} and {second}, by {size}"
        sentences.append(sentence + ".")
    return sentences


def cohort_verdicts(table, tau=0.60):
    """Put the paper's two claims about cohorts to the test, in words, for each binning and reading.

    The claims: safe paraphrases (low risk, high similarity) are about 60 % confused, and the high-risk cohort, 27.8 %,
    least. The first is read as CR above one half, and above that of the target's other rejections; the second as CR
    below that of the other rejections. A cohort of fewer than `FEW_CLUSTERS` clusters is not judged.

    Parameters
    ----------
    table : DataFrame
        Table 2.
    tau : float
        One of `TAUS`; the paper does not say which of them Table 2 took.

    Returns
    -------
    list of str
    """
    end, texts = cohorts.percent(tau), []
    for (bins, reading), rows in table.groupby(["bins", "reading"], sort=False):
        cells = rows.set_index(["risk", "similarity"])
        safe, charged = cells.loc[[("low", "high")]], cells.loc[[("high", "all")]]
        share = _told(safe, f"cr{end}", 0.5, {"above": "more than half", "below": "less than half"})
        gaps = _told(safe, f"gap{end}", 0, {"above": "more confused", "below": "less confused"})
        least = _told(charged, f"gap{end}", 0, {"below": "less confused", "above": "more confused"})
        total = f"{len(safe)} target{'s' * (len(safe) != 1)}"
        texts.append(
            f"{BINNINGS[bins].capitalize()}, {reading} reading, CR@{tau:.2f}, {total}. Safe paraphrases (low risk, "
            f"high similarity; paper: about 60 %) are confused: {share}; compared with the target's other rejections: "
            f"{gaps}. High-risk rejections (paper: 27.8 %, the least) compared with the others: {least}."
        )
    return texts


def _told(cells, measure, at, states):
    """Count the targets whose interval lies above a value, below it or about it, and give their numbers.

    The states in `states` are named in their order, and the first of them even where no target is in it.
    """
    found = {**{state: [] for state in states}, "about": [], "few": []}
    for row in cells.to_dict("records"):
        n_clusters = min(row["n_clusters"], row["rest_clusters"]) if measure.startswith("gap") else row["n_clusters"]
        low, high = row[f"{measure}_low"], row[f"{measure}_high"]
        if n_clusters < FEW_CLUSTERS or np.isnan(low):
            found["few"].append(row)
        else:
            found["above" if low > at else "below" if high < at else "about"].append(row)
    if len(found["few"]) == len(cells):
        return f"not judged in any (under {FEW_CLUSTERS} clusters)"
    heads = states | {"about": "undecided", "few": "not judged"}
    parts = [
        f"{heads[state]} in {len(rows)}{_numbers(rows, measure) if state != 'few' else ''}"
        for state, rows in found.items()
        if rows or state == next(iter(states))
    ]
    return ", ".join(parts) + (f" (under {FEW_CLUSTERS} clusters)" if found["few"] else "")


def _numbers(rows, measure):
    """Give one or two targets by name, more of them as a range."""
    sign = "+" if measure.startswith("gap") else ""
    if len(rows) <= 2:
        names = (f"{titles([row['target']])[0]} {_shown(row, measure, sign)}, n = {row['n']}" for row in rows)
        return f" ({'; '.join(names)})" if rows else ""
    frame = pd.DataFrame(rows)
    first, last = (f"{value + 0.0:{sign}.2f}" for value in (frame[measure].min(), frame[measure].max()))
    low, high = frame[f"{measure}_low"].min(), frame[f"{measure}_high"].max()
    return (
        f" ({first if first == last else f'{first} to {last}'}, intervals within [{low:{sign}.2f}, {high:{sign}.2f}], "
        f"n = {frame['n'].min()} to {frame['n'].max()})"
    )


def group_verdicts(table, limit=0.95):
    """Say in words, for each target, which strategy flips most decisions and which category is refused most.

    Parameters
    ----------
    table : DataFrame
        Parts of `groups`.
    limit : float
        Share of resamples in which a group must be the highest to be called so.

    Returns
    -------
    list of str
    """
    sentences = []
    for target, rows in table.groupby("target", sort=False):
        title = titles([target])[0]
        strategies = rows[(rows["kind"] == "strategy") & rows["flip"].notna()].sort_values("flip", ascending=False)
        categories = rows[(rows["kind"] == "category") & rows["frr"].notna()].sort_values("frr", ascending=False)
        n_reject = int(categories["n_reject"].sum())
        if n_reject < FEW or strategies.empty:
            sentences.append(f"{title}: not judged ({n_reject} rejections).")
            continue
        (_, top), (_, last) = strategies.iloc[[0, -1]].iterrows()
        (_, first), (_, final) = categories.iloc[[0, -1]].iterrows()
        flips = "{} flips most decisions" if top["flip_most"] >= limit else "no strategy surely flips most, {} is ahead"
        refused = "{} is refused most" if first["frr_most"] >= limit else "none is surely refused most, {} is ahead"
        sentences.append(
            f"{title}: {flips.format(top['group'])}: {_shown(top, 'flip')} of {top['n_flip']} variants are decided "
            f"otherwise than their seed, {_shown(top, 'to_reject')} to refusal and {_shown(top, 'to_accept')} to "
            f"acceptance (highest in {top['flip_most']:.0%} of resamples); {last['group']} flips fewest, "
            f"{_shown(last, 'flip')}. Of the categories, {refused.format(first['group'])}: FRR {_shown(first, 'frr')} "
            f"(highest in {first['frr_most']:.0%} of resamples); {final['group']} is refused least, "
            f"{_shown(final, 'frr')}."
        )
    return sentences


def regression_verdicts(table, level=0.05):
    """Say in words which terms move the odds of refusal after Holm's correction, and in which targets.

    Parameters
    ----------
    table : DataFrame
        From `regression`.
    level : float

    Returns
    -------
    list of str
    """
    tested = table[(table["term"] != ADJUSTMENT) & (table["target"] != POOLED)]
    sentences, silent = [], []
    for term, rows in tested.groupby("term", sort=False):
        fitted, sure = rows[rows["odds_ratio"].notna()], rows[rows["p_holm"] < level]
        if sure.empty:
            silent += [term] if len(fitted) else []
            continue
        parts = []
        for word, own in (("raises", sure[sure["odds_ratio"] > 1]), ("lowers", sure[sure["odds_ratio"] < 1])):
            if len(own):
                names = (f"{titles([row['target']])[0]} {_shown(row, 'odds_ratio')}" for _, row in own.iterrows())
                parts.append(f"{word} the odds of refusal in {len(own)} of {len(fitted)} targets ({'; '.join(names)})")
        unit = "" if term in STRATEGIES else ", per standard deviation,"
        sentences.append(f"{term.capitalize()}{unit} {' and '.join(parts)}.")
    if silent:
        sentences.append(f"Not told from 1 in any target after Holm's correction: {', '.join(silent)}.")
    pooled = table[(table["target"] == POOLED) & (table["p_holm"] < level)]
    if len(pooled):
        names = (f"{row['term']} {_shown(row, 'odds_ratio')}" for _, row in pooled.iterrows())
        sentences.append(f"Over all targets together, odds ratios told from 1 are those of {', '.join(names)}.")
    for target, rows in table[table["odds_ratio"].isna()].groupby("target", sort=False):
        for note, own in rows.groupby("note", sort=False):
            which = "no term" if len(own) == (table["target"] == target).sum() else f"not {', '.join(own['term'])}"
            sentences.append(f"{titles([target])[0]}: {which} is estimated ({note}).")
    return sentences


def _shown(row, name, sign=""):
    low = row[f"{name}_low"]
    bounds = "–" if np.isnan(low) else f"{low:{sign}.2f}, {row[f'{name}_high']:{sign}.2f}"
    return f"{row[name]:{sign}.2f} [{bounds}]"


def range_verdicts(table):
    """Say in words how far CI moves with each dimension, and where the excess stays above zero.

    Parameters
    ----------
    table : DataFrame
        From `table`; what rests on fewer than 30 rejections is left out.

    Returns
    -------
    list of str
        One sentence per dimension that has these measures.
    """
    sentences = []
    judged = table[(table["n"] >= FEW) & table["ci"].notna()]
    for dimension, own in judged.groupby("dimension", sort=False):
        usual = own[own["setting"] == DEFAULTS[dimension]].set_index("target")
        spans = own.groupby("target", sort=False)["ci"].agg(["min", "max"])
        widest = (spans["max"] - spans["min"]).idxmax()
        sentence = (
            f"{dimension} ({own['setting'].nunique()} settings): CI moves most for {titles([widest])[0]}, from "
            f"{spans.loc[widest, 'min']:.3f} to {spans.loc[widest, 'max']:.3f} (default "
            f"{usual['ci'].get(widest, np.nan):.3f})"
        )
        if dimension not in CHOOSE_NEIGHBOURS:
            above = own.assign(above=own["excess_low"] > 0).groupby("target", sort=False)["above"].mean()
            sentence += (
                f"; of {len(above)} targets judged the excess lies surely above 0 under every setting for "
                f"{int((above == 1).sum())}, under some for {int(above.between(0, 1, inclusive='neither').sum())}, "
                f"under none for {int((above == 0).sum())}"
            )
        sentences.append(f"{sentence}.")
    return sentences


def order_verdicts(counts):
    """Say in words which measure keeps the order of targets under which choices.

    Parameters
    ----------
    counts : DataFrame
        From `order_counts`.

    Returns
    -------
    list of str
        One sentence per measure that more than one dimension moves.
    """
    sentences = []
    for measure, rows in counts.groupby("measure", sort=False):
        if len(rows) < 2:
            continue
        kept = ", ".join(f"{row.dimension} {row.always} of {row.pairs}" for row in rows.itertuples())
        turned = rows[rows["reversed"] > 0]
        reversals = ", ".join(f"{row.dimension} {row.reversed}" for row in turned.itertuples())
        sentences.append(
            f"{measure}, pairs of targets that keep one sure order, by the choice varied: {kept}. Pairs surely "
            f"reversed: {reversals or 'none'}."
        )
    return sentences


def search_verdicts(searched):
    """Say in words what the grid search finds beside the paper's weights.

    Parameters
    ----------
    searched : DataFrame
        From `grid_search`.

    Returns
    -------
    list of str
        One sentence per reading, with and without ProbShift.
    """
    sentences = []
    for (reading, which), own in searched.groupby(["reading", "prob_shift"], sort=False):
        pooled = own[own["target"] == "all targets"].iloc[0]
        judged = own[(own["target"] != "all targets") & ~own["few"] & own["gain"].notna()]
        if np.isnan(pooled["gain"]):
            sentences.append(f"{reading}, {which} ProbShift: too few mixed clusters to search.")
            continue
        held_out, paper, gain = (
            tables.interval(pooled[name], pooled[f"{name}_low"], pooled[f"{name}_high"])
            for name in ("auc_held_out", "auc_paper", "gain")
        )
        better, worse = int((judged["gain_low"] > 0).sum()), int((judged["gain_high"] < 0).sum())
        weights = "0.4/0.1/0.5" if which == "with" else "0.4/0/0.5, scaled to 1,"
        sentences.append(
            f"{reading}, {which} ProbShift: over all targets the search takes Drift/ProbShift/PPL = {pooled['best']}; "
            f"held out it tells confused pairs with AUC {held_out}, the paper's {weights} with {paper} (gain {gain}). "
            f"Target by target it gains surely for {better} and loses surely for {worse} of {len(judged)}."
        )
    return sentences


def curve_verdicts(curve, few=()):
    """Say in words at how many thresholds CR leaves the range of permuted labels.

    Parameters
    ----------
    curve : DataFrame
        The table `cr_curve` of 03.
    few : sequence of str
        Targets with too few rejections to be judged.

    Returns
    -------
    list of str
        One sentence per target and reading.
    """
    sentences = []
    judged = curve[~curve["target"].isin(few) & curve["cr"].notna()]
    for (target, reading), own in judged.groupby(["target", "reading"], sort=False):
        above = own[own["cr"] > own["null_high"] + 1e-12]
        largest = own.loc[(own["cr"] - own["null"]).idxmax()]
        sentences.append(
            f"{titles([target])[0]} ({reading}): CR lies above the middle 95 % of permutations at {len(above)} of "
            f"{len(own)} values of tau; the gap is widest at tau = {largest['tau']:.2f}, {largest['cr']:.3f} against "
            f"{largest['null']:.3f}."
        )
    return sentences


def token_verdict(shown):
    """Say in words whether the rejections of a token view stand beside paraphrases or beside other requests.

    Parameters
    ----------
    shown : DataFrame
        From `token_pairs`.

    Returns
    -------
    str
    """
    if not len(shown):
        return "No rejection has an accepted neighbour: there is nothing to compare."
    pairs = shown.drop_duplicates("number")
    own = int(pairs["same_cluster"].sum())
    low, high = pairs["similarity"].min(), pairs["similarity"].max()
    return (
        f"Of the {len(pairs)} most confused rejections, {own} have their nearest accepted neighbour in their own "
        f"cluster, {len(pairs) - own} in another; its similarity runs from {low:.2f} to {high:.2f}. "
        f"Medians over the pairs: Drift {pairs['drift'].median():.2f}, ProbShift {pairs['prob_shift'].median():.2f}, "
        f"PPL contrast {pairs['ppl_relative'].median():.2f}."
    )
