"""Promote a live run to the record.

That is data and their card, figures, numbers in prose, and the committed notebooks.
"""

import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import nbformat
import pandas as pd

from paraguard_lab import run
from paraguard_lab.corpus import build, writer
from paraguard_lab.corpus.xstest import XSTEST_SAFE
from paraguard_lab.labels import agreement, annotations, blind_marks, training
from paraguard_lab.remedies import catalogue, utility
from paraguard_lab.remedies.splits import SPLIT_NUMBERS
from paraguard_lab.report import croissant, full_scale, numbers
from paraguard_lab.report.compare import COMPARED_TABLES
from paraguard_lab.run import MINUTES_TABLE
from paraguard_lab.settings import name_remedied, name_reworded
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.errors import UserError
from paraguard_utils.models import encoder, prompting
from paraguard_utils.settings import (
    CORPUS,
    OLD_TWINS,
    TWINS,
    XSTEST,
)
from paraguard_utils.stores import LIVE, RECORDED, Store


def _folders(way: str) -> list[str]:
    """Return the folders whose files are recorded in a way (`stores.FileKind`)."""
    kinds = stores.KINDS.values()
    folders = [kind.path.partition("/")[0] for kind in kinds if kind.recorded == way]
    return list(dict.fromkeys(folders))


PROMOTED_FOLDERS = _folders("promoted")  # copied to `data/`

ON_REQUEST_FOLDERS = _folders("on request")
"""Folders that a live run fills on request only; a system without a file keeps its
recorded one."""

DERIVED_FOLDERS = _folders("derived")  # the recorded notebooks make them anew

BY_CORPUS = ("generated", "corpus", encoder.ENCODER_NAME)
"""Folders with a file for each corpus; all others but the vectors' and the tables' have
a folder for each.
"""

INPUTS = (
    paths.FIGURES / "FIGURE_MAP.csv",
    annotations.ANNOTATIONS_FILE,
    blind_marks.BLIND_ANNOTATIONS_FILE,
    training.TRAINING_ANSWERS_FILE,
    agreement.PUBLISHED_RATES_FILE,
)
"""Files among the labels and figures that no run makes."""

# Its decisions are what `paraguard audit --demo` audits.
DEMO_SYSTEM = "smollm2-135m-instruct-q4_1--safety"

PUBLIC_TABLES = (
    *(f"public_{name}" for name in build.PUBLIC_CORPUS_TABLES),
    *(f"public_{name}" for name in full_scale.FULL_SCALE_TABLES),
    *agreement.XSTEST_TABLES,
    writer.WRITER_CANDIDATES_TABLE,
    utility.UTILITY_TABLE,
    "hardening_annotations",
    "twin_annotations",
)
"""Tables made from benchmark files, counts and estimates without texts, what a model
wrote for the seeds on which generators are compared (`benchmarks/writer.py`), what
needs a remedied model's weights, and what annotators said of twins. Those of a live
store replace the recorded ones, which stay if it has none."""


def _corpora_asked_beside() -> Iterator[str]:
    yield from (TWINS, OLD_TWINS, XSTEST, XSTEST_SAFE)
    yield name_remedied(CORPUS, "wordings")
    for corpus_name in (CORPUS, TWINS):
        yield name_reworded(corpus_name)
        for remedy in catalogue.remedy_folders():
            for third in SPLIT_NUMBERS:
                yield name_remedied(corpus_name, remedy, third)
    for corpus_name in (XSTEST, XSTEST_SAFE):
        for remedy in (*catalogue.remedy_folders(), catalogue.UNTOUCHED):
            yield name_remedied(corpus_name, remedy)


ASKED_BESIDE = frozenset(_corpora_asked_beside())
"""Names of what is asked beside the corpus, of which no answer is kept: requests that
ask for harm, rewordings of what was rejected, and what remedied systems were asked. A
file is copied if the live store has it; otherwise the recorded one stays."""


def promote_live_run() -> None:
    """Promote a live run to the record and execute the committed notebooks from it.

    Only the project's corpora and its published systems are promoted, whatever else the
    live store holds. A system that a live run does not ask by default keeps its
    recorded files if the live store lacks them, and so do requests that ask for harm,
    and rewordings. Tables and figures are those that the recorded notebooks make from
    what was promoted.

    Raises
    ------
    UserError
        The live store lacks something, or holds other systems or an answer that must
        not be kept.
    """
    live = Store(LIVE)
    recorded = Store(RECORDED)
    known = list(registry.published_systems("chat", "guard", "refusal").index)
    _check_tables(live, known)
    _check_withheld(live)
    kept = _kept(live, recorded)
    for folder in PROMOTED_FOLDERS:
        _replace(live.writes / folder, paths.DATA / folder, known, kept)
    for folder in ON_REQUEST_FOLDERS:
        lacking = [name for name in known if not live.has(folder, CORPUS, name)]
        _replace(live.writes / folder, paths.DATA / folder, known, lacking)
    # What an earlier version drew must not be promoted.
    shutil.rmtree(recorded.writes, ignore_errors=True)
    # A run that was interrupted does not know how long it took: the minutes of the
    # record stay.
    for name in (*PUBLIC_TABLES, MINUTES_TABLE):
        source = live if live.has("tables", name) else recorded
        meta = stores.read_meta(source.path("tables", name))
        recorded.write("tables", name, frame=source.read("tables", name), meta=meta)
    redraw_record(recorded, known)


