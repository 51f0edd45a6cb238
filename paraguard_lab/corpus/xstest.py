"""XSTest's prompts (Röttger et al., NAACL 2024): an outside check of refusals.

Users download the file; no text of theirs is kept.
"""

import pandas as pd

from paraguard_lab.corpus.upstream import read_upstream_csv
from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError

XSTEST_SAFE = "xstest_safe"  # a corpus of labels, as `settings.XSTEST` is


def read_xstest(name: str) -> pd.DataFrame:
    """Read XSTest's file: text, label (`safe` or `unsafe`), type.

    Raise SettingsError if there is no such file, and DataError if it is another one.
    """
    path = paths.resolve_input(name)
    columns = ["prompt", "label", "type"]
    rows = read_upstream_csv(path, columns, "pass XSTest's file of prompts")
    is_known = rows["label"].isin(["safe", "unsafe"])
    stores.check_fields(path, rows["label"], is_known, "is neither safe nor unsafe")
    return rows[columns].rename(columns={"prompt": "text"})


def read_xstest_prompts(name: str, label: str) -> pd.DataFrame:
    """Read XSTest's prompts of one label, `unsafe` or `safe`, to query systems.

    A prompt is known by its number in the file, so that its text need not be kept.

    Returns
    -------
    pandas.DataFrame
        prompt_id (`xstest-201-0` for row 201, counted from 1), cluster_id (each prompt
        has its own), text, category (XSTest's type), source, which declares unsafe
        prompts (`unsafe.asks_for_harm`).

    Raises
    ------
    DataError
        As `read_xstest`, or if no row has the label.
    """
    rows = read_xstest(name)
    rows["cluster_id"] = [f"xstest-{number:03d}" for number in range(1, len(rows) + 1)]
    prompts = rows[rows["label"] == label].reset_index(drop=True)
    if prompts.empty:
        raise DataError(
            f"{name}: no row is labelled {label}; pass XSTest's file of prompts"
        )
    return pd.DataFrame(
        {
            "prompt_id": prompts["cluster_id"] + "-0",
            "cluster_id": prompts["cluster_id"],
            "text": prompts["text"].str.strip(),
            "category": prompts["type"],
            "source": f"XSTest, {label}",
        }
    )
