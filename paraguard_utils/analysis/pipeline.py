"""Compute a system's pairs and scores from the files of a store, or read them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from paraguard_utils import paths, seams
from paraguard_utils.analysis.confusion import score_prompts
from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.analysis.signals import compute_pairs
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.models import encoder
from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.models.trace_store import hash_answers, read_traces
from paraguard_utils.schemas import Corpus, Labels, Scores, Traces
from paraguard_utils.settings import AnalysisSettings, ScoreOptions
from paraguard_utils.stores import CorpusFiles, read_meta

PAIR_DECIMALS = 6  # of similarities and signals in a pairs file


def read_scoring_traces(
    files: CorpusFiles, system: str, prompts: Corpus
) -> tuple[Traces, str]:
    """Read a system's traces of prompts, in their order.

    If its server returned a part of a trace, an extension `paraguard.traces` completes
    them from another model's.

    Returns
    -------
    traces : Traces
    model : str
        The model whose tokens they hold: the system's own, or the other one.

    Raises
    ------
    DataError
        The traces are of other prompts.
    Missing
        There are no traces, or no other model's complete them.
    """
    traces = read_traces(files, system, prompts)
    if read_meta(files.path("traces", system)).get("level") is None:
        return traces, model_of_system(system)
    complete = seams.load_extension("traces", "complete")
    traces, model = complete(files, system, prompts, traces)
    return traces, model


def open_system(
    files: CorpusFiles,
    name: str,
    settings: AnalysisSettings,
    clusters: ClusterBootstrap,
    drifts: dict[str, DriftCache],
) -> System:
    """Read a chat system's traces, tokens and labels; pairs and scores are not read.

    `clusters` are those of the corpus. `drifts` holds Drift by model, and gets the
    system's model. A DataError says that the system's files are of another corpus or
    other answers, or that none of its answers can be scored.
    """
    prompts = files.prompts
    traces, model = read_scoring_traces(files, name, prompts)
    labels = labelling.read_matching_labels(files, name, traces, settings.labeller)
    seams.load_extension("queries", "unread")(name, labels, traces)
    if model not in drifts:
        drifts[model] = DriftCache(files.store.read_earlier("tokens", model))
    return System(
        name,
        prompts,
        labels,
        clusters,
        settings.scoring(),
        settings.labeller,
        traces,
        drifts[model],
        token_model=model,
    )


def compute_scores(files: CorpusFiles, system: System) -> System:
    """Return a system with its pairs and scores, computed from traces and labels."""
    texts = system.prompts["text"].tolist()
    vectors = encoder.stored_vectors(files, texts, earlier=True)
    with_pairs = replace(system, pairs=compute_pairs(system, vectors))
    return replace(with_pairs, scores=score_prompts(with_pairs))


def score_system(
    files: CorpusFiles, system: System, settings: AnalysisSettings
) -> System:
    """Compute a system's pairs and scores (`compute_scores`), and write both."""
    scored = compute_scores(files, system)
    options = ScoreOptions.of(system.scoring, system.labeller).model_dump()
    meta = settings.model_copy(update=options).meta(
        corpus=system.prompts,
        labels=labelling.hash_labels(system.labels),
        traces=hash_answers(system.traces),
        tokens=system.token_model,
    )
    # Processors differ in the sixteenth digit: what is written is the same on all of
    # them.
    pairs = scored.pairs.round(PAIR_DECIMALS)
    files.write("pairs", system.name, frame=pairs, meta=meta)
    files.write("scores", system.name, frame=scored.scores, meta=meta)
    return scored


def score_systems(
    files: CorpusFiles, names: Sequence[str], settings: AnalysisSettings
) -> dict[str, System]:
    """Score chat systems, each with its own traces (`score_system`)."""
    clusters = settings.resample(files.prompts)
    drifts: dict[str, DriftCache] = {}
    scored: dict[str, System] = {}
    for name in names:
        system = open_system(files, name, settings, clusters, drifts)
        scored[name] = score_system(files, system, settings)
    return scored


def score_guards(
    files: CorpusFiles,
    reference: System,
    labels: Mapping[str, Labels],
    settings: AnalysisSettings,
) -> dict[str, System]:
    """Score guards with the traces of a chat system, the reference (`score_system`).

    `labels` holds each guard's decisions on the reference's prompts, by name.
    """
    return {
        name: score_system(files, reference.with_labels(decisions, name), settings)
        for name, decisions in labels.items()
    }


def read_systems(
    files: CorpusFiles,
    names: Sequence[str],
    settings: AnalysisSettings | None = None,
) -> dict[str, System]:
    """Read what a store holds of some systems, all scored as 03 scored the first.

    `settings` say how clusters are resampled, and perhaps which labeller is wanted;
    without them, it is done as in 03. Of the record, scores by another labeller are
    computed.

    Raises
    ------
    DataError
        A system was scored with other weights, k or labeller, a file is missing, or it
        is of other answers, labels, pairs or another corpus.
    """
    systems: dict[str, System] = {}
    drifts: dict[str, DriftCache] = {}
    for name in names:
        scores = files.read("scores", name)
        path = files.path("scores", name)
        known = AnalysisSettings.pick(read_meta(path)["parameters"])
        if not systems:
            first = known
            clusters = (settings or known).resample(files.prompts)
        where = paths.display_path(path)
        if (known.scoring(), known.labeller) != (first.scoring(), first.labeller):
            raise DataError(
                f"{where}: scored with other weights, k or labeller than {names[0]};"
                " run 03_scoring again"
            )
        wanted = known
        if settings and "labeller" in settings.model_fields_set:
            wanted = known.model_copy(update={"labeller": settings.labeller})
        system = open_system(files, name, wanted, clusters, drifts)
        if wanted == known:
            system = replace(system, pairs=files.read("pairs", name), scores=scores)
            _check_scores(system, where)
        elif files.recorded:
            system = compute_scores(files, system)
        else:
            raise DataError(
                f"{where}: scored by another labeller; pass labeller={known.labeller}"
            )
        systems[name] = system
    return systems


def _check_scores(system: System, where: str) -> None:
    """Raise DataError if a system's scores do not follow from its labels and pairs."""
    again = score_prompts(system).set_index("prompt_id")
    known = system.scores.set_index("prompt_id")
    columns = ["ci", "ci_clipped"]
    if not again["label"].equals(known["label"]) or not np.allclose(
        again[columns], known[columns], rtol=1e-4, equal_nan=True
    ):
        raise DataError(
            f"{where}: scores of other labels or pairs than the store holds; run"
            " 03_scoring again"
        )


def stack_rejections(systems: Iterable[System]) -> Scores:
    """Stack the scored rejections of several systems, with a `system` column."""
    frames = [system.rejections.assign(system=system.name) for system in systems]
    return pd.concat(frames, ignore_index=True)
