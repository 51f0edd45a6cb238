"""Ask the systems, which are the systems that accept or reject prompts, and label their
answers.
"""

import contextlib
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np
import pandas as pd

from paraguard_lab.labels import judge
from paraguard_tools.servers import ray_cluster, served
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.core import decisions, disagreement
from paraguard_utils.errors import DataError, Missing, SettingsError
from paraguard_utils.labels import labelling
from paraguard_utils.models import backends, loading, local, prompting, trace_store
from paraguard_utils.schemas import Corpus, Labels, Traces
from paraguard_utils.settings import RAY_DEVICE, TWINS, XSTEST, QuerySettings
from paraguard_utils.stores import Store


def print_preflight(
    store: Store,
    corpus_name: str,
    size: int,
    names: Sequence[str],
    settings: QuerySettings,
    kind: str = "traces",
) -> int:
    """Print on stderr how much is left to ask the systems `names`, of `size` prompts
    each, and return what is done.

    Files of `kind` show what was asked (`labels`, if only these are kept), with this
    max_new_tokens and dtype.
    """
    dtype = served.SERVED_DTYPE if settings.base_url else settings.dtype
    way = {
        "decoding": asdict(prompting.Decoding(settings.max_new_tokens)),
        "dtype": dtype,
    }
    done, alike = 0, []
    for name in names:
        file = store.path(kind, corpus_name, name)
        known = stores.read_meta(file)
        current = (
            known.get("inputs", {}).get("labeller", labelling.LABELLER)
            == labelling.LABELLER
        )
        asked = [file] if current and way.items() <= known.items() else []
        parts = (
            part
            for apart in ("", "labelled")
            for part in stores.Parts(file, kind, apart).files()
        )
        for part in [*asked, *parts]:
            with contextlib.suppress(
                OSError, ValueError
            ):  # missing or damaged: asked again
                of_parquet, only = (
                    part.suffix == ".parquet",
                    ["prompt_id"],
                )  # the rest of traces is large
                done += len(
                    pd.read_parquet(part, columns=only)
                    if of_parquet
                    else pd.read_csv(part, usecols=only)
                )
        earlier = stores.read_meta(
            stores.Store(stores.RECORDED).path(kind, corpus_name, name)
        )
        if (
            earlier.get("asked_now")
            and (way | {"device": settings.device}).items() <= earlier.items()
        ):
            alike.append(earlier)
    total = size * len(names)
    line = (
        f"preflight: {total} prompts to ask ({size} x {len(names)} systems),"
        f" {min(done, total)} already done"
    )
    left = max(total - done, 0)
    if left and len(alike) == len(names):
        minutes = (
            left
            * sum(meta["seconds"] / meta["asked_now"] / 60 for meta in alike)
            / len(alike)
        )
        memory = max(meta.get("peak_gb", 0) for meta in alike)
        line += (
            f", about {minutes:.0f} min and {memory:.1f} GB of memory, as in the"
            " recorded run"
        )
    elif left:
        line += "; the progress bar tells the minutes after the first batch"
    print(line, file=sys.stderr, flush=True)
    return done


def ask_systems(
    store: Store, corpus_name: str, corpus: Corpus, settings: QuerySettings
) -> dict[str, Traces]:
    """Return traces by chat system, in corpus order; live stores ask what they lack.

    `stop` or a shard ends the run.
    """
    prompting.check_prompts(corpus)
    if store.recorded:
        listed = registry.published_systems("chat")
        decoding = prompting.Decoding(settings.max_new_tokens)
        return {
            name: trace_store.read_traces(
                store, corpus_name, corpus, name, decoding, settings.dtype
            )
            for name in listed.index[
                listed["instruction"].isin(settings.system_prompts)
            ]
        }
    if settings.stop:
        _ask_until_sure(store, corpus_name, corpus, settings)
        raise SystemExit(0)  # papermill takes 0 as an end
    found = _asked(store, corpus_name, corpus, settings)
    if not settings.shard and all(
        len(frame) == len(corpus) for frame in found.values()
    ):
        return found
    # A shard, or what waits for files to be answered, ends here after its part of the
    # twins: labels need all answers.
    if _twins_to_ask(store, settings):
        _asked(
            store,
            settings.twins,
            store.read_earlier("corpus", settings.twins),
            _for_twins(settings),
        )
    if settings.shard:
        told = (
            f"shard {settings.shard} is asked; when all are, 02_querying without"
            " `shard` puts them together"
        )
        print(told, file=sys.stderr)
    raise SystemExit(0)


