"""Tabulate which refusals are confused and which rewordings flip them.

The bins are the paper's (`docs/method.md`).
"""

import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from paraguard_utils.analysis.confusion import CI_COLUMNS, select_rejections
from paraguard_utils.core.confusion import CR_THRESHOLDS, THETA, to_percent
from paraguard_utils.core.estimates import (
    MIN_REFUSALS,
    ClusterBootstrap,
    Estimate,
    adjust_holm,
    to_columns,
)
from paraguard_utils.core.words import split_words
from paraguard_utils.schemas import STRATEGIES, Corpus, Scores, Table
from paraguard_utils.settings import Gates

BIN_NAMES = ("low", "middle", "high")

BINNINGS = {"quantile": "thirds of a system's own rejections", "fixed": "fixed edges"}
"""Thirds fill the cells of one system evenly; fixed edges mean the same for all systems
and make them comparable.
"""

_GATES = (
    Gates()
)  # whose interval of risk in three equal steps gives the fixed edges (ours)
RISK_BIN_EDGES = tuple(
    _GATES.min_risk + (_GATES.max_risk - _GATES.min_risk) * (step / 3)
    for step in (1, 2)
)
SIMILARITY_BIN_EDGES = (
    THETA,
    0.80,
)  # fixed (ours): below are no paraphrases on average; 0.80 halves the rest

GROUPINGS = ("strategy", "category", "topical")


def cut_into_thirds(values: pd.Series) -> pd.Series:
    """Cut values into three bins (`BIN_NAMES`) of about equal size.

    Equal values share a bin, so one may be empty.
    """
    return pd.cut(
        values.rank(method="min", pct=True),
        [0, 1 / 3, 2 / 3, 1],
        labels=list(BIN_NAMES),
    ).astype(str)


def cut_at_edges(values: pd.Series, edges: Sequence[float]) -> pd.Series:
    """Cut values at two ascending edges into three bins (`BIN_NAMES`).

    An edge belongs to the bin above it.
    """
    return pd.cut(
        values, [-np.inf, *edges, np.inf], labels=list(BIN_NAMES), right=False
    ).astype(str)


def bin_rejections(
    corpus: Corpus, scores: Scores, bins: str = "quantile"
) -> pd.DataFrame:
    """Return a system's scored rejections with risk, bins (a key of `BINNINGS`),
    risk_bin and similarity_bin.
    """
    rejected = (
        select_rejections(scores)
        .merge(corpus[["prompt_id", "risk"]], on="prompt_id")
        .assign(bins=bins)
    )
    sides = (
        ("risk", "risk", RISK_BIN_EDGES),
        (
            "similarity",
            "mean_similarity",
            SIMILARITY_BIN_EDGES,
        ),
    )
    for name, column, edges in sides:
        values = rejected[column]
        rejected[f"{name}_bin"] = (
            cut_into_thirds(values)
            if bins == "quantile"
            else cut_at_edges(values, edges)
        )
    return rejected


def cohort_table(
    system: str,
    rejected: pd.DataFrame,
    clusters: ClusterBootstrap,
    bins: str = "quantile",
) -> Table:
    """Tabulate CI, CR and isolation by cohort: one system's part of Table 2 in one
    binning.

    `rejected` is from `bin_rejections`, with the same `bins`. A row per reading, risk
    bin and similarity bin (`all` = margin): bounds, n, n_clusters, ci, cr60, cr75 and
    isolation with intervals, few; gap60 and gap75, the cohort's CR minus that of the
    system's other rejections, with the number of `rest_clusters`. NaN in empty cells,
    with a `note`.
    """
    rows = []
    every = (*BIN_NAMES, "all")
    for (interpretation, column), risk_bin, similarity_bin in itertools.product(
        CI_COLUMNS.items(), every, every
    ):
        inside = (rejected["risk_bin"] == risk_bin) | (risk_bin == "all")
        inside &= (rejected["similarity_bin"] == similarity_bin) | (
            similarity_bin == "all"
        )
        cell, rest = rejected[inside], rejected[~inside]
        note = "" if len(rest) else "no rejection outside: the gap is undefined"
        note = note if len(cell) else "no rejection in this cohort"
        row: dict[str, Any] = {
            "system": system,
            "bins": bins,
            "interpretation": interpretation,
        }
        row |= {"risk": risk_bin, "similarity": similarity_bin}
        for name, values in (
            ("risk", cell["risk"]),
            ("similarity", cell["mean_similarity"]),
        ):
            row |= {f"{name}_from": values.min(), f"{name}_to": values.max()}
        row |= {"n": len(cell), "n_clusters": cell["cluster_id"].nunique()}
        known = cell[cell["isolation"].notna()]
        estimates = {"ci": clusters.mean(cell["cluster_id"], cell[column])}
        estimates["isolation"] = clusters.mean(known["cluster_id"], known["isolation"])
        for tau in CR_THRESHOLDS:
            here, there = (
                clusters.share(part["cluster_id"], part[column] >= tau)
                for part in (cell, rest)
            )
            estimates |= {
                f"cr{to_percent(tau)}": here,
                f"gap{to_percent(tau)}": share_difference(here, there),
            }
        row |= to_columns(estimates) | {"rest_clusters": rest["cluster_id"].nunique()}
        rows.append(row | {"too_few": len(cell) < MIN_REFUSALS, "note": note})
    return pd.DataFrame(rows)


