"""Prompts answered several times by chance: how much of a decision is dice (`docs/method.md`, Disagreement).

Answers at greater length: what the usual cut costs, and whole answers to tune on (`docs/method.md`, Labels).

A target asked again about what it rejected, in other words (`docs/method.md`, The veto).

Only decisions are kept: a rewording's answer is labelled in memory, whatever the request asks for.
"""

import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from paraguard_utils import paths, unsafe
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, to_columns
from paraguard_utils.errors import DataError, UserError
from paraguard_utils.guards import panel
from paraguard_utils.guards.contract import Guard
from paraguard_utils.labels import labelling, refusals
from paraguard_utils.models import backends, encoder, prompting, trace_store
from paraguard_utils.schemas import Corpus, Labels, Table, Traces
from paraguard_utils.settings import Settings, reworded_name
from paraguard_utils.stores import Store
from paraguard_utils.text import readable

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


def reask_models(
    store: Store, corpus_name: str, rewordings: pd.DataFrame, labels: Mapping[str, Labels], settings: Settings
) -> None:
    """Ask the user's model, or the default ones, the rewordings of what it rejected under the wrapper `WRAPPER`.

    Parameters
    ----------
    store : stores.Store
        A live store, whose labels `reasked_decisions` reads. Asking resumes.
    corpus_name : str
        Of the corpus that was reworded.
    rewordings : DataFrame
        Columns prompt_id, cluster_id (the prompt that was reworded), text.
    labels : dict of str to DataFrame
        By target; a model without labels under that wrapper is left out.
    settings : settings.Settings
        max_new_tokens, batch and what `backends.sources` and `opened` take are used.
    """
    for source in backends.sources(settings):
        target = prompting.target_name(source.name, SAMPLED_PROMPT)
        if target not in labels:
            continue
        rows = _of_rejected(rewordings, labels[target])
        if rows.empty:
            continue
        model = backends.opened(source, settings)
        withheld = labelling.in_memory(rows, numbers=False)
        decoding = prompting.Decoding(settings.max_new_tokens)
        place = (store, reworded_name(corpus_name), rows, model, SAMPLED_PROMPT, decoding, settings.batch)
        trace_store.query(*place, withheld=withheld)


def reask_guards(
    store: Store,
    corpus_name: str,
    rewordings: pd.DataFrame,
    labels: Mapping[str, Labels],
    guards: Mapping[str, Guard],
    settings: Settings,
) -> None:
    """Ask guards the rewordings of what each rejected; one that cannot be asked is named, and the others go on.

    Parameters
    ----------
    store : stores.Store
        A live store.
    corpus_name : str
    rewordings, labels
        As for `reask_models`.
    guards : dict of str to contract.Guard
    settings : settings.Settings
        For the meta files.
    """
    for name, guard in guards.items():
        rows = _of_rejected(rewordings, labels[name])
        if rows.empty:
            continue
        try:
            scores = panel.scores(store, reworded_name(corpus_name), rows, guard)
        except UserError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        made = panel.labels(scores, guard.threshold)
        store.write("labels", reworded_name(corpus_name), name, frame=made, meta=settings.meta(scores=scores))


def reasked_decisions(
    store: Store, corpus_name: str, corpus: Corpus, target: str, labels: Labels
) -> pd.DataFrame | None:
    """Return how a target decides the rewordings of each prompt that it rejects.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus, labels : DataFrame
        Rows in the same order.
    target : str

    Returns
    -------
    DataFrame or None
        Rows in corpus order: isolation, the share of its rewordings that are accepted, in [0, 1], NaN for what is
        accepted, and where no rewording was made or decided; queries, how many there are. None: it was not asked.

    Raises
    ------
    DataError
        Other prompts were reworded than the target rejects.
    """
    if not store.has("labels", reworded_name(corpus_name), target):
        return None
    again = store.read("labels", reworded_name(corpus_name), target)
    again = again.assign(label=again["label"].replace("blocked", "reject"))
    of = again["prompt_id"].str.rpartition("~")[0]
    rejected = corpus["prompt_id"][(labels["label"] == "reject").to_numpy()]
    if not of.isin(rejected).all():
        path = store.path("labels", reworded_name(corpus_name), target)
        raise DataError(f"{paths.shown(path)}: of other rejections than the store holds; run 07_veto with a live store")
    decided = again["label"].isin(["accept", "reject"])
    share = (again["label"] == "accept")[decided].groupby(of[decided]).mean()
    queries = of.value_counts().reindex(corpus["prompt_id"], fill_value=0).to_numpy()
    return pd.DataFrame({"isolation": corpus["prompt_id"].map(share).to_numpy(float), "queries": queries})


def _of_rejected(rewordings: pd.DataFrame, labels: Labels) -> pd.DataFrame:
    rejected = labels.loc[labels["label"] == "reject", "prompt_id"]
    return rewordings[rewordings["cluster_id"].isin(rejected)].reset_index(drop=True)
