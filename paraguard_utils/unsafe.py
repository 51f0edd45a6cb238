"""Recognize requests that ask for harm, and say who may not read the answers.

A corpus is declared by its own rows, so that it stays declared wherever it is copied:
one row whose source says so, or whose cluster is the twin of a harmless one, is enough
for the whole corpus. Answers to it are labelled in memory; their text is never kept
(`docs/method.md`, Asking).
"""

import re

import pandas as pd

from paraguard_utils.errors import DataError
from paraguard_utils.schemas import Corpus

UNSAFE_SOURCE = re.compile(
    r"unsafe|harmful|malicious|toxic|jailbreak|harmbench|advbench|strongreject",
    re.IGNORECASE,
)
"""What the column `source` of such a row contains: one of these words, or the name of a
well-known collection."""

TWIN_SUFFIX = re.compile(r"-twin(?=$|-\d+(?:~\d+)?$)")
"""What is in the id of a harmful twin, `deception-01-twin`, of its prompts,
`deception-01-twin-0`, and of their rewordings, `deception-01-twin-0~1`."""

_MARKS = {
    "source": UNSAFE_SOURCE,
    "cluster_id": TWIN_SUFFIX,
    "seed_id": TWIN_SUFFIX,
    "prompt_id": TWIN_SUFFIX,
}


def asks_for_harm(rows: pd.DataFrame) -> bool:
    """Return whether a corpus, its seeds or its prompts are declared to ask for harm.

    One row is enough. The columns source, cluster_id, seed_id and prompt_id count, as
    far as they are there.

    Examples
    --------
    >>> asks_for_harm(pd.DataFrame({"cluster_id": ["deception-01", "hate-02-twin"]}))
    True
    """
    for name, mark in _MARKS.items():
        if name in rows and rows[name].astype(str).str.contains(mark).any():
            return True
    return False


def benign_cluster_of(cluster_ids: pd.Series) -> pd.Series:
    """Return the harmless clusters that clusters are twins of.

    A cluster that is no twin keeps its id.
    """
    return cluster_ids.str.replace(TWIN_SUFFIX, "", regex=True)


def select_twins(corpus: Corpus, twins: Corpus) -> Corpus:
    """Return the twins of a corpus's clusters.

    There are none if one of the twins is of a cluster that the corpus lacks.
    """
    benign = benign_cluster_of(twins["cluster_id"])
    if benign.isin(corpus["cluster_id"]).all():
        return twins
    return twins.head(0)


def refuse_unsafe(rows: pd.DataFrame, what: str) -> None:
    """Raise a DataError if prompts or traces ask for harm, or no answer was kept.

    `what` says who wants to read.
    """
    is_withheld = "response" in rows and rows["response"].isna().all()
    if asks_for_harm(rows) or is_withheld:
        raise DataError(
            f"{what}: not for requests that ask for harm; the answers to them are not"
            " kept"
        )
