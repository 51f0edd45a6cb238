"""Tell doubles of a row, runs of one text and wordings of one request from one another.

A double says nothing new, and is counted once. Runs of one text differ by chance, and
only wordings show what wording does (`docs/usage.md`, Audit your own decisions).
"""

from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from paraguard_tools.logs.formats.sources import map_text

SameText = Literal["auto", "repeats", "doubles", "wordings"]

MIN_DIFFERING = 0.05
"""Share of repeated texts that come with different rows from which, without ids, a log
is taken to be one of runs."""


class SameTexts(NamedTuple):
    """What rows of the same text are.

    Attributes
    ----------
    kept : numpy.ndarray of bool, shape (n,)
        Whether a row is no double.
    wording : numpy.ndarray of int, shape (n,)
        Which text of a system and a cluster a row has, numbered from 0. Rows without a
        text are wordings of their own.
    repeat : numpy.ndarray of int, shape (n,)
        How many kept rows of the same wording come before.
    """

    kept: np.ndarray
    wording: np.ndarray
    repeat: np.ndarray


def find_same_texts(
    rows: pd.DataFrame, raw: pd.DataFrame, same_text: SameText = "auto"
) -> SameTexts:
    """Find doubles and runs in a log.

    Parameters
    ----------
    rows : DataFrame, n rows
        text ("" if there is none), system, outcome (decision, and answer if there is
        one) and, if the log has them, cluster and repeat (which run this is).
    raw : DataFrame, n rows
        All that the log says of each row, without its texts' meaning.
    same_text : str
        "auto" decides: rows that are equal in everything are doubles, unless the log is
        one of runs without numbers or ids, in which equal rows are expected. "repeats",
        "doubles" and "wordings" say what rows of the same text are.

    Examples
    --------
    >>> rows = pd.DataFrame({"text": ["a", "b", "a"], "system": "s", "outcome": "yes"})
    >>> find_same_texts(rows, rows).kept.tolist()
    [True, True, False]
    """
    n = len(rows)
    kept = np.ones(n, bool)
    if same_text == "wordings":
        return SameTexts(kept, np.arange(n), np.zeros(n, int))
    wording = _number_wordings(rows)
    counts = np.bincount(wording)
    several = counts[wording] > 1
    is_textless = not (rows["text"] != "").any()
    if is_textless and same_text != "repeats":
        kept = _keep_first_period(rows)
    elif several.any() and same_text == "doubles":
        kept = ~_duplicated(wording, rows["outcome"])
    elif several.any() and same_text == "auto":
        kept = _keep_auto(rows, raw, wording, several)
    repeat = np.zeros(n, int)
    if several.any():
        order = pd.Series(wording[kept])
        repeat[kept] = order.groupby(order).cumcount().to_numpy()
    return SameTexts(kept, wording, repeat)


def _number_wordings(rows: pd.DataFrame) -> np.ndarray:
    """Return a number for each text of a system and a cluster."""
    codes = np.zeros(len(rows), np.int64)
    for name in ("system", "cluster", "text"):
        if name in rows:
            codes = _combine(codes, pd.factorize(rows[name])[0])
    blank = np.flatnonzero(rows["text"] == "")
    codes[blank] = codes.max(initial=0) + 1 + np.arange(len(blank))
    return pd.factorize(codes)[0]


def _combine(codes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return a number for each pair of numbers."""
    return pd.factorize(codes * (others.max(initial=0) + 2) + others + 1)[0]


def _duplicated(codes: np.ndarray, *columns: pd.Series) -> np.ndarray:
    """Return whether an earlier row has the same number and values."""
    for column in columns:
        codes = _combine(codes, pd.factorize(column)[0])
    return pd.Series(codes).duplicated().to_numpy()


def _keep_auto(
    rows: pd.DataFrame, raw: pd.DataFrame, wording: np.ndarray, several: np.ndarray
) -> np.ndarray:
    """Return which rows are no doubles, as far as the log itself shows it."""
    identity = np.arange(len(rows), dtype=np.int64)
    places = np.flatnonzero(several)
    part = raw.iloc[places]
    cells = [part.iloc[:, place].tolist() for place in range(part.shape[1])]
    cells.append(rows["outcome"].iloc[places].tolist())
    equal = [hash(tuple(map(str, cell))) for cell in zip(*cells, strict=True)]
    identity[places] = len(rows) + pd.factorize(np.array(equal))[0]
    identity = _combine(wording, identity)
    exact = pd.Series(identity).duplicated().to_numpy()
    if "repeat" in rows and _varies(rows["repeat"], wording):
        return ~_duplicated(wording, rows["repeat"].fillna(""), rows["outcome"])
    period = _find_period(identity)
    if period:
        first = np.arange(len(rows)) < period
        inside = _is_resumed(raw[first], wording[first], exact[first])
        return first & ~(exact & inside)
    return ~(exact & _is_resumed(raw, wording, exact))


def _varies(repeat: pd.Series, wording: np.ndarray) -> bool:
    """Return whether rows of one text have different numbers of a run."""
    codes = pd.factorize(repeat)[0]
    pairs = len(np.unique(_combine(wording, codes)))
    return pairs > wording.max(initial=-1) + 1


def _is_resumed(raw: pd.DataFrame, wording: np.ndarray, exact: np.ndarray) -> bool:
    """Return whether rows that are equal in everything are doubles.

    They are if no text comes with different rows, if something numbers the rows, or if
    few texts are repeated by others than equal rows.
    """
    if not exact.any():
        return False
    rows_of = np.bincount(wording)
    different = np.bincount(wording[~exact], minlength=len(rows_of))
    repeated = rows_of[rows_of > 0] > 1
    differing = different[rows_of > 0] > 1
    if not differing.any():
        return True
    once = raw[~exact]
    for place in range(once.shape[1]):
        values = map_text(once.iloc[:, place])
        if values.is_unique and values.str.len().mean() < 80:
            return True
    is_even = len(np.unique(rows_of[rows_of > 0])) == 1
    return not is_even and differing.sum() < MIN_DIFFERING * repeated.sum()


def _find_period(codes: np.ndarray) -> int:
    """Return after how many rows a log begins anew, to its end; 0 if it does not."""
    n = len(codes)
    for period in range(1, n // 2 + 1):
        if n % period or codes[period] != codes[0]:
            continue
        if np.array_equal(codes[period:], codes[:-period]):
            return period
    return 0


def _keep_first_period(rows: pd.DataFrame) -> np.ndarray:
    """Return the first copy of a log without texts that was appended to itself.

    A copy must have a cluster decided both ways, so that the order of other logs is not
    taken for copies.
    """
    codes = np.zeros(len(rows), np.int64)
    for name in ("system", "cluster", "outcome"):
        if name in rows:
            codes = _combine(codes, pd.factorize(rows[name])[0])
    period = _find_period(codes)
    if period and "cluster" in rows:
        first = rows.iloc[:period]
        outcomes = first.groupby(["system", "cluster"], observed=True)["outcome"]
        if (outcomes.nunique() > 1).any():
            return np.arange(len(rows)) < period
    return np.ones(len(rows), bool)
