"""Query the systems again: at a temperature, for longer answers, in other words.

`docs/method.md` says why.
"""

import itertools
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from paraguard_lab.core.sampling import Sampling
from paraguard_lab.labels.withheld import keep_labels
from paraguard_lab.settings import FollowUpSettings, name_remedied
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, to_columns
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling, refusals
from paraguard_utils.models import backends, encoder, prompting, trace_store
from paraguard_utils.models.backends import Backend
from paraguard_utils.schemas import Corpus, Labels, Table, Traces, select_prompts
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

    The system prompt is `SAMPLED_SYSTEM_PROMPT`. Answers to a corpus that asks for harm
    are drawn at the usual temperature only and labelled in memory; their text is not
    kept.

    Parameters
    ----------
    files : CorpusFiles
        In a live store, where every draw resumes.
    corpus : Corpus
    settings : FollowUpSettings
    """
    prompts = select_sampled_prompts(corpus, settings.draw)
    texts = prompts[["prompt_id", "text"]]
    meta = settings.meta(corpus=texts, labeller=labelling.LABELLER)
    temperatures: tuple[float, ...] = SAMPLING_TEMPERATURES
    if unsafe.asks_for_harm(corpus):
        temperatures = SAMPLING_TEMPERATURES[:1]
    for source in backends.resolve_backends(settings):
        model = source.open(settings)
        draws = []
        for temperature, draw in itertools.product(temperatures, range(N_DRAWS)):
            decoding = Sampling(
                settings.max_new_tokens, temperature=temperature, draw=draw
            )
            place = files.other(f"{files.name}--draw-{temperature}-{draw}")
            drawn = _query_draw(model, prompts, (place, decoding), settings.batch)
            draws.append(drawn.assign(temperature=temperature, draw=draw))
        system = prompting.make_system_name(model.name, SAMPLED_SYSTEM_PROMPT)
        frame = pd.concat(draws, ignore_index=True)
        files.write("samples", system, frame=frame, meta=meta)


def _query_draw(
    model: Backend, prompts: Corpus, draw: tuple[CorpusFiles, Sampling], batch: int
) -> pd.DataFrame:
    """Return prompt_id, key, label, answer and response of one draw's answers.

    `draw` is where they are kept, and the decoding. The response is null if the prompts
    ask for harm.
    """
    files, decoding = draw
    is_unsafe = unsafe.asks_for_harm(prompts)
    keep = keep_labels(prompts, numbers=False) if is_unsafe else trace_store.TraceParts
    query = trace_store.Query(
        files, prompts, SAMPLED_SYSTEM_PROMPT, decoding, batch, keep
    )
    answers = trace_store.query_model(model, query)
    labels = answers if is_unsafe else labelling.label_answers(answers, prompts)
    context = model.context(
        registry.read_system_prompt(SAMPLED_SYSTEM_PROMPT), decoding
    )
    kept = labels[["prompt_id", "label", "answer", "response"]]
    return kept.assign(key=prompts["text"].map(context.key).to_numpy())


def read_samples(
    files: CorpusFiles,
    systems: Iterable[str],
    temperature: float = SAMPLING_TEMPERATURES[0],
) -> dict[str, pd.DataFrame]:
    """Read the answers in a store that were drawn at a temperature, by system.

    A system without such answers is left out.

    Raises
    ------
    DataError
        Another version of the labeller labelled them.
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
    return [name for name in names if "-" in name and name.partition("-")[0] in names]


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
                keep_labels(corpus, numbers=False),
            )
            trace_store.query_model(model, query)


def _of_wordings(files: CorpusFiles) -> CorpusFiles:
    return files.other(name_remedied(files.name, "wordings"))


