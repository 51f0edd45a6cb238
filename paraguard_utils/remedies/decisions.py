"""Decisions of every remedied system on every split: asked in a live store, read from the recorded one."""

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
"""XSTest's prompts are asked with what was learned for the split of this number."""

TUNED = tuple(name for name, remedy in catalogue.remedies().items() if remedy.kind == "tuning")
"""Remedies that change weights."""


def bases(store: Store, corpora: Mapping[str, Corpus], settings: Settings) -> dict[str, Untouched]:
    """Return the untouched systems under the safety instruction whose decisions on all corpora are in a store.

    `settings.model` restricts them to that model. Raises Missing, which names a missing file, if there are none.
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
    """Choose the remedies to apply to a system.

    The recorded store gets all that are named. A live store gets the named ones and those that ask nothing; if none is
    named, a default model gets all, and any other model the cheap ones.
    """
    named = catalogue.chosen(settings.remedies)
    if base.store.recorded:
        return named
    if not settings.remedies and base.argument not in registry.default_models():
        named = {name: remedy for name, remedy in named.items() if remedy.cheap}
    return {name: remedy for name, remedy in catalogue.remedies().items() if name in named or not remedy.asks}


def targets(base: Untouched, remedies: Mapping[str, Remedy], fold: Splits) -> dict[str, Target]:
    """Return the untouched system and, by name, what remedies make of it; nothing is asked yet."""

    def untouched(of: str, prompts: Corpus | None) -> Labels:
        if of == XSTEST_SAFE:  # no earlier notebook asks these
            return ask(base, UNTOUCHED, {}, lambda: Remedied(base.local, {}), of, prompts)
        return base.decide(of, prompts)

    made = {name: remedy.apply(base, fold.train, fold.validation) for name, remedy in remedies.items()}
    return {UNTOUCHED: Target(untouched), **made}


def decide(
    base: Untouched, remedies: Mapping[str, Remedy], fold: Splits, outside: Mapping[str, Corpus] | None = None
) -> Decisions:
    """Return decisions of the untouched system and of every remedied one on the test split.

    XSTest's prompts (`outside`, by name) are decided for split `OUTSIDE` only; without them the labels in the store
    count. Only tuned models decide its safe prompts, and the untouched one beside them. A remedy is left out if the
    store lacks something for it, and so is an outside corpus that it cannot decide.
    """
    base = base.reported_on(fold.third)
    found: Decisions = {}
    asked_safe = {UNTOUCHED, *TUNED} if remedies.keys() & set(TUNED) else set()
    for name, target in targets(base, remedies, fold).items():
        try:
            own = {of: target.decide(of, prompts) for of, prompts in zip(base.corpora, fold.test, strict=True)}
        except Missing as error:
            if not base.store.recorded:
                print(f"{name} is left out of {base.name}, third {fold.third}: {error}", file=sys.stderr)
            continue
        if fold.third == OUTSIDE:
            for of in (XSTEST, XSTEST_SAFE) if name in asked_safe else (XSTEST,):
                with contextlib.suppress(Missing):  # asking needs XSTest's file, and it has no traces
                    own[of] = target.decide(of, (outside or {}).get(of))
        found[name] = own
    return found


def crossed(
    base: Untouched, remedies: Mapping[str, Remedy], folds: list[Splits], outside: Mapping[str, Corpus] | None = None
) -> list[Decisions]:
    """Return the decisions on each split (`decide`), in the order of the folds."""
    return [decide(base, remedies, fold, outside) for fold in folds]


def _metas(base: Untouched, remedy: Remedy) -> list[dict]:
    """Return the meta files of what a remedy asked, with the number of the split, `third`."""
    asked = [(of, third) for third in THIRDS for of in base.corpora] + [(XSTEST, 0), (XSTEST_SAFE, 0)]
    found = []
    for of, third in asked if remedy.folder else []:
        if meta := read_meta(base.store.path("labels", remedied_name(of, remedy.folder, third), base.name)):
            found.append(meta | {"third": third})
    return found


def learned(base: Untouched, remedies: Mapping[str, Remedy]) -> Table:
    """Return what remedies learned or chose, from their meta files.

    Columns: target, remedy, third (number of the test split), what, epoch (of a loss), value.
    """
    rows = []
    for name, remedy in remedies.items():
        known = {meta["third"]: meta.get("learned", {}) for meta in _metas(base, remedy) if meta["third"]}
        for third, own in sorted(known.items()):
            about = {"target": base.name, "remedy": name, "third": third}
            for what, value in own.items():
                if what == "losses":
                    for epoch in value:
                        for key in ("loss", "eval_loss"):
                            rows.append(about | {"what": key, "epoch": epoch["epoch"], "value": epoch[key]})
                elif isinstance(value, int | float):
                    rows.append(about | {"what": what, "epoch": None, "value": value})
    return pd.DataFrame(rows, columns=["target", "remedy", "third", "what", "epoch", "value"])


def minutes(base: Untouched, remedies: Mapping[str, Remedy]) -> Table:
    """Return how long asking and training took, from the meta files; remedies that share answers have one row.

    Columns: target, remedy, asked (prompts), minutes_training, minutes.
    """
    rows, seen = [], set()
    for name, remedy in remedies.items():
        metas = [meta for meta in _metas(base, remedy) if meta.get("asked_now")]
        if not metas or remedy.folder in seen:
            continue
        seen.add(remedy.folder)
        asked, seconds = (sum(meta[key] for meta in metas) for key in ("asked_now", "seconds"))
        taught = {meta["third"]: meta.get("learned", {}).get("seconds", 0) for meta in metas if meta["third"]}
        row = {"target": base.name, "remedy": name, "asked": asked}
        rows.append(row | {"minutes_training": round(sum(taught.values()) / 60, 1), "minutes": round(seconds / 60, 1)})
    return pd.DataFrame(rows, columns=["target", "remedy", "asked", "minutes_training", "minutes"])