def _ask_until_sure(
    store: Store, corpus_name: str, corpus: Corpus, settings: QuerySettings
) -> None:
    """Ask clusters in random order until it is sure whether DR lies above
    `settings.stop`; print a line a system.

    What was asked stays, so that a later run without `stop` asks the rest only.
    """
    sources = backends.resolve_backends(settings)
    order = np.random.default_rng(settings.seed).permutation(
        corpus["cluster_id"].unique()
    )
    decoding = prompting.Decoding(settings.max_new_tokens)
    names = [
        prompting.make_system_name(source.name, system_prompt)
        for source in sources
        for system_prompt in settings.system_prompts
    ]
    print_preflight(store, corpus_name, len(corpus), names, settings)
    for source in sources:
        model = source.open(settings)
        for system_prompt in settings.system_prompts:

            def decide(
                clusters: np.ndarray,
                system_prompt: str = system_prompt,
                model: backends.Backend = model,
            ) -> pd.DataFrame:
                part = corpus[corpus["cluster_id"].isin(clusters)]
                given = (
                    store,
                    corpus_name,
                    part,
                    model,
                    system_prompt,
                    decoding,
                    settings.batch,
                )
                labels = labelling.label_answers(
                    trace_store.query_model(*given, trial=True), part
                )
                return part.assign(
                    refused=decisions.as_refused(labels["label"], blocked=False)
                )

            found = disagreement.judge_until_sure(order, decide, settings.stop)
            print(
                f"{prompting.make_system_name(model.name, system_prompt)}: {found.line}"
            )


def _asked(
    store: Store,
    corpus_name: str,
    corpus: Corpus,
    settings: QuerySettings,
    labels_only: bool = False,
) -> dict[str, pd.DataFrame]:
    """Ask the user's model, or the default ones, what a live store lacks.

    Return what is kept, by system.
    """
    withheld = None
    if labels_only or unsafe.asks_for_harm(corpus):
        withheld = labelling.label_in_memory(corpus, numbers=not labels_only)
        print(
            f"{corpus_name} asks for harm: answers are labelled in memory, and only"
            " labels are kept",
            file=sys.stderr,
        )
    decoding = prompting.Decoding(settings.max_new_tokens)
    found: dict[str, pd.DataFrame] = {}
    if not settings.base_url:
        (
            ray_cluster.connect_ray()
            if settings.device == RAY_DEVICE
            else loading.check_device(settings.device)
        )
    # Every name is resolved before the first, expensive, load.
    sources = backends.resolve_backends(settings)
    names = [
        prompting.make_system_name(source.name, system_prompt)
        for source in sources
        for system_prompt in settings.system_prompts
    ]
    print_preflight(
        store,
        corpus_name,
        len(corpus),
        names,
        settings,
        "labels" if labels_only else "traces",
    )
    trial = settings.limit > 0 and corpus_name == settings.corpus
    query = partial(
        trace_store.query_model,
        store,
        corpus_name,
        corpus,
        decoding=decoding,
        batch=settings.batch,
    )
    query = partial(query, withheld=withheld, shard=settings.parts(), trial=trial)
    for source in sources:
        model = source.open(settings)
        own = {
            prompting.make_system_name(model.name, system_prompt): query(
                model, system_prompt
            )
            for system_prompt in settings.system_prompts
        }
        if not labels_only and isinstance(model, local.WeightsBackend):
            trace_store.write_tokens(store, model, own.values())
        found |= own
    return found


