"""Decisions of every remedied system on every split.

A live store asks for them, the recorded one is read.
"""

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

import pandas as pd

from paraguard_lab.corpus.xstest import XSTEST_SAFE
from paraguard_lab.labels import second_look
from paraguard_lab.labels.follow_ups import SAMPLED_SYSTEM_PROMPT
from paraguard_lab.remedies import catalogue
from paraguard_lab.remedies.catalogue import UNTOUCHED
from paraguard_lab.remedies.contract import RemediedSystem, Remedy
from paraguard_lab.remedies.splits import SPLIT_NUMBERS, Splits
from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_lab.settings import RemedySettings, name_remedied
from paraguard_utils import registry
from paraguard_utils.errors import Missing
from paraguard_utils.models import trace_store
from paraguard_utils.schemas import Corpus, Labels, Table
from paraguard_utils.settings import XSTEST
from paraguard_utils.stores import CorpusFiles, Store, read_meta

RemedyDecisions = dict[str, dict[str, Labels]]  # labels by remedy and corpus
TUNED_REMEDIES = tuple(
    name for name, remedy in catalogue.all_remedies().items() if remedy.kind == "tuning"
)


def find_untouched_systems(
    store: Store, corpora: Mapping[str, Corpus], settings: RemedySettings
) -> dict[str, UntouchedSystem]:
    """Return the systems of a store that remedies can be applied to, by name.

    These are the systems under the safety instruction whose decisions on all corpora
    are in the store.

    Parameters
    ----------
    store : Store
    corpora : mapping of str to Corpus
        The benign corpus and its twins, by name.
    settings : RemedySettings
        `model` restricts the systems to that model.

    Raises
    ------
    Missing
        There are none; names a missing file.
    """
    names = list(registry.published_systems("chat").index)
    if settings.model:
        files = CorpusFiles(store, next(iter(corpora)))
        names = trace_store.find_systems(files, settings.model)
    names = [name for name in names if name.endswith(f"--{SAMPLED_SYSTEM_PROMPT}")]
    if not names:
        raise Missing(
            f"the {store.name} store has no answers of {settings.model} under"
            f" {SAMPLED_SYSTEM_PROMPT}; run 02_querying with model={settings.model}"
            " first"
        )
    return {
        name: UntouchedSystem(store, name, corpora, settings)
        for name in second_look.list_decided_systems(store, corpora, names)
    }


def choose_remedies(
    base: UntouchedSystem, settings: RemedySettings
) -> dict[str, Remedy]:
    """Choose the remedies to apply to a system.

    Parameters
    ----------
    base : UntouchedSystem
    settings : RemedySettings
        `remedies` names those that are wanted.

    Returns
    -------
    dict of str to Remedy
        In a live store those that are named, and those that ask no model. From the
        recorded store, where nothing is asked, all are read if none is named.
    """
    named = catalogue.select_remedies(settings.remedies)
    known = catalogue.all_remedies()
    if base.store.recorded:
        return named or known
    chosen = {}
    for name, remedy in known.items():
        if name in named or not remedy.asks:
            chosen[name] = remedy
    return chosen


def without_remedy(base: UntouchedSystem) -> RemediedSystem:
    """Return the untouched system as one beside the remedied.

    It asks XSTest's safe prompts, which no earlier notebook does.
    """
    queries = RemediedSystem.asking(base, UNTOUCHED, {})

    def decide(corpus_name: str, prompts: Corpus | None) -> Labels:
        if corpus_name == XSTEST_SAFE:
            return queries.decide(corpus_name, prompts)
        return base.decide(corpus_name, prompts)

    return RemediedSystem(decide)


def decide_test_split(
    base: UntouchedSystem,
    remedies: Mapping[str, Remedy],
    fold: Splits,
    outside: Mapping[str, Corpus] | None = None,
) -> RemedyDecisions:
    """Return decisions of the untouched and of every remedied system on a test split.

    Parameters
    ----------
    base : UntouchedSystem
    remedies : mapping of str to Remedy
    fold : Splits
        What remedies learn and choose on, and the prompts to be decided.
    outside : mapping of str to Corpus, or None
        XSTest's prompts by name, which are decided for the last split only; without
        them the labels in the store count. Only tuned models decide its safe prompts,
        and the untouched one beside them.

    Returns
    -------
    dict of str to dict of str to Labels
        By remedy, then by corpus. A remedy is left out if the store lacks something for
        it, and so is an outside corpus that it cannot decide.
    """
    base = base.reported_on(fold.third)
    systems = {UNTOUCHED: without_remedy(base)}
    for name, remedy in remedies.items():
        systems[name] = remedy.apply(base, fold.train, fold.validation)
    tuned = [name for name in remedies if name in TUNED_REMEDIES]
    asks_safe = [UNTOUCHED, *tuned] if tuned else []

    prompts = base.by_corpus(fold.test)
    decisions: RemedyDecisions = {}
    for name, system in systems.items():
        try:
            labels = {
                corpus: system.decide(corpus, prompts[corpus]) for corpus in prompts
            }
        except Missing as error:
            if not base.store.recorded:
                print(
                    f"{name} is left out of {base.name}, third {fold.third}: {error}",
                    file=sys.stderr,
                )
            continue
        decisions[name] = labels
        if fold.third == SPLIT_NUMBERS[-1]:
            for elsewhere in (XSTEST, XSTEST_SAFE) if name in asks_safe else (XSTEST,):
                # Asking needs XSTest's file, and it has no traces.
                with contextlib.suppress(Missing):
                    asked = (outside or {}).get(elsewhere)
                    labels[elsewhere] = system.decide(elsewhere, asked)
    return decisions


def _read_learned(base: UntouchedSystem, remedy: Remedy) -> dict[int, dict[str, Any]]:
    """Return what a remedy learned by the number of the split, as its metas say."""
    learned: dict[int, dict[str, Any]] = {}
    if not remedy.folder:
        return learned
    for third in SPLIT_NUMBERS:
        for corpus_name in base.corpora:
            folder = name_remedied(corpus_name, remedy.folder, third)
            meta = read_meta(base.store.path("labels", folder, base.name))
            if meta:
                learned[third] = meta.get("learned", {})
    return learned


def _list_losses(
    about: dict[str, Any], epochs: list[dict[str, float]]
) -> list[dict[str, Any]]:
    """Return a row for each loss of each epoch of a training."""
    rows = []
    for epoch in epochs:
        for what in ("loss", "eval_loss"):
            loss = {"what": what, "epoch": epoch["epoch"], "value": epoch[what]}
            rows.append(about | loss)
    return rows


def read_learned_values(base: UntouchedSystem, remedies: Mapping[str, Remedy]) -> Table:
    """Return the numbers that remedies learned or chose.

    Parameters
    ----------
    base : UntouchedSystem
    remedies : mapping of str to Remedy

    Returns
    -------
    Table
        system, remedy, third (number of the test split), what, epoch (of a loss),
        value.
    """
    rows = []
    for name, remedy in remedies.items():
        for third, learned in _read_learned(base, remedy).items():
            about = {"system": base.name, "remedy": name, "third": third}
            for what, value in learned.items():
                if what == "losses":
                    rows += _list_losses(about, value)
                elif isinstance(value, int | float):
                    rows.append(about | {"what": what, "value": value})
    columns = ["system", "remedy", "third", "what", "epoch", "value"]
    return pd.DataFrame(rows, columns=columns)
