"""Query the systems again: at a temperature, for longer answers, in other words.

`docs/method.md` says why.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from paraguard_lab.settings import FollowUpSettings, name_remedied
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, to_columns
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling, refusals
from paraguard_utils.models import backends, encoder, prompting, trace_store
from paraguard_utils.models.backends import Backend
from paraguard_utils.schemas import Corpus, Labels, Table, Traces
from paraguard_utils.stores import CorpusFiles
from paraguard_utils.text import replace_control

N_DRAWS = 8  # answers per prompt at each temperature
SAMPLING_TEMPERATURES = (0.7, 1.0)  # the first is the usual one
SAMPLED_SYSTEM_PROMPT = "safety"  # the system prompt of all samples and rewordings
LONG_ANSWER_TOKENS = 256  # new tokens of a long answer


def select_sampled_prompts(corpus: Corpus, clusters: int) -> Corpus:
    """Return the rows of so many clusters, drawn by seed, in corpus order."""
    ids = sorted(set(corpus["cluster_id"]))
    rng = np.random.default_rng(SEED)
    chosen = rng.choice(ids, min(clusters, len(ids)), replace=False)
    return corpus[corpus["cluster_id"].isin(chosen)].reset_index(drop=True)


def ask_samples(files: CorpusFiles, corpus: Corpus, settings: FollowUpSettings) -> None:
    """Query `settings.draw` clusters `N_DRAWS` times at each temperature, top-p 1.

    The system prompt is `SAMPLED_SYSTEM_PROMPT`. The store is a live one, in which
    every draw resumes. A corpus that asks for harm is a DataError.
    """
    unsafe.refuse_unsafe(corpus, "drawn answers (draw)")
    prompts = select_sampled_prompts(corpus, settings.draw)
    texts = prompts[["prompt_id", "text"]]
    meta = settings.meta(corpus=texts, labeller=labelling.LABELLER)
    for source in backends.resolve_backends(settings):
        model = source.open(settings)
        draws = []
        for temperature, draw in itertools.product(
            SAMPLING_TEMPERATURES, range(N_DRAWS)
        ):
            query = trace_store.Query(
                files.other(f"{files.name}--draw-{temperature}-{draw}"),
                prompts,
                SAMPLED_SYSTEM_PROMPT,
                prompting.Sampling(
                    settings.max_new_tokens, temperature=temperature, draw=draw
                ),
                settings.batch,
            )
            traces = trace_store.query_model(model, query)
            labels = labelling.label_answers(traces, prompts)
            kept = labels[["prompt_id", "label", "answer", "response"]]
            key = traces["key"].to_numpy()
            draws.append(kept.assign(temperature=temperature, draw=draw, key=key))
        system = prompting.make_system_name(model.name, SAMPLED_SYSTEM_PROMPT)
        frame = pd.concat(draws, ignore_index=True)
        files.write("samples", system, frame=frame, meta=meta)


def read_samples(
    files: CorpusFiles,
    systems: Iterable[str],
    temperature: float = SAMPLING_TEMPERATURES[0],
) -> dict[str, pd.DataFrame]:
    """Read the answers in a store that were drawn at a temperature, by system.

    Old labels are a DataError.
    """
    samples = {}
    for name, frame in _read_answers(files, "samples", systems, "draw=60").items():
        rows = frame[frame["temperature"] == temperature].reset_index(drop=True)
        if len(rows):
            samples[name] = rows
    return samples


def _read_answers(
    files: CorpusFiles, kind: str, systems: Iterable[str], parameter: str
) -> dict[str, pd.DataFrame]:
    """Read files of kind `answers` or `samples` by system, if any.

    Old labels are a DataError, which names the `parameter` that makes new ones.
    """
    answers = {}
    for name in systems:
        if not files.has(kind, name):
            continue
        path = files.path(kind, name)
        if stores.read_meta(path)["inputs"].get("labeller") != labelling.LABELLER:
            raise DataError(
                f"{paths.display_path(path)}: labels of another version; run"
                f" A0_asked_again with {parameter}"
            )
        rows = files.read(kind, name)
        answers[name] = rows.assign(label=rows["label"].replace("blocked", "reject"))
    return answers


def list_other_wordings() -> list[str]:
    """Return the system prompts that word another one anew, as `safety-2` does."""
    names = registry.system_prompts()
    wordings = []
    for name in names:
        usual, dash, _ = name.partition("-")
        if dash and usual in names:
            wordings.append(name)
    return wordings


def ask_other_wordings(
    files: CorpusFiles, corpus: Corpus, settings: FollowUpSettings
) -> None:
    """Query a corpus under the other wordings of the system prompts (`safety-2`, ...).

    Only labels are kept. The store is a live one, in which querying resumes.
    """
    for source in backends.resolve_backends(settings):
        model = source.open(settings)
        for system_prompt in list_other_wordings():
            query = trace_store.Query(
                _of_wordings(files),
                corpus,
                system_prompt,
                prompting.Decoding(settings.max_new_tokens),
                settings.batch,
                labelling.label_in_memory(corpus, numbers=False),
            )
            trace_store.query_model(model, query)


def _of_wordings(files: CorpusFiles) -> CorpusFiles:
    return files.other(name_remedied(files.name, "wordings"))


def read_wordings(
    files: CorpusFiles, systems: Iterable[str]
) -> dict[str, dict[str, Labels]]:
    """Return labels, in corpus order, by model and by wording of a system prompt.

    The usual wordings come first. The models are those of some systems; one that was
    not queried under one of the wordings is left out.
    """
    places = {}
    for wording in list_other_wordings():
        places[wording.partition("-")[0]] = files
        places[wording] = _of_wordings(files)
    by_model: dict[str, dict[str, Labels]] = {}
    for model in dict.fromkeys(map(prompting.model_of_system, systems)):
        names = {name: prompting.make_system_name(model, name) for name in places}
        if all(place.has("labels", names[name]) for name, place in places.items()):
            by_model[model] = {
                name: labelling.read_labels(place, names[name])
                for name, place in places.items()
            }
    return by_model


def ask_long_answers(
    files: CorpusFiles, systems: Mapping[str, System], settings: FollowUpSettings
) -> dict[str, pd.DataFrame]:
    """Query systems for long answers, if `settings.long_answers` gives a number.

    Return the long answers that are then in the store, by system. The systems have
    traces and labels of the usual answers. A random sample of `long_answers` prompts is
    queried under `SAMPLED_SYSTEM_PROMPT`, and under every system prompt the accepted
    paraphrases that `select_cut_answers` names. A corpus that asks for harm is a
    DataError.
    """
    if settings.long_answers:
        prompts = next(iter(systems.values())).prompts
        unsafe.refuse_unsafe(prompts, "long answers (long_answers)")
        vectors = encoder.stored_vectors(files, prompts["text"], earlier=True)
        size = min(settings.long_answers, len(prompts))
        sample = set(prompts["prompt_id"].sample(size, random_state=SEED))
        for source in backends.resolve_backends(settings):
            model = source.open(settings)
            for system_prompt in settings.system_prompts:
                name = prompting.make_system_name(model.name, system_prompt)
                system = systems[name]
                drawn = sample if system_prompt == SAMPLED_SYSTEM_PROMPT else set()
                wanted = drawn | select_cut_answers(system, vectors)
                asked = prompts[prompts["prompt_id"].isin(wanted)]
                if asked.empty:
                    continue
                answers = _query_long_answers(
                    files, asked, model, system_prompt, settings
                )
                is_drawn = answers["prompt_id"].isin(drawn)
                meta = settings.meta(
                    corpus=asked[["prompt_id", "text"]], labeller=labelling.LABELLER
                )
                meta["max_new_tokens"] = LONG_ANSWER_TOKENS
                frame = answers.assign(sample=is_drawn)
                files.write("answers", name, frame=frame, meta=meta)
    return read_long_answers(files, systems)


def _query_long_answers(
    files: CorpusFiles,
    prompts: Corpus,
    model: Backend,
    system_prompt: str,
    settings: FollowUpSettings,
) -> pd.DataFrame:
    query = trace_store.Query(
        files.other(f"{files.name}--long"),
        prompts,
        system_prompt,
        prompting.Decoding(LONG_ANSWER_TOKENS),
        settings.batch,
    )
    traces = trace_store.query_model(model, query)
    return label_long_answers(traces, prompts["text"])


def read_long_answers(
    files: CorpusFiles, systems: Iterable[str]
) -> dict[str, pd.DataFrame]:
    """Read the long answers in a store by system; old labels are a DataError."""
    return _read_answers(files, "answers", systems, "long_answers=N")


def select_cut_answers(system: System, vectors: np.ndarray) -> set[str]:
    """Return the ids of accepted prompts that a long answer may turn into rejections.

    Their answer was cut, and they are nearest to a rejected prompt of their cluster.
    `vectors` are the prompts' sentence vectors. Degenerate answers are passed over.
    """
    labels = system.labels
    is_rejected = (labels["label"] == "reject").to_numpy()
    is_accepted = (labels["label"] == "accept") & (labels["answer"] == "on_topic")
    is_accepted = is_accepted.to_numpy()
    is_cut = (system.traces["finish_reason"] != "stop").to_numpy()
    ids = system.prompts["prompt_id"].to_numpy()
    wanted = set()
    for rows in system.prompts.groupby("cluster_id").indices.values():
        refused = rows[is_rejected[rows]]
        answered = rows[is_accepted[rows]]
        if len(refused) and len(answered):
            # In float64, as everywhere that similarities decide
            refused_vectors = vectors[refused].astype(float)
            answered_vectors = vectors[answered].astype(float)
            similarities = refused_vectors @ answered_vectors.T
            nearest = answered[similarities.argmax(axis=1)]
            wanted |= set(ids[nearest[is_cut[nearest]]])
    return wanted


def label_long_answers(traces: Traces, requests: pd.Series) -> pd.DataFrame:
    """Label long answers: the columns of a file of kind `answers`, except `sample`."""
    responses = traces["response"].map(replace_control, na_action="ignore")
    labels = labelling.label_responses(responses, traces["finish_reason"], requests)
    # The labeller does not read behind the opening.
    later = [_declines_later(text) for text in responses.fillna("")]
    kept = traces[["prompt_id", "key", "response", "finish_reason"]]
    return kept.assign(
        response=responses, label=labels["label"].to_numpy(), declined_later=later
    )


def _declines_later(text: str) -> bool:
    """Return whether an answer declines the request behind its opening."""
    step = refusals.CUE_CHARS // 2  # windows overlap, so that no cue is cut in two
    windows = [
        text[start : start + refusals.CUE_CHARS]
        for start in range(step, len(text), step)
    ]
    rules = refusals.label_by_cues(windows, [""] * len(windows))["rule"]
    return bool(rules.eq("declines_request").any())


def compare_long_answers(
    longer: Mapping[str, pd.DataFrame],
    labels: Mapping[str, Labels],
    clusters: ClusterBootstrap,
) -> Table:
    """Count the labels that change with the length of an answer.

    They are those of the random sample of each system's long answers.

    Returns
    -------
    Table
        Columns: system, n, continued (the long answer begins with the usual one),
        accept_to_reject (by the long answer), declined_later (accepted, but they
        decline the request after their opening), changed with its interval.
    """
    rows = []
    for name, frame in longer.items():
        sample = frame[frame["sample"]]
        if sample.empty:
            continue
        short = labels[name].set_index("prompt_id").loc[sample["prompt_id"]]
        usual = short["label"].to_numpy()
        whole = sample["label"].to_numpy()
        cluster_ids = sample["prompt_id"].str.rpartition("-")[0]
        changed = clusters.share(cluster_ids, usual != whole)
        is_later = (whole == "accept") & sample["declined_later"]
        row = {
            "system": name,
            "n": len(sample),
            "continued": _count_continued(sample["response"], short["response"]),
            "accept_to_reject": ((usual == "accept") & (whole == "reject")).sum(),
            "declined_later": is_later.sum(),
        }
        rows.append(row | to_columns({"changed": changed}))
    return pd.DataFrame(rows)


def _count_continued(longer: Sequence[object], shorter: pd.Series) -> int:
    """Count the long answers that begin with the usual ones."""
    count = 0
    for long, short in zip(longer, shorter.fillna(""), strict=True):
        count += isinstance(long, str) and long.startswith(short)
    return count