def ask_labels_only(
    store: Store, corpus_name: str, corpus: Corpus | None, settings: QuerySettings
) -> dict[str, Labels]:
    """Return, by system, labels of answers to somebody else's prompts that ask for
    harm; nothing else is kept.

    A live store asks the prompts. The recorded one, and any store if the corpus is
    None, gives the labels that it has; labels of other prompts or by another labeller
    are a UserError.
    """
    if corpus is not None and not store.recorded:
        prompting.check_prompts(corpus)
        return _asked(store, corpus_name, corpus, settings, labels_only=True)
    found = {}
    for file in sorted(store.path("labels", corpus_name, "x").parent.glob("*.csv")):
        meta = stores.read_meta(file)
        if "instruction" not in meta:  # a guard's
            continue
        where, (_, found[file.stem]) = (
            paths.display_path(file),
            labelling.read_labels(store, corpus_name, file.stem),
        )
        if corpus is not None:
            context = trace_store.context_from_meta(meta, where)
            if trace_store.hash_keys(context, corpus) != meta["inputs"]["traces"]:
                raise DataError(
                    f"{where}: labels of other prompts than these; ask again in a live"
                    " store"
                )
    return found


def label_systems(
    store: Store,
    corpus_name: str,
    corpus: Corpus,
    traces: Mapping[str, Traces],
    settings: QuerySettings,
) -> dict[str, Labels]:
    """Return each system's labels in trace order: the store's if they fit its traces,
    else made ones.

    Recorded labels of other answers, or of another version of the labeller, are a
    DataError.
    """
    found = {}
    for name, frame in traces.items():
        if store.has("labels", corpus_name, name):
            with (
                contextlib.nullcontext()
                if store.recorded
                else contextlib.suppress(DataError)
            ):
                found[name] = labelling.read_matching_labels(
                    store, corpus_name, name, frame
                )
        if name not in found:
            made = labelling.label_answers(frame, corpus)
            meta = settings.meta(
                traces=trace_store.hash_answers(frame), labeller=labelling.LABELLER
            )
            if not settings.limit:
                store.write("labels", corpus_name, name, frame=made, meta=meta)
            found[name] = labelling.convert_labels(made, "combined")
    return found


def ask_harmful_requests(
    store: Store, outside: Corpus | None, settings: QuerySettings
) -> dict[str, dict[str, Labels]]:
    """Return labels, by corpus and system, of answers to our twins and to XSTest's
    unsafe prompts (`outside`).

    If `outside` is None, XSTest's labels are those that the store has. A corpus without
    labels is left out, the twins with a printed line. Twins of which no row is declared
    to ask for harm are a SettingsError.
    """
    found = {}
    settings = _for_twins(settings)
    if _twins_to_ask(store, settings):
        corpus = store.read_earlier("corpus", settings.twins)
        traces = ask_systems(store, settings.twins, corpus, settings)
        found[settings.twins] = label_systems(
            store, settings.twins, corpus, traces, settings
        )
    outside_labels = ask_labels_only(store, XSTEST, outside, settings)
    return found | ({XSTEST: outside_labels} if outside_labels else {})


def _for_twins(settings: QuerySettings) -> QuerySettings:
    return settings.model_copy(
        update={
            "system_prompts": settings.twins_system_prompts or settings.system_prompts
        }
    )


