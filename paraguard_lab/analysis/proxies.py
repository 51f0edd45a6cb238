"""Score systems as if a server returned less of them.

The method explains how (`docs/method.md`, Black-box proxies).
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from paraguard_lab.analysis import excess
from paraguard_lab.analysis.comparisons import MIN_ORDER_PROBABILITY
from paraguard_lab.analysis.surrogate import (
    LEVEL_ANSWER_TOKENS,
    LEVEL_FULL,
    LEVEL_TEXT,
    fill_from_surrogate,
    find_surrogate,
    retokenize,
)
from paraguard_lab.analysis.validity import MIN_RANKED_SYSTEMS, rank_correlation
from paraguard_lab.served import is_served_system
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.system import CI_COLUMNS, System
from paraguard_utils.core.estimates import (
    MIN_REFUSALS,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.models import encoder
from paraguard_utils.schemas import Table
from paraguard_utils.stores import CorpusFiles

SURROGATE_MEASURES = ("ci", "cr60", "cd", "excess")

ALL_PROMPTS = "all"
DRAWN_PROMPTS = "drawn"
"""The prompts that systems are compared on: all, or those answered several times."""


class Disclosure(NamedTuple):
    """How much of a system is used.

    `top` is the number of first tokens (None: all), and `drawn` says whether answers
    are drawn.
    """

    level: str
    top: int | None = None
    drawn: bool = False


DISCLOSURE_SETTINGS = {
    "full": Disclosure(LEVEL_FULL),
    "answer tokens, 20": Disclosure(LEVEL_ANSWER_TOKENS, 20),
    "answer tokens, 5": Disclosure(LEVEL_ANSWER_TOKENS, 5),
    "text, drawn": Disclosure(LEVEL_TEXT, drawn=True),
    "text": Disclosure(LEVEL_TEXT),
}


class SurrogateComparison(NamedTuple):
    """One system at one setting, next to itself with its own signals.

    Attributes
    ----------
    system, surrogate, prompts, interpretation, setting : str
        `interpretation` is of the PPL contrast.
    n : int
        Rejections with a CI(r) both ways.
    rho : Estimate
        Spearman's, of CI(r) both ways over the rejections.
    estimates, own_estimates : mapping of str to Estimate
        By measure, at the setting and with own signals, over the same resampled
        clusters.
    """

    system: str
    surrogate: str
    prompts: str
    interpretation: str
    setting: str
    n: int
    rho: Estimate
    estimates: Mapping[str, Estimate]
    own_estimates: Mapping[str, Estimate]


def compare_with_surrogates(
    files: CorpusFiles,
    systems: Mapping[str, System],
    samples: Mapping[str, pd.DataFrame],
) -> list[SurrogateComparison]:
    """Score every system at every level of disclosure, as it was scored.

    Systems without a surrogate among `systems`, and served ones, are left out: nobody
    knows what their model itself would return.

    Parameters
    ----------
    files : CorpusFiles
        Where the sentence vectors are.
    systems : mapping of str to System
        With traces and drifts.
    samples : mapping of str to DataFrame
        Drawn answers by system, which is compared on these prompts as well.

    Returns
    -------
    list of SurrogateComparison
    """
    compared = []
    for system in systems.values():
        name = find_surrogate(system.name, systems)
        if name is None or is_served_system(system.name):
            continue
        surrogate = systems[name]
        texts = system.prompts["text"]
        vectors = encoder.stored_vectors(files, texts, earlier=True)
        compared += _compare(system, surrogate, vectors)
        if system.name in samples:
            drawn = samples[system.name]
            ids = system.prompts["prompt_id"]
            chosen = ids.isin(drawn["prompt_id"]).to_numpy()
            part = _select(system, chosen)
            other = _select(surrogate, chosen)
            compared += _compare(part, other, vectors[chosen], drawn)
    return compared


def _select(system: System, chosen: np.ndarray) -> System:
    """Return a system as if it had been asked some prompts only."""
    part = system.select(chosen)
    clusters = ClusterBootstrap(
        part.prompts["cluster_id"], system.clusters.resamples, system.clusters.seed
    )
    return replace(part, clusters=clusters)


def _compare(
    system: System,
    surrogate: System,
    vectors: np.ndarray,
    samples: pd.DataFrame | None = None,
) -> list[SurrogateComparison]:
    """Score one system at every setting and in both interpretations."""
    usual = _score(system, vectors)
    own_estimates = {
        interpretation: excess.estimate_scored(usual, interpretation)
        for interpretation in CI_COLUMNS
    }
    compared = []
    for setting, (level, top, drawn) in DISCLOSURE_SETTINGS.items():
        if drawn and samples is None:
            continue
        traces = fill_from_surrogate(
            system.traces, level, surrogate.traces, samples if drawn else None, top
        )
        # What has no signals is in no pair; isolation counts its decision.
        traces = retokenize(traces, surrogate.traces)
        filled = replace(system, traces=traces, drifts=surrogate.drifts)
        scored = _score(filled, vectors)
        for interpretation, column in CI_COLUMNS.items():
            n, rho = _correlate_ranks(usual, scored, column)
            compared.append(
                SurrogateComparison(
                    system=system.name,
                    surrogate=surrogate.name,
                    prompts=ALL_PROMPTS if samples is None else DRAWN_PROMPTS,
                    interpretation=interpretation,
                    setting=setting,
                    n=n,
                    rho=rho,
                    estimates=excess.estimate_scored(scored, interpretation),
                    own_estimates=own_estimates[interpretation],
                )
            )
    return compared


def _score(system: System, vectors: np.ndarray) -> System:
    """Return a system with pairs and scores."""
    system = replace(system, pairs=signals.compute_pairs(system, vectors))
    return replace(system, scores=confusion.score_prompts(system))


def _correlate_ranks(
    usual: System, scored: System, column: str
) -> tuple[int, Estimate]:
    """Correlate the ranks of CI(r) of the rejections that have one both ways.

    The first result is their number.
    """
    other = scored.rejections[["prompt_id", column]]
    both = usual.rejections.merge(other, on="prompt_id", suffixes=("", "_other"))
    ranks = both[[column, f"{column}_other"]].rank()
    rho = usual.clusters.correlation(
        both["cluster_id"], ranks[column], ranks[f"{column}_other"]
    )
    return len(both), rho


def surrogate_table(compared: Iterable[SurrogateComparison]) -> Table:
    """Tabulate comparisons.

    Returns
    -------
    Table
        system, surrogate, prompts, interpretation, setting, n, too_few (n < 30); with
        intervals rho, and for each of `SURROGATE_MEASURES` its value at the setting and
        `x_change`, that minus the value with own signals.
    """
    about = SurrogateComparison._fields[:6]
    rows: list[dict[str, Any]] = []
    for comparison in compared:
        estimates = {"rho": comparison.rho}
        for measure in SURROGATE_MEASURES:
            estimate = comparison.estimates[measure]
            estimates[measure] = estimate
            change = estimate - comparison.own_estimates[measure]
            estimates[f"{measure}_change"] = change
        row = dict(zip(about, comparison, strict=False))
        row["too_few"] = comparison.n < MIN_REFUSALS
        rows.append(row | to_columns(estimates))
    if not rows:  # no system has a surrogate
        return pd.DataFrame(columns=[*about, "too_few", "rho", "ci_change"])
    return pd.DataFrame(rows)


def surrogate_orders(compared: Iterable[SurrogateComparison]) -> Table:
    """Count how far each setting orders systems as their own signals do.

    Systems with fewer than 30 rejections are left out.

    Returns
    -------
    Table
        interpretation, measure, setting, systems, pairs that own signals order; of
        these kept: in the same order; sure: clear by own signals, of these sure_kept:
        in the same order, and sure_turned: clear in the other. rho over systems with
        its interval, NaN below eight.
    """
    groups: dict[tuple[str, str], list[SurrogateComparison]] = {}
    for comparison in compared:
        if comparison.prompts == ALL_PROMPTS and comparison.n >= MIN_REFUSALS:
            key = (comparison.interpretation, comparison.setting)
            groups.setdefault(key, []).append(comparison)
    rows = []
    for (interpretation, setting), group in groups.items():
        for measure in SURROGATE_MEASURES:
            row = {
                "interpretation": interpretation,
                "measure": measure,
                "setting": setting,
                "systems": len(group),
                **_count_orders(group, measure),
            }
            rows.append(row | to_columns({"rho": _correlate_systems(group, measure)}))
    columns = ["interpretation", "measure", "setting", "systems", "pairs", "kept"]
    columns += ["sure", "sure_kept", "sure_turned", "rho", "rho_low", "rho_high"]
    return pd.DataFrame(rows, columns=columns)


def _correlate_systems(
    group: list[SurrogateComparison], measure: str
) -> tuple[float, float, float]:
    """Correlate a measure at the setting and with own signals over systems."""
    if len(group) < MIN_RANKED_SYSTEMS:
        return np.nan, np.nan, np.nan
    own = [comparison.own_estimates[measure] for comparison in group]
    other = [comparison.estimates[measure] for comparison in group]
    return rank_correlation(own, other)


def _order_pairs(group: list[SurrogateComparison], measure: str) -> pd.DataFrame:
    """Order every two systems with own signals and at the setting.

    Columns: own and other, the sign of the difference; own_clear and other_clear, the
    same but 0 if the order is not clear.
    """
    rows = []
    for first, second in itertools.combinations(group, 2):
        own = first.own_estimates[measure] - second.own_estimates[measure]
        other = first.estimates[measure] - second.estimates[measure]
        rows.append(
            (np.sign(own.value), np.sign(other.value), _side(own), _side(other))
        )
    return pd.DataFrame(rows, columns=["own", "other", "own_clear", "other_clear"])


def _side(difference: Estimate) -> int:
    """Return the sign of a difference if resamples are clear about it, else 0."""
    signs = np.sign(difference.draws[np.isfinite(difference.draws)])
    higher = (signs + 1).mean() / 2 if len(signs) else 0.5
    is_up = higher >= MIN_ORDER_PROBABILITY
    return int(is_up) - int(higher <= 1 - MIN_ORDER_PROBABILITY)


def _count_orders(group: list[SurrogateComparison], measure: str) -> dict[str, int]:
    """Count the orders of `_order_pairs` by own signals, those kept, and the clear."""
    orders = _order_pairs(group, measure)
    known = orders[orders["own"].abs() == 1]
    kept = known["own"] == known["other"]
    sure = known["own_clear"] != 0
    turned = sure & (known["other_clear"] == -known["own_clear"])
    return {
        "pairs": len(known),
        "kept": kept.sum(),
        "sure": sure.sum(),
        "sure_kept": (sure & kept).sum(),
        "sure_turned": turned.sum(),
    }
