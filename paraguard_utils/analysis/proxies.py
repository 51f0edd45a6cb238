"""How far CI at a level is CI of the model itself (`docs/method.md`, Black-box proxies).

Targets of which everything is known are scored as if less were: the same rejections and neighbours, other signals.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from paraguard_utils.analysis import confusion, levels, signals
from paraguard_utils.analysis.confusion import CI
from paraguard_utils.analysis.pipeline import ScoredTarget
from paraguard_utils.core.estimates import MIN_REFUSALS, ClusterBootstrap, Estimate, to_columns
from paraguard_utils.models import encoder
from paraguard_utils.models.prompting import is_served, model_of
from paraguard_utils.schemas import Corpus, Pairs, Scores, Table
from paraguard_utils.settings import Settings
from paraguard_utils.stores import Store


class Setting(NamedTuple):
    """A level, how many first tokens are told, and whether answers are drawn."""

    level: str
    top: int | None = None
    draws: bool = False


SETTINGS = {
    "full": Setting(levels.FULL),
    "answer tokens, 20": Setting(levels.ANSWER_TOKENS, 20),
    "answer tokens, 5": Setting(levels.ANSWER_TOKENS, 5),
    "text, drawn": Setting(levels.TEXT, draws=True),
    "text": Setting(levels.TEXT),
}

MEASURES = ("ci", "cr60", "cd", "excess")

ALL, DRAWN = "all", "drawn"
"""The prompts that are compared: those of the corpus, or those that were answered several times."""

RANKED = 8
"""Targets from which a rank correlation of them is given."""

SURE = 0.95


class Compared(NamedTuple):
    """One target at one setting, in one reading of the PPL contrast, beside itself with its own signals.

    Attributes
    ----------
    target, surrogate : str
        The target, and the one that lends.
    prompts : str
        `ALL` or `DRAWN`.
    reading, setting : str
    n : int
        Rejections with a CI(r) both ways.
    left_out : int
        Prompts.
    rho : Estimate
        Spearman's, of CI(r) both ways over these rejections.
    found, own : dict of str to Estimate
        By measure, at the setting and with own signals, over the same resampled clusters.
    """

    target: str
    surrogate: str
    prompts: str
    reading: str
    setting: str
    n: int
    left_out: int
    rho: Estimate
    found: Mapping[str, Estimate]
    own: Mapping[str, Estimate]


def compare(
    store: Store,
    corpus_name: str,
    corpus: Corpus,
    scored: Mapping[str, ScoredTarget],
    samples: Mapping[str, pd.DataFrame],
    settings: Settings,
) -> list[Compared]:
    """Score every target at every level.

    Parameters
    ----------
    store : stores.Store
        For sentence vectors.
    corpus_name : str
    corpus : DataFrame
    scored : dict of str to pipeline.ScoredTarget
        By target; surrogates are among them.
    samples : dict of str to DataFrame
        Drawn answers, by target; where there are some, the target is compared on these prompts as well.
    settings : settings.Settings
        resamples and seed are used; weights and k are those the targets were scored with.

    Returns
    -------
    list of Compared
        None of a target without a surrogate, or of a served one.
    """
    vectors = encoder.vectors(store, corpus_name, corpus["text"], earlier=True)
    found = []
    for name, one in scored.items():
        lender = levels.surrogate_of(name, scored)
        if lender is None or is_served(name):  # nobody knows what the model itself would tell
            continue
        both = one, scored[lender]
        found += _compared((name, lender, ALL), corpus, vectors, *both, None, settings)
        if name in samples:
            rows = np.flatnonzero(corpus["prompt_id"].isin(samples[name]["prompt_id"]))
            part, few = corpus.iloc[rows].reset_index(drop=True), [_restricted(target, rows) for target in both]
            found += _compared((name, lender, DRAWN), part, vectors[rows], few[0], few[1], samples[name], settings)
    return found


def _restricted(one: ScoredTarget, rows: np.ndarray) -> ScoredTarget:
    """Return a target as if it had been asked some of its prompts only; pairs and scores stay as they are."""
    labels, traces = (frame.iloc[rows].reset_index(drop=True) for frame in (one.labels, one.traces))
    return one._replace(labels=labels, traces=traces, drifts=signals.Drifts(traces, one.tokens))


def _compared(
    of: tuple[str, str, str],
    corpus: Corpus,
    vectors: np.ndarray,
    one: ScoredTarget,
    lent: ScoredTarget,
    samples: pd.DataFrame | None,
    settings: Settings,
) -> list[Compared]:
    """Score one target at every setting and in both readings."""
    clusters = ClusterBootstrap(corpus["cluster_id"], settings.resamples, settings.seed)
    about = (corpus, vectors, one.labels)
    asked = levels.Completed(one.traces, pd.Series("", one.traces.index))
    own = levels.pairs_and_scores(*about, asked, one.drifts, one.weights, one.k)
    usual = {reading: _estimates(corpus, own, clusters, reading, one) for reading in CI}
    found = []
    for name, setting in SETTINGS.items():
        if setting.draws and samples is None:
            continue
        drawn = samples if setting.draws else None
        made = levels.completed(one.traces, setting.level, lent.traces, drawn, setting.top)
        told = levels.pairs_and_scores(*about, made, lent.drifts, one.weights, one.k)
        left_out = int((made.left_out != "").sum())
        for reading, column in CI.items():
            both = own[1].merge(told[1][["prompt_id", column]], on="prompt_id", suffixes=("", "_told"))
            both = both[both["label"] == "reject"].dropna(subset=[column, f"{column}_told"])
            ranks = (both[end].rank() for end in (column, f"{column}_told"))
            rho = clusters.correlation(both["cluster_id"], *ranks)
            estimates = _estimates(corpus, told, clusters, reading, one)
            found.append(Compared(*of, reading, name, len(both), left_out, rho, estimates, usual[reading]))
    return found


def _estimates(
    corpus: Corpus, made: tuple[Pairs, Scores], clusters: ClusterBootstrap, reading: str, one: ScoredTarget
) -> dict[str, Estimate]:
    found = confusion.score_estimates(corpus, *made, clusters, reading, one.weights)
    return {measure: found[measure] for measure in MEASURES}


def table(compared: Iterable[Compared], targets: Iterable[str]) -> Table:
    """Lay out what was compared, a row each, and a row with a note for a target that was not.

    Parameters
    ----------
    compared : iterable of Compared
    targets : iterable of str

    Returns
    -------
    DataFrame
        target, surrogate, prompts, reading, setting, n, few (n < 30), left_out, note; with intervals rho, and for each
        of `MEASURES` its value at the setting and `x_change`, that minus the value with own signals.
    """
    rows: list[dict[str, Any]] = []
    for one in compared:
        found: dict[str, Estimate] = {"rho": one.rho}
        for name in MEASURES:
            found |= {name: one.found[name], f"{name}_change": one.found[name] - one.own[name]}
        about = dict(zip(Compared._fields[:7], one, strict=False))
        rows.append(about | {"few": one.n < MIN_REFUSALS, "note": "", **to_columns(found)})
    there = {row["target"] for row in rows}
    rows += [{"target": name, "note": "no surrogate in the store"} for name in targets if name not in there]
    estimates = [name for measure in MEASURES for name in (measure, f"{measure}_change")]
    ends = list(to_columns(dict.fromkeys(("rho", *estimates), (np.nan,) * 3)))
    return pd.DataFrame(rows, columns=[*Compared._fields[:7], "few", "note", *ends])


def orders(compared: Iterable[Compared]) -> Table:
    """Say how far each setting orders targets as their own signals do; targets with few rejections are left out.

    Returns
    -------
    DataFrame
        reading, measure, setting, among ("all", or pairs of the "same surrogate" or "same model"), targets, pairs that
        own signals order; of these kept: in the same order; sure: by own signals, of these sure_kept: in the same
        order, and sure_turned: surely in the other. rho over targets with its interval, NaN below `RANKED`.
    """
    rows: list[dict[str, Any]] = []
    enough = [one for one in compared if one.prompts == ALL and one.n >= MIN_REFUSALS]
    for reading, setting in dict.fromkeys((one.reading, one.setting) for one in enough):
        own = {one.target: one for one in enough if (one.reading, one.setting) == (reading, setting)}
        for measure in MEASURES:
            about = {"reading": reading, "measure": measure, "setting": setting, "targets": len(own)}
            pairs = _pairs(own, measure)
            rho = to_columns({"rho": _over_targets(list(own.values()), measure)})
            rows.append(about | {"among": "all"} | _counts(pairs) | rho)
            rows += [about | {"among": f"same {what}"} | _counts(pairs[pairs[what]]) for what in ("surrogate", "model")]
    names = ["reading", "measure", "setting", "among", "targets", "pairs", "kept", "sure", "sure_kept", "sure_turned"]
    return pd.DataFrame(rows, columns=[*names, "rho", "rho_low", "rho_high"])


def _pairs(own: Mapping[str, Compared], measure: str) -> pd.DataFrame:
    """Return every two targets: what they share, and their order by own signals and at the setting.

    Returns
    -------
    DataFrame
        surrogate, model: whether it is the same one; own and found: the sign of the first's value minus the second's;
        sure_own and sure_found: that sign where it is sure, else 0.
    """
    sides: dict[str, dict[str, Mapping[str, Estimate]]] = {
        side: {name: getattr(one, side) for name, one in own.items()} for side in ("own", "found")
    }
    higher = confusion.orders(sides, "own", [measure]).pivot(
        index=["first", "second"], columns="setting", values="higher"
    )
    higher = higher.reindex(columns=list(sides))  # one target has no order
    frame = ((higher >= SURE).astype(int) - (higher <= 1 - SURE).astype(int)).add_prefix("sure_")
    for side, found in sides.items():
        frame[side] = [np.sign(found[one][measure][0] - found[other][measure][0]) for one, other in higher.index]
    for what, name in (("surrogate", "surrogate"), ("model", "target")):
        models = [[model_of(getattr(own[end], name)) for end in pair] for pair in higher.index]
        frame[what] = np.array([one == other for one, other in models], bool)
    return frame


def _counts(pairs: pd.DataFrame) -> dict[str, int]:
    """Count orders that there are, are kept, are sure, and are turned, over pairs of targets from `_pairs`."""
    known = pairs[pairs["own"].abs() == 1]
    kept, sure = known["own"] == known["found"], known["sure_own"] != 0
    turned = sure & (known["sure_found"] == -known["sure_own"])
    parts = {"pairs": known["own"] != 0, "kept": kept, "sure": sure, "sure_kept": sure & kept, "sure_turned": turned}
    return {name: int(part.sum()) for name, part in parts.items()}


def _over_targets(own: Sequence[Compared], measure: str) -> tuple[float, float, float]:
    """Return Spearman's rho of a measure with own signals and at a setting, over targets, ranked in each resample."""
    if len(own) < RANKED:
        return np.nan, np.nan, np.nan
    sides = [[getattr(one, side)[measure] for one in own] for side in ("own", "found")]
    values = [np.array([[one[0] for one in side]]) for side in sides]
    draws = [np.column_stack([one.draws for one in side]) for side in sides]
    return Estimate.percentile(float(_spearman(*values)[0]), _spearman(*draws))


def _spearman(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Spearman's rho of each row; NaN where a value is, or all are equal."""
    ranks = [rankdata(side, axis=1, nan_policy="propagate") for side in (first, second)]
    a, b = (side - side.mean(axis=1, keepdims=True) for side in ranks)
    with np.errstate(invalid="ignore"):
        return (a * b).sum(axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
