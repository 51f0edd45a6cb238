"""Seeds from public benchmarks, read from the upstream files (`docs/method.md`,
Corpus).

OR-Bench (Cui et al., arXiv 2405.20947), USEBench (Mai et al., WWW 2025, doi
10.1145/3696410.3714632) and PHTest (An et al., COLM 2024, arXiv 2409.00598). Users
download the originals; this project contains no text of theirs. USEBench's benign part,
E-Bench, lies word for word inside PHTest, so rows are merged across sources.
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
    """A public benchmark: what a row's `source` says, and its columns.

    None where it has no such column.
    """

    source: str
    text: str
    label: str | None  # harmfulness: harmless or controversial
    category: str | None
    number: str | None  # the row's own number


BENCHMARKS = {  # a text found in several keeps the row of the first of them
    "phtest": Benchmark("PHTest v0.1", "Request", "Harmfulness", None, "ID"),
    "ebench": Benchmark("USEBench E-Bench", "Request", "Harmfulness", None, None),
    "orbench": Benchmark("OR-Bench Hard-1K", "prompt", None, "category", None),
}


def read_benchmarks(
    files: Mapping[str, str | Path], labels: Sequence[str]
) -> tuple[Seeds, pd.DataFrame]:
    """Read seeds from benchmark files, given by key of `BENCHMARKS`.

    Rows with other harmfulness labels are left out.

    A benchmark without labels is harmless by its authors' word. Returns seed_id
    (benchmark and upstream number), text, source (all benchmarks that hold the text,
    joined with " + "), category, one row a text, compared by words; and source, reason,
    rows: how many rows were left out and why. Raise DataError where a file lacks a
    column, repeats a number, is not UTF-8 CSV, or holds nothing, and SettingsError
    where there is no such file.
    """
    frames = [
        _read(name, paths.resolve_input(str(files[name])))
        for name in BENCHMARKS
        if name in files
    ]
    rows = pd.concat(frames, ignore_index=True)
    rows["key"] = [match_key(text) for text in rows["text"]]
    unfit = [rows["key"] == "", ~rows["label"].isin(labels)]
    rows["reason"] = np.select(unfit, ["blank", "label is " + rows["label"]], "")
    taken = rows[rows["reason"] == ""]
    first = ~taken["key"].duplicated()
    rows.loc[taken.index[~first], "reason"] = "text is in an earlier row"
    sources = taken.groupby("key")["source"].agg(
        lambda found: " + ".join(dict.fromkeys(found))
    )
    seeds = taken[first].assign(source=lambda frame: frame["key"].map(sources))
    left_out = (
        rows[rows["reason"] != ""]
        .groupby(["source", "reason"], sort=False)
        .size()
        .rename("rows")
        .reset_index()
    )
    if seeds.empty:
        raise DataError(
            f"{', '.join(map(str, files.values()))}: no row is labelled"
            f" {' or '.join(labels)}"
        )
    return (
        seeds[["seed_id", "text", "source", "category"]].reset_index(drop=True),
        left_out,
    )


def _read(name: str, path: Path) -> pd.DataFrame:
    benchmark = BENCHMARKS[name]
    columns = [column for column in benchmark[1:] if column]
    rows = stores.read_upstream_csv(
        path, columns, f"{benchmark.source} has it, so pass its upstream file"
    )
    numbers = (
        rows[benchmark.number]
        if benchmark.number
        else pd.Series(np.arange(1, len(rows) + 1).astype(str))
    )
    stores.check_fields(path, numbers, ~numbers.duplicated(), "stands there twice")
    return pd.DataFrame(
        {
            "seed_id": name + "-" + numbers.str.zfill(5),
            "text": rows[benchmark.text].str.strip(),
            "source": benchmark.source,
            "category": (
                rows[benchmark.category].str.lower()
                if benchmark.category
                else "unstated"
            ),
            "label": (
                rows[benchmark.label].str.lower() if benchmark.label else "harmless"
            ),
        }
    )


def read_xstest(name: str) -> pd.DataFrame:
    """Read XSTest's prompts (Röttger et al., NAACL 2024): text, label (`safe`,
    `unsafe`; else DataError), type.
    """
    path = paths.resolve_input(name)
    rows = stores.read_upstream_csv(
        path, ("prompt", "label", "type"), "pass XSTest's file of prompts"
    )
    stores.check_fields(
        path,
        rows["label"],
        rows["label"].isin(["safe", "unsafe"]),
        "is neither safe nor unsafe",
    )
    return rows.rename(columns={"prompt": "text"})[["text", "label", "type"]]


def read_xstest_prompts(name: str, label: str) -> pd.DataFrame:
    """Read XSTest's prompts of one label, `unsafe` or `safe`, to ask systems: an
    outside check of what they refuse.

    No text of theirs is kept: a row is known by its number in the file. Returns
    prompt_id (`xstest-201-0` for the file's row 201, counted from 1), cluster_id (each
    prompt its own), text, category (XSTest's type), source, which declares unsafe ones
    (`unsafe.asks_for_harm`). Raise DataError as `read_xstest`, or where no row has the
    label.
    """
    rows = read_xstest(name)
    rows["cluster_id"] = [f"xstest-{number:03d}" for number in range(1, len(rows) + 1)]
    rows = rows[rows["label"] == label].reset_index(drop=True)
    if rows.empty:
        where = paths.display_path(paths.resolve_input(name))
        raise DataError(
            f"{where}: no row is labelled {label}; pass XSTest's file of prompts"
        )
    rows = rows.assign(
        prompt_id=rows["cluster_id"] + "-0",
        text=rows["text"].str.strip(),
        source=f"XSTest, {label}",
    )
    return rows.rename(columns={"type": "category"})[
        ["prompt_id", "cluster_id", "text", "category", "source"]
    ]


def order_by_strata(seeds: pd.DataFrame, seed: int = SEED) -> pd.DataFrame:
    """Put seeds in an order whose first n rows are, for every n, a stratified random
    sample by source and category.

    Within a stratum the order is random. Row i of a stratum of m rows is placed at (i +
    u) / m, with one u, uniform in [0, 1), for the whole stratum, so strata are drawn in
    proportion to their sizes.
    """
    generator = np.random.default_rng(seed)
    place = np.empty(len(seeds))
    for _, rows in seeds.reset_index(drop=True).groupby(
        ["source", "category"], sort=True
    ):
        order = generator.permutation(len(rows))
        place[rows.index[order]] = (np.arange(len(rows)) + generator.random()) / len(
            rows
        )
    return seeds.iloc[np.argsort(place, kind="stable")].reset_index(drop=True)