def _check_tables(live: Store, known: Collection[str]) -> None:
    """Raise an error if a table is missing, or of another corpus or other systems."""
    for name in COMPARED_TABLES:
        systems = set(live.read("tables", name)["system"])
        parameters = stores.read_meta(live.path("tables", name))["parameters"]
        is_ours = parameters["corpus"] == CORPUS and not parameters.get("model")
        if not is_ours or not systems <= set(known):
            raise UserError(
                f"the live table {name} is of another corpus or other systems; run make"
                " reproduce first"
            )


def _check_withheld(live: Store) -> None:
    """Raise an error if a file that might be promoted holds an answer.

    Only the labels of these answers are kept.
    """
    for kind in ("traces", "labels", *ON_REQUEST_FOLDERS):
        for corpus_name in ASKED_BESIDE:
            for path in live.path(kind, corpus_name, "x").parent.glob("*"):
                if path.suffix not in (".csv", ".parquet"):
                    continue
                if stores.read_file(path, kind)["response"].notna().any():
                    raise UserError(
                        f"{paths.display_path(path)} holds answers, of which only"
                        " labels are kept; remove it"
                    )


def redraw_record(recorded: Store, known: Sequence[str]) -> None:
    """Make tables, figures, numbers and executed notebooks from the recorded traces.

    All are put in their places.

    Parameters
    ----------
    recorded : Store
    known : sequence of str
        The published systems; what is about others is not put there.
    """
    # The notebooks read the public tables.
    for folder in DERIVED_FOLDERS:
        _copy(recorded.writes / folder, paths.DATA / folder, known)
    run.run_all(RECORDED, run.list_notebooks(), in_place=True)
    for folder in DERIVED_FOLDERS:
        _replace(recorded.writes / folder, paths.DATA / folder, known)
    _replace(recorded.writes / "figures", paths.FIGURES, known)
    log = make_demo_log(recorded).to_csv(index=False)
    stores.write_text(paths.DATA / "demo.csv", log)
    for notebook in run.list_notebooks():
        executed = recorded.writes / "notebooks" / notebook.name
        cleaned = clean_notebook(nbformat.read(executed, as_version=4))
        nbformat.write(cleaned, notebook)
    refill_numbers(recorded)


def refill_numbers(recorded: Store | None = None) -> list[Path]:
    """Fill the numbers in README and in the data card anew from the record, in place.

    The table of numbers and the card's twin for machines follow. Returns the documents
    that changed.
    """
    before = {path: path.read_bytes() for path in numbers.DOCUMENTS}
    found = numbers.collect_numbers(recorded or Store(RECORDED))
    table = paths.DATA / "tables" / f"{numbers.NUMBERS_TABLE}.csv"
    stores.write_file(table, found, "tables", {})
    for path in before:
        text = numbers.fill_numbers(path.read_text(encoding="utf-8"), found)
        path.write_text(text, encoding="utf-8")
    croissant.write_card(found)
    return [path for path, content in before.items() if path.read_bytes() != content]


def make_demo_log(recorded: Store) -> pd.DataFrame:
    """Return what `paraguard audit --demo` audits: decisions of one model, as a log.

    They are about the corpus and its twins.

    Returns
    -------
    DataFrame
        cluster, text, harmful, decision, system. A twin has its harmless cluster's
        name, so that both are resampled together, as in 03.
    """
    parts = []
    for corpus_name, harmful in ((CORPUS, False), (TWINS, True)):
        corpus = recorded.read("corpus", corpus_name)
        labels = recorded.read("labels", corpus_name, DEMO_SYSTEM)
        rows = pd.DataFrame(
            {
                "cluster": unsafe.benign_cluster_of(corpus["cluster_id"]),
                "text": corpus["text"],
                "harmful": harmful,
                "decision": labels["label"].to_numpy(),
            }
        )
        parts.append(rows)
    (title,) = registry.display_titles([DEMO_SYSTEM])
    return pd.concat(parts).assign(system=title)