def share_difference(first: Estimate, second: Estimate) -> Estimate:
    """Estimate the difference of two shares, paired by resample.

    Newcombe's interval if one is 0 or 1.
    """
    value, draws = first[0] - second[0], first.draws - second.draws
    if not np.isfinite(value) or np.isnan([*first, *second]).any():
        return Estimate(value, np.nan, np.nan, draws)
    if {first[0], second[0]} & {
        0.0,
        1.0,
    }:  # resamples show none of its uncertainty: Newcombe's interval
        down = np.hypot(first[0] - first[1], second[2] - second[0])
        up = np.hypot(first[2] - first[0], second[0] - second[1])
        return Estimate(value, float(value - down), float(value + up), draws)
    return first - second


def group_table(
    system: str, corpus: Corpus, scores: Scores, clusters: ClusterBootstrap
) -> Table:
    """Tabulate refusal, confusion and flips by strategy, category and topic: one
    system's part of `table2_groups`.

    A row per kind (of `GROUPINGS`) and group. frr; of its rejections ci, cr60,
    ci_clipped, cr60_clipped, few; flip, the share of the n_flip variants with a scored
    seed that are decided otherwise than it, the sum of to_reject and to_accept;
    frr_most and flip_most, the share of resamples in which the group is the highest of
    its kind. NaN with a `note` where undefined.
    """
    frame = scores.merge(corpus[["prompt_id", "variant", *GROUPINGS]], on="prompt_id")
    seeds = frame[frame["variant"] == 0].set_index("cluster_id")["label"]
    frame = frame.assign(seed=frame["cluster_id"].map(seeds))
    rows = []
    for kind in GROUPINGS:
        order = (
            ("seed", *STRATEGIES) if kind == "strategy" else sorted(set(corpus[kind]))
        )
        cells = {
            name: frame[frame[kind] == name]
            for name in order
            if (corpus[kind] == name).any()
        }
        variants = {
            name: cell[(cell["variant"] > 0) & cell["seed"].notna()]
            for name, cell in cells.items()
        }
        estimates = {
            name: _group(cell, variants[name], clusters) for name, cell in cells.items()
        }
        most = {
            measure: _most({name: own[measure] for name, own in estimates.items()})
            for measure in ("frr", "flip")
        }
        for name, cell in cells.items():
            n_reject, n_flip = (
                int((cell["label"] == "reject").sum()),
                len(variants[name]),
            )
            empty = (
                "the seed is the reference"
                if name == "seed"
                else "no variant with a scored seed"
            )
            reasons = (
                []
                if len(select_rejections(cell))
                else ["no scored rejection: CI and CR are undefined"]
            )
            reasons += [] if n_flip else [f"no flip: {empty}"]
            row = {
                "system": system,
                "kind": kind,
                "group": name,
                "n_scored": len(cell),
                "n_reject": n_reject,
            }
            row |= {
                "n_clusters": cell["cluster_id"].nunique(),
                "n_flip": n_flip,
                **to_columns(estimates[name]),
            }
            row |= {
                f"{measure}_most": shares.get(name, np.nan)
                for measure, shares in most.items()
            }
            rows.append(
                row | {"too_few": n_reject < MIN_REFUSALS, "note": "; ".join(reasons)}
            )
    return pd.DataFrame(rows)