def read_wordings(
    files: CorpusFiles, systems: Iterable[str]
) -> dict[str, dict[str, Labels]]:
    """Read how models decide under every wording of a system prompt.

    Parameters
    ----------
    files : CorpusFiles
    systems : iterable of str
        Systems of the models.

    Returns
    -------
    dict of str to dict of str to Labels
        Labels in corpus order by model, then by wording. A model that was not queried
        under one of the wordings is left out.
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

    A random sample of so many prompts is queried under `SAMPLED_SYSTEM_PROMPT`, and
    under every system prompt the accepted paraphrases that `select_cut_answers` names.

    Parameters
    ----------
    files : CorpusFiles
    systems : mapping of str to System
        With traces and labels of the usual answers.
    settings : FollowUpSettings

    Returns
    -------
    dict of str to DataFrame
        The long answers that are then in the store, by system.

    Raises
    ------
    DataError
        The corpus asks for harm.
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

    Their answer was cut and is not degenerate, and they are nearest to a rejected
    prompt of their cluster.

    Parameters
    ----------
    system : System
    vectors : array, shape (prompts, d)
        The prompts' sentence vectors.
    """
    labels = system.labels
    is_rejected = (labels["label"] == "reject").to_numpy()
    is_accepted = (labels["label"] == "accept") & (labels["answer"] == "on_topic")
    is_accepted = is_accepted.to_numpy()
    is_cut = (system.traces["finish_reason"] != "stop").to_numpy()
    ids = system.prompts["prompt_id"].to_numpy()
    # In float64, as everywhere that similarities decide
    vectors = vectors.astype(float)
    wanted = set()
    for rows in system.prompts.groupby("cluster_id").indices.values():
        refused = rows[is_rejected[rows]]
        answered = rows[is_accepted[rows]]
        if len(refused) and len(answered):
            similarities = vectors[refused] @ vectors[answered].T
            nearest = answered[similarities.argmax(axis=1)]
            wanted |= set(ids[nearest[is_cut[nearest]]])
    return wanted


def label_long_answers(traces: Traces, requests: pd.Series) -> pd.DataFrame:
    """Label long answers: the columns of a file of kind `answers`, except `sample`."""
    responses = traces["response"].map(replace_control, na_action="ignore")
    labels = labelling.label_responses(responses, traces["finish_reason"], requests)
    kept = traces[["prompt_id", "key", "response", "finish_reason"]]
    return kept.assign(
        response=responses,
        label=labels["label"].to_numpy(),
        # The labeller does not read behind the opening.
        declined_later=responses.fillna("").map(_declines_later),
    )


def _declines_later(text: str) -> bool:
    """Return whether an answer declines the request behind its opening."""
    step = refusals.CUE_CHARS // 2  # windows overlap, so that no cue is cut in two
    starts = range(step, len(text), step)
    windows = [text[start : start + refusals.CUE_CHARS] for start in starts]
    rules = refusals.label_by_cues(windows, [""] * len(windows))["rule"]
    return bool(rules.eq("declines_request").any())


def compare_long_answers(
    longer: Mapping[str, pd.DataFrame],
    labels: Mapping[str, Labels],
    clusters: ClusterBootstrap,
) -> Table:
    """Count the labels that change with the length of an answer.

    Parameters
    ----------
    longer : mapping of str to DataFrame
        Long answers by system, as from `read_long_answers`; only those of the random
        sample count.
    labels : mapping of str to Labels
        Of the usual answers.
    clusters : ClusterBootstrap

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
        short = select_prompts(labels[name], sample)
        usual = short["label"].to_numpy()
        whole = sample["label"].to_numpy()
        cluster_ids = sample["prompt_id"].str.rpartition("-")[0]
        changed = clusters.share(cluster_ids, usual != whole)
        texts = zip(sample["response"], short["response"].fillna(""), strict=True)
        continued = [isinstance(long, str) and long.startswith(x) for long, x in texts]
        is_later = (whole == "accept") & sample["declined_later"]
        row = {
            "system": name,
            "n": len(sample),
            "continued": sum(continued),
            "accept_to_reject": ((usual == "accept") & (whole == "reject")).sum(),
            "declined_later": is_later.sum(),
        }
        rows.append(row | to_columns({"changed": changed}))
    return pd.DataFrame(rows)
