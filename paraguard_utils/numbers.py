"""Numbers in prose: one generated file of keys and texts, and the places in Markdown that show them.

A place is `<!--=KEY-->text<!--=-->`, invisible around its text wherever Markdown is rendered. `make record` collects
the numbers from the recorded tables and fills the README and the notebooks' prose, so that no result is typed.
"""

import re

import numpy as np
import pandas as pd

from paraguard_utils.errors import DataError
from paraguard_utils.metrics import FEW_CLUSTERS

NAME = "numbers"
PLACE = re.compile(r"<!--=([\w.-]+)-->.*?<!--=-->", re.DOTALL)


def filled(markdown, numbers):
    """Put the numbers into their places.

    Parameters
    ----------
    markdown : str
    numbers : DataFrame
        key, text.

    Returns
    -------
    str

    Raises
    ------
    DataError
        A place names a key that there is not.
    """
    known = numbers.set_index("key")["text"]

    def text(place):
        if place[1] not in known:
            raise DataError(f"there is no number {place[1]!r} for {place[0]!r}; see numbers.collect")
        return f"<!--={place[1]}-->{known[place[1]]}<!--=-->"

    return PLACE.sub(text, markdown)


def collect(store):
    """Collect every number that prose may name from a store's tables.

    Parameters
    ----------
    store : stores.Store

    Returns
    -------
    DataFrame
        key, text. `a.NAME` is an estimate of Table 1 in the reading `relative`, and `a_clipped.NAME` in `clipped`, as a
        range over the judged targets (at least 30 rejections and 10 mixed clusters); `above.NAME` counts the targets
        whose interval lies above 0.
    """
    found = {}
    table1 = store.read("tables", "table1_targets")
    few = table1["few"] | (table1["n_mixed"] < FEW_CLUSTERS)
    judged = table1[~few].set_index("reading")
    found["targets"] = _whole(table1["target"].nunique())
    found["judged"] = _whole(table1.loc[~few, "target"].nunique())
    found["prompts"] = _whole(table1["n_prompts"].iloc[0])
    found["clusters"] = _whole(table1["n_clusters"].max())
    for reading, name in (("relative", "a"), ("clipped", "a_clipped")):
        rows = judged.loc[[reading]]
        for measure in [column for column in table1 if f"{column}_low" in table1]:
            found[f"{name}.{measure}"] = _range(rows[measure])
            found[f"{name.replace('a', 'above', 1)}.{measure}"] = _whole((rows[f"{measure}_low"] > 0).sum())
        found[f"{name}.p"] = _range(rows["p"])
        share = rows["excess_matched"] / rows["ci"]
        found[f"{name}.matched_share"] = _range(share, percent=True)
    found |= _correlations(store.read("tables", "ci_correlations"))
    found |= _search(store.read("tables", "grid_search"))
    found |= _cohorts(store.read("tables", "table2_groups"), store.read("tables", "table2_regression"))
    for row in store.read("tables", "notebook_minutes").itertuples():
        found[f"minutes.{row.notebook}"] = f"{row.minutes:g}"
    return pd.DataFrame(found.items(), columns=["key", "text"])


def _correlations(table):
    """Ranges of r over judged targets, by covariate."""
    found = {}
    for (reading, covariate), rows in table[~table["few"]].groupby(["reading", "covariate"]):
        found[f"r.{reading}.{covariate}"] = _range(rows["r"], signs=True)
    return found


def _search(table):
    found = {}
    pooled = table[table["target"] == "all targets"]
    for row in pooled.to_dict("records"):
        key = f"search.{row['reading']}.{row['prob_shift']}"
        found[f"{key}.best"] = row["best"]
        for name in ("auc_held_out", "auc_paper", "gain"):
            found[f"{key}.{name}"] = f"{row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"
    return found


def _cohorts(groups, regression):
    """Flip rates by strategy, as a range over all targets, and the odds ratios of all targets together."""
    found = {}
    for strategy, rows in groups[groups["kind"] == "strategy"].groupby("group"):
        if rows["flip"].notna().any():
            found[f"flip.{strategy}"] = _range(rows["flip"])
    for row in regression[regression["target"] == "all targets"].to_dict("records"):
        low, high = row["odds_ratio_low"], row["odds_ratio_high"]
        found[f"odds.{row['term']}"] = f"{row['odds_ratio']:.2f} [{low:.2f}, {high:.2f}]"
    return found


def _whole(number):
    return f"{int(number):,}"


def _range(values, percent=False, signs=False):
    low, high = np.nanmin(values), np.nanmax(values)
    style = ".0%" if percent else "+.2f" if signs else ".3f"
    texts = [format(value, style) for value in (low, high)]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)
