"""Cohorts: where refusals are confused, and which rewordings flip them (`docs/method.md`, Cohorts and regression).

From the paper: rejections are binned by surface risk and by similarity. Ours: two binnings, thirds of a target's own
rejections and fixed edges; cohorts by category and by strategy; the rate at which a strategy flips its seed's decision;
and a logistic regression of refusal on strategy, risk and similarity with errors clustered by seed.
"""

import warnings

import numpy as np
import pandas as pd
from scipy.stats import norm
from statsmodels.genmod.cov_struct import Exchangeable
from statsmodels.genmod.families import Binomial
from statsmodels.genmod.generalized_estimating_equations import GEE

from paraguard_utils.gates import Gates
from paraguard_utils.metrics import CI, FEW, FEW_CLUSTERS, TAUS, THETA, Estimate, columns, holm, rejections
from paraguard_utils.schemas import STRATEGIES
from paraguard_utils.targets import titles
from paraguard_utils.text import words

BINS = ("low", "middle", "high")

BINNINGS = {"quantile": "thirds of a target's own rejections", "fixed": "fixed edges"}
"""Thirds fill the cells of one target evenly; fixed edges mean the same for all targets and make them comparable."""

RISK_EDGES = tuple(Gates.min_risk + (Gates.max_risk - Gates.min_risk) * part for part in (1 / 3, 2 / 3))
"""Fixed edges of risk (ours): the gate's interval in three equal steps; no prompt of a gated corpus is outside."""

SIMILARITY_EDGES = (THETA, 0.80)
"""Fixed edges of similarity (ours): below theta neighbours are no paraphrases on average; 0.80 halves what is above."""

KINDS = ("strategy", "category")

EVENTS = 10
"""Refusals, and acceptances, that a regression needs for each of its terms; a rule of thumb for logistic models."""

ROUNDING = 1e-12
"""Variance of a log odds ratio up to which it counts as none."""

LARGEST = 10.0
"""Log odds ratio beyond which, either way, an estimate is read as separation that no maximum of the likelihood ends."""

ADJUSTMENT = "length"
"""The regression's term that is adjusted for and not tested."""

POOLED = "all targets"


def thirds(values):
    """Cut values into three bins of about equal size.

    Parameters
    ----------
    values : Series of float

    Returns
    -------
    Series of str
        A member of `BINS` each; equal values always share a bin, so a bin may be empty.
    """
    ranks = values.rank(method="min", pct=True)
    return pd.cut(ranks, [0, 1 / 3, 2 / 3, 1], labels=list(BINS)).astype(str)


def between(values, edges):
    """Cut values at two edges; an edge belongs to the bin above it.

    Parameters
    ----------
    values : Series of float
    edges : tuple of float
        Two, ascending.

    Returns
    -------
    Series of str
        A member of `BINS` each.
    """
    return pd.cut(values, [-np.inf, *edges, np.inf], labels=list(BINS), right=False).astype(str)


def members(corpus, scores, bins="quantile"):
    """Return a target's rejections with their risk and both bins.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, risk.
    scores : DataFrame
        One target's scores.
    bins : str
        A key of `BINNINGS`.

    Returns
    -------
    DataFrame
        The scored rejections with risk, bins, risk_bin and similarity_bin.
    """
    rejected = rejections(scores)
    rejected = rejected.merge(corpus[["prompt_id", "risk"]], on="prompt_id")
    if bins == "quantile":
        risk, similarity = thirds(rejected["risk"]), thirds(rejected["mean_similarity"])
    else:
        risk = between(rejected["risk"], RISK_EDGES)
        similarity = between(rejected["mean_similarity"], SIMILARITY_EDGES)
    return rejected.assign(bins=bins, risk_bin=risk, similarity_bin=similarity)


def table(target, rejected, clusters, bins="quantile"):
    """Tabulate CI and CR by cohort: one target's part of Table 2 in one binning.

    Parameters
    ----------
    target : str
    rejected : DataFrame
        From `members`.
    clusters : metrics.Clusters
    bins : str
        The binning that `members` was given.

    Returns
    -------
    DataFrame
        A row per reading, risk bin and similarity bin (`all` = margin): bounds, n, n_clusters, ci, cr60, cr75 with
        intervals, few; gap60 and gap75, the cohort's CR minus that of the target's other rejections over the same
        resamples, with the number of `rest_clusters`. NaN in empty cells, and `note` says so.
    """
    rows = []
    for reading, column in CI.items():
        for risk_bin in (*BINS, "all"):
            for similarity_bin in (*BINS, "all"):
                inside = pd.Series(True, index=rejected.index)
                if risk_bin != "all":
                    inside &= rejected["risk_bin"] == risk_bin
                if similarity_bin != "all":
                    inside &= rejected["similarity_bin"] == similarity_bin
                cell, rest = rejected[inside], rejected[~inside]
                rows.append(
                    {
                        "target": target,
                        "bins": bins,
                        "reading": reading,
                        "risk": risk_bin,
                        "similarity": similarity_bin,
                        "risk_from": cell["risk"].min(),
                        "risk_to": cell["risk"].max(),
                        "similarity_from": cell["mean_similarity"].min(),
                        "similarity_to": cell["mean_similarity"].max(),
                        "n": len(cell),
                        "n_clusters": cell["cluster_id"].nunique(),
                        **_estimates(cell, rest, column, clusters),
                        "rest_clusters": rest["cluster_id"].nunique(),
                        "few": len(cell) < FEW,
                        "note": _note(cell, rest),
                    }
                )
    return pd.DataFrame(rows)


