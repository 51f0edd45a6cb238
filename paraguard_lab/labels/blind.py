"""Put answers that nobody read before blind readers (`docs/method.md`, Labels).

They are answers to harmful twins, under new wordings of the instructions, to rewordings
and of remedied systems. Their text was never kept, so they are queried again: in
memory, with the weights, words and decoding that their labels record.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from paraguard_lab.corpus import reword
from paraguard_lab.settings import name_remedied, name_reworded
from paraguard_utils import paths, stores
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import SEED
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.models import loading, trace_store
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.models.prompting import PromptContext, Request, tokenize_prompts
from paraguard_utils.schemas import Corpus, Traces
from paraguard_utils.settings import CORPUS, TWINS
from paraguard_utils.stores import CorpusFiles, Store

READ_PER_KIND = 50  # answers of each kind that are read

READ_REMEDIES = ("self-reminder", "rewritten", "demonstrations")
"""Remedies that change words only and take one query. The others need copies of a
request, something learned or tuned weights."""

N_THIRDS = 3  # remedies are kept by third of the clusters

_BATCH = 16  # few requests of like length, whose systems differ

_ANSWER = ["corpus", "system", "prompt_id"]


def unread_corpora() -> dict[str, list[str]]:
    """Return the names that labels of unread answers are kept under, by kind."""
    remedied = []
    for remedy in READ_REMEDIES:
        for third in range(1, N_THIRDS + 1):
            remedied.append(name_remedied(CORPUS, remedy, third))
    return {
        "twins": [TWINS],
        "wordings": [name_remedied(CORPUS, "wordings")],
        "reworded": [name_reworded(CORPUS)],
        "remedied": remedied,
    }


def list_unread_answers(store: Store) -> pd.DataFrame:
    """List the labelled answers of chat models that nobody read.

    Returns
    -------
    DataFrame
        kind, corpus (the name that labels are kept under), system, group (the system
        with its remedy, if any), cluster (the harmless request that the prompt is a
        phrasing, twin or rewording of), prompt_id and label, accept or reject.
    """
    frames = []
    for kind, names in unread_corpora().items():
        for name in names:
            files = CorpusFiles(store, name)
            for system in _list_chat_systems(files):
                labels = labelling.read_labels(files, system)
                labels = labels[labels["label"].isin(["accept", "reject"])]
                requests = reword.original_ids(labels["prompt_id"])
                rows = {
                    "kind": kind,
                    "corpus": name,
                    "system": system,
                    "group": f"{name.partition('--third-')[0]} {system}",
                    "cluster": requests.str.rpartition("-")[0],
                    "prompt_id": labels["prompt_id"],
                    "label": labels["label"],
                }
                frames.append(pd.DataFrame(rows))
    return pd.concat(frames, ignore_index=True)


def _list_chat_systems(files: CorpusFiles) -> Iterator[str]:
    """Yield the systems with labels that queried a model under a system prompt."""
    for file in sorted(files.path("labels", "any").parent.glob("*.csv")):
        if "prefix" in stores.read_meta(file):  # a guard has none
            yield file.stem


def draw_unread_answers(
    answers: pd.DataFrame, n: int = READ_PER_KIND, seed: int = SEED
) -> pd.DataFrame:
    """Draw n answers of each kind, half of them rejected and half accepted.

    Groups take turns, in an order drawn by seed, and each gives an answer of a cluster
    that the kind has none of yet, if it can.

    Parameters
    ----------
    answers : DataFrame
        From `list_unread_answers`.
    n : int
        An even number.
    seed : int

    Returns
    -------
    DataFrame
        The drawn rows; fewer of a kind or label if there are no more.
    """
    drawn = []
    for number, (_, of_kind) in enumerate(answers.groupby("kind", sort=False)):
        rng = np.random.default_rng([seed, number])
        used: set[str] = set()
        for label in ("reject", "accept"):
            rows = of_kind[of_kind["label"] == label]
            rows = rows.iloc[rng.permutation(len(rows))]
            drawn.append(_take_turns(rows, n // 2, used))
    return pd.concat(drawn, ignore_index=True)


def _take_turns(rows: pd.DataFrame, n: int, used: set[str]) -> pd.DataFrame:
    """Take n rows, one of each group in turn; add their clusters to those used."""
    left = {group: list(own.index) for group, own in rows.groupby("group", sort=False)}
    cluster = rows["cluster"].to_dict()
    taken: list[int] = []
    while len(taken) < n and any(left.values()):
        for of_group in left.values():
            if not of_group or len(taken) == n:
                continue
            new = [row for row in of_group if cluster[row] not in used]
            row = (new or of_group)[0]
            of_group.remove(row)
            used.add(cluster[row])
            taken.append(row)
    return rows.loc[taken]


def query_again(store: Store, drawn: pd.DataFrame) -> pd.DataFrame:
    """Query drawn answers again on the processor, in memory.

    All systems of a model share batches.

    Parameters
    ----------
    store : Store
        Whose labels are of these answers.
    drawn : DataFrame
        From `draw_unread_answers`, or rows of it.

    Returns
    -------
    DataFrame
        The drawn rows with request, response, and label_again, the label of the new
        answer. The text may ask for harm and must not be kept.

    Raises
    ------
    DataError
        A system prompt changed since, or the weights are others.
    ModelError
        Weights are missing.
    """
    texts = _texts_of(store, drawn)
    about = drawn[["corpus", "system"]].drop_duplicates().itertuples(index=False)
    metas = {}
    for corpus, system in about:
        path = CorpusFiles(store, corpus).path("labels", system)
        metas[corpus, system] = stores.read_meta(path), paths.display_path(path)
    places = pd.Series(zip(drawn["corpus"], drawn["system"], strict=True), drawn.index)
    models = places.map(lambda place: metas[place][0]["model"])
    frames = []
    for name, places_of_model in places.groupby(models):
        model = LocalBackend(loading.load_model(loading.resolve_model(str(name))))
        requests: list[Request] = []
        for place, rows in places_of_model.groupby(places_of_model):
            context = trace_store.context_from_meta(*metas[place])
            known = (context.weights_id, context.dtype)
            if known != (model.reader.weights_id, model.reader.dtype):
                raise DataError(
                    f"{metas[place][1]}: answers of other weights; install those of the"
                    " record"
                )
            prompts = texts.loc[rows.index]
            requests += tokenize_prompts(prompts, model.tokenizer, context)
        frames.append(_answer(model, requests, context))
    traces = pd.concat(frames)
    labels = labelling.label_answers(traces, texts).set_index("prompt_id")
    labels = labels.loc[texts["prompt_id"]]
    return drawn.assign(
        request=texts["text"],
        response=labels["response"].to_numpy(),
        label_again=labels["label"].to_numpy(),
    )


def _answer(
    model: LocalBackend, requests: list[Request], context: PromptContext
) -> Traces:
    """Answer requests of several systems of a model, decoded as the context says."""
    from paraguard_utils.models import engine

    batches = engine.split_into_batches(
        requests, _BATCH, context.decoding.max_new_tokens
    )
    prefix = requests[0].token_ids[: engine.count_shared_tokens(requests)]
    return pd.concat(list(model.answer_batches(batches, prefix, context)))


def _texts_of(store: Store, drawn: pd.DataFrame) -> Corpus:
    """Return the texts of drawn prompts, by row; rewordings are made anew.

    The number of a row is its prompt_id, since two systems may have the same prompt.
    """
    known: Mapping[str, Corpus] = {
        name: CorpusFiles(store, name).prompts for name in (CORPUS, TWINS)
    }
    prompts = pd.concat(known.values()).set_index("prompt_id")["text"]
    originals = reword.original_ids(drawn["prompt_id"])
    is_copy = originals != drawn["prompt_id"]
    reworded = originals[is_copy].drop_duplicates()
    sources = pd.DataFrame({"prompt_id": reworded, "text": reworded.map(prompts)})
    copies = reword.reword_prompts(sources).set_index("prompt_id")["text"]
    texts = drawn["prompt_id"].map(pd.concat([prompts, copies]))
    return pd.DataFrame({"prompt_id": drawn.index.astype(str), "text": texts})


def shuffle_for_readers(
    answers: pd.DataFrame, seed: int = SEED
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return answers in an order drawn by seed, under new names.

    Returns
    -------
    sheet : DataFrame
        What a reader sees: item, request, answer.
    key : DataFrame
        What no reader sees: item, kind, corpus, system, prompt_id, label, label_again.
    """
    rng = np.random.default_rng(seed)
    rows = answers.iloc[rng.permutation(len(answers))]
    items = [f"item-{number:03d}" for number in range(1, len(rows) + 1)]
    rows = rows.assign(item=items, answer=rows["response"])
    key = ["item", "kind", *_ANSWER, "label", "label_again"]
    return rows[["item", "request", "answer"]], rows[key]


def read_unread_systems(store: Store) -> dict[str, list[System]]:
    """Read the decisions of the systems whose answers were read blind, by kind.

    A remedied system is named `remedy system`, and its thirds are put together. The
    prompts of kind `reworded` have prompt_id and cluster_id only.
    """
    answers = list_unread_answers(store)
    prompts = {name: CorpusFiles(store, name).prompts for name in (CORPUS, TWINS)}
    systems: dict[str, list[System]] = {}
    for (kind, group), rows in answers.groupby(["kind", "group"], sort=False):
        corpus, _, name = str(group).partition(" ")
        if kind == "remedied":
            name = f"{corpus.removeprefix(f'{CORPUS}--')} {name}"
        if kind == "reworded":
            asked = rows[["prompt_id", "cluster"]]
            asked = asked.rename(columns={"cluster": "cluster_id"})
        else:
            asked = prompts[TWINS if kind == "twins" else CORPUS]
            asked = asked[asked["prompt_id"].isin(rows["prompt_id"])]
        systems.setdefault(str(kind), []).append(System.of(name, asked, rows))
    return systems
