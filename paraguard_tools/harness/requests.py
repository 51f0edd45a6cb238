"""Requests that other programs ask, and what is measured of the answers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_tools.logs.audit import audit
from paraguard_tools.logs.decisions import Decisions
from paraguard_utils import paths
from paraguard_utils.errors import DataError
from paraguard_utils.unsafe import TWIN_SUFFIX, benign_cluster_of

CORPUS_FILE = (
    paths.DATA / "corpus" / "paraguard_mini.csv"
)  # the benign corpus, which is installed with the package


def read_requests(*files: str | Path) -> pd.DataFrame:
    """Read corpora, by default `CORPUS_FILE`: text, cluster and harmful.

    A twin stands in its harmless cluster.

    DataError if a file cannot be read, or has no columns text and cluster_id.
    """
    parts = []
    for file in files or (CORPUS_FILE,):
        try:
            rows = pd.read_csv(file, dtype=str, keep_default_na=False)[
                ["text", "cluster_id"]
            ]
        except (OSError, KeyError, ValueError) as error:
            raise DataError(
                f"{file}: cannot be read ({error}); pass a CSV file with text and"
                " cluster_id"
            ) from None
        harmful = rows["cluster_id"].str.contains(TWIN_SUFFIX)
        parts.append(
            rows[["text"]].assign(
                cluster=benign_cluster_of(rows["cluster_id"]), harmful=harmful
            )
        )
    return pd.concat(parts, ignore_index=True)


def measure_decisions(rows: pd.DataFrame) -> dict[str, float]:
    """Measure labels of requests, with the columns of `read_requests` and label: x,
    x_low and x_high of each measure.

    The measures are those of `logs.audit.Audit`; all are NaN where no cluster has two
    decisions.
    """
    names = ["frr", "dr", "refused_once", "refused_always", "rephrased1", "rephrased3"]
    if rows["harmful"].any():
        names += ["harmful_refused", "rephrased3_harmful", "rephrased3_difference"]
    try:
        found: Mapping[str, float] = audit(
            Decisions.from_frame(rows, "the answers")
        ).table.iloc[0]
    except DataError:
        found = {}
    return {
        f"{name}{end}": float(found.get(f"{name}{end}", np.nan))
        for name in names
        for end in ("", "_low", "_high")
    }
