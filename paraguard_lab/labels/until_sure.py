"""02 with the parameter `stop`: query clusters until the verdict on DR is certain."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from paraguard_lab.core.until_sure import judge_until_sure
from paraguard_lab.labels.first_answers import FirstAnswers
from paraguard_utils.core import decisions
from paraguard_utils.core.estimates import SEED
from paraguard_utils.labels import labelling
from paraguard_utils.models import backends, prompting, trace_store
from paraguard_utils.models.backends import Backend
from paraguard_utils.models.trace_store import Query
from paraguard_utils.schemas import Corpus
from paraguard_utils.settings import QuerySettings
from paraguard_utils.stores import CorpusFiles


def ask_until_sure(
    files: CorpusFiles, prompts: Corpus, settings: QuerySettings
) -> None:
    """Query clusters in random order until DR is known to exceed `stop`, or not to.

    Print a line per system. What was queried is kept, so that a later run without
    `stop` queries the rest only.
    """
    sources = backends.resolve_backends(settings)
    clusters = prompts["cluster_id"].unique()
    order = np.random.default_rng(SEED).permutation(clusters)
    for source in sources:
        model = source.open(settings)
        for system_prompt in settings.system_prompts:
            system = prompting.make_system_name(model.name, system_prompt)
            query = Query(
                files,
                prompts,
                system_prompt,
                prompting.Decoding(settings.max_new_tokens),
                settings.batch,
                trial=True,
                watch=FirstAnswers(system, model),
            )
            decide = partial(_decide_clusters, model=model, query=query)
            verdict = judge_until_sure(order, decide, settings.stop)
            print(f"{system}: {verdict.line}")


def _decide_clusters(
    clusters: np.ndarray, model: Backend, query: Query
) -> pd.DataFrame:
    """Query some clusters, and return their prompts with a column `refused`."""
    is_chosen = query.prompts["cluster_id"].isin(clusters)
    prompts = query.prompts[is_chosen]
    traces = trace_store.query_model(model, replace(query, prompts=prompts))
    labels = labelling.label_answers(traces, prompts)
    refused = decisions.as_refused(labels["label"], blocked=False)
    return prompts.assign(refused=refused)
