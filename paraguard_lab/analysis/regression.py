"""Regress refusal on strategy, risk and similarity.

The model is in the method (`docs/method.md`, Cohorts and regression).
"""

import warnings
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from paraguard_lab.core.inference import adjust_holm
from paraguard_utils.analysis.system import System
from paraguard_utils.core.words import split_words
from paraguard_utils.schemas import STRATEGIES, Corpus, Table

MIN_EVENTS_PER_TERM = 10
"""Refusals, and acceptances, that a regression needs for each of its terms: a rule of
thumb.
"""

ADJUSTED_TERM = "length"  # the term that is adjusted for and not tested
ALL_SYSTEMS = "all systems"

_MAX_LOG_ODDS = 10  # a larger coefficient means that there is no finite fit
_FITTED = ["odds_ratio", "odds_ratio_low", "odds_ratio_high", "p"]


class NoFit(Exception):
    """A regression cannot be fitted; the message says why."""


def regression_terms(corpus: Corpus) -> pd.DataFrame:
    """Compute the terms of the regression for each prompt, indexed by prompt_id.

    One column of 0 and 1 per strategy, the seed being the reference; risk and length
    (log number of words) in standard deviations over the corpus; similarity to the seed
    in standard deviations over the variants. Seeds get 0, the variants' mean: their
    similarity to themselves is no measurement, and collinear with being the seed.
    """
    is_variant = corpus["variant"] > 0
    n_words = [max(len(split_words(text)), 1) for text in corpus["text"]]
    length = pd.Series(np.log(n_words), index=corpus.index)
    terms = {name: (corpus["strategy"] == name).astype(float) for name in STRATEGIES}
    terms["risk"] = _standardize(corpus["risk"])
    similarity = _standardize(corpus["similarity"].where(is_variant))
    terms["similarity"] = similarity.fillna(0.0)
    terms[ADJUSTED_TERM] = _standardize(length)
    return pd.DataFrame(terms).set_index(corpus["prompt_id"].to_numpy())


def _standardize(values: pd.Series) -> pd.Series:
    spread = values.std()
    if spread > 1e-9:
        return (values - values.mean()) / spread
    return values * 0.0


def refusal_odds_ratios(systems: Iterable[System]) -> Table:
    """Regress refusal, for each system and for all together.

    Every refusal counts, with or without a CI.

    Parameters
    ----------
    systems : iterable of System
        With scores, on the same corpus.

    Returns
    -------
    Table
        system, term, odds_ratio (per standard deviation for risk and similarity) with
        its interval, p, p_holm, n, n_reject, n_clusters, note. `ALL_SYSTEMS` has a term
        per system beside those shown, needs two systems that have both decisions, and
        is apart in Holm's correction. NaN with a `note` if nothing can be fitted;
        interval and p alone if a term's effect has no variance.
    """
    systems = list(systems)
    terms = regression_terms(systems[0].prompts)
    tables = []
    decided_both_ways = []
    for number, system in enumerate(systems):
        decisions = system.scores[["prompt_id", "cluster_id", "label"]].assign(
            number=number
        )
        decisions["refused"] = decisions["label"] == "reject"
        own_terms = terms.loc[decisions["prompt_id"]]
        tables.append(_regress(system.name, own_terms, decisions, terms.columns))
        if decisions["refused"].nunique() == 2:
            decided_both_ways.append(decisions)
    if len(decided_both_ways) > 1:
        decisions = pd.concat(decided_both_ways, ignore_index=True)
        dummies = pd.get_dummies(
            decisions["number"], prefix="system", drop_first=True, dtype=float
        )
        all_terms = terms.loc[decisions["prompt_id"]].reset_index(drop=True)
        all_terms = all_terms.join(dummies)
        tables.append(_regress(ALL_SYSTEMS, all_terms, decisions, terms.columns))
    table = pd.concat(tables, ignore_index=True)
    of_all = table["system"] == ALL_SYSTEMS
    for family in (of_all, ~of_all):
        is_tested = table["p"].notna() & (table["term"] != ADJUSTED_TERM)
        tested = family & is_tested
        table.loc[tested, "p_holm"] = adjust_holm(table.loc[tested, "p"])
    return table


