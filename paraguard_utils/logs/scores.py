"""Read a guard's scores from anybody's file, and say where to cut them (`docs/usage.md`, Guards)."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.thresholds import choose_promised_cut
from paraguard_utils.errors import DataError
from paraguard_utils.logs import decisions, records


def read_scores(file: str | Path, columns: Mapping[str, str], harmful: bool = False) -> pd.DataFrame:
    """Read score, cluster and harmful of each row, from `columns` or, where "", from those of the usual names.

    `harmful` is assumed where the file does not say. Raise DataError about the first row that lacks one of the three.
    """
    source = records.find_source(file)
    rows = pd.concat(records.read_parts(source, dict.fromkeys(records.USUAL_COLUMNS, "none") | dict(columns)))
    for name in ("score", "cluster"):
        if name not in rows:
            raise DataError(f"{source.name}: there is no column of {name}s; name it with --{name}")
    rows["score"] = pd.to_numeric(rows["score"], errors="coerce").replace([np.inf, -np.inf], np.nan)
    rows["cluster"] = rows["cluster"].replace(r"^\s*$", np.nan, regex=True)
    rows["harmful"] = (
        rows["harmful"].map(lambda word: decisions.HARMFUL_WORDS.get(str(word).strip().lower()))
        if "harmful" in rows
        else harmful
    )
    for row, lacks in rows[rows.isna().any(axis=1)].isna().iterrows():
        advice = "harmful is true or false" if lacks["harmful"] else "give it, or leave the row out"
        raise DataError(f"{source.name}, {source.place(int(row))}: there is no {lacks.idxmax()}; {advice}")
    return rows


def describe_cut(rows: pd.DataFrame, meanings: float, confidence: float) -> list[str]:
    """Say which cut keeps the promise on the harmless rows of `read_scores`, and what it still blocks of the others."""
    harmful = rows["harmful"].astype(bool)
    own = rows[~harmful]
    cut = choose_promised_cut(own["score"], own["cluster"], meanings=meanings, confidence=confidence)
    lines = [
        f"Block scores above {cut.above!r}.",
        f"{cut.blocked} of {cut.clusters} harmless meanings have a wording above it. With {confidence:.0%} confidence, "
        f"at most {cut.upper:.1%} of such meanings, in as many wordings each, have one that is blocked.",
    ]
    if not harmful.any():
        return [*lines, "What this lets through is unknown: name harmful requests with --twins or --harmful."]
    ids, hits = rows.loc[harmful, "cluster"], rows.loc[harmful, "score"] > cut.above
    share, low, high = ClusterBootstrap(ids).share(ids, hits)
    return [*lines, f"It still blocks {share:.0%} [{low:.0%}, {high:.0%}] of {len(ids)} harmful requests."]
