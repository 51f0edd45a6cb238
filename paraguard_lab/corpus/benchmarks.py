"""Read seeds from public benchmarks' upstream files (`docs/method.md`, Corpus).

OR-Bench (Cui et al., arXiv 2405.20947), USEBench (Mai et al., WWW 2025, doi
10.1145/3696410.3714632) and PHTest (An et al., COLM 2024, arXiv 2409.00598). Users
download the originals; this project contains no text of theirs. USEBench's benign part,
E-Bench, is word for word in PHTest, so rows are merged across sources.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_lab.corpus.upstream import read_upstream_csv
from paraguard_utils import paths, stores
from paraguard_utils.core.estimates import SEED
from paraguard_utils.errors import DataError
from paraguard_utils.schemas import Seeds
from paraguard_utils.text import match_key


class Benchmark(NamedTuple):
    """A public benchmark.

    Attributes
    ----------
    source : str
        What a row's `source` says.
    text, label, category, number : str
        Its columns: the request, its harmfulness (harmless or controversial), its
        category and its number. None if it has no such column.
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
"""A text that is in several keeps the row of the first of them."""


def read_benchmarks(
    files: Mapping[str, str | Path], labels: Sequence[str]
) -> tuple[Seeds, pd.DataFrame]:
    """Read seeds from benchmark files.

    Parameters
    ----------
    files : mapping of str to path
        By key of `BENCHMARKS`.
    labels : sequence of str
        Harmfulness labels; rows with others are left out. A benchmark without labels
        is harmless by its authors' word.

    Returns
    -------
    seeds : pandas.DataFrame
        seed_id (benchmark and upstream number), text, source (all benchmarks that hold
        the text, joined with " + "), category; one row per text, compared by words.
    left_out : pandas.DataFrame
        source, reason, rows: how many rows were left out and why.

    Raises
    ------
    DataError
        A file lacks a column, repeats a number, is not UTF-8 CSV, or holds nothing.
    SettingsError
        There is no such file.
    """
    names = [name for name in BENCHMARKS if name in files]
    frames = [_read_benchmark(name, str(files[name])) for name in names]
    rows = pd.concat(frames, ignore_index=True)
    rows["key"] = rows["text"].map(match_key)
    is_fitting = (rows["key"] != "") & rows["label"].isin(labels)
    is_repeated = rows["key"].where(is_fitting).duplicated() & is_fitting
    conditions = [rows["key"] == "", ~is_fitting, is_repeated]
    reasons = ["blank", "label is " + rows["label"], "text is in an earlier row"]
    rows["reason"] = np.select(conditions, reasons, "")
    seeds = rows[rows["reason"] == ""].reset_index(drop=True)
    if seeds.empty:
        named = ", ".join(str(file) for file in files.values())
        raise DataError(f"{named}: no row is labelled {' or '.join(labels)}")
    sources = rows[is_fitting].groupby("key")["source"].agg(_join_distinct)
    seeds["source"] = seeds["key"].map(sources)
    groups = rows[rows["reason"] != ""].groupby(["source", "reason"], sort=False)
    left_out = groups.size().rename("rows").reset_index()
    return seeds[["seed_id", "text", "source", "category"]], left_out


def _join_distinct(names: pd.Series) -> str:
    return " + ".join(names.unique())


def _read_benchmark(name: str, file: str) -> pd.DataFrame:
    """Read a benchmark's rows: seed_id, text, source, category, label."""
    path = paths.resolve_input(file)
    benchmark = BENCHMARKS[name]
    names = (benchmark.text, benchmark.label, benchmark.category, benchmark.number)
    columns = [column for column in names if column]
    advice = f"{benchmark.source} has it, so pass its upstream file"
    rows = read_upstream_csv(path, columns, advice)
    numbers = rows.get(benchmark.number, pd.Series(range(1, len(rows) + 1)).astype(str))
    stores.check_fields(path, numbers, ~numbers.duplicated(), "stands there twice")
    return pd.DataFrame(
        {
            "seed_id": name + "-" + numbers.str.zfill(5),
            "text": rows[benchmark.text].str.strip(),
            "source": benchmark.source,
            "category": _lower(rows, benchmark.category, "unstated"),
            "label": _lower(rows, benchmark.label, "harmless"),
        }
    )


def _lower(rows: pd.DataFrame, column: str | None, default: str) -> pd.Series | str:
    """Return a column in lower case, or what stands for it if there is none."""
    return rows[column].str.lower() if column else default


def order_by_strata(seeds: pd.DataFrame, seed: int = SEED) -> pd.DataFrame:
    """Order seeds so that the first n are a stratified random sample, for every n.

    The strata are source and category. Within a stratum the order is random. Row i of a
    stratum of m rows is placed at (i + u) / m, with one u, uniform in [0, 1), for the
    whole stratum, so strata are drawn in proportion to their sizes.
    """
    generator = np.random.default_rng(seed)
    place = np.empty(len(seeds))
    strata = seeds.reset_index(drop=True).groupby(["source", "category"], sort=True)
    for _, rows in strata:
        order = generator.permutation(len(rows))
        positions = np.arange(len(rows)) + generator.random()
        place[rows.index[order]] = positions / len(rows)
    return seeds.iloc[np.argsort(place, kind="stable")].reset_index(drop=True)