def _group(
    cell: pd.DataFrame, variants: pd.DataFrame, clusters: ClusterBootstrap
) -> dict[str, Estimate]:
    rejected = select_rejections(cell)
    estimates = {"frr": clusters.share(cell["cluster_id"], cell["label"] == "reject")}
    for column in CI_COLUMNS.values():
        estimates[column] = clusters.mean(rejected["cluster_id"], rejected[column])
        estimates[column.replace("ci", "cr60")] = clusters.share(
            rejected["cluster_id"], rejected[column] >= 0.60
        )
    ids, flipped = variants["cluster_id"], variants["label"] != variants["seed"]
    estimates["flip"] = clusters.share(ids, flipped)
    for label in ("reject", "accept"):
        estimates[f"to_{label}"] = clusters.share(
            ids, flipped & (variants["label"] == label)
        )
    return estimates


def _most(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """Return the share of resamples in which each estimate is the highest, ties shared.

    Undefined ones are left out.
    """
    defined = {
        name: estimate.draws
        for name, estimate in estimates.items()
        if np.isfinite(estimate[0])
    }
    if not defined:
        return {}
    draws = np.array(list(defined.values()))
    draws = draws[:, np.isfinite(draws).any(axis=0)]
    highest = draws == np.nanmax(draws, axis=0)
    return dict(
        zip(defined, (highest / highest.sum(axis=0)).mean(axis=1).tolist(), strict=True)
    )


# Refusals, and acceptances, that a regression needs for each of its terms: a rule of
# thumb
MIN_EVENTS_PER_TERM = 10
ADJUSTED_TERM = "length"  # the regression's term that is adjusted for and not tested

ALL_SYSTEMS = "all systems"


def regression_terms(corpus: Corpus) -> pd.DataFrame:
    """Compute the terms of the regression for each prompt, indexed by prompt_id.

    One column of 0 and 1 per strategy, the seed being the reference; risk and length
    (log number of words) in standard deviations over the corpus; similarity to the seed
    in standard deviations over the variants. Seeds get 0, the variants' mean: their
    similarity to themselves is no measurement, and collinear with being the seed.
    """
    variant = corpus["variant"] > 0
    length = np.log([max(len(split_words(text)), 1) for text in corpus["text"]])
    terms = {name: (corpus["strategy"] == name).astype(float) for name in STRATEGIES}
    terms["risk"] = _standard(corpus["risk"])
    terms["similarity"] = _standard(corpus["similarity"].where(variant)).fillna(0.0)
    terms[ADJUSTED_TERM] = _standard(pd.Series(length, index=corpus.index))
    return pd.DataFrame(terms).set_index(corpus["prompt_id"].to_numpy())


def _standard(values: pd.Series) -> pd.Series:
    spread = values.std()
    return (values - values.mean()) / spread if spread > 1e-9 else values * 0.0


def refusal_odds_ratios(corpus: Corpus, scores: Mapping[str, Scores]) -> Table:
    """Regress refusal on strategy, surface risk and similarity to the seed, for each
    system and for all together.

    Every refusal counts, with or without a CI. Columns: system, term, odds_ratio (per
    standard deviation for risk and similarity) with its interval, p, p_holm, n,
    n_reject, n_clusters, note. `ALL_TARGETS` has a term per system beside those shown,
    needs two systems that have both decisions, and is apart in Holm's correction. NaN
    with a `note` where nothing can be fitted; interval and p alone where a term's
    effect has no variance.
    """
    terms = regression_terms(corpus)
    rows, stacked = [], []
    for number, (system, frame) in enumerate(scores.items()):
        frame = frame[["prompt_id", "cluster_id", "label"]].assign(
            refused=frame["label"].eq("reject"), number=number
        )
        rows += _regress(
            system,
            terms.loc[frame["prompt_id"]],
            frame["refused"],
            frame["cluster_id"],
            terms.columns,
        )
        if frame["refused"].nunique() == 2:
            stacked.append(frame)
    if len(stacked) > 1:
        frame = pd.concat(stacked, ignore_index=True)
        both = terms.loc[frame["prompt_id"]].reset_index(drop=True)
        both = both.join(
            pd.get_dummies(
                frame["number"], prefix="system", drop_first=True, dtype=float
            )
        )
        rows += _regress(
            ALL_SYSTEMS, both, frame["refused"], frame["cluster_id"], terms.columns
        )
    result = pd.DataFrame(rows)
    pooled = result["system"] == ALL_SYSTEMS
    for family in (pooled, ~pooled):
        tested = family & result["p"].notna() & (result["term"] != ADJUSTED_TERM)
        result.loc[tested, "p_holm"] = adjust_holm(result.loc[tested, "p"])
    return result


def _regress(
    system: str,
    frame: pd.DataFrame,
    refused: pd.Series,
    cluster_ids: pd.Series,
    shown: Sequence[str],
) -> list[dict[str, Any]]:
    """Fit one regression; return a row per shown term."""
    frame, refused, cluster_ids = (
        frame.reset_index(drop=True),
        refused.to_numpy(),
        cluster_ids.to_numpy(),
    )
    varied = frame.columns[frame.nunique() > 1]
    fixed = frame.columns.difference(varied)
    notes = {
        name: "no scored variant" if name in STRATEGIES else "no spread"
        for name in fixed
    }
    fitted: dict[str, tuple[float, ...]] = {}
    reason = _too_few(refused, len(varied))
    if not reason:
        for name in varied.intersection(STRATEGIES):
            inside = refused[frame[name] == 1]
            if inside.all() or not inside.any():
                notes[name] = (
                    f"{'every' if inside.all() else 'no'} variant is refused"
                    " (separation)"
                )
        kept = (
            (frame[[name for name in notes if name in STRATEGIES]] == 0)
            .all(axis=1)
            .to_numpy()
        )
        frame, refused, cluster_ids = frame[kept], refused[kept], cluster_ids[kept]
        fitted, reason = _fit(frame.drop(columns=list(notes)), refused, cluster_ids)
    rows = []
    for name in shown:
        value, low, high, p = fitted.get(name, (np.nan,) * 4)
        note = "no variance between clusters" if np.isnan(p) else ""
        note = notes.get(
            name, "adjusted for, not tested" if name == ADJUSTED_TERM else note
        )
        row: dict[str, Any] = {
            "system": system,
            "term": name,
            **to_columns({"odds_ratio": (value, low, high)}),
        }
        row |= {
            "p": p,
            "p_holm": np.nan,
            "n": len(frame),
            "n_reject": int(refused.sum()),
        }
        rows.append(row | {"n_clusters": len(set(cluster_ids)), "note": reason or note})
    return rows


def _too_few(refused: np.ndarray, terms: int) -> str:
    rejected, accepted = int(refused.sum()), int((~refused).sum())
    if not terms:
        return "no term has spread"
    if min(rejected, accepted) >= MIN_EVENTS_PER_TERM * terms:
        return ""
    events = (
        f"{rejected} refusals" if rejected <= accepted else f"{accepted} acceptances"
    )
    return (
        f"{events} for {terms} term{'s' * (terms > 1)}, fewer than"
        f" {MIN_EVENTS_PER_TERM} a term"
    )


def _fit(
    frame: pd.DataFrame, refused: np.ndarray, cluster_ids: np.ndarray
) -> tuple[dict[str, tuple[float, ...]], str]:
    """Return by term the odds ratio, the ends of its interval and p.

    Or nothing and the reason.
    """
    from statsmodels.genmod import cov_struct, families  # seconds to import
    from statsmodels.genmod import generalized_estimating_equations as gee

    strategies = [name for name in frame.columns if name in STRATEGIES]
    seeds = refused[(frame[strategies] == 0).all(axis=1).to_numpy()]
    if strategies and not 0 < seeds.sum() < len(seeds):
        return {}, "the seeds, which are the reference, are not decided both ways"
    exposed = frame.assign(constant=1.0)
    if np.linalg.matrix_rank(exposed.to_numpy()) < exposed.shape[1]:
        return {}, "terms are collinear"
    family, within = families.Binomial(), cov_struct.Exchangeable()
    model = gee.GEE(
        refused.astype(float),
        exposed,
        groups=cluster_ids,
        family=family,
        cov_struct=within,
    )
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # what the warnings are about is checked below
        found = model.fit(maxiter=100, ctol=1e-8)
    variance = np.diag(found.cov_params())
    if not found.converged or not np.isfinite(variance).all():
        return {}, "the fit does not converge"
    if found.params[frame.columns].abs().max() > 10:  # there is no finite fit
        return {}, "a term separates refusals from acceptances"
    # Where nothing varies between clusters, rounding decides between +1e-19 and -1e-19:
    # neither is a variance.
    deviation = np.sqrt(np.where(variance > 1e-12, variance, np.nan))
    log_odds = found.params.to_numpy()
    low, high = (np.exp(log_odds - side * ndtri(0.025) * deviation) for side in (-1, 1))
    p = 2 * ndtr(-np.abs(log_odds) / deviation)
    # The fit is iterative, so processors differ in the last digits: nine are the same
    # on all of them.
    rows = zip(exposed.columns, np.exp(log_odds), low, high, p, strict=True)
    return {
        name: tuple(float(f"{value:.9g}") for value in values) for name, *values in rows
    }, ""
