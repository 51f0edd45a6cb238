"""Query the systems, which accept or reject prompts, and label their answers."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from paraguard_utils import paths, registry, seams, stores, unsafe
from paraguard_utils.errors import DataError, Missing, SettingsError
from paraguard_utils.labels import labelling
from paraguard_utils.models import backends, local, prompting, trace_store
from paraguard_utils.models.backends import BackendSource
from paraguard_utils.models.trace_store import Query
from paraguard_utils.parts import Parts
from paraguard_utils.schemas import Corpus, Labels, Traces
from paraguard_utils.settings import (
    FILE_SCHEME,
    TWINS,
    XSTEST,
    QueryOptions,
    QuerySettings,
)
from paraguard_utils.stores import RECORDED, CorpusFiles, Store


@dataclass(frozen=True, eq=False)
class AskedSystems:
    """What querying the systems gave.

    `traces` are by chat system, in the order of the prompts. Unless `complete`, there
    are prompts without an answer yet, so that nothing can be labelled; `message` says
    what to do then.
    """

    traces: dict[str, Traces]
    complete: bool = True
    message: str = ""


def ask_systems(
    files: CorpusFiles, prompts: Corpus, settings: QuerySettings
) -> AskedSystems:
    """Return the traces of all chat systems; a live store queries what it lacks.

    `settings.stop`, a shard, and batch files without answers leave them incomplete.
    """
    prompting.check_prompts(prompts)
    if files.recorded:
        return AskedSystems(_read_recorded_traces(files, prompts, settings))
    if settings.stop:
        ask_until_sure = seams.load_extension("queries", "until_sure")
        ask_until_sure(files, prompts, settings)
        return AskedSystems({}, complete=False)
    traces = _query_all(files, prompts, settings)
    is_whole = all(len(frame) == len(prompts) for frame in traces.values())
    if is_whole and not settings.shard:
        return AskedSystems(traces)
    # Labels need all answers, so that this run ends here, after its part of the twins.
    twins = _find_twins(files, settings)
    if twins:
        _query_all(twins, twins.prompts, settings.for_twins())
    message = ""
    if settings.shard:
        message = (
            f"shard {settings.shard} is asked; when all are, 02_querying without"
            " `shard` puts them together"
        )
    return AskedSystems(traces, complete=False, message=message)


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


def list_systems(sources: Sequence[BackendSource], options: QueryOptions) -> list[str]:
    """Return the names of some models' systems, under each system prompt."""
    return [
        prompting.make_system_name(source.name, system_prompt)
        for source in sources
        for system_prompt in options.system_prompts
    ]


def print_preflight(
    files: CorpusFiles,
    size: int,
    systems: Sequence[str],
    options: QueryOptions,
    kind: str = "traces",
) -> int:
    """Print on stderr how much there is to query, and return how much is done.

    There are `size` prompts per system. Files of `kind` show what was queried before:
    traces, or labels if only these are kept.
    """
    decoding = asdict(prompting.Decoding(options.max_new_tokens))
    done = 0
    for system in systems:
        file = files.path(kind, system)
        frames = [*Parts(file, kind).read(), *Parts(file, "", "labelled").read()]
        meta = stores.read_meta(file)
        labeller = meta.get("inputs", {}).get("labeller", labelling.LABELLER)
        is_dtype = meta.get("dtype") in (options.dtype, prompting.SERVED_DTYPE)
        is_same = is_dtype and meta.get("decoding") == decoding
        if is_same and labeller == labelling.LABELLER:
            frames += Parts(file, kind).read_if_sound(file, kind)
        done += sum(len(frame) for frame in frames)
    total = size * len(systems)
    print(
        f"preflight: {total} prompts to ask ({size} x {len(systems)} systems),"
        f" {min(done, total)} already done",
        file=sys.stderr,
        flush=True,
    )
    return done


def _query_all(
    files: CorpusFiles,
    prompts: Corpus,
    settings: QuerySettings,
    labels_only: bool = False,
) -> dict[str, pd.DataFrame]:
    """Query the user's model, or the default ones, for what a live store lacks.

    Return what is kept, by system: traces, or labels if only these are.
    """
    withheld = None
    if labels_only or unsafe.asks_for_harm(prompts):
        withheld = labelling.label_in_memory(prompts, numbers=not labels_only)
        print(
            f"{files.name} asks for harm: answers are labelled in memory, and only"
            " labels are kept",
            file=sys.stderr,
        )
    # Every name is resolved before the first, expensive, load.
    sources = backends.resolve_backends(settings)
    kind = "labels" if labels_only else "traces"
    systems = list_systems(sources, settings)
    print_preflight(files, len(prompts), systems, settings, kind)
    kept: dict[str, pd.DataFrame] = {}
    for source in sources:
        model = source.open(settings)
        of_model = {}
        for system_prompt in settings.system_prompts:
            query = Query(
                files,
                prompts,
                system_prompt,
                prompting.Decoding(settings.max_new_tokens),
                settings.batch,
                withheld,
                settings.parts(),
                trial=settings.limit > 0 and files.name == settings.corpus,
            )
            system = prompting.make_system_name(model.name, system_prompt)
            of_model[system] = trace_store.query_model(model, query)
        if not labels_only and isinstance(model, local.WeightsBackend):
            trace_store.write_tokens(files.store, model, of_model.values())
        kept |= of_model
    return kept


