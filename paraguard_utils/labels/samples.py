"""Prompts answered several times by chance: how much of a decision is dice (`docs/method.md`, Disagreement)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from paraguard_utils import unsafe
from paraguard_utils.core.estimates import SEED
from paraguard_utils.labels import labelling
from paraguard_utils.models import backends, prompting, trace_store
from paraguard_utils.schemas import Corpus
from paraguard_utils.settings import Settings
from paraguard_utils.stores import Store

SAMPLED_CLUSTERS = 60
"""Clusters that are asked again, drawn by seed."""

DRAWS = 8
"""Answers a prompt."""

TEMPERATURE = 0.7

SAMPLED_PROMPT = "safety"


def drawn_prompts(corpus: Corpus) -> Corpus:
    """Return the rows of the clusters that are asked again, in corpus order."""
    ids = sorted(set(corpus["cluster_id"]))
    chosen = np.random.default_rng(SEED).choice(ids, min(SAMPLED_CLUSTERS, len(ids)), replace=False)
    return corpus[corpus["cluster_id"].isin(chosen)].reset_index(drop=True)


def ask_samples(store: Store, corpus_name: str, corpus: Corpus, settings: Settings) -> None:
    """Answer the drawn prompts `DRAWS` times, at `TEMPERATURE` and top-p 1, under the wrapper `SAMPLED_PROMPT`.

    Parameters
    ----------
    store : stores.Store
        A live store. Every draw resumes like any other asking.
    corpus_name : str
    corpus : DataFrame
    settings : settings.Settings
        max_new_tokens, batch and what `backends.sources` and `opened` take are used.

    Raises
    ------
    DataError
        The corpus asks for harm.
    """
    unsafe.refuse(corpus, "drawn answers (draw)")
    prompts = drawn_prompts(corpus)
    for source in backends.sources(settings):
        model = backends.opened(source, settings)
        target, frames = prompting.target_name(model.name, SAMPLED_PROMPT), []
        for draw in range(DRAWS):
            decoding = prompting.Sampling(settings.max_new_tokens, temperature=TEMPERATURE, draw=draw)
            folder = f"{corpus_name}--draw-{draw}"
            traces = trace_store.query(store, folder, prompts, model, SAMPLED_PROMPT, decoding, settings.batch)
            labels = labelling.label_answers(traces, prompts)[["prompt_id", "label", "answer", "response"]]
            frames.append(labels.assign(draw=draw, key=traces["key"].to_numpy()))
        meta = settings.meta(corpus=prompts[["prompt_id", "text"]], labeller=labelling.LABELLER)
        meta |= {"draws": DRAWS, "temperature": TEMPERATURE}
        store.write("samples", corpus_name, target, frame=pd.concat(frames, ignore_index=True), meta=meta)


def read_samples(store: Store, corpus_name: str, targets: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Return the drawn answers in a store, by target; a target without any is left out.

    Raises
    ------
    DataError
        They were labelled by another version of the labeller.
    """
    return labelling.read_labelled(store, "samples", corpus_name, targets, "draw=true")