def _twins_to_ask(store: Store, settings: QuerySettings) -> bool:
    """Return whether there are twins to ask; if wanted ones cannot be asked, print why."""
    if not settings.twins or settings.twins == settings.corpus:
        return False
    asked = any(
        store.has("traces", settings.twins, name)
        for name in registry.published_systems("chat").index
    )
    known = any(
        place.has("corpus", settings.twins) for place in (store, Store(stores.RECORDED))
    )
    if settings.base_url.startswith(backends.FILE_SCHEME):
        why = "is not asked by files, in which the answers would be kept"
    elif settings.limit:
        why = "is not asked while the parameter limit is given"
    elif not known or (store.recorded and not asked):
        why = "was not asked in this store"
    else:
        corpus = store.read_earlier("corpus", settings.twins)
        if not unsafe.asks_for_harm(corpus):
            raise SettingsError(
                f"parameter 'twins': no request of {settings.twins} is declared to ask"
                " for harm"
            )
        if settings.twins != TWINS or len(
            unsafe.select_twins(store.read_earlier("corpus", settings.corpus), corpus)
        ):
            return True
        why = f"was not asked: it has twins of clusters that {settings.corpus} lacks"
    print(f"{settings.twins} {why}")
    return False


def judge_systems(
    store: Store, corpus_name: str, traces: dict[str, Traces], settings: QuerySettings
) -> dict[str, Labels]:
    """Return a judge's labels by system, in trace order: asked if `settings.judge` is
    given, else those in the store.

    A system that was not judged is left out; labels of other answers are a DataError.
    """
    if settings.judge:
        for frame in traces.values():
            unsafe.refuse_unsafe(frame, "a judge")
        source = loading.resolve_model(settings.judge)
        model = loading.load_model(
            source, settings.dtype, settings.device, settings.without_template
        )
        for name, frame in traces.items():
            labels = judge.judge_answers(
                store, f"{corpus_name}--{name}", model, frame, settings.batch
            )
            meta = settings.meta(
                traces=trace_store.hash_answers(frame), rubric=judge.JUDGE_RUBRIC
            )
            store.write("verdicts", corpus_name, name, frame=labels, meta=meta)
    return {
        name: labelling.read_matching_labels(store, corpus_name, name, frame, "judge")
        for name, frame in traces.items()
        if store.has("verdicts", corpus_name, name)
    }


def choose_focus(names: Sequence[str], model: str = "", wanted: str = "") -> str:
    """Return the system that a figure shows: the wanted one, else the first under the
    safety system prompt, else the first.

    `names` have scores; with the user's `model`, only its systems count. SettingsError
    if the wanted one has none.
    """
    if wanted and wanted not in names:
        raise SettingsError(
            f"there is no system {wanted!r} in this store; there are {', '.join(names)}"
        )
    known = registry.published_systems("chat")["model"]
    own = (
        [name for name in names if known.get(name, model) == model] if model else names
    )
    return wanted or ([name for name in own if name.endswith("--safety")] or own)[0]


def list_decided_systems(
    store: Store, corpora: Collection[str], names: Sequence[str]
) -> list[str]:
    """Return the systems with labels on all these corpora in a store.

    Where there is none, raise Missing for a file.
    """
    found = [
        name for name in names if all(store.has("labels", of, name) for of in corpora)
    ]
    if not found:
        for of in corpora:
            store.read("labels", of, names[0])
    return found


def list_systems_to_score(
    store: Store, corpus_name: str, settings: QuerySettings
) -> tuple[list[str], list[str]]:
    """Return the chat systems with traces and labels in this store, and the published
    ones without.

    The published systems come first, then those of the user's model. Rows of the
    systems without come from the recorded tables, because a recorded trace never enters
    a live store.
    """
    listed = list(registry.published_systems("chat").index)
    if store.recorded:
        return listed, []
    own = [
        name
        for name in listed
        if all(store.has(kind, corpus_name, name) for kind in ("traces", "labels"))
    ]
    if settings.model:
        found = trace_store.find_systems(store, corpus_name, settings.model)
        if not found:
            lacks = f"has no traces of model {settings.model!r} on {corpus_name}"
            raise Missing(
                f"the {store.name} store {lacks}; run 02_querying with the same"
                " parameters first"
            )
        own += [system for system in found if system not in own]
    if not own:
        store.read("traces", corpus_name, listed[0])
    return own, [name for name in listed if name not in own]
