"""Counts of drawn answers."""

import pandas as pd


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
