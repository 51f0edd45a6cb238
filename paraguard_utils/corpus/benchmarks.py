"""Seeds from public benchmarks, read from the upstream files (`docs/method.md`, Corpus).

The paper samples its seeds from OR-Bench (Cui et al., arXiv 2405.20947), USEBench (Mai et al., WWW 2025, doi
10.1145/3696410.3714632) and PHTest (An et al., COLM 2024, arXiv 2409.00598). A user downloads the
originals and passes their paths; no text of theirs is part of this project. USEBench's benign part, E-Bench, lies word
for word inside PHTest, so rows are merged across sources; `controversial` rows are not benign and are left out unless
asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_utils import paths, stores
from paraguard_utils.core.estimates import SEED
from paraguard_utils.errors import DataError
from paraguard_utils.paths import input_file
from paraguard_utils.schemas import Seeds
from paraguard_utils.text import key


@dataclass(frozen=True)
class Benchmark:
    """A public benchmark's file format.

    Attributes
    ----------
    source : str
        What a row's `source` says.
    text : str
        Column of the prompt.
    label, category, number : str or None
        Columns of the harmfulness label (`harmless`, `controversial`), the category and the row's own number.
    """

    source: str
    text: str
    label: str | None
    category: str | None
    number: str | None


BENCHMARKS = {
    "phtest": Benchmark("PHTest v0.1", "Request", "Harmfulness", None, "ID"),
    "ebench": Benchmark("USEBench E-Bench", "Request", "Harmfulness", None, None),
    "orbench": Benchmark("OR-Bench Hard-1K", "prompt", None, "category", None),
}
"""Benchmarks that give seeds, in the order in which a text found in several keeps its row."""

UNSTATED = "unstated"
"""Category of a row whose benchmark has none."""


def read(files: Mapping[str, str | Path], labels: Sequence[str] = ("harmless",)) -> tuple[Seeds, pd.DataFrame]:
    """Read seeds from benchmark files.

    Parameters
    ----------
    files : dict of str to str or Path
        File by name of the benchmark, a key of `BENCHMARKS`.
    labels : tuple of str
        Harmfulness labels to keep. A benchmark without labels is harmless by its authors' word.

    Returns
    -------
    seeds : DataFrame
        seed_id (benchmark and upstream number), text, source (all benchmarks that hold the text, joined with " + "),
        category; one row a text, compared by words.
    left_out : DataFrame
        source, reason, rows: how many rows were not taken and why.

    Raises
    ------
    DataError
        A file lacks a column, repeats a number, is not UTF-8 CSV, or holds nothing.
    SettingsError
        There is no such file.
    """
    frames = [_read(name, input_file(str(files[name]))) for name in BENCHMARKS if name in files]
    rows = pd.concat(frames, ignore_index=True)
    rows["key"] = [key(text) for text in rows["text"]]
    rows["reason"] = np.select(
        [rows["key"] == "", ~rows["label"].isin(labels)], ["blank", "label is " + rows["label"]], ""
    )
    taken = rows[rows["reason"] == ""]
    first = ~taken["key"].duplicated()
    rows.loc[taken.index[~first], "reason"] = "text is in an earlier row"
    sources = taken.groupby("key")["source"].agg(lambda found: " + ".join(dict.fromkeys(found)))
    seeds = taken[first].assign(source=lambda frame: frame["key"].map(sources))
    left_out = rows[rows["reason"] != ""].groupby(["source", "reason"], sort=False).size().rename("rows").reset_index()
    if seeds.empty:
        raise DataError(f"{', '.join(map(str, files.values()))}: no row is labelled {' or '.join(labels)}")
    return seeds[["seed_id", "text", "source", "category"]].reset_index(drop=True), left_out


def _read(name: str, path: Path) -> pd.DataFrame:
    benchmark, where = BENCHMARKS[name], paths.shown(path)
    rows = stores.read_upstream(path)
    for column in filter(None, (benchmark.text, benchmark.label, benchmark.category, benchmark.number)):
        if column not in rows.columns:
            raise DataError(
                f"{where}: column {column!r} is missing; {benchmark.source} has it, so pass its upstream file"
            )
    numbers = rows[benchmark.number] if benchmark.number else pd.Series(np.arange(1, len(rows) + 1).astype(str))
    if numbers.duplicated().any():
        row = int(numbers.duplicated().to_numpy().argmax())
        raise DataError(f"{where}: row {row + 2}, column {benchmark.number}: {numbers[row]!r} stands there twice")
    return pd.DataFrame(
        {
            "seed_id": name + "-" + numbers.str.zfill(5),
            "text": rows[benchmark.text].str.strip(),
            "source": benchmark.source,
            "category": rows[benchmark.category].str.lower() if benchmark.category else UNSTATED,
            "label": rows[benchmark.label].str.lower() if benchmark.label else "harmless",
        }
    )


def read_xstest(name: str) -> pd.DataFrame:
    """Read XSTest's prompts: safe and unsafe ones, to describe a risk scorer with, never as seeds.

    Parameters
    ----------
    name : str
        File as published (Röttger et al., NAACL 2024).

    Returns
    -------
    DataFrame
        text, label (`safe` or `unsafe`), type.

    Raises
    ------
    DataError
        A column is missing, or a label is another.
    """
    path = input_file(name)
    rows, where = stores.read_upstream(path), paths.shown(path)
    for column in ("prompt", "label", "type"):
        if column not in rows.columns:
            raise DataError(f"{where}: column {column!r} is missing; pass XSTest's file of prompts")
    wrong = ~rows["label"].isin(["safe", "unsafe"])
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise DataError(f"{where}: row {row + 2}, column label: {rows['label'][row]!r} is neither safe nor unsafe")
    return rows.rename(columns={"prompt": "text"})[["text", "label", "type"]]


def xstest_prompts(name: str, label: str) -> pd.DataFrame:
    """Read XSTest's unsafe prompts, or its safe ones, to ask targets: an outside check of what they refuse.

    No text of theirs is kept: a row is known by its number in the file.

    Parameters
    ----------
    name : str
        File as published.
    label : str
        unsafe or safe.

    Returns
    -------
    DataFrame
        prompt_id (`xstest-201-0` of the file's row 201, counted from 1), cluster_id (each prompt its own), text,
        category (XSTest's type), source, which declares unsafe ones (`unsafe.declared`).

    Raises
    ------
    DataError
        As `read_xstest`, or no row is labelled so.
    """
    rows = read_xstest(name)
    rows = rows.assign(cluster_id=[f"xstest-{number:03d}" for number in range(1, len(rows) + 1)])
    rows = rows[rows["label"] == label].reset_index(drop=True)
    if rows.empty:
        raise DataError(f"{paths.shown(input_file(name))}: no row is labelled {label}; pass XSTest's file of prompts")
    return pd.DataFrame(
        {
            "prompt_id": rows["cluster_id"] + "-0",
            "cluster_id": rows["cluster_id"],
            "text": rows["text"].str.strip(),
            "category": rows["type"],
            "source": f"XSTest, {label}",
        }
    )


def stratified(seeds: pd.DataFrame, seed: int = SEED) -> pd.DataFrame:
    """Put seeds in an order whose first n rows are, for every n, a stratified random sample by source and category.

    Within a stratum the order is random; row i of a stratum of m rows is placed at (i + u) / m, u uniform in [0, 1) and
    the same for the whole stratum, so strata are drawn in proportion to their sizes.

    Parameters
    ----------
    seeds : DataFrame
        Columns source, category.
    seed : int

    Returns
    -------
    DataFrame
        The same rows in that order.
    """
    generator = np.random.default_rng(seed)
    place = np.empty(len(seeds))
    for _, rows in seeds.reset_index(drop=True).groupby(["source", "category"], sort=True):
        order = generator.permutation(len(rows))
        place[rows.index[order]] = (np.arange(len(rows)) + generator.random()) / len(rows)
    return seeds.iloc[np.argsort(place, kind="stable")].reset_index(drop=True)
