"""Query the systems, which accept or reject prompts, and label their answers."""

import sys
from collections.abc import Mapping, Sequence

from paraguard_utils import registry, seams
from paraguard_utils.errors import DataError, Missing, SettingsError
from paraguard_utils.labels import labelling
from paraguard_utils.models import backends, local, prompting, trace_store
from paraguard_utils.models.trace_store import PartsMaker, Query, TraceParts
from paraguard_utils.schemas import Corpus, Labels, Traces
from paraguard_utils.settings import QueryOptions, QuerySettings
from paraguard_utils.stores import CorpusFiles


def ask_systems(
    files: CorpusFiles, prompts: Corpus, settings: QuerySettings
) -> dict[str, Traces]:
    """Return the traces of all chat systems; a live store queries what it lacks.

    They are by system, in the order of the prompts. An extension queries with
    `settings.stop`, and prompts that ask for harm, the answers to which are labelled in
    memory and not kept. There are no systems while answers are missing: with
    `settings.stop`, in a shard, and if batch files have none yet.
    """
    prompting.check_prompts(prompts)
    if files.recorded:
        return _read_recorded_traces(files, prompts, settings)
    query_otherwise = seams.load_extension("queries", "otherwise")
    traces = query_otherwise(files, prompts, settings)
    if traces is None:
        traces = query_all(files, prompts, settings)
    is_whole = all(len(frame) == len(prompts) for frame in traces.values())
    return traces if is_whole and not settings.shard else {}


def _read_recorded_traces(
    files: CorpusFiles, prompts: Corpus, options: QueryOptions
) -> dict[str, Traces]:
    listed = registry.published_systems("chat")
    decoding = prompting.Decoding(options.max_new_tokens)
    traces = {}
    for system in listed.index[listed["instruction"].isin(options.system_prompts)]:
        traces[system] = trace_store.read_traces(
            files, system, prompts, decoding, options.dtype
        )
    return traces


def query_all(
    files: CorpusFiles,
    prompts: Corpus,
    settings: QuerySettings,
    keep: PartsMaker = TraceParts,
) -> dict[str, Traces]:
    """Query the user's model, or the default ones, for what a live store lacks.

    Return by system what `keep` keeps.
    """
    # Every name is resolved before the first, expensive, load.
    sources = backends.resolve_backends(settings)
    n_systems = len(sources) * len(settings.system_prompts)
    print(
        f"preflight: {len(prompts) * n_systems} prompts to ask ({len(prompts)} x"
        f" {n_systems} systems); what was answered before is not asked again",
        file=sys.stderr,
        flush=True,
    )
    kept: dict[str, Traces] = {}
    watch_answers = seams.load_extension("queries", "first_answers")
    for source in sources:
        model = source.open(settings)
        of_model = {}
        for system_prompt in settings.system_prompts:
            system = prompting.make_system_name(model.name, system_prompt)
            query = Query(
                files,
                prompts,
                system_prompt,
                prompting.Decoding(settings.max_new_tokens),
                settings.batch,
                keep,
                settings.parts(),
                trial=settings.limit > 0 and files.name == settings.corpus,
                watch=watch_answers(system, model),
            )
            of_model[system] = trace_store.query_model(model, query)
        has_tokens = all("token_ids" in frame for frame in of_model.values())
        if has_tokens and isinstance(model, local.WeightsBackend):
            trace_store.write_tokens(files.store, model, of_model.values())
        kept |= of_model
    return kept


def label_systems(
    files: CorpusFiles,
    prompts: Corpus,
    traces: Mapping[str, Traces],
    settings: QuerySettings,
) -> dict[str, Labels]:
    """Return each system's labels in trace order.

    They are the store's if they fit its traces, else made ones. An extension says how
    many answers hold nothing to read, which a live store prints. Recorded labels of
    other answers, or of another version of the labeller, are a DataError, and so is a
    system without an answer that can be scored.
    """
    report_unread = seams.load_extension("queries", "unread")
    labels = {}
    for system, frame in traces.items():
        try:
            known = labelling.read_matching_labels(files, system, frame)
        except DataError:
            if files.recorded and files.has("labels", system):
                raise
            made = labelling.label_answers(frame, prompts)
            if not settings.limit:
                answers = trace_store.hash_answers(frame)
                meta = settings.meta(traces=answers, labeller=labelling.LABELLER)
                files.write("labels", system, frame=made, meta=meta)
            known = labelling.convert_labels(made, "combined")
        line = report_unread(system, known, frame)
        if line and not files.recorded:
            print(line, file=sys.stderr)
        labels[system] = known
    return labels


def choose_focus(names: Sequence[str], model: str = "", wanted: str = "") -> str:
    """Return the system that a figure shows: the wanted one, or a typical one.

    That is the first under the safety system prompt, else the first. `names` have
    scores; with the user's `model`, only its systems count. SettingsError if the wanted
    one has none.
    """
    if wanted and wanted not in names:
        raise SettingsError(
            f"there is no system {wanted!r} in this store; there are {', '.join(names)}"
        )
    if wanted:
        return wanted
    if model:
        models = registry.published_systems("chat")["model"]
        names = [name for name in names if models.get(name, model) == model]
    under_safety = [name for name in names if name.endswith("--safety")]
    return (under_safety or list(names))[0]


def list_systems_to_score(files: CorpusFiles, model: str = "") -> list[str]:
    """Return the chat systems with traces and labels.

    The published ones come first, then those of the user's `model`. Missing if there
    are none, or none of that model.
    """
    published = list(registry.published_systems("chat").index)
    if files.recorded:
        return published
    names = [
        name
        for name in published
        if files.has("traces", name) and files.has("labels", name)
    ]
    of_model = trace_store.find_systems(files, model) if model else []
    names += [name for name in of_model if name not in names]
    if not names or (model and not of_model):
        raise Missing(
            f"the {files.store.name} store has no traces of"
            f" {model or 'published models'} on {files.name}; run 02_querying with the"
            " same parameters first, for all prompts (without limit, shard and stop)"
        )
    return names
