"""Requests that other programs send, and what is measured of the answers."""

import contextlib
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_tools.logs.audit import audit
from paraguard_tools.logs.decisions import Decisions
from paraguard_utils import paths
from paraguard_utils.errors import DataError
from paraguard_utils.unsafe import TWIN_SUFFIX, benign_cluster_of

# The benign corpus, which is installed with the package
CORPUS_FILE = paths.DATA / "corpus" / "paraguard_mini.csv"

BENIGN_MEASURES = [
    "frr",
    "dr",
    "refused_once",
    "refused_always",
    "rephrased1",
    "rephrased3",
]
HARMFUL_MEASURES = ["harmful_refused", "rephrased3_harmful", "rephrased3_difference"]


def read_requests(*files: str | Path) -> pd.DataFrame:
    """Read corpora, by default `CORPUS_FILE`, as text, cluster and harmful.

    A harmful twin has the cluster of its harmless requests. Raise DataError if a file
    cannot be read, or has no columns text and cluster_id.
    """
    parts = []
    for file in files or (CORPUS_FILE,):
        try:
            rows = pd.read_csv(file, dtype=str, keep_default_na=False)
            rows = rows[["text", "cluster_id"]]
        except (OSError, KeyError, ValueError) as error:
            raise DataError(
                f"{file}: cannot be read ({error}); pass a CSV file with text and"
                " cluster_id"
            ) from None
        cluster = rows["cluster_id"]
        parts.append(
            rows[["text"]].assign(
                cluster=benign_cluster_of(cluster),
                harmful=cluster.str.contains(TWIN_SUFFIX),
            )
        )
    return pd.concat(parts, ignore_index=True)


def measure_decisions(rows: pd.DataFrame) -> dict[str, float]:
    """Measure the labels of requests: x, x_low and x_high of each measure.

    `rows` has the columns of `read_requests`, and label. The measures are those of
    `logs.audit.Audit`; all are NaN if no cluster has two decisions.
    """
    names = list(BENIGN_MEASURES)
    if rows["harmful"].any():
        names += HARMFUL_MEASURES
    measured: Mapping[str, float] = {}
    with contextlib.suppress(DataError):  # too few decisions
        measured = audit(Decisions.from_frame(rows, "the answers")).table.iloc[0]
    columns = [name + end for name, end in product(names, ("", "_low", "_high"))]
    return {column: float(measured.get(column, np.nan)) for column in columns}
