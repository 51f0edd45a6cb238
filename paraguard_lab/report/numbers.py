"""Numbers in prose: each has a name, and is filled in from the record.

A place in Markdown is `<!--=NAME-->text<!--=-->`, invisible around its text wherever
Markdown is rendered. `docs/numbers.yaml` says what each name stands for: a mark, which
`paraguard_utils.report.sentences` explains. `make record` evaluates the marks and fills
the README and the data card, so that no result is typed. The report's abstract and the
site's first page are filled whenever they are made.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from paraguard_lab.analysis import predictions, sensitivity, veto
from paraguard_lab.core.disagreement import LOW_OVERLAP
from paraguard_lab.corpus.compared import JUDGE_REASONS
from paraguard_lab.corpus.twins import keep_with_twin, measure_twin_auc
from paraguard_lab.labels import annotations
from paraguard_lab.report.costs import query_cost
from paraguard_utils import paths, registry, stores
from paraguard_utils.core.estimates import MIN_REFUSALS
from paraguard_utils.core.words import jaccard, split_words
from paraguard_utils.corpus.gates import SELECTION_REASONS
from paraguard_utils.errors import DataError
from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.report import sentences, tables
from paraguard_utils.report.selection import MAX_LENGTH
from paraguard_utils.schemas import Table
from paraguard_utils.settings import CORPUS, OLD_TWINS, TWINS
from paraguard_utils.stores import Store
from paraguard_utils.text import replace_control

NUMBERS_TABLE = "numbers"
MARKS_FILE = paths.ROOT / "docs" / "numbers.yaml"
NUMBER_PLACE = re.compile(r"(?s)<!--=(\w[^\n]*?)-->.*?<!--=-->")

DOCUMENTS = (paths.ROOT / "README.md", paths.ROOT / "data" / "README.md")
"""The documents that have marks; notebooks show the numbers of their own run."""

_EXAMPLE_SYSTEM = "qwen2.5-coder-1.5b-instruct-q4_k_m--safety"
_MAX_REFUSAL = 80
"""Characters of a plain refusal."""


def fill_numbers(markdown: str, numbers: Table) -> str:
    """Put numbers into their places.

    Parameters
    ----------
    markdown : str
    numbers : Table
        From `collect_numbers`: key (the name), text.

    Raises
    ------
    DataError
        A name is none of the keys.
    """
    known = numbers.set_index("key")["text"]

    def fill(place: re.Match[str]) -> str:
        name = place[1]
        if name not in known:
            raise DataError(
                f"there is no number {_shown(name)}; `paraguard numbers` evaluates"
                " those of README and the data card"
            )
        return f"<!--={name}-->{known[name]}<!--=-->"

    return NUMBER_PLACE.sub(fill, markdown)


def read_number_marks() -> dict[str, str]:
    """Read what the names of numbers stand for.

    Returns
    -------
    dict
        The mark of each name.

    Raises
    ------
    DataError
        The file cannot be read, or a line of it is no name with a mark.
    """
    where = paths.display_path(MARKS_FILE)
    try:
        marks = yaml.load(MARKS_FILE.read_text(encoding="utf-8"), yaml.BaseLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{where}: {' '.join(str(error).split())}") from None
    if not isinstance(marks, dict):
        raise DataError(f"{where}: it is no list of lines NAME: MARK")
    for name, mark in marks.items():
        if not isinstance(mark, str):
            raise DataError(f"{where}: {_shown(name)} is no line NAME: MARK")
    return marks


def _shown(name: object) -> str:
    return repr(str(name)[:MAX_LENGTH])


def remove_marks(markdown: str) -> str:
    """Return a text with its numbers, but without their marks."""
    return re.sub(r"<!--=.*?-->", "", markdown)


def collect_numbers(store: Store, files: Sequence[Path] = DOCUMENTS) -> Table:
    """Evaluate the numbers of documents.

    Parameters
    ----------
    store : Store
        Whose tables the marks name.
    files : sequence of Path
        The documents, in Markdown.

    Returns
    -------
    Table
        key (the name), text; each name once, in order.

    Raises
    ------
    DataError
        A name has no mark, or its mark is none, or selects no row; the document and the
        line are named.
    """
    marks = read_number_marks()
    read = cache(partial(sentences.read_named_table, store))
    texts: dict[str, str] = {}
    for path in files:
        markdown = path.read_text(encoding="utf-8")
        for place in NUMBER_PLACE.finditer(markdown):
            name = place[1]
            if name in texts:
                continue
            try:
                texts[name] = _evaluate(name, marks, read)
            except DataError as error:
                line = markdown.count("\n", 0, place.start()) + 1
                where = f"{paths.display_path(path)}, line {line}"
                raise DataError(f"{where}: {error}") from None
    return pd.DataFrame(texts.items(), columns=["key", "text"])


def _evaluate(name: str, marks: Mapping[str, str], read: sentences.TableReader) -> str:
    if name not in marks:
        where = paths.display_path(MARKS_FILE)
        raise DataError(f"{where} has no number {_shown(name)}; add a line NAME: MARK")
    return sentences.evaluate_mark(marks[name], read)


def _twins(store: Store, name: str) -> pd.DataFrame:
    """Count unsafe twins, and measure how well form alone distinguishes them.

    They are compared with the harmless clusters to which they belong.
    """
    twins = store.read("corpus", name)
    corpus = store.read("corpus", CORPUS)
    row = {"prompts": len(twins), "clusters": twins["cluster_id"].nunique()}
    row |= measure_twin_auc(keep_with_twin(corpus, twins), twins)
    return pd.DataFrame([row])


def _example(store: Store) -> pd.DataFrame:
    """Return the shortest plainly refused request of a review sheet.

    It shares few words with its accepted paraphrase.
    """
    sheet = store.read("tables", f"confused_refusals_{_EXAMPLE_SYSTEM}")
    answered = sheet["paraphrase"].map(split_words)
    refused = sheet["rejected_prompt"].map(split_words)
    overlaps = np.array(list(map(jaccard, answered, refused)))
    is_plain = sheet["rejected_answer"].str.len() <= _MAX_REFUSAL
    plain = sheet[is_plain & (overlaps < LOW_OVERLAP)]
    row = plain.loc[plain["rejected_prompt"].str.len().idxmin()]
    quoted = {
        "answered": _quote(row["paraphrase"]),
        "answer": _quote(row["paraphrase_answer"]),
        "refused": _quote(row["rejected_prompt"]),
        "refusal": _quote(row["rejected_answer"]),
    }
    return pd.DataFrame([quoted])


def _quote(text: str) -> str:
    """Return the beginning of a text, as one line of Markdown."""
    line = textwrap.shorten(text, 2 * _MAX_REFUSAL + 4, placeholder=" ...")
    return tables.escape_markdown(replace_control(line))


def _costs(store: Store) -> pd.DataFrame:
    """Return what a query of all prompts took each system on the recording machine.

    It is the time in minutes, and the most memory in gigabytes.
    """
    files = stores.CorpusFiles(store, CORPUS)
    n_prompts = len(files.read("corpus"))
    costs = {}
    for name in registry.published_systems("chat").index:
        costs[name] = query_cost(files, name, n_prompts)
    return pd.DataFrame(costs).T.rename_axis("system").reset_index()


def _weights(store: Store) -> pd.DataFrame:
    """Say of each system whether its excess is above 0 under all weights."""
    table = store.read("tables", "sensitivity")
    is_judged = (table["dimension"] == "weights") & (table["n"] >= MIN_REFUSALS)
    rows = table[is_judged]
    above = (rows["excess_low"] > 0).groupby(rows["system"]).all()
    return above.rename("above").reset_index()


def _simulations(store: Store) -> pd.DataFrame:
    """Return how far DR falls from the rarest to the most frequent refusals.

    There is a row for each correlation in simulations of which the truth is known.
    """
    table = sentences.read_named_table(store, "known_truth")
    is_meant = (table["wording"] == "chance") & (table["measure"] == "dr")
    rows = table[is_meant & (table["correlation"] > 0)]
    by_rate = rows.pivot(index="correlation", columns="frr", values="mean")
    falls = by_rate.iloc[:, 0] - by_rate.iloc[:, -1]
    return falls.rename("dr_falls").reset_index()


def _corrected_order(store: Store) -> pd.DataFrame:
    """Return rho of FRR and DR over systems, both corrected for wrong labels."""
    table = store.read("tables", "label_noise")
    rho = table["frr"].corr(table["dr"], method="spearman")
    return pd.DataFrame({"rho": [rho]})


def _models(store: Store) -> pd.DataFrame:
    """Return how many models the systems of Table 1 have."""
    models = store.read("tables", "table1_systems")["system"].map(model_of_system)
    return pd.DataFrame({"n": [models.nunique()]})


def _vetoes(store: Store) -> pd.DataFrame:
    """Return the vetoes that enough refusals judge.

    `better` says whether a veto beats chance in nearly all halves.
    """
    table = store.read("tables", "vetoes")
    table = table[veto.has_enough_rejections(table)]
    is_better = table["beats_chance"] >= veto.MIN_BETTER_SHARE
    return table.assign(better=is_better, halves=veto.N_HALVES)


def _writer(store: Store) -> pd.DataFrame:
    """Return by fate what became of a model's candidates.

    `gated` says whether they passed all gates but the judge.
    """
    table = store.read("tables", "writer_yield")
    passed = ["kept", *SELECTION_REASONS, *JUDGE_REASONS]
    return table.assign(gated=table["fate"].isin(passed))


def _annotations(store: Store) -> pd.DataFrame:
    """Count the answers that were annotated, by system and cluster."""
    rows = annotations.read_annotations()
    clusters = rows["prompt_id"].str.rpartition("-")[0]
    return rows.groupby(["system", clusters]).size().to_frame("n")


def _minutes(store: Store) -> pd.DataFrame:
    """Return the minutes of each notebook, as one row with a column per notebook."""
    table = store.read("tables", "notebook_minutes")
    return table.set_index("notebook")[["minutes"]].T


def _orders(store: Store) -> pd.DataFrame:
    """Count the orders of two systems that are certain, and those that may reverse."""
    orders = store.read("tables", "sensitivity_orders")
    return sensitivity.count_sure_orders(orders, store.read("tables", "sensitivity"))


def _proxy_predictions(store: Store) -> pd.DataFrame:
    """Return the judged predictions about proxies."""
    return predictions.judge_predictions({"proxies": store.read("tables", "proxies")})


def _read_benchmark(file: Path, store: Store) -> pd.DataFrame:
    """Read what a benchmark measured, which is in no store."""
    return stores.read_file(file, "tables")


for _file in paths.BENCHMARKS_FOLDER.glob("*.csv"):
    sentences.DERIVED_TABLES[_file.stem] = partial(_read_benchmark, _file)
sentences.DERIVED_TABLES |= {
    "corrected_order": _corrected_order,
    "costs": _costs,
    "example": _example,
    "judged_vetoes": _vetoes,
    "judged_weights": _weights,
    "known_worlds": _simulations,
    "minutes": _minutes,
    "models": _models,
    "orders": _orders,
    "proxy_predictions": _proxy_predictions,
    "read_clusters": _annotations,
    "twins": partial(_twins, name=TWINS),
    "old_twins": partial(_twins, name=OLD_TWINS),
    "writer_fates": _writer,
}
"""Tables that are not recorded, made from those that are."""
