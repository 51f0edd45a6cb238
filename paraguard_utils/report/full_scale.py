"""What may be published of a corpus whose texts must not be: counts and estimates, by benchmark too.

The notebooks score such a corpus in a live store like any other; `paraguard corpus describe` takes from their tables
what has no text in it. All of it ours.
"""

from collections.abc import Mapping

import pandas as pd

from paraguard_utils import paths, registry, stores
from paraguard_utils.analysis import confusion, wording
from paraguard_utils.core.estimates import SEED, ClusterBootstrap
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.models import encoder, trace_store
from paraguard_utils.schemas import Corpus, Labels, Table

TABLES = {
    "targets": ("table1_targets", "03_scoring"),
    "cohorts": ("table2_cohorts", "04_cohort_analysis"),
    "regression": ("table2_regression", "04_cohort_analysis"),
    "predictions": ("predictions", "09_validity"),
}
"""Tables without texts: what each is called, where it comes from, and the notebook that writes that."""

NAMES = (*TABLES, "sources", "wording", "wording_curves", "labels")

ENCODER = "harmful-exemplars"
"""The guard that compares sentence vectors: the positive control of DR by shared wording."""

ALL = "all"
"""What stands for all benchmarks together."""


def by_source(target: str, corpus: Corpus, labels: Labels, seed: int = SEED) -> Table:
    """Estimate how often and how sensibly a target refuses the prompts of each benchmark.

    Parameters
    ----------
    target : str
    corpus, labels : DataFrame
        Rows in the same order; the corpus with its `source`.
    seed : int
        Of the resamples; clusters are resampled inside a benchmark.

    Returns
    -------
    DataFrame
        A row per source, `all` last: source, and the columns of `confusion.rate_row`.
    """
    rows = []
    for source in [*sorted(set(corpus["source"])), ALL]:
        own = (corpus["source"] == source).to_numpy() | (source == ALL)
        of_it = corpus[own]
        clusters = ClusterBootstrap(of_it["cluster_id"], seed=seed)
        rows.append({"source": source, **confusion.rate_row(target, of_it, labels[own], clusters)})
    return pd.DataFrame(rows)


def rows(corpus: Corpus, labels: Mapping[str, Labels]) -> Table:
    """Return labels by row of a benchmark's file, without a text.

    Parameters
    ----------
    corpus : DataFrame
    labels : dict of str to DataFrame
        By target, rows in corpus order.

    Returns
    -------
    DataFrame
        prompt_id (the benchmark, the number of its row, the variant), cluster_id, source, strategy, text_hash (16 hex
        digits of SHA-256), and a column a target: accept, reject or another label.
    """
    found = corpus[["prompt_id", "cluster_id", "source", "strategy"]].copy()
    found["text_hash"] = [encoder.text_hash(text) for text in corpus["text"]]
    return found.assign(**{name: own["label"].to_numpy() for name, own in labels.items()})


def by_wording(corpus: Corpus, labels: Mapping[str, Labels], seed: int = SEED) -> tuple[Table, Table]:
    """Estimate DR by shared wording, and how far a model's difference exceeds that of the guard that compares vectors.

    Parameters
    ----------
    corpus : DataFrame
    labels : dict of str to DataFrame
        By target, rows in corpus order; those of `ENCODER` among them, if there are any.
    seed : int
        Of the resamples.

    Returns
    -------
    table, curves : DataFrame
        Rows of `wording.row`, with kind (chat or guard), n_prompts and difference_over_encoder with its interval; rows
        of `wording.curve`.
    """
    clusters = ClusterBootstrap(corpus["cluster_id"], seed=seed)
    table, curves = wording.tables(corpus, labels, clusters, ENCODER)
    guards = table["target"].isin(registry.published("guard").index)
    return table.assign(kind=guards.map({True: "guard", False: "chat"}), n_prompts=len(corpus)), curves


def describe(store: stores.Store, name: str, seed: int) -> dict[str, Table]:
    """Write the tables of a scored corpus that hold no text, as `NAME_targets` and so on.

    Parameters
    ----------
    store : stores.Store
        A live store in which 02, 03, 04 and 09 have run on the corpus.
    name : str
        The corpus.
    seed : int
        Of the intervals by benchmark.

    Returns
    -------
    dict of str to DataFrame
        targets (Table 1, with the minutes and the most gigabytes of memory that asking all prompts took), cohorts,
        regression, predictions, sources (`by_source`), wording and wording_curves (`by_wording`), labels (`rows`).

    Raises
    ------
    DataError
        A table is of another corpus.
    """
    found: dict[str, Table] = {}
    for key, (table, notebook) in TABLES.items():
        frame = store.read("tables", table)
        if stores.read_meta(store.path("tables", table))["parameters"]["corpus"] != name:
            raise DataError(
                f"{paths.shown(store.path('tables', table))} is of another corpus than {name}; run: "
                f"paraguard run {notebook[:2]} --store {store.name} --corpus {name}"
            )
        found[key] = frame.drop(columns="store", errors="ignore")
    corpus, targets = store.read("corpus", name), list(dict.fromkeys(found["targets"]["target"]))
    parts, costs = [], []
    for target in targets:
        traces = store.read("traces", name, target)
        labels = labelling.matching_labels(store, name, target, traces)
        parts.append(by_source(target, corpus, labels, seed))
        costs.append({"target": target} | trace_store.cost(store, name, target, len(corpus)))
    found["targets"] = found["targets"].merge(pd.DataFrame(costs), on="target")
    found["sources"] = pd.concat(parts, ignore_index=True)
    guards = [one for one in registry.published("guard").index if store.has("labels", name, one)]
    labels = {one: store.read("labels", name, one) for one in [*targets, *guards]}
    found["wording"], found["wording_curves"] = by_wording(corpus, labels, seed)
    found["labels"] = rows(corpus, labels)
    meta = {"parameters": {"corpus": name, "seed": seed}}
    meta |= {"inputs": {"corpus": stores.frame_hash(corpus)}}
    for key, frame in found.items():
        store.write("tables", f"{name}_{key}", frame=frame, meta=meta)
    return found
