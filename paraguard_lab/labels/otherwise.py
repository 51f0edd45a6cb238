"""Query a corpus in 02 otherwise than all of it, with every answer kept."""

import sys

from paraguard_lab.labels.until_sure import ask_until_sure
from paraguard_lab.labels.withheld import keep_labels
from paraguard_utils import unsafe
from paraguard_utils.labels import systems
from paraguard_utils.schemas import Corpus, Traces
from paraguard_utils.settings import QuerySettings
from paraguard_utils.stores import CorpusFiles


def query_otherwise(
    files: CorpusFiles, prompts: Corpus, settings: QuerySettings
) -> dict[str, Traces] | None:
    """Query with the parameter `stop`, or prompts that ask for harm; None for others.

    `labels.systems.ask_systems` calls this by an entry point. With `stop` there are no
    traces in the end; answers to prompts that ask for harm are labelled in memory and
    not kept.
    """
    if settings.stop:
        ask_until_sure(files, prompts, settings)
        return {}
    if not unsafe.asks_for_harm(prompts):
        return None
    print(
        f"{files.name} asks for harm: answers are labelled in memory, and only labels"
        " are kept",
        file=sys.stderr,
    )
    return systems.query_all(files, prompts, settings, keep_labels(prompts))
