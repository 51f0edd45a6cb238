"""Compare decisions of remedied systems with those of the untouched one.

(`docs/method.md`, Remedies)
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.analysis import predictions
from paraguard_lab.analysis.guarded import external_rejection_rate
from paraguard_lab.analysis.voting import RefusalScores
from paraguard_lab.core.inference import POWER_ERRORS, normal_p, standard_error
from paraguard_lab.corpus import xstest
from paraguard_lab.corpus.xstest import XSTEST_SAFE
from paraguard_lab.remedies import coin, decisions, first_token, utility, verdicts
from paraguard_lab.remedies.catalogue import UNTOUCHED, self_cd
from paraguard_lab.remedies.contract import Remedy
from paraguard_lab.remedies.curve import ThresholdCurve
from paraguard_lab.remedies.decisions import RemedyDecisions
from paraguard_lab.remedies.splits import (
    Split,
    Splits,
    count_splits,
    rotate_splits,
    split_clusters,
)
from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_lab.settings import RemedySettings
from paraguard_utils.analysis import guarded
from paraguard_utils.analysis.system import System
from paraguard_utils.core import disagreement
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.core.estimates import (
    ClusterBootstrap,
    Estimate,
    binomial_interval,
    to_columns,
)
from paraguard_utils.errors import DataError, Missing
from paraguard_utils.schemas import Corpus, Labels, Table
from paraguard_utils.settings import XSTEST
from paraguard_utils.stores import Store

CHANGE_MEASURES = ("frr", "dr", "twins")
"""Measures whose change against the untouched system is estimated."""


Effects = dict[str, Estimate]  # by measure


def make_systems(
    prompts: Split, decided: Mapping[str, Labels], clusters: ClusterBootstrap
) -> tuple[System, System]:
    """Return what was decided on the benign prompts of a split, and on its twins.

    Parameters
    ----------
    prompts : Split
    decided : mapping of str to Labels
        By corpus, the benign one first and its twins second.
    clusters : ClusterBootstrap
        Of the benign prompts.
    """
    (benign_name, benign), (twins_name, twins), *_ = decided.items()
    return (
        System.of(benign_name, prompts.benign, benign, clusters),
        System.of(twins_name, prompts.twins, twins, clusters),
    )


def estimate_effects(
    prompts: Split, decided: Mapping[str, Labels], clusters: ClusterBootstrap
) -> Effects:
    """Estimate frr, dr, isolation, usable and twins (`make_systems`).

    Parameters
    ----------
    prompts : Split
    decided : mapping of str to Labels
        By corpus, the benign one first and its twins second.
    clusters : ClusterBootstrap
        Of the benign prompts.

    Returns
    -------
    dict of str to Estimate
        `twins` is the share of harmful twins rejected. `usable` is the share of benign
        prompts with an answer to the point; it is undefined if an accepted prompt has
        no answer that was read.
    """
    benign, twins = make_systems(prompts, decided, clusters)
    ids = prompts.benign["cluster_id"].to_numpy()
    isolated = (benign.refused == 1) & np.isfinite(benign.isolation)
    isolation = clusters.undefined()
    if isolated.any():
        isolation = clusters.mean(ids[isolated], benign.isolation[isolated])
    accepted = benign.labels["label"] == "accept"
    usable = clusters.undefined()
    if not (accepted & benign.labels["answer"].isna()).any():
        on_topic = benign.labels["answer"].eq("on_topic")
        usable = clusters.share(ids, (accepted & on_topic).to_numpy())
    return {
        "frr": benign.frr(),
        "dr": benign.dr(),
        "isolation": isolation,
        "usable": usable,
        "twins": guarded.rejection_rate(twins),
    }


def subtract_effects(effects: Effects, untouched: Effects) -> Effects:
    """Return the change of each of `CHANGE_MEASURES`, by the name of its column."""
    return {
        f"{measure}_change": effects[measure] - untouched[measure]
        for measure in CHANGE_MEASURES
    }


def bound_unchanged(change: Estimate, n_clusters: int) -> Estimate:
    """Bound a change that no cluster shows.

    Parameters
    ----------
    change : Estimate
    n_clusters : int
        Clusters that might have shown it.

    Returns
    -------
    Estimate
        With the exact 95 % interval that so many clusters allow, if there is no change
        in any resample; else the change itself.
    """
    if change.value or np.nan_to_num(change.draws).any():
        return change
    _, most = binomial_interval(0, n_clusters)
    return Estimate(change.value, -most, most, change.draws)


@dataclass(frozen=True, eq=False)
class RemedyEffects:
    """Effects of remedies on one system.

    `folds` are from `splits.rotate_splits`, and `crossed` has what was decided on the
    test split of each. `resampling` are the number of resamples and their seed.
    """

    base: UntouchedSystem
    folds: list[Splits]
    crossed: list[RemedyDecisions]
    resampling: tuple[int, int]
    _pools: dict[tuple[bool, ...], "PooledSplits"] = field(default_factory=dict)

    def pool(self, name: str) -> "PooledSplits":
        """Return the splits that a remedy was decided on, put together."""
        chosen = tuple(name in decided for decided in self.crossed)
        if chosen not in self._pools:
            folds = list(compress(self.folds, chosen))
            crossed = list(compress(self.crossed, chosen))
            self._pools[chosen] = PooledSplits(
                self.base, folds, crossed, self.resampling
            )
        return self._pools[chosen]

    def table(self, applied: Mapping[str, Remedy]) -> tuple[Table, dict[str, Effects]]:
        """Describe what each remedy changes.

        Parameters
        ----------
        applied : mapping of str to Remedy

        Returns
        -------
        Table
            One row per remedy, the untouched system first: system, remedy, kind, role,
            source, n_clusters, n_scored, n_reject, n_twins, too_few_for_dr, queries,
            too_few_for_change; `_detectable` of frr, dr and twins; coin_p and over_p
            (normal); with intervals the `estimate_effects`, `_change` of
            `CHANGE_MEASURES` against the untouched system on the same clusters,
            against_coin, over_curve, over_change (over_curve minus that of the
            untouched system), xstest_rejected and xstest_safe_rejected (with `_n`).
            `verdicts.add_remedy_verdicts` adds the verdicts.
        dict of str to dict of str to Estimate
            The estimates by remedy and measure, for differences.
        """
        names: dict[str, None] = {}
        for decided in self.crossed:
            names |= dict.fromkeys(decided)
        effects = {}
        rows = []
        for name in names:
            pool = self.pool(name)
            effects[name] = pool.estimate(name)
            row = {"system": self.base.name, "remedy": name}
            for about in ("kind", "role", "source"):
                row[about] = getattr(applied.get(name), about, "")
            rows.append(row | _describe(pool, name, effects[name]))
        return pd.DataFrame(rows), effects

    def drawn(self) -> Table:
        """Return the threshold curve over all splits: threshold, frr, twins, system.

        Without p(refuse), it has no rows.
        """
        curve = self.pool(UNTOUCHED).curve
        if curve is None:
            return pd.DataFrame(columns=["threshold", "frr", "twins", "system"])
        return curve.drawn().assign(system=self.base.name)

    def by_part(self, names: Sequence[str]) -> Table:
        """Return changes on the categories that nothing was learned on, and on others.

        Both are of the last test split. A small corpus has no category that is held
        out.

        Parameters
        ----------
        names : sequence of str
            Remedies; those that were not decided on are left out.

        Returns
        -------
        Table
            system, remedy, part (held out, seen), n_benign; with intervals frr_change,
            dr_change, twins_change.
        """
        fold = self.folds[-1]
        decided = self.crossed[-1]
        rows = []
        for part in ("held out", "seen"):
            prompts = _select_part(fold, part)
            if prompts.benign.empty or prompts.twins.empty:
                continue
            clusters = ClusterBootstrap(prompts.benign["cluster_id"], *self.resampling)
            untouched = estimate_effects(prompts, decided[UNTOUCHED], clusters)
            for name in names:
                if name not in decided:
                    continue
                effects = estimate_effects(prompts, decided[name], clusters)
                row = {
                    "system": self.base.name,
                    "remedy": name,
                    "part": part,
                    "n_benign": len(prompts.benign),
                }
                rows.append(row | to_columns(subtract_effects(effects, untouched)))
        return pd.DataFrame(rows)


def _select_part(fold: Splits, part: str) -> Split:
    """Return the test prompts of held-out categories ("held out"), or the others."""
    sides = []
    for side in fold.test:
        is_held_out = side["category"].isin(fold.held_out)
        sides.append(side[is_held_out == (part == "held out")])
    return Split(*sides)


class PooledSplits:
    """The test splits that a remedy was decided on, put together.

    Attributes
    ----------
    prompts : Split
    clusters : ClusterBootstrap
        Of the benign prompts.
    untouched : Effects
        The estimates of the untouched system.
    curve : ThresholdCurve or None
        None if a server returned no next-token probabilities.
    """

    def __init__(
        self,
        base: UntouchedSystem,
        folds: Sequence[Splits],
        crossed: Sequence[RemedyDecisions],
        resampling: tuple[int, int],
    ) -> None:
        self.crossed = crossed
        sides = zip(*[fold.test for fold in folds], strict=True)
        self.prompts = Split(*[pd.concat(side, ignore_index=True) for side in sides])
        self.clusters = ClusterBootstrap(self.prompts.benign["cluster_id"], *resampling)
        self.untouched = self.estimate(UNTOUCHED)
        self.curve: ThresholdCurve | None = None
        with contextlib.suppress(Missing):
            self.curve = self._learn_curve(base, folds)

    def _learn_curve(
        self, base: UntouchedSystem, folds: Sequence[Splits]
    ) -> ThresholdCurve:
        _, (benign, twins) = first_token.score_folds(base, folds)
        return ThresholdCurve(self.prompts, benign, twins, self.clusters)

    def decided(self, name: str) -> dict[str, Labels]:
        """Return a remedy's labels by corpus, those of all splits together."""
        parts: dict[str, list[Labels]] = {}
        for decisions_of_split in self.crossed:
            for corpus_name, labels in decisions_of_split[name].items():
                parts.setdefault(corpus_name, []).append(labels)
        return {name: pd.concat(parts[name], ignore_index=True) for name in parts}

    @cached_property
    def too_few_before(self) -> bool:
        """Whether the untouched system has too few decisions for an interval of DR."""
        benign, _ = make_systems(self.prompts, self.decided(UNTOUCHED), self.clusters)
        return disagreement.too_few_for_disagreement(benign.decided)

    def estimate(self, name: str) -> Effects:
        """Estimate the effects of a remedy (`estimate_effects`)."""
        return estimate_effects(self.prompts, self.decided(name), self.clusters)

    def above_curve(self, effects: Effects) -> Estimate:
        """Estimate how many more twins are refused than by a threshold.

        NaN without a curve.
        """
        if self.curve is None:
            return self.clusters.undefined()
        return self.curve.above(effects["frr"], effects["twins"])

    @cached_property
    def untouched_above_curve(self) -> Estimate:
        """How many more twins the untouched system refuses than a threshold."""
        return self.above_curve(self.untouched)

    def changes(self, name: str, effects: Effects) -> Effects:
        """Return changes against the untouched system, by the name of their column.

        The untouched system has none.
        """
        changes = subtract_effects(effects, self.untouched)
        if name == UNTOUCHED:
            return dict.fromkeys(changes, self.clusters.undefined())
        sides = {"frr_change": self.prompts.benign, "twins_change": self.prompts.twins}
        for column, prompts in sides.items():
            n_clusters = prompts["cluster_id"].nunique()
            changes[column] = bound_unchanged(changes[column], n_clusters)
        return changes


