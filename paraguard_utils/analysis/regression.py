"""Logistic regression of refusal on strategy, risk and similarity (`docs/method.md`, Cohorts and regression).

Errors are clustered by seed (ours).
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from scipy.stats import norm
from statsmodels.genmod.cov_struct import Exchangeable
from statsmodels.genmod.families import Binomial
from statsmodels.genmod.generalized_estimating_equations import GEE

from paraguard_utils.analysis.multiple_testing import adjust_holm
from paraguard_utils.core.estimates import to_columns
from paraguard_utils.core.words import words
from paraguard_utils.schemas import STRATEGIES, Corpus, Scores, Table

EVENTS = 10
"""Refusals, and acceptances, that a regression needs for each of its terms; a rule of thumb for logistic models."""

NO_VARIANCE = 1e-12
"""Variance of a log odds ratio up to which it counts as none."""

LARGEST = 10.0
"""Log odds ratio beyond which, either way, an estimate is read as separation that no maximum of the likelihood ends."""

ADJUSTMENT = "length"
"""The regression's term that is adjusted for and not tested."""

POOLED = "all targets"

Fitted: TypeAlias = tuple[float, float, float, float]
"""Odds ratio, the ends of its interval, and p."""


def design(corpus: Corpus) -> pd.DataFrame:
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


def _standard(values: pd.Series) -> pd.Series:
    spread = values.std()
    return (values - values.mean()) / spread if spread > 1e-9 else values * 0.0


def odds_ratios(corpus: Corpus, scores: Mapping[str, Scores]) -> Table:
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
        result.loc[tested, "p_holm"] = adjust_holm(result.loc[tested, "p"])
    return result


def _odds(
    target: str, frame: pd.DataFrame, refused: pd.Series, cluster_ids: pd.Series, shown: Sequence[str]
) -> list[dict[str, Any]]:
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
    fitted: dict[str, Fitted] = {}
    if not reason:
        fitted, reason = _fit(frame.drop(columns=list(notes)), refused, cluster_ids)
    undefined = (np.nan,) * 4
    return [
        {
            "target": target,
            "term": name,
            **to_columns({"odds_ratio": fitted.get(name, undefined)[:3]}),
            "p": fitted.get(name, undefined)[3],
            "p_holm": np.nan,
            "n": len(frame),
            "n_reject": int(refused.sum()),
            "n_clusters": len(set(cluster_ids)),
            "note": reason or notes.get(name) or _fitted_note(name, fitted[name]),
        }
        for name in shown
    ]


def _fitted_note(name: str, estimate: Fitted) -> str:
    if name == ADJUSTMENT:
        return "adjusted for, not tested"
    return "no variance between clusters" if np.isnan(estimate[3]) else ""


def _too_few(refused: np.ndarray, terms: int) -> str:
    rejected, accepted = int(refused.sum()), int((~refused).sum())
    if not terms:
        return "no term has spread"
    if min(rejected, accepted) >= EVENTS * terms:
        return ""
    events = f"{rejected} refusals" if rejected <= accepted else f"{accepted} acceptances"
    return f"{events} for {terms} term{'s' * (terms > 1)}, fewer than {EVENTS} a term"


def _fit(frame: pd.DataFrame, refused: np.ndarray, cluster_ids: np.ndarray) -> tuple[dict[str, Fitted], str]:
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
    deviation = np.sqrt(np.where(variance > NO_VARIANCE, variance, np.nan))
    log_odds = found.params.to_numpy()
    low, high = (np.exp(log_odds + side * norm.isf(0.025) * deviation) for side in (-1, 1))
    p = 2 * norm.sf(np.abs(log_odds) / deviation)
    # The fit is iterative, so processors differ in the last digits: nine are the same on all of them.
    values = ([float(f"{value:.9g}") for value in row] for row in zip(np.exp(log_odds), low, high, p, strict=True))
    return dict(zip(exposed.columns, map(tuple, values), strict=True)), ""