def _estimates(cell, rest, column, clusters):
    estimates = {"ci": clusters.mean(cell["cluster_id"], cell[column])}
    for tau in TAUS:
        here, there = (clusters.share(part["cluster_id"], part[column] >= tau) for part in (cell, rest))
        estimates |= {f"cr{_percent(tau)}": here, f"gap{_percent(tau)}": gap(here, there)}
    return columns(estimates)


def _note(cell, rest):
    if not len(cell):
        return "no rejection in this cohort"
    return "" if len(rest) else "no rejection outside: the gap is undefined"


def _percent(tau):
    return round(tau * 100)


def gap(first, second):
    """Return the difference of two shares over the same resampled clusters.

    Parameters
    ----------
    first, second : metrics.Estimate
        Shares in [0, 1].

    Returns
    -------
    metrics.Estimate
        first - second in [-1, 1]. The interval is a percentile interval of the paired differences; where a share is 0
        or 1, and resamples show none of its uncertainty, the two intervals' arms are added in squares instead
        (Newcombe's hybrid interval, which takes the shares for independent).
    """
    value, draws = first[0] - second[0], first.draws - second.draws
    if not np.isfinite(value) or np.isnan([*first, *second]).any():
        return Estimate(value, np.nan, np.nan, draws)
    if {first[0], second[0]} & {0.0, 1.0}:
        down = np.hypot(first[0] - first[1], second[2] - second[0])
        up = np.hypot(first[2] - first[0], second[0] - second[1])
        return Estimate(value, float(value - down), float(value + up), draws)
    return Estimate.percentile(value, draws)


def groups(target, corpus, scores, clusters):
    """Tabulate refusal, confusion and flips by strategy and by category: one target's part of `table2_groups`.

    Parameters
    ----------
    target : str
    corpus : DataFrame
        Columns prompt_id, variant, strategy, category.
    scores : DataFrame
        One target's scores.
    clusters : metrics.Clusters

    Returns
    -------
    DataFrame
        A row per kind ("strategy", "category") and group. frr; of its rejections ci, cr60, ci_clipped, cr60_clipped,
        few; flip, the share of variants decided otherwise than their own seed, of which to_reject and to_accept are
        the two directions (flip = to_reject + to_accept), over the n_flip variants whose seed is scored; frr_most and
        flip_most, the share of resamples in which the group is the highest of its kind. NaN with a `note` where
        undefined.
    """
    about = corpus[["prompt_id", "variant", "strategy", "category"]]
    frame = scores.merge(about, on="prompt_id")
    seeds = frame[frame["variant"] == 0].set_index("cluster_id")["label"]
    frame = frame.assign(seed=frame["cluster_id"].map(seeds))
    rows = []
    for kind in KINDS:
        order = {"strategy": ("seed", *STRATEGIES), "category": sorted(set(corpus["category"]))}[kind]
        found = {name: frame[frame[kind] == name] for name in order if (corpus[kind] == name).any()}
        estimates = {name: _group(cell, clusters) for name, cell in found.items()}
        most = {measure: _most({name: own[measure] for name, own in estimates.items()}) for measure in ("frr", "flip")}
        for name, cell in found.items():
            n_reject, n_flip = int((cell["label"] == "reject").sum()), len(_variants(cell))
            empty = "the seed is the reference" if name == "seed" else "no variant with a scored seed"
            n_scored = int(cell.loc[cell["label"] == "reject", "ci"].notna().sum())
            reasons = ["no scored rejection: CI and CR are undefined"] * (not n_scored)
            reasons += [f"no flip: {empty}"] * (not n_flip)
            rows.append(
                {
                    "target": target,
                    "kind": kind,
                    "group": name,
                    "n_scored": len(cell),
                    "n_reject": n_reject,
                    "n_clusters": cell["cluster_id"].nunique(),
                    "n_flip": n_flip,
                    **columns(estimates[name]),
                    **{f"{measure}_most": shares.get(name, np.nan) for measure, shares in most.items()},
                    "few": n_reject < FEW,
                    "note": "; ".join(reasons),
                }
            )
    return pd.DataFrame(rows)


