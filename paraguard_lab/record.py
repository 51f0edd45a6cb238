"""Promoting a live run to the record: data and their card, figures, numbers in prose,
the committed notebooks.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pandas as pd

from paraguard_lab import run
from paraguard_lab.corpus import build, writer
from paraguard_lab.labels import agreement
from paraguard_lab.remedies import catalogue, utility
from paraguard_lab.remedies.splits import SPLIT_NUMBERS
from paraguard_lab.report import croissant, full_scale, numbers
from paraguard_lab.report.compare import COMPARED_TABLES
from paraguard_lab.run import MINUTES_TABLE
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.errors import UserError
from paraguard_utils.labels import annotations, classifier
from paraguard_utils.models import encoder, prompting
from paraguard_utils.settings import (
    CORPUS,
    OLD_TWINS,
    TWINS,
    XSTEST,
    XSTEST_SAFE,
    name_remedied,
    name_reworded,
)
from paraguard_utils.stores import LIVE, RECORDED, Store

PROMOTED_FOLDERS, ON_REQUEST_FOLDERS, DERIVED_FOLDERS = (
    list(
        dict.fromkeys(
            kind.path.partition("/")[0]
            for kind in stores.KINDS.values()
            if kind.recorded == way
        )
    )
    for way in ("promoted", "on request", "derived")
)
"""Folders of a live store that are copied to `data/`; those that a live run fills on
request only, where a system without a file keeps its recorded one; and those that the
recorded notebooks make anew."""

BY_CORPUS = ("generated", "corpus", encoder.ENCODER_NAME)
"""Folders with a file for each corpus; all others but the vectors' and the tables' have
a folder for each.
"""

LABEL_INPUTS = (
    annotations.ANNOTATIONS_FILE,
    classifier.TRAINING_ANSWERS_FILE,
    agreement.PUBLISHED_RATES_FILE,
)
"""Files among the labels that no run makes."""

DEMO_SYSTEM = (  # whose decisions `paraguard audit --demo` audits
    "smollm2-135m-instruct-q4_1--safety"
)

ASKED_BESIDE = (
    TWINS,
    OLD_TWINS,
    XSTEST,
    name_remedied(CORPUS, "wordings"),
    *(name_reworded(of) for of in (CORPUS, TWINS)),
    *(
        name_remedied(of, name, third)
        for of in (CORPUS, TWINS)
        for name in catalogue.remedy_folders()
        for third in SPLIT_NUMBERS
    ),
    *(
        name_remedied(of, name)
        for of in (XSTEST, XSTEST_SAFE)
        for name in catalogue.remedy_folders()
    ),
    name_remedied(XSTEST_SAFE, catalogue.UNTOUCHED),
)
"""What is asked beside the corpus, of which no answer is kept: requests that ask for
harm, rewordings of what was rejected, and what remedied systems were asked. Files are
promoted where a live store has them, and never removed for the want."""

PUBLIC_TABLES = (
    *(
        f"public_{name}"
        for name in (*build.PUBLIC_CORPUS_TABLES, *full_scale.FULL_SCALE_TABLES)
    ),
    *agreement.XSTEST_TABLES,
    writer.WRITER_CANDIDATES_TABLE,
    utility.UTILITY_TABLE,
    "hardening_annotations",
    "twin_annotations",
)
"""Tables made from benchmark files, counts and estimates without texts, what a model
wrote for the seeds on which generators are compared (`benchmarks/writer.py`), what
needs a remedied model's weights, and what readers said of twins. Those of a live store
replace the recorded ones, which stay where it has none."""


def promote_live_run() -> None:
    """Promote a live run to the record and execute the committed notebooks from it.

    Only the project's corpora and its published systems are promoted, whatever else the
    live store holds; a system that a live run does not ask by default keeps its
    recorded files where the live store lacks them, and so do requests that ask for
    harm, and rewordings. Tables and figures are those that the recorded notebooks make
    from what was promoted. Raise UserError where the live store lacks something, or
    holds other systems or an answer that must not be kept.
    """
    live, recorded = Store(LIVE), Store(RECORDED)
    known = list(registry.published_systems("chat", "guard", "refusal").index)
    for name in COMPARED_TABLES:
        if not live.has("tables", name):
            raise UserError(
                f"the live store has no table {name}; run make reproduce first"
            )
        meta = stores.read_meta(live.path("tables", name))["parameters"]
        rows = live.read("tables", name)
        if (
            meta["corpus"] != CORPUS
            or not set(rows["system"]) <= set(known)
            or meta.get("model")
        ):
            raise UserError(
                f"the live table {name} is of another corpus or other systems; run make"
                " reproduce first"
            )
    described = (
        live.read("tables", "public_risk")
        if live.has("tables", "public_risk")
        else None
    )
    if described is not None and described["texts"].iloc[0] != len(
        live.read("corpus", CORPUS)
    ):
        raise UserError(
            "the live table public_risk describes another corpus; run paraguard corpus"
            " build again"
        )
    _check_withheld(live)
    kept = dict.fromkeys(PROMOTED_FOLDERS, _kept(live, recorded))
    for folder in ON_REQUEST_FOLDERS:
        kept[folder] = [name for name in known if not live.has(folder, CORPUS, name)]
    for folder, names in kept.items():
        _replace(live.writes / folder, paths.DATA / folder, known, names)
    shutil.rmtree(
        recorded.writes, ignore_errors=True
    )  # what an earlier version drew must not be promoted
    for name in PUBLIC_TABLES:
        source = live if live.has("tables", name) else recorded
        meta = stores.read_meta(source.path("tables", name))
        recorded.write("tables", name, frame=source.read("tables", name), meta=meta)
    # A run that was interrupted does not know how long it took: the minutes of the
    # record stay.
    timed = live if live.has("tables", MINUTES_TABLE) else recorded
    recorded.write(
        "tables", MINUTES_TABLE, frame=timed.read("tables", MINUTES_TABLE), meta={}
    )
    redraw_record(recorded, known)


def _check_withheld(live: Store) -> None:
    """Raise an error where a file that might be promoted holds an answer of which only
    the label is kept.
    """
    for kind in ("traces", "labels", *ON_REQUEST_FOLDERS):
        for path in (
            path
            for name in ASKED_BESIDE
            for path in live.path(kind, name, "x").parent.glob("*")
        ):
            if (
                path.suffix in (".csv", ".parquet")
                and stores.read_file(path, kind)["response"].notna().any()
            ):
                raise UserError(
                    f"{paths.display_path(path)} holds answers, of which only labels"
                    " are kept; remove it"
                )


def redraw_record(recorded: Store, known: Sequence[str]) -> None:
    """Make tables, figures, numbers and executed notebooks from the recorded traces,
    and put them in their places.
    """
    _derived(recorded, known)
    for notebook in run.order_to_run(run.list_notebooks()):
        run.run_notebook(notebook, RECORDED)
        _derived(recorded, known)  # 04 reads the scores that 03 makes
    for folder in DERIVED_FOLDERS:
        _replace(recorded.writes / folder, paths.DATA / folder, known)
    figure_map = (paths.FIGURES / "FIGURE_MAP.csv").read_bytes()
    _replace(recorded.writes / "figures", paths.FIGURES, known)
    (paths.FIGURES / "FIGURE_MAP.csv").write_bytes(figure_map)
    found = numbers.collect_numbers(recorded)
    stores.write_file(
        paths.DATA / "tables" / f"{numbers.NUMBERS_TABLE}.csv", found, "tables", {}
    )
    readme = paths.ROOT / "README.md"
    readme.write_text(
        numbers.fill_numbers(readme.read_text(encoding="utf-8"), found),
        encoding="utf-8",
    )
    stores.write_text(
        paths.DATA / "demo.csv", make_demo_log(recorded).to_csv(index=False)
    )
    croissant.write_card(found)
    for notebook in run.list_notebooks():
        executed = clean_notebook(
            nbformat.read(recorded.writes / "notebooks" / notebook.name, as_version=4)
        )
        for cell in executed.cells:
            if cell.cell_type == "markdown":
                cell.source = numbers.fill_numbers(cell.source, found)
        nbformat.write(executed, notebook)


def make_demo_log(recorded: Store) -> pd.DataFrame:
    """Return what `paraguard audit --demo` audits: one model's decisions on the corpus
    and its twins, as a log.

    A twin has its harmless cluster's name, so that both are resampled together, as in
    03.
    """
    parts = []
    for of, harmful in ((CORPUS, False), (TWINS, True)):
        corpus, labels = (
            recorded.read("corpus", of),
            recorded.read("labels", of, DEMO_SYSTEM),
        )
        rows = corpus[["text"]].assign(
            cluster=unsafe.benign_cluster_of(corpus["cluster_id"])
        )[["cluster", "text"]]
        parts.append(rows.assign(harmful=harmful, decision=labels["label"].to_numpy()))
    return pd.concat(parts).assign(system=registry.display_titles([DEMO_SYSTEM])[0])


def _kept(live: Store, recorded: Store) -> list[str]:
    """Return the published systems, not asked live, that keep their recorded files.

    UserError on half a system.
    """
    kept = []
    for kind, product in (
        ("chat", "traces"),
        ("guard", "guards"),
        ("refusal", "guards"),
    ):
        for name, default in registry.published_systems(kind)["default"].items():
            there = [live.has(part, CORPUS, name) for part in (product, "labels")]
            if all(there):
                continue
            if (
                default == "yes"
                or any(there)
                or not recorded.has("labels", CORPUS, name)
            ):
                command = "reproduce" if default == "yes" else "optional-models"
                raise UserError(
                    f"the live store lacks answers of {name}, or their labels; run make"
                    f" {command}"
                )
            kept.append(name)
    if kept and live.has("corpus", CORPUS):
        corpora = [
            stores.frame_hash(store.read("corpus", CORPUS))
            for store in (live, recorded)
        ]
        if corpora[0] != corpora[1]:
            raise UserError(
                f"the corpus has changed, and {kept[0]} was not asked again; run make"
                " optional-models"
            )
    return kept


def _derived(recorded: Store, known: Sequence[str]) -> None:
    """Copy what the recorded notebooks have made so far to where the next one reads it."""
    for folder in DERIVED_FOLDERS:
        _copy(recorded.writes / folder, paths.DATA / folder, known)


def _copy(
    source: Path, destination: Path, systems: Sequence[str], kept: Sequence[str] = ()
) -> set[Path]:
    """Copy a folder's publishable files over another's, but none of a kept system.

    Return their relative paths.
    """
    found = [
        path
        for path in source.rglob("*")
        if path.is_file() and _publishable(path, systems)
    ]
    wanted = {path.relative_to(source) for path in found if not _is_of(path, kept)}
    for name in wanted:
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, destination / name)
    return wanted


def _replace(
    source: Path, destination: Path, systems: Sequence[str], kept: Sequence[str] = ()
) -> None:
    """Copy a folder's publishable files over another's, and remove there what is
    neither among them nor kept.
    """
    wanted = _copy(source, destination, systems, kept)
    for path in destination.rglob("*"):
        if (
            path in LABEL_INPUTS
            or _is_of(path, kept)
            or _corpus_of(path) in ASKED_BESIDE
        ):
            continue
        if path.is_file() and path.relative_to(destination) not in wanted:
            path.unlink()


def _is_of(path: Path, systems: Sequence[str]) -> bool:
    """Return whether a file belongs to one of these systems, or to the model of one."""
    return _stem(path) in systems or path.parent.name in set(
        map(prompting.model_of_system, systems)
    )


def _stem(path: Path) -> str:
    stem = path.name.removesuffix(".meta.json").rpartition(".")[0]
    # Under another wording (safety-2) a system is that of the usual one.
    return (
        stem.rpartition("-")[0]
        if path.parent.name == name_remedied(CORPUS, "wordings")
        else stem
    )


def _corpus_of(path: Path) -> str:
    """Return the name of the corpus that a file is of."""
    return (
        _stem(path).removesuffix(".drifts")
        if path.parent.name in BY_CORPUS
        else path.parent.name
    )


def _publishable(path: Path, systems: Sequence[str]) -> bool:
    stem = _stem(path)
    if path.suffix in (".lock", ".corrupt", ".tmp") or ".parts" in path.parent.name:
        return False
    if path.parents[1].name in {
        *PROMOTED_FOLDERS,
        *ON_REQUEST_FOLDERS,
        *DERIVED_FOLDERS,
    } - {"vectors"}:
        return path.parent.name in (CORPUS, *ASKED_BESIDE) and stem in systems
    if path.parent.name in BY_CORPUS:
        return _corpus_of(path) in (CORPUS, *ASKED_BESIDE)
    if path.parents[1].name == "vectors":
        return path.parent.name in {prompting.model_of_system(name) for name in systems}
    return (
        not stem.startswith("confused_refusals_")
        or stem.removeprefix("confused_refusals_") in systems
    )


def clean_notebook(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove what a run leaves behind in a notebook, but keep tags, outputs and
    execution counts.
    """
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor

    notebook.metadata = {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        }
    }
    notebook.cells = [
        cell
        for cell in notebook.cells
        if "injected-parameters" not in cell.metadata.get("tags", [])
    ]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = (
            {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
        )
        if cell.cell_type == "code":
            # Warnings and progress bars vary from run to run.
            cell.outputs = [
                output for output in cell.outputs if output.get("name") != "stderr"
            ]
    # What is printed arrives in pieces that vary from run to run.
    notebook, _ = CoalesceStreamsPreprocessor().preprocess(notebook, {})
    return notebook
