"""A guard that is a CSV file of scores (`docs/usage.md`, Guards)."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.corpus.upstream import read_upstream_csv
from paraguard_lab.guards.entries import GuardEntry, parse_guard_entry
from paraguard_lab.guards.scoring import check_probabilities
from paraguard_utils import paths
from paraguard_utils.errors import DataError
from paraguard_utils.guards.contract import Guard, GuardOptions
from paraguard_utils.stores import check_fields


class ScoresEntry(GuardEntry):
    """A guard that is a CSV file of scores."""

    scores: str


def make_scores_guard(
    name: str, fields: Mapping[str, Any], options: GuardOptions
) -> Guard:
    """Make a guard of a CSV file with the columns prompt_id and score.

    It looks up a text's prompt_id in `options.corpora`; a prompt that the file does not
    list has no score. Raise DataError if the file cannot be used.
    """
    entry = parse_guard_entry(name, fields, ScoresEntry)
    path = paths.resolve_input(entry.scores)
    by_prompt = _read_scores(name, path)
    listed = list(options.corpora.values())

    def score(texts: Sequence[str]) -> np.ndarray:
        file = paths.display_path(path)
        if not listed:
            raise DataError(
                f"{file}: scores by prompt need the corpus whose prompts they are"
            )
        prompts = pd.concat(listed)
        if not prompts["prompt_id"].isin(by_prompt.index).any():
            raise DataError(
                f"{file}: no prompt_id of it is in the corpus, which begins with"
                f" {prompts['prompt_id'].iloc[0]}"
            )
        scores = prompts["prompt_id"].map(by_prompt)
        return scores.set_axis(prompts["text"]).reindex(texts).to_numpy(float)

    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return Guard(
        name=name,
        version=entry.version or digest,
        score=score,
        by_prompt=True,
        **entry.described,
    )


def _read_scores(name: str, path: Path) -> pd.Series:
    """Read scores in [0, 1] by prompt_id; NaN for an empty field, or one that says so.

    Raise DataError about other fields and about prompts that are listed twice.
    """
    rows = read_upstream_csv(
        path, ("prompt_id", "score"), "a file of scores has prompt_id and score"
    )
    ids = rows["prompt_id"]
    check_fields(path, ids, ~ids.duplicated(), "is listed twice")
    scores = pd.to_numeric(rows["score"], errors="coerce")
    is_number = scores.notna() | rows["score"].isin(["", "nan", "NaN"])
    check_fields(path, rows["score"], is_number, "is no number")
    check_probabilities(name, scores, len(rows))
    return scores.set_axis(ids)
