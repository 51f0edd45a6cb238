"""Decisions of every remedied system on every split: asked in a live store, read from
the recorded one.
"""

import contextlib
import sys
from collections.abc import Mapping

import pandas as pd

from paraguard_lab.labels.follow_ups import SAMPLED_SYSTEM_PROMPT
from paraguard_lab.remedies import catalogue
from paraguard_lab.remedies.catalogue import UNTOUCHED
from paraguard_lab.remedies.contract import RemediedSystem, Remedy
from paraguard_lab.remedies.splits import SPLIT_NUMBERS, Splits
from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_utils import registry
from paraguard_utils.errors import Missing
from paraguard_utils.labels import systems as chat_systems
from paraguard_utils.models import trace_store
from paraguard_utils.schemas import Corpus, Labels, Table
from paraguard_utils.settings import XSTEST, XSTEST_SAFE, Settings, name_remedied
from paraguard_utils.stores import Store, read_meta

RemedyDecisions = dict[str, dict[str, Labels]]  # labels by remedy and corpus
TUNED_REMEDIES = tuple(
    name for name, remedy in catalogue.all_remedies().items() if remedy.kind == "tuning"
)


def find_untouched_systems(
    store: Store, corpora: Mapping[str, Corpus], settings: Settings
) -> dict[str, UntouchedSystem]:
    """Return the untouched systems under the safety instruction whose decisions on all
    corpora are in a store.

    `settings.model` restricts them to that model. Raises Missing, which names a missing
    file, if there are none.
    """
    if settings.model:
        names = trace_store.find_systems(store, next(iter(corpora)), settings.model)
    else:
        names = list(registry.published_systems("chat").index)
    names = [name for name in names if name.endswith(f"--{SAMPLED_SYSTEM_PROMPT}")]
    if not names:
        raise Missing(
            f"the {store.name} store has no answers of {settings.model} under"
            f" {SAMPLED_SYSTEM_PROMPT}; run 02_querying with model={settings.model}"
            " first"
        )
    found = chat_systems.list_decided_systems(store, corpora, names)
    return {name: UntouchedSystem(store, name, corpora, settings) for name in found}


def choose_remedies(base: UntouchedSystem, settings: Settings) -> dict[str, Remedy]:
    """Choose the remedies to apply to a system: those that are named, and in a live
    store those that ask no model.

    From the recorded store, where nothing is asked, all are read if none is named.
    """
    named = catalogue.select_remedies(settings.remedies)
    if base.store.recorded:
        return named or catalogue.all_remedies()
    return {
        name: remedy
        for name, remedy in catalogue.all_remedies().items()
        if name in named or not remedy.asks
    }


def without_remedy(base: UntouchedSystem) -> RemediedSystem:
    """Return the untouched system as one beside the remedied: it asks XSTest's safe
    prompts, as no earlier notebook.
    """
    asked = RemediedSystem.asking(base, UNTOUCHED, {})
    return RemediedSystem(
        lambda of, prompts: (asked if of == XSTEST_SAFE else base).decide(of, prompts)
    )


def decide_test_split(
    base: UntouchedSystem,
    remedies: Mapping[str, Remedy],
    fold: Splits,
    outside: Mapping[str, Corpus] | None = None,
) -> RemedyDecisions:
    """Return decisions of the untouched system and of every remedied one on the test
    split.

    XSTest's prompts (`outside`, by name) are decided for the last split only; without
    them the labels in the store count. Only tuned models decide its safe prompts, and
    the untouched one beside them. A remedy is left out if the store lacks something for
    it, and so is an outside corpus that it cannot decide.
    """
    base = base.reported_on(fold.third)
    found: RemedyDecisions = {}
    asked_safe = (
        {UNTOUCHED, *TUNED_REMEDIES} if remedies.keys() & set(TUNED_REMEDIES) else set()
    )
    made = {
        name: remedy.apply(base, fold.train, fold.validation)
        for name, remedy in remedies.items()
    }
    for name, system in {UNTOUCHED: without_remedy(base), **made}.items():
        try:
            own = {
                of: system.decide(of, prompts)
                for of, prompts in zip(base.corpora, fold.test, strict=True)
            }
        except Missing as error:
            if not base.store.recorded:
                print(
                    f"{name} is left out of {base.name}, third {fold.third}: {error}",
                    file=sys.stderr,
                )
            continue
        if fold.third == SPLIT_NUMBERS[-1]:
            for of in (XSTEST, XSTEST_SAFE) if name in asked_safe else (XSTEST,):
                with contextlib.suppress(
                    Missing
                ):  # asking needs XSTest's file, and it has no traces
                    own[of] = system.decide(of, (outside or {}).get(of))
        found[name] = own
    return found


def _metas(base: UntouchedSystem, remedy: Remedy) -> list[dict]:
    """Return the meta files of what a remedy asked, with the number of the split,
    `third`.
    """
    asked = [(of, third) for third in SPLIT_NUMBERS for of in base.corpora] + [
        (XSTEST, 0),
        (XSTEST_SAFE, 0),
    ]
    names = [
        (name_remedied(of, remedy.folder, third), third)
        for of, third in asked
        if remedy.folder
    ]
    metas = [
        (read_meta(base.store.path("labels", name, base.name)), third)
        for name, third in names
    ]
    return [meta | {"third": third} for meta, third in metas if meta]


def read_learned_values(base: UntouchedSystem, remedies: Mapping[str, Remedy]) -> Table:
    """Return what remedies learned or chose: system, remedy, third (test split), what,
    epoch (of a loss), value.
    """
    rows = []
    for name, remedy in remedies.items():
        known = {
            meta["third"]: meta.get("learned", {})
            for meta in _metas(base, remedy)
            if meta["third"]
        }
        for third, own in sorted(known.items()):
            about = (base.name, name, third)
            for what, value in own.items():
                if what == "losses":
                    rows += [
                        (*about, key, one["epoch"], one[key])
                        for one in value
                        for key in ("loss", "eval_loss")
                    ]
                elif isinstance(value, int | float):
                    rows.append((*about, what, None, value))
    return pd.DataFrame(
        rows, columns=["system", "remedy", "third", "what", "epoch", "value"]
    )


def read_asking_minutes(base: UntouchedSystem, remedies: Mapping[str, Remedy]) -> Table:
    """Return times of asking, shared ones once: system, remedy, asked (prompts),
    minutes_training, minutes.
    """
    rows, seen = [], set()
    for name, remedy in remedies.items():
        metas = [meta for meta in _metas(base, remedy) if meta.get("asked_now")]
        if metas and remedy.folder not in seen:
            seen.add(remedy.folder)
            asked, seconds = (
                sum(meta[key] for meta in metas) for key in ("asked_now", "seconds")
            )
            taught = {
                meta["third"]: meta.get("learned", {}).get("seconds", 0)
                for meta in metas
                if meta["third"]
            }
            rows.append(
                (
                    base.name,
                    name,
                    asked,
                    round(sum(taught.values()) / 60, 1),
                    round(seconds / 60, 1),
                )
            )
    return pd.DataFrame(
        rows, columns=["system", "remedy", "asked", "minutes_training", "minutes"]
    )
