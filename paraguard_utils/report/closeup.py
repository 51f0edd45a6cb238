"""What the token view draws: the rejections of highest CI(r) in the reading `relative`, token by token (ours)."""

import numpy as np
import pandas as pd

from paraguard_utils.analysis import confusion, signals
from paraguard_utils.schemas import Pairs, Scores, Tokens, Traces

MOST = 10
"""Rejections that the figure numbers."""


def most_confused(scores: Scores, most: int = MOST) -> pd.DataFrame:
    """List the rejections of highest CI(r), numbered, ties in the order of prompt_id.

    Parameters
    ----------
    scores : DataFrame
        One target's.
    most : int

    Returns
    -------
    DataFrame, at most `most` rows
        number (from 1), prompt_id, ci.
    """
    rows = confusion.rejections(scores).sort_values(["ci", "prompt_id"], ascending=[False, True]).head(most)
    rows = rows[["prompt_id", "ci"]].reset_index(drop=True)
    rows.insert(0, "number", np.arange(1, len(rows) + 1))
    return rows


def token_pairs(traces: Traces, tokens: Tokens, pairs: Pairs, scores: Scores, most: int = MOST) -> pd.DataFrame:
    """Align the most confused rejections with their nearest accepted neighbours (rank 1), token by token.

    Parameters
    ----------
    traces, tokens : DataFrame
        The target's (a guard's reference target's).
    pairs, scores : DataFrame
        One target's.
    most : int

    Returns
    -------
    DataFrame, one row per token of either prompt's own words
        number, side (rejected or accepted), prompt_id, place (from 0), token, nearest, distance (to `nearest`, a token
        of the other prompt, 1 - cosine, in [0, 2]); and of the pair, the same in each row: ci (of the rejection),
        similarity, same_cluster, drift, prob_shift, ppl_relative.
    """
    of_pair = ["similarity", "same_cluster", "drift", "prob_shift", "ppl_relative"]
    columns = ["number", "side", "prompt_id", "place", "token", "nearest", "distance", "ci", *of_pair]
    near = pairs[signals.ranked(pairs, 1)]
    rows = most_confused(scores, most).merge(near, left_on="prompt_id", right_on="centre_id")
    trace = {row.prompt_id: row for row in traces.itertuples()}
    frames = []
    for row in rows.itertuples():
        ends = {"rejected": row.centre_id, "accepted": row.neighbour_id}
        for (side, own), other in zip(ends.items(), reversed(ends.values()), strict=True):
            frame = signals.alignment(trace[own], trace[other], tokens).drop(columns="place")
            about = {name: getattr(row, name) for name in ("number", "ci", *of_pair)}
            frames.append(frame.assign(side=side, prompt_id=own, place=range(len(frame)), **about))
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)
