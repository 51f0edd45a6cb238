"""Numbers in prose: each is named by what it is read from, and filled in.

A place in Markdown is `<!--=MARK-->text<!--=-->`, invisible around its text wherever
Markdown is rendered. MARK is `TABLE[ROWS].COLUMN:FORMAT`; only TABLE must be there:

- TABLE is a recorded table, a benchmark's CSV, or one of `DERIVED_TABLES`.
- ROWS is a condition as `DataFrame.query` takes it. Without a column, the number of
  rows is shown.
- COLUMN is a column or an expression as `DataFrame.eval` takes it. One value is shown
  as it is, several as the range "low to high", booleans as "n of m", `x±` as an
  estimate with its 95 % interval, and `a of b` as both.
- FORMAT is Python's; ".0f %" shows a share in percent.

`make record` evaluates all marks and fills the README, the data card and the notebooks,
so that no result is typed; the report's abstract and the site's first page are filled
whenever they are made.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_lab.analysis import predictions, sensitivity, veto
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.core import estimates, wording, words
from paraguard_utils.corpus import fidelity, gates
from paraguard_utils.errors import DataError
from paraguard_utils.labels import annotations
from paraguard_utils.models import trace_store
from paraguard_utils.report import findings, paper, tables
from paraguard_utils.schemas import Table
from paraguard_utils.settings import CORPUS, OLD_TWINS, TWINS
from paraguard_utils.text import replace_control

NUMBERS_TABLE = "numbers"
NUMBER_PLACE = re.compile(r"(?s)<!--=(\w[^\n]*?)-->.*?<!--=-->")
_MARK = re.compile(r"(\w+)(?:\[(.+?)\])?(?:\.(.+?))?(?::([^:\]]+))?")
_EXAMPLE, _MAX_REFUSAL = (
    "qwen2.5-coder-1.5b-instruct-q4_k_m--safety",
    80,
)  # system; characters of a plain refusal


def fill_numbers(markdown: str, numbers: Table) -> str:
    """Put the numbers (key, text) into their places.

    A mark that is none of the keys is a DataError.
    """
    known = numbers.set_index("key")["text"]

    def text(place: re.Match[str]) -> str:
        if place[1] not in known:
            raise DataError(
                f"there is no number {place[1]!r} for {place[0]!r}; see"
                " numbers.collect_numbers"
            )
        return f"<!--={place[1]}-->{known[place[1]]}<!--=-->"

    return NUMBER_PLACE.sub(text, markdown)


def remove_marks(markdown: str) -> str:
    """Return a text with its numbers, but without their marks."""
    return re.sub(r"<!--=.*?-->", "", markdown)


def collect_numbers(store: stores.Store, files: Sequence[Path] = ()) -> Table:
    """Evaluate the marks of files, or of all documents, in order: key and text.

    DataError for a mark without rows.
    """
    notebooks = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
    files = files or [
        paths.ROOT / "README.md",
        paths.ROOT / "data" / "README.md",
        *notebooks,
    ]
    read: dict[str, pd.DataFrame] = {}
    marks = (
        mark
        for path in files
        for mark in NUMBER_PLACE.findall(path.read_text(encoding="utf-8"))
    )
    return pd.DataFrame(
        {mark: evaluate_mark(mark, store, read) for mark in marks}.items(),
        columns=["key", "text"],
    )


def evaluate_mark(mark: str, store: stores.Store, read: dict[str, pd.DataFrame]) -> str:
    """Return the text of a mark; tables are kept in `read`."""
    parts = _MARK.fullmatch(mark)
    if not parts:
        raise DataError(f"{mark!r} is not TABLE[ROWS].COLUMN:FORMAT")
    name, rows, columns, style = parts.groups()
    if name not in read:
        benchmark = paths.BENCHMARKS_FOLDER / f"{name}.csv"
        if name in DERIVED_TABLES:
            read[name] = DERIVED_TABLES[name](store)
        else:
            read[name] = (
                stores.read_file(benchmark, "tables")
                if benchmark.is_file()
                else store.read("tables", name)
            )
    frame = read[name].query(rows, engine="python") if rows else read[name]
    if not columns:
        return f"{len(frame):,}"
    if frame.empty:
        raise DataError(f"{mark!r} selects no row")
    return " of ".join(
        _shown(frame, column, style or "") for column in columns.split(" of ")
    )


def _shown(frame: pd.DataFrame, column: str, style: str) -> str:
    """Return the values of a column or an expression as prose shows them."""
    if column.endswith("±"):
        (row,) = frame.to_dict("records")
        return tables.format_estimate(row, column[:-1], int(style.strip(".f") or 3))
    values = pd.Series(
        frame[column] if column in frame else frame.eval(column, engine="python")
    )
    if values.dtype == bool:
        return f"{values.sum()} of {len(values)}"
    if not pd.api.types.is_numeric_dtype(values):
        return " to ".join(dict.fromkeys(values))
    if not np.isfinite(values).any():
        return "–"
    style = style or ("," if values.dtype.kind == "i" else "g")
    ends = np.nanmin(values), np.nanmax(values)
    texts = [
        f"{100 * end:{style[:-2]}} %" if style.endswith(" %") else format(end, style)
        for end in ends
    ]
    return " to ".join(dict.fromkeys(texts))


def _judged(store: stores.Store) -> pd.DataFrame:
    """Return the rows of Table 1, with its floors, that rest on enough rejections and
    mixed clusters.
    """
    table = store.read("tables", "table1_systems")
    table = table.merge(
        store.read("tables", "table1_floors"), on=["system", "interpretation"]
    )
    return table[~tables.too_few_for_excess(table)]


def _twins(store: stores.Store, name: str = TWINS) -> pd.DataFrame:
    """Count unsafe twins, and say how far form alone tells them from the clusters they
    belong to.
    """
    twins = store.read("corpus", name)
    auc = fidelity.measure_twin_auc(
        unsafe.keep_with_twin(store.read("corpus", CORPUS), twins), twins
    )
    return pd.DataFrame(
        [{"prompts": len(twins), "clusters": twins["cluster_id"].nunique()} | auc]
    )


def _example(store: stores.Store) -> pd.DataFrame:
    """Return the shortest plainly refused request of the sheet that shares few words
    with its accepted paraphrase.
    """
    sheet = store.read("tables", f"confused_refusals_{_EXAMPLE}")
    sides = sheet[["paraphrase", "rejected_prompt"]].map(words.split_words)
    chosen = sheet["rejected_answer"].str.len() <= _MAX_REFUSAL
    chosen &= np.array(
        [
            words.jaccard(*pair) < wording.LOW_OVERLAP
            for pair in sides.itertuples(index=False)
        ]
    )
    row = sheet.loc[sheet.loc[chosen, "rejected_prompt"].str.len().idxmin()].map(
        lambda cell: _quoted(str(cell))
    )
    names = {
        "paraphrase": "answered",
        "paraphrase_answer": "answer",
        "rejected_prompt": "refused",
    }
    return row.rename(names | {"rejected_answer": "refusal"}).to_frame().T


def _quoted(text: str) -> str:
    """Return the beginning of a text, as one line of Markdown."""
    line, most = replace_control(" ".join(text.split())), 2 * _MAX_REFUSAL
    return tables.escape_markdown(
        line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + " ..."
    )


def _costs(store: stores.Store) -> pd.DataFrame:
    """Return the minutes, and the most gigabytes, that asking a system all prompts took
    on the recording machine.
    """
    size, names = (
        len(store.read("corpus", CORPUS)),
        registry.published_systems("chat").index,
    )
    return pd.DataFrame(
        [
            {"system": name} | trace_store.asking_cost(store, CORPUS, name, size)
            for name in names
        ]
    )


def _weights(store: stores.Store) -> pd.DataFrame:
    """Say of each system whether its excess lies above 0 under all weights."""
    table = store.read("tables", "sensitivity")
    rows = table[
        (table["dimension"] == "weights") & (table["n"] >= estimates.MIN_REFUSALS)
    ]
    return (
        (rows["excess_low"] > 0)
        .groupby(rows["system"])
        .all()
        .rename("above")
        .reset_index()
    )


def _worlds(store: stores.Store) -> pd.DataFrame:
    """Return how far DR falls from the rarest to the most frequent refusals, by the
    correlation in known worlds.
    """
    table = stores.read_file(paths.BENCHMARKS_FOLDER / "known_truth.csv", "tables")
    rows = table.query("wording == 'dice' and measure == 'dr' and correlation > 0")
    by_rate = rows.pivot(index="correlation", columns="frr", values="mean")
    return (by_rate.iloc[:, 0] - by_rate.iloc[:, -1]).rename("dr_falls").reset_index()


def count_claims(store: stores.Store) -> pd.DataFrame:
    """Count the comparisons that confirm each of the paper's claims, by reading, with
    the verdicts.

    `store` has the tables of 03, 04 and 05; what was counted on public benchmarks may
    be the record's. Returns `findings.decide_claims`, with short names of the claims,
    and testable: how many comparisons can be judged.
    """
    cohorts = [
        store.read("tables", "table2_claims").query("tau == 0.60"),
        findings.count_cohort_claims(store.read_earlier("tables", "public_cohorts")),
    ]
    claims = [
        *(
            table.assign(claim=table["claim"].map(findings.COHORT_CLAIM_KEYS))
            for table in cohorts
        ),
        findings.count_similarity_claim(store.read("tables", "ci_correlations")).assign(
            claim="similarity"
        ),
        findings.count_guard_claim(store.read("tables", "table3_guards")).assign(
            claim="guards"
        ),
    ]
    found = findings.decide_claims(pd.concat(claims))
    return found.assign(testable=found[findings.CLAIM_OUTCOMES].sum(axis="columns"))


def _vetoes(store: stores.Store) -> pd.DataFrame:
    """Return the vetoes that enough refusals judge, and whether they beat chance in
    nearly all halves.
    """
    table = store.read("tables", "vetoes")
    table = table[veto.has_enough_rejections(table)]
    return table.assign(
        better=table["beats_chance"] >= veto.MIN_BETTER_SHARE, halves=veto.N_HALVES
    )


def _writer(store: stores.Store) -> pd.DataFrame:
    """Return by fate what became of a model's candidates, and whether they passed all
    gates but the judge.
    """
    table = store.read("tables", "writer_yield")
    return table.assign(
        gated=table["fate"].isin(
            ["kept", *gates.SELECTION_REASONS, *gates.JUDGE_REASONS]
        )
    )


def _annotations(store: stores.Store) -> pd.DataFrame:
    """Count the answers that were read by system and cluster."""
    read = annotations.read_annotations()
    return (
        read.groupby(["system", read["prompt_id"].str.rpartition("-")[0]])
        .size()
        .to_frame("n")
    )


DERIVED_TABLES: dict[str, Callable[[stores.Store], pd.DataFrame]] = {
    "claims": count_claims,
    "costs": _costs,
    "example": _example,
    "intent": lambda store: fidelity.count_kept_intents(store.read("corpus", CORPUS)),
    "judged": _judged,
    "judged_vetoes": _vetoes,
    "judged_weights": _weights,
    "known_worlds": _worlds,
    "minutes": (
        lambda store: (
            store.read("tables", "notebook_minutes")
            .set_index("notebook")[["minutes"]]
            .T
        )
    ),
    "orders": lambda store: sensitivity.count_sure_orders(
        store.read("tables", "sensitivity_orders"), store.read("tables", "sensitivity")
    ),
    "paper": lambda store: paper.read_paper_values().reset_index(),
    "proxy_predictions": lambda store: predictions.judge_predictions(
        {"proxies": store.read("tables", "proxies")}
    ),
    "read_clusters": _annotations,
    "twin_predictions": lambda store: predictions.judge_predictions(
        {"twins_compared": store.read("tables", "twins_compared")}
    ),
    "twins": _twins,
    "old_twins": partial(_twins, name=OLD_TWINS),
    "writer_fates": _writer,
}
"""Tables that are not recorded, made from those that are."""
