"""Targets: whatever accepts or rejects a prompt.

`data/targets.csv` lists the published ones. A user's model adds its own, one per wrapper.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd

from paraguard_utils import paths, registry, stores
from paraguard_utils.errors import DataError, Missing, SettingsError
from paraguard_utils.models import loading, prompting, trace_store
from paraguard_utils.querying import judge, labelling
from paraguard_utils.schemas import Corpus, Labels, Traces
from paraguard_utils.settings import Settings
from paraguard_utils.stores import Store


def preflight(store: Store, corpus_name: str, size: int, names: Sequence[str], settings: Settings) -> int:
    """Say on stderr what asking has to do: prompts, already done, and, where known, minutes and memory.

    Parameters
    ----------
    store : stores.Store
        A live store.
    corpus_name : str
    size : int
        Prompts of the corpus.
    names : list of str
        Targets.
    settings : settings.Settings
        max_new_tokens, dtype and device: what was asked otherwise is asked again.

    Returns
    -------
    int
        Prompts already done, those of an interrupted run among them.
    """
    way = {"decoding": asdict(prompting.Decoding(settings.max_new_tokens)), "dtype": settings.dtype}
    done, rates, memory = 0, [], []
    for name in names:
        file = store.path("traces", corpus_name, name)
        asked = [file] if way.items() <= stores.read_meta(file).items() else []
        for part in [*asked, *stores.Parts(file, "traces").files()]:
            with contextlib.suppress(OSError, ValueError):  # missing or damaged: asked again
                done += len(pd.read_parquet(part, columns=["prompt_id"]))
        earlier = stores.read_meta(stores.Store(stores.RECORDED).path("traces", corpus_name, name))
        if earlier.get("asked_now") and (way | {"device": settings.device}).items() <= earlier.items():
            rates.append(earlier["seconds"] / earlier["asked_now"] / 60)
            memory.append(earlier.get("peak_gb", 0))
    total = size * len(names)
    line = f"preflight: {total} prompts to ask ({size} x {len(names)} targets), {min(done, total)} already done"
    left = max(total - done, 0)
    if left and len(rates) == len(names):
        minutes = left * sum(rates) / len(rates)
        line += f", about {minutes:.0f} min and {max(memory):.1f} GB of memory, as in the recorded run"
    elif left:
        line += "; the progress bar tells the minutes after the first batch"
    print(line, file=sys.stderr, flush=True)
    return done


def ask(store: Store, corpus_name: str, corpus: Corpus, settings: Settings) -> dict[str, Traces]:
    """Return chat targets' traces: read from the recorded store, or asked where a live one lacks them.

    Without a model of the user's, the recorded store gives all published targets and a live one asks the default ones.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus : DataFrame
    settings : settings.Settings
        model, wrappers, dtype, device, without_template, max_new_tokens and batch are used.

    Returns
    -------
    dict of str to DataFrame
        Traces by target, in corpus order.

    Raises
    ------
    UserError
        The recorded store lacks a trace, a prompt or a model is not fit to be asked.
    """
    decoding = prompting.Decoding(settings.max_new_tokens)
    prompting.check_prompts(corpus)
    listed = registry.published("chat")
    listed = listed[listed["wrapper"].isin(settings.wrappers)]
    if store.recorded:
        return {
            name: trace_store.recorded_traces(store, corpus_name, corpus, name, decoding, settings.dtype)
            for name in listed.index
        }
    traces: dict[str, Traces] = {}
    loading.check_device(settings.device)
    # Every name is resolved before the first, expensive, load.
    sources = [loading.resolve(name) for name in ([settings.model] if settings.model else registry.default_models())]
    names = [prompting.target_name(source.name, wrapper) for source in sources for wrapper in settings.wrappers]
    preflight(store, corpus_name, len(corpus), names, settings)
    for source in sources:
        model = _load(source, settings)
        own = {
            prompting.target_name(model.name, wrapper): trace_store.query(
                store, corpus_name, corpus, model, wrapper, decoding, settings.batch
            )
            for wrapper in settings.wrappers
        }
        trace_store.keep_tokens(store, model, own.values())
        traces |= own
    return traces


def _load(source: loading.Source, settings: Settings) -> loading.Model:
    return loading.load(source, settings.dtype, settings.device, settings.without_template)


def labelled(
    store: Store, corpus_name: str, corpus: Corpus, traces: Mapping[str, Traces], settings: Settings
) -> dict[str, Labels]:
    """Return labels of targets' answers: those in the store where they are of these answers, else made now and kept.

    Parameters
    ----------
    store : stores.Store
        Nothing is made in the recorded one.
    corpus_name : str
    corpus : DataFrame
    traces : dict of str to DataFrame
    settings : settings.Settings
        For the meta files.

    Returns
    -------
    dict of str to DataFrame
        Labels by target, in trace order.

    Raises
    ------
    DataError
        The recorded labels are of other answers, or of another version of the labeller.
    """
    found = {}
    for name, frame in traces.items():
        if store.has("labels", corpus_name, name):
            with contextlib.nullcontext() if store.recorded else contextlib.suppress(DataError):
                found[name] = labelling.matching_labels(store, corpus_name, name, frame)
        if name not in found:
            made = labelling.label_answers(frame, corpus)
            meta = settings.meta(traces=labelling.answers_hash(frame), labeller=labelling.LABELLER)
            store.write("labels", corpus_name, name, frame=made, meta=meta)
            found[name] = made
    return found


def judged(store: Store, corpus_name: str, traces: Mapping[str, Traces], settings: Settings) -> dict[str, Labels]:
    """Return a judge's labels of targets' answers: asked where a judge is named, else those in the store.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    traces : dict of str to DataFrame
    settings : settings.Settings
        judge, dtype, device, without_template and batch are used.

    Returns
    -------
    dict of str to DataFrame
        Labels by target, in trace order; a target that was not judged is left out.

    Raises
    ------
    DataError
        The labels in the store are of other answers.
    """
    if settings.judge:
        model = _load(loading.resolve(settings.judge), settings)
        for name, frame in traces.items():
            labels = judge.label(store, f"{corpus_name}--{name}", model, frame, settings.batch)
            meta = settings.meta(traces=labelling.answers_hash(frame), rubric=judge.RUBRIC)
            store.write("verdicts", corpus_name, name, frame=labels, meta=meta)
    found = {}
    for name in traces:
        if store.has("verdicts", corpus_name, name):
            path = store.path("verdicts", corpus_name, name)
            if stores.read_meta(path)["inputs"]["traces"] != labelling.answers_hash(traces[name]):
                raise DataError(f"{paths.shown(path)}: labels of other answers; run 02_querying with judge=MODEL")
            frame = store.read("verdicts", corpus_name, name).set_index("prompt_id")
            found[name] = frame.loc[traces[name]["prompt_id"]].reset_index()
    return found


def focus(names: Sequence[str], model: str = "", wanted: str = "") -> str:
    """Return the target a figure is about: the wanted one, else the first under the safety wrapper, else the first.

    Parameters
    ----------
    names : list of str
        Targets with scores.
    model : str
        The user's model, where there is one: only its targets count.
    wanted : str

    Raises
    ------
    SettingsError
        The wanted target is not among them.
    """
    if wanted and wanted not in names:
        raise SettingsError(f"there is no target {wanted!r} in this store; there are {', '.join(names)}")
    known = registry.published("chat")["model"]
    own = [name for name in names if known.get(name, model) == model] if model else names
    return wanted or ([name for name in own if name.endswith("--safety")] or own)[0]


def to_score(store: Store, corpus_name: str, settings: Settings) -> tuple[list[str], list[str]]:
    """Return the chat targets that 03 and 04 describe, and those of them whose rows must come from the record.

    The published targets, then the targets of the user's model. A live store may hold the user's only: the published
    rows then come from the recorded tables, because a recorded trace never enters a live store.

    Returns
    -------
    own : list of str
        Targets with traces and labels in this store.
    recorded : list of str
        Published targets without.
    """
    listed = list(registry.published("chat").index)
    if store.recorded:
        return listed, []
    own = [name for name in listed if all(store.has(kind, corpus_name, name) for kind in ("traces", "labels"))]
    if settings.model:
        found = trace_store.find_targets(store, corpus_name, settings.model)
        if not found:
            raise Missing(
                f"the {store.name} store has no traces of model {settings.model!r} on {corpus_name}; "
                "run 02_querying with the same parameters first"
            )
        own += [target for target in found if target not in own]
    if not own:
        store.read("traces", corpus_name, listed[0])
    return own, [name for name in listed if name not in own]