def _regress(
    system: str, terms: pd.DataFrame, decisions: pd.DataFrame, shown: Sequence[str]
) -> Table:
    """Fit one regression; return a row per shown term."""
    terms = terms.reset_index(drop=True)
    refused = decisions["refused"].to_numpy()
    cluster_ids = decisions["cluster_id"].to_numpy()
    varied = terms.columns[terms.nunique() > 1]
    notes = {}
    for name in terms.columns.difference(varied):
        notes[name] = "no scored variant" if name in STRATEGIES else "no spread"
    fitted = pd.DataFrame(columns=_FITTED, dtype=float)
    reason = _too_few(refused, len(varied))
    if not reason:
        for name in varied.intersection(STRATEGIES):
            inside = refused[terms[name] == 1]
            if inside.all() or not inside.any():
                which = "every" if inside.all() else "no"
                notes[name] = f"{which} variant is refused (separation)"
        # Prompts of a strategy without a term would join the reference.
        dropped = [name for name in notes if name in STRATEGIES]
        kept = (terms[dropped] == 0).all(axis=1).to_numpy()
        terms = terms[kept]
        refused = refused[kept]
        cluster_ids = cluster_ids[kept]
        try:
            fitted = _fit(terms.drop(columns=list(notes)), refused, cluster_ids)
        except NoFit as error:
            reason = str(error)
    table = fitted.reindex(shown)
    note = table["p"].isna().map({True: "no variance between clusters", False: ""})
    note[ADJUSTED_TERM] = "adjusted for, not tested"
    note.update(pd.Series(notes, dtype=object))
    about = {
        "p_holm": np.nan,
        "n": len(terms),
        "n_reject": refused.sum(),
        "n_clusters": len(set(cluster_ids)),
        "note": reason or note,
    }
    table = table.rename_axis("term").assign(**about).reset_index()
    table.insert(0, "system", system)
    return table


def _too_few(refused: np.ndarray, n_terms: int) -> str:
    """Say why there are too few decisions for so many terms, or return ""."""
    n_rejected = refused.sum()
    n_accepted = len(refused) - n_rejected
    if not n_terms:
        return "no term has spread"
    if min(n_rejected, n_accepted) >= MIN_EVENTS_PER_TERM * n_terms:
        return ""
    events = f"{n_accepted} acceptances"
    if n_rejected <= n_accepted:
        events = f"{n_rejected} refusals"
    terms = "1 term" if n_terms == 1 else f"{n_terms} terms"
    return f"{events} for {terms}, fewer than {MIN_EVENTS_PER_TERM} a term"


def _fit(
    terms: pd.DataFrame, refused: np.ndarray, cluster_ids: np.ndarray
) -> pd.DataFrame:
    """Return by term the odds ratio, the ends of its interval and p."""
    from statsmodels.genmod import cov_struct, families  # seconds to import
    from statsmodels.genmod import generalized_estimating_equations as gee

    strategies = [name for name in terms.columns if name in STRATEGIES]
    seeds = refused[(terms[strategies] == 0).all(axis=1).to_numpy()]
    if strategies and not 0 < seeds.sum() < len(seeds):
        raise NoFit("the seeds, which are the reference, are not decided both ways")
    exposed = terms.assign(constant=1.0)
    if np.linalg.matrix_rank(exposed.to_numpy()) < exposed.shape[1]:
        raise NoFit("terms are collinear")
    model = gee.GEE(
        refused.astype(float),
        exposed,
        groups=cluster_ids,
        family=families.Binomial(),
        cov_struct=cov_struct.Exchangeable(),
    )
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # what the warnings are about is checked below
        result = model.fit(maxiter=100, ctol=1e-8)
    variance = np.diag(result.cov_params())
    if not result.converged or not np.isfinite(variance).all():
        raise NoFit("the fit does not converge")
    if result.params[terms.columns].abs().max() > _MAX_LOG_ODDS:
        raise NoFit("a term separates refusals from acceptances")
    # If nothing varies between clusters, rounding decides between +1e-19 and -1e-19:
    # neither is a variance.
    deviation = np.sqrt(np.where(variance > 1e-12, variance, np.nan))
    log_odds = result.params.to_numpy()
    half = -ndtri(0.025) * deviation
    columns = [
        np.exp(log_odds),
        np.exp(log_odds - half),
        np.exp(log_odds + half),
        2 * ndtr(-np.abs(log_odds) / deviation),
    ]
    fitted = pd.DataFrame(np.column_stack(columns), exposed.columns, _FITTED)
    # The fit is iterative, so processors differ in the last digits: nine are the same
    # on all of them.
    return fitted.map(lambda value: float(f"{value:.9g}"))