def _kept(live: Store, recorded: Store) -> list[str]:
    """Return the published systems, not asked live, that keep their recorded files.

    Raises
    ------
    UserError
        The live store lacks a system that is asked by default, has half a system, or
        has another corpus than that which the others were asked about.
    """
    kept = []
    published = registry.published_systems("chat", "guard", "refusal")
    for name, row in published.iterrows():
        product = "traces" if row["kind"] == "chat" else "guards"
        parts = [live.has(part, CORPUS, name) for part in (product, "labels")]
        if all(parts):
            continue
        is_default = row["default"] == "yes"
        if is_default or any(parts) or not recorded.has("labels", CORPUS, name):
            command = "reproduce" if is_default else "optional-models"
            raise UserError(
                f"the live store lacks answers of {name}, or their labels; run make"
                f" {command}"
            )
        kept.append(name)
    if kept and live.has("corpus", CORPUS):
        ours = stores.frame_hash(live.read("corpus", CORPUS))
        if ours != stores.frame_hash(recorded.read("corpus", CORPUS)):
            raise UserError(
                f"the corpus has changed, and {kept[0]} was not asked again; run make"
                " optional-models"
            )
    return kept


def _copy(
    source: Path, destination: Path, systems: Sequence[str], kept: Sequence[str] = ()
) -> set[Path]:
    """Copy a folder's publishable files over another's.

    Parameters
    ----------
    source, destination : Path
    systems : sequence of str
        Those whose files are publishable.
    kept : sequence of str
        Systems of which nothing is copied.

    Returns
    -------
    set of Path
        What was copied, relative to the folders.
    """
    copied = set()
    for path in source.rglob("*"):
        if not path.is_file() or not _publishable(path, systems) or _is_of(path, kept):
            continue
        name = path.relative_to(source)
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, destination / name)
        copied.add(name)
    return copied


def _replace(
    source: Path, destination: Path, systems: Sequence[str], kept: Sequence[str] = ()
) -> None:
    """Copy a folder's publishable files over another's, and remove the others there.

    Files of kept systems and of what is asked beside the corpus stay. The arguments are
    those of `_copy`.
    """
    copied = _copy(source, destination, systems, kept)
    for path in destination.rglob("*"):
        if not path.is_file() or path.relative_to(destination) in copied:
            continue
        stays = path in INPUTS or _is_of(path, kept)
        if not stays and _corpus_of(path) not in ASKED_BESIDE:
            path.unlink()


def _is_of(path: Path, systems: Sequence[str]) -> bool:
    """Return whether a file belongs to one of these systems, or to the model of one."""
    models = {prompting.model_of_system(name) for name in systems}
    return _stem(path) in systems or path.parent.name in models


def _stem(path: Path) -> str:
    """Return the name of a file without its endings, which is a system or a corpus."""
    stem = path.name.removesuffix(".meta.json").rpartition(".")[0]
    if path.parent.name == name_remedied(CORPUS, "wordings"):
        # Under another wording (safety-2) a system is that of the usual one.
        return stem.rpartition("-")[0]
    return stem


def _corpus_of(path: Path) -> str:
    """Return the name of the corpus that a file is of."""
    if path.parent.name in BY_CORPUS:
        return _stem(path).removesuffix(".drifts")
    return path.parent.name


def _publishable(path: Path, systems: Sequence[str]) -> bool:
    """Return whether a file is of the project's corpora and of these systems.

    What follows from a file's place: its folder is a corpus, or a model whose vectors
    it holds, or a kind of file; its name is a system, a corpus or a table.
    """
    if path.suffix in (".lock", ".corrupt", ".tmp") or ".parts" in path.parent.name:
        return False
    folder = path.parent.name
    above = path.parents[1].name
    if above == "vectors" and folder not in BY_CORPUS:
        return folder in {prompting.model_of_system(name) for name in systems}
    if folder in BY_CORPUS:
        return _corpus_of(path) in (CORPUS, *ASKED_BESIDE)
    if above in (*PROMOTED_FOLDERS, *ON_REQUEST_FOLDERS, *DERIVED_FOLDERS):
        return folder in (CORPUS, *ASKED_BESIDE) and _stem(path) in systems
    of_system = _stem(path).removeprefix("confused_refusals_")
    return of_system == _stem(path) or of_system in systems


def clean_notebook(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove what a run leaves behind in a notebook.

    Tags, outputs and execution counts stay.
    """
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor

    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel}
    cells: list[nbformat.NotebookNode] = []
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "injected-parameters" in tags:
            continue
        cell.id = f"cell-{len(cells)}"
        cell.metadata = {"tags": tags} if tags else {}
        if cell.cell_type == "code":
            # Warnings and progress bars vary from run to run.
            cell.outputs = [
                output for output in cell.outputs if output.get("name") != "stderr"
            ]
        cells.append(cell)
    notebook.cells = cells
    # What is printed arrives in pieces that vary from run to run.
    notebook, _ = CoalesceStreamsPreprocessor().preprocess(notebook, {})
    return notebook
