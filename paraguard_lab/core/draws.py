"""Counts of drawn answers."""

import pandas as pd

from paraguard_utils.schemas import Corpus


def count_draws(samples: pd.DataFrame) -> pd.DataFrame:
    """Count the scored answers to each prompt that was answered several times.

    Parameters
    ----------
    samples : DataFrame
        prompt_id and label of each answer.

    Returns
    -------
    DataFrame
        By prompt_id: size, the scored answers; sum and mean, the rejections among them.
    """
    scored = samples[samples["label"].isin(["accept", "reject"])]
    rejected = scored["label"].eq("reject")
    return rejected.groupby(scored["prompt_id"]).agg(["size", "sum", "mean"])


def join_draws(prompts: Corpus, samples: pd.DataFrame) -> pd.DataFrame:
    """Return the prompts with two drawn answers or more, and counts of their answers.

    Columns: those of the prompts, size and sum (`count_draws`).
    """
    counts = count_draws(samples)[["size", "sum"]]
    drawn = prompts.join(counts, on="prompt_id")
    drawn = drawn[drawn["size"] >= 2]
    return drawn.astype({"size": int, "sum": int})
