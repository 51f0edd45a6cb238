"""Query requests that ask for harm: a corpus's twins, and XSTest's unsafe prompts.

Notebook 02 finds `ask_harmful_requests` by its entry point. Answers are labelled in
memory and not kept (`labels.withheld`).
"""

import sys
from typing import Any

from paraguard_lab.corpus.xstest import read_xstest_prompts
from paraguard_lab.labels.withheld import hash_keys, keep_labels
from paraguard_lab.parameters import FILE_SCHEME
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.errors import DataError, SettingsError
from paraguard_utils.labels import labelling, systems
from paraguard_utils.models import prompting, trace_store
from paraguard_utils.schemas import Corpus, Labels
from paraguard_utils.settings import TWINS, XSTEST, QuerySettings
from paraguard_utils.stores import RECORDED, CorpusFiles, Store


def ask_harmful_requests(
    files: CorpusFiles, settings: QuerySettings
) -> dict[str, dict[str, Labels]]:
    """Return labels of answers to a corpus's twins and to XSTest's unsafe prompts.

    They are by corpus and system. Without a file of XSTest's prompts, its labels are
    those that the store has. A corpus without labels is left out, the twins with a
    printed line. A shard queries its part of the twins, and returns nothing.

    Raises
    ------
    SettingsError
        No row of the twins is declared to ask for harm.
    DataError
        XSTest's file cannot be read, or labels are of other prompts.
    """
    outside = None
    if settings.xstest:
        outside = read_xstest_prompts(settings.xstest, "unsafe")
    labels = {}
    names = settings.twins_system_prompts or settings.system_prompts
    settings = settings.model_copy(update={"system_prompts": names})
    twins = _find_twins(files, settings)
    if twins:
        traces = systems.ask_systems(twins, twins.prompts, settings)
        if traces:
            labels[twins.name] = systems.label_systems(
                twins, twins.prompts, traces, settings
            )
    if settings.shard:
        return {}
    if settings.base_url.startswith(FILE_SCHEME):  # files would keep the answers
        outside = None
    of_xstest = ask_labels_only(files.other(XSTEST), outside, settings)
    if of_xstest:
        labels[XSTEST] = of_xstest
    return labels


def ask_labels_only(
    files: CorpusFiles, prompts: Corpus | None, settings: QuerySettings
) -> dict[str, Labels]:
    """Return labels of answers to somebody else's prompts that ask for harm, by system.

    Nothing else is kept. A live store queries the prompts. The recorded one, and any
    store without prompts (None), gives the labels that it has; labels of other prompts
    or by another labeller are a UserError.
    """
    if prompts is not None and not files.recorded:
        prompting.check_prompts(prompts)
        print(
            f"{files.name} asks for harm: only labels are kept",
            file=sys.stderr,
        )
        keep = keep_labels(prompts, numbers=False)
        asked: dict[str, Any] = systems.query_all(files, prompts, settings, keep)
        return asked
    labels = {}
    for file in sorted(files.path("labels", "any").parent.glob("*.csv")):
        meta = stores.read_meta(file)
        if "instruction" not in meta:  # a guard's
            continue
        labels[file.stem] = labelling.read_labels(files, file.stem)
        if prompts is not None:
            where = paths.display_path(file)
            context = trace_store.context_from_meta(meta, where)
            if hash_keys(context, prompts) != meta["inputs"]["traces"]:
                raise DataError(
                    f"{where}: labels of other prompts than these; ask again in a live"
                    " store"
                )
    return labels


def _find_twins(files: CorpusFiles, settings: QuerySettings) -> CorpusFiles | None:
    """Return the files of the twins to query, if any.

    If wanted twins cannot be queried, print why.
    """
    if not settings.twins or settings.twins == files.name:
        return None
    twins = files.other(settings.twins)
    recorded = CorpusFiles(Store(RECORDED), twins.name)
    is_known = twins.has("corpus") or recorded.has("corpus")
    chat = registry.published_systems("chat").index
    was_asked = any(twins.has("traces", system) for system in chat)
    if settings.base_url.startswith(FILE_SCHEME):
        obstacle = "is not asked by files, in which the answers would be kept"
    elif settings.limit:
        obstacle = "is not asked while the parameter limit is given"
    elif not is_known or (files.recorded and not was_asked):
        obstacle = "was not asked in this store"
    elif not unsafe.asks_for_harm(twins.prompts):
        raise SettingsError(
            f"parameter 'twins': no request of {twins.name} is declared to ask for harm"
        )
    elif (
        twins.name == TWINS and unsafe.select_twins(files.prompts, twins.prompts).empty
    ):
        obstacle = f"was not asked: it has twins of clusters that {files.name} lacks"
    else:
        return twins
    print(f"{twins.name} {obstacle}")
    return None
