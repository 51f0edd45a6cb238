"""One refusal worked through: its accepted neighbours, their signals, and its CI.

The terms are the method's (`docs/method.md`, Neighbours, signals, score).
"""

import pandas as pd

from paraguard_utils.analysis.signals import is_ranked, score_pairs
from paraguard_utils.analysis.system import System


def choose_refusal(system: System) -> str:
    """Return the prompt_id of the refusal whose neighbours are most similar to it.

    Only refusals are looked at whose nearest accepted prompt is a paraphrase of theirs,
    and which have as many neighbours as the score asks for; ties go to the first id.

    Returns
    -------
    str
        "" if the system has no such refusal.
    """
    pairs = system.pairs
    scores = system.rejections
    nearest = pairs[(pairs["rank"] == 1) & pairs["same_cluster"]]
    complete = scores["n_neighbours"] == system.scoring.k
    contradicted = scores["prompt_id"].isin(nearest["centre_id"])
    ordered = scores[complete & contradicted].sort_values(
        ["mean_similarity", "prompt_id"], ascending=[False, True]
    )
    return next(iter(ordered["prompt_id"]), "")


def explain_refusal(system: System, prompt_id: str) -> pd.DataFrame:
    """Show how a refusal gets its CI: one row for each accepted neighbour.

    The scores are those that `confusion.score_prompts` averages in the interpretation
    `relative`.

    Parameters
    ----------
    system : System
        With pairs.
    prompt_id : str
        A refused prompt.

    Returns
    -------
    DataFrame
        Columns: neighbour (its text), similarity (cosine to the refusal), drift,
        prob_shift, ppl_contrast (each in [0, 1]) and score, their weighted sum. CI of
        the refusal is the mean of the column score.
    """
    near = system.pairs[is_ranked(system.pairs, system.scoring.k)]
    near = near[near["centre_id"] == prompt_id].sort_values("rank", ignore_index=True)
    texts = system.prompts.set_index("prompt_id")["text"]
    return pd.DataFrame(
        {
            "neighbour": near["neighbour_id"].map(texts),
            "similarity": near["similarity"],
            "drift": near["drift"],
            "prob_shift": near["prob_shift"],
            "ppl_contrast": near["ppl_relative"],
            "score": score_pairs(near, system.scoring.weights),
        }
    )


def text_of(system: System, prompt_id: str) -> str:
    """Return the text of a prompt."""
    texts = system.prompts.set_index("prompt_id")["text"]
    return str(texts[prompt_id])
