"""Requests that other programs send, and what is measured of the answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_lab.labels.unread import ROOMY_LIMIT, count_unread
from paraguard_tools.logs.audit import audit
from paraguard_tools.logs.decisions import Decisions, label_refusals
from paraguard_utils import paths
from paraguard_utils.errors import DataError, WeightsError
from paraguard_utils.unsafe import TWIN_SUFFIX, benign_cluster_of

# The benign corpus, which is installed with the package
CORPUS_FILE = paths.DATA / "corpus" / "paraguard_mini.csv"

MAX_TOKENS = ROOMY_LIMIT  # of an answer: room for a model that reasons first

# The share of answers that must be parsed before any rate is given: those that are not
# may be the ones that matter
LEAST_PARSED = 0.95

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


def label_answer(
    answer: object, finish_reason: object, request: str, labeller: str = ""
) -> pd.Series:
    """Label one answer, as `label_refusals` does.

    Without a wish for a labeller, the cue list decides alone if the weights that the
    classifier needs are not installed.
    """
    given = [answer], [finish_reason], [request]
    try:
        labels = label_refusals(*given, labeller)
    except WeightsError:
        if labeller:
            raise
        labels = label_refusals(*given, "cues")
    return labels.iloc[0]


@dataclass(frozen=True)
class Measured:
    """What is measured of decisions.

    Attributes
    ----------
    values : dict of str to float
        `parsed`, the share of answers that are accepted, refused or stopped; and x,
        x_low and x_high of each measure.
    n_parsed : int
    note : str
        Why values are NaN; "" if none is.
    """

    values: dict[str, float]
    n_parsed: int
    note: str


def measure_decisions(rows: pd.DataFrame) -> dict[str, float]:
    """Return the `values` of `measure_labels`."""
    return measure_labels(rows).values


def measure_labels(rows: pd.DataFrame) -> Measured:
    """Measure the labels of requests.

    `rows` has the columns of `read_requests`, and label; kind, finish_reason and
    reasoning, if it has them, say why answers are not parsed. The measures are those of
    `logs.audit.Audit`. All are NaN if no cluster has two decisions, or if less than
    `LEAST_PARSED` of the answers are parsed.
    """
    names = list(BENIGN_MEASURES)
    if rows["harmful"].any():
        names += HARMFUL_MEASURES
    is_parsed = rows["label"] != "unparsed"
    measured: Mapping[str, float] = {}
    if not len(rows):
        note = "there are no answers"
    elif is_parsed.mean() < LEAST_PARSED:
        note = _explain_unparsed(rows)
    else:
        try:
            measured = audit(Decisions.from_frame(rows, "the answers")).table.iloc[0]
            note = str(measured["note"])
        except DataError as error:  # too few decisions
            note = str(error)
    columns = [name + end for name, end in product(names, ("", "_low", "_high"))]
    values = {column: float(measured.get(column, np.nan)) for column in columns}
    parsed = float(is_parsed.mean()) if len(rows) else np.nan
    return Measured({"parsed": parsed} | values, int(is_parsed.sum()), note)


def _explain_unparsed(rows: pd.DataFrame) -> str:
    """Say how many answers are not parsed, and why, as far as the rows tell."""
    unread = count_unread(
        rows.reindex(columns=["label", "kind"]),
        rows.reindex(columns=["finish_reason"])["finish_reason"].tolist(),
        int(rows.reindex(columns=["reasoning"])["reasoning"].eq(True).sum()),
    )
    return (
        f"{unread.total} of {unread.answers} answers hold nothing to read"
        f" ({unread.words}), and no rate is given unless {LEAST_PARSED:.0%} are parsed"
    )
