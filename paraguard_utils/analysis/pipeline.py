"""Turn a system's traces and labels in a store into pairs and scores, for 03, 05 and
the explorer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.analysis import surrogate
from paraguard_utils import paths, registry
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.signals import Scoring
from paraguard_utils.errors import DataError, Missing
from paraguard_utils.labels import labelling
from paraguard_utils.models import encoder
from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.models.trace_store import hash_answers, read_traces
from paraguard_utils.schemas import (
    Corpus,
    Labels,
    Pairs,
    Scores,
    Table,
    Tokens,
    Traces,
    select_prompts,
)
from paraguard_utils.settings import Settings
from paraguard_utils.stores import RECORDED, Store, frame_hash, read_meta

PAIR_DECIMALS = 6  # of similarities and signals in a pairs file

_COMPARABLE = {
    "corpus",
    "labeller",
    "k",
    "weight_drift",
    "weight_prob_shift",
    "weight_ppl",
    "theta",
}
"""What two runs must share for their rows to stand in one table."""

_read_vectors = lru_cache(maxsize=2)(
    partial(encoder.stored_vectors, earlier=True)
)  # the same serve every system


def read_scoring_traces(
    store: Store, corpus_name: str, corpus: Corpus, system: str
) -> tuple[Traces, str]:
    """Read a system's traces.

    If its server returns no tokens, complete them from a surrogate's, here or in the
    record.

    Return them in corpus order, and the model whose tokens they hold: the system's or
    the surrogate's. A DataError says that the traces are of another corpus, Missing
    that no surrogate was asked the corpus under the same system prompt.
    """
    traces = read_traces(store, corpus_name, corpus, system)
    level = read_meta(store.path("traces", corpus_name, system)).get("level")
    if level is None:
        return traces, model_of_system(system)
    for place in (store, Store(RECORDED)):
        known = {
            file.stem
            for file in place.path("traces", corpus_name, "x").parent.glob("*.parquet")
        }
        name = surrogate.find_surrogate(system, known)
        if name is not None:
            lent = read_traces(place, corpus_name, corpus, name)
            return surrogate.retokenize(
                surrogate.fill_from_surrogate(traces, level, lent), lent
            ), model_of_system(name)
    raise Missing(
        f"{system} tells {level!r} only, and no packaged model that could lend the rest"
        f" was asked {corpus_name}; run 02_querying with --store {store.name}, the same"
        " corpus and system prompt, and model=smollm2-135m-instruct"
    )


def compute_pairs_and_scores(
    store: Store,
    corpus_name: str,
    corpus: Corpus,
    labels: Labels,
    traces: Traces,
    tokens: Tokens,
    settings: Settings,
) -> tuple[Pairs, Scores]:
    """Compute a system's pairs and scores, with the tokens of its traces."""
    vectors = _read_vectors(store, corpus_name, tuple(corpus["text"]))
    usable = surrogate.mask_left_out(labels, surrogate.is_comparable(traces))
    frame = signals.compute_pairs(corpus, vectors, traces, usable, tokens, settings.k)
    return frame, confusion.score_prompts(
        corpus, labels, frame, settings.weights(), settings.k, settings.theta
    )


def score_system(
    store: Store,
    corpus: Corpus,
    system: str,
    labels: Labels,
    traces: Traces,
    model_name: str,
    settings: Settings,
) -> System:
    """Compute a system's pairs and scores, write both, and return all.

    A guard has another system's traces.
    """
    tokens = store.read_earlier("tokens", model_name)
    frame, scores = compute_pairs_and_scores(
        store, settings.corpus, corpus, labels, traces, tokens, settings
    )
    inputs = {
        "labels": labelling.hash_labels(labels),
        "traces": hash_answers(traces),
        "tokens": model_name,
    }
    meta = settings.meta(corpus=corpus, **inputs)
    # Processors differ in the sixteenth digit: what is written is the same on all of
    # them.
    store.write(
        "pairs", settings.corpus, system, frame=frame.round(PAIR_DECIMALS), meta=meta
    )
    store.write("scores", settings.corpus, system, frame=scores, meta=meta)
    return System(
        system,
        corpus,
        labels,
        _clusters(corpus, settings),
        _scoring(settings),
        settings.labeller,
        traces,
        tokens,
        frame,
        scores,
    )


def _clusters(corpus: Corpus, settings: Settings) -> ClusterBootstrap:
    return ClusterBootstrap(corpus["cluster_id"], settings.resamples, settings.seed)


def _scoring(settings: Settings) -> Scoring:
    return Scoring(settings.weights(), settings.k, settings.theta)


def score_systems(
    store: Store, corpus: Corpus, names: Sequence[str], settings: Settings
) -> dict[str, System]:
    """Score chat systems, each with its own traces, by the settings' labeller
    (`score_system`).
    """
    found = {}
    for name in names:
        traces, lender = read_scoring_traces(store, settings.corpus, corpus, name)
        labels = labelling.read_matching_labels(
            store, settings.corpus, name, traces, settings.labeller
        )
        found[name] = score_system(
            store, corpus, name, labels, traces, lender, settings
        )
    return found


