"""Measure how fluent texts are to a small language model: the mean loss on their tokens
(`docs/method.md`, Corpus).
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

import numpy as np

from paraguard_utils.models import loading
from paraguard_utils.models.prompting import Request

Losses: TypeAlias = Callable[
    [Sequence[str]], np.ndarray
]  # texts to losses, shape (n,); the lowest is the most fluent

FLUENCY_MODEL = "smollm2-135m-instruct"
LOSS_DECIMALS = (
    3  # processors differ in later ones, and the gates must decide alike on all
)


@cache
def _model() -> loading.LoadedModel:
    return loading.load_model(loading.resolve_model(FLUENCY_MODEL))


def compute_losses(texts: Sequence[str]) -> np.ndarray:
    """Return the mean negative log-probability of the tokens of each text, in nats, to
    `LOSS_DECIMALS`.

    Each text, none empty, stands behind a line feed. A missing or altered package of
    the model raises `WeightsError`.
    """
    from paraguard_utils.models.engine import (
        ask_in_batches,
    )  # seconds to import: only where a model is asked

    tokens = [
        _model().tokenizer(f"\n{text}", add_special_tokens=False)["input_ids"]
        for text in texts
    ]
    requests = [
        Request(str(i), "", tuple(ids), 1, len(ids)) for i, ids in enumerate(tokens)
    ]
    rows = ask_in_batches(_model(), requests, 32, 1)
    return np.array(
        [np.nanmean(row["token_nll"], dtype=np.float64) for row in rows]
    ).round(LOSS_DECIMALS)
