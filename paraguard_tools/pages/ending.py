"""Say at the end of a run what was found, where it is, and what to do next."""

import shlex
from pathlib import Path

from paraguard_lab.run import FinishedRun
from paraguard_tools.logs import audit
from paraguard_utils import paths, registry
from paraguard_utils.models import trace_store
from paraguard_utils.report import tables
from paraguard_utils.settings import CORPUS
from paraguard_utils.stores import LIVE, CorpusFiles, Store


def describe_run(finished: FinishedRun) -> list[str]:
    """Return the last lines of a run: findings, where the results are, what is next."""
    store = finished.config.open_store()
    if finished.attempt:
        return _describe_attempt(finished, store)
    lines = []
    if finished.config.model and "03" in finished.notebooks:
        lines += _describe_systems(finished, store)
    if finished.config.guard and "05" in finished.notebooks:
        lines += _describe_guards(store)
    where = paths.display_path(store.writes)
    lines.append(f"tables, figures and executed notebooks are in {where}")
    lines.append(f"next: {', or '.join(_list_next(finished, store))}")
    return lines


def _describe_attempt(finished: FinishedRun, store: Store) -> list[str]:
    """Say that 02 queried a part of the prompts, and how the rest is queried."""
    page = _find_notebook(finished, store)
    return [
        f"{finished.attempt} queries a part of the prompts, so 02 ran alone, and no"
        f" table was written; its answers are in {paths.display_path(page)}",
        f"next: the same command without {finished.attempt.partition('=')[0]}, which"
        " queries the rest and runs what follows",
    ]


def _describe_systems(finished: FinishedRun, store: Store) -> list[str]:
    """Say of each system of the user's model what Table 1 says."""
    if not store.has("tables", "table1_systems"):
        return []
    files = CorpusFiles(store, finished.config.corpus)
    names = trace_store.find_systems(files, finished.config.model)
    table = store.read("tables", "table1_systems")
    of_model = table["system"].isin(names) & (table["interpretation"] == "relative")
    lines = []
    for row in table[of_model].to_dict("records"):
        dr = "not known, too little was refused or answered"
        if not row["too_few_for_dr"]:
            dr = tables.format_estimate(row, "dr", 2)
        lines.append(
            f"{audit.describe_system(row)} DR is {dr} (0: all wordings of a request"
            " get one decision; 1: they agree no more than unrelated requests)."
        )
    return lines


def _describe_guards(store: Store) -> list[str]:
    """Say what Table 3 says of guards that are not the project's own."""
    table = store.read("tables", "table3_guards")
    published = registry.published_systems("guard", "refusal").index
    is_own = (table["axis"] != "model") & ~table["system"].isin(published)
    lines = []
    for row in table[is_own].to_dict("records"):
        frr = tables.format_estimate(row, "frr", 2)
        auc = tables.format_estimate(row, "auc_equal_length", 2)
        lines.append(
            f"{row['system']} rejects a share of {frr} of the harmless prompts; AUC"
            f" against harmful twins of equal length: {auc}"
        )
    return lines


def _find_notebook(finished: FinishedRun, store: Store) -> Path:
    """Return the executed notebook to open: the page of results, or else the last."""
    folder = store.writes / "notebooks"
    number = "00" if "00" in finished.notebooks else finished.notebooks[-1]
    return next(folder.glob(f"{number}_*.ipynb"))


def _list_next(finished: FinishedRun, store: Store) -> list[str]:
    """Return what to open, and the command that advises about the user's model."""
    config = finished.config
    ways = [f"open {paths.display_path(_find_notebook(finished, store))}"]
    if config.model and {"02", "03"} <= set(finished.notebooks):
        command = ["paraguard", "remedy", "--model", config.model]
        if store.name != LIVE:
            command += ["--store", store.name]
        if config.corpus != CORPUS:
            command += ["--corpus", config.corpus]
        ways.append(shlex.join(command))
    return ways
