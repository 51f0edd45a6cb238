"""A request in other words, made of itself alone: for whoever has no cluster (`docs/method.md`, The veto)."""

import pandas as pd

from paraguard_utils.corpus import paraphrase
from paraguard_utils.settings import Gates
from paraguard_utils.text import content_words, jaccard, words

MOST = 3
"""Rewordings of a prompt, each by another strategy; each costs a query."""


def reworded(prompts: pd.DataFrame) -> pd.DataFrame:
    """Reword prompts by the rules: the first candidate of each strategy that is not nearly its prompt.

    Parameters
    ----------
    prompts : DataFrame
        Columns prompt_id, text.

    Returns
    -------
    DataFrame
        prompt_id (`ID~1`, `ID~2`, ...), cluster_id (the prompt's id), strategy, text: up to `MOST` rows a prompt, none
        where the rules know no other words. No encoder looks whether the meaning is kept.
    """
    candidates = paraphrase.by_rules(prompts.rename(columns={"prompt_id": "seed_id"})[["seed_id", "text"]])
    own = candidates["seed_id"].map(prompts.set_index("prompt_id")["text"])
    near = [
        max(jaccard(*map(words, pair)), jaccard(*map(content_words, pair))) > Gates.max_overlap
        for pair in zip(candidates["text"], own, strict=True)
    ]
    first = candidates[~pd.Series(near, dtype=bool)].drop_duplicates(["seed_id", "strategy"])
    kept = first.groupby("seed_id", sort=False).head(MOST)
    number = kept.groupby("seed_id").cumcount() + 1
    ids = kept["seed_id"] + "~" + number.astype(str)
    return pd.DataFrame(
        {"prompt_id": ids, "cluster_id": kept["seed_id"], "strategy": kept["strategy"], "text": kept["text"]}
    ).reset_index(drop=True)
