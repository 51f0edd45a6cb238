"""Tell which rows come after a filter's stop in the same conversation.

A model that sees in a conversation that its last answer was stopped often refuses
whatever comes next. Such refusals say little about the request.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from paraguard_tools.answers.canned import find_line
from paraguard_tools.answers.nothing import find_nothing
from paraguard_tools.logs.formats.fields import join_texts
from paraguard_tools.servers import stops

_ASSISTANTS = ("assistant", "model", "ai")
_USERS = ("user", "human")

MAX_TURNS = 50
"""A column whose values have more rows on average names runs or users, and no
conversations, unless the user names it.
"""


def has_earlier_stop(messages: Any) -> bool:
    """Return whether a filter stopped an answer before a conversation's last request.

    Examples
    --------
    >>> asked = {"role": "user", "content": "How do I fold a crane?"}
    >>> stopped = {"role": "assistant", "content": "[CONTENT_FILTERED]"}
    >>> has_earlier_stop([asked, stopped, asked])
    True
    >>> has_earlier_stop([asked, stopped])
    False
    """
    turns = [one for one in messages or () if isinstance(one, Mapping)]
    places = [n for n, one in enumerate(turns) if one.get("role") in _USERS]
    earlier = turns[: places[-1]] if places else []
    return any(_is_stopped(one) for one in earlier if one.get("role") in _ASSISTANTS)


def _is_stopped(message: Mapping[str, Any]) -> bool:
    """Return whether an assistant's turn is a filter's stop."""
    choice = {"message": message, "finish_reason": message.get("finish_reason")}
    if stops.find_stop({"choices": [choice]}):
        return True
    text = join_texts({"content": message.get("content")}) or ""
    is_placeholder = find_nothing(text) == "blocked" or bool(find_line(text))
    return is_placeholder or stops.find_stop_in_text(text) is not None


def names_conversations(values: pd.Series) -> bool:
    """Return whether a column may say which rows are of one conversation.

    Examples
    --------
    >>> names_conversations(pd.Series(["a", "a", "b"]))
    True
    >>> names_conversations(pd.Series(["run 1"] * 100))
    False
    """
    n_rows, n_names = values.notna().sum(), values.dropna().astype(str).nunique()
    return bool(1 < n_names < n_rows <= MAX_TURNS * n_names)


def find_after_stop(rows: pd.DataFrame) -> np.ndarray:
    """Return which rows come after one of their conversation that a filter stopped.

    Parameters
    ----------
    rows : DataFrame, n rows
        system, conversation ("" if there is none), turn (a number, or NaN throughout)
        and stopped (bool). Rows are in the order of the file, unless turns number them.

    Returns
    -------
    numpy.ndarray of bool, shape (n,)

    Examples
    --------
    >>> rows = pd.DataFrame({"conversation": list("aaab"), "system": "s", "turn": 0.0})
    >>> find_after_stop(rows.assign(stopped=[False, True, False, False])).tolist()
    [False, False, True, False]
    """
    order = np.argsort(rows["turn"].to_numpy(float), kind="stable")
    ordered = rows.iloc[order]
    names = [ordered["system"].astype(object), ordered["conversation"]]
    stopped = ordered["stopped"].astype(int).groupby(names, sort=False)
    earlier = stopped.cumsum() - ordered["stopped"].astype(int)
    is_after = (earlier > 0) & (ordered["conversation"] != "")
    found = np.zeros(len(rows), bool)
    found[order] = is_after.to_numpy()
    return found
