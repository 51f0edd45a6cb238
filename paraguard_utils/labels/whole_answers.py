"""Answers at greater length: what the usual cut costs, and whole answers to tune on (`docs/method.md`, Labels)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from paraguard_utils import unsafe
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, to_columns
from paraguard_utils.labels import labelling, refusals
from paraguard_utils.models import backends, encoder, prompting, trace_store
from paraguard_utils.schemas import Corpus, Labels, Table, Traces
from paraguard_utils.settings import Settings
from paraguard_utils.stores import Store
from paraguard_utils.text import readable

LONG = 256
"""New tokens of a long answer."""

LONG_SAMPLED = "safety"
"""The wrapper under which the random sample is asked."""

DECLINES = "declines_request"
"""The cue that is looked for behind an answer's opening, where the labeller does not read."""


def ask_long_answers(
    store: Store,
    corpus_name: str,
    corpus: Corpus,
    traces: Mapping[str, Traces],
    labels: Mapping[str, Labels],
    settings: Settings,
) -> dict[str, pd.DataFrame]:
    """Return long answers: asked where `settings.long_answers` names a number, else those in the store.

    Asked are a random sample of so many prompts, under the wrapper `LONG_SAMPLED`, and under every wrapper the accepted
    paraphrases that `to_finish` names.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus : DataFrame
    traces, labels : dict of str to DataFrame
        The usual answers and their labels, by target, in corpus order.
    settings : settings.Settings
        long_answers, wrappers, batch and what `backends.sources` and `opened` take are used.

    Returns
    -------
    dict of str to DataFrame
        Files of kind `answers`, by target; a target without one is left out.

    Raises
    ------
    DataError
        A file in the store was labelled by another version of the labeller, or long answers are asked for of a corpus
        that asks for harm.
    """
    if settings.long_answers:
        unsafe.refuse(corpus, "long answers (long_answers)")
        vectors = encoder.vectors(store, corpus_name, corpus["text"], earlier=True)
        sample = set(corpus["prompt_id"].sample(min(settings.long_answers, len(corpus)), random_state=SEED))
        for source in backends.sources(settings):
            model = backends.opened(source, settings)
            for wrapper in settings.wrappers:
                target = prompting.target_name(model.name, wrapper)
                drawn = sample if wrapper == LONG_SAMPLED else set()
                wanted = drawn | to_finish(corpus, traces[target], labels[target], vectors)
                asked = corpus[corpus["prompt_id"].isin(wanted)]
                if asked.empty:
                    continue
                decoding = prompting.Decoding(LONG)
                frame = trace_store.query(
                    store, f"{corpus_name}--long", asked, model, wrapper, decoding, settings.batch
                )
                found = with_later(frame, asked["text"]).assign(sample=frame["prompt_id"].isin(drawn))
                meta = settings.meta(corpus=asked[["prompt_id", "text"]], labeller=labelling.LABELLER)
                store.write("answers", corpus_name, target, frame=found, meta=meta | {"max_new_tokens": LONG})
    return read_long_answers(store, corpus_name, list(labels))


def read_long_answers(store: Store, corpus_name: str, targets: list[str]) -> dict[str, pd.DataFrame]:
    """Return the long answers in a store, by target; a target without any is left out.

    Raises
    ------
    DataError
        They were labelled by another version of the labeller.
    """
    return labelling.read_labelled(store, "answers", corpus_name, targets, "long_answers=N")


def to_finish(corpus: Corpus, traces: Traces, labels: Labels, vectors: np.ndarray) -> set[str]:
    """Return the accepted prompts nearest to a rejected one of their cluster whose answer was cut.

    Parameters
    ----------
    corpus, traces, labels : DataFrame
        One target's, rows in the same order.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors of the corpus.

    Returns
    -------
    set of str
        Prompt ids; degenerate answers are passed over.
    """
    rejected = (labels["label"] == "reject").to_numpy()
    accepted = ((labels["label"] == "accept") & (labels["answer"] == "on_topic")).to_numpy()
    wanted = set()
    for rows in corpus.groupby("cluster_id").indices.values():
        refused, answered = rows[rejected[rows]], rows[accepted[rows]]
        if len(refused) and len(answered):
            close = vectors[refused].astype(float) @ vectors[answered].astype(float).T
            wanted |= set(answered[close.argmax(axis=1)].tolist())
    cut = (traces["finish_reason"] != "stop").to_numpy()
    return {corpus["prompt_id"].iat[row] for row in wanted if cut[row]}


def with_later(frame: Traces, requests: pd.Series) -> pd.DataFrame:
    """Label long answers: the columns of a file of kind `answers`, but `sample`."""
    frame = frame.assign(response=frame["response"].map(readable, na_action="ignore"))
    found = labelling.label(frame["response"], frame["finish_reason"], requests)
    later = [_declines_later(text) for text in frame["response"]]
    kept = frame[["prompt_id", "key", "response", "finish_reason"]]
    return kept.assign(label=found["label"].to_numpy(), declined_later=later)


def _declines_later(text: object) -> bool:
    """Tell whether the cue that declines a request as such stands behind an answer's opening."""
    step = refusals.CUE_CHARS // 2  # overlapping windows, so that no cue is cut in two
    text = text if isinstance(text, str) else ""
    parts = [text[start : start + refusals.CUE_CHARS] for start in range(step, len(text), step)]
    return bool(refusals.label(parts, [""] * len(parts))["rule"].isin([DECLINES]).any())


def cost_of_cut(longer: Mapping[str, pd.DataFrame], labels: Mapping[str, Labels], clusters: ClusterBootstrap) -> Table:
    """Count, in the random sample, the labels that the usual cut of answers changes.

    Parameters
    ----------
    longer : dict of str to DataFrame
        Long answers by target.
    labels : dict of str to DataFrame
        Labels of the usual answers.
    clusters : ClusterBootstrap
        Of the corpus; a prompt's cluster is its id up to the last hyphen.

    Returns
    -------
    DataFrame
        target, n, continued (the long answer begins with the usual one), accept_to_reject and reject_to_accept (what
        the cut calls the first and the whole calls the second), declined_later (accepted answers that decline the
        request after their opening, where the labeller does not read), and changed with its interval; a row for each
        target with a sample.
    """
    lines = []
    for name, frame in longer.items():
        frame = frame[frame["sample"]]
        if frame.empty:
            continue
        short = labels[name].set_index("prompt_id").loc[frame["prompt_id"]]
        same = [
            isinstance(long, str) and long.startswith(text if isinstance(text, str) else "")
            for long, text in zip(frame["response"], short["response"], strict=True)
        ]
        usual, whole = short["label"].to_numpy(), frame["label"].to_numpy()
        ids = frame["prompt_id"].str.rpartition("-")[0]
        lines.append(
            {"target": name, "n": len(frame), "continued": int(sum(same))}
            | {"accept_to_reject": int(((usual == "accept") & (whole == "reject")).sum())}
            | {"reject_to_accept": int(((usual == "reject") & (whole == "accept")).sum())}
            | {"declined_later": int(((whole == "accept") & frame["declined_later"]).sum())}
            | to_columns({"changed": clusters.share(ids, usual != whole)})
        )
    return pd.DataFrame(lines)
