"""Every remedy's decisions on all thirds of the clusters: asked in a live store, read from the recorded one."""

import contextlib
import sys
from collections.abc import Mapping

import pandas as pd

from paraguard_utils import registry
from paraguard_utils.errors import Missing
from paraguard_utils.labels import targets as chat_targets
from paraguard_utils.labels.follow_ups import SAMPLED_PROMPT
from paraguard_utils.models import trace_store
from paraguard_utils.remedies import catalogue
from paraguard_utils.remedies.asking import Remedied, ask
from paraguard_utils.remedies.catalogue import UNTOUCHED
from paraguard_utils.remedies.contract import Remedy, Target
from paraguard_utils.remedies.splits import THIRDS, Splits
from paraguard_utils.remedies.untouched import Untouched
from paraguard_utils.schemas import Corpus, Labels, Table
from paraguard_utils.settings import XSTEST, XSTEST_SAFE, Settings, remedied_name
from paraguard_utils.stores import Store, read_meta

Decisions = dict[str, dict[str, Labels]]
"""Labels by remedy and corpus."""

OUTSIDE = 3
"""The third with whose teachers XSTest's prompts are asked."""

TUNED = tuple(name for name, remedy in catalogue.remedies().items() if remedy.kind == "tuning")
"""Remedies that change weights."""


def bases(store: Store, corpora: Mapping[str, Corpus], settings: Settings) -> dict[str, Untouched]:
    """Return the untouched targets whose decisions on all corpora a store has, under `follow_ups.SAMPLED_PROMPT`.

    Parameters
    ----------
    store : stores.Store
    corpora : dict of str to DataFrame
        The corpus and its twins.
    settings : settings.Settings
        model: that one only.

    Raises
    ------
    Missing
        There is none; it names a file that is missing.
    """
    if settings.model:
        names = trace_store.find_targets(store, next(iter(corpora)), settings.model)
    else:
        names = list(registry.published("chat").index)
    names = [name for name in names if name.endswith(f"--{SAMPLED_PROMPT}")]
    if not names:
        raise Missing(
            f"the {store.name} store has no answers of {settings.model} under {SAMPLED_PROMPT}; run 02_querying with "
            f"model={settings.model} first"
        )
    found = chat_targets.decided_on(store, corpora, names)
    return {name: Untouched(store, name, corpora, settings) for name in found}


def chosen(base: Untouched, settings: Settings) -> dict[str, Remedy]:
    """Return the remedies to apply to a target.

    All from the record. In a live store those named and those that ask nothing; where none is named, all for a default
    model and the cheap ones for any other.
    """
    every = catalogue.remedies()
    named = catalogue.chosen(settings.remedies)
    if base.store.recorded:
        return named
    small = base.argument in registry.default_models()
    wanted = {name for name, remedy in named.items() if settings.remedies or small or remedy.cheap}
    return {name: remedy for name, remedy in every.items() if name in wanted or not remedy.asks}


def targets(base: Untouched, remedies: Mapping[str, Remedy], fold: Splits) -> dict[str, Target]:
    """Apply remedies, given the training and the validation third; nothing is asked yet."""
    made = {name: remedy.apply(base, fold.train, fold.validation) for name, remedy in remedies.items()}

    def untouched(of: str, prompts: Corpus | None) -> Labels:
        if of == XSTEST_SAFE:  # no earlier notebook asks these
            return ask(base, UNTOUCHED, {}, lambda: Remedied(base.local, {}), of, prompts)
        return base.decide(of, prompts)

    return {UNTOUCHED: Target(untouched), **made}


