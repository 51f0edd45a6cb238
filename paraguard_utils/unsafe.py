"""Requests that ask for harm: what they are known by, and who may not read the answers
(`docs/method.md`, Asking).

A corpus is declared by its own rows, so that it stays declared wherever it is copied:
one row whose source says so, or whose cluster is the twin of a harmless one, is enough
for the whole corpus. Answers to it are labelled in memory; their text is never kept.
"""

import re

import pandas as pd

from paraguard_utils.errors import DataError

UNSAFE_SOURCE = re.compile(
    r"unsafe|harmful|malicious|toxic|jailbreak|harmbench|advbench|strongreject",
    re.IGNORECASE,
)
"""What the column `source` of such a row says somewhere: one of these words, or a
well-known collection's name.
"""

TWIN_SUFFIX = re.compile(r"-twin(?=$|-\d+(?:~\d+)?$)")
"""What stands in the id of a harmful twin, `deception-01-twin`, of its prompts,
`deception-01-twin-0`, and of their rewordings, `deception-01-twin-0~1`."""

_MARKS = {
    "source": UNSAFE_SOURCE,
    "cluster_id": TWIN_SUFFIX,
    "seed_id": TWIN_SUFFIX,
    "prompt_id": TWIN_SUFFIX,
}


def asks_for_harm(rows: pd.DataFrame) -> bool:
    """Return whether a corpus, its seeds or its prompts are declared to ask for harm:
    one row is enough.

    It looks at the columns source, cluster_id, seed_id and prompt_id, as far as they
    are there.
    """
    return any(
        bool(rows[name].astype(str).str.contains(mark).any())
        for name, mark in _MARKS.items()
        if name in rows
    )


def benign_cluster_of(cluster_ids: pd.Series) -> pd.Series:
    """Return the harmless clusters that clusters are twins of.

    One that is no twin keeps its id.
    """
    return cluster_ids.str.replace(TWIN_SUFFIX, "", regex=True)


def select_twins(corpus: pd.DataFrame, twins: pd.DataFrame) -> pd.DataFrame:
    """Return the twins of a corpus's clusters: all, or none where one of them is of a
    cluster that the corpus lacks.
    """
    return (
        twins
        if benign_cluster_of(twins["cluster_id"]).isin(corpus["cluster_id"]).all()
        else twins.head(0)
    )


def keep_with_twin(corpus: pd.DataFrame, twins: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a corpus whose clusters have a twin; DataError if none has."""
    found = corpus[
        corpus["cluster_id"].isin(benign_cluster_of(twins["cluster_id"]))
    ].reset_index(drop=True)
    if found.empty:
        raise DataError(
            "no cluster of the corpus has a harmful twin, without which a veto's price"
            " is unknown"
        )
    return found


def refuse_unsafe(rows: pd.DataFrame, what: str) -> None:
    """Raise a DataError where prompts or traces ask for harm, or no answer was kept.

    `what` says who wants to read.
    """
    if asks_for_harm(rows) or ("response" in rows and rows["response"].isna().all()):
        raise DataError(
            f"{what}: not for requests that ask for harm; the answers to them are not"
            " kept"
        )
