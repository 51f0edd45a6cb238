"""Embed the tokens of texts with the sentence encoder, and count those of prompts."""

from collections.abc import Sequence

import numpy as np

from paraguard_utils.core.vectors import normalize_rows
from paraguard_utils.models import encoder
from paraguard_utils.schemas import Traces


def encode_tokens(texts: Sequence[str]) -> list[np.ndarray]:
    """Return the contextual unit vectors of each text's tokens, shapes (tokens, 384).

    The two marks that the encoder puts around a text are left out.
    """
    tokens = encoder.load_encoder().encode(
        list(texts),
        batch_size=encoder.BATCH,
        output_value="token_embeddings",
        show_progress_bar=len(texts) > encoder.LONG_RUN,
    )
    vectors = []
    for text_tokens in tokens:
        array = text_tokens.float().cpu().numpy()
        vectors.append(normalize_rows(array[1:-1]))
    return vectors


def trace_lengths(traces: Traces) -> np.ndarray:
    """Count the tokens of each prompt's own words, shape (n,)."""
    return (traces["user_end"] - traces["user_start"]).to_numpy()