def _variants(cell):
    return cell[(cell["variant"] > 0) & cell["seed"].notna()]


def _group(cell, clusters):
    rejected = rejections(cell)
    variants = _variants(cell)
    ids, flipped = variants["cluster_id"], variants["label"] != variants["seed"]
    estimates = {"frr": clusters.share(cell["cluster_id"], cell["label"] == "reject")}
    for reading, column in CI.items():
        end = "" if reading == "relative" else f"_{reading}"
        estimates[f"ci{end}"] = clusters.mean(rejected["cluster_id"], rejected[column])
        estimates[f"cr60{end}"] = clusters.share(rejected["cluster_id"], rejected[column] >= 0.60)
    return estimates | {
        "flip": clusters.share(ids, flipped),
        "to_reject": clusters.share(ids, flipped & (variants["label"] == "reject")),
        "to_accept": clusters.share(ids, flipped & (variants["label"] == "accept")),
    }


def _most(estimates):
    """Return the share of resamples in which each estimate is the highest, ties shared; undefined ones are left out."""
    defined = {name: estimate.draws for name, estimate in estimates.items() if np.isfinite(estimate[0])}
    if not defined:
        return {}
    draws = np.array(list(defined.values()))
    draws = draws[:, np.isfinite(draws).any(axis=0)]
    highest = draws == np.nanmax(draws, axis=0)
    return dict(zip(defined, (highest / highest.sum(axis=0)).mean(axis=1).tolist(), strict=True))


def design(corpus):
    """Return the terms of the regression for each prompt.

    Parameters
    ----------
    corpus : DataFrame

    Returns
    -------
    DataFrame, indexed by prompt_id
        One column of 0 and 1 per strategy, the seed being the reference; risk and length (log number of words) in
        standard deviations over the corpus; similarity to the seed in standard deviations over the variants. A seed's
        similarity to itself is 1 by definition and no measurement, and would be collinear with being the seed: seeds
        get 0, the variants' mean, so that a strategy's odds ratio compares its variants of average similarity with
        their seeds, and the slope comes from the variants alone.
    """
    variant = corpus["variant"] > 0
    length = np.log([max(len(words(text)), 1) for text in corpus["text"]])
    terms = {name: (corpus["strategy"] == name).astype(float) for name in STRATEGIES}
    terms["risk"] = _standard(corpus["risk"])
    terms["similarity"] = _standard(corpus["similarity"].where(variant)).fillna(0.0)
    terms[ADJUSTMENT] = _standard(pd.Series(length, index=corpus.index))
    return pd.DataFrame(terms).set_index(corpus["prompt_id"].to_numpy())


def _standard(values):
    spread = values.std()
    return (values - values.mean()) / spread if spread > 1e-9 else values * 0.0


def regression(corpus, scores):
    """Regress refusal on strategy, surface risk and similarity to the seed, for each target and for all together.

    Logistic regression by generalized estimating equations: exchangeable correlation inside a cluster, sandwich errors
    over clusters (ours). Odds ratios are population averages, per standard deviation for risk and similarity, at equal
    length; a strategy's is at equal risk too, so it leaves out what the strategy does by making the wording less or
    more charged. Every refusal counts, with or without a CI.

    Parameters
    ----------
    corpus : DataFrame
    scores : dict of str to DataFrame
        By target.

    Returns
    -------
    DataFrame
        target, term, odds_ratio with its interval, p, p_holm, n, n_reject, n_clusters, note. `POOLED` has a term per
        target beside those shown, and needs two targets that have both decisions. Holm's correction runs over all terms
        of all targets, and apart from them over those of `POOLED`; `ADJUSTMENT` is not tested. NaN with a `note` where
        refusals or acceptances are too few (`EVENTS` per term), a strategy is always or never refused, terms have no
        spread or are collinear, or the fit does not converge; interval and p alone where a term's effect has no
        variance between clusters.
    """
    terms = design(corpus)
    rows, stacked = [], []
    for number, (target, frame) in enumerate(scores.items()):
        frame = frame[["prompt_id", "cluster_id", "label"]].assign(refused=frame["label"].eq("reject"), number=number)
        rows += _odds(target, terms.loc[frame["prompt_id"]], frame["refused"], frame["cluster_id"], terms.columns)
        if frame["refused"].nunique() == 2:
            stacked.append(frame)
    if len(stacked) > 1:
        frame = pd.concat(stacked, ignore_index=True)
        both = terms.loc[frame["prompt_id"]].reset_index(drop=True)
        both = both.join(pd.get_dummies(frame["number"], prefix="target", drop_first=True, dtype=float))
        rows += _odds(POOLED, both, frame["refused"], frame["cluster_id"], terms.columns)
    result = pd.DataFrame(rows)
    pooled = result["target"] == POOLED
    for family in (pooled, ~pooled):
        tested = family & result["p"].notna() & (result["term"] != ADJUSTMENT)
        result.loc[tested, "p_holm"] = holm(result.loc[tested, "p"])
    return result


