"""Reword requests that have no cluster, by the rules alone.

The veto asks such rewordings (`docs/method.md`, The veto).
"""

from functools import cache

import pandas as pd

from paraguard_lab.corpus import paraphrase
from paraguard_utils.corpus.gates import largest_overlap
from paraguard_utils.settings import Gates

COPY_SEPARATOR = "~"  # separates a prompt's id from the number of its copy or rewording
MAX_REWORDINGS = 3  # rewordings of a prompt, at most; each costs a query


def original_ids(prompt_ids: pd.Series) -> pd.Series:
    """Return the ids of the prompts behind copies."""
    return prompt_ids.str.replace(rf"{COPY_SEPARATOR}\d+$", "", regex=True)


def reword_prompts(prompts: pd.DataFrame) -> pd.DataFrame:
    """Reword prompts by the rules.

    A strategy's first candidate that is not nearly its prompt is taken. No encoder
    checks the meaning.

    Parameters
    ----------
    prompts : pandas.DataFrame
        Columns prompt_id, text.

    Returns
    -------
    pandas.DataFrame
        prompt_id (`ID~1`, `ID~2`, ...), cluster_id (the prompt's id), strategy, text:
        at most `MAX_REWORDINGS` rows per prompt, none if the rules know no other words.
    """
    rows = []
    for prompt_id, text in zip(prompts["prompt_id"], prompts["text"], strict=True):
        for number, (strategy, new) in enumerate(_reword(text), 1):
            new_id = f"{prompt_id}{COPY_SEPARATOR}{number}"
            rows.append((new_id, prompt_id, strategy, new))
    return pd.DataFrame(rows, columns=["prompt_id", "cluster_id", "strategy", "text"])


@cache  # several remedies ask for the same ones
def _reword(text: str) -> tuple[tuple[str, str], ...]:
    """Return the strategies and texts of a prompt's rewordings."""
    rewordings: dict[str, str] = {}
    for strategy, _, new in paraphrase.paraphrase_text(text):
        if largest_overlap(new, text) <= Gates().max_overlap:
            rewordings.setdefault(strategy, new)
        if len(rewordings) == MAX_REWORDINGS:
            break  # candidates take a while to write
    return tuple(rewordings.items())