def read_matching_scores(
    store: Store, corpus_name: str, system: str, corpus: Corpus, settings: Settings
) -> Scores:
    """Read scores of this corpus and these labels (DataError else).

    Of a labeller not recorded, compute them.
    """
    if store.recorded and settings.labeller != "combined":
        traces = read_traces(store, corpus_name, corpus, system)
        labels = labelling.read_matching_labels(
            store, corpus_name, system, traces, settings.labeller
        )
        tokens = store.read_earlier("tokens", model_of_system(system))
        return compute_pairs_and_scores(
            store, corpus_name, corpus, labels, traces, tokens, settings
        )[1]
    path = store.path("scores", corpus_name, system)
    scores = store.read("scores", corpus_name, system)
    _, labels = labelling.read_labels(store, corpus_name, system, settings.labeller)
    inputs = read_meta(path)["inputs"]
    if inputs["corpus"] != frame_hash(corpus) or inputs[
        "labels"
    ] != labelling.hash_labels(labels):
        again = f"run 03_scoring again, with labeller={settings.labeller}"
        raise DataError(
            f"{paths.display_path(path)}: scores of another corpus or other labels;"
            f" {again}"
        )
    return scores


def add_recorded_rows(
    name: str, table: Table, store: Store, recorded: Sequence[str], meta: dict[str, Any]
) -> Table:
    """Put the rows of `recorded` systems in the recorded table above this store's rows.

    The column `store` tells which.

    They are left out if `meta`, which goes with the table, has another corpus or other
    scoring parameters.
    """
    table = table.assign(store=store.name)
    if not recorded:
        return table
    earlier = Store(RECORDED)
    known = read_meta(earlier.path("tables", name))
    for part in ("parameters", "inputs"):
        for key in _COMPARABLE & set(meta[part]):
            if known[part].get(key) != meta[part][key]:
                print(
                    "the recorded systems are left out: they were scored with another"
                    f" {key}"
                )
                return table
    rows = earlier.read("tables", name)
    return pd.concat([rows[rows["system"].isin(recorded)], table], ignore_index=True)


def stack_rejections(scores: Mapping[str, Scores]) -> Scores:
    """Stack the scored rejections of several systems, with a `system` column."""
    frames = [
        confusion.select_rejections(frame).assign(system=name)
        for name, frame in scores.items()
    ]
    return pd.concat(frames, ignore_index=True)


def read_systems(
    store: Store,
    corpus_name: str,
    corpus: Corpus,
    names: Sequence[str],
    settings: Settings | None = None,
) -> dict[str, System]:
    """Read what a store holds of some systems, all scored with the same weights, k and
    labeller (those of `settings`).

    A DataError says that they were not, or that a file is missing or of other answers,
    labels, pairs or another corpus.
    """
    found: dict[str, System] = {}
    wanted = (settings.weights(), settings.k, settings.labeller) if settings else None
    for name in names:
        path = store.path("scores", corpus_name, name)
        store.read("scores", corpus_name, name)
        where, known = (
            paths.display_path(path),
            Settings(**read_meta(path)["parameters"]),
        )
        made = (known.weights(), known.k, known.labeller)
        wanted = wanted or made
        if made != wanted:
            other = (
                "another k, labeller or weights"
                if settings
                else f"other weights, k or labeller than {names[0]}"
            )
            raise DataError(f"{where}: scored with {other}; run 03_scoring again")
        traces, model = read_scoring_traces(store, corpus_name, corpus, name)
        labels = labelling.read_matching_labels(
            store, corpus_name, name, traces, known.labeller
        )
        scores = read_matching_scores(store, corpus_name, name, corpus, known)
        pairs = store.read("pairs", corpus_name, name)
        again = confusion.score_prompts(
            corpus, labels, pairs, known.weights(), known.k, known.theta
        )
        if not np.allclose(
            again[["ci", "ci_clipped"]],
            scores[["ci", "ci_clipped"]],
            rtol=1e-4,
            equal_nan=True,
        ):
            raise DataError(
                f"{where}: scores of other pairs than the store holds; run 03_scoring"
                " again"
            )
        found[name] = System(
            name,
            corpus,
            labels,
            _clusters(corpus, settings or known),
            _scoring(known),
            known.labeller,
            traces,
            store.read_earlier("tokens", model),
            pairs,
            scores,
        )
    return found


def read_guards(
    store: Store, corpus_name: str, corpus: Corpus, data: Mapping[str, System]
) -> dict[str, System]:
    """Read what a store holds of the published guards that were scored with the traces
    of one of these systems.

    Others are left out; traces and tokens are those of the system. A DataError says
    that scores are of another corpus or other decisions.
    """
    references = {hash_answers(own.traces): own for own in data.values()}
    found = {}
    for name in [
        one
        for one in registry.published_systems("guard").index
        if store.has("scores", corpus_name, one)
    ]:
        path = store.path("scores", corpus_name, name)
        meta = read_meta(path)
        inputs, known = meta["inputs"], Settings(**meta["parameters"])
        reference = references.get(inputs["traces"])
        if reference is None or (reference.weights, reference.k) != (
            known.weights(),
            known.k,
        ):
            continue
        labels = store.read("labels", corpus_name, name)
        if inputs["corpus"] != frame_hash(corpus) or inputs[
            "labels"
        ] != labelling.hash_labels(labels):
            where = paths.display_path(path)
            raise DataError(
                f"{where}: scores of another corpus or other decisions; run"
                " 05_guard_comparison again"
            )
        pairs, scores = (
            store.read(kind, corpus_name, name) for kind in ("pairs", "scores")
        )
        found[name] = replace(
            reference,
            name=name,
            labels=select_prompts(labels, corpus),
            pairs=pairs,
            scores=scores,
        )
    return found