def _odds(target, frame, refused, cluster_ids, shown):
    """Fit one regression; return a row per shown term."""
    frame, refused, cluster_ids = frame.reset_index(drop=True), refused.to_numpy(), cluster_ids.to_numpy()
    varied = frame.columns[frame.nunique() > 1]
    notes = {
        name: "no scored variant" if name in STRATEGIES else "no spread" for name in frame.columns.difference(varied)
    }
    reason = _too_few(refused, len(varied))
    if not reason:
        for name in varied.intersection(STRATEGIES):
            inside = refused[frame[name] == 1]
            if inside.all() or not inside.any():
                notes[name] = f"{'every' if inside.all() else 'no'} variant is refused (separation)"
        kept = (frame[[name for name in notes if name in STRATEGIES]] == 0).all(axis=1).to_numpy()
        frame, refused, cluster_ids = frame[kept], refused[kept], cluster_ids[kept]
    fitted = {}
    if not reason:
        fitted, reason = _fit(frame.drop(columns=list(notes)), refused, cluster_ids)
    undefined = (np.nan,) * 4
    return [
        {
            "target": target,
            "term": name,
            **columns({"odds_ratio": fitted.get(name, undefined)[:3]}),
            "p": fitted.get(name, undefined)[3],
            "p_holm": np.nan,
            "n": len(frame),
            "n_reject": int(refused.sum()),
            "n_clusters": len(set(cluster_ids)),
            "note": reason or notes.get(name) or _fitted_note(name, fitted[name]),
        }
        for name in shown
    ]


def _fitted_note(name, estimate):
    if name == ADJUSTMENT:
        return "adjusted for, not tested"
    return "no variance between clusters" if np.isnan(estimate[3]) else ""


def _too_few(refused, terms):
    rejected, accepted = int(refused.sum()), int((~refused).sum())
    if not terms:
        return "no term has spread"
    if min(rejected, accepted) >= EVENTS * terms:
        return ""
    events = f"{rejected} refusals" if rejected <= accepted else f"{accepted} acceptances"
    return f"{events} for {terms} term{'s' * (terms > 1)}, fewer than {EVENTS} a term"


def _fit(frame, refused, cluster_ids):
    """Return (odds ratio, low, high, p) by term, or nothing and the reason."""
    strategies = [name for name in frame.columns if name in STRATEGIES]
    seeds = refused[(frame[strategies] == 0).all(axis=1).to_numpy()]
    if strategies and not 0 < seeds.sum() < len(seeds):
        return {}, "the seeds, which are the reference, are not decided both ways"
    exposed = frame.assign(constant=1.0)
    if np.linalg.matrix_rank(exposed.to_numpy()) < exposed.shape[1]:
        return {}, "terms are collinear"
    model = GEE(refused.astype(float), exposed, groups=cluster_ids, family=Binomial(), cov_struct=Exchangeable())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # what the warnings are about is checked below
        found = model.fit(maxiter=100, ctol=1e-8)
    variance = np.diag(found.cov_params())
    if not found.converged or not np.isfinite(variance).all():
        return {}, "the fit does not converge"
    if found.params[frame.columns].abs().max() > LARGEST:
        return {}, "a term separates refusals from acceptances"
    # Where nothing varies between clusters, rounding decides between +1e-19 and -1e-19: neither is a variance.
    deviation = np.sqrt(np.where(variance > ROUNDING, variance, np.nan))
    log_odds = found.params.to_numpy()
    low, high = (np.exp(log_odds + side * norm.isf(0.025) * deviation) for side in (-1, 1))
    p = 2 * norm.sf(np.abs(log_odds) / deviation)
    # The fit is iterative, so processors differ in the last digits: nine are the same on all of them.
    values = ([float(f"{value:.9g}") for value in row] for row in zip(np.exp(log_odds), low, high, p, strict=True))
    return dict(zip(exposed.columns, map(tuple, values), strict=True)), ""


def verdicts(table, tau=0.60):
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
    end, texts = _percent(tau), []
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