def _describe(pool: PooledSplits, name: str, effects: Effects) -> dict[str, Any]:
    """Return the columns of `RemedyEffects.table` that follow from decisions."""
    decided = pool.decided(name)
    benign, twins = make_systems(pool.prompts, decided, pool.clusters)
    too_few = disagreement.too_few_for_disagreement(benign.decided)
    queries = pd.concat([benign.labels["queries"], twins.labels["queries"]])
    changes = pool.changes(name, effects)
    over_curve = pool.above_curve(effects)
    compared = {
        "against_coin": pool.clusters.undefined(),
        "over_curve": over_curve,
        "over_change": pool.clusters.undefined(),
    }
    if name != UNTOUCHED:
        compared["against_coin"] = coin.compare_with_coin(
            _rates(pool.untouched), _rates(effects)
        )
        compared["over_change"] = over_curve - pool.untouched_above_curve
    row = {
        "n_clusters": len(pool.clusters.codes),
        "n_scored": benign.is_scored.sum(),
        "n_reject": (benign.refused == 1).sum(),
        "n_twins": twins.is_scored.sum(),
        "too_few_for_dr": too_few,
        "queries": queries.mean(),
        "too_few_for_change": name != UNTOUCHED and (too_few or pool.too_few_before),
    }
    for measure in CHANGE_MEASURES:
        error = standard_error(changes[f"{measure}_change"]) or np.nan
        row[f"{measure}_detectable"] = POWER_ERRORS * error
    row["coin_p"] = normal_p(compared["against_coin"])
    row["over_p"] = normal_p(compared["over_change"])
    row |= to_columns(effects | changes | compared)
    row |= external_rejection_rate(decided.get(XSTEST))
    row |= external_rejection_rate(decided.get(XSTEST_SAFE), "xstest_safe")
    return row


