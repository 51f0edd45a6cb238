"""Say whether paraphrases still mean what their seed means.

People and models read them (`docs/method.md`, Corpus). People mark a sheet of sampled
pairs (`paraguard corpus sheet`, `paraguard corpus read`), or one that the explorer
saves, whose pairs are a refused phrasing and its nearest accepted paraphrase.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.core.inference import estimate_kappa, exact_share
from paraguard_lab.corpus.upstream import read_upstream_csv
from paraguard_utils import paths, stores
from paraguard_utils.core.estimates import (
    SEED,
    ClusterBootstrap,
    Strings,
    to_columns,
)
from paraguard_utils.core.strategies import SEED_STRATEGY, STRATEGIES
from paraguard_utils.errors import DataError
from paraguard_utils.schemas import Candidates, Corpus, Seeds, Table

INTENT_MARKS = ("same intent", "shifted", "unsure")
"""What a reader may write beside a pair."""

YES_OR_NO = ("yes", "no", "unsure")
SHEET_QUESTIONS = {
    "mark": INTENT_MARKS,
    "refusal": YES_OR_NO,
    "harmless": YES_OR_NO,
    "natural": YES_OR_NO,
}
"""Columns for the reader, and what they may hold.

Every sheet has `mark`; some also ask whether an answer is a refusal, or a paraphrase
harmless and natural English."""

SHEET_COLUMNS = ("prompt_id", "strategy", "seed", "paraphrase", "mark", "comment")
"""The columns of every sheet; `mark` and `comment` are the reader's."""

AUDITED_SHARE = 0.05  # share of the passing candidates that people are to read


def draw_sheet(corpus: Corpus, n: int = 100, seed: int = SEED) -> pd.DataFrame:
    """Draw variants for people to mark, the strategies in turn.

    Parameters
    ----------
    corpus : Corpus
    n : int
        How many; all if there are fewer.
    seed : int
        Of the draw and of the order.

    Returns
    -------
    DataFrame
        `SHEET_COLUMNS` in random order, `mark` and `comment` empty.
    """
    generator = np.random.default_rng(seed)
    variants = corpus[corpus["variant"] > 0]
    variants = variants.iloc[generator.permutation(len(variants))]
    turn = variants.groupby("strategy").cumcount().sort_values(kind="stable")
    drawn = variants.loc[turn.index[:n]]
    drawn = drawn.iloc[generator.permutation(len(drawn))]
    seeds = corpus[corpus["variant"] == 0].set_index("cluster_id")["text"]
    sheet = drawn.rename(columns={"text": "paraphrase"})
    sheet["seed"] = sheet["cluster_id"].map(seeds)
    sheet = sheet.assign(mark="", comment="")
    return sheet[list(SHEET_COLUMNS)].reset_index(drop=True)


def read_sheet(path: str | Path) -> pd.DataFrame:
    """Read a filled-in sheet, marks in lower case, "" if there is none.

    Raises
    ------
    DataError
        A column is missing, a prompt is there twice, or a mark is not one of
        `SHEET_QUESTIONS`.
    """
    path = Path(path)
    columns = [name for name in SHEET_COLUMNS if name != "comment"]
    advice = "fill in a sheet as it was written"
    rows = read_upstream_csv(path, columns, advice)
    for column, marks in SHEET_QUESTIONS.items():
        if column not in rows:
            continue
        rows[column] = rows[column].str.strip().str.lower()
        is_mark = rows[column].isin(["", *marks])
        problem = f"is not one of {', '.join(marks)}"
        stores.check_fields(path, rows[column], is_mark, problem)
    is_first = ~rows["prompt_id"].duplicated()
    stores.check_fields(path, rows["prompt_id"], is_first, "stands there twice")
    return rows


def count_topical_seeds(seeds: Seeds, annotations: pd.DataFrame) -> Table:
    """Count the seeds whose category is their subject, and how far readers agree on it.

    Parameters
    ----------
    seeds : pandas.DataFrame
        Columns seed_id, category, topical ("yes" if the category is the subject).
    annotations : pandas.DataFrame
        Columns seed_id, first, second: what two readers say.

    Returns
    -------
    pandas.DataFrame
        category ("all" last), seeds, topical, share (of those stated) with its exact
        95 % interval; of the annotated seeds read, equal and Cohen's kappa with a
        bootstrap interval over seeds (NaN if nobody read them, or readers used a single
        mark).
    """
    rows = []
    categories = sorted(set(seeds["category"]))
    for category, chosen in iterate_groups(seeds, "category", categories):
        topical = (chosen["topical"] == "yes").sum()
        stated = (chosen["topical"] != "unstated").sum()
        read = chosen.merge(annotations, on="seed_id")
        clusters = ClusterBootstrap(chosen["seed_id"])
        agreement = _agreement(clusters, read["seed_id"], read["first"], read["second"])
        counts = {"category": category, "seeds": len(chosen), "topical": topical}
        share = exact_share(topical, stated)
        rows.append(counts | share | {"read": len(read)} | agreement)
    return pd.DataFrame(rows)


