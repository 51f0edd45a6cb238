"""Measure how fluent texts are to a small language model (`docs/method.md`, Corpus)."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd

from paraguard_utils.models import loading
from paraguard_utils.models.prompting import Request

FLUENCY_MODEL = "smollm2-135m-instruct"

# The most fluent candidates of a seed and strategy, as many as this, are never stilted
MIN_FLUENT = 2

# Processors differ in later decimals, and the gates must decide alike on all
LOSS_DECIMALS = 3


@cache
def _model() -> loading.LoadedModel:
    return loading.load_model(loading.resolve_model(FLUENCY_MODEL))


def compute_losses(texts: Sequence[str]) -> np.ndarray:
    """Return the mean negative log-probability of each text's tokens, in nats.

    The lowest is the most fluent.

    Parameters
    ----------
    texts : sequence of str
        n texts, none empty. The model reads each behind a line feed.

    Returns
    -------
    array of float64, shape (n,)
        Rounded to `LOSS_DECIMALS`.

    Raises
    ------
    WeightsError
        The package of the model is missing or altered.
    """
    # Takes seconds to import, so only when a model is queried
    from paraguard_lab.core.batches import ask_in_batches

    tokenizer = _model().tokenizer
    requests = []
    for number, text in enumerate(texts):
        ids = tokenizer(f"\n{text}", add_special_tokens=False)["input_ids"]
        requests.append(Request(str(number), "", tuple(ids), 1, len(ids)))
    rows = ask_in_batches(_model(), requests, 32, 1)
    losses = [np.nanmean(row["token_nll"], dtype=np.float64) for row in rows]
    return np.array(losses).round(LOSS_DECIMALS)


def prefer_fluent(candidates: pd.DataFrame) -> pd.Series:
    """Stop the less fluent half of each seed's candidates by strategy (`gates.Review`).

    At least `MIN_FLUENT` of them stay.

    Parameters
    ----------
    candidates : DataFrame
        seed_id, strategy, text.

    Returns
    -------
    Series of str
        "stilted" or "" by the candidates' index, the most fluent first.
    """
    losses = compute_losses(candidates["text"].tolist())
    candidates = candidates.assign(loss=losses).sort_values("loss", kind="stable")
    groups = candidates.groupby(["seed_id", "strategy"])
    half = np.ceil(groups["loss"].transform("size") / 2)
    is_fluent = groups.cumcount() < np.maximum(MIN_FLUENT, half)
    return is_fluent.map({True: "", False: "stilted"})