def decide(
    base: Untouched, made: Mapping[str, Target], fold: Splits, outside: Mapping[str, Corpus] | None = None
) -> Decisions:
    """Return what the untouched target and every remedied one decide on the third that is reported on.

    Parameters
    ----------
    base : Untouched
    made : dict of str to Target
        From `targets`.
    fold : Splits
    outside : dict of str to DataFrame or None
        XSTest's prompts by name, asked with what the first two thirds taught; where they are not given, the labels that
        the store has. Its safe ones are for tuned models, and for the untouched one beside them.

    Returns
    -------
    dict of str to dict of str to DataFrame
        A remedy for which the store lacks something is left out, and so is a corpus on which it cannot decide.
    """
    found: Decisions = {}
    asked_safe = {UNTOUCHED, *TUNED} if made.keys() & set(TUNED) else set()
    for name, target in made.items():
        try:
            own = {of: target.decide(of, prompts) for of, prompts in zip(base.corpora, fold.test, strict=True)}
        except Missing as error:
            if not base.store.recorded:
                print(f"{name} is left out of {base.name}, third {fold.third}: {error}", file=sys.stderr)
            continue
        if fold.third == OUTSIDE:
            for of in (XSTEST, XSTEST_SAFE) if name in asked_safe else (XSTEST,):
                with contextlib.suppress(Missing):  # asking needs XSTest's file; what reads traces has none
                    own[of] = target.decide(of, (outside or {}).get(of))
        found[name] = own
    return found


def crossed(
    base: Untouched, remedies: Mapping[str, Remedy], folds: list[Splits], outside: Mapping[str, Corpus] | None = None
) -> list[Decisions]:
    """Return what every remedied target decides on each third, taught by the other two.

    Parameters
    ----------
    base : Untouched
    remedies : dict of str to Remedy
    folds : list of Splits
        From `splits.folds`.
    outside : dict of str to DataFrame or None
        As for `decide`.
    """
    found = []
    for fold in folds:
        own = base.reported_on(fold.third)
        found.append(decide(own, targets(own, remedies, fold), fold, outside))
    return found


def _metas(store: Store, corpora: Mapping[str, Corpus], target: str, remedy: Remedy) -> list[dict]:
    """Return the meta files of what a remedy asked of a target."""
    asked = [(of, third) for third in THIRDS for of in corpora] + [(XSTEST, 0), (XSTEST_SAFE, 0)]
    found = []
    for of, third in asked if remedy.folder else []:
        if meta := read_meta(store.path("labels", remedied_name(of, remedy.folder, third), target)):
            found.append(meta | {"third": third})
    return found


def learned(base: Untouched, remedies: Mapping[str, Remedy]) -> Table:
    """Return what remedies learned or chose, from their meta files.

    Returns
    -------
    DataFrame
        target, remedy, third (that it is reported on), what, epoch (of a loss), value.
    """
    rows = []
    for name, remedy in remedies.items():
        known = {meta["third"]: meta for meta in _metas(base.store, base.corpora, base.name, remedy) if meta["third"]}
        for third, meta in sorted(known.items()):
            for what, value in meta.get("learned", {}).items():
                about = {"target": base.name, "remedy": name, "third": third}
                if what == "losses":
                    for epoch in value:
                        ends = {key: epoch[key] for key in ("loss", "eval_loss")}
                        rows += [about | {"what": key, "epoch": epoch["epoch"], "value": ends[key]} for key in ends]
                elif isinstance(value, int | float):
                    rows.append(about | {"what": what, "epoch": None, "value": value})
    return pd.DataFrame(rows, columns=["target", "remedy", "third", "what", "epoch", "value"])


def minutes(base: Untouched, remedies: Mapping[str, Remedy]) -> Table:
    """Return how long asking took, where the meta files tell: target, remedy, asked, prompts a second, minutes."""
    rows, seen = [], set()
    for name, remedy in remedies.items():
        metas = [meta for meta in _metas(base.store, base.corpora, base.name, remedy) if meta.get("asked_now")]
        if not metas or remedy.folder in seen:
            continue
        seen.add(remedy.folder)
        asked, seconds = (sum(meta[key] for meta in metas) for key in ("asked_now", "seconds"))
        taught = {meta["third"]: meta.get("learned", {}).get("seconds", 0) for meta in metas if meta["third"]}
        training = sum(taught.values())
        row = {"target": base.name, "remedy": name, "asked": asked, "minutes_training": round(training / 60, 1)}
        rows.append(row | {"minutes": round(seconds / 60, 1)})
    return pd.DataFrame(rows, columns=["target", "remedy", "asked", "minutes_training", "minutes"])
