"""Ask the systems again: at a temperature, for longer answers, and in other words
(`docs/method.md` says why).
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from paraguard_lab.settings import FollowUpSettings
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, to_columns
from paraguard_utils.errors import DataError
from paraguard_utils.guards import contract, panel
from paraguard_utils.labels import labelling, refusals
from paraguard_utils.models import backends, encoder, prompting, trace_store
from paraguard_utils.schemas import Corpus, Labels, Table, Traces, original_ids
from paraguard_utils.settings import name_remedied, name_reworded
from paraguard_utils.text import replace_control

N_DRAWS, SAMPLING_TEMPERATURES = (
    8,
    (
        0.7,
        1.0,
    ),
)  # answers per prompt at each temperature; the first is the usual one
SAMPLED_SYSTEM_PROMPT = "safety"  # the system prompt of all samples and rewordings
LONG_ANSWER_TOKENS = 256  # new tokens of a long answer


def select_sampled_prompts(corpus: Corpus, clusters: int) -> Corpus:
    """Return the rows of so many clusters, drawn by seed, in corpus order."""
    ids = sorted(set(corpus["cluster_id"]))
    chosen = np.random.default_rng(SEED).choice(
        ids, min(clusters, len(ids)), replace=False
    )
    return corpus[corpus["cluster_id"].isin(chosen)].reset_index(drop=True)


def ask_samples(
    store: stores.Store, corpus_name: str, corpus: Corpus, settings: FollowUpSettings
) -> None:
    """Ask `settings.draw` clusters `N_DRAWS` times at each temperature, top-p 1, under
    `SAMPLED_SYSTEM_PROMPT`.

    The store is a live one, in which every draw resumes. A corpus that asks for harm is
    a DataError.
    """
    unsafe.refuse_unsafe(corpus, "drawn answers (draw)")
    prompts = select_sampled_prompts(corpus, settings.draw)
    meta = settings.meta(
        corpus=prompts[["prompt_id", "text"]], labeller=labelling.LABELLER
    )
    for source in backends.resolve_backends(settings):
        model, frames = source.open(settings), []
        for temperature, draw in itertools.product(
            SAMPLING_TEMPERATURES, range(N_DRAWS)
        ):
            decoding = prompting.Sampling(
                settings.max_new_tokens, temperature=temperature, draw=draw
            )
            name = f"{corpus_name}--draw-{temperature}-{draw}"
            query = trace_store.Query(
                stores.CorpusFiles(store, name),
                prompts,
                SAMPLED_SYSTEM_PROMPT,
                decoding,
                settings.batch,
            )
            traces = trace_store.query_model(model, query)
            labels = labelling.label_answers(traces, prompts)[
                ["prompt_id", "label", "answer", "response"]
            ]
            frames.append(
                labels.assign(
                    temperature=temperature, draw=draw, key=traces["key"].to_numpy()
                )
            )
        system = prompting.make_system_name(model.name, SAMPLED_SYSTEM_PROMPT)
        store.write(
            "samples",
            corpus_name,
            system,
            frame=pd.concat(frames, ignore_index=True),
            meta=meta,
        )


def read_samples(
    store: stores.Store,
    corpus_name: str,
    systems: Sequence[str],
    temperature: float = SAMPLING_TEMPERATURES[0],
) -> dict[str, pd.DataFrame]:
    """Read the answers in a store that were drawn at a temperature, by system
    (`labelling.read_labelled_answers`).
    """
    found = labelling.read_labelled_answers(
        store, "samples", corpus_name, systems, "draw=60"
    )
    parts = {
        name: own[own["temperature"] == temperature].reset_index(drop=True)
        for name, own in found.items()
    }
    return {name: own for name, own in parts.items() if len(own)}


def ask_other_wordings(
    store: stores.Store, corpus_name: str, corpus: Corpus, settings: FollowUpSettings
) -> None:
    """Ask a corpus under the other wordings of the system prompts (`safety-2`, ...).

    Keep labels only.

    The store is a live one, in which asking resumes.
    """
    for source in backends.resolve_backends(settings):
        model, decoding = (
            source.open(settings),
            prompting.Decoding(settings.max_new_tokens),
        )
        for system_prompt in registry.list_other_wordings():
            query = trace_store.Query(
                stores.CorpusFiles(store, name_remedied(corpus_name, "wordings")),
                corpus,
                system_prompt,
                decoding,
                settings.batch,
                labelling.label_in_memory(corpus, numbers=False),
            )
            trace_store.query_model(model, query)


def read_wordings(
    store: stores.Store, corpus_name: str, systems: Iterable[str]
) -> dict[str, dict[str, Labels]]:
    """Return labels, in corpus order, by model of some systems and wording of a system
    prompt, the usual ones first.

    A model that was not asked under one of the wordings is left out.
    """
    found: dict[str, dict[str, Labels]] = {}
    for model in dict.fromkeys(map(prompting.model_of_system, systems)):
        places = {}
        for system_prompt in registry.list_other_wordings():
            usual = system_prompt.partition("-")[0]
            for of, name in (
                (corpus_name, usual),
                (name_remedied(corpus_name, "wordings"), system_prompt),
            ):
                places[name] = ("labels", of, prompting.make_system_name(model, name))
        if all(store.has(*place) for place in places.values()):
            found[model] = {
                name: labelling.read_labels(store, *place[1:])[1]
                for name, place in places.items()
            }
    return found


def ask_long_answers(
    store: stores.Store,
    corpus_name: str,
    corpus: Corpus,
    traces: Mapping[str, Traces],
    labels: Mapping[str, Labels],
    settings: FollowUpSettings,
) -> dict[str, pd.DataFrame]:
    """Return long answers by system: ask for them if `settings.long_answers` gives a
    number, then read the store.

    The usual answers (`traces`) and their labels are by system, in corpus order. A
    random sample of `long_answers` prompts is asked under `SAMPLED_SYSTEM_PROMPT`, and
    under every system prompt the accepted paraphrases that `select_cut_answers` names. A
    corpus that asks for harm is a DataError.
    """
    if settings.long_answers:
        unsafe.refuse_unsafe(corpus, "long answers (long_answers)")
        vectors = encoder.stored_vectors(
            stores.CorpusFiles(store, corpus_name), corpus["text"], earlier=True
        )
        sample = set(
            corpus["prompt_id"].sample(
                min(settings.long_answers, len(corpus)), random_state=SEED
            )
        )
        for source in backends.resolve_backends(settings):
            model = source.open(settings)
            for system_prompt in settings.system_prompts:
                system = prompting.make_system_name(model.name, system_prompt)
                drawn = sample if system_prompt == SAMPLED_SYSTEM_PROMPT else set()
                wanted = drawn | select_cut_answers(
                    corpus, traces[system], labels[system], vectors
                )
                asked = corpus[corpus["prompt_id"].isin(wanted)]
                if asked.empty:
                    continue
                query = trace_store.Query(
                    stores.CorpusFiles(store, f"{corpus_name}--long"),
                    asked,
                    system_prompt,
                    prompting.Decoding(LONG_ANSWER_TOKENS),
                    settings.batch,
                )
                frame = trace_store.query_model(model, query)
                found = label_long_answers(frame, asked["text"]).assign(
                    sample=frame["prompt_id"].isin(drawn)
                )
                meta = settings.meta(
                    corpus=asked[["prompt_id", "text"]], labeller=labelling.LABELLER
                )
                meta["max_new_tokens"] = LONG_ANSWER_TOKENS
                store.write("answers", corpus_name, system, frame=found, meta=meta)
    return read_long_answers(store, corpus_name, list(labels))


def read_long_answers(
    store: stores.Store, corpus_name: str, systems: list[str]
) -> dict[str, pd.DataFrame]:
    """Read the long answers in a store by system (`labelling.read_labelled_answers`)."""
    return labelling.read_labelled_answers(
        store, "answers", corpus_name, systems, "long_answers=N"
    )


def select_cut_answers(
    corpus: Corpus, traces: Traces, labels: Labels, vectors: np.ndarray
) -> set[str]:
    """Return the ids of accepted prompts whose answer was cut and that are nearest to a
    rejected one of their cluster.

    The frames are one system's, in the same order; `vectors` are sentence vectors.
    Degenerate answers are passed over.
    """
    rejected = (labels["label"] == "reject").to_numpy()
    accepted = (
        (labels["label"] == "accept") & (labels["answer"] == "on_topic")
    ).to_numpy()
    wanted = set()
    for rows in corpus.groupby("cluster_id").indices.values():
        refused, answered = rows[rejected[rows]], rows[accepted[rows]]
        if len(refused) and len(answered):
            close = vectors[refused].astype(float) @ vectors[answered].astype(float).T
            wanted |= set(answered[close.argmax(axis=1)].tolist())
    cut = (traces["finish_reason"] != "stop").to_numpy()
    return {corpus["prompt_id"].iat[row] for row in wanted if cut[row]}


def label_long_answers(frame: Traces, requests: pd.Series) -> pd.DataFrame:
    """Label long answers: the columns of a file of kind `answers`, except `sample`."""
    frame = frame.assign(
        response=frame["response"].map(replace_control, na_action="ignore")
    )
    found = labelling.label_responses(
        frame["response"], frame["finish_reason"], requests
    )
    later, step = (
        [],
        refusals.CUE_CHARS // 2,
    )  # overlapping windows, so that no cue is cut in two
    for text in frame["response"].fillna(
        ""
    ):  # behind the opening the labeller does not read
        parts = [
            text[start : start + refusals.CUE_CHARS]
            for start in range(step, len(text), step)
        ]
        later.append(
            bool(
                refusals.label_by_cues(parts, [""] * len(parts))["rule"]
                .eq("declines_request")
                .any()
            )
        )
    kept = frame[["prompt_id", "key", "response", "finish_reason"]]
    return kept.assign(label=found["label"].to_numpy(), declined_later=later)


def compare_long_answers(
    longer: Mapping[str, pd.DataFrame],
    labels: Mapping[str, Labels],
    clusters: ClusterBootstrap,
) -> Table:
    """Count, in the random sample of each system's long answers, the labels that the
    usual cut changes.

    Columns: system, n, continued (the long answer begins with the usual one),
    accept_to_reject (by the long answer), declined_later (accepted, but they decline
    the request after their opening), changed with its interval.
    """
    lines = []
    for name, frame in longer.items():
        frame = frame[frame["sample"]]
        if frame.empty:
            continue
        short = labels[name].set_index("prompt_id").loc[frame["prompt_id"]]
        texts = zip(frame["response"], short["response"].fillna(""), strict=True)
        usual, whole = short["label"].to_numpy(), frame["label"].to_numpy()
        ids = frame["prompt_id"].str.rpartition("-")[0]  # of the clusters
        lines.append(
            {"system": name, "n": len(frame)}
            | {
                "continued": sum(
                    isinstance(long, str) and long.startswith(text)
                    for long, text in texts
                )
            }
            | {"accept_to_reject": ((usual == "accept") & (whole == "reject")).sum()}
            | {"declined_later": ((whole == "accept") & frame["declined_later"]).sum()}
            | to_columns({"changed": clusters.share(ids, usual != whole)})
        )
    return pd.DataFrame(lines)


def reask_models(
    store: stores.Store,
    corpus_name: str,
    rewordings: pd.DataFrame,
    labels: Mapping[str, Labels],
    settings: FollowUpSettings,
) -> None:
    """Ask the user's model, or the default ones, rewordings of what it rejected under
    `SAMPLED_SYSTEM_PROMPT`.

    `rewordings` has columns prompt_id, cluster_id (the prompt that was reworded) and
    text. The answers' labels go into a live store, where `read_reasked_decisions` reads
    them, and asking resumes. A model without labels is left out.
    """
    for source in backends.resolve_backends(settings):
        system = prompting.make_system_name(source.name, SAMPLED_SYSTEM_PROMPT)
        rows = (
            _of_rejected(rewordings, labels[system])
            if system in labels
            else rewordings.head(0)
        )
        if len(rows):
            model, decoding = (
                source.open(settings),
                prompting.Decoding(settings.max_new_tokens),
            )
            query = trace_store.Query(
                stores.CorpusFiles(store, name_reworded(corpus_name)),
                rows,
                SAMPLED_SYSTEM_PROMPT,
                decoding,
                settings.batch,
                labelling.label_in_memory(rows, numbers=False),
            )
            trace_store.query_model(model, query)


def reask_guards(
    store: stores.Store,
    corpus_name: str,
    rewordings: pd.DataFrame,
    labels: Mapping[str, Labels],
    guards: Mapping[str, contract.Guard],
    settings: FollowUpSettings,
) -> None:
    """Ask guards the rewordings of what each rejected (`reask_models`).

    Name one that fails, and go on.
    """
    of = name_reworded(corpus_name)
    for name, guard in guards.items():
        rows = _of_rejected(rewordings, labels[name])
        asked = panel.ask_guards(store, {of: rows}, [guard])[of] if len(rows) else {}
        for _, scores in asked.values():
            made = panel.label_by_threshold(scores, guard.threshold)
            store.write(
                "labels", of, name, frame=made, meta=settings.meta(scores=scores)
            )


def read_reasked_decisions(
    store: stores.Store, corpus_name: str, corpus: Corpus, system: str, labels: Labels
) -> pd.DataFrame | None:
    """Read how a system decides the rewordings of each prompt that it rejects.

    None if it was not asked.

    Corpus and labels are in the same order, and so are the rows returned: isolation,
    the share of a prompt's rewordings that are accepted, in [0, 1], NaN for accepted
    prompts and without a decided rewording; and queries, their number. Rewordings of
    other prompts than the system rejects are a DataError.
    """
    name = name_reworded(corpus_name)
    if not store.has("labels", name, system):
        return None
    again = labelling.read_decisions(store, name, system)
    of = original_ids(again["prompt_id"])
    if not of.isin(corpus["prompt_id"][(labels["label"] == "reject").to_numpy()]).all():
        where = paths.display_path(store.path("labels", name, system))
        raise DataError(
            f"{where}: of other rejections than the store holds; run 07_remedies with a"
            " live store"
        )
    queries = of.value_counts().reindex(corpus["prompt_id"], fill_value=0).to_numpy()
    return pd.DataFrame(
        {"isolation": share_accepted(again, corpus), "queries": queries}
    )


def share_accepted(again: Labels, prompts: pd.DataFrame) -> np.ndarray:
    """Return the share of each prompt's decided rewordings that are accepted.

    NaN without one.
    """
    decided = again[again["label"].isin(["accept", "reject"])]
    shares = (
        (decided["label"] == "accept")
        .groupby(original_ids(decided["prompt_id"]))
        .mean()
    )
    return prompts["prompt_id"].map(shares).to_numpy(float)


def _of_rejected(rewordings: pd.DataFrame, labels: Labels) -> pd.DataFrame:
    rejected = labels.loc[labels["label"] == "reject", "prompt_id"]
    return rewordings[rewordings["cluster_id"].isin(rejected)].reset_index(drop=True)
