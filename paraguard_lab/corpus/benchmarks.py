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

    @property
    def columns(self) -> list[str]:
        """The columns that its file must have."""
        named = [self.text, self.label, self.category, self.number]
        return [column for column in named if column]


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
    frames = []
    for name in BENCHMARKS:
        if name in files:
            frames.append(_read_benchmark(name, str(files[name])))
    rows = pd.concat(frames, ignore_index=True)
    rows["key"] = [match_key(text) for text in rows["text"]]
    conditions = [rows["key"] == "", ~rows["label"].isin(labels)]
    rows["reason"] = np.select(conditions, ["blank", "label is " + rows["label"]], "")
    fitting = rows[rows["reason"] == ""]
    is_repeated = fitting["key"].duplicated()
    rows.loc[fitting.index[is_repeated], "reason"] = "text is in an earlier row"

    sources = fitting.groupby("key")["source"].agg(_join_distinct)
    seeds = fitting[~is_repeated]
    seeds = seeds.assign(source=seeds["key"].map(sources)).reset_index(drop=True)
    if seeds.empty:
        named = ", ".join(str(file) for file in files.values())
        raise DataError(f"{named}: no row is labelled {' or '.join(labels)}")
    groups = rows[rows["reason"] != ""].groupby(["source", "reason"], sort=False)
    left_out = groups.size().rename("rows").reset_index()
    return seeds[["seed_id", "text", "source", "category"]], left_out


def _join_distinct(names: pd.Series) -> str:
    return " + ".join(names.unique())


def _read_benchmark(name: str, file: str) -> pd.DataFrame:
    """Read a benchmark's rows: seed_id, text, source, category, label."""
    path = paths.resolve_input(file)
    benchmark = BENCHMARKS[name]
    advice = f"{benchmark.source} has it, so pass its upstream file"
    rows = stores.read_upstream_csv(path, benchmark.columns, advice)
    numbers = pd.Series(range(1, len(rows) + 1)).astype(str)
    if benchmark.number:
        numbers = rows[benchmark.number]
    is_first = ~numbers.duplicated()
    stores.check_fields(path, numbers, is_first, "stands there twice")
    seeds = pd.DataFrame({"seed_id": name + "-" + numbers.str.zfill(5)})
    seeds["text"] = rows[benchmark.text].str.strip()
    seeds["source"] = benchmark.source
    seeds["category"] = "unstated"
    seeds["label"] = "harmless"
    if benchmark.category:
        seeds["category"] = rows[benchmark.category].str.lower()
    if benchmark.label:
        seeds["label"] = rows[benchmark.label].str.lower()
    return seeds


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