def iterate_groups(
    frame: pd.DataFrame, column: str, names: Iterable[str]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each name and the rows that have it in a column, then "all" with all."""
    for name in names:
        yield name, frame[frame[column] == name]
    yield "all", frame


def _agreement(
    clusters: ClusterBootstrap, ids: Strings, first: Strings, second: Strings
) -> dict[str, float]:
    """Return how many of two readers' marks are equal, and Cohen's kappa."""
    equal = (np.asarray(first) == np.asarray(second)).sum()
    kappa = estimate_kappa(clusters, ids, first, second)
    return {"equal": equal} | to_columns({"kappa": kappa})


def count_candidate_annotations(annotations: pd.DataFrame) -> Table:
    """Count what two readers say of candidates.

    Parameters
    ----------
    annotations : pandas.DataFrame
        Columns group, seed_id, first_same, second_same, first_natural, second_natural.

    Returns
    -------
    pandas.DataFrame
        group, question, read, yes (both readers), share (of those read) with its 95 %
        bootstrap interval over seeds, equal (both readers say the same), Cohen's kappa
        with its interval (NaN if both use a single mark).
    """
    questions = {"same": "asks for the same", "natural": "is natural English"}
    rows = []
    for group, read in annotations.groupby("group", sort=False):
        seeds = read["seed_id"]
        clusters = ClusterBootstrap(seeds)
        for name, question in questions.items():
            first = read[f"first_{name}"]
            second = read[f"second_{name}"]
            both = (first == "yes") & (second == "yes")
            counts = {
                "group": group,
                "question": question,
                "read": len(read),
                "yes": both.sum(),
            }
            share = clusters.share(seeds, both)
            agreement = _agreement(clusters, seeds, first, second)
            rows.append(counts | to_columns({"share": share}) | agreement)
    return pd.DataFrame(rows)


def count_kept_intents(corpus: Corpus) -> Table:
    """Count by strategy the variants that keep their seed's request.

    Two language models read variants beside their seeds, in random order and without
    the strategy: would one answer serve both requests in all that they ask?

    Returns
    -------
    pandas.DataFrame
        strategy ("all" last), read, same (share that both readers call the same) with
        its exact 95 % interval, equal (both readers say the same).
    """
    marks = stores.read_file(paths.DATA / "intent_annotations.csv", "tables")
    marked = marks.merge(corpus[["prompt_id", "strategy"]], on="prompt_id")
    rows = []
    for strategy, read in iterate_groups(marked, "strategy", STRATEGIES):
        same = (read[["first", "second"]] == "yes").all(axis=1).sum()
        row = {"strategy": strategy, "read": len(read)}
        row |= exact_share(same, len(read), "same")
        row["equal"] = (read["first"] == read["second"]).sum()
        rows.append(row)
    return pd.DataFrame(rows)


def sheet_kappa(
    first: pd.DataFrame, second: pd.DataFrame, column: str = "mark"
) -> dict[str, Any]:
    """Compute Cohen's kappa of two filled-in sheets, over rows that both marked.

    Parameters
    ----------
    first, second : pandas.DataFrame
        As from `read_sheet`.
    column : str
        One of `SHEET_QUESTIONS`.

    Returns
    -------
    dict
        both (rows marked by both), equal, kappa with its bootstrap interval over rows
        (NaN for a single one), note: why kappa is NaN, or "".

    Raises
    ------
    DataError
        The sheets hold other pairs.
    """
    first = first.set_index("prompt_id")
    other = second.set_index("prompt_id").reindex(first.index)
    shown = ["seed", "paraphrase", "answer"]
    is_same = first.filter(shown).equals(other.filter(shown))
    if len(first) != len(second) or not is_same:
        raise DataError(
            "the two sheets do not hold the same pairs; let both readers fill in copies"
            " of one sheet"
        )
    is_marked = (first[column] != "") & (other[column] != "")
    marks = first.loc[is_marked, column]
    other_marks = other.loc[is_marked, column]
    n_marks = len({*marks, *other_marks})
    if n_marks == 0:
        undefined = to_columns({"kappa": (np.nan, np.nan, np.nan)})
        return {"both": 0, "equal": 0, **undefined, "note": "no pair has two marks"}
    note = "both readers used one and the same mark" if n_marks == 1 else ""
    rows = range(len(marks))
    agreement = _agreement(ClusterBootstrap(rows), rows, marks, other_marks)
    return {"both": len(marks)} | agreement | {"note": note}


# Column of a sheet, the mark that is counted, and how the report calls it
_REPORTED_MARKS = (
    ("mark", "shifted", "pairs shifted"),
    ("refusal", "no", "answers no refusal"),
    ("harmless", "no", "paraphrases not harmless"),
    ("natural", "no", "paraphrases not natural English"),
)


def describe_sheets(sheets: Sequence[pd.DataFrame]) -> list[str]:
    """Describe the marks on one or two filled-in sheets, and how far they agree.

    Parameters
    ----------
    sheets : sequence of DataFrame
        As from `read_sheet`.

    Returns
    -------
    list of str
        Lines of text: by question each reader's marks, then Cohen's kappa.
    """
    lines = []
    for column, counted, what in _REPORTED_MARKS:
        asked = [number for number, sheet in enumerate(sheets) if column in sheet]
        for number in asked:
            marks = sheets[number][column]
            hits = (marks == counted).sum()
            marked = (marks != "").sum()
            share = _in_brackets(exact_share(hits, marked).values())
            lines.append(
                f"reader {number + 1}: {hits} of {marked} marked {what} ({share}),"
                f" {(marks == 'unsure').sum()} unsure,"
                f" {len(marks) - marked} of {len(marks)} not marked"
            )
        if len(asked) == 2:
            both = sheet_kappa(sheets[0], sheets[1], column)
            equal = f"{both['equal']} of {both['both']} equal"
            names = ("kappa", "kappa_low", "kappa_high")
            kappa = both["note"] or _in_brackets([both[name] for name in names])
            lines.append(f"both: {equal}, Cohen's kappa {kappa}")
    return lines


def _in_brackets(estimate: Iterable[float]) -> str:
    value, low, high = estimate
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def write_sheet(files: stores.CorpusFiles, n: int, seed: int) -> str:
    """Write an empty sheet into `fidelity/` and return what to do with it.

    Raise DataError if there is one.
    """
    corpus = files.read("corpus")
    path = files.store.writes / "fidelity" / f"{files.name}.csv"
    where = paths.display_path(path)
    if path.exists():
        raise DataError(f"{where} exists and may hold marks; move it away first")
    drawn = draw_sheet(corpus, n, seed)
    meta = {"corpus": stores.frame_hash(corpus), "seed": seed}
    stores.write_file(path, drawn, "sheet", meta)
    return (
        f"{where}: {len(drawn)} pairs; write one of {', '.join(INTENT_MARKS)} into the"
        " column mark"
    )


def pair_with_seeds(seeds: Seeds, candidates: Candidates) -> pd.DataFrame:
    """Put candidates beside their seeds, as `draw_sheet` takes them.

    Returns prompt_id, cluster_id, variant, strategy, text.
    """
    heads = seeds.assign(strategy=SEED_STRATEGY)
    texts = pd.concat([heads, candidates], ignore_index=True)
    texts["variant"] = texts.groupby("seed_id").cumcount()
    texts["prompt_id"] = texts["seed_id"] + "-" + texts["variant"].astype(str)
    return texts.rename(columns={"seed_id": "cluster_id"})


def write_audit_sheet(
    path: Path, seeds: Seeds, candidates: Candidates, meta: Mapping[str, Any]
) -> str:
    """Write an empty sheet of a share `AUDITED_SHARE` of the candidates.

    A sheet of the same candidates with marks stays.

    Parameters
    ----------
    path : Path
    seeds : Seeds
    candidates : Candidates
        Those that pass.
    meta : mapping
        For the meta file beside the sheet.

    Returns
    -------
    str
        The line that says what to do.

    Raises
    ------
    DataError
        A sheet of other candidates is there and has marks.
    """
    where = paths.display_path(path)
    n = math.ceil(AUDITED_SHARE * len(candidates))
    sheet = draw_sheet(pair_with_seeds(seeds, candidates), n)
    sheet.insert(len(sheet.columns) - 1, "harmless", "")
    sheet.insert(len(sheet.columns) - 1, "natural", "")
    given = ["prompt_id", "strategy", "seed", "paraphrase"]
    if path.is_file():
        earlier = read_sheet(path)
        if (earlier.drop(columns=given) != "").any(axis=None):
            if earlier[given].equals(sheet[given]):
                return f"{where}: the sheet is there, with marks"
            raise DataError(
                f"{where} holds marks on other candidates; move it away first"
            )
    stores.write_file(path, sheet, "sheet", {**meta, "sheet_seed": SEED})
    return (
        f"{where}: {len(sheet)} of them for people to read; write one of"
        f" {', '.join(INTENT_MARKS)} into the column mark, and {', '.join(YES_OR_NO)}"
        " into harmless and natural"
    )
