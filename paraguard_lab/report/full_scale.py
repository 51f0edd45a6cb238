"""What may be published of a corpus whose texts must not be (ours).

These are counts and estimates, of the whole corpus and by benchmark.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from paraguard_lab.analysis import shared_wording
from paraguard_lab.report.costs import query_cost
from paraguard_utils import paths, registry, stores
from paraguard_utils.analysis import confusion, wording
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, to_columns
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.models import encoder
from paraguard_utils.schemas import Corpus, Table
from paraguard_utils.stores import CorpusFiles

NOTEBOOK_TABLES = {
    "systems": ("table1_systems", "03"),
    "cohorts": ("table2_cohorts", "04"),
    "regression": ("table2_regression", "04"),
    "predictions": ("predictions", "06"),
}
"""Tables without texts: the table that each is taken from, and its notebook."""

FULL_SCALE_TABLES = (*NOTEBOOK_TABLES, "sources", "wording", "wording_curves", "labels")

WORDING_CONTROL = "harmful-exemplars"
"""The positive control of DR by shared wording: the guard compares sentence vectors."""


def estimate_by_source(system: System, seed: int = SEED) -> Table:
    """Estimate how often a system refuses for each benchmark, and for all of them.

    Clusters are resampled inside a benchmark.

    Parameters
    ----------
    system : System
    seed : int
        Of the resamples.

    Returns
    -------
    Table
        source ("all" last) and the columns of `confusion.rate_row`.
    """
    sources = system.prompts["source"]
    rows = []
    for source in [*sorted(set(sources)), "all"]:
        is_chosen = (sources == source) | (source == "all")
        part = system.select(is_chosen.to_numpy())
        clusters = ClusterBootstrap(part.prompts["cluster_id"], seed=seed)
        row = confusion.rate_row(replace(part, clusters=clusters))
        rows.append({"source": source, **row})
    return pd.DataFrame(rows)


def publishable_labels(prompts: Corpus, systems: Sequence[System]) -> Table:
    """Return the labels of each prompt without its text.

    Parameters
    ----------
    prompts : Corpus
    systems : sequence of System
        With labels in the order of the prompts.

    Returns
    -------
    Table
        prompt_id (the benchmark, the number of its row, the variant), cluster_id,
        source, strategy, text_hash (16 hex digits of SHA-256), and a column per system.
    """
    labels = prompts[["prompt_id", "cluster_id", "source", "strategy"]].copy()
    labels["text_hash"] = [encoder.hash_text(text) for text in prompts["text"]]
    for system in systems:
        labels[system.name] = system.labels["label"].to_numpy()
    return labels


def describe_full_scale(files: CorpusFiles, seed: int) -> dict[str, Table]:
    """Write the tables of a scored corpus that hold no text, and return them.

    They are called `NAME_systems` and so on, for a corpus NAME.

    Parameters
    ----------
    files : CorpusFiles
        Of a live store in which 02, 03, 04 and 06 have run on the corpus.
    seed : int
        Of the intervals by benchmark and wording.

    Returns
    -------
    dict of str to Table
        By a name of `FULL_SCALE_TABLES`. `systems` is Table 1, with the minutes and the
        most gigabytes of a query.

    Raises
    ------
    DataError
        A table of a notebook is of another corpus.
    """
    tables = {key: _read_notebook_table(files, key) for key in NOTEBOOK_TABLES}
    table1 = tables["systems"]
    prompts = files.read("corpus")
    clusters = ClusterBootstrap(prompts["cluster_id"], seed=seed)
    models = []
    costs = []
    for name in table1["system"].unique():
        traces = files.read("traces", name)
        labels = labelling.read_matching_labels(files, name, traces)
        models.append(System.of(name, prompts, labels, clusters))
        costs.append({"system": name} | query_cost(files, name, len(prompts)))
    systems = list(models)
    for name in registry.published_systems("guard").index:
        if files.has("labels", name):
            labels = labelling.read_decisions(files, name)
            systems.append(System.of(name, prompts, labels, clusters))
    _, curves = wording.wording_tables(systems)
    by_wording = shared_wording.compare_wordings(systems)
    by_wording = by_wording.merge(_compare_with_control(systems))
    is_model = by_wording["system"].isin(table1["system"])
    by_source = [estimate_by_source(model, seed) for model in models]
    tables |= {
        "systems": table1.merge(pd.DataFrame(costs), on="system"),
        "sources": pd.concat(by_source, ignore_index=True),
        "wording": by_wording.assign(
            kind=is_model.map({True: "chat", False: "guard"}),
            n_prompts=len(prompts),
        ),
        "wording_curves": curves,
        "labels": publishable_labels(prompts, systems),
    }
    meta = {
        "parameters": {"corpus": files.name, "seed": seed},
        "inputs": {"corpus": stores.frame_hash(prompts)},
    }
    for key, frame in tables.items():
        files.store.write("tables", f"{files.name}_{key}", frame=frame, meta=meta)
    return tables


def _compare_with_control(systems: Sequence[System]) -> Table:
    """Estimate how far each difference by wording exceeds that of `WORDING_CONTROL`.

    Columns: system, difference_over_encoder with its interval; NaN for the control, and
    without it.
    """
    pairs = wording.find_cluster_pairs(systems[0].prompts)
    differences = {}
    for system in systems:
        estimates = shared_wording.estimate_comparisons(system, pairs)
        differences[system.name] = estimates["difference"]
    control = differences.get(WORDING_CONTROL)
    rows = []
    for system in systems:
        over = system.clusters.undefined()
        if control is not None and system.name != WORDING_CONTROL:
            over = differences[system.name] - control
        columns = to_columns({"difference_over_encoder": over})
        rows.append({"system": system.name} | columns)
    return pd.DataFrame(rows)


def _read_notebook_table(files: CorpusFiles, key: str) -> Table:
    """Read one of `NOTEBOOK_TABLES`; one of another corpus is a DataError."""
    table, notebook = NOTEBOOK_TABLES[key]
    frame = files.store.read("tables", table)
    path = files.store.path("tables", table)
    if stores.read_meta(path)["parameters"]["corpus"] != files.name:
        raise DataError(
            f"{paths.display_path(path)} is of another corpus than {files.name}; run:"
            f" paraguard run {notebook} --store {files.store.name} --corpus"
            f" {files.name}"
        )
    return frame.drop(columns="store", errors="ignore")