def _rates(effects: Effects) -> tuple[Estimate, Estimate]:
    return effects["frr"], effects["twins"]


def read_refusal_scores(
    store: Store, corpora: Mapping[str, Corpus], settings: RemedySettings
) -> dict[str, RefusalScores]:
    """Return p(refuse) and decisions of every system under the safety instruction.

    They are cross-fitted over the thirds of the clusters. A system whose server
    returned no next-token probabilities is left out.
    """
    benign, twins = corpora.values()
    folds = rotate_splits(split_clusters(benign, twins))
    scored = {}
    for name, base in decisions.find_untouched_systems(
        store, corpora, settings
    ).items():
        with contextlib.suppress(Missing):
            prompts, p = first_token.score_folds(base, folds)
            decided = []
            for corpus_name, side in zip(corpora, prompts, strict=True):
                labels = base.decide(corpus_name, side)
                decided.append(as_refused(labels["label"]))
            scored[name] = RefusalScores.of(prompts, p, decided)
    return scored


def measure_remedies(
    store: Store, corpora: Mapping[str, Corpus], settings: RemedySettings
) -> dict[str, Table]:
    """Apply remedies to every system under the safety instruction.

    Parameters
    ----------
    store : Store
        A live one asks what is missing.
    corpora : mapping of str to Corpus
        The benign corpus and its twins, by name.
    settings : RemedySettings

    Returns
    -------
    dict of str to Table
        `remedy_map` and the tables beside it, by name. If a live store cannot be split,
        or has no such system, and no remedy is named, that is said, and there are none.

    Raises
    ------
    DataError
        The corpora cannot be split, and remedies are named, or the store is recorded.
    Missing
        No system is decided on both, likewise.
    """
    try:
        benign, twins = corpora.values()
        thirds = split_clusters(benign, twins)
        bases = decisions.find_untouched_systems(store, corpora, settings)
    except (DataError, Missing) as error:
        if settings.remedies or store.recorded:
            raise
        print(f"no remedy is tried: {error}")
        return {}
    outside = {}
    if settings.xstest:
        for name, label in ((XSTEST, "unsafe"), (XSTEST_SAFE, "safe")):
            outside[name] = xstest.read_xstest_prompts(settings.xstest, label)
    folds = rotate_splits(thirds)
    effects = {}
    parts: dict[str, list[Table]] = {}
    for name, base in bases.items():
        tables, effects[name] = _measure_system(base, folds, outside)
        for table_name, table in tables.items():
            parts.setdefault(table_name, []).append(table)
    joined = {name: pd.concat(parts[name], ignore_index=True) for name in parts}
    remedy_map = verdicts.add_remedy_verdicts(joined["remedy_map"])
    controls = verdicts.compare_with_control(remedy_map, effects)
    judged = pd.concat([remedy_map, controls], ignore_index=True)
    joined |= {
        "remedy_map": remedy_map,
        "remedy_predictions": predictions.judge_predictions({"remedy_map": judged}),
        "remedy_splits": count_splits(thirds),
    }
    return {name: table for name, table in joined.items() if len(table.columns)}


def _measure_system(
    base: UntouchedSystem, folds: list[Splits], outside: Mapping[str, Corpus]
) -> tuple[dict[str, Table], dict[str, Effects]]:
    """Return tables about the remedies of one system, and their effects."""
    settings = base.settings
    chosen = decisions.choose_remedies(base, settings)
    decided = []
    for fold in folds:
        decided.append(decisions.decide_test_split(base, chosen, fold, outside))
    measured = RemedyEffects(base, folds, decided, (settings.resamples, settings.seed))
    remedy_map, effects = measured.table(chosen)
    tables = {
        "remedy_map": remedy_map,
        "remedy_curves": measured.drawn(),
        "remedy_parts": measured.by_part(decisions.TUNED_REMEDIES),
        "remedy_learned": decisions.read_learned_values(base, chosen),
        "remedy_self_cd": self_cd.check_simulation(base, folds),
    }
    if not base.store.recorded:
        utility.update_utility(base, chosen, decided[-1], folds[-1])
    return tables, effects
