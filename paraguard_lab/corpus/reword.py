"""Rewordings of a request that has no cluster, made by the rules from itself alone
(`docs/method.md`, The veto).
"""

from functools import cache

import pandas as pd

from paraguard_lab.corpus import paraphrase
from paraguard_utils.core.words import jaccard, split_words
from paraguard_utils.schemas import COPY_SEPARATOR
from paraguard_utils.settings import Gates
from paraguard_utils.text import content_words

MAX_REWORDINGS = 3  # rewordings of a prompt, at most; each costs a query


def reword_prompts(prompts: pd.DataFrame) -> pd.DataFrame:
    """Reword prompts by the rules: the first candidate of each strategy that is not
    nearly its prompt.

    Takes prompt_id and text. Returns prompt_id (`ID~1`, `ID~2`, ...), cluster_id (the
    prompt's id), strategy, text: at most `MAX_REWORDINGS` rows a prompt, none where the
    rules know no other words. No encoder checks the meaning.
    """
    rows = [
        (f"{prompt_id}{COPY_SEPARATOR}{number}", prompt_id, strategy, new)
        for prompt_id, text in zip(prompts["prompt_id"], prompts["text"], strict=True)
        for number, (strategy, new) in enumerate(_in_other_words(text), 1)
    ]
    return pd.DataFrame(rows, columns=["prompt_id", "cluster_id", "strategy", "text"])


@cache  # several remedies ask for the same ones
def _in_other_words(text: str) -> tuple[tuple[str, str], ...]:
    """Return the strategies and texts of a prompt's rewordings."""
    found: dict[str, str] = {}
    for strategy, _, new in paraphrase.paraphrase_text(text):
        overlap = max(
            jaccard(split_words(new), split_words(text)),
            jaccard(content_words(new), content_words(text)),
        )
        if overlap <= Gates().max_overlap:
            found.setdefault(strategy, new)
        if len(found) == MAX_REWORDINGS:
            break  # candidates take a while to write
    return tuple(found.items())