def ask_labels_only(
    files: CorpusFiles, prompts: Corpus | None, settings: QuerySettings
) -> dict[str, Labels]:
    """Return labels of answers to somebody else's prompts that ask for harm, by system.

    Nothing else is kept. A live store queries the prompts. The recorded one, and any
    store without prompts (None), gives the labels that it has; labels of other prompts
    or by another labeller are a UserError.
    """
    if prompts is not None and not files.recorded:
        prompting.check_prompts(prompts)
        return _query_all(files, prompts, settings, labels_only=True)
    labels = {}
    for file in sorted(files.path("labels", "any").parent.glob("*.csv")):
        meta = stores.read_meta(file)
        if "instruction" not in meta:  # a guard's
            continue
        labels[file.stem] = labelling.read_labels(files, file.stem)
        if prompts is not None:
            where = paths.display_path(file)
            context = trace_store.context_from_meta(meta, where)
            if trace_store.hash_keys(context, prompts) != meta["inputs"]["traces"]:
                raise DataError(
                    f"{where}: labels of other prompts than these; ask again in a live"
                    " store"
                )
    return labels


def label_systems(
    files: CorpusFiles,
    prompts: Corpus,
    traces: Mapping[str, Traces],
    settings: QuerySettings,
) -> dict[str, Labels]:
    """Return each system's labels in trace order.

    They are the store's if they fit its traces, else made ones. Recorded labels of
    other answers, or of another version of the labeller, are a DataError.
    """
    labels = {}
    for system, frame in traces.items():
        known = None
        if files.has("labels", system):
            try:
                known = labelling.read_matching_labels(files, system, frame)
            except DataError:
                if files.recorded:
                    raise
        if known is None:
            made = labelling.label_answers(frame, prompts)
            if not settings.limit:
                answers = trace_store.hash_answers(frame)
                meta = settings.meta(traces=answers, labeller=labelling.LABELLER)
                files.write("labels", system, frame=made, meta=meta)
            known = labelling.convert_labels(made, "combined")
        labels[system] = known
    return labels


def ask_harmful_requests(
    files: CorpusFiles, outside: Corpus | None, settings: QuerySettings
) -> dict[str, dict[str, Labels]]:
    """Return labels of answers to our twins and to XSTest's unsafe prompts.

    They are by corpus and system. `outside` are XSTest's prompts; if None, its labels
    are those that the store has. A corpus without labels is left out, the twins with a
    printed line. Twins of which no row is declared to ask for harm are a SettingsError.
    """
    labels = {}
    settings = settings.for_twins()
    twins = _find_twins(files, settings)
    if twins:
        asked = ask_systems(twins, twins.prompts, settings)
        labels[twins.name] = label_systems(twins, twins.prompts, asked.traces, settings)
    of_xstest = ask_labels_only(files.other(XSTEST), outside, settings)
    if of_xstest:
        labels[XSTEST] = of_xstest
    return labels


def _find_twins(files: CorpusFiles, settings: QuerySettings) -> CorpusFiles | None:
    """Return the files of the twins to query, if any.

    If wanted twins cannot be queried, print why.
    """
    if not settings.twins or settings.twins == files.name:
        return None
    twins = files.other(settings.twins)
    recorded = CorpusFiles(Store(RECORDED), twins.name)
    is_known = twins.has("corpus") or recorded.has("corpus")
    chat = registry.published_systems("chat").index
    was_asked = any(twins.has("traces", system) for system in chat)
    if settings.base_url.startswith(FILE_SCHEME):
        obstacle = "is not asked by files, in which the answers would be kept"
    elif settings.limit:
        obstacle = "is not asked while the parameter limit is given"
    elif not is_known or (files.recorded and not was_asked):
        obstacle = "was not asked in this store"
    elif not unsafe.asks_for_harm(twins.prompts):
        raise SettingsError(
            f"parameter 'twins': no request of {twins.name} is declared to ask for harm"
        )
    elif (
        twins.name == TWINS and unsafe.select_twins(files.prompts, twins.prompts).empty
    ):
        obstacle = f"was not asked: it has twins of clusters that {files.name} lacks"
    else:
        return twins
    print(f"{twins.name} {obstacle}")
    return None


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


def list_systems_to_score(
    files: CorpusFiles, model: str = ""
) -> tuple[list[str], list[str]]:
    """Return the chat systems with traces and labels, and the published ones without.

    Of the systems with both, the published ones come first, then those of the user's
    `model`. Rows of the systems without come from the recorded tables, because a
    recorded trace never enters a live store.
    """
    published = list(registry.published_systems("chat").index)
    if files.recorded:
        return published, []
    own = [
        name
        for name in published
        if files.has("traces", name) and files.has("labels", name)
    ]
    of_model = trace_store.find_systems(files, model) if model else []
    own += [name for name in of_model if name not in own]
    if not own or (model and not of_model):
        raise Missing(
            f"the {files.store.name} store has no traces of"
            f" {model or 'published models'} on {files.name}; run 02_querying with the"
            " same parameters first"
        )
    return own, [name for name in published if name not in own]
