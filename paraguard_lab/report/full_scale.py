"""What may be published of a corpus whose texts must not be: counts and estimates, by
benchmark too (ours).
"""

from collections.abc import Mapping

import pandas as pd

from paraguard_lab.report.costs import query_cost
from paraguard_utils import paths, registry, stores
from paraguard_utils.analysis import confusion, wording
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import SEED, ClusterBootstrap
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.models import encoder
from paraguard_utils.schemas import Corpus, Labels, Table

# Without texts: what each is called, where it comes from, and the notebook that writes
# that
NOTEBOOK_TABLES = {
    "systems": ("table1_systems", "03_scoring"),
    "cohorts": ("table2_cohorts", "04_cohort_analysis"),
    "regression": ("table2_regression", "04_cohort_analysis"),
    "predictions": ("predictions", "06_validity"),
}

FULL_SCALE_TABLES = (*NOTEBOOK_TABLES, "sources", "wording", "wording_curves", "labels")


def estimate_by_source(
    system: str, corpus: Corpus, labels: Labels, seed: int = SEED
) -> Table:
    """Estimate `confusion.rate_row` for each benchmark (source; `all` last), clusters
    resampled inside it.
    """
    rows = []
    for source in [*sorted(set(corpus["source"])), "all"]:
        own = (corpus["source"] == source).to_numpy() | (source == "all")
        clusters = ClusterBootstrap(corpus.loc[own, "cluster_id"], seed=seed)
        part = System.of(system, corpus[own], labels[own], clusters)
        rows.append({"source": source, **confusion.rate_row(part)})
    return pd.DataFrame(rows)


def publishable_labels(corpus: Corpus, labels: Mapping[str, Labels]) -> Table:
    """Return the labels of each prompt, a column a system (accept, reject or another
    label), without a text.

    Labels are in corpus order. Columns before them: prompt_id (the benchmark, the
    number of its row, the variant), cluster_id, source, strategy, text_hash (16 hex
    digits of SHA-256).
    """
    found = corpus[["prompt_id", "cluster_id", "source", "strategy"]].copy()
    found["text_hash"] = [encoder.hash_text(text) for text in corpus["text"]]
    return found.assign(
        **{name: own["label"].to_numpy() for name, own in labels.items()}
    )


def describe_full_scale(store: stores.Store, name: str, seed: int) -> dict[str, Table]:
    """Write the tables of a scored corpus that hold no text, as `NAME_systems` and so
    on, and return them.

    02, 03, 04 and 06 must have run on the corpus in this store. `systems` is Table 1,
    with minutes and most gigabytes of asking; `seed` is that of the intervals by
    benchmark and wording. A table of another corpus is a DataError.
    """
    found: dict[str, Table] = {}
    for key, (table, notebook) in NOTEBOOK_TABLES.items():
        frame = store.read("tables", table)
        file = store.path("tables", table)
        if stores.read_meta(file)["parameters"]["corpus"] != name:
            run = f"paraguard run {notebook[:2]} --store {store.name} --corpus {name}"
            raise DataError(
                f"{paths.display_path(file)} is of another corpus than {name}; run:"
                f" {run}"
            )
        found[key] = frame.drop(columns="store", errors="ignore")
    corpus, systems = (
        store.read("corpus", name),
        list(dict.fromkeys(found["systems"]["system"])),
    )
    costs = [
        {"system": one} | query_cost(stores.CorpusFiles(store, name), one, len(corpus))
        for one in systems
    ]
    found["systems"] = found["systems"].merge(pd.DataFrame(costs), on="system")
    read = {
        one: labelling.read_matching_labels(
            stores.CorpusFiles(store, name), one, store.read("traces", name, one)
        )
        for one in systems
    }
    parts = [
        estimate_by_source(one, corpus, labels, seed) for one, labels in read.items()
    ]
    found["sources"] = pd.concat(parts, ignore_index=True)
    guards = [
        one
        for one in registry.published_systems("guard").index
        if store.has("labels", name, one)
    ]
    labels = {
        one: labelling.read_decisions(stores.CorpusFiles(store, name), one)
        for one in [*systems, *guards]
    }
    clusters = ClusterBootstrap(corpus["cluster_id"], seed=seed)
    # The positive control of DR by shared wording is the guard that compares sentence
    # vectors.
    split, found["wording_curves"] = wording.wording_tables(
        [System.of(one, corpus, own, clusters) for one, own in labels.items()],
        "harmful-exemplars",
    )
    kinds = (
        split["system"]
        .isin(registry.published_systems("guard").index)
        .map({True: "guard", False: "chat"})
    )
    found["wording"] = split.assign(kind=kinds, n_prompts=len(corpus))
    found["labels"] = publishable_labels(corpus, labels)
    meta = {
        "parameters": {"corpus": name, "seed": seed},
        "inputs": {"corpus": stores.frame_hash(corpus)},
    }
    for key, frame in found.items():
        store.write("tables", f"{name}_{key}", frame=frame, meta=meta)
    return found
